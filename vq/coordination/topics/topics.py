"""Creating, describing, changing and deleting topics, for operators, as coroutines.

Every change of a partition also writes the topic's list of changed partitions, in the same
``multi``. So two watches, on that list and on the topic's node, report every change, and a reader
reads only the changed partitions. Of two concurrent changes of one partition, one fails. A topic
that is too large for one ``multi`` is created and deleted in steps; its phase hides it from clients
meanwhile.

The same ``multi`` changes the number of open partitions of each broker group (``open_counts``), so
no function here reads other topics.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from vq.bounds import check_between
from vq.coordination.brokers.group_views import counted_groups
from vq.coordination.brokers.open_counts import (
    COUNTS_PER_MULTI_MAX,
    count_operations,
    counted,
)
from vq.coordination.topics.allocation import allocate
from vq.coordination.topics.placement import check_spans
from vq.coordination.topics.remains import read_remains
from vq.coordination.topics.removal import remove_nodes
from vq.coordination.tree.coordinator import (
    MULTI_OPERATIONS_MAX,
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    NodeExists,
    NoNode,
    Operation,
    Set,
)
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.reading import (
    TopicView,
    children_or_none,
    read_topic,
)
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.topics import (
    CREATING,
    IN_GRACE,
    READY,
    DeletedTopics,
    DeletionFence,
    TopicNode,
)
from vq.errors import CoordinationError, InvalidArgument, UnknownPartition, UnknownTopic
from vq.limits import AUTO_CREATE_PARTITIONS_MAX
from vq.model import PartitionPlacement, Span, TopicOrigin, TopicSettings, check_name
from vq.reserved import check_may_grow

#: Returns a check that must hold when a topic is created.
OnlyIf = Callable[[], Awaitable[Check]]
#: Takes the settings of a topic and returns those to write instead.
AlterSettings = Callable[[TopicSettings], TopicSettings]
#: Partitions created or deleted by one ``multi``.
STEP_PARTITIONS: Final = 500
#: Longest pause before the second try to create a topic, after another client placed partitions on
#: the same groups; it grows by this with each try.
_PAUSE_S: Final = 0.005


class TopicExists(CoordinationError):
    """A topic of this name exists already; nothing was changed."""

    retriable = False
    hint = "look at it with `vq topic describe NAME`, or choose another name"


async def list_topics(coordinator: Coordinator) -> list[str]:
    """Return the sorted names of all topics."""
    return await children_or_none(coordinator, TOPICS)


async def describe_topic(coordinator: Coordinator, name: str) -> TopicView:
    """Return a topic with the placement of every partition.

    Raises:
        UnknownTopic: There is no such topic.
    """
    return await read_topic(coordinator, check_name("topic", name))


def check_partition(view: TopicView, number: int) -> None:
    """Return if a topic has a partition.

    Raises:
        UnknownPartition: It has not.
    """
    if not 0 <= number < len(view.partitions):
        raise UnknownPartition(
            f"topic {view.name!r} has partitions 0 to {len(view.partitions) - 1}, not {number}"
        )


async def create_topic(
    coordinator: Coordinator,
    name: str,
    settings: TopicSettings | None = None,
    *,
    rng: random.Random | None = None,
    only_if: OnlyIf | None = None,
    origin: TopicOrigin | None = None,
    group: str | None = None,
) -> TopicView:
    """Create a topic and place its partitions evenly on the live broker groups.

    ``rng`` draws the topic's id. After a lost reply the function reads the tree; if it returns, the
    topic exists. ``only_if`` reads and returns a check; the topic is created only if it holds in
    the same transaction. Its errors are passed on. ``origin`` is stored with the topic. ``group``:
    the only broker group that may get its partitions; None: every one.

    Raises:
        InvalidArgument: The name is not valid for a topic.
        TopicExists: There is a topic of this name.
        CoordinationError: No broker group can take partitions, or ZooKeeper did not answer.
    """
    check_name("topic", name)
    settings, rng = settings or TopicSettings(), rng or random.SystemRandom()
    if await coordinator.exists(TopicNode.path(name)) is not None:
        raise await _exists_already(coordinator, name)
    whole = settings.partitions <= STEP_PARTITIONS
    phase = READY if whole else CREATING
    topic = TopicNode(
        id=f"{rng.getrandbits(64):016x}", settings=settings, phase=phase, origin=origin
    )
    places = await _create_first(coordinator, name, topic, rng, only_if, group)
    if not whole:
        await create_rest(coordinator, name, topic, places)
    return await read_topic(coordinator, name)


async def delete_topic(
    coordinator: Coordinator, name: str, *, only: Callable[[TopicView], bool] | None = None
) -> bool:
    """Delete a topic for good, with its placement and every group's progress on it.

    The topic is first added to the list of deleted topics. Brokers delete its data when the topic
    is gone and is in that list. The function may be repeated after any failure, and called by
    several clients at once.

    A topic that cannot be read is deleted, too. If not even its id can be read, it is not added to
    that list, and brokers keep its data.

    The groups' generations are raised and not deleted. If they began at 0 again, a member that was
    suspended could commit the old topic's progress for a new topic of the same name.

    Args:
        coordinator: A started coordinator.
        name: The topic.
        only: Delete it only if this says so of the topic as it is then; one that cannot be read
            is not deleted then.

    Returns:
        Whether it was deleted; False only with ``only``.

    Raises:
        UnknownTopic: There is no such topic.
    """
    path = TopicNode.path(check_name("topic", name))
    fence = ""

    async def plan(_: CoordinationError | None) -> Plan[bool]:
        nonlocal fence
        found = await read_remains(coordinator, name)
        if only is not None and (found.view is None or not only(found.view)):
            return Plan((), False)
        fence = DeletionFence.path(name, found.topic.id)
        is_fenced = await coordinator.exists(fence) is not None
        operations: list[Operation] = [
            Set(path, found.topic.encode(), found.version),
            *await _remember_deletion(coordinator, found.topic.id, name),
        ]
        if not is_fenced:
            operations.append(Create(fence, DeletionFence().encode()))
        if found.view is not None and found.view.phase == READY:
            operations += await counts_of(coordinator, found.view, -1)
        return Plan(operations, True)

    if not await apply_plan(coordinator, plan, what=f"topic {name!r}"):
        return False
    await remove_nodes(coordinator, name, fence)
    return True


async def _remember_deletion(coordinator: Coordinator, topic_id: str, name: str) -> list[Operation]:
    """Return the operations that add a topic to the list of deleted ones; none if it is in it."""
    if not topic_id:
        return []
    path = DeletedTopics.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return [Create(path, DeletedTopics().with_topic(topic_id, name).encode())]
    known = DeletedTopics.decode(path, node.data)
    if topic_id in known.topics:
        return []
    return [Set(path, known.with_topic(topic_id, name).encode(), node.stat.version)]


async def counts_of(coordinator: Coordinator, view: TopicView, sign: int) -> list[Operation]:
    """Return the operations that add a topic's partitions to their groups' counts, or subtract.

    They fail if a partition was moved since ``view`` was read. ``sign`` is 1 or -1.
    """
    opened = _opened(view.partitions)
    counts = await count_operations(coordinator, {name: sign * opened[name] for name in opened})
    unmoved = [Check(PlacementChanges.path(view.name), view.changes)] if view.changes >= 0 else []
    return [*unmoved, *counts]


async def was_deleted(coordinator: Coordinator, topic_id: str) -> bool:
    """Return whether the topic with this id is in the list of deleted topics."""
    return bool(await deleted_among(coordinator, {topic_id}))


async def deleted_among(coordinator: Coordinator, topic_ids: AbstractSet[str]) -> AbstractSet[str]:
    """Return those of these ids that are in the list of deleted topics."""
    path = DeletedTopics.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return set()
    return topic_ids & DeletedTopics.decode(path, node.data).topics.keys()


async def add_partitions(coordinator: Coordinator, name: str, count: int) -> TopicView:
    """Add ``count`` partitions to a topic.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidArgument: The topic would have too many, or ``count`` is more than one step allows,
            or it is the journal of transactions.
    """
    check_may_grow(name)
    check_between("count", count, 1, STEP_PARTITIONS)
    view = await describe_topic(coordinator, name)
    total, path = len(view.partitions) + count, TopicNode.path(name)
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

    await apply_plan(coordinator, plan, what=f"topic {name!r}")
    return await describe_topic(coordinator, name)


async def change_settings(
    coordinator: Coordinator, name: str, settings: TopicSettings
) -> TopicView:
    """Replace a topic's settings; the number of partitions must stay the same.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidArgument: The number of partitions differs.
    """
    return await alter_settings(coordinator, name, lambda _: settings)


async def alter_settings(coordinator: Coordinator, name: str, change: AlterSettings) -> TopicView:
    """Change a topic's settings by compare-and-set, so that no other change is undone.

    ``change`` takes the present settings and returns the new ones; it may be called again.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidArgument: The number of partitions differs; or ``change`` raised it.
    """

    async def plan(_: CoordinationError | None) -> Plan[None]:
        view = await describe_topic(coordinator, name)
        settings = change(view.settings)
        if settings.partitions != len(view.partitions):
            raise InvalidArgument(
                f"topic {name!r} has {len(view.partitions)} partitions, not {settings.partitions}; "
                "use add_partitions to add some"
            )
        if settings == view.settings:
            return Plan((), None)
        topic = TopicNode(id=view.id, settings=settings, origin=view.origin)
        return Plan([Set(TopicNode.path(name), topic.encode(), view.version)], None)

    await apply_plan(coordinator, plan, what=f"topic {name!r}")
    return await describe_topic(coordinator, name)


async def change_placement(
    coordinator: Coordinator,
    view: TopicView,
    placement: PartitionPlacement,
    *,
    epochs: Mapping[str, int] | None = None,
    only_if: Sequence[Check] = (),
) -> TopicView:
    """Write the placement of one partition, if it has not changed since ``view`` was read.

    Other partitions may have changed. After a lost reply the function reads the tree.

    Args:
        coordinator: A started coordinator.
        view: The topic as it was read.
        placement: What to write.
        epochs: Broker groups that must still be in these epochs: what their masters answered
            holds for no other master.
        only_if: What must hold, too.

    Raises:
        BadVersion: Another writer changed this partition, a group has another master, or one of
            ``only_if`` does not hold; nothing was written.
        UnknownTopic: The topic was deleted, or another topic has its name now.
    """
    number, version = placement.partition, view.partition_versions[placement.partition]
    opened = _opened([placement])
    opened.subtract(_opened([view.partitions[number]]))
    data = Partition(spans=check_spans(placement).spans, state=placement.state).encode()

    async def plan(_: CoordinationError | None) -> Plan[TopicView]:
        topic, operations = await _changes_of(coordinator, view.name, number, data, version, opened)
        if topic.id != view.id:
            raise UnknownTopic(f"topic {view.name!r} was deleted and created again meanwhile")
        if operations is None:
            path = Partition.path(view.name, number)
            node = await coordinator.get(path)
            if node.data != data:
                raise BadVersion(path)
            written = node.stat.version  # our own earlier write, whose reply was lost
            return Plan((), view.with_partitions({number: (placement, written)}))
        checks = [await _check_epoch(coordinator, *each) for each in (epochs or {}).items()]
        for check in only_if:
            stat = await coordinator.exists(check.path)
            if stat is None or stat.version != check.version:
                raise BadVersion(check.path)
        after = view.with_partitions({number: (placement, version + 1)})
        return Plan([*only_if, *checks, *operations], after)

    return await apply_plan(coordinator, plan, what=f"topic {view.name!r}")


async def _check_epoch(coordinator: Coordinator, group: str, epoch: int) -> Check:
    """Return an operation that fails unless a broker group is still in an epoch.

    Raises:
        BadVersion: It is not.
    """
    path = GroupState.path(group)
    node = await coordinator.get(path)
    if GroupState.decode(path, node.data).epoch != epoch:
        raise BadVersion(path)
    return Check(path, node.stat.version)


async def touch_partition(coordinator: Coordinator, name: str, number: int, version: int) -> None:
    """Raise the version of a partition's node without a change, if it is still ``version``.

    Raises:
        BadVersion: Another writer changed the partition; nothing was written.
        UnknownTopic, NoNode: The topic was deleted.
        ConnectionLost: The version may or may not have been raised.
    """
    path = Partition.path(name, number)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        node = await coordinator.get(path)
        _topic, operations = await _changes_of(coordinator, name, number, node.data, version, {})
        if operations is None or node.stat.version != version:
            raise BadVersion(path)
        return Plan(operations, None)

    # Plan again after BadVersion, which may come from a change of another partition; the plan sees
    # a change of this one. Do not plan again after a lost answer: the tree does not show whether
    # we or another writer raised the version.
    await apply_plan(coordinator, plan, what=f"topic {name!r}", again=(BadVersion,))


# Helpers --------------------------------------------------------------------------------------
async def _changes_of(
    coordinator: Coordinator,
    name: str,
    number: int,
    data: bytes,
    version: int,
    opened: Mapping[str, int],
) -> tuple[TopicNode, list[Operation] | None]:
    """Return the topic and the operations that write a partition's node.

    The operations are None if the node has another version. ``opened`` has the change of the number
    of open partitions of each group.

    Raises:
        UnknownTopic: There is no such topic, or it is being deleted.
    """
    topic_path, path = TopicNode.path(name), Partition.path(name, number)
    list_path = PlacementChanges.path(name)
    try:
        topic_node = await coordinator.get(topic_path)
        topic = TopicNode.decode(topic_path, topic_node.data)
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
    """Count the partitions by the group on which they are open, "" for none."""
    return Counter(each.writer_group or "" for each in placements)


def _creations(name: str, places: Sequence[str], start: int, end: int) -> list[Create]:
    """Return the creations of partitions ``[start, end)``."""
    return [
        Create(Partition.path(name, n), Partition(spans=(Span(places[n], 0),)).encode())
        for n in range(start, end)
    ]


async def _create_first(
    coordinator: Coordinator,
    name: str,
    topic: TopicNode,
    rng: random.Random,
    only_if: OnlyIf | None,
    group: str | None,
) -> Sequence[str]:
    """Create the topic's nodes and its first partitions, and count them if these are all.

    Returns the group of every partition.

    Raises:
        TopicExists: There is a topic of this name.
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
        # Spread the tries of clients that place partitions on the same groups.
        await asyncio.sleep(rng.uniform(0, _PAUSE_S * next(tries)))
        views, counts = await counted_groups(coordinator)
        if group is not None:
            views = [each for each in views if each.group == group]
        places = allocate(
            settings.partitions, views, pool=settings.pool, min_insync=settings.min_insync
        )
        opened = Counter(places)
        operations: list[Operation] = [
            Create(TopicNode.path(name), topic.encode()),
            Create(PlacementChanges.path(name), PlacementChanges(open=opened).encode()),
            *_creations(name, places, 0, min(len(places), STEP_PARTITIONS)),
        ]
        if topic.phase == READY:
            operations += counted(counts, opened)
        if only_if is not None:
            operations.append(await only_if())
        return Plan(operations, places)

    return await apply_plan(coordinator, plan, what=f"topic {name!r}")


async def create_rest(
    coordinator: Coordinator, name: str, topic: TopicNode, places: Sequence[str]
) -> None:
    """Create the other partitions, then make the topic ready and count its partitions."""
    for start in range(STEP_PARTITIONS, len(places), STEP_PARTITIONS):
        step = _creations(name, places, start, min(len(places), start + STEP_PARTITIONS))
        try:
            await coordinator.multi(step)
        except ConnectionLost:
            if await coordinator.exists(step[-1].path) is None:
                raise
    path, ready = TopicNode.path(name), replace(topic, phase=READY)

    async def show(_: CoordinationError | None) -> Plan[None]:
        node = await coordinator.get(path)
        found = TopicNode.decode(path, node.data)
        if found == ready:
            return Plan((), None)  # our own write, whose answer was lost
        if found != topic:
            raise BadVersion(path)  # deleted meanwhile
        counts = await count_operations(coordinator, Counter(places))
        return Plan([Set(path, ready.encode(), node.stat.version), *counts], None)

    await apply_plan(coordinator, show, what=f"topic {name!r}")


async def _additions(coordinator: Coordinator, view: TopicView, total: int) -> list[Operation]:
    """Return the operations that add partitions to a topic as it was read."""
    settings, before = replace(view.settings, partitions=total), len(view.partitions)
    places = [each.writer_group or "" for each in view.partitions]
    views, counts = await counted_groups(coordinator)
    places += allocate(total - before, views, pool=settings.pool, min_insync=settings.min_insync)
    topic = TopicNode(id=view.id, settings=settings, origin=view.origin)
    opened = Counter(places[before:])
    path = PlacementChanges.path(view.name)
    operations: list[Operation] = [
        Set(TopicNode.path(view.name), topic.encode(), view.version),
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
        node = await coordinator.get(TopicNode.path(name))
    except NoNode:
        return None
    return TopicNode.decode(TopicNode.path(name), node.data).id


async def _exists_already(coordinator: Coordinator, name: str) -> TopicExists:
    try:
        view = await read_topic(coordinator, name, any_phase=True)
    except UnknownTopic:
        return TopicExists(f"topic {name!r} existed a moment ago; try again")
    if view.phase == READY:
        return TopicExists(f"topic {name!r} exists already, with {len(view.partitions)} partitions")
    if view.phase == IN_GRACE:
        return TopicExists(
            f"topic {name!r} was deleted and can be brought back, so its name is not free",
            hint=f"`vq topic undelete {name}` brings it back; `vq topic delete {name} --now` "
            "removes it for good",
        )
    return TopicExists(
        f"topic {name!r} was left {view.phase} half-way; finish with: `vq topic delete {name}`"
    )


assert AUTO_CREATE_PARTITIONS_MAX <= STEP_PARTITIONS, "producers create topics in one step"
assert STEP_PARTITIONS + COUNTS_PER_MULTI_MAX + 4 <= MULTI_OPERATIONS_MAX, (
    "one step and its counts must fit into one multi"
)
