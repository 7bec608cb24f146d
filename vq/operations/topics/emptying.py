"""Draining a topic: closing it, and waiting until its consumer groups have handled all of it.

Loop-bound functions on a ``ClusterClient``.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.coordination.groups import groups
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import ConnectionLost, SessionExpired
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import InvalidState, UnknownTopic, VqError
from vq.model import check_timeout
from vq.operations.base.acts import About, audited
from vq.operations.groups.groups import GroupProgress, progress, read_nodes
from vq.operations.partitions.offsets import Inspector
from vq.operations.topics.closing import ClosedTopic, close_topic

#: How long ``drain_topic`` waits for consumer groups.
DRAIN_WAIT_S: Final = 600.0
_LOOKS: Final = Backoff(first_s=0.1, most_s=1.0)


@dataclass(frozen=True, slots=True)
class GroupDrain:
    """How far a consumer group is from the end of a topic.

    Attributes:
        group: Its name.
        members: How many live consumers of it read the topic; None: it cannot be read.
        behind: Its progress in each partition of which it has not committed the end.
        error: Why it cannot be read; "": it can.
        by_stream: A stream that is no member writes its progress.
    """

    group: str
    members: int | None
    behind: tuple[GroupProgress, ...] = ()
    error: str = ""
    by_stream: bool = False

    @property
    def done(self) -> bool:
        """Whether it has committed the end of every partition."""
        return not (self.behind or self.error)

    @property
    def lag_bytes(self) -> int | None:
        """How many bytes it has still to read; None: unknown."""
        sizes = [each.lag_bytes for each in self.behind]
        known = [each for each in sizes if each is not None]
        return None if self.error or len(known) < len(sizes) else sum(known)


@dataclass(frozen=True, slots=True)
class TopicDrain:
    """A topic that is closed, and how far its consumer groups are.

    Attributes:
        closed: What closing it found.
        groups: Those that read the topic, sorted by name.
    """

    closed: ClosedTopic
    groups: tuple[GroupDrain, ...]

    @property
    def behind(self) -> list[GroupDrain]:
        """The groups that have not committed the end of every partition."""
        return [each for each in self.groups if not each.done]

    @property
    def drained(self) -> bool:
        """Whether nothing is appended any more, and every group has handled all there is."""
        return self.closed.closed_ms is not None and not self.behind


DrainListener = Callable[[TopicDrain], object]


@audited(About.TOPIC)
async def drain_topic(
    cluster: ClusterClient,
    topic: str,
    *,
    timeout: float = DRAIN_WAIT_S,
    on_progress: DrainListener | None = None,
) -> TopicDrain:
    """Close a topic, and wait until every consumer group has committed the end of it.

    Returns after ``timeout`` seconds at the latest; ``drained`` of the result says whether it
    is so, and ``behind`` names the groups that are not so far. The topic stays closed.

    Args:
        topic: Its name.
        timeout: How long to wait, in seconds; 0: look once.
        on_progress: Called on the factory's thread or loop with what was found, when that changes.

    Raises:
        UnknownTopic: There is none of this name, or it was deleted meanwhile.
        InvalidState: Somebody opened it meanwhile.
        ChangeUnknown: ZooKeeper went away; it is closed or not. May be repeated.
    """
    clock = cluster.clock
    deadline = clock.monotonic() + check_timeout(timeout)
    closed = await close_topic(cluster, topic, timeout=timeout)
    told: list[GroupDrain] | None = None
    for look in itertools.count(1):
        found = TopicDrain(closed, await _look(cluster, closed))
        left_s = deadline - clock.monotonic()
        if found.drained or left_s <= 0:
            break
        ageless = [_without_ages(each) for each in found.groups]
        if on_progress is not None and ageless != told:
            on_progress(found)
            told = ageless
        await asyncio.sleep(min(_LOOKS.pause_s(look), left_s))
    return replace(
        found, groups=tuple([await _counted(cluster, closed, each) for each in found.groups])
    )


def _without_ages(found: GroupDrain) -> GroupDrain:
    """Return the same without what changes as time goes by."""
    return replace(found, behind=tuple(replace(each, lag_s=None) for each in found.behind))


async def _look(cluster: ClusterClient, closed: ClosedTopic) -> tuple[GroupDrain, ...]:
    """Return how far each group is that reads the topic.

    Raises:
        UnknownTopic: The topic was deleted.
        InvalidState: The topic was opened again.
    """
    view = await topics.describe_topic(cluster.coordinator, closed.topic)
    if view.id != closed.id:
        raise UnknownTopic(f"topic {closed.topic!r} was deleted and made anew meanwhile")
    if view.settings.writable:
        raise InvalidState(f"topic {closed.topic!r} was opened again meanwhile")
    names = await groups.list_groups(cluster.coordinator)
    inspector = Inspector(cluster)
    found = await gather_all(_group(cluster, inspector, closed, view, name) for name in names)
    return tuple(each for each in found if each is not None)


async def _group(
    cluster: ClusterClient, inspector: Inspector, closed: ClosedTopic, view: TopicView, name: str
) -> GroupDrain | None:
    """Return how far a group is; None: it does not read the topic."""
    try:
        nodes = await read_nodes(cluster, name)
    except UnknownGroup:
        return None  # deleted meanwhile, or without a contract
    except (ConnectionLost, SessionExpired):
        raise
    except VqError as error:
        return GroupDrain(name, None, (), f"{type(error).__name__}: {error}")
    if closed.topic not in nodes.contract.topics:
        return None
    members = sum(each.value.reads(closed.topic) for each in nodes.members.values())
    if nodes.contract.model == GroupModel.BROADCASTING:
        return GroupDrain(name, members, (), "each member keeps its own progress by itself")
    told = await gather_all(
        progress(inspector, nodes, placement, count=False) for placement in view.partitions
    )
    behind = tuple(each for each in told if not is_done(each, closed.ends.get(each.partition)))
    return GroupDrain(name, members, behind, by_stream=nodes.contract.by_stream)


def is_done(found: GroupProgress, end: int | None) -> bool:
    """Whether a group has committed the end of a partition that gets nothing more."""
    if found.needs_reset or found.beyond_end:
        return False
    if found.committed is not None and end is not None and found.committed >= end:
        return True
    return found.lag_bytes == 0


async def _counted(cluster: ClusterClient, closed: ClosedTopic, found: GroupDrain) -> GroupDrain:
    """Return the same with the lag in messages, which brokers have to count."""
    if not found.behind:
        return found
    view = await topics.describe_topic(cluster.coordinator, closed.topic)
    inspector = Inspector(cluster)

    async def count(each: GroupProgress) -> GroupProgress:
        if each.end is None or not each.lag_bytes or each.partition >= len(view.partitions):
            return each
        placement = view.partitions[each.partition]
        messages = await inspector.count(placement, each.end - each.lag_bytes, each.end)
        return replace(each, lag_messages=messages)

    return replace(found, behind=tuple(await gather_all(map(count, found.behind))))
