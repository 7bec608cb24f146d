"""The process of a node, as the node measures it: a port, with a twin that measures nothing."""

import os
import time
from collections.abc import Iterable

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric


class Process:
    """A process of which nothing is known: the one of many nodes in memory.

    Attributes:
        pid: Its number, for operators; 0: not known.
    """

    pid = 0

    def cpu_s(self) -> float:
        """Return the processor time of the calling thread, the loop's, in seconds; 0: unknown."""
        return 0.0

    def families(self) -> Iterable[Metric]:
        """Return the families of metrics about the process."""
        return ()


class RealProcess(Process):
    """The process that makes it, one node on one thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._collector = ProcessCollector(registry=None)

    def cpu_s(self) -> float:
        return time.thread_time()

    def families(self) -> Iterable[Metric]:
        return self._collector.collect()
