"""Making, describing, changing and deleting topics: what an operator does, as coroutines.

Every change of a partition writes the topic's list of changed partitions in the same ``multi``, so
a watch on that list and one on the topic's node tell of everything, and whoever hears of a change
reads what changed. Two changes of one partition at once cannot both succeed unseen. A topic too
large for one ``multi`` is made and deleted in steps, during which its phase hides it.

The number of partitions that are open on each broker group changes in the same ``multi``
(``open_counts``), so that none of this reads other topics.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from vq.coordination.allocation import allocate
from vq.coordination.claims import fence_claims
from vq.coordination.coordinator import (
    MULTI_OPERATIONS_MAX,
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
)
from vq.coordination.open_counts import (
    COUNTS_PER_MULTI_MAX,
    count_operations,
    counted,
)
from vq.coordination.paths import (
    CONSUMERS,
    CREATING,
    DELETING,
    READY,
    TOPICS,
    CommittedOffset,
    DeletedTopics,
    Owner,
    Partition,
    PlacementChanges,
    Topic,
)
from vq.coordination.placement import check_spans
from vq.coordination.reading import (
    TopicSummary,
    TopicView,
    children_or_none,
    gather_all,
    read_summary,
    read_topic,
)
from vq.coordination.registry import counted_groups
from vq.coordination.update import Plan, settle, update
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.model import PartitionPlacement, Span, TopicSettings, check_name

__all__ = [
    "TopicExists",
    "TopicView",
    "add_partitions",
    "change_placement",
    "change_settings",
    "create_topic",
    "delete_topic",
    "describe_topic",
    "list_topics",
    "summarize_topics",
    "touch_partition",
    "was_deleted",
]

#: Partitions made or deleted by one ``multi``.
STEP_PARTITIONS: Final = 500
#: Longest pause before the first second try to make a topic, since somebody else placed partitions
#: on the same groups; it grows by as much with each try.
_PAUSE_S: Final = 0.005


class TopicExists(CoordinationError):
    """A topic of this name is there already; nothing was changed."""

    retriable = False
    hint = "look at it with `vq topic describe NAME`, or choose another name"


async def list_topics(coordinator: Coordinator) -> list[str]:
    """Return the sorted names of all topics."""
    return await children_or_none(coordinator, TOPICS)


async def summarize_topics(coordinator: Coordinator) -> list[TopicSummary]:
    """Return all topics that are ready, sorted by name, without their partitions."""
    names = await list_topics(coordinator)
    found = await gather_all(read_summary(coordinator, name) for name in names)
    return [each for each in found if each is not None and each.phase == READY]


async def describe_topic(coordinator: Coordinator, name: str) -> TopicView:
    """Return a topic with the placement of every partition.

    Raises:
        UnknownTopic: There is none of this name.
    """
    return await read_topic(coordinator, check_name("topic", name))


async def create_topic(
    coordinator: Coordinator,
    name: str,
    settings: TopicSettings | None = None,
    *,
    rng: random.Random | None = None,
) -> TopicView:
    """Make a topic and place its partitions on the live broker groups, evenly.

    ``rng`` draws the topic's id. A lost reply is settled by reading: a return means it is made.

    Raises:
        InvalidArgument: A setting asks for what does not work yet.
        TopicExists: There is one of this name.
        CoordinationError: No broker group can take partitions, or ZooKeeper did not answer.
    """
    check_name("topic", name)
    settings, rng = settings or TopicSettings(), rng or random.SystemRandom()
    _check_supported(settings)
    if await coordinator.exists(Topic.path(name)) is not None:
        raise await _exists_already(coordinator, name)
    whole = settings.partitions <= STEP_PARTITIONS
    phase = READY if whole else CREATING
    topic = Topic(id=f"{rng.getrandbits(64):016x}", settings=settings, phase=phase)
    places = await _create_first(coordinator, name, topic, rng)
    if not whole:
        await _create_rest(coordinator, name, topic, places)
    return await read_topic(coordinator, name)


async def delete_topic(coordinator: Coordinator, name: str) -> None:
    """Delete a topic, its placement and every group's progress on it.

    Brokers delete the data when they see it gone, since it is in the list of deleted topics, which
    is written before anything goes. May be repeated after any failure. The groups'
    generations stay and are raised: if they began again at 0, a member that slept through could
    commit the old topic's progress into its namesake's.

    Raises:
        UnknownTopic: There is none of this name.
    """
    path = Topic.path(check_name("topic", name))

    async def plan(_: CoordinationError | None) -> Plan[None]:
        view = await read_topic(coordinator, name, any_phase=True)
        topic = Topic(id=view.id, settings=view.settings, phase=DELETING)
        operations = [
            Set(path, topic.encode(), view.version),
            *await _remember_deletion(coordinator, view),
            *await _uncounted(coordinator, view),
        ]
        return Plan(operations, None)

    await settle(coordinator, plan, what=f"topic {name!r}")
    for group in await children_or_none(coordinator, CONSUMERS):
        for parent in (Owner.parent, CommittedOffset.parent):
            await _delete_tree(coordinator, parent(group, name))
        await fence_claims(coordinator, group, name)
    await _delete_tree(coordinator, path)


async def _remember_deletion(coordinator: Coordinator, view: TopicView) -> list[Operation]:
    """Return what puts a topic on the list of deleted ones; nothing if it is there already."""
    path = DeletedTopics.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return [Create(path, DeletedTopics().with_topic(view.id, view.name).encode())]
    known = DeletedTopics.decode(path, node.data)
    if view.id in known.topics:
        return []
    return [Set(path, known.with_topic(view.id, view.name).encode(), node.stat.version)]


async def _uncounted(coordinator: Coordinator, view: TopicView) -> list[Operation]:
    """Return what takes a ready topic's partitions out of the counts of their groups."""
    if view.phase != READY:
        return []
    opened = _opened(view.partitions)
    counts = await count_operations(coordinator, {name: -opened[name] for name in opened})
    unmoved = [Check(PlacementChanges.path(view.name), view.changes)] if view.changes >= 0 else []
    return [*unmoved, *counts]


async def was_deleted(coordinator: Coordinator, topic_id: str) -> bool:
    """Whether somebody deleted the topic with this id, as far as the tree remembers."""
    path = DeletedTopics.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return False
    return topic_id in DeletedTopics.decode(path, node.data).topics


async def add_partitions(coordinator: Coordinator, name: str, count: int) -> TopicView:
    """Give a topic ``count`` more partitions, at the end.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: It would have too many, or more than one step allows.
    """
    if not 1 <= count <= STEP_PARTITIONS:
        raise InvalidArgument(f"count = {count} is outside [1, {STEP_PARTITIONS}]")
    view = await describe_topic(coordinator, name)
    total, path = len(view.partitions) + count, Topic.path(name)
    was_lost = False

    async def plan(failed: CoordinationError | None) -> Plan[None]:
        nonlocal was_lost
        was_lost = was_lost or isinstance(failed, ConnectionLost)
        now = view if failed is None else await describe_topic(coordinator, name)
        if was_lost and now.settings.partitions >= total:
            return Plan((), None)
        if now.version != view.version:
            raise BadVersion(path)
        return Plan(await _additions(coordinator, now, total), None)

    await settle(coordinator, plan, what=f"topic {name!r}")
    return await describe_topic(coordinator, name)


async def change_settings(
    coordinator: Coordinator, name: str, settings: TopicSettings
) -> TopicView:
    """Replace a topic's settings; the number of partitions must stay the same.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: The number of partitions differs, or a setting asks for what does not work
            yet.
    """

    async def plan(_: CoordinationError | None) -> Plan[None]:
        view = await describe_topic(coordinator, name)
        if settings.partitions != len(view.partitions):
            raise InvalidArgument(
                f"topic {name!r} has {len(view.partitions)} partitions, not {settings.partitions}; "
                "partitions are added with add_partitions"
            )
        if settings == view.settings:
            return Plan((), None)
        _check_supported(settings)
        topic = Topic(id=view.id, settings=settings)
        return Plan([Set(Topic.path(name), topic.encode(), view.version)], None)

    await settle(coordinator, plan, what=f"topic {name!r}")
    return await describe_topic(coordinator, name)


async def change_placement(
    coordinator: Coordinator,
    view: TopicView,
    placement: PartitionPlacement,
) -> TopicView:
    """Write the placement of one partition, if nobody changed it since ``view`` was read.

    Other partitions may have changed meanwhile. A lost reply is settled by reading.

    Raises:
        BadVersion: This partition was changed by somebody else; nothing was written.
        UnknownTopic: The topic is gone, or another one has its name now.
    """
    number, version = placement.partition, view.partition_versions[placement.partition]
    opened = _opened([placement])
    opened.subtract(_opened([view.partitions[number]]))
    data = Partition(spans=check_spans(placement).spans, state=placement.state).encode()

    async def plan(_: CoordinationError | None) -> Plan[TopicView]:
        topic, operations = await _changes_of(coordinator, view.name, number, data, version, opened)
        if topic.id != view.id:
            raise UnknownTopic(f"topic {view.name!r} was deleted and made again meanwhile")
        if operations is None:
            path = Partition.path(view.name, number)
            node = await coordinator.get(path)
            if node.data != data:
                raise BadVersion(path)
            written = node.stat.version  # our own write, whose reply was lost
            return Plan((), view.with_partitions({number: (placement, written)}))
        return Plan(operations, view.with_partitions({number: (placement, version + 1)}))

    return await settle(coordinator, plan, what=f"topic {view.name!r}")


async def touch_partition(coordinator: Coordinator, name: str, number: int, version: int) -> None:
    """Raise the version of a partition's node, and change nothing, if it is still ``version``.

    Raises:
        BadVersion: The partition was changed by somebody else; nothing was written.
        UnknownTopic, NoNode: The topic is gone.
        ConnectionLost: Whether it was raised is unknown.
    """
    path = Partition.path(name, number)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        node = await coordinator.get(path)
        _topic, operations = await _changes_of(coordinator, name, number, node.data, version, {})
        if operations is None or node.stat.version != version:
            raise BadVersion(path)
        return Plan(operations, None)

    # BadVersion is of another partition's change; of this one's: seen by the plan. A lost answer
    # stays unknown, since nothing tells our own touch from another change.
    await settle(coordinator, plan, what=f"topic {name!r}", again=(BadVersion,))


# Helpers --------------------------------------------------------------------------------------
def _check_supported(settings: TopicSettings) -> None:
    """See that nobody relies on a setting that is stored and not acted on.

    In here and not in ``TopicSettings``: one that was stored before must stay readable.

    Raises:
        InvalidArgument: Somebody would; says what to do instead.
    """
    if settings.replication != "sync":
        raise InvalidArgument(
            f"replication = {settings.replication!r} does not work yet: a broker group has one "
            "node, and nothing is copied; leave it at 'sync'"
        )


async def _changes_of(
    coordinator: Coordinator,
    name: str,
    number: int,
    data: bytes,
    version: int,
    opened: Mapping[str, int],
) -> tuple[Topic, list[Operation] | None]:
    """Return the topic, and what writes a partition's node; None if it has another version.

    ``opened`` says by how much the number of partitions open on each group changes.

    Raises:
        UnknownTopic: There is no such topic, or it is being deleted.
    """
    topic_path, path = Topic.path(name), Partition.path(name, number)
    list_path = PlacementChanges.path(name)
    try:
        topic_node = await coordinator.get(topic_path)
        topic = Topic.decode(topic_path, topic_node.data)
        if topic.phase != READY:
            raise UnknownTopic(f"topic {name!r} is not ready: it is {topic.phase}")
        stat = await coordinator.exists(path)
        listed = await coordinator.get(list_path)
    except NoNode as error:
        raise UnknownTopic(f"there is no topic {name!r} any more") from error
    if stat is None or stat.version != version:
        return topic, None
    changes = PlacementChanges.of_node(list_path, listed.data, listed.stat.version)
    return topic, [
        Check(topic_path, topic_node.stat.version),
        Set(path, data, version),
        Set(list_path, changes.with_change(number, opened).encode(), listed.stat.version),
        *await count_operations(coordinator, opened),
    ]


def _opened(placements: Sequence[PartitionPlacement]) -> Counter[str]:
    """Count the partitions by the group they are open on, "" for none."""
    return Counter(each.writer_group or "" for each in placements)


def _creations(name: str, places: Sequence[str], start: int, end: int) -> list[Create]:
    """Return the creations of partitions ``[start, end)``."""
    return [
        Create(Partition.path(name, n), Partition(spans=(Span(places[n], 0),)).encode())
        for n in range(start, end)
    ]


async def _create_first(
    coordinator: Coordinator, name: str, topic: Topic, rng: random.Random
) -> Sequence[str]:
    """Make the topic's nodes and those of its first partitions; counted if these are all.

    Returns the group of every partition.

    Raises:
        TopicExists: There is one of this name.
    """
    if await coordinator.exists(TOPICS) is None:
        with contextlib.suppress(NodeExists):
            await coordinator.create(TOPICS)
    settings, places = topic.settings, list[str]()
    tries = itertools.count()

    async def plan(failed: CoordinationError | None) -> Plan[Sequence[str]]:
        nonlocal places
        if isinstance(failed, ConnectionLost | NodeExists):
            found = await _topic_id(coordinator, name)
            if found == topic.id:
                return Plan((), places)  # our own write, whose answer was lost
            if found is not None:
                raise await _exists_already(coordinator, name)
        # Others place partitions, too, on the same groups.
        await asyncio.sleep(rng.uniform(0, _PAUSE_S * next(tries)))
        views, counts = await counted_groups(coordinator)
        places = allocate(settings.partitions, views, pool=settings.pool)
        opened = Counter(places)
        operations: list[Operation] = [
            Create(Topic.path(name), topic.encode()),
            Create(PlacementChanges.path(name), PlacementChanges(open=opened).encode()),
            *_creations(name, places, 0, min(len(places), STEP_PARTITIONS)),
        ]
        if topic.phase == READY:
            operations += counted(counts, opened)
        return Plan(operations, places)

    return await settle(coordinator, plan, what=f"topic {name!r}")


async def _create_rest(
    coordinator: Coordinator, name: str, topic: Topic, places: Sequence[str]
) -> None:
    """Make the partitions behind the first step, then show the topic, and count its partitions."""
    for start in range(STEP_PARTITIONS, len(places), STEP_PARTITIONS):
        step = _creations(name, places, start, min(len(places), start + STEP_PARTITIONS))
        try:
            await coordinator.multi(step)
        except ConnectionLost:
            if await coordinator.exists(step[-1].path) is None:
                raise
    path, ready = Topic.path(name), replace(topic, phase=READY)

    async def show(_: CoordinationError | None) -> Plan[None]:
        node = await coordinator.get(path)
        found = Topic.decode(path, node.data)
        if found == ready:
            return Plan((), None)  # our own write, whose answer was lost
        if found != topic:
            raise BadVersion(path)  # deleted meanwhile
        counts = await count_operations(coordinator, Counter(places))
        return Plan([Set(path, ready.encode(), node.stat.version), *counts], None)

    await settle(coordinator, show, what=f"topic {name!r}")


async def _additions(coordinator: Coordinator, view: TopicView, total: int) -> list[Operation]:
    """Return what adds partitions to a topic, if it and the counts are as they were read."""
    settings, before = replace(view.settings, partitions=total), len(view.partitions)
    places = [each.writer_group or "" for each in view.partitions]
    views, counts = await counted_groups(coordinator)
    places += allocate(total - before, views, pool=settings.pool)
    topic, opened = Topic(id=view.id, settings=settings), Counter(places[before:])
    path = PlacementChanges.path(view.name)
    operations: list[Operation] = [
        Set(Topic.path(view.name), topic.encode(), view.version),
        *_creations(view.name, places, before, total),
        *counted(counts, opened),
    ]
    with contextlib.suppress(NoNode):  # a damaged tree
        listed = await coordinator.get(path)
        changes = PlacementChanges.of_node(path, listed.data, listed.stat.version)
        data = changes.with_change(total - 1, opened).encode()
        operations.append(Set(path, data, listed.stat.version))
    return operations


async def _topic_id(coordinator: Coordinator, name: str) -> str | None:
    try:
        node = await coordinator.get(Topic.path(name))
    except NoNode:
        return None
    return Topic.decode(Topic.path(name), node.data).id


async def _exists_already(coordinator: Coordinator, name: str) -> TopicExists:
    try:
        view = await read_topic(coordinator, name, any_phase=True)
    except UnknownTopic:
        return TopicExists(f"topic {name!r} existed a moment ago; try again")
    if view.phase == READY:
        return TopicExists(f"topic {name!r} exists already, with {len(view.partitions)} partitions")
    return TopicExists(
        f"topic {name!r} was left {view.phase} half-way; finish with: `vq topic delete {name}`"
    )


async def _delete_tree(coordinator: Coordinator, path: str) -> None:
    """Delete a node and everything below it; what is gone already is fine."""
    names = await children_or_none(coordinator, path)
    for start in range(0, len(names), STEP_PARTITIONS):
        step = names[start : start + STEP_PARTITIONS]
        try:
            await coordinator.multi([Delete(f"{path}/{name}") for name in step])
        except (NoNode, NotEmpty, ConnectionLost):
            await gather_all(_delete_tree(coordinator, f"{path}/{name}") for name in step)
    try:
        await update(coordinator, path, lambda node: [Delete(path)] if node else [], what=path)
    except NotEmpty:  # somebody made one below it meanwhile
        await _delete_tree(coordinator, path)


assert STEP_PARTITIONS + COUNTS_PER_MULTI_MAX + 3 <= MULTI_OPERATIONS_MAX, (
    "one step and its counts must fit into one multi"
)
