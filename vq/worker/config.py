"""Settings of a worker: how many processes, and what ends them; checked when it is made."""

from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.bounds import check_between, check_within
from vq.errors import InvalidArgument
from vq.model import check_host
from vq.remoting.ports import is_loopback
from vq.shown import shown

PROCESSES_MAX: Final = 256
#: Tells a process that it is one of a worker: number, and descriptors of memory and pipe.
CHILD_VARIABLE: Final = "_VQ_WORKER_CHILD"
#: Orders of the parent: end when what is in hand is finished; commit what is handled and end.
FINISH: Final = "finish"
NOW: Final = "now"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Settings of one ``vq worker``.

    Attributes:
        processes: How many run at a time.
        stop_timeout_s: How long a stop waits for handlers. What is in hand then is delivered again.
        time_limit_s: A process that has a message in hand for so long is ended; 0: no limit.
        soft_time_limit_s: A handler gets ``vq.SoftTimeLimit`` after so long; 0: none.
        messages_max: A process is replaced when it has handled so many messages; 0: never.
        memory_mb_max: A process is replaced when it takes so many MB of memory; 0: never.
        health_host: The address of health and metrics.
        health_port: Their port; 0: they are not served.
        reload: Replace the processes when a file of the code changes; for development.
        start_failures_max: A runner ends when a process could not start so many times in a row.
    """

    processes: int = 1
    stop_timeout_s: float = 30.0
    time_limit_s: float = 0.0
    soft_time_limit_s: float = 0.0
    messages_max: int = 0
    memory_mb_max: int = 0
    health_host: str = "127.0.0.1"
    health_port: int = 0
    reload: bool = False
    start_failures_max: int = 5

    def __post_init__(self) -> None:
        check_host(self.health_host)
        if self.health_port and not is_loopback(self.health_host):
            raise InvalidArgument(
                f"health_host = {shown(self.health_host)} is no loopback address: health and "
                "metrics of a worker have no TLS; use 127.0.0.1, or a proxy"
            )
        for name, least, most in (
            ("processes", 1, PROCESSES_MAX),
            ("messages_max", 0, 2**63 - 1),
            ("memory_mb_max", 0, 2**40),
            ("health_port", 0, 65_535),
            ("start_failures_max", 1, 1_000),
        ):
            check_between(name, getattr(self, name), least, most)
        for name in ("stop_timeout_s", "time_limit_s", "soft_time_limit_s"):
            check_within(name, getattr(self, name), 0, limits.TIMEOUT_S_MAX)
        if 0 < self.time_limit_s <= self.soft_time_limit_s:
            raise InvalidArgument(
                f"soft_time_limit_s = {self.soft_time_limit_s} is not below time_limit_s = "
                f"{self.time_limit_s}: the process would end before its handler is told"
            )
