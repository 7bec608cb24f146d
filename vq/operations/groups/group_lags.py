"""How far all consumer groups are behind, read at one time by one reader."""

from dataclasses import dataclass, field
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.groups import groups
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.tree.coordinator import ConnectionLost, SessionExpired
from vq.coordination.tree.reading import gather_all
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.operations.groups.groups import GroupDescription, description, progress, read_nodes
from vq.operations.partitions.offsets import Inspector

logger = get_logger(__name__)
#: Partitions of all groups together that one look asks brokers about.
PARTITIONS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class GroupLags:
    """What one look at all groups found.

    Attributes:
        time_ms: When the look ended, in milliseconds since 1970; 0: there was none.
        took_s: How long it took.
        groups: Each group by name, with its progress in the partitions within the bound.
        failed: How many groups could not be read this time.
        left_out: By group, how many of its partitions are beyond the bound.
    """

    time_ms: int = 0
    took_s: float = 0.0
    groups: dict[str, GroupDescription] = field(default_factory=dict)
    failed: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


async def look_at_groups(cluster: ClusterClient, *, count: bool, partitions_max: int) -> GroupLags:
    """Return how far every group is behind; one group is read after the other.

    A broker that gives no answer in time is not asked again during this look.

    Args:
        cluster: Where.
        count: Also in messages, which brokers have to count.
        partitions_max: Of all groups together; further ones are counted as left out, and no broker
            is asked about them.

    Raises:
        CoordinationError: The groups cannot be listed, or ZooKeeper went away meanwhile.
    """
    begun = cluster.clock.monotonic()
    inspector = Inspector(cluster)
    found: dict[str, GroupDescription] = {}
    left_out: dict[str, int] = {}
    failed = 0
    room = partitions_max
    for name in await groups.list_groups(cluster.coordinator):
        try:
            nodes = await read_nodes(cluster, name)
            placements = [each for view in nodes.topics.values() for each in view.partitions]
            told = await gather_all(
                progress(inspector, nodes, each, count=count) for each in placements[:room]
            )
        except UnknownGroup:
            continue  # deleted meanwhile
        except (ConnectionLost, SessionExpired):
            raise
        except VqError as error:
            logger.warning("group cannot be read", group=name, error=error)
            failed += 1
            continue
        found[name] = description(name, nodes, told)
        if len(told) < len(placements):
            left_out[name] = len(placements) - len(told)
        room -= len(told)
    now = cluster.clock.monotonic()
    return GroupLags(cluster.clock.wall_ms(), now - begun, found, failed, left_out)
