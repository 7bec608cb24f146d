"""Making, describing, changing and deleting topics: what an operator does, as coroutines.

Every change of a partition writes the topic's list of changed partitions in the same ``multi``, so
a watch on that list and one on the topic's node tell of everything, and whoever hears of a change
reads what changed. Two changes of one partition at once cannot both succeed unseen. A topic too
large for one ``multi`` is made and deleted in steps, during which its phase hides it.
"""

import contextlib
import random
from collections.abc import Sequence
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
from vq.coordination.reading import TopicView, children_or_none, gather_all, read_topic
from vq.coordination.registry import groups
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
    "touch_partition",
    "was_deleted",
]

#: Partitions made or deleted by one ``multi``.
STEP_PARTITIONS: Final = 500
#: Compare-and-set tries before we say that somebody else keeps changing the topic.
CHANGE_TRIES_MAX: Final = 20


class TopicExists(CoordinationError):
    """A topic of this name is there already; nothing was changed."""

    retriable = False
    hint = "look at it with `vq topic describe NAME`, or choose another name"


async def list_topics(coordinator: Coordinator) -> list[str]:
    """Return the sorted names of all topics."""
    return await children_or_none(coordinator, TOPICS)


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
        TopicExists: There is one of this name.
        CoordinationError: No broker group can take partitions, or ZooKeeper did not answer.
    """
    check_name("topic", name)
    settings = settings or TopicSettings()
    if await coordinator.exists(Topic.path(name)) is not None:
        raise await _exists_already(coordinator, name)
    places = allocate(settings.partitions, await groups(coordinator), pool=settings.pool)
    topic_id = f"{(rng or random.SystemRandom()).getrandbits(64):016x}"
    with contextlib.suppress(NodeExists):
        await coordinator.create(TOPICS)
    whole = settings.partitions <= STEP_PARTITIONS
    topic = Topic(id=topic_id, settings=settings, phase=READY if whole else CREATING)
    first: list[Operation] = [
        Create(Topic.path(name), topic.encode()),
        Create(PlacementChanges.path(name), PlacementChanges().encode()),
        *_creations(name, places, 0, min(settings.partitions, STEP_PARTITIONS)),
    ]
    try:
        await coordinator.multi(first)
    except NodeExists:
        raise await _exists_already(coordinator, name) from None
    except ConnectionLost:
        if await _topic_id(coordinator, name) != topic_id:
            raise
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
    for _ in range(CHANGE_TRIES_MAX):
        view = await read_topic(coordinator, name, any_phase=True)
        topic = Topic(id=view.id, settings=view.settings, phase=DELETING)
        try:
            remember = await _remember_deletion(coordinator, view)
            await coordinator.multi([Set(path, topic.encode(), view.version), *remember])
            break
        except (BadVersion, NoNode, NodeExists, ConnectionLost):
            continue
    else:
        raise _too_busy(name)
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
    total = len(view.partitions) + count
    settings = replace(view.settings, partitions=total)
    places = [p.writer_group or "" for p in view.partitions]
    places += allocate(count, await groups(coordinator), pool=settings.pool)
    topic = Topic(id=view.id, settings=settings)
    operations: list[Operation] = [
        Set(Topic.path(name), topic.encode(), view.version),
        *_creations(name, places, len(view.partitions), total),
    ]
    try:
        await coordinator.multi(operations)
    except ConnectionLost:
        if (await describe_topic(coordinator, name)).settings.partitions < total:
            raise
    return await describe_topic(coordinator, name)


async def change_settings(
    coordinator: Coordinator, name: str, settings: TopicSettings
) -> TopicView:
    """Replace a topic's settings; the number of partitions must stay the same.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: The number of partitions differs.
    """
    for _ in range(CHANGE_TRIES_MAX):
        view = await describe_topic(coordinator, name)
        if settings.partitions != len(view.partitions):
            raise InvalidArgument(
                f"topic {name!r} has {len(view.partitions)} partitions, not {settings.partitions}; "
                "partitions are added with add_partitions"
            )
        if settings == view.settings:
            return view
        topic = Topic(id=view.id, settings=settings)
        with contextlib.suppress(BadVersion, ConnectionLost):
            await coordinator.set(Topic.path(name), topic.encode(), version=view.version)
    raise _too_busy(name)


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
    data = Partition(spans=check_spans(placement).spans, state=placement.state).encode()
    for _ in range(CHANGE_TRIES_MAX):
        topic, operations = await _changes_of(coordinator, view.name, number, data, version)
        if topic.id != view.id:
            raise UnknownTopic(f"topic {view.name!r} was deleted and made again meanwhile")
        if operations is None:
            path = Partition.path(view.name, number)
            node = await coordinator.get(path)
            if node.data != data:
                raise BadVersion(path)
            written = node.stat.version  # our own write, whose reply was lost
            return view.with_partitions({number: (placement, written)})
        with contextlib.suppress(BadVersion, NoNode, ConnectionLost):
            await coordinator.multi(operations)
            return view.with_partitions({number: (placement, version + 1)})
    raise _too_busy(view.name)


async def touch_partition(coordinator: Coordinator, name: str, number: int, version: int) -> None:
    """Raise the version of a partition's node, and change nothing, if it is still ``version``.

    Raises:
        BadVersion: The partition was changed by somebody else; nothing was written.
        UnknownTopic, NoNode: The topic is gone.
        ConnectionLost: Whether it was raised is unknown.
    """
    path = Partition.path(name, number)
    for _ in range(CHANGE_TRIES_MAX):
        node = await coordinator.get(path)
        _, operations = await _changes_of(coordinator, name, number, node.data, version)
        if operations is None or node.stat.version != version:
            raise BadVersion(path)
        with contextlib.suppress(BadVersion):  # of another partition; of this one: seen above
            await coordinator.multi(operations)
            return
    raise _too_busy(name)


# Helpers --------------------------------------------------------------------------------------
async def _changes_of(
    coordinator: Coordinator, name: str, number: int, data: bytes, version: int
) -> tuple[Topic, list[Operation] | None]:
    """Return the topic, and what writes a partition's node; None if it has another version.

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
        Set(list_path, changes.with_change(number).encode(), listed.stat.version),
    ]


def _creations(name: str, places: Sequence[str], start: int, end: int) -> list[Create]:
    """Return the creations of partitions ``[start, end)``."""
    return [
        Create(Partition.path(name, n), Partition(spans=(Span(places[n], 0),)).encode())
        for n in range(start, end)
    ]


async def _create_rest(
    coordinator: Coordinator, name: str, topic: Topic, places: Sequence[str]
) -> None:
    """Make the partitions behind the first step, then show the topic."""
    for start in range(STEP_PARTITIONS, len(places), STEP_PARTITIONS):
        step = _creations(name, places, start, min(len(places), start + STEP_PARTITIONS))
        try:
            await coordinator.multi(step)
        except ConnectionLost:
            if await coordinator.exists(step[-1].path) is None:
                raise
    ready = replace(topic, phase=READY)
    try:
        await coordinator.set(Topic.path(name), ready.encode(), version=0)
    except ConnectionLost:
        if (await read_topic(coordinator, name)).id != topic.id:
            raise


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
    for _ in range(CHANGE_TRIES_MAX):
        try:
            await coordinator.delete(path)
            return
        except NoNode:
            return
        except ConnectionLost:
            continue
        except NotEmpty:
            await _delete_tree(coordinator, path)
            return


def _too_busy(name: str) -> CoordinationError:
    return CoordinationError(f"topic {name!r} changed {CHANGE_TRIES_MAX} times meanwhile; retry")


assert STEP_PARTITIONS + 2 <= MULTI_OPERATIONS_MAX, "one step must fit into one multi"
