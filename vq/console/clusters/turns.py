"""Which consumer groups are looked at next. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from vq.console.clusters.lags import SeenGroup
from vq.operations.cluster.bulk import GroupContract

#: What is known of a group with members counts as so much older: it changes, and is looked at.
_MEMBERS_TIMES: Final = 4


def next_turn(
    contracts: Iterable[GroupContract],
    sizes: Mapping[str, int],
    seen: Mapping[str, SeenGroup],
    now_ms: int,
    *,
    due_s: float,
    partitions_max: int,
) -> list[str]:
    """Return the groups of the next turn, those of which the oldest is known first.

    Args:
        contracts: All groups.
        sizes: How many partitions each topic has.
        seen: When each group was looked at; one that is not in it comes first, and of these the
            ones with members.
        now_ms: The present time, in milliseconds since 1970.
        due_s: A group that was looked at since is not looked at.
        partitions_max: A turn has so many partitions at most, or one group.
    """
    due: list[tuple[float, bool, str, int]] = []
    for each in contracts:
        found = seen.get(each.group)
        age_s = math.inf if found is None else (now_ms - found.time_ms) / 1000
        if age_s < due_s or each.error:
            continue
        partitions = sum(sizes.get(topic, 0) for topic in each.topics)
        weighed_s = age_s * (_MEMBERS_TIMES if each.members else 1)
        due.append((-weighed_s, not each.members, each.group, partitions))
    turn: list[str] = []
    room = partitions_max
    for _, _, name, partitions in sorted(due):
        if turn and partitions > room:
            break
        turn.append(name)
        room -= max(partitions, 1)
    return turn
