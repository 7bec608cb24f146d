"""The asynchronous API: the same names, defaults and errors as ``vq``, as coroutines.

Everything lives on the running loop of whoever calls it; there are no threads. Example::

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
from types import TracebackType
from typing import Self

from vq import limits
from vq.admin.aio import Admin
from vq.admin.brokers import all_statuses, broker_status
from vq.admin.placements import partitions_of
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.delivery import ignore
from vq.client.consumer.inbox import Inbox, InboxDelivery, Messages
from vq.client.consumer.permit import Permit
from vq.client.future import LoopSendFuture, SendCallback, SendFuture
from vq.client.producer.core import ProducerCore
from vq.client.producer.partitioner import Partitioner
from vq.errors import BufferFull, InvalidState, NotPublished, NotSent, VqError
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
    """Sends messages from one loop. Made by ``MessageFactory.create_producer``."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    @property
    def config(self) -> ProducerConfig:
        """How this producer batches, waits and tries again."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    async def publish(self, topic: str) -> None:
        """Declare a topic; sending does it when it was not done. See ``vq.MessageProducer``."""
        await self._core.publish(topic)

    async def send(self, message: Message, timeout: float | None = None) -> SendResult:
        """Send one message and wait until it is stored as its topic's settings promise.

        Many may wait at once; those of one partition share batches and keep their order.

        Raises:
            Refused: It is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
            InvalidArgument: It is unusable.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future = await self.send_async(message, timeout=timeout)
        future.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
        await waiter
        return future.result(0)

    async def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Take one message; returns as soon as there is room for it. See ``vq.MessageProducer``.

        The callback runs on this loop. What it raises is logged; ``SystemExit`` and
        ``KeyboardInterrupt`` are then raised by the loop, as from any of its callbacks, once every
        message of the batch has its outcome.
        """
        future = self._core.append(message, callback, timeout)
        if future is not None:
            return future
        try:
            return self._core.append_any(message, callback, timeout, block=False)
        except (NotPublished, BufferFull):
            return await self._send_after_waiting(message, callback, timeout)

    async def _send_after_waiting(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture:
        """Take one message once its topic is known and there is room, all within its time-out."""
        core = self._core
        loop = asyncio.get_running_loop()
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        deadline = loop.time() + bound
        try:
            async with asyncio.timeout_at(deadline):
                await core.publish(message.topic)
        except TimeoutError:
            raise NotSent(f"where {message.topic} lives could not be read in time") from None
        await core.wait_for_space(deadline - loop.time())
        return core.append_any(message, callback, deadline - loop.time(), block=False)

    async def flush(self) -> None:
        """Wait until every message taken so far has its outcome."""
        await self._core.flush()

    async def close(self) -> None:
        """Wait for what was taken, then stop. May be called again."""
        await self._core.close()

    async def __aenter__(self) -> Self:
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

    def __init__(self, core: ConsumerCore, inbox: Inbox) -> None:
        self._core = core
        self._inbox = inbox
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

    async def get(
        self, topic: str, partition: int, offset: int, length: int, timeout: float | None = None
    ) -> list[Message]:
        """Read messages from ``offset`` on; see ``vq.MessageConsumer.get``."""
        return await self._core.reader.get(topic, partition, offset, length, timeout)

    def subscribe(
        self, topic: str, length: int = limits.MIB, message_filter: str | None = None
    ) -> Self:
        """Name a topic to consume; chainable, before the iteration begins."""
        self._core.subscribe(topic, length, ignore, message_filter)
        return self

    async def start(self) -> Self:
        """Join the group; the iteration does it when it was not done."""
        await self._core.start()
        self._started = True
        return self

    def __aiter__(self) -> Messages:
        """Iterate over messages as they come, in one task at a time.

        A message is consumed when the next one is asked for, or by ``close``; never because the
        loop was left, by ``break`` or by an error. While a task is inside its loop, no other may
        ask, through whichever iterator: ``InvalidState``. A task that is done hands an iterator on;
        the message of one that failed comes again. An error that is caught outside the loop does
        not bring its message back when a new loop begins: that one asks for the next, in whichever
        task. ``await anext(aiter(consumer))`` counts as a loop that was left at once.

        Bound a wait with ``asyncio.timeout``: before Python 3.12 ``asyncio.wait_for`` asks in a
        task of its own, which is refused while the caller's task has a message.
        """
        return Messages(self._inbox, self._begin)

    async def _begin(self) -> None:
        if not self._started:
            await self.start()

    async def get_offset(self, topic: str) -> dict[TopicPartition, int]:
        """Return the committed offset of the group in every partition that has one."""
        return await self._core.committed(topic)

    async def get_bounds(self, topic: str, partition: int) -> OffsetBounds:
        """Return the range of offsets that can be read now; see ``vq.MessageConsumer``."""
        return await self._core.reader.bounds(topic, partition)

    async def commit(self) -> None:
        """Commit now what was consumed, instead of at the next interval."""
        await self._core.commit()

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions this member holds now."""
        return self._core.held()

    async def close(self) -> None:
        """Count the message in hand as consumed, commit, leave the group. May be called again.

        Only a message that the calling task asked for itself, or a task that is done without an
        error, counts. While another task is at one inside its loop, it is waited for, up to 30 s;
        what it is not done with by then comes again. So does, at once, what another task took and
        then left its loop, and what a task had that failed. Inside a loop, call ``close`` in the
        loop's task, not through one that the loop waits for (before Python 3.12
        ``asyncio.wait_for`` makes one). Leaving ``async with`` by an exception, of this consumer or
        its factory, counts no message either.
        """
        self._inbox.close()
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is not None:
            self._put_down()
        await self.close()

    def _put_down(self) -> None:
        """Give the message in hand back: its handler failed."""
        self._inbox.close(consumed=False)


class MessageFactory:
    """Makes producers and consumers of one cluster, all on the running loop."""

    def __init__(self, config: MessageFactoryConfig | None = None) -> None:
        self.config = config or MessageFactoryConfig()
        self._cluster: ClusterClient | None = None
        self._opening = asyncio.Lock()  # one ``open`` or ``shutdown`` at a time
        self._producers: list[MessageProducer] = []
        self._consumers: list[MessageConsumer] = []

    @classmethod
    def on_cluster(cls, cluster: ClusterClient) -> Self:
        """Return a factory over a started cluster client: for simulations and tests."""
        factory = cls(cluster.config)
        factory._cluster = cluster
        return factory

    async def open(self, config: MessageFactoryConfig | None = None) -> Self:
        """Open the session with ZooKeeper; returns the factory.

        Raises:
            CoordinationError: ZooKeeper does not answer in time.
            InvalidState: It is open already.
        """
        async with self._opening:
            if self._cluster is not None:
                raise InvalidState("this factory is open already")
            if config is not None:
                self.config = config
            self._cluster = await open_cluster(self.config)
        return self

    async def create_producer(
        self, config: ProducerConfig | None = None, *, partitioner: Partitioner | None = None
    ) -> MessageProducer:
        """Return a new producer; it is closed with the factory at the latest."""
        cluster = self._opened()
        await cluster.lease_slot()
        core = ProducerCore(
            cluster, config or ProducerConfig(), partitioner=partitioner, future=LoopSendFuture
        )
        producer = MessageProducer(core)
        self._producers = [*(each for each in self._producers if not each.closed), producer]
        return producer

    async def create_consumer(self, config: ConsumerConfig | None = None) -> MessageConsumer:
        """Return a new consumer; it is closed with the factory at the latest."""
        cluster = self._opened()
        permit = Permit(cluster.clock.monotonic)
        inbox = Inbox(permit)
        core = ConsumerCore(
            cluster,
            config or ConsumerConfig(),
            make_delivery=lambda partition, position, _listener, hooks: InboxDelivery(
                partition, position, inbox, hooks
            ),
            permit=permit,
        )
        consumer = MessageConsumer(core, inbox)
        self._consumers = [*(each for each in self._consumers if not each.closed), consumer]
        return consumer

    @property
    def admin(self) -> Admin:
        """What an operator asks and changes: topics, placements, groups, offsets, brokers."""
        return Admin(self._opened())

    async def get_partitions_for_topic(self, topic: str) -> list[PartitionPlacement]:
        """Return where the partitions of a topic live, in rising order."""
        return await partitions_of(self._opened(), topic)

    async def get_status(
        self, address: Address | str | None = None
    ) -> dict[Address, StatusResult] | StatusResult:
        """Ask one broker, or every registered one, for its status."""
        if address is None:
            return await all_statuses(self._opened())
        broker = Address.parse(address) if isinstance(address, str) else address
        return await broker_status(self._opened(), broker)

    def _opened(self) -> ClusterClient:
        if self._cluster is None:
            raise InvalidState("the factory is not open; await open() or use it in `async with`")
        return self._cluster

    async def shutdown(self) -> None:
        """Close every consumer and producer, then the session. May be called again.

        All of it is done whatever fails on the way; the error is raised afterwards.
        """
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
        return self if self._cluster is not None else await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is not None:
            for consumer in self._consumers:
                consumer._put_down()
        await self.shutdown()
