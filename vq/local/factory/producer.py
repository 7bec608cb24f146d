"""``LocalMessageProducer``: what sends to local queues with the calls of a cluster's producer."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Final, NoReturn, Self

from vq.client.config import ProducerConfig, WhenFull
from vq.client.future import ANY_PARTITION, SendCallback, check_callback, report
from vq.client.producer.intake.stages import serialize_with
from vq.errors import BatchFailed, BufferFull, InvalidArgument, InvalidState, VqError
from vq.local.core.waits import CommitWaiter
from vq.local.factory.queues import LocalQueues
from vq.local.factory.refused import refuse_name, refuse_settings
from vq.local.items import LocalItem
from vq.local.queue import LocalQueue
from vq.local.settings import several
from vq.model import Message, SendResult, check_timeout
from vq.reserved import check_own_name
from vq.shown import shown

_NO_PLACE: Final = SendResult(-1, -1, -1)  # of a message whose commit has not ended
_SEND_SYNC_S: Final = 3.0
#: Settings that would change what a message means, which a local queue does not have.
_NO_PRODUCER_SETTINGS: Final = (
    "partitioner",
    "interceptors",
    "identity",
    "transactional_id",
    "producer_group",
    "transaction_listener",
)


class _Changes(type(threading.RLock())):  # type: ignore[misc]
    """The condition of a future, whose entry no signal handler can interrupt.

    The entry of ``threading.Condition`` is a function of Python: where a handler raises at its end,
    the lock stays taken, and the thread that commits for all would wait for it for ever.
    """

    def __init__(self) -> None:
        self._waiting: threading.Condition | None = None  # made once a thread waits

    def notify_all(self) -> None:
        """See ``threading.Condition.notify_all``."""
        if self._waiting is not None:
            self._waiting.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """See ``threading.Condition.wait``."""
        self._waiting = waiting = self._waiting or threading.Condition(self)
        try:
            return waiting.wait(timeout)
        except BaseException:  # a signal handler raised, perhaps before the lock was taken again
            if not self._is_owned():
                self.acquire()
            raise


class _Outcome(concurrent.futures.Future[SendResult]):
    """What ``send_async`` returns."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Changes()


class _Sending:
    """A message on its way: wakes its future when the commit has ended."""

    def __init__(self, item: LocalItem, callback: SendCallback | None) -> None:
        self.future = _Outcome()
        self.future.set_running_or_notify_cancel()  # a message on its way cannot be taken back
        self.waiter = CommitWaiter((item,), self)
        self._item = item
        self._callback = callback

    def release(self) -> None:
        """See ``Waker.release``. Raises nothing: the thread commits for others, too."""
        error = self.waiter.error
        result = None if error is not None else _place_of(self._item)
        if result is None:
            _run("done callback of a send", self.future.set_exception, error)
        else:
            _run("done callback of a send", self.future.set_result, result)
        if self._callback is not None:
            _run("callback of a send", self._callback, result, error)


def _run(what: str, callback: Callable[..., object], *arguments: object) -> None:
    """Call what may run code of the application, and log what it raises, ``SystemExit`` too."""
    try:
        callback(*arguments)
    except BaseException as raised:  # noqa: BLE001  see above
        with contextlib.suppress(BaseException):  # the application's logging
            report(what, raised)


class LocalMessageProducer:
    """The part of ``vq.MessageProducer`` that needs no cluster. Any thread."""

    def __init__(self, queues: LocalQueues, config: ProducerConfig) -> None:
        """Use ``LocalFactory.producer``.

        Raises:
            InvalidArgument: A setting needs a cluster.
        """
        refuse_settings(config, _NO_PRODUCER_SETTINGS)
        self._queues = queues
        self.config = config
        self._serialize = serialize_with(config.serializer)
        self.closed = False

    def publish(self, topic: str) -> None:
        """Open the queue of a topic."""
        self._queues.queue(check_own_name(topic))

    def _prepared(self, message: object) -> tuple[LocalQueue, LocalItem]:
        if self.closed:
            raise InvalidState("the producer is closed")
        if not isinstance(message, Message):
            raise InvalidArgument(f"{shown(message)} is no vq.Message")
        if message.partition != ANY_PARTITION and message.offset == ANY_PARTITION:
            raise InvalidArgument(
                f"partition = {shown(message.partition)} of a message to send needs a cluster: a "
                "local queue has one partition; leave it out"
            )
        queue = self._queues.queue(check_own_name(message.topic))
        content = self._serialize(message.content)
        item = queue._core.puts.prepare(message._replace(content=content), None, 0, None)
        assert item is not None, "only a repeated key makes none"
        return queue, item

    def send_sync(self, message: Message, timeout: float | None = _SEND_SYNC_S) -> SendResult:
        """Send a message; return its place once it is durable.

        Raises:
            TimedOut: The disk has not answered within ``timeout``; it may be stored, or will be.
        """
        timeout = _bound(timeout)
        queue, item = self._prepared(message)
        queue._core.base.check()
        queue._commit_with((item,), timeout)
        return _place_of(item)

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> "concurrent.futures.Future[SendResult]":
        """Accept a message and return at once; ``callback`` runs on the thread that commits.

        It may call ``send_async``, but nothing that waits.

        Raises:
            InvalidArgument: There is a time-out: nothing takes back a message on its way.
            BufferFull: Too many are on their way, and ``when_full`` is ``raise``.
        """
        check_callback(callback)
        _refuse_timeout(timeout)
        queue, item = self._prepared(message)
        core = queue._core
        core.base.check()
        self._wait_for_space(queue)
        sending = _Sending(item, callback)
        core.commits.accept((item,), sending.waiter)
        return sending.future

    def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Send a message without an outcome. Errors as of ``send_async``."""
        _refuse_timeout(timeout)
        queue, item = self._prepared(message)
        queue._core.base.check()
        self._wait_for_space(queue)
        queue._core.commits.accept((item,), None)

    def _wait_for_space(self, queue: LocalQueue) -> None:
        if not queue._core.commits.intake_full:
            return
        is_inside = queue._base.is_committing  # a callback, which must not wait
        if is_inside or self.config.when_full is WhenFull.RAISE:
            raise BufferFull(f"too many messages wait for the disk of queue {queue.name!r}")
        queue._commit_with(())

    def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages; return their places once all are durable.

        Raises:
            BatchFailed: Some are refused or unknown; it has the outcome of each.
            InvalidArgument, InvalidState: None was accepted.
        """
        timeout = _bound(timeout)
        if self.closed:
            raise InvalidState("the producer is closed")
        outcomes: list[SendResult | VqError] = []
        by_queue: dict[LocalQueue, dict[int, LocalItem]] = {}  # by place in the batch
        for place, message in enumerate(several("messages", messages)):
            try:
                queue, item = self._prepared(message)
            except VqError as error:
                outcomes.append(error)
            else:
                by_queue.setdefault(queue, {})[place] = item
                outcomes.append(_NO_PLACE)
        for queue, items in by_queue.items():
            failed: VqError | None = None
            try:
                queue._core.base.check()
                queue._commit_with([*items.values()], timeout)
            except VqError as error:
                failed = error
            for place, item in items.items():
                outcomes[place] = _place_of(item) if failed is None else failed
        results = [each for each in outcomes if isinstance(each, SendResult)]
        if len(results) < len(outcomes):
            raise BatchFailed(outcomes)
        return results

    def flush(self, timeout: float | None = None) -> None:
        """Return once all that was sent before is durable.

        Raises:
            TimedOut: A disk has not answered within ``timeout``.
        """
        timeout = _bound(timeout)
        for queue in self._queues.opened:
            queue._commit_with((), timeout)

    def close(self) -> None:
        """Flush, and take no more messages. May be called again.

        In the child of a fork it does nothing.
        """
        if not self.closed and not self._queues.forked:
            self.flush()
            self.closed = True

    def __getattr__(self, name: str) -> NoReturn:
        refuse_name("producer", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bound(timeout: float | None) -> float | None:
    return None if timeout is None else check_timeout(timeout)


def _place_of(item: LocalItem) -> SendResult:
    return SendResult(item.lane, item.offset, item.id)


def _refuse_timeout(timeout: float | None) -> None:
    if timeout is not None:
        raise InvalidArgument(
            f"timeout = {shown(timeout)} needs a cluster: a message that was accepted is stored "
            "however long the disk takes; send_sync and send_batch wait with a time-out"
        )
