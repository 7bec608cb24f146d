"""Topics that are deleted and can still be brought back, and who says when that is over.

A deleted topic stays in the tree, in another phase (``IN_GRACE``), with its placements and
every group's progress. Clients do not see it. Brokers go on copying its logs, so that a node which
comes into sync meanwhile has them, too; they serve nothing of it. Deleting and undeleting change
one value each, so there is nothing half-way, and its name is not free before it is removed.

Nobody compares clocks to tell when the time is up: one broker's that is ahead would end it early.
Brokers count time together in one node (``GraceClock``)::

    broker b1   reads version 7 at its second 100, and finds it again at its second 160
                → adds 60 s under version 7                         (version 8: 60 s more)
    broker b2   read version 7, too, and finds version 8 instead
                → adds nothing, and begins to wait with version 8

A step lasts from after a read of a version to before its change. So steps do not overlap, and the
count never rises faster than time passes, however many brokers count and whatever their wall
clocks say. While no broker runs, it stands still.
"""

from dataclasses import dataclass
from typing import Final

from vq.coordination.topics import topics
from vq.coordination.topics.summaries import read_summaries
from vq.coordination.tree.coordinator import Check, Coordinator, Create, NoNode, Operation, Set
from vq.coordination.tree.reading import CountedTopic, TopicView, read_topic
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.topics import DELETING, IN_GRACE, READY, GraceClock, TopicNode
from vq.errors import CoordinationError, UnknownTopic
from vq.model import TopicDeletion, TopicOrigin, check_name

#: A step of the count is no longer, whatever a clock says.
STEP_MS_MAX: Final = 600_000


@dataclass(frozen=True, slots=True)
class Counted:
    """The count as it was read.

    Attributes:
        ms: The count.
        czxid, version: Of its node; a node that is missing has neither.
    """

    ms: int = 0
    czxid: int = 0
    version: int = -1


async def read_count(coordinator: Coordinator) -> Counted:
    """Return the count; 0 if there is no node yet.

    Raises:
        Unreadable: The node has something else.
    """
    path = GraceClock.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return Counted()
    value = GraceClock.decode(path, node.data)
    return Counted(value.counted_ms, node.stat.czxid, node.stat.version)


class GraceCounter:
    """One broker's part in counting: what it may add. It decides; the caller reads and writes."""

    def __init__(self) -> None:
        self._seen: Counted | None = None
        self._since_s = 0.0

    def step_ms(self, found: Counted, *, asked_s: float, answered_s: float) -> int:
        """Return what may be added to the count under the version that was found; 0: nothing yet.

        Args:
            found: The count as it was read.
            asked_s: When it was asked for, by a monotonic clock.
            answered_s: When the answer was there.
        """
        if self._seen != found or found.version < 0:
            self._seen, self._since_s = found, answered_s
            return 0
        return min(STEP_MS_MAX, max(0, int((asked_s - self._since_s) * 1000)))

    def added(self, after: Counted, *, answered_s: float) -> None:
        """Note that this broker has written ``after``."""
        self._seen, self._since_s = after, answered_s

    def forget(self) -> None:
        """Begin anew: the outcome of a write is not known, or there was nothing to count for."""
        self._seen = None


def left_ms(deletion: TopicDeletion, counted_ms: int) -> int:
    """Return for how long a topic can still be brought back; 0: the time is up."""
    return max(0, deletion.grace_ms - max(0, counted_ms - deletion.counted_ms))


# Deleting and undeleting ----------------------------------------------------------------------
async def retire_topic(
    coordinator: Coordinator, name: str, *, grace_ms: int, by: TopicOrigin
) -> TopicView:
    """Delete a topic for clients, and keep it so that it can be brought back.

    One that is deleted so already stays as it is.

    Args:
        coordinator: A started coordinator.
        name: The topic.
        grace_ms: How long it can be brought back.
        by: Who deletes it, and when, for people.

    Raises:
        UnknownTopic: There is none, or it is being created or removed.
        Unreadable: A znode of it cannot be read, so nobody could bring it back.
    """
    path = TopicNode.path(check_name("topic", name))

    async def plan(_: CoordinationError | None) -> Plan[TopicView]:
        view = await read_topic(coordinator, name, any_phase=True)
        if view.phase == IN_GRACE:
            return Plan((), view)
        if view.phase != READY:
            raise UnknownTopic(f"topic {name!r} is not ready: it is {view.phase}")
        count = await read_count(coordinator)
        deletion = TopicDeletion(
            client=by.client,
            host=by.host,
            time_ms=by.time_ms,
            grace_ms=grace_ms,
            counted_ms=count.ms,
        )
        topic = TopicNode(
            id=view.id,
            settings=view.settings,
            phase=IN_GRACE,
            origin=view.origin,
            deletion=deletion,
        )
        operations: list[Operation] = [
            Set(path, topic.encode(), view.version),
            _unmoved(count),
            *await topics.counts_of(coordinator, view, -1),
        ]
        return Plan(operations, view)

    await apply_plan(coordinator, plan, what=f"topic {name!r}")
    return await read_topic(coordinator, name, any_phase=True)


def _unmoved(count: Counted) -> Operation:
    """Return the operation that fails if the count is another one now."""
    path = GraceClock.path()
    if count.version < 0:
        return Create(path, GraceClock(counted_ms=0).encode())
    return Check(path, count.version)


async def undelete_topic(coordinator: Coordinator, name: str) -> tuple[TopicView, bool]:
    """Bring a deleted topic back, as it was; return it, and whether it was deleted.

    Raises:
        UnknownTopic: There is none, or it is being removed for good.
    """
    path = TopicNode.path(check_name("topic", name))
    changed = False

    async def plan(_: CoordinationError | None) -> Plan[None]:
        nonlocal changed
        view = await read_topic(coordinator, name, any_phase=True)
        if view.phase == READY:
            return Plan((), None)  # perhaps our own write, whose answer was lost
        if view.phase != IN_GRACE:
            raise _too_late(view)
        changed = True
        topic = TopicNode(id=view.id, settings=view.settings, origin=view.origin)
        counts = await topics.counts_of(coordinator, view, 1)
        return Plan([Set(path, topic.encode(), view.version), *counts], None)

    await apply_plan(coordinator, plan, what=f"topic {name!r}")
    return await read_topic(coordinator, name), changed


def _too_late(view: TopicView) -> UnknownTopic:
    if view.phase == DELETING:
        return UnknownTopic(
            f"topic {view.name!r} is being removed for good: it cannot be brought back",
            hint="it is too late; a backup of the cluster may have it",
        )
    return UnknownTopic(f"topic {view.name!r} is not ready: it is {view.phase}")


async def list_deleted(coordinator: Coordinator) -> list[CountedTopic]:
    """Return the topics that can be brought back, sorted by name; none that cannot be read."""
    found, _ = await read_summaries(coordinator)
    return [each for each in found if each.phase == IN_GRACE]


async def remove_when_due(coordinator: Coordinator, name: str, topic_id: str) -> bool:
    """Remove a deleted topic for good if its time is up; return whether that was done.

    With the ``topic_id`` "" any topic of that name is meant. A removal that was begun is finished.
    Whatever the caller knew before: the topic and the count are read again, and the removal is
    decided by one change of the topic's node, which an undelete changes, too.

    Raises:
        CoordinationError: It cannot be read, or ZooKeeper did not answer.
    """
    count = await read_count(coordinator)

    def is_due(view: TopicView) -> bool:
        if topic_id not in {view.id, ""}:
            return False
        due = view.deletion is not None and not left_ms(view.deletion, count.ms)
        return view.phase == DELETING or (view.phase == IN_GRACE and due)

    return await topics.delete_topic(coordinator, name, only=is_due)


async def describe_stored(coordinator: Coordinator, name: str) -> TopicView:
    """Return a topic of which brokers keep data: one that is there, or can be brought back.

    Raises:
        UnknownTopic: There is no such topic, or it is being created or removed.
    """
    view = await read_topic(coordinator, name, any_phase=True)
    if view.phase not in {READY, IN_GRACE}:
        raise UnknownTopic(f"topic {name!r} is not ready: it is {view.phase}")
    return view
