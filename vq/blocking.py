"""The blocking API: ``MessageFactory``, ``MessageProducer``, ``MessageConsumer``.

These classes are thin: the cores on the loop do the work. A factory owns one session with
ZooKeeper, one connection per broker and one loop thread; its producers and consumers share them.
Any thread may call all methods.
"""

import contextlib
import threading
import time
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from vq import limits
from vq.admin.blocking import Admin
from vq.admin.brokers import all_statuses, broker_status
from vq.admin.placements import partitions_of
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.delivery import (
    Delivery,
    DeliveryHooks,
    Listener,
    ThreadDelivery,
    Workers,
    ignore,
)
from vq.client.consumer.inbox import Inbox, InboxDelivery
from vq.client.consumer.permit import Permit
from vq.client.consumer.positions import Moment, Position
from vq.client.consumer.thread_pull import ThreadPull
from vq.client.future import SendCallback, SendFuture, check_callback
from vq.client.kinds import settings_of
from vq.client.producer.batch_send import BatchSend
from vq.client.producer.core import ProducerCore, deleted_if_unpublished
from vq.client.producer.metrics import ProducerMetrics
from vq.client.runtime import LoopThread
from vq.errors import (
    BufferFull,
    CoordinationError,
    InvalidState,
    NotPublished,
    TimedOut,
    VqError,
)
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

R = TypeVar("R")
_STOP_S = 30.0
_SEND_SYNC_S = 3.0
_ANSWER_S = 1.0  # added to the caller's time-out: the loop's thread may be in a callback
_GET_S = 30.0  # added to the caller's time-out: connecting, a move, ZooKeeper
_WORKERS_S = 5.0


class MessageProducer:
    """Sends messages. ``MessageFactory.create_producer`` makes it; many threads may use it.

    Messages that one thread sends to one partition keep their order, also sync and async ones
    mixed.

    Every ``timeout`` is in seconds. A negative one counts as 0, and one above 1,000,000 as
    1,000,000. NaN, a ``bool`` and what is no number raise ``InvalidArgument``. With 0, a send waits
    neither for routes nor for space: publish the topic first. An accepted message is sent if its
    broker takes it at once, and has its outcome within about a second.
    """

    def __init__(self, core: ProducerCore, runtime: LoopThread) -> None:
        self._core = core
        self._checked: SendCallback | None = None  # the callback of the last send
        self._append = core.append
        self._interceptors = core.interceptors
        self._runtime = runtime
        self._forget = runtime.on_loss(
            forked=core.abandon_in_child,
            ended=core.abandon,
            exiting=(core.flush_at_exit, core.config.exit_flush_s),
        )

    @property
    def config(self) -> ProducerConfig:
        """How this producer batches, waits and tries again."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them. The first send to a topic does it by itself.

        A missing topic is created if an operator allowed it (``vq cluster settings``). A send also
        creates it, if the new topic could take the message.

        Raises:
            UnknownTopic: There is no such topic, and the cluster does not let producers create it.
            PermissionRefused: The topic is not writable.
            CoordinationError: ZooKeeper does not answer, the connection to it ended
                (``ConnectionLost``), or no broker group can take the partitions of the new topic.
                Try again later. A send raises ``NotSent`` instead.
        """
        self._runtime.run(self._core.publish(topic))

    def send_sync(self, message: Message, timeout: float | None = _SEND_SYNC_S) -> SendResult:
        """Send one message and wait until it is stored as its topic's settings promise.

        ``timeout`` bounds all attempts together, by default 3 s; None: ``config.send_timeout_s``.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored; sending it again may store it twice.
            InvalidArgument: The message is invalid.
        """
        self._runtime.check()
        try:
            if self._interceptors is None:
                return self._send_and_wait(message, timeout)
            with self._interceptors.begin(message) as sending:
                result = self._send_and_wait(sending.message, timeout)
                sending.ended(result, None)
        except BufferFull:
            self._core.count_full()
            raise
        return result

    def _send_and_wait(self, message: Message, timeout: float | None) -> SendResult:
        future = None
        try:
            future = self._core.send_blocking(message, timeout)
        except NotPublished:
            pass  # it is published below: an error there has nothing to do with this one
        if future is None:
            left = self._publish_for(message, timeout)
            with deleted_if_unpublished(message.topic):
                future = self._core.send_blocking(message, left)
        return future.result()

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Accept one message and return at once.

        While the buffer is full it waits, or raises, as ``config.when_full`` says.

        ``callback(result, error)`` runs on the factory's thread: it must be short, and may call
        ``send_async`` but nothing that waits. Every exception that it raises is logged, also
        ``SystemExit`` and ``KeyboardInterrupt``: it ends neither the sending nor the program.
        ``timeout`` bounds all attempts together, by default ``config.send_timeout_s``.

        Raises:
            BufferFull: The buffer stayed full until the deadline, or is full with
                ``when_full="raise"``.
            NotSent: The topic could not be published until the deadline.
            InvalidArgument, MessageTooLarge, InvalidState, UnknownTopic, PermissionRefused: The
                message was not accepted.
        """
        if callback is not self._checked:
            check_callback(callback)
            self._checked = callback
        return self._append(message, callback, timeout) or self._send(message, callback, timeout)

    def _send(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture:
        try:
            if self._interceptors is None:
                return self._accept(message, callback, timeout)
            with self._interceptors.begin(message, callback) as sending:
                return self._accept(sending.message, sending, timeout)
        except BufferFull:
            self._core.count_full()
            raise

    def _accept(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture:
        try:
            return self._core.append_any(message, callback, timeout)
        except NotPublished:
            pass
        left = self._publish_for(message, timeout)
        with deleted_if_unpublished(message.topic):
            return self._core.append_any(message, callback, left)

    def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Accept one message, and only count its outcome.

        The message is batched and sent again until its deadline, as any other. If it is refused or
        its outcome is unknown, the application is not told: ``metrics`` counts it as any other, and
        a line at WARNING is logged for each topic and cause, with the number of messages, at most
        every 10 s. What is accepted and not sent is lost without a trace when the process is
        killed.

        While the buffer is full it waits, or raises, as ``config.when_full`` says.

        Raises:
            BufferFull, NotSent: The message was not accepted in time, see ``send_async``.
            InvalidArgument, MessageTooLarge, InvalidState, UnknownTopic, PermissionRefused: The
                message was not accepted.
        """
        topic = message.topic if isinstance(message, Message) else ""
        ended = self._core.oneway.callback_for(topic)
        if self._append(message, ended, timeout) is None:
            self._send(message, ended, timeout)

    def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages together and wait until all of them are stored.

        Messages to the same partition keep the order of the call. Those of one topic without a key
        go to one partition, so that they make as few batches as possible; those with a key go
        where their key says, and a partitioner function is asked for each message. A call may have
        more messages than the buffer holds: it waits for space, also with ``when_full="raise"``.
        One deadline bounds the whole call. A message that cannot be accepted does not stop the
        others. If a signal handler interrupts the call, messages that were accepted are sent
        nevertheless.

        Args:
            messages: Messages of any topics; all are read before the first one is sent.
            timeout: Seconds until each message must have its outcome, by default
                ``config.send_timeout_s``.

        Returns:
            The place of each message, in the order of the call.

        Raises:
            BatchFailed: Some messages are refused or unknown; its ``outcomes`` has each of them.
            InvalidState: The producer is closed; nothing was sent.
        """
        self._runtime.check()
        core = self._core
        with core.batch_send(messages, timeout) as batch:
            for topic in batch.topics:
                try:
                    if not core.is_published(topic):
                        self._publish_for_batch(batch, topic)
                    with deleted_if_unpublished(topic):
                        while not batch.append(topic, block=True):
                            pass
                except VqError as error:
                    count = batch.refuse(topic, error)
                    if isinstance(error, BufferFull):
                        core.count_full(count)
        for future in reversed(batch.accepted()):  # the last one is mostly the last to be stored
            future.exception()
        return batch.results()

    def _publish_for(self, message: Message, timeout: float | None) -> float:
        """Publish as part of a send with this time-out; return the time left.

        A message that a new topic could not take creates none.
        """
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        deadline = time.monotonic() + bound
        topic, core = message.topic, self._core
        settings = self._run_publish(core.publish_existing(topic), topic, deadline, bound)
        if settings is not None:
            core.check(message, settings)
            self._run_publish(core.publish(topic), topic, deadline, bound)
        return deadline - time.monotonic()

    def _publish_for_batch(self, batch: BatchSend, topic: str) -> None:
        bound, core = self._core.time_left(batch), self._core
        deadline = time.monotonic() + bound
        settings = self._run_publish(core.publish_existing(topic), topic, deadline, bound)
        if settings is not None and batch.check(topic, settings, core.check):
            self._run_publish(core.publish(topic), topic, deadline, bound)

    def _run_publish(
        self, work: Coroutine[Any, Any, R], topic: str, deadline: float, bound: float
    ) -> R:
        try:
            return self._runtime.run(work, max(0.0, deadline - time.monotonic()))
        except TimedOut:
            raise self._core.routes_late(topic, bound) from None
        except CoordinationError as error:
            raise self._core.not_published(topic, error) from error

    def metrics(self) -> ProducerMetrics:
        """Return what this producer has stored, failed and sent so far, and what waits now.

        The counts are made batch by batch, in any thread; two of one batch may differ by that batch
        for a moment.
        """
        self._runtime.check_parent()
        return self._core.metrics()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message accepted so far has its outcome.

        With None it waits as long as it takes: each message has a deadline. With 0 it only looks.

        Raises:
            TimedOut: Some have none in time, ``details["open"]`` of them. The sends go on.
        """
        bound = None if timeout is None else check_timeout(timeout)
        answer_s = None if bound is None else bound + _ANSWER_S
        try:
            self._runtime.run(self._core.flush(bound), answer_s)
        except TimedOut as error:
            if "open" in error.details:
                raise
            raise TimedOut(
                f"a callback keeps the factory's thread busy for more than {bound:g} s",
                hint="the sends go on; callbacks must be short",
            ) from None

    def close(self) -> None:
        """Wait for the outcome of every message (each has a deadline), then stop.

        It may be called again.

        Raises:
            InvalidState: A callback called it, which would wait for itself. The producer goes on.
        """
        if not self._runtime.gone:
            self._runtime.finish(self._core.close)
            self._forget()  # last: if ``close`` is interrupted, the end of the loop cleans up

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
    """Receives messages, by position or as a member of a group.

    A member gives its messages to listeners, or to a thread that calls ``get_many``. Any thread may
    call the methods, also a listener, except ``close``.
    """

    def __init__(
        self, core: ConsumerCore, runtime: LoopThread, workers: Workers, pull: ThreadPull
    ) -> None:
        self._core = core
        self._pull = pull
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
        """The last error that stopped a partition, also if it goes on since; None: no error yet."""
        return self._core.last_error

    @property
    def bad_reads(self) -> int:
        """How often bytes failed a check and were fetched again on a new connection."""
        return self._core.bad_reads

    def troubles(self) -> dict[TopicPartition, PartitionTrouble]:
        """Return the partitions that do not go on now, each with the cause and the time.

        Causes are damaged bytes, a listener that raises, or a broker that refuses. The consumer
        tries again with growing pauses and skips nothing. ``vq group describe`` shows the same.
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

        It needs no group and changes no committed offset. With ``timeout`` it waits so many seconds
        for a first message; without, it returns an empty list at the end of the partition.
        Compressed messages may be far larger than the bytes read: the list ends after 4 MiB of
        them. Continue at ``next_offset`` of the last message.

        Raises:
            OffsetOutOfRange: The offset is not in the valid range, which is in ``details``.
            OffsetNotBoundary: No record starts there; ``details["next"]`` is the next start.
            UnknownTopic, UnknownPartition: There is no such topic or partition.
        """
        bound = None if timeout is None else check_timeout(timeout)
        return self._runtime.run(
            self._core.reader.get(topic, partition, offset, length, bound), _GET_S + (bound or 0.0)
        )

    def subscribe(
        self,
        topic: str,
        length: int = limits.MIB,
        listener: Listener | None = None,
        message_filter: str | None = None,
    ) -> Self:
        """Add a topic to consume and the listener of its messages. Call it before ``start``.

        All topics of a consumer have listeners, or none has and ``get_many`` returns the messages.

        Args:
            topic: Must exist when ``start`` is called.
            length: Bytes fetched at a time, 1 to 8 MiB.
            listener: Called once per message, on a thread of this consumer. A message counts as
                consumed when it returns; ``config.on_listener_error`` says what happens when it
                raises. None: call ``get_many``.
            message_filter: A tag, or several as ``"a || b"``; brokers send only messages with one
                of them.

        Returns:
            This consumer.
        """
        self._pull.check_subscription(listener)
        taken = ignore if listener is None else listener
        self._core.subscribe(topic, length, taken, message_filter)
        self._pull.subscribed(listener)
        return self

    def start(self) -> Self:
        """Join the group and begin to receive.

        Raises:
            InvalidState: No topic was subscribed, or the configuration has no group.
            UnknownTopic: A subscribed topic does not exist.
        """
        self._runtime.run(self._core.start())
        return self

    def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return up to ``max_messages`` messages that have arrived, waiting for a first one.

        For topics that were subscribed without a listener. It waits ``timeout`` seconds, without
        one as long as it takes, and returns an empty list if none came; 0 only looks. The first
        call joins the group, which the time-out does not bound.

        The messages of a call count as consumed when the same thread calls again, or by ``close``
        in that thread: all of them or none. After an exception leaves ``with``, or if the thread
        ends, they are delivered again. If a signal handler interrupts a call, the next one returns
        what it would have returned. A partition that another member is to get waits for the next
        call. Hand the messages of one thread to others, or make several consumers.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds.

        Raises:
            InvalidState: The consumer is closed, its topics have listeners, or another thread has
                messages of a call, or waits for some.
            CoordinationError: The session with ZooKeeper has ended for good; no message follows.
        """
        return self._pull.get_many(max_messages, timeout)

    def get_offset(self, topic: str) -> dict[TopicPartition, int]:
        """Return the committed offset of the group in every partition that has one."""
        return self._runtime.run(self._core.committed(topic))

    def get_bounds(self, topic: str, partition: int) -> OffsetBounds:
        """Ask the partition's broker for the range of offsets that can be read now.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
        """
        return self._runtime.run(self._core.reader.bounds(topic, partition))

    def offset_at(self, topic: str, partition: int, moment: Moment) -> int:
        """Return the offset where the messages of a time begin, or an end of what can be read.

        With a time it is the first batch that the broker stored at that time or later, by
        ``append_time``; the end of the partition if none is that young. Needs no group.

        Args:
            topic: Its name.
            partition: Its number.
            moment: A ``datetime`` with its zone, ``"earliest"`` or ``"latest"``.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
            InvalidArgument: The time has no zone.
        """
        return self._runtime.run(self._core.reader.offset_at(topic, partition, moment), _GET_S)

    def offsets_at(self, topic: str, moment: Moment) -> dict[TopicPartition, int]:
        """Return ``offset_at`` of every partition of a topic."""
        return self._runtime.run(self._core.reader.offsets_at(topic, moment), _GET_S)

    def get_last(self, topic: str, count: int, partition: int | None = None) -> list[Message]:
        """Return the last ``count`` messages of a partition, oldest first. Needs no group.

        Without a partition: those of the topic, in the order of ``append_time``; messages of one
        partition keep their order. There are fewer if no more are stored, or if more would take
        over 64 MiB for a partition.

        Args:
            topic: Its name.
            count: 1 to 10,000.
            partition: Its number; None: all of the topic.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
        """
        return self._runtime.run(self._core.reader.last(topic, count, partition), _GET_S)

    def seek(self, where: TopicPartition | str, position: Position) -> None:
        """Let the group go on at another place, in a partition or all partitions of a topic.

        This member must hold them. A listener that runs finishes its message; the next one comes
        from the new place. Nothing is skipped or repeated besides. A listener may call it.

        The new place is this member's progress from now on: the next commit writes it, as long as
        no other member has claimed the partition. So after a seek back the group gets again what it
        has handled, also in a later process.

        Args:
            where: A partition, or the name of a topic: what this member holds of it.
            position: An offset where a message begins, such as ``Message.offset`` or
                ``next_offset``; a ``datetime`` with its zone (see ``offset_at``); ``"earliest"`` or
                ``"latest"``.

        Raises:
            InvalidState: This member does not hold that now; see ``assignment``.
            OffsetOutOfRange: The valid range is in ``details``. Nothing was changed.
            OffsetNotBoundary: No message begins there; ``details["next"]`` is the next start.
            GroupStopped: Messages were lost there; only ``vq group reset`` lets the group go on.
        """
        self._runtime.run(self._core.steering.seek(where, position), _GET_S)

    def pause(self, *where: TopicPartition | str) -> None:
        """Deliver nothing of some partitions until ``resume``; without one, of all held now.

        A listener that runs finishes its message. The member keeps the partitions and commits what
        was handled. A partition that leaves this member, also because its session ended, is not
        paused when it comes back: see ``paused``. A listener may call it.

        Raises:
            InvalidState: This member does not hold one of them now.
        """
        self._runtime.call(lambda: self._core.steering.pause(where))

    def resume(self, *where: TopicPartition | str) -> None:
        """Go on after ``pause``; without a partition, with all held now. See ``pause``."""
        self._runtime.call(lambda: self._core.steering.resume(where))

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused now, sorted."""
        return self._runtime.call(lambda: self._core.steering.paused())

    def commit(self) -> None:
        """Commit the handled messages now instead of at the next interval."""
        self._runtime.run(self._core.commit())

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this member holds now."""
        return self._core.held()

    def close(self) -> None:
        """Wait for running listeners, commit, leave the group. May be called again.

        Messages of ``get_many`` count as consumed if this thread has called it.

        Raises:
            InvalidState: A listener or a callback called it, which would wait for itself. The
                consumer goes on.
        """
        if self._runtime.forked:
            return
        self.check_outside()
        self._runtime.check_outside()  # raise in a callback before anything is closed
        try:
            if not self._runtime.gone:
                self._runtime.finish(self._pull.closing(self._core.close))
        finally:
            self._workers.close(_WORKERS_S)
            self._forget()

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if one of this consumer's listeners calls it. For vq only."""
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
        if exc is not None:
            self._put_down()
        self.close()

    def _put_down(self) -> None:
        """Do not count the messages of ``get_many``: what handles them failed."""
        self._pull.put_down()


class MessageFactory:
    """Makes producers and consumers of one cluster.

    Example::

        with vq.MessageFactory(vq.MessageFactoryConfig(zookeeper="127.0.0.1:2181")) as factory:
            producer = factory.create_producer()
            producer.send_sync(vq.Message("orders", b"one"))

    The constructor or ``open`` takes the configuration; a ``with`` statement opens the factory.
    """

    def __init__(self, config: MessageFactoryConfig | None = None) -> None:
        self.config = settings_of(MessageFactoryConfig, config)
        self._runtime: LoopThread | None = None
        self._cluster: ClusterClient | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # one ``open`` or ``shutdown`` at a time
        self._producers: list[MessageProducer] = []
        self._consumers: list[MessageConsumer] = []

    def open(self, config: MessageFactoryConfig | None = None) -> Self:
        """Open the session with ZooKeeper; return the factory.

        Raises:
            CoordinationError: ZooKeeper gives no answer in time.
            InvalidState: The factory is open already.
        """
        with self._opening:
            if self._runtime is not None:
                raise InvalidState("this factory is open already")
            if config is not None:
                self.config = settings_of(MessageFactoryConfig, config)
            runtime = LoopThread(f"vq-{self.config.client_id}")
            try:
                self._cluster = runtime.run(open_cluster(self.config))
            except BaseException:
                runtime.stop()
                raise
            self._runtime = runtime
        return self

    def create_producer(self, config: ProducerConfig | None = None) -> MessageProducer:
        """Return a new producer; ``shutdown`` closes it if the application does not."""
        runtime, cluster = self._opened()
        settings = settings_of(ProducerConfig, config)

        async def make() -> ProducerCore:
            await cluster.lease_slot()
            return ProducerCore(cluster, settings)

        producer = MessageProducer(runtime.run(make()), runtime)
        with self._lock:
            self._producers = [each for each in self._producers if not each._core.stopped]
            self._producers.append(producer)
        return producer

    def create_consumer(self, config: ConsumerConfig | None = None) -> MessageConsumer:
        """Return a new consumer; ``shutdown`` closes it if the application does not."""
        runtime, cluster = self._opened()
        settings = settings_of(ConsumerConfig, config)
        workers = Workers(settings.listener_threads, name=f"vq-listener-{settings.group}")
        permit = Permit(cluster.clock.monotonic)

        async def make() -> MessageConsumer:
            inbox = Inbox(permit)

            def make_delivery(
                partition: TopicPartition, position: int, listener: Listener, hooks: DeliveryHooks
            ) -> Delivery:
                if listener is ignore:  # no listener: ``get_many`` takes the messages
                    return InboxDelivery(partition, position, inbox, hooks)
                return ThreadDelivery(
                    partition,
                    position,
                    listener,
                    settings,
                    hooks=hooks,
                    workers=workers,
                    permit=permit,
                )

            core = ConsumerCore(
                cluster, settings, make_delivery=make_delivery, permit=permit, on_end=inbox.fail
            )
            return MessageConsumer(core, runtime, workers, ThreadPull(core, inbox, runtime))

        try:
            consumer = runtime.run(make())
        except BaseException:
            workers.close(0.0)
            raise
        with self._lock:
            self._consumers = [each for each in self._consumers if not each._core.stopped]
            self._consumers.append(consumer)
        return consumer

    @property
    def admin(self) -> Admin:
        """The operator's functions: topics, placements, groups, offsets, brokers."""
        runtime, cluster = self._opened()
        return Admin(cluster, runtime)

    def get_partitions_for_topic(self, topic: str) -> list[PartitionPlacement]:
        """Return the placements of a topic's partitions, in rising order.

        Raises:
            UnknownTopic: There is no such topic.
        """
        runtime, cluster = self._opened()
        return runtime.run(partitions_of(cluster, topic))

    @overload
    def get_status(self) -> dict[Address, StatusResult]: ...

    @overload
    def get_status(self, address: None) -> dict[Address, StatusResult]: ...

    @overload
    def get_status(self, address: Address | str) -> StatusResult: ...

    def get_status(
        self, address: Address | str | None = None
    ) -> dict[Address, StatusResult] | StatusResult:
        """Ask one broker, or every registered one, for its status.

        Without an address, the dictionary leaves out registered brokers that do not answer. With an
        address, a missing answer is an error.
        """
        runtime, cluster = self._opened()
        if address is None:
            return runtime.run(all_statuses(cluster))
        broker = address if isinstance(address, Address) else Address.parse(address)
        return runtime.run(broker_status(cluster, broker))

    def _opened(self) -> tuple[LoopThread, ClusterClient]:
        if self._runtime is None or self._cluster is None:
            raise InvalidState("the factory is not open; call open() or use it in a with statement")
        return self._runtime, self._cluster

    def shutdown(self) -> None:
        """Close every consumer and producer, then the session. May be called again.

        If a step fails, the other steps are done nevertheless, and then the error is raised.

        Raises:
            InvalidState: A listener or a callback called it, which would wait for itself.
        """
        runtime, cluster = self._runtime, self._cluster
        if runtime is None or cluster is None:
            return
        if runtime.forked:
            self._runtime = None
            return
        runtime.check_outside()
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
        if exc is not None:
            for consumer in self._consumers:
                consumer._put_down()
        self.shutdown()
