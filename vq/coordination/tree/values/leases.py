"""Values below ``leases``: the fence of a lease, who holds it, and what was done when."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import LEASES
from vq.coordination.tree.values.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFence(Value):
    """``leases/<job>``: persistent; ``fence`` rises by 1 whenever a node takes the lease.

    Whoever does something under the lease checks the version of this node in the same ``multi``.
    """

    _what = "fence of a lease"
    fence: int = 0

    @staticmethod
    def path(job: str) -> str:
        """Return the path of the job's lease."""
        return join(LEASES, job)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder(Value):
    """``leases/<job>/holder``: who holds the lease with ``fence``, until its session ends.

    ``nonce`` identifies our own node after a lost reply.
    """

    _what = "holder of a lease"
    holder: str
    fence: int
    since_ms: int = 0
    nonce: str = ""

    @staticmethod
    def path(job: str) -> str:
        """Return the path of the node of the job's holder."""
        return join(LEASES, job, "holder")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes(Value):
    """``leases/<job>/times``: when each part of a job was due last, in ms since 1970, by its name.

    Whoever writes it holds the lease.
    """

    _what = "list of times of a job"
    due_ms: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def path(job: str) -> str:
        """Return the path of the times of a job."""
        return join(LEASES, job, "times")
