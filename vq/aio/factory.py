"""The asynchronous factory: it owns the session and what it has made."""

import asyncio
import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Self, cast, overload

from vq.aio.consumer import MessageConsumer
from vq.aio.producer import MessageProducer
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.listening import Listening
from vq.client.consumer.deliver.permit import Permit
from vq.client.exits import FORKED
from vq.client.future import LoopSendFuture
from vq.client.kinds import settings_of
from vq.client.patched import check_not_patched
from vq.client.producer.core import ProducerCore
from vq.client.shared_calls import shared
from vq.errors import InvalidState
from vq.model import Address, PartitionPlacement, StatusResult
from vq.operations.brokers.brokers import all_statuses, broker_status
from vq.operations.partitions.placements import partitions_of
from vq.tasks import begin_task

if TYPE_CHECKING:
    from vq.aio.admin import Admin
    from vq.aio.local_factory import AsyncLocalConsumer
    from vq.local.factory.factory import LocalFactory

_MADE: "weakref.WeakSet[MessageFactory]" = weakref.WeakSet()


class MessageFactory:
    """Makes producers and consumers of one cluster, all on the running loop.

    In the child of a fork every use raises ``InvalidState``; ``close`` and ``shutdown`` return at
    once. Open a factory in the child.
    """

    def __init__(self, config: MessageFactoryConfig | None = None) -> None:
        self.config = settings_of(MessageFactoryConfig, config)
        self._cluster: ClusterClient | None = None
        self._opening = asyncio.Lock()  # one ``open`` or ``shutdown`` at a time
        self._producers: list[MessageProducer] = []
        self._consumers: list[MessageConsumer] = []
        self._closing: asyncio.Task[None] | None = None
        self._local: LocalFactory | None = None  # instead of a cluster
        self._local_consumers: list[AsyncLocalConsumer] = []
        _MADE.add(self)

    @classmethod
    def on_cluster(cls, cluster: ClusterClient) -> Self:
        """Return a factory over a started cluster client. For vq only."""
        factory = cls(cluster.config)
        factory._cluster = cluster
        return factory

    async def open(self, config: MessageFactoryConfig | None = None) -> Self:
        """Open the session with ZooKeeper; return the factory.

        Raises:
            CoordinationError: ZooKeeper gives no answer in time.
            InvalidState: The factory is open already, or gevent has replaced threads or sockets.
        """
        if self._cluster is not None:
            self._cluster.check_loop()
        async with self._opening:
            if self._cluster is not None or self._local is not None:
                raise InvalidState("this factory is open already")
            if config is not None:
                self.config = settings_of(MessageFactoryConfig, config)
            if self.config.local is not None:
                from vq.local.factory.factory import LocalFactory  # most programs have a cluster

                self._local = LocalFactory(self.config.local)
                return self
            check_not_patched()
            self._cluster = await open_cluster(self.config)
        return self

    async def create_producer(self, config: ProducerConfig | None = None) -> MessageProducer:
        """Return a new producer; ``shutdown`` closes it if the application does not."""
        if self._local is not None:
            from vq.aio.local_factory import AsyncLocalProducer

            inner = self._local.producer(settings_of(ProducerConfig, config))
            local = AsyncLocalProducer(self._local.queues, inner)
            return cast("MessageProducer", local)  # the part of it that needs no cluster
        cluster = self._here()
        settings = settings_of(ProducerConfig, config)
        await cluster.lease_slot()
        core = ProducerCore(cluster, settings, future=LoopSendFuture, in_threads=False)
        producer = MessageProducer(core, cluster)
        await producer._exit.begin()
        kept = (each for each in self._producers if not each._core.stopped)
        self._producers = [*kept, producer]
        return producer

    async def create_consumer(self, config: ConsumerConfig | None = None) -> MessageConsumer:
        """Return a new consumer; ``shutdown`` closes it if the application does not."""
        if self._local is not None:
            from vq.aio.local_factory import AsyncLocalConsumer

            inner = self._local.consumer(settings_of(ConsumerConfig, config))
            local = AsyncLocalConsumer(self._local.queues, inner)
            self._local_consumers = [each for each in self._local_consumers if not each.closed]
            self._local_consumers.append(local)
            return cast("MessageConsumer", local)
        cluster = self._here()
        permit = Permit(cluster.clock.monotonic)
        settings = settings_of(ConsumerConfig, config)
        inbox, listening = Inbox(permit), Listening(settings.workers, cluster.context)
        core = ConsumerCore(cluster, settings, permit=permit)
        consumer = MessageConsumer(core, inbox, listening, cluster)
        kept = (each for each in self._consumers if not each._core.stopped)
        self._consumers = [*kept, consumer]
        return consumer

    @property
    def admin(self) -> "Admin":
        """The operator's functions: topics, placements, groups, offsets, brokers."""
        from vq.aio.admin import Admin  # all operations: a third of what a client imports

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
        if self._local is not None:
            raise InvalidState("this factory has local queues: that needs a cluster")
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

        If a step fails, the other steps are done nevertheless, and then the error is raised. If the
        caller is cancelled, all steps go on in their order: they need each other.
        """
        local = self._local
        if local is not None:
            for each in self._local_consumers:
                await each.close()
            await asyncio.to_thread(local.shutdown)
            self._local, self._local_consumers = None, []
        if self._cluster is not None:
            if self._cluster.forked:
                self._cluster = None
                return
            self._cluster.check_loop()
        async with self._opening:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            for consumer in self._consumers:
                consumer._inbox.close()  # here: it asks whether this task has the message in hand
            self._closing = begin_task(self._close_all(cluster))
        if self._closing is not None and not self._closing.done():
            await shared(self._closing)

    async def _close_all(self, cluster: ClusterClient) -> None:
        async with contextlib.AsyncExitStack() as last_first:
            last_first.push_async_callback(cluster.close)
            for producer in self._producers:
                last_first.push_async_callback(producer.close)
            for consumer in self._consumers:
                last_first.push_async_callback(consumer.close)

    def _mark_forked(self) -> None:
        """Refuse every use from now on; called in the child of a fork."""
        if self._cluster is not None:
            self._cluster.forked = True
            for producer in self._producers:
                producer._core.abandon_in_child(FORKED)
            for consumer in self._consumers:
                consumer._inbox.abandon_in_child(FORKED)

    async def __aenter__(self) -> Self:
        if self._local is not None:
            return self
        if self._cluster is None:
            return await self.open()
        self._cluster.check_loop()
        return self

    async def __aexit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None and self._cluster is not None and not self._cluster.forked:
            self._cluster.check_loop()
            for consumer in self._consumers:
                consumer._put_down()
        if exc is not None and self._local is not None:
            self._local.put_down()
        await self.shutdown()


def _mark_forked() -> None:
    for factory in list(_MADE):
        factory._mark_forked()


os.register_at_fork(after_in_child=_mark_forked)
