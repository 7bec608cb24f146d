"""Chooses the broker group of each new partition: a pure function, equal on every machine.

Example: three groups that hold 4, 1 and 1 partitions get five new ones::

    allocate(5, [a: 4, b: 1, c: 1])  ->  [b, c, a, b, c]     afterwards a: 5, b: 3, c: 3
"""

import heapq
from collections.abc import Sequence
from typing import Final

from vq import limits
from vq.bounds import check_between
from vq.errors import CoordinationError
from vq.model import COMMON_POOL, GroupView

_SHOWN_MAX: Final = 10  # groups or pools in one error


def allocate(
    partition_count: int,
    groups: Sequence[GroupView],
    *,
    pool: str | None = None,
    min_insync: int = 1,
) -> list[str]:
    """Return the group of each new partition, in order of the partitions.

    Only groups of this pool that are alive and not draining are used; None is the common pool: the
    groups without a pool. A group with fewer nodes than ``min_insync`` would refuse every message,
    so it is not used. Each partition goes to the group with the fewest partitions of *this*
    call, so that one topic is spread evenly (counts differ by at most 1). Among equal ones it goes
    to the group with the fewest partitions in all, then to the first by name. The order of
    ``groups`` does not matter.

    Raises:
        InvalidArgument: ``partition_count`` is outside [1, 4096].
        CoordinationError: No group can be used; the message says why.
    """
    check_between("partition_count", partition_count, 1, limits.PARTITIONS_PER_TOPIC_MAX)
    usable = [group for group in groups if _why_not(group, pool, min_insync) is None]
    if not usable:
        raise _no_group(groups, pool, min_insync)
    heap = [(0, group.partitions, group.group) for group in usable]
    heapq.heapify(heap)
    chosen = []
    for _ in range(partition_count):
        given, held, name = heap[0]
        chosen.append(name)
        heapq.heapreplace(heap, (given + 1, held + 1, name))
    return chosen


def too_few_nodes(nodes: int, min_insync: int) -> str | None:
    """Return why a group with so many nodes takes no message of a topic; None: it may."""
    if nodes >= min_insync:
        return None
    return f"has {nodes} node(s), and the topic's min_insync is {min_insync}"


def _why_not(group: GroupView, pool: str | None, min_insync: int) -> str | None:
    if not group.alive:
        return "has no live master"
    if group.draining:
        return "is draining"
    if group.pool != pool:
        return f"is in {pool_text(group.pool)}"
    return too_few_nodes(group.nodes, min_insync)


def pool_text(pool: str | None) -> str:
    """Return the name of a pool for messages."""
    return "the common pool" if pool is None else f"pool {pool!r}"


def missing_pool(groups: Sequence[GroupView], pool: str | None) -> str:
    """Return an error's text if no group is in a pool, alive or not; "" if one is."""
    if any(group.pool == pool for group in groups):
        return ""
    by_pool: dict[str, list[str]] = {}
    for group in sorted(groups, key=lambda g: (g.pool or "", g.group)):
        by_pool.setdefault(group.pool or COMMON_POOL, []).append(group.group)
    pools = [f"{name} ({_some(held, ', ')})" for name, held in by_pool.items()]
    known = f"the pools are {_some(pools, ', ')}" if pools else "no broker has registered yet"
    choose = "choose one of them, or " if pools else ""
    start = f"{choose}start a broker: `{_command(pool)}`"
    return f"no broker group is in {pool_text(pool)}; {known}: {start}"


def _command(pool: str | None) -> str:
    return "vq broker" if pool is None else f"vq broker --pool {pool}"


def _some(texts: Sequence[str], separator: str) -> str:
    more = [f"and {len(texts) - _SHOWN_MAX} more"] if len(texts) > _SHOWN_MAX else []
    return separator.join([*texts[:_SHOWN_MAX], *more])


def _no_group(groups: Sequence[GroupView], pool: str | None, min_insync: int) -> CoordinationError:
    missing = missing_pool(groups, pool)
    remedy = f"start a broker: `{_command(pool)}`, and see `vq cluster status`"
    if groups and missing:
        return CoordinationError(missing, hint=remedy)
    ordered = sorted(groups, key=lambda group: group.group)
    reasons = [f"{each.group} {_why_not(each, pool, min_insync)}" for each in ordered]
    seen = _some(reasons, "; ") if reasons else "no broker has registered yet"
    if any(_why_not(each, pool, 1) is None for each in groups):  # it lacks only nodes
        remedy = "start more nodes of a group, or set min_insync lower; see `vq cluster status`"
    return CoordinationError(
        f"no broker group of {pool_text(pool)} can take partitions ({seen}); {remedy}",
        hint=remedy,
    )
