"""The blocking API's front door: ``MessageFactory``.

A factory owns one session with ZooKeeper, one connection per broker and one loop thread; its
producers and consumers share them. All its methods may be called from any thread.
"""

import contextlib
import threading
from types import TracebackType
from typing import Self

from vq.client.blocking import MessageConsumer, MessageProducer
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.consumer import ConsumerCore
from vq.client.delivery import ThreadDelivery, Workers
from vq.client.partitioner import Partitioner
from vq.client.permit import Permit
from vq.client.producer import ProducerCore
from vq.client.queries import broker_status, cluster_status, partitions_of
from vq.client.runtime import LoopThread
from vq.errors import InvalidState
from vq.model import Address, PartitionPlacement, StatusResult

_STOP_S = 30.0


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
                make_delivery=lambda where, position, listener, hooks: ThreadDelivery(
                    where,
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
            return runtime.run(cluster_status(cluster))
        where = Address.parse(address) if isinstance(address, str) else address
        return runtime.run(broker_status(cluster, where))

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
