"""A cluster in memory behind the blocking API."""

from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from vq.blocking.factory import MessageFactory, factory_on
from vq.client.runtime import LoopThread
from vq.errors import InvalidState
from vq.model import TopicSettings
from vq.testing.cluster import Cluster
from vq.testing.faults import Faults

T = TypeVar("T")


class ThreadCluster:
    """A cluster in this process for blocking code; it runs in one thread of its own, in real time.

    Example::

        with vq.testing.ThreadCluster() as cluster:
            cluster.create_topic("orders")
            producer = cluster.factory().create_producer()
            producer.send_sync(vq.Message("orders", b"one"))

    Any thread may use it.

    Args:
        groups, nodes: See ``Cluster``.
    """

    def __init__(self, *, groups: int = 1, nodes: int = 1) -> None:
        self._cluster = Cluster(groups=groups, nodes=nodes)
        self._runtime: LoopThread | None = None
        self._factories: list[MessageFactory] = []

    def start(self) -> Self:
        """Start all brokers; return when each group has its master."""
        if self._runtime is not None:
            raise InvalidState("this cluster runs already")
        runtime = LoopThread("vq-testing")
        try:
            runtime.run(self._cluster.start())
        except BaseException:
            runtime.stop()
            raise
        self._runtime = runtime
        return self

    def stop(self) -> None:
        """Shut down all factories, then brokers. May be called again."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        try:
            for factory in self._factories:
                factory.shutdown()
        finally:
            self._factories.clear()
            runtime.run(self._cluster.stop())
            runtime.stop()

    def factory(self, name: str = "client", **settings: Any) -> MessageFactory:
        """Return an open factory; see ``Cluster.factory``."""
        runtime = self._running()
        cluster, _ = runtime.run(self._cluster.client(name, **settings))
        made = factory_on(cluster, runtime)
        self._factories.append(made)
        return made

    def create_topic(self, topic: str, settings: TopicSettings | None = None, **more: Any) -> None:
        """Make a topic; see ``Cluster.create_topic``."""
        self.run(self._cluster.create_topic(topic, settings, **more))

    @property
    def faults(self) -> Faults:
        """What goes wrong on order. Its methods belong on the loop: see ``run`` and ``call``."""
        return self._cluster.faults

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's loop, such as ``cluster.faults.change_master()``."""
        return self._running().run(work)

    def _running(self) -> LoopThread:
        if self._runtime is None:
            raise InvalidState("the cluster does not run; start it, or use it in `with`")
        return self._runtime

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
