"""The blocking factory: it owns the session, the loop's thread, and what it has made."""

import contextlib
import threading
from typing import TYPE_CHECKING, Self, cast, overload

from vq.blocking.consumer import MessageConsumer
from vq.blocking.producer import MessageProducer
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.workers import Workers
from vq.client.consumer.pull import ThreadPull
from vq.client.kinds import settings_of
from vq.client.patched import check_not_patched
from vq.client.producer.core import ProducerCore
from vq.client.producer.transaction_listener import check_listener
from vq.client.runtime import LoopThread
from vq.errors import InvalidState
from vq.model import Address, PartitionPlacement, StatusResult
from vq.operations.brokers.brokers import all_statuses, broker_status
from vq.operations.partitions.placements import partitions_of

if TYPE_CHECKING:
    from vq.blocking.admin import Admin
    from vq.local.factory.factory import LocalFactory

_STOP_S = 30.0


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
        self._local: LocalFactory | None = None  # instead of a cluster
        self._owns_runtime = True
        self._producers: list[MessageProducer] = []
        self._consumers: list[MessageConsumer] = []

    def open(self, config: MessageFactoryConfig | None = None) -> Self:
        """Open the session with ZooKeeper; return the factory.

        Raises:
            CoordinationError: ZooKeeper gives no answer in time.
            InvalidState: The factory is open already, or gevent has replaced threads or sockets.
        """
        with self._opening:
            if self._runtime is not None or self._local is not None:
                raise InvalidState("this factory is open already")
            if config is not None:
                self.config = settings_of(MessageFactoryConfig, config)
            if self.config.local is not None:
                from vq.local.factory.factory import LocalFactory  # most programs have a cluster

                self._local = LocalFactory(self.config.local)
                return self
            check_not_patched()
            runtime = LoopThread(f"vq-{self.config.client_id}")
            try:
                self._cluster = runtime.run(open_cluster(self.config))
            except BaseException:
                runtime.stop()
                raise
            self._runtime, self._owns_runtime = runtime, True
        return self

    def create_producer(self, config: ProducerConfig | None = None) -> MessageProducer:
        """Return a new producer; ``shutdown`` closes it if the application does not."""
        if self._local is not None:
            local = self._local.producer(settings_of(ProducerConfig, config))
            return cast("MessageProducer", local)  # the part of it that needs no cluster
        runtime, cluster = self._opened()
        settings = settings_of(ProducerConfig, config)
        check_listener(settings.transaction_listener)

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
        if self._local is not None:
            local = self._local.consumer(settings_of(ConsumerConfig, config))
            return cast("MessageConsumer", local)
        runtime, cluster = self._opened()
        settings = settings_of(ConsumerConfig, config)
        workers = Workers(
            settings.workers,
            name=f"vq-listener-{settings.group}",
            context=cluster.context,
        )
        permit = Permit(cluster.clock.monotonic)

        async def make() -> MessageConsumer:
            inbox = Inbox(permit)
            core = ConsumerCore(cluster, settings, permit=permit)
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
    def admin(self) -> "Admin":
        """The operator's functions: topics, placements, groups, offsets, brokers."""
        from vq.blocking.admin import Admin  # all operations: a third of what a client imports

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
        if self._local is not None:
            raise InvalidState("this factory has local queues: that needs a cluster")
        if self._runtime is None or self._cluster is None:
            raise InvalidState("the factory is not open; call open() or use it in a with statement")
        return self._runtime, self._cluster

    def shutdown(self) -> None:
        """Close every consumer and producer, then the session. May be called again.

        If a step fails, the other steps are done nevertheless, and then the error is raised.

        Raises:
            InvalidState: A listener or a callback called it, which would wait for itself.
            TimedOut: A callback kept the factory's thread for 30 s and does not return.
        """
        if self._local is not None:
            with self._opening:
                local = self._local
            if local is not None:
                local.shutdown()
                self._local = None
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
                if self._owns_runtime:
                    last_first.callback(runtime.stop)
                last_first.callback(runtime.finish, cluster.close, _STOP_S)
                for producer in self._producers:
                    last_first.callback(producer.close)
                for consumer in self._consumers:
                    last_first.callback(consumer.close)

    def __enter__(self) -> Self:
        is_open = self._runtime is not None or self._local is not None
        return self if is_open else self.open()

    def __exit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            for consumer in self._consumers:
                consumer._put_down()
            if self._local is not None:
                self._local.put_down()
        self.shutdown()


def factory_on(cluster: ClusterClient, runtime: LoopThread) -> MessageFactory:
    """Return a factory over a started client, on a loop that others use, too. For vq only."""
    factory = MessageFactory(cluster.config)
    factory._cluster, factory._runtime, factory._owns_runtime = cluster, runtime, False
    return factory
