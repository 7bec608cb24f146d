"""How far all consumer groups are behind, read at one time by one reader."""

from dataclasses import dataclass, field

from vq.admin.groups import GroupProgress, describe_group
from vq.client.cluster import ClusterClient
from vq.coordination import groups
from vq.coordination.groups import UnknownGroup
from vq.errors import VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupLags:
    """What one look at all groups found.

    Attributes:
        time_ms: When the look ended, in milliseconds since 1970; 0: there was none.
        took_s: How long it took.
        members: For each group, how many consumers are alive.
        progress: For each group, how far it is in each partition.
        failed: Groups that could not be read this time.
        left_out: Partitions beyond the bound.
    """

    time_ms: int = 0
    took_s: float = 0.0
    members: dict[str, int] = field(default_factory=dict)
    progress: dict[str, tuple[GroupProgress, ...]] = field(default_factory=dict)
    failed: int = 0
    left_out: int = 0


async def look_at_groups(cluster: ClusterClient, *, count: bool, partitions_max: int) -> GroupLags:
    """Return how far every group is behind; one group is read after the other.

    Args:
        cluster: Where.
        count: Also in messages, which brokers have to count.
        partitions_max: Of all groups together; further ones are counted as left out.

    Raises:
        CoordinationError: The groups cannot be listed.
    """
    begun = cluster.clock.monotonic()
    members: dict[str, int] = {}
    progress: dict[str, tuple[GroupProgress, ...]] = {}
    failed = left_out = 0
    room = partitions_max
    for name in await groups.list_groups(cluster.coordinator):
        try:
            found = await describe_group(cluster, name, count=count and room > 0)
        except UnknownGroup:
            continue  # deleted meanwhile
        except VqError as error:
            logger.warning("group cannot be read", group=name, error=error)
            failed += 1
            continue
        members[name] = len(found.members)
        progress[name] = found.partitions[:room]
        left_out += len(found.partitions) - len(progress[name])
        room -= len(progress[name])
    now = cluster.clock.monotonic()
    return GroupLags(cluster.clock.wall_ms(), now - begun, members, progress, failed, left_out)
