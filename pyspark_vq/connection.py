"""The clients of a worker process: one factory for each cluster, opened on first use and kept.

Spark forks its Python workers from a daemon. A client has a thread and sockets, which a child must
not share: after a fork a process opens its own.
"""

import atexit
import logging
import os
import threading
from dataclasses import replace
from typing import Final

from pyspark_vq.installed import HERE, Installed
from pyspark_vq.options import Connect
from vq import MessageFactory

#: Clusters that one process keeps open; the one used longest ago is closed first.
CLUSTERS_MAX: Final = 4
#: Shown by brokers and in group listings.
CLIENT_ID: Final = "vq-spark"

logger = logging.getLogger("pyspark_vq")
_lock = threading.Lock()
_told: Final[set[str]] = set()  # one line a version, so they are few
factories: dict[Connect, MessageFactory] = {}
_owner = os.getpid()


def factory_of(connect: Connect) -> MessageFactory:
    """Return this process's open factory of a cluster; it must not be shut down.

    What a worker has of vq is compared with what its driver has; a warning comes once.

    Raises:
        InvalidState: The driver has another version, whose tasks may mean something else here.
        CoordinationError: ZooKeeper gives no answer in time.
    """
    global _owner
    _compare(connect.driver)
    with _lock:
        if _owner != os.getpid():
            factories.clear()  # the parent's; they refuse every use here
            _owner = os.getpid()
        factory = factories.pop(connect, None)
        if factory is None:
            factory = MessageFactory(replace(connect.config, client_id=CLIENT_ID)).open()
        factories[connect] = factory
        while len(factories) > CLUSTERS_MAX:
            factories.pop(next(iter(factories))).shutdown()
        return factory


def _compare(driver: Installed) -> None:
    for trouble in HERE.troubles(driver):
        if trouble not in _told:
            _told.add(trouble)
            logger.warning("%s", trouble)


def _forked() -> None:
    """Give the child of a fork a lock of its own: another thread may hold the parent's."""
    global _lock
    _lock = threading.Lock()


def close_all() -> None:
    """Shut down what this process has opened; a later ``factory_of`` opens it anew."""
    with _lock:
        found = list(factories.values()) if _owner == os.getpid() else []
        factories.clear()
    for factory in found:
        factory.shutdown()


os.register_at_fork(after_in_child=_forked)
atexit.register(close_all)
