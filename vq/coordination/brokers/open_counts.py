"""The number of open partitions of each broker group; every change updates it, brokers correct it.

The placement of a new partition needs these numbers without a read of every partition. So
``brokers/<group>/partitions`` (``OpenPartitions``) has the number of one group. Every change
of a placement (a topic created or deleted, partitions added, one moved) updates it in the same
``multi``, by compare-and-set.

Only placement uses a count. A count may be wrong, because an older vq or an operator can change
placements without it. Every broker reads all topics from time to time and corrects the counts::

    read_counts        read the counts and their versions
    (all topics)       read in the same session, so at least as new as the counts
    correct_counts     write the counts that differ, if they still have that version

If a placement changes between the first step and the last, the version rises and ZooKeeper refuses
the correction. So a written correction is right.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from vq.coordination.tree.coordinator import (
    BadVersion,
    Coordinator,
    NodeExists,
    NoNode,
    Operation,
    Set,
)
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.brokers import OpenPartitions
from vq.errors import CoordinationError

#: Counts written by one ``multi``. If a topic is on more groups, brokers correct the other counts.
COUNTS_PER_MULTI_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class OpenCount:
    """The count of one group as it was read; ``open`` is None if it cannot be decoded."""

    open: int | None
    version: int


async def read_counts(
    coordinator: Coordinator, groups: Iterable[str]
) -> dict[str, OpenCount | None]:
    """Return the counts of ``groups``; None for a group without a node."""
    names = list(groups)
    found = await gather_all(_read_count(coordinator, name) for name in names)
    return dict(zip(names, found, strict=True))


async def count_operations(coordinator: Coordinator, changes: Mapping[str, int]) -> list[Operation]:
    """Read the counts of the groups in ``changes``; see ``counted``."""
    names = sorted(name for name, change in changes.items() if name and change)
    return counted(await read_counts(coordinator, names[:COUNTS_PER_MULTI_MAX]), changes)


def counted(counts: Mapping[str, OpenCount | None], changes: Mapping[str, int]) -> list[Operation]:
    """Return the operations that add ``changes`` to the counts of groups.

    A group without a count gets none. If a count changed since it was read, the ``multi`` fails
    with ``BadVersion`` or ``NoNode``: then read again.
    """
    operations: list[Operation] = []
    for name in sorted(changes):
        count = counts.get(name)
        if changes[name] and count is not None and count.open is not None:
            operations.append(_set(name, max(0, count.open + changes[name]), count.version))
    return operations[:COUNTS_PER_MULTI_MAX]


async def correct_counts(
    coordinator: Coordinator,
    before: Mapping[str, OpenCount | None],
    actual: Mapping[str, int],
) -> None:
    """Write the counts that are missing or differ from ``actual``, unless they have changed since.

    Args:
        coordinator: The one through which ``before`` and then ``actual`` were read.
        before: The result of ``read_counts`` before all topics were read.
        actual: The open partitions of each group in these topics; groups without any may be left
            out.
    """

    async def correct(group: str, count: OpenCount | None) -> None:
        right = actual.get(group, 0)
        if count is None:
            value = OpenPartitions(open=right)
            with contextlib.suppress(NodeExists, NoNode):  # NoNode: the group is gone
                await coordinator.create(OpenPartitions.path(group), value.encode())
        elif count.open != right:
            path, data, version = _set(group, right, count.version)
            with contextlib.suppress(BadVersion, NoNode):
                await coordinator.set(path, data, version=version)

    await gather_all(correct(group, count) for group, count in before.items())


async def _read_count(coordinator: Coordinator, group: str) -> OpenCount | None:
    path = OpenPartitions.path(group)
    try:
        node = await coordinator.get(path)
    except NoNode:
        return None
    try:
        count = OpenPartitions.decode(path, node.data).open
    except CoordinationError:
        return OpenCount(None, node.stat.version)
    return OpenCount(count, node.stat.version)


def _set(group: str, count: int, version: int) -> Set:
    return Set(OpenPartitions.path(group), OpenPartitions(open=count).encode(), version)
