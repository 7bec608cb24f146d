"""How far the slow passes are in which nodes verify all that they store.

Loop-bound functions on a ``ClusterClient``.
"""

from dataclasses import dataclass

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.tree.reading import gather_all
from vq.errors import VqError
from vq.model import NodeInfo
from vq.operations.brokers import brokers
from vq.operations.brokers.brokers import broker_status


@dataclass(frozen=True, slots=True)
class Scrub:
    """The last pass of one node, under way or ended; None is what the node did not say.

    Attributes:
        group, node: Which.
        begun_ms: When it began, in milliseconds since 1970; None: there was none yet.
        ended_ms: When it ended; None: it goes on, or there was none.
        next_ms: When the next one begins; None: not known, this one goes on, or there are none.
        read_bytes: What it has read.
        stored_bytes: What the node stores now. A pass reads about as much.
        bytes_per_s: How fast it reads at most; 0: the node makes no passes.
        damaged_ranges: Damage that is known now, however it was found.
        repairs: Ranges that were repaired since the node started.
        error: Why the node did not answer; "" if it did.
    """

    group: str
    node: str
    begun_ms: int | None = None
    ended_ms: int | None = None
    next_ms: int | None = None
    read_bytes: int | None = None
    stored_bytes: int | None = None
    bytes_per_s: int | None = None
    damaged_ranges: int | None = None
    repairs: int | None = None
    error: str = ""

    @property
    def running(self) -> bool:
        """Whether a pass is under way."""
        return self.begun_ms is not None and self.ended_ms is None


async def scrubs(cluster: ClusterClient) -> list[Scrub]:
    """Ask every registered node; one that does not answer has the reason."""
    nodes = await registry.all_nodes(cluster.coordinator)
    return await gather_all(_scrub(cluster, node) for node in nodes)


async def _scrub(cluster: ClusterClient, node: NodeInfo) -> Scrub:
    try:
        status = await broker_status(cluster, node.address)
    except VqError as error:
        return Scrub(node.group, node.node, error=f"{type(error).__name__}: {error}")
    raw = status.raw
    begun = raw["scrub_begun_ms"]
    return Scrub(
        node.group,
        node.node,
        begun_ms=begun or None,
        ended_ms=raw["scrub_ended_ms"] or None,
        next_ms=raw["scrub_next_ms"] or None,
        read_bytes=raw["scrub_read_bytes"] if begun else None,
        stored_bytes=sum(each["size_bytes"] for each in raw["partitions"]),
        bytes_per_s=raw["scrub_bytes_per_s"],
        damaged_ranges=brokers.damaged_ranges(status),
        repairs=raw["repairs"],
    )
