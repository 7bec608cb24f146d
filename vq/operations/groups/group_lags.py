"""How far all consumer groups are behind, read at one time by one reader."""

from bisect import bisect_right
from collections.abc import Sequence
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
        names: All groups that there were, sorted; some are not in ``groups``.
        last: The last group that was looked at: the next turn begins behind it.
    """

    time_ms: int = 0
    took_s: float = 0.0
    groups: dict[str, GroupDescription] = field(default_factory=dict)
    failed: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    names: Sequence[str] = ()
    last: str = ""


async def look_at_groups(
    cluster: ClusterClient, *, count: bool, partitions_max: int, after: str | None = None
) -> GroupLags:
    """Return how far every group is behind; one group is read after the other.

    A broker that gives no answer in time is not asked again during this look.

    Args:
        cluster: Where.
        count: Also in messages, which brokers have to count.
        partitions_max: Of all groups together; further ones are counted as left out, and no broker
            is asked about them.
        after: Look in turns: begin behind the group of this name ("": at the first one), go on
            with the first one behind the last one, and end before a group that is beyond the
            bound. A group that is larger than the bound is looked at alone, up to
            ``PARTITIONS_MAX``. None: at all groups.

    Raises:
        CoordinationError: The groups cannot be listed, or ZooKeeper went away meanwhile.
    """
    begun = cluster.clock.monotonic()
    inspector = Inspector(cluster)
    found: dict[str, GroupDescription] = {}
    left_out: dict[str, int] = {}
    failed = 0
    room = partitions_max
    names = await groups.list_groups(cluster.coordinator)
    first = 0 if after is None else bisect_right(names, after)
    last = after or ""
    for name in (*names[first:], *names[:first]):
        if after is not None and room <= 0:
            break
        try:
            nodes = await read_nodes(cluster, name)
            placements = [each for view in nodes.topics.values() for each in view.partitions]
            if after is not None and len(placements) > room:
                if found:
                    break  # it has the next turn
                room = min(len(placements), PARTITIONS_MAX)
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
            last = name
            continue
        last = name
        found[name] = description(name, nodes, told)
        if len(told) < len(placements):
            left_out[name] = len(placements) - len(told)
        room -= max(len(told), 1) if after is not None else len(told)
    now = cluster.clock.monotonic()
    return GroupLags(cluster.clock.wall_ms(), now - begun, found, failed, left_out, names, last)
