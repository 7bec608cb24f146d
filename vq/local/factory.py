"""``MessageFactoryConfig(local="dir")``: producers and consumers of queues of this process.

Each topic is a ``LocalQueue`` in a directory of its name. Code that sends and receives moves to a
cluster by another configuration; what only a cluster has is refused, with its name.
"""

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from vq import limits
from vq.client.config import ConsumerConfig, ProducerConfig, WhenFull
from vq.client.consumer.pulling_thread import check_one_thread
from vq.client.future import ANY_PARTITION, SendCallback, check_callback, report
from vq.client.kinds import check_between, check_function
from vq.client.producer.intake.stages import serialize_with
from vq.coordination.tree.values.group_terms import OnBadRecord, OnFailure
from vq.errors import (
    BatchFailed,
    BufferFull,
    InvalidArgument,
    InvalidState,
    LeaseLost,
    VqError,
)
from vq.local.core.waits import CommitWaiter
from vq.local.items import LocalItem
from vq.local.listeners import ListenerWorkers, as_delivered, passing
from vq.local.queue import LocalQueue
from vq.local.settings import LocalQueueConfig, given_directory, several
from vq.log_lines import get_logger
from vq.message_filter import Filter, Wanting
from vq.model import Message, SendResult, check_name, check_timeout
from vq.reserved import Purpose, check_own_name, group_of, is_reserved
from vq.shown import shown

__all__ = ["LOOK_S", "LocalFactory", "LocalMessageConsumer", "LocalMessageProducer", "refuse_name"]

logger = get_logger(__name__)
_NO_PLACE: Final = SendResult(-1, -1, -1)  # of a message whose commit has not ended
_SEND_SYNC_S: Final = 3.0
#: A call that waits for messages looks so often whether its consumer was closed.
LOOK_S: Final = 0.5
_monotonic: Final = time.monotonic
#: Settings that would change what a message means, which a local queue does not have.
_NO_PRODUCER_SETTINGS: Final = (
    "partitioner",
    "interceptors",
    "identity",
    "transactional_id",
    "producer_group",
    "transaction_listener",
)
_NO_CONSUMER_SETTINGS: Final = (
    "offset_store",
    "model",
    "batch_size",
    "listener_timeout_s",
    "restart_s",
    "start_position",
    "window_bytes",
    "read_from",
    "rack",
    "strategy",
)


class LocalFactory:
    """The queues below one directory, by topic.

    Args:
        directory: Has a directory for each topic.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = given_directory(directory)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queues: dict[str, LocalQueue] = {}
        self._groups: dict[str, tuple[str, Filter]] = {}
        self._consumers: list[LocalMessageConsumer] = []
        self._closed = False

    def queue(self, topic: str) -> LocalQueue:
        """Return the queue of a topic, which is opened when it is first asked for.

        Raises:
            InvalidArgument: The name is not valid.
            InvalidState: The factory is shut down.
            DirectoryRefused: Another process has it open.
        """
        found = self._queues.get(topic)
        if found is not None:
            return found
        check_name("topic", topic)
        with self._lock:
            if self._closed:
                raise InvalidState("the factory is shut down")
            if topic not in self._queues:
                directory = self._directory / topic
                self._queues[topic] = LocalQueue(directory, LocalQueueConfig(name=topic))
            return self._queues[topic]

    def may_wait(self, topic: str) -> bool:
        """Whether a message to a topic may wait now, for the opening of its queue or its disk."""
        found = self._queues.get(topic)
        return found is None or found._core.commits.intake_full

    def producer(self, config: ProducerConfig) -> "LocalMessageProducer":
        """Return a producer.

        Raises:
            InvalidArgument: A setting needs a cluster.
        """
        _refuse_settings(config, _NO_PRODUCER_SETTINGS)
        return LocalMessageProducer(self, config)

    def consumer(self, config: ConsumerConfig) -> "LocalMessageConsumer":
        """Return a consumer.

        Raises:
            InvalidArgument: A setting needs a cluster.
        """
        _refuse_settings(config, _NO_CONSUMER_SETTINGS)
        if not config.group:
            raise InvalidArgument("a consumer of local queues needs group = '...'")
        for name, stop in (("on_failure", OnFailure.STOP), ("on_bad_record", OnBadRecord.STOP)):
            if getattr(config, name) == stop:
                raise InvalidArgument(
                    f"{name} = '{stop}' needs a cluster: here nothing remembers that a group was "
                    "stopped; give 'skip' or 'dead-letter', or leave it out: the message is held"
                )
        consumer = LocalMessageConsumer(self, config)
        with self._lock:
            self._consumers.append(consumer)
        return consumer

    def join(self, topic: str, group: str, wanted: Filter) -> None:
        """Note who reads a topic: a message goes to one taker, so there is one group.

        Raises:
            InvalidArgument: Another group reads it, or this one with another filter.
        """
        with self._lock:
            first, its_filter = self._groups.setdefault(topic, (group, wanted))
        if first != group:
            raise InvalidArgument(
                f"group {group!r} cannot read topic {topic!r}, which group {first!r} reads: in a "
                "local queue each message goes to one taker; give each group a topic of its own"
            )
        if its_filter != wanted:
            raise InvalidArgument(
                f"another consumer of group {group!r} reads topic {topic!r} with another "
                "message_filter: what passes one of them would be lost to the other; give all "
                "members of a group the same"
            )

    @property
    def directory(self) -> Path:
        """Of all queues."""
        return self._directory

    def put_down(self) -> None:
        """Give to others what consumers have in hand of ``get_many``: its handling failed."""
        for consumer in list(self._consumers):
            consumer.put_down()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made it: all of it is its parent's."""
        return self._pid != os.getpid()

    def shutdown(self) -> None:
        """Close all consumers, then all queues. May be called again.

        In the child of a fork it does nothing.

        Raises:
            InvalidState: A listener called it, which would wait for itself. All goes on.
        """
        if self.forked:
            return
        for consumer in list(self._consumers):
            consumer.check_outside()
        with self._lock:
            self._closed = True
            consumers, self._consumers = self._consumers, []
            queues, self._queues = list(self._queues.values()), {}
        with contextlib.ExitStack() as last_first:  # if a step fails, the others are done
            for queue in queues:
                last_first.callback(queue.close)
            for consumer in consumers:
                last_first.callback(consumer.close)


class _Sending:
    """A message on its way: wakes its future when the commit has ended."""

    def __init__(self, item: LocalItem, callback: SendCallback | None) -> None:
        self.future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        self.future.set_running_or_notify_cancel()  # a message on its way cannot be taken back
        self.waiter = CommitWaiter((item,), self)
        self._item = item
        self._callback = callback

    def release(self) -> None:
        """See ``Waker.release``."""
        error = self.waiter.error
        result = None if error is not None else _place_of(self._item)
        if result is None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
        if self._callback is not None:
            try:
                self._callback(result, error)
            except BaseException as raised:  # noqa: BLE001  the thread commits for others, too
                report("callback of a send", raised)


class LocalMessageProducer:
    """The part of ``vq.MessageProducer`` that needs no cluster. Any thread."""

    def __init__(self, factory: LocalFactory, config: ProducerConfig) -> None:
        """Use ``LocalFactory.producer``."""
        self._factory = factory
        self.config = config
        self._serialize = serialize_with(config.serializer)
        self.closed = False

    def publish(self, topic: str) -> None:
        """Open the queue of a topic."""
        self._factory.queue(check_own_name(topic))

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
        queue = self._factory.queue(check_own_name(message.topic))
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
        if self.config.when_full is WhenFull.RAISE:
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
        for queue in list(self._factory._queues.values()):
            queue._commit_with((), timeout)

    def close(self) -> None:
        """Flush, and take no more messages. May be called again.

        In the child of a fork it does nothing.
        """
        if not self.closed and not self._factory.forked:
            self.flush()
            self.closed = True

    def __getattr__(self, name: str) -> NoReturn:
        refuse_name("producer", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LocalMessageConsumer:
    """The part of ``vq.MessageConsumer`` that needs no cluster.

    ``config.workers`` threads call the listener, in the order that ``config.mode`` promises; a
    topic is one partition. What fails is tried again as the settings of the consumer say.
    """

    def __init__(self, factory: LocalFactory, config: ConsumerConfig) -> None:
        """Use ``LocalFactory.consumer``."""
        self._factory = factory
        self.config = config
        self._listeners: dict[str, Callable[[Message], Any] | None] = {}
        self._filters: dict[str, Filter] = {}
        self._workers: dict[str, ListenerWorkers] = {}
        self._in_hand: list[tuple[LocalQueue, LocalItem]] = []
        self._owner: threading.Thread | None = None  # called get_many last; None: a loop's task
        self._lock = threading.Lock()  # a listener may call close before start has returned
        self._started = False
        self.closed = False

    def subscribe(
        self,
        topic_or_pattern: str,
        length: int = limits.MIB,
        listener: Callable[[Message], Any] | None = None,
        message_filter: Wanting = None,
    ) -> Self:
        """Add a topic, and the listener of its messages, before ``start``.

        What does not pass the filter counts as handled, as in a cluster.
        """
        if self.closed or self._started:
            raise InvalidState("subscribe comes before start")
        group, topic = self.config.group, topic_or_pattern
        wanted = Filter.of(message_filter)
        if isinstance(topic, str) and {"*", "?"} & set(topic):
            raise InvalidArgument(f"the pattern {topic!r} needs a cluster; subscribe to each topic")
        check_name("topic", topic)
        if group_of(topic, Purpose.DEAD_LETTERS) in {None, group} and is_reserved(topic):
            raise InvalidArgument(
                f"group {group!r} cannot read {topic!r}: of topics of vq's own a local queue has "
                "those of dead letters, which another group than theirs reads"
            )
        if listener is not None:
            check_function("listener", listener, "give a plain function of a message")
        if self._listeners and (listener is None) != (None in self._listeners.values()):
            raise InvalidArgument("all topics of a consumer have listeners, or none has")
        self._factory.join(topic, group, wanted)
        self._listeners[topic] = listener
        self._filters[topic] = wanted
        return self

    def start(self) -> Self:
        """Begin to call the listeners.

        Raises:
            InvalidState: It was started or closed before, or has no subscription.
        """
        with self._lock:
            if self.closed or self._started:
                raise InvalidState("this consumer was started or closed before")
            if not self._listeners:
                raise InvalidState("the consumer has no subscription; subscribe to a topic")
            queues = {topic: self._factory.queue(topic) for topic in self._listeners}
            self._started = True
            for topic, listener in self._listeners.items():
                if listener is not None:
                    self._workers[topic] = ListenerWorkers(
                        queues[topic],
                        listener,
                        config=self.config,
                        wanted=self._filters[topic],
                        dead_letters=self._factory.queue,
                        directory=self._factory.directory,
                    )
        return self

    def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return messages of the one topic; those of the call before count as handled.

        The messages of a call are of the thread that called. If it ends, they are given again.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds to wait for the first one; None: without an end.

        Raises:
            InvalidArgument: An argument is unusable.
            InvalidState: It is closed, has no topic without a listener, or another thread has
                messages of a call, or waits for some.
        """
        check_between("max_messages", max_messages, 1, limits.MANY_MAX)
        timeout = _bound(timeout)
        topic, passes = self.pulled()
        self._enter()
        try:
            messages = self._pull(topic, passes, max_messages, timeout)
        finally:
            if not self._in_hand:  # another thread may go on
                self._owner = None
        return messages

    def _enter(self) -> None:
        """Let this thread call, and complete what it has from its call before."""
        me = threading.current_thread()
        with self._lock:
            owner = self._owner
            check_one_thread(owner, me)
            self._owner = me
        if owner not in {None, me}:
            self.put_down()
        self.finish()

    def _pull(
        self,
        topic: str,
        passes: Callable[[Message], bool],
        max_messages: int,
        timeout: float | None,
    ) -> list[Message]:
        queue = self._factory.queue(topic)
        deadline = None if timeout is None else _monotonic() + timeout
        while not self.closed:
            left_s = LOOK_S if deadline is None else max(deadline - _monotonic(), 0.0)
            items: list[LocalItem] = []
            try:
                while len(items) < max_messages:
                    item = queue.take(0 if items else min(left_s, LOOK_S))
                    if item is None:
                        break
                    items.append(item)
                passing_on = [
                    (item, message) for item in items if passes(message := as_delivered(item))
                ]
            except BaseException:
                for item in reversed(items):
                    queue._core.takes.give_back(item)
                raise
            kept = {item for item, _ in passing_on}
            queue.complete_many(item for item in items if item not in kept)
            if not self.hold(item for item in items if item in kept):
                return []
            if kept or (not items and left_s <= LOOK_S and deadline is not None):
                return [message for _, message in passing_on]
        return []

    def pulled(self) -> tuple[str, Callable[[Message], bool]]:
        """Return the one topic that is pulled from, and its filter. For vq only.

        Raises:
            InvalidState: There is none.
        """
        if self.closed:
            raise InvalidState("this consumer is closed")
        if [*self._listeners.values()] != [None]:
            raise InvalidState("get_many needs a consumer with one topic and no listener")
        (topic,) = self._listeners
        return topic, passing(self._filters[topic])

    def hold(self, items: Iterable[LocalItem]) -> bool:
        """Have items count as handled with the next ``finish``. For vq only.

        Returns:
            False: it was closed meanwhile, and they are given to others.
        """
        (topic,) = self._listeners
        held = [(self._factory.queue(topic), item) for item in items]
        with self._lock:
            if not self.closed:
                self._in_hand += held
                return True
        for queue, item in reversed(held):
            queue._core.takes.give_back(item)
        return False

    def commit(self) -> None:
        """Return once it is durable what was handled; what is in hand of ``get_many`` is not."""
        for topic in self._listeners:
            self._factory.queue(topic).flush()

    def finish(self) -> None:
        """Complete what ``get_many`` has returned. For vq only."""
        in_hand, self._in_hand = self._in_hand, []
        for queue, items in groupby(in_hand, lambda each: each[0]):
            queue.complete_many([item for _, item in items])

    def put_down(self) -> None:
        """Give to others what ``get_many`` has returned: its handling failed. For vq only."""
        if self._factory.forked:
            return
        in_hand, self._in_hand = self._in_hand, []
        for queue, item in reversed(in_hand):
            queue._core.takes.give_back(item)

    def close(self) -> None:
        """Wait up to 30 s for listeners that run; the other messages are given to others.

        Messages of ``get_many`` count as handled if this thread has called it. May be called again.
        In the child of a fork it does nothing.

        Raises:
            InvalidState: A listener called it, which would wait for itself. The consumer goes on.
        """
        if self._factory.forked:
            return
        with self._lock:
            self.check_outside()
            if self.closed:
                return
            self.closed = True
        for workers in self._workers.values():
            workers.close()
        if self._owner not in {None, threading.current_thread()}:
            self.put_down()
        try:
            self.finish()
        except LeaseLost as error:
            logger.warning("a message is given again", group=self.config.group, error=error)

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if one of the listeners calls it. For vq only."""
        for workers in self._workers.values():
            workers.check_outside()

    def __getattr__(self, name: str) -> NoReturn:
        refuse_name("consumer", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is not None:
            self.put_down()
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


def _refuse_settings(config: ProducerConfig | ConsumerConfig, names: Iterable[str]) -> None:
    defaults = {each.name: each.default for each in fields(config)}
    for name in names:
        value = getattr(config, name)
        if value != defaults[name]:
            raise InvalidArgument(f"{name} = {shown(value)} needs a cluster; leave it out")


def refuse_name(what: str, name: str) -> NoReturn:
    """Refuse a method that needs a cluster; for vq only.

    Raises:
        InvalidState: Always, but for names that begin with an underscore.
    """
    if name.startswith("_"):
        raise AttributeError(name)
    raise InvalidState(
        f"a {what} of a local factory has no {name}: that needs a cluster",
        hint="give MessageFactoryConfig a cluster instead of local",
    )
