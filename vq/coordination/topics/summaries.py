"""All topics of a cluster, with a few facts of each."""

from collections.abc import Collection

from vq.coordination.topics.topics import list_topics
from vq.coordination.tree.coordinator import (
    Coordinator,
    Unreadable,
)
from vq.coordination.tree.reading import (
    CountedTopic,
    gather_all,
    read_summary,
)
from vq.coordination.tree.values.topics import (
    READY,
)


async def summarize_topics(coordinator: Coordinator) -> list[CountedTopic]:
    """Return all topics that are ready, sorted by name, without their partitions."""
    names = await list_topics(coordinator)
    found = await gather_all(read_summary(coordinator, name) for name in names)
    return [each for each in found if each is not None and each.phase == READY]


async def summarize_readable(
    coordinator: Coordinator,
) -> tuple[list[CountedTopic], dict[str, Unreadable]]:
    """Like ``summarize_topics``; a topic with an unreadable znode has its error beside the list."""
    found, unreadable = await read_summaries(coordinator)
    return [each for each in found if each.phase == READY], unreadable


async def read_summaries(
    coordinator: Coordinator, names: Collection[str] | None = None
) -> tuple[list[CountedTopic], dict[str, Unreadable]]:
    """Return topics in any phase, and by name the errors of those that cannot be read.

    Args:
        coordinator: A started coordinator.
        names: Which; None: all.
    """
    unreadable: dict[str, Unreadable] = {}

    async def read(name: str) -> CountedTopic | None:
        try:
            return await read_summary(coordinator, name)
        except Unreadable as error:
            unreadable[name] = error
            return None

    wanted = await list_topics(coordinator) if names is None else sorted(names)
    found = await gather_all(read(name) for name in wanted)
    return [each for each in found if each is not None], unreadable
