"""Topics that are deleted, can be brought back for a while, and are."""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.topics import grace, summaries, topics
from vq.coordination.topics.cluster_settings import read_settings
from vq.coordination.topics.remains import read_remains
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.topics import IN_GRACE, READY
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    UnknownTopic,
    VqError,
)
from vq.model import (
    TopicDeletion,
    check_name,
)
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import unknown_when_cut
from vq.operations.partitions.offsets import Inspector
from vq.operations.topics.topics import Topic, topic_of
from vq.reserved import check_may_go, replies_topic

#: Looks at a topic that others change while it is to be deleted.
DELETE_TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Deletion:
    """What deleting a topic takes away, and for how long it can be brought back.

    Attributes:
        topic: Its name.
        partitions: How many it has.
        bytes: What brokers keep of it, as far as they answer.
        exact: Every broker answered.
        unreadable: Why it cannot be read in ZooKeeper; None: it can.
        keeps_data: Its id cannot be read, either, so brokers keep its data.
        grace_s: How long it can be brought back afterwards; 0: not at all.
        deleted: It is deleted already, and can be brought back.
    """

    topic: str
    partitions: int
    bytes: int
    exact: bool
    unreadable: str | None = None
    keeps_data: bool = False
    grace_s: int = 0
    deleted: bool = False


async def plan_delete(cluster: ClusterClient, topic: str, *, now: bool = False) -> Deletion:
    """Return what deleting a topic would take away; changes nothing.

    ``now``: for good, at once.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: It is a topic in which messages of the whole cluster wait.
        InvalidState: It cannot be read, so it could not be brought back; ``now`` deletes it.
    """
    check_may_go(topic)
    found = await read_remains(cluster.coordinator, check_name("topic", topic))
    if found.view is None:
        if not now and await _grace_s(cluster):
            raise _unreadable(topic, found.unreadable)
        return Deletion(topic, found.partitions, 0, False, found.unreadable, not found.topic.id)
    deletion = found.view.deletion
    grace_s = 0
    if not now and deletion is not None:
        count = await grace.read_count(cluster.coordinator)
        grace_s = grace.left_ms(deletion, count.ms) // 1000
    elif not now and found.view.phase == READY:
        grace_s = await _grace_s(cluster)
    inspector = Inspector(cluster)
    ends = await gather_all(inspector.ends_if_told(each) for each in found.view.partitions)
    known = [each.latest - each.earliest for each in ends if each is not None]
    exact = len(known) == len(ends)
    return Deletion(
        topic,
        found.partitions,
        sum(known),
        exact,
        grace_s=grace_s,
        deleted=deletion is not None,
    )


@audited(About.TOPIC)
async def delete_topic(cluster: ClusterClient, topic: str, *, now: bool = False) -> None:
    """Delete a topic: clients see it no more, and it can be brought back for a while.

    ``ClusterSettings.delete_grace_hours`` says for how long. After that, brokers remove it for
    good, with its messages and every group's progress on it. Until then its name is not free.
    Deleting it again is fine. The topic of replies to its requests is removed for good at once:
    nobody waits for them any more, and the first request after ``undelete_topic`` makes it anew.

    ``now``: remove it for good at once, also one that is deleted already; cannot be undone.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: It is a topic in which messages of the whole cluster wait.
        InvalidState: It cannot be read, so it could not be brought back; nothing was changed.
        ChangeUnknown: ZooKeeper went away; it is deleted, deleted in part, or not. May be repeated.
    """
    check_may_go(topic)
    coordinator = cluster.coordinator
    with unknown_when_cut(f"deleting {topic}"):
        if now:
            await topics.delete_topic(coordinator, topic)
        else:
            await _delete(cluster, topic)
        await _delete_replies(coordinator, topic)


async def _delete(cluster: ClusterClient, topic: str) -> None:
    """Delete a topic so that it can be brought back, if there is time for that."""
    coordinator = cluster.coordinator
    grace_s = await _grace_s(cluster)
    for _ in range(DELETE_TRIES_MAX):
        found = await read_remains(coordinator, check_name("topic", topic))
        if found.view is None and grace_s:
            raise _unreadable(topic, found.unreadable)
        if found.view is not None and found.view.phase == IN_GRACE:
            return  # it keeps the time that it was given
        if found.view is not None and found.view.phase == READY and grace_s:
            await grace.retire_topic(
                coordinator, topic, grace_ms=grace_s * 1000, by=cluster.origin()
            )
            return
        # Otherwise somebody has just completed it: then it can be brought back, too.
        if await topics.delete_topic(coordinator, topic, only=_is_in_part if grace_s else None):
            return
    raise CoordinationError(
        f"topic {topic!r} was changed {DELETE_TRIES_MAX} times while it was to be deleted; it "
        "was not; try again"
    )


async def _delete_replies(coordinator: Coordinator, topic: str) -> None:
    """Remove the topic of the replies to a topic's requests, if there is one."""
    try:
        name = replies_topic(topic)
    except InvalidArgument:  # the topic's name is too long to have one
        return
    with contextlib.suppress(UnknownTopic):
        await topics.delete_topic(coordinator, name)


def _is_in_part(view: TopicView) -> bool:
    """Whether a topic was created or removed in part: nobody has messages in it."""
    return view.phase not in {READY, IN_GRACE}


async def _grace_s(cluster: ClusterClient) -> int:
    return (await read_settings(cluster.coordinator)).delete_grace_hours * 3_600


def _unreadable(name: str, why: str) -> InvalidState:
    return InvalidState(
        f"topic {name!r} cannot be read, so it could not be brought back: {why}",
        hint="write the value that belongs there; or delete the topic for good at once (--now)",
    )


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that is deleted and can be brought back.

    Attributes:
        name: Its name.
        id: Its id.
        partitions: How many it has.
        deletion: Who deleted it, and when.
        left_s: How long it can still be brought back, at least: the time runs while brokers run.
    """

    name: str
    id: str
    partitions: int
    deletion: TopicDeletion
    left_s: int


async def deleted_topics(
    cluster: ClusterClient, names: Collection[str] | None = None
) -> list[DeletedTopic]:
    """Return the topics that can be brought back, sorted by name.

    Args:
        cluster: An open client.
        names: Look only at these, of which it is known that they are deleted; None: at all topics.
    """
    return (await readable_deleted_topics(cluster, names))[0]


async def readable_deleted_topics(
    cluster: ClusterClient, names: Collection[str] | None = None
) -> tuple[list[DeletedTopic], dict[str, VqError]]:
    """Return the topics that can be brought back, and by name errors of unreadable topics.

    Args:
        cluster: An open client.
        names: See ``deleted_topics``.

    Raises:
        Unreadable: Nobody knows how long: the count of the time cannot be read.
    """
    found, unreadable = await summaries.read_summaries(cluster.coordinator, names)
    count = await grace.read_count(cluster.coordinator)
    deleted = [
        DeletedTopic(
            each.name,
            each.id,
            each.settings.partitions,
            each.deletion,
            grace.left_ms(each.deletion, count.ms) // 1000,
        )
        for each in found
        if each.deletion is not None
    ]
    return deleted, dict(sorted(unreadable.items()))


@audited(About.TOPIC)
async def undelete_topic(cluster: ClusterClient, topic: str) -> Topic:
    """Bring a deleted topic back as it was, with its messages and every group's progress.

    One that is not deleted stays as it is.

    Raises:
        UnknownTopic: There is none of this name, or it is removed for good.
        ChangeUnknown: ZooKeeper went away; it is back or not. May be repeated.
    """
    return (await bring_back(cluster, topic))[0]


async def bring_back(cluster: ClusterClient, topic: str) -> tuple[Topic, bool]:
    """Bring a deleted topic back as it was; return it, and whether it was deleted.

    Id, settings, placements, messages and the progress of consumer groups are those that it had.
    Brokers serve it within moments.

    Raises:
        UnknownTopic: There is none of this name, or it is removed for good.
        ChangeUnknown: ZooKeeper went away; it is back or not. May be repeated.
    """
    with unknown_when_cut(f"bringing {topic} back"):
        view, changed = await grace.undelete_topic(cluster.coordinator, topic)
    return topic_of(view), changed
