"""The timed duties of nodes: when each ran last, how that went, and when it runs next.

Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.tree.reading import gather_all
from vq.errors import InvalidArgument, VqError
from vq.model import NodeInfo
from vq.operations.brokers.brokers import broker_status


@dataclass(frozen=True, slots=True)
class BrokerJob:
    """A timed duty of one node.

    Attributes:
        name: Such as "scrub".
        trigger: When it runs: "every 60 s", "daily at 02:00".
        state: "waits", "runs", or "off": the duty is not this node's, or switched off.
        why_off: Why it has no next run; "": it has one.
        runs: That ended since the start of the node.
        failures: How many of these failed.
        begun_ms: When the last run began, in milliseconds since 1970; None: there was none.
        ended_ms: When it ended; None: it goes on, or there was none.
        late_ms: How much later than planned it began; 0: less than a second.
        error: Why the last run that ended failed; "": it did not.
        next_ms: When the next one is due; None: it runs, or is off.
    """

    name: str
    trigger: str
    state: str
    why_off: str
    runs: int
    failures: int
    begun_ms: int | None
    ended_ms: int | None
    late_ms: int
    error: str
    next_ms: int | None

    @property
    def took_ms(self) -> int | None:
        """How long the last run took; None: it goes on, or there was none."""
        if self.begun_ms is None or self.ended_ms is None:
            return None
        return max(0, self.ended_ms - self.begun_ms)


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """The jobs of one node, by name.

    Attributes:
        group, node: Which.
        jobs: Empty if it does not answer, or its version tells none.
        error: Why it did not answer; "" if it did.
    """

    group: str
    node: str
    jobs: tuple[BrokerJob, ...] = ()
    error: str = ""


async def broker_jobs(cluster: ClusterClient, name: str | None = None) -> list[NodeJobs]:
    """Return the timed duties of every registered node; one that does not answer has the reason.

    Args:
        cluster: Where to ask.
        name: Only of a group, such as "b1", or of a node, such as "b1/n2"; None: of all.

    Raises:
        InvalidArgument: No such node is registered.
    """
    nodes = await registry.all_nodes(cluster.coordinator)
    if name is not None:
        known = [f"{each.group}/{each.node}" for each in nodes]
        nodes = [each for each in nodes if name in {each.group, f"{each.group}/{each.node}"}]
        if not nodes:
            raise InvalidArgument(
                f"no broker {name!r} is registered; these are: {', '.join(known) or 'none'}"
            )
    return await gather_all(_jobs(cluster, node) for node in nodes)


async def _jobs(cluster: ClusterClient, node: NodeInfo) -> NodeJobs:
    try:
        status = await broker_status(cluster, node.address)
    except VqError as error:
        return NodeJobs(node.group, node.node, error=f"{type(error).__name__}: {error}")
    return NodeJobs(node.group, node.node, tuple(jobs_of(status.raw["jobs"])))


def jobs_of(told: Iterable[dict[str, Any]]) -> Iterable[BrokerJob]:
    """Yield the jobs that a status tells."""
    for each in told:
        times = {name: each[name] or None for name in ("begun_ms", "ended_ms", "next_ms")}
        yield BrokerJob(**{**each, **times})


def failing_jobs(told: Iterable[dict[str, Any]]) -> list[str]:
    """Return which jobs of a status failed at their last run, with the reason."""
    return [f"{each.name}: {each.error}" for each in jobs_of(told) if each.error]
