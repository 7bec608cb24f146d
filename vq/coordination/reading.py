"""Reading parts of the tree: helpers that topics, routes, groups and the registry share.

Only reads, and only what several modules need. A snapshot of a topic is consistent: its partitions
belong to the very version of the topic node that it carries.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from vq.coordination.coordinator import Coordinator, NoNode, Watch, join
from vq.coordination.paths import READY, TOPICS, Partition, Topic
from vq.errors import CoordinationError, UnknownTopic
from vq.model import PartitionPlacement, TopicSettings

T = TypeVar("T")

#: Reads of a topic that may be overtaken by changes before we say so.
SNAPSHOT_TRIES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic with all its partitions, as of ``version`` of its node.

    ``partition_versions`` are the versions of the partitions' nodes, for compare-and-set.
    """

    name: str
    id: str
    settings: TopicSettings
    version: int
    partitions: tuple[PartitionPlacement, ...]
    partition_versions: tuple[int, ...]
    phase: str = READY


async def gather_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Run calls at once, wait for all of them, then return the results or raise the first error.

    The coordinator bounds how many are really under way.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    results: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def children_or_none(
    coordinator: Coordinator, path: str, *, watch: Watch | None = None
) -> list[str]:
    """Return the names of the children, none if the node is missing.

    A watch is left either way: on the children, or on the node's creation.
    """
    while True:
        try:
            return await coordinator.children(path, watch=watch)
        except NoNode:
            if watch is None or await coordinator.exists(path, watch=watch) is None:
                return []


async def numbered_children(
    coordinator: Coordinator, parent: str, *, watch: Watch | None = None
) -> list[int]:
    """Return the children whose names are numbers, in order; none if ``parent`` is missing."""
    names = await children_or_none(coordinator, parent, watch=watch)
    return sorted(int(name) for name in names if name.isdecimal())


async def read_numbered(
    coordinator: Coordinator, parent: str, *, watch: Watch | None = None
) -> dict[int, bytes]:
    """Return what the numbered children hold, in order; those that go meanwhile are left out.

    ``watch`` hints when one comes or goes.
    """

    async def read(number: int) -> bytes | None:
        try:
            return (await coordinator.get(join(parent, str(number)))).data
        except NoNode:
            return None

    numbers = await numbered_children(coordinator, parent, watch=watch)
    values = await gather_all(read(number) for number in numbers)
    return {number: data for number, data in zip(numbers, values, strict=True) if data is not None}


async def read_topic(
    coordinator: Coordinator, name: str, *, watch: Watch | None = None, any_phase: bool = False
) -> TopicView:
    """Read a topic and all its partitions as one consistent snapshot.

    A watch is left on the topic's node whatever comes out, also when the topic does not exist.

    Raises:
        UnknownTopic: It does not exist, or (without ``any_phase``) is being made or deleted.
    """
    path = Topic.path(name)
    for _ in range(SNAPSHOT_TRIES_MAX):
        try:
            node = await coordinator.get(path, watch=watch)
        except NoNode:
            if watch is not None and await coordinator.exists(path, watch=watch) is not None:
                continue
            raise UnknownTopic(
                f"there is no topic {name!r}; create it: `vq topic create {name} --partitions N`"
            ) from None
        topic = Topic.decode(path, node.data)
        if topic.phase != READY and not any_phase:
            raise UnknownTopic(f"topic {name!r} is not ready: it is {topic.phase}")
        numbers = await numbered_children(coordinator, Partition.parent(name))
        nodes = await gather_all(_read_partition(coordinator, name, n) for n in numbers)
        after = await coordinator.exists(path)
        same = after is not None and (after.czxid, after.version) == (
            node.stat.czxid,
            node.stat.version,
        )
        if same and None not in nodes:
            found = [each for each in nodes if each is not None]
            _check_complete(name, topic, numbers)
            return TopicView(
                name=name,
                id=topic.id,
                settings=topic.settings,
                version=node.stat.version,
                partitions=tuple(placement for placement, _ in found),
                partition_versions=tuple(version for _, version in found),
                phase=topic.phase,
            )
    raise CoordinationError(
        f"topic {name!r} changed {SNAPSHOT_TRIES_MAX} times while it was read; try again"
    )


async def count_partitions(coordinator: Coordinator) -> Counter[str]:
    """Count the open partitions that each broker group holds, over all topics."""
    counts: Counter[str] = Counter()
    for topic in await children_or_none(coordinator, TOPICS):
        numbers = await numbered_children(coordinator, Partition.parent(topic))
        for found in await gather_all(_read_partition(coordinator, topic, n) for n in numbers):
            if found is not None and found[0].writer_group is not None:
                counts[found[0].writer_group] += 1
    return counts


async def _read_partition(
    coordinator: Coordinator, topic: str, number: int
) -> tuple[PartitionPlacement, int] | None:
    path = Partition.path(topic, number)
    try:
        node = await coordinator.get(path)
    except NoNode:
        return None
    value = Partition.decode(path, node.data)
    return PartitionPlacement(topic, number, value.spans, value.state), node.stat.version


def _check_complete(name: str, topic: Topic, numbers: list[int]) -> None:
    if topic.phase == READY and numbers != list(range(topic.settings.partitions)):
        raise CoordinationError(
            f"topic {name!r} should have partitions 0 to {topic.settings.partitions - 1}, "
            f"but ZooKeeper has {len(numbers)} of them; restore the missing znodes"
        )
