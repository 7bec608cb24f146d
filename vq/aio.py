"""The asynchronous API: the same names, defaults and errors as ``vq``, as coroutines.

All of it runs on the caller's event loop, without threads. A factory and all that it makes belong
to the loop on which the factory was opened: on another one, every coroutine raises
``InvalidState``. Example::

    config = vq.MessageFactoryConfig(zookeeper="127.0.0.1:2181")
    async with vq.aio.MessageFactory(config) as factory:
        async with await factory.create_producer() as producer:
            result = await producer.send(vq.Message("orders", b"one"))
        async with await factory.create_consumer(vq.ConsumerConfig(group="shop")) as consumer:
            consumer.subscribe("orders")
            async for message in consumer:
                print(message.content)
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from threading import get_ident
from types import TracebackType
from typing import Any, Self, overload

from vq import limits
from vq.admin.aio import Admin
from vq.admin.brokers import all_statuses, broker_status
from vq.admin.placements import partitions_of
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig, WhenFull
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.delivery import ignore
from vq.client.consumer.inbox import Inbox, InboxDelivery, Messages
from vq.client.consumer.permit import Permit
from vq.client.consumer.positions import Moment, Position
from vq.client.consumer.pull import Pull
from vq.client.exits import LoopExit
from vq.client.future import LoopSendFuture, SendCallback, SendFuture, check_callback
from vq.client.kinds import settings_of
from vq.client.producer.batch_send import BatchSend
from vq.client.producer.core import ProducerCore, deleted_if_unpublished
from vq.client.producer.metrics import ProducerMetrics
from vq.errors import BufferFull, CoordinationError, InvalidState, NotPublished, VqError
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

__all__ = ["Admin", "MessageConsumer", "MessageFactory", "MessageProducer"]


class MessageProducer:
    """Sends messages from one loop. ``MessageFactory.create_producer`` makes it.

    Every ``timeout`` is as with ``vq.MessageProducer``.
    """

    def __init__(self, core: ProducerCore, cluster: ClusterClient) -> None:
        self._core = core
        self._checked: SendCallback | None = None  # the callback of the last send
        self._check_loop = cluster.check_loop
        self._thread = get_ident()
        self._is_running = asyncio.get_running_loop().is_running
        self._exit = LoopExit(
            core.flush_at_exit, ended=core.give_up_at_exit, timeout_s=core.config.exit_flush_s
        )

    @property
    def config(self) -> ProducerConfig:
        """How this producer batches, waits and tries again."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def _here(self) -> ProducerCore:
        """Return the core to a coroutine on the factory's loop."""
        self._check_loop()
        return self._core

    async def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them; see ``vq.MessageProducer.publish``.

        Raises:
            UnknownTopic, PermissionRefused: The topic is missing or not writable.
            CoordinationError: ZooKeeper does not answer. A send raises ``NotSent`` instead.
        """
        await self._here().publish(topic)

    async def send(self, message: Message, timeout: float | None = None) -> SendResult:
        """Send one message and wait until it is stored as its topic's settings promise.

        Many sends may wait at once; those to one partition share batches and keep their order. If
        the task is cancelled, a message that was accepted is sent nevertheless.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
            InvalidArgument: The message is invalid.
        """
        future = self._append(message, None, timeout)
        if future is None:
            future = await self._accept(message, None, timeout, may_wait=True)
        self._core.hurry()
        return await future

    async def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Accept one message; return its future, to be awaited now, later or never.

        While the buffer is full it waits, or raises, as ``config.when_full`` says. ``await`` of the
        future gives the outcome::

            futures = [await producer.send_async(message) for message in messages]
            results = [await future for future in futures]

        The callback runs on this loop. An exception that it raises is logged. Once every message of
        the batch has its outcome, the loop also raises ``SystemExit`` and ``KeyboardInterrupt``, as
        from any of its callbacks.

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
        future = self._append(message, callback, timeout)
        if future is not None:
            return future
        may_wait = self.config.when_full is WhenFull.BLOCK
        return await self._accept(message, callback, timeout, may_wait=may_wait)

    def _append(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture | None:
        """Append a plain message if there is space for it; see ``Appender.append``."""
        # Before Python 3.12 ``get_running_loop`` makes a system call: avoid it for each message.
        if get_ident() != self._thread or not self._is_running():
            self._check_loop()
        return self._core.append(message, callback, timeout)

    def _accept(
        self,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        may_wait: bool,
    ) -> Coroutine[Any, Any, SendFuture]:
        """Accept a message that ``_append`` did not take; wait for space only with ``may_wait``.

        Many tasks may wait here at once, and the garbage collector visits the objects of all of
        them again and again: so a wait has few coroutines and objects.
        """
        accept = self._accept_any if self._core.interceptors is None else self._accept_intercepted
        return accept(message, callback, timeout, may_wait=may_wait)

    async def _accept_intercepted(
        self,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        may_wait: bool,
    ) -> SendFuture:
        assert self._core.interceptors is not None
        with self._core.interceptors.begin(message, callback) as sending:
            return await self._accept_any(sending.message, sending, timeout, may_wait=may_wait)

    async def _accept_any(
        self,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        may_wait: bool,
    ) -> SendFuture:
        """Accept one message once its topic is published and, with ``may_wait``, there is space."""
        core = self._core
        try:
            if not (may_wait and core.is_full_for(message)):  # what must wait is prepared once
                try:
                    return core.append_any(message, callback, timeout, block=False)
                except BufferFull:
                    if not may_wait:
                        raise
                except NotPublished:
                    pass
            loop = asyncio.get_running_loop()
            bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
            deadline = loop.time() + bound
            if not core.is_published(message.topic):
                await self._publish_for(message, bound)
            if may_wait:
                await core.wait_for_space(deadline - loop.time())
            left = deadline - loop.time()
            future = core.append(message, callback, left)
            if future is not None:
                return future
            with deleted_if_unpublished(message.topic):
                return core.append_any(message, callback, left, block=False)
        except BufferFull:
            core.count_full()
            raise

    def metrics(self) -> ProducerMetrics:
        """Return what this producer has stored, failed and sent so far, and what waits now.

        The counts are made batch by batch, in any thread; two of one batch may differ by that batch
        for a moment.
        """
        return self._core.metrics()

    async def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Accept one message, and only count its outcome. See ``vq.MessageProducer``."""
        topic = message.topic if isinstance(message, Message) else ""
        ended = self._core.oneway.callback_for(topic)
        if self._append(message, ended, timeout) is None:
            may_wait = self.config.when_full is WhenFull.BLOCK
            await self._accept(message, ended, timeout, may_wait=may_wait)

    async def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages together and wait until all of them are stored.

        See ``vq.MessageProducer.send_batch``. If the task is cancelled, messages that were accepted
        are sent nevertheless.

        Raises:
            BatchFailed: Some messages are refused or unknown; its ``outcomes`` has each of them.
            InvalidState: The producer is closed; nothing was sent.
        """
        core = self._here()
        with core.batch_send(messages, timeout) as batch:
            for topic in batch.topics:
                try:
                    await self._append_all(batch, topic)
                except VqError as error:
                    count = batch.refuse(topic, error)
                    if isinstance(error, BufferFull):
                        core.count_full(count)
        await core.ended(batch.accepted())
        return batch.results()

    async def _append_all(self, batch: BatchSend, topic: str) -> None:
        core = self._core
        if not core.is_published(topic):
            await self._publish_for_batch(batch, topic)
        while True:
            is_full = True
            with contextlib.suppress(BufferFull), deleted_if_unpublished(topic):
                if batch.append(topic, block=False):
                    return
                is_full = False
            if is_full:
                await core.wait_for_space(core.time_left(batch))
            await asyncio.sleep(0)  # let the sender send what was appended

    async def _publish_for(self, message: Message, timeout: float) -> None:
        """Publish as part of a send with this time-out.

        A message that a new topic could not take creates none.
        """
        core, topic = self._core, message.topic
        async with self._within(topic, timeout):
            settings = await core.publish_existing(topic)
            if settings is not None:
                core.check(message, settings)
                await core.publish(topic)

    async def _publish_for_batch(self, batch: BatchSend, topic: str) -> None:
        core = self._core
        async with self._within(topic, core.time_left(batch)):
            settings = await core.publish_existing(topic)
            if settings is not None and batch.check(topic, settings, core.check):
                await core.publish(topic)

    @contextlib.asynccontextmanager
    async def _within(self, topic: str, timeout: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                yield
        except TimeoutError:
            raise self._core.routes_late(topic, timeout) from None
        except CoordinationError as error:
            raise self._core.not_published(topic, error) from error

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message accepted so far has its outcome; see ``vq.MessageProducer``.

        Raises:
            TimedOut: Some have none within ``timeout`` seconds; the sends go on.
        """
        await self._here().flush(timeout)

    async def close(self) -> None:
        """Wait for the outcome of every message, then stop. May be called again."""
        await self._here().close()
        await self._exit.forget()

    async def __aenter__(self) -> Self:
        self._check_loop()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class MessageConsumer:
    """Receives messages by position, or as a member of a group with ``async for``."""

    def __init__(self, core: ConsumerCore, inbox: Inbox, cluster: ClusterClient) -> None:
        self._core = core
        self._check_loop = cluster.check_loop
        self._inbox = inbox
        self._pull = Pull(inbox, self._begin)
        self._started = False

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

    def _here(self) -> ConsumerCore:
        """Return the core to a coroutine on the factory's loop."""
        self._check_loop()
        return self._core

    async def get(
        self, topic: str, partition: int, offset: int, length: int, timeout: float | None = None
    ) -> list[Message]:
        """Read messages from ``offset`` on; see ``vq.MessageConsumer.get``."""
        return await self._here().reader.get(topic, partition, offset, length, timeout)

    def subscribe(
        self, topic: str, length: int = limits.MIB, message_filter: str | None = None
    ) -> Self:
        """Add a topic to consume, before the iteration begins; return this consumer."""
        self._core.subscribe(topic, length, ignore, message_filter)
        return self

    async def start(self) -> Self:
        """Join the group; otherwise the iteration does it when it begins."""
        await self._here().start()
        self._started = True
        return self

    def __aiter__(self) -> Messages:
        """Iterate over messages as they arrive, in one task at a time.

        A message counts as consumed when the task asks for the next one, or by ``close``. Leaving
        the loop, by ``break`` or by an error, does not consume it. While one task is inside its
        loop, another task that asks for a message gets ``InvalidState``, whichever iterator it
        uses. After a task has ended, another one may go on with its iterator; if the task failed,
        its message is delivered again. If the error was caught outside the loop, a new loop in any
        task does not deliver that message again: it gets the next one.
        ``await anext(aiter(consumer))`` counts as a loop that was left at once.

        Bound a wait with ``asyncio.timeout``. Before Python 3.12 ``asyncio.wait_for`` asks in a
        task of its own, which is refused while the caller's task has a message.

        Raises:
            InvalidState: Another task has a message, or waits for one.
            CoordinationError: The session with ZooKeeper has ended for good, as when it refuses the
                client; no message follows.
        """
        return Messages(self._inbox, self._begin)

    async def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return up to ``max_messages`` messages that have arrived, waiting for a first one.

        It waits ``timeout`` seconds, without one as long as it takes, and returns an empty list if
        none came; 0 only looks. The first call joins the group, which the time-out does not bound.

        The messages of a call count as consumed when the same task calls again (or asks its
        iterator), or by ``close``: all of them or none, as with ``async for``. A call that is
        cancelled has taken none: the next one gets what comes, and nothing is lost or repeated. A
        partition that another member is to get waits for the next call.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds.

        Raises:
            InvalidState: The consumer is closed, or another task has a message, or waits for one.
            CoordinationError: The session with ZooKeeper has ended for good; no message follows.
        """
        self._check_loop()
        return await self._pull.get_many(max_messages, timeout)

    async def _begin(self) -> None:
        self._check_loop()
        if not self._started:
            await self.start()

    async def get_offset(self, topic: str) -> dict[TopicPartition, int]:
        """Return the committed offset of the group in every partition that has one."""
        return await self._here().committed(topic)

    async def get_bounds(self, topic: str, partition: int) -> OffsetBounds:
        """Return the range of offsets that can be read now; see ``vq.MessageConsumer``."""
        return await self._here().reader.bounds(topic, partition)

    async def offset_at(self, topic: str, partition: int, moment: Moment) -> int:
        """Return the offset of a time or an end; see ``vq.MessageConsumer.offset_at``."""
        return await self._here().reader.offset_at(topic, partition, moment)

    async def offsets_at(self, topic: str, moment: Moment) -> dict[TopicPartition, int]:
        """Return ``offset_at`` of every partition of a topic."""
        return await self._here().reader.offsets_at(topic, moment)

    async def get_last(self, topic: str, count: int, partition: int | None = None) -> list[Message]:
        """Return the last messages of a partition or topic; see ``vq.MessageConsumer``."""
        return await self._here().reader.last(topic, count, partition)

    async def seek(self, where: TopicPartition | str, position: Position) -> None:
        """Let the group go on at another place; see ``vq.MessageConsumer.seek``.

        The message in hand counts when its task asks for the next one, which comes from there.
        """
        await self._here().steering.seek(where, position)

    def pause(self, *where: TopicPartition | str) -> None:
        """Deliver nothing of some partitions until ``resume``; see ``vq.MessageConsumer``."""
        self._here().steering.pause(where)

    def resume(self, *where: TopicPartition | str) -> None:
        """Go on after ``pause``; without a partition, with all held now. See ``pause``."""
        self._here().steering.resume(where)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused now, sorted."""
        return self._here().steering.paused()

    async def commit(self) -> None:
        """Commit the consumed messages now instead of at the next interval."""
        await self._here().commit()

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this member holds now."""
        return self._core.held()

    async def close(self) -> None:
        """Count the current message as consumed, commit, leave the group. May be called again.

        The current message counts only if the calling task asked for it, or a task that has ended
        without an error. If another task is handling a message inside its loop, ``close`` waits up
        to 30 s; a message that is not handled by then is delivered again. Also delivered again is
        the message of a task that failed, and of another task that left its loop. Inside a loop,
        call ``close`` in the loop's own task, not in a task that the loop waits for (before Python
        3.12 ``asyncio.wait_for`` makes one). If an exception leaves ``async with`` of this consumer
        or its factory, the current message does not count.
        """
        core = self._here()
        self._inbox.close()
        await core.close()

    async def __aenter__(self) -> Self:
        self._check_loop()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._check_loop()
        if exc is not None:
            self._put_down()
        await self.close()

    def _put_down(self) -> None:
        """Do not count the current message: its handler failed."""
        self._inbox.close(consumed=False)


class MessageFactory:
    """Makes producers and consumers of one cluster, all on the running loop."""

    def __init__(self, config: MessageFactoryConfig | None = None) -> None:
        self.config = settings_of(MessageFactoryConfig, config)
        self._cluster: ClusterClient | None = None
        self._opening = asyncio.Lock()  # one ``open`` or ``shutdown`` at a time
        self._producers: list[MessageProducer] = []
        self._consumers: list[MessageConsumer] = []

    @classmethod
    def on_cluster(cls, cluster: ClusterClient) -> Self:
        """Return a factory over a started cluster client. For vq only: simulations and tests."""
        factory = cls(cluster.config)
        factory._cluster = cluster
        return factory

    async def open(self, config: MessageFactoryConfig | None = None) -> Self:
        """Open the session with ZooKeeper; return the factory.

        Raises:
            CoordinationError: ZooKeeper gives no answer in time.
            InvalidState: The factory is open already.
        """
        if self._cluster is not None:
            self._cluster.check_loop()
        async with self._opening:
            if self._cluster is not None:
                raise InvalidState("this factory is open already")
            if config is not None:
                self.config = settings_of(MessageFactoryConfig, config)
            self._cluster = await open_cluster(self.config)
        return self

    async def create_producer(self, config: ProducerConfig | None = None) -> MessageProducer:
        """Return a new producer; ``shutdown`` closes it if the application does not."""
        cluster = self._here()
        settings = settings_of(ProducerConfig, config)
        await cluster.lease_slot()
        core = ProducerCore(cluster, settings, future=LoopSendFuture)
        producer = MessageProducer(core, cluster)
        await producer._exit.begin()
        kept = (each for each in self._producers if not each._core.stopped)
        self._producers = [*kept, producer]
        return producer

    async def create_consumer(self, config: ConsumerConfig | None = None) -> MessageConsumer:
        """Return a new consumer; ``shutdown`` closes it if the application does not."""
        cluster = self._here()
        permit = Permit(cluster.clock.monotonic)
        inbox = Inbox(permit)
        core = ConsumerCore(
            cluster,
            settings_of(ConsumerConfig, config),
            make_delivery=lambda partition, position, _listener, hooks: InboxDelivery(
                partition, position, inbox, hooks
            ),
            permit=permit,
            on_end=inbox.fail,
        )
        consumer = MessageConsumer(core, inbox, cluster)
        kept = (each for each in self._consumers if not each._core.stopped)
        self._consumers = [*kept, consumer]
        return consumer

    @property
    def admin(self) -> Admin:
        """The operator's functions: topics, placements, groups, offsets, brokers."""
        return Admin(self._opened())

    async def get_partitions_for_topic(self, topic: str) -> list[PartitionPlacement]:
        """Return the placements of a topic's partitions, in rising order."""
        return await partitions_of(self._here(), topic)

    @overload
    async def get_status(self) -> dict[Address, StatusResult]: ...

    @overload
    async def get_status(self, address: None) -> dict[Address, StatusResult]: ...

    @overload
    async def get_status(self, address: Address | str) -> StatusResult: ...

    async def get_status(
        self, address: Address | str | None = None
    ) -> dict[Address, StatusResult] | StatusResult:
        """Ask one broker, or every registered one, for its status."""
        cluster = self._here()
        if address is None:
            return await all_statuses(cluster)
        broker = address if isinstance(address, Address) else Address.parse(address)
        return await broker_status(cluster, broker)

    def _opened(self) -> ClusterClient:
        if self._cluster is None:
            raise InvalidState("the factory is not open; await open() or use it in `async with`")
        return self._cluster

    def _here(self) -> ClusterClient:
        """Return the cluster to a coroutine on the factory's loop."""
        cluster = self._opened()
        cluster.check_loop()
        return cluster

    async def shutdown(self) -> None:
        """Close every consumer and producer, then the session. May be called again.

        If a step fails, the other steps are done nevertheless, and then the error is raised.
        """
        if self._cluster is not None:
            self._cluster.check_loop()
        async with self._opening:
            cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        async with contextlib.AsyncExitStack() as last_first:
            last_first.push_async_callback(cluster.close)
            for producer in self._producers:
                last_first.push_async_callback(producer.close)
            for consumer in self._consumers:
                last_first.push_async_callback(consumer.close)

    async def __aenter__(self) -> Self:
        if self._cluster is None:
            return await self.open()
        self._cluster.check_loop()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is not None and self._cluster is not None:
            self._cluster.check_loop()
            for consumer in self._consumers:
                consumer._put_down()
        await self.shutdown()
