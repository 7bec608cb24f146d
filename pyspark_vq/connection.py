"""The clients of a worker process: one factory for each cluster, opened on first use and kept.

Spark forks its Python workers from a daemon. A client has a thread and sockets, which a child must
not share: after a fork a process opens its own.
"""

import atexit
import os
import threading
from typing import Final

from pyspark_vq.options import Connect
from vq import MessageFactory, MessageFactoryConfig

__all__ = ["factory_of"]

#: Clusters that one process keeps open; the one used longest ago is closed first.
CLUSTERS_MAX: Final = 4
#: Shown by brokers and in group listings.
CLIENT_ID: Final = "vq-spark"

_lock = threading.Lock()
_factories: dict[Connect, MessageFactory] = {}
_owner = os.getpid()


def factory_of(connect: Connect) -> MessageFactory:
    """Return this process's open factory of a cluster; it must not be shut down.

    Raises:
        CoordinationError: ZooKeeper gives no answer in time.
    """
    global _owner
    with _lock:
        if _owner != os.getpid():
            _factories.clear()  # the parent's; they refuse every use here
            _owner = os.getpid()
        factory = _factories.pop(connect, None)
        if factory is None:
            factory = MessageFactory(
                MessageFactoryConfig(
                    zookeeper=connect.zookeeper, cluster=connect.cluster, client_id=CLIENT_ID
                )
            ).open()
        _factories[connect] = factory
        while len(_factories) > CLUSTERS_MAX:
            _factories.pop(next(iter(_factories))).shutdown()
        return factory


def _forked() -> None:
    """Give the child of a fork a lock of its own: another thread may hold the parent's."""
    global _lock
    _lock = threading.Lock()


def close_all() -> None:
    """Shut down what this process has opened; a later ``factory_of`` opens it anew."""
    with _lock:
        found = list(_factories.values()) if _owner == os.getpid() else []
        _factories.clear()
    for factory in found:
        factory.shutdown()


os.register_at_fork(after_in_child=_forked)
atexit.register(close_all)
