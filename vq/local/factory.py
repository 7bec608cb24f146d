"""``MessageFactoryConfig(local="dir")``: producers and consumers of queues of this process.

Each topic is a ``LocalQueue`` in a directory of its name. Code that sends and receives moves to a
cluster by another configuration; what only a cluster has is refused, with its name.
"""

import concurrent.futures
import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from vq import limits
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer.deliver.tries import Retry
from vq.client.future import SendCallback, check_callback, report
from vq.client.kinds import check_function
from vq.client.producer.intake.stages import serialize_with
from vq.errors import InvalidArgument, InvalidState, ListenerFailed
from vq.local.items import LocalItem
from vq.local.queue import LocalQueue
from vq.local.settings import LocalQueueConfig
from vq.local.waits import CommitWaiter
from vq.local.workers import LocalWorkers
from vq.model import Message, SendResult, check_name
from vq.shown import shown

__all__ = ["LocalFactory", "LocalMessageConsumer", "LocalMessageProducer"]

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
_NO_CONSUMER_SETTINGS: Final = ("offset_store", "model", "batch_size", "listener_timeout_s")


class LocalFactory:
    """The queues below one directory, by topic.

    Args:
        directory: Has a directory for each topic.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._lock = threading.Lock()
        self._queues: dict[str, LocalQueue] = {}
        self._groups: dict[str, str] = {}
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
        consumer = LocalMessageConsumer(self, config)
        with self._lock:
            self._consumers.append(consumer)
        return consumer

    def join(self, topic: str, group: str) -> None:
        """Note who reads a topic: a message goes to one taker, so there is one group.

        Raises:
            InvalidArgument: Another group reads it.
        """
        with self._lock:
            first = self._groups.setdefault(topic, group)
        if first != group:
            raise InvalidArgument(
                f"group {group!r} cannot read topic {topic!r}, which group {first!r} reads: in a "
                "local queue each message goes to one taker; give each group a topic of its own"
            )

    def shutdown(self) -> None:
        """Close all consumers, then all queues. May be called again."""
        with self._lock:
            self._closed = True
            consumers, self._consumers = self._consumers, []
            queues, self._queues = list(self._queues.values()), {}
        for consumer in consumers:
            consumer.close()
        for queue in queues:
            queue.close()


class _Sending:
    """A message on its way: wakes its future when the commit has ended."""

    def __init__(self, item: LocalItem, callback: SendCallback | None) -> None:
        self.future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
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
        self._factory.queue(topic)

    def _prepared(self, message: object) -> tuple[LocalQueue, LocalItem]:
        if self.closed:
            raise InvalidState("the producer is closed")
        if not isinstance(message, Message):
            raise InvalidArgument(f"{shown(message)} is no vq.Message")
        queue = self._factory.queue(message.topic)
        content = self._serialize(message.content)
        item = queue._core.prepare(message._replace(content=content), None, 0, None)
        assert item is not None, "only a repeated key makes none"
        return queue, item

    def send_sync(self, message: Message, timeout: float | None = _SEND_SYNC_S) -> SendResult:
        """Send a message; return its place once it is durable. It takes as long as the disk."""
        queue, item = self._prepared(message)
        queue._core.check()
        queue._commit_with((item,))
        return _place_of(item)

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> "concurrent.futures.Future[SendResult]":
        """Accept a message and return at once; ``callback`` runs on the thread that commits."""
        check_callback(callback)
        queue, item = self._prepared(message)
        core = queue._core
        core.check()
        if core.intake_full:
            queue.flush()
        sending = _Sending(item, callback)
        core.accept((item,), sending.waiter)
        return sending.future

    def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Send a message without an outcome."""
        queue, item = self._prepared(message)
        queue._core.check()
        queue._core.accept((item,), None)

    def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages; return their places once all are durable."""
        by_queue: dict[int, tuple[LocalQueue, list[LocalItem]]] = {}
        items = []
        for message in messages:
            queue, item = self._prepared(message)
            by_queue.setdefault(id(queue), (queue, []))[1].append(item)
            items.append(item)
        for queue, some in by_queue.values():
            queue._core.check()
            queue._commit_with(some)
        return [_place_of(item) for item in items]

    def flush(self, timeout: float | None = None) -> None:
        """Return once all that was sent before is durable."""
        for queue in list(self._factory._queues.values()):
            queue.flush()

    def close(self) -> None:
        """Flush, and take no more messages. May be called again."""
        if not self.closed:
            self.flush()
            self.closed = True

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_name("producer", name)

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

    ``config.workers`` threads call the listener, for messages of one key in order, one at a time. A
    listener that raises gets its message again: at once three times, then every 5 s.
    """

    def __init__(self, factory: LocalFactory, config: ConsumerConfig) -> None:
        """Use ``LocalFactory.consumer``."""
        self._factory = factory
        self.config = config
        self._listeners: dict[str, Callable[[Message], Any] | None] = {}
        self._workers: dict[str, LocalWorkers] = {}
        self._in_hand: list[tuple[LocalQueue, LocalItem]] = []
        self.closed = False

    def subscribe(
        self,
        topic_or_pattern: str,
        length: int = limits.MIB,
        listener: Callable[[Message], Any] | None = None,
        message_filter: object = None,
    ) -> Self:
        """Add a topic, and the listener of its messages, before ``start``."""
        if message_filter not in {None, "*"}:
            raise InvalidArgument(
                f"message_filter = {shown(message_filter)}: a local queue gives all messages; look "
                "at message.tag in the listener"
            )
        check_name("topic", topic_or_pattern)
        if listener is not None:
            check_function("listener", listener, "give a plain function of a message")
        if self._listeners and (listener is None) != (None in self._listeners.values()):
            raise InvalidArgument("all topics of a consumer have listeners, or none has")
        self._factory.join(topic_or_pattern, self.config.group)
        self._listeners[topic_or_pattern] = listener
        return self

    def start(self) -> Self:
        """Begin to call the listeners."""
        if self.closed or not self._listeners:
            raise InvalidState("the consumer is closed, or has no subscription")
        for topic, listener in self._listeners.items():
            queue = self._factory.queue(topic)
            if listener is not None and topic not in self._workers:
                self._workers[topic] = LocalWorkers(
                    queue, _calling(listener), workers=self.config.workers, by_key=True
                )
        return self

    def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return messages of the one topic; those of the call before count as handled."""
        if len(self._listeners) != 1 or self.closed:
            raise InvalidState("get_many needs an open consumer with one topic of a local queue")
        self.commit()
        (topic,) = self._listeners
        queue = self._factory.queue(topic)
        items = queue.take_many(max_messages, timeout)
        self._in_hand = [(queue, item) for item in items]
        return [item.message for item in items]

    def commit(self) -> None:
        """Complete what ``get_many`` has returned."""
        in_hand, self._in_hand = self._in_hand, []
        for queue, item in in_hand:
            queue.complete(item)

    def close(self) -> None:
        """Wait for listeners that run; the other messages are given to others. May be repeated."""
        if self.closed:
            return
        self.closed = True
        for workers in self._workers.values():
            workers.close()
        for queue, item in reversed(self._in_hand):
            queue._core.give_back(item)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_name("consumer", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _calling(listener: Callable[[Message], Any]) -> Callable[[Message], None]:
    def call(message: Message) -> None:
        if isinstance(listener(message), Retry):
            raise ListenerFailed("the listener asked for another try")

    return call


def _place_of(item: LocalItem) -> SendResult:
    return SendResult(item.lane, item.offset, item.id)


def _refuse_settings(config: ProducerConfig | ConsumerConfig, names: Iterable[str]) -> None:
    defaults = {each.name: each.default for each in fields(config)}
    for name in names:
        value = getattr(config, name)
        if value != defaults[name]:
            raise InvalidArgument(f"{name} = {shown(value)} needs a cluster; leave it out")


def _refuse_name(what: str, name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    raise InvalidState(
        f"a {what} of a local factory has no {name}: that needs a cluster",
        hint="give MessageFactoryConfig a cluster instead of local",
    )
