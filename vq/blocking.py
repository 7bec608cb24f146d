"""The blocking API: ``MessageFactory``, ``MessageProducer``, ``MessageConsumer``.

Thin faces over the cores that live on the loop. A factory owns one session with ZooKeeper, one
connection per broker and one loop thread; its producers and consumers share them. All methods may
be called from any thread.
"""

import contextlib
import threading
import time
from types import TracebackType
from typing import Self

from vq.admin.blocking import Admin
from vq.admin.brokers import all_statuses, broker_status
from vq.admin.placements import partitions_of
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.delivery import Listener, ThreadDelivery, Workers
from vq.client.consumer.permit import Permit
from vq.client.future import SendCallback, SendFuture
from vq.client.producer.core import ProducerCore
from vq.client.producer.partitioner import Partitioner
from vq.client.runtime import LoopThread
from vq.errors import InvalidState, NotPublished, NotSent, TimedOut, VqError
from vq.model import (
    Address,
    Message,
    OffsetBounds,
    PartitionPlacement,
    PartitionTrouble,
    SendResult,
    StatusResult,
    TopicPartition,
    check_timeout,
)

_STOP_S = 30.0
_SEND_SYNC_S = 3.0
_GET_S = 30.0  # beside what the core itself bounds: connecting, moving, ZooKeeper
_WORKERS_S = 5.0


class MessageProducer:
    """Sends messages. Made by ``MessageFactory.create_producer``; usable from many threads.

    Messages that one thread sends to one partition keep their order, sync and async ones mixed.
    """

    def __init__(self, core: ProducerCore, runtime: LoopThread) -> None:
        self._core = core
        self._append = core.append
        self._runtime = runtime
        self._forget = runtime.on_loss(forked=core.forsake, ended=core.abandon)

    @property
    def config(self) -> ProducerConfig:
        """How this producer batches, waits and tries again."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def publish(self, topic: str) -> None:
        """Declare a topic: fetch its routes and watch them. Sending does it when it was not done.

        Raises:
            UnknownTopic: There is no such topic.
            PermissionRefused: It is not writable.
        """
        self._runtime.run(self._core.publish(topic))

    def send_sync(self, message: Message, timeout: float = _SEND_SYNC_S) -> SendResult:
        """Send one message and wait until it is stored as its topic's settings promise.

        Raises:
            Refused: It is certainly not stored.
            OutcomeUnknown: It may or may not be stored; sending it again may store it twice.
            InvalidArgument: It is unusable.
        """
        self._runtime.check()
        try:
            future = self._core.send_blocking(message, timeout)
        except NotPublished:
            left = self._publish_within(message.topic, check_timeout(timeout))
            future = self._core.send_blocking(message, left)
        return future.result(0)

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Take one message and return at once (or when the full buffer has room again).

        ``callback(result, error)`` runs on the factory's thread: it must be short, and may call
        ``send_async`` but nothing that waits. What it raises is logged, whatever it is, also
        ``SystemExit`` and ``KeyboardInterrupt``: it ends neither the sending nor the program.
        ``timeout`` is the deadline of all attempts together,
        by default ``config.send_timeout_s``.

        Raises:
            BufferFull: The buffer stayed full until the deadline.
            InvalidArgument, MessageTooLarge, InvalidState, UnknownTopic: Nothing was taken.
        """
        future = self._append(message, callback, timeout)
        if future is not None:
            return future
        try:
            return self._core.append_any(message, callback, timeout)
        except NotPublished:
            bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
            left = self._publish_within(message.topic, bound)
            return self._core.append_any(message, callback, left)

    def _publish_within(self, topic: str, timeout: float) -> float:
        """Publish as part of a send with this time-out; return what is left of it."""
        begin = time.monotonic()
        try:
            self._runtime.run(self._core.publish(topic), timeout)
        except TimedOut:
            raise NotSent(
                f"where {topic} lives could not be read within {timeout:g} s; nothing was sent"
            ) from None
        return timeout - (time.monotonic() - begin)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message taken so far has its outcome.

        Raises:
            TimedOut: ``timeout`` seconds went by first; the sends go on.
        """
        self._runtime.run(self._core.flush(), timeout)

    def close(self) -> None:
        """Wait for what was taken (each has a deadline), then stop. May be called again.

        Raises:
            InvalidState: This is a callback: its own end would be waited for. The producer goes on.
        """
        if not self._runtime.gone:
            self._runtime.run(self._core.close())
            self._forget()  # not before: what is interrupted ends with the loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MessageConsumer:
    """Receives messages, by position or as a member of a group."""

    def __init__(self, core: ConsumerCore, runtime: LoopThread, workers: Workers) -> None:
        self._core = core
        self._runtime = runtime
        self._workers = workers
        self._forget = runtime.on_loss(forked=workers.forsake, ended=lambda _: None)

    @property
    def config(self) -> ConsumerConfig:
        """How this consumer fetches and commits."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    @property
    def last_error(self) -> VqError | None:
        """The last error that kept a partition from going on, over or not; None: there was none."""
        return self._core.last_error

    @property
    def bad_reads(self) -> int:
        """How often bytes failed a check, and were fetched again on a new connection."""
        return self._core.bad_reads

    def troubles(self) -> dict[TopicPartition, PartitionTrouble]:
        """Return the partitions that stand still now, each with the cause, and since when.

        Damaged bytes, a listener that raises, or a broker that refuses: each is tried again by
        itself, with growing pauses, and nothing is skipped. ``vq group describe`` shows the same.
        """
        return self._core.troubles()

    @property
    def member(self) -> str:
        """The name of this member inside its group."""
        return self._core.member

    def get(
        self, topic: str, partition: int, offset: int, length: int, timeout: float | None = None
    ) -> list[Message]:
        """Read messages from ``offset`` on, at least one if there is any, about ``length`` bytes.

        Needs no group and moves no offset. With ``timeout`` it waits so many seconds for a first
        message; without, it returns an empty list at the end of the partition. Compressed messages
        may be far larger than what was read: with 4 MiB of them the list ends, read on behind the
        last one.

        Raises:
            OffsetOutOfRange: The offset is not there (any more); ``details`` has the valid range.
            OffsetNotBoundary: No record starts there; ``details["next"]`` is where one does.
            UnknownTopic, UnknownPartition: There is none.
        """
        bound = None if timeout is None else check_timeout(timeout)
        return self._runtime.run(
            self._core.reader.get(topic, partition, offset, length, bound), _GET_S + (bound or 0.0)
        )

    def subscribe(
        self,
        topic: str,
        length: int,
        listener: Listener,
        message_filter: str | None = None,
    ) -> Self:
        """Name a topic to consume, with what handles its messages; chainable, before ``start``.

        Args:
            topic: Must exist when ``start`` is called.
            length: Bytes fetched at a time, 1 to 8 MiB.
            listener: Called once per message, on a thread of this consumer. A message counts as
                consumed when it returns; ``config.on_listener_error`` says what happens when it
                raises.
            message_filter: A tag, or several as ``"a || b"``; brokers send nothing else.
        """
        self._core.subscribe(topic, length, listener, message_filter)
        return self

    def start(self) -> Self:
        """Join the group and begin to receive.

        Raises:
            InvalidState: Nothing was subscribed, or there is no group in the configuration.
            UnknownTopic: A subscribed topic does not exist.
        """
        self._runtime.run(self._core.start())
        return self

    def get_offset(self, topic: str) -> dict[TopicPartition, int]:
        """Return the committed offset of the group in every partition that has one."""
        return self._runtime.run(self._core.committed(topic))

    def get_bounds(self, topic: str, partition: int) -> OffsetBounds:
        """Return the range of offsets that can be read now, from whoever holds the partition.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
        """
        return self._runtime.run(self._core.reader.bounds(topic, partition))

    def commit(self) -> None:
        """Commit now what was handled, instead of at the next interval."""
        self._runtime.run(self._core.commit())

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions this member holds now."""
        return self._core.held()

    def close(self) -> None:
        """Finish the messages in hand, commit, leave the group. May be called again.

        Raises:
            InvalidState: This is a listener or a callback: its own end would be waited for. The
                consumer goes on.
        """
        if self._runtime.forked:
            return
        self.check_outside()
        if not self._runtime.gone:
            self._runtime.check()  # refused in a callback, before anything ends
        try:
            if not self._runtime.gone:
                self._runtime.run(self._core.close())
        finally:
            self._workers.close(_WORKERS_S)
            self._forget()

    def check_outside(self) -> None:
        """Raise ``InvalidState`` when called by one of this consumer's listeners."""
        if self._workers.is_current:
            raise InvalidState(
                "closing a consumer inside its own listener would wait for itself; "
                "close it from another thread"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MessageFactory:
    """Makes producers and consumers of one cluster.

    Example::

        with vq.MessageFactory(vq.MessageFactoryConfig(zookeeper="127.0.0.1:2181")) as factory:
            producer = factory.create_producer()
            producer.send_sync(vq.Message("orders", b"one"))

    ``open`` may be given the configuration instead of the constructor; entering the context opens.
    """

    def __init__(self, config: MessageFactoryConfig | None = None) -> None:
        self.config = config or MessageFactoryConfig()
        self._runtime: LoopThread | None = None
        self._cluster: ClusterClient | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # one ``open`` or ``shutdown`` at a time
        self._producers: list[MessageProducer] = []
        self._consumers: list[MessageConsumer] = []

    def open(self, config: MessageFactoryConfig | None = None) -> Self:
        """Open the session with ZooKeeper; returns the factory.

        Raises:
            CoordinationError: ZooKeeper does not answer in time.
            InvalidState: It is open already.
        """
        with self._opening:
            if self._runtime is not None:
                raise InvalidState("this factory is open already")
            if config is not None:
                self.config = config
            runtime = LoopThread(f"vq-{self.config.client_id}")
            try:
                self._cluster = runtime.run(open_cluster(self.config))
            except BaseException:
                runtime.stop()
                raise
            self._runtime = runtime
        return self

    def create_producer(
        self, config: ProducerConfig | None = None, *, partitioner: Partitioner | None = None
    ) -> MessageProducer:
        """Return a new producer; it is closed with the factory at the latest."""
        runtime, cluster = self._opened()

        async def make() -> ProducerCore:
            await cluster.lease_slot()
            return ProducerCore(cluster, config or ProducerConfig(), partitioner=partitioner)

        producer = MessageProducer(runtime.run(make()), runtime)
        with self._lock:
            self._producers = [each for each in self._producers if not each.closed]
            self._producers.append(producer)
        return producer

    def create_consumer(self, config: ConsumerConfig | None = None) -> MessageConsumer:
        """Return a new consumer; it is closed with the factory at the latest."""
        runtime, cluster = self._opened()
        settings = config or ConsumerConfig()

        workers = Workers(settings.listener_threads, name=f"vq-listener-{settings.group}")
        permit = Permit(cluster.clock.monotonic)

        async def make() -> ConsumerCore:
            return ConsumerCore(
                cluster,
                settings,
                make_delivery=lambda partition, position, listener, hooks: ThreadDelivery(
                    partition,
                    position,
                    listener,
                    settings,
                    hooks=hooks,
                    workers=workers,
                    permit=permit,
                ),
                permit=permit,
            )

        try:
            consumer = MessageConsumer(runtime.run(make()), runtime, workers)
        except BaseException:
            workers.close(0.0)
            raise
        with self._lock:
            self._consumers = [each for each in self._consumers if not each.closed]
            self._consumers.append(consumer)
        return consumer

    @property
    def admin(self) -> Admin:
        """What an operator asks and changes: topics, placements, groups, offsets, brokers."""
        runtime, cluster = self._opened()
        return Admin(cluster, runtime)

    def get_partitions_for_topic(self, topic: str) -> list[PartitionPlacement]:
        """Return where the partitions of a topic live, in rising order.

        Raises:
            UnknownTopic: There is no such topic.
        """
        runtime, cluster = self._opened()
        return runtime.run(partitions_of(cluster, topic))

    def get_status(
        self, address: Address | str | None = None
    ) -> dict[Address, StatusResult] | StatusResult:
        """Ask one broker, or every registered one, for its status.

        Brokers that are registered but do not answer are left out of the dictionary; with an
        address given, that is an error.
        """
        runtime, cluster = self._opened()
        if address is None:
            return runtime.run(all_statuses(cluster))
        broker = Address.parse(address) if isinstance(address, str) else address
        return runtime.run(broker_status(cluster, broker))

    def _opened(self) -> tuple[LoopThread, ClusterClient]:
        if self._runtime is None or self._cluster is None:
            raise InvalidState("the factory is not open; call open() or use it in a with statement")
        return self._runtime, self._cluster

    def shutdown(self) -> None:
        """Close every consumer and producer, then the session. May be called again.

        All of it is done whatever fails on the way; the error is raised afterwards.

        Raises:
            InvalidState: This is a listener or a callback: its own end would be waited for.
        """
        runtime, cluster = self._runtime, self._cluster
        if runtime is None or cluster is None:
            return
        if runtime.forked:
            self._runtime = None
            return
        if not runtime.gone:
            runtime.check()
        for consumer in self._consumers:
            consumer.check_outside()
        with self._opening:
            if self._runtime is not runtime:
                return  # another thread has just done it
            with contextlib.ExitStack() as last_first:
                last_first.callback(setattr, self, "_runtime", None)
                last_first.callback(runtime.stop)
                last_first.callback(lambda: runtime.run(cluster.close(), _STOP_S))
                for producer in self._producers:
                    last_first.callback(producer.close)
                for consumer in self._consumers:
                    last_first.callback(consumer.close)

    def __enter__(self) -> Self:
        return self if self._runtime is not None else self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
