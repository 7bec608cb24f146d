"""How many partitions are open on each broker group: counted as they change, corrected by brokers.

The placement of a new partition needs these numbers, and must not read every partition for them. So
``brokers/<group>/partitions`` (``paths.OpenPartitions``) has the number for one group. Every change
of a placement (a topic made or deleted, partitions added, one moved) writes it in the same
``multi``, by compare-and-set.

Only placement uses a count, and a count may be wrong: an older vq, or an operator, changes
placements without it. Every broker reads all topics now and then, and corrects the counts::

    read_counts        the counts, with their versions
    (all topics)       each at least as new as the counts, since one session reads
    correct_counts     set what differs, if the count has still that version

A change of a placement between the first step and the last raises the version, and the correction
is refused; so what is written is true.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from vq.coordination.coordinator import (
    BadVersion,
    Coordinator,
    NodeExists,
    NoNode,
    Operation,
    Set,
)
from vq.coordination.paths import OpenPartitions
from vq.coordination.reading import gather_all
from vq.errors import CoordinationError

#: Counts written by one ``multi``. A topic on more groups than that leaves the others to the
#: brokers to correct.
COUNTS_PER_MULTI_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class OpenCount:
    """The count of one group as it was read; ``open`` is None where it cannot be read."""

    open: int | None
    version: int


async def read_counts(
    coordinator: Coordinator, groups: Iterable[str]
) -> dict[str, OpenCount | None]:
    """Return the counts of ``groups``; None where there is no node."""
    names = list(groups)
    found = await gather_all(_read_count(coordinator, name) for name in names)
    return dict(zip(names, found, strict=True))


async def count_operations(coordinator: Coordinator, changes: Mapping[str, int]) -> list[Operation]:
    """Read the counts of the groups in ``changes``; see ``counted``."""
    names = sorted(name for name, change in changes.items() if name and change)
    return counted(await read_counts(coordinator, names[:COUNTS_PER_MULTI_MAX]), changes)


def counted(counts: Mapping[str, OpenCount | None], changes: Mapping[str, int]) -> list[Operation]:
    """Return the parts of a ``multi`` that add ``changes`` to the counts of groups.

    Groups without a count are left without. The ``multi`` fails with ``BadVersion`` or ``NoNode``
    when a count changed since it was read: read again then.
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
    """Write the counts that are missing or differ from ``actual``, unless they changed meanwhile.

    Args:
        coordinator: ``before`` and then ``actual`` were read through it.
        before: What ``read_counts`` returned before all topics were read.
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
