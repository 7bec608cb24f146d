"""The broker groups of a cluster as those see them who place partitions."""

from collections.abc import Mapping, Sequence

from vq.coordination.brokers.open_counts import OpenCount, read_counts
from vq.coordination.brokers.registry import read_group, read_node, read_state
from vq.coordination.tree.coordinator import (
    Coordinator,
    Unreadable,
)
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.reading import children_or_none, count_partitions, gather_all
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    GroupState,
    Registration,
)
from vq.log_lines import get_logger
from vq.model import GroupView

logger = get_logger(__name__)


async def groups(coordinator: Coordinator, names: Sequence[str] | None = None) -> list[GroupView]:
    """Return broker groups, all of them sorted by name, each with its number of open partitions.

    See ``counted_groups``.
    """
    return (await counted_groups(coordinator, names))[0]


async def counted_groups(
    coordinator: Coordinator, names: Sequence[str] | None = None
) -> tuple[list[GroupView], dict[str, OpenCount | None]]:
    """Return broker groups (None: all), and the counts with their numbers of open partitions.

    This takes a few reads for each group, whatever the number of topics. If a group has no count,
    because only older brokers run, every partition is read.
    """
    if names is None:
        names = await children_or_none(coordinator, BROKERS)
    counts = await read_counts(coordinator, names)
    known = {
        name: count.open
        for name, count in counts.items()
        if count is not None and count.open is not None
    }
    opened: Mapping[str, int] = (
        known if len(known) == len(names) else await count_partitions(coordinator)
    )
    views = await gather_all(_group_view(coordinator, name, opened[name]) for name in names)
    return views, counts


async def _group_view(coordinator: Coordinator, group: str, partitions: int) -> GroupView:
    try:
        return await _readable_view(coordinator, group, partitions)
    except Unreadable as error:
        logger.warning(
            "broker group cannot be read, nothing is placed on it", group=group, error=error
        )
        return GroupView(group=group, alive=False, partitions=partitions)


async def _readable_view(coordinator: Coordinator, group: str, partitions: int) -> GroupView:
    value = await read_group(coordinator, group) or BrokerGroup()
    state = await read_state(coordinator, group)
    master = await read_node(coordinator, group, state.master) if state is not None else None
    return GroupView(
        group=group,
        alive=master is not None,
        draining=value.draining,
        drained=value.drained,
        pool=value.pool,
        partitions=partitions,
        labels=value.labels,
        nodes=max(1, len(await known_nodes(coordinator, group, state))),
    )


async def known_nodes(
    coordinator: Coordinator, group: str, state: GroupState | None
) -> frozenset[str]:
    """Return the nodes of a group: those that run, and those that have been in sync."""
    running = await children_or_none(coordinator, Registration.parent(group))
    return frozenset(running) | (frozenset() if state is None else state.nodes)
