"""Chooses the broker group of each new partition: a pure function, equal on every machine.

Example: three groups that hold 4, 1 and 1 partitions get five new ones::

    allocate(5, [a: 4, b: 1, c: 1])  ->  [b, c, a, b, c]     afterwards a: 5, b: 3, c: 3
"""

import heapq
from collections.abc import Sequence
from typing import Final

from vq import limits
from vq.errors import CoordinationError, InvalidArgument
from vq.model import GroupView

_SHOWN_MAX: Final = 10  # groups in one error


def allocate(
    partition_count: int, groups: Sequence[GroupView], *, pool: str | None = None
) -> list[str]:
    """Return the group of each new partition, in order of the partitions.

    Only groups of this pool that are alive and not draining are used; None is the common pool: the
    groups without a pool. Each partition goes to the group with the fewest partitions of *this*
    call, so that one topic is spread evenly (counts differ by at most 1). Among equal ones it goes
    to the group with the fewest partitions in all, then to the first by name. The order of
    ``groups`` does not matter.

    Raises:
        InvalidArgument: ``partition_count`` is outside [1, 4096].
        CoordinationError: No group can be used; the message says why, for each group.
    """
    if not 1 <= partition_count <= limits.PARTITIONS_PER_TOPIC_MAX:
        raise InvalidArgument(
            f"partition_count = {partition_count} is outside [1, {limits.PARTITIONS_PER_TOPIC_MAX}]"
        )
    usable = [group for group in groups if _why_not(group, pool) is None]
    if not usable:
        raise CoordinationError(_no_group(groups, pool))
    heap = [(0, group.partitions, group.group) for group in usable]
    heapq.heapify(heap)
    chosen = []
    for _ in range(partition_count):
        given, held, name = heap[0]
        chosen.append(name)
        heapq.heapreplace(heap, (given + 1, held + 1, name))
    return chosen


def _why_not(group: GroupView, pool: str | None) -> str | None:
    if not group.alive:
        return "has no live master"
    if group.draining:
        return "is draining"
    if group.pool != pool:
        return f"is in {pool_text(group.pool)}"
    return None


def pool_text(pool: str | None) -> str:
    """Return the name of a pool for messages."""
    return "the common pool" if pool is None else f"pool {pool!r}"


def _no_group(groups: Sequence[GroupView], pool: str | None) -> str:
    reasons = [f"{g.group} {_why_not(g, pool)}" for g in sorted(groups, key=lambda g: g.group)]
    seen = "; ".join(reasons[:_SHOWN_MAX]) if reasons else "no broker has registered yet"
    if len(reasons) > _SHOWN_MAX:
        seen += f"; and {len(reasons) - _SHOWN_MAX} more"
    return (
        f"no broker group of {pool_text(pool)} can take partitions ({seen}); "
        "start a broker: `vq broker`, and see `vq cluster status`"
    )
