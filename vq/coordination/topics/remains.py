"""What the tree has of a topic that is to be deleted, also where a znode of it cannot be read."""

import json
from dataclasses import dataclass, replace

from vq.coordination.tree.coordinator import (
    ConnectionLost,
    Coordinator,
    NoNode,
    SessionExpired,
    Unreadable,
)
from vq.coordination.tree.reading import TopicView, numbered_children, read_topic
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import DELETING, TopicNode
from vq.errors import CoordinationError, UnknownTopic
from vq.model import TopicSettings


@dataclass(frozen=True, slots=True)
class Remains:
    """A topic, in any phase.

    Attributes:
        topic: Its value in phase ``deleting``; of one that cannot be read, with invented settings,
            and the id "" if that cannot be read, either.
        version: Of its znode.
        partitions: How many it has in the tree.
        view: All of it; None: it cannot be read.
        unreadable: Why not; "": it can.
    """

    topic: TopicNode
    version: int
    partitions: int
    view: TopicView | None = None
    unreadable: str = ""


async def read_remains(coordinator: Coordinator, name: str) -> Remains:
    """Return what there is of a topic.

    Raises:
        UnknownTopic: There is no such topic.
    """
    try:
        view = await read_topic(coordinator, name, any_phase=True)
    except (UnknownTopic, ConnectionLost, SessionExpired):
        raise
    except CoordinationError as error:  # unreadable, or a partition is missing
        return await _salvage(coordinator, name, str(error))
    topic = TopicNode(id=view.id, settings=view.settings, phase=DELETING, origin=view.origin)
    return Remains(topic, view.version, len(view.partitions), view)


async def _salvage(coordinator: Coordinator, name: str, why: str) -> Remains:
    path = TopicNode.path(name)
    try:
        node = await coordinator.get(path)
    except NoNode:
        raise UnknownTopic(f"there is no topic {name!r} any more") from None
    numbers = await numbered_children(coordinator, Partition.parent(name))
    try:
        topic = replace(TopicNode.decode(path, node.data), phase=DELETING)
    except Unreadable:
        settings = TopicSettings(partitions=max(1, len(numbers)))
        topic = TopicNode(id=_id_in(node.data), settings=settings, phase=DELETING)
    return Remains(topic, node.stat.version, len(numbers), unreadable=why)


def _id_in(data: bytes) -> str:
    """Return the id in a value that is no topic otherwise; "": it has none."""
    try:
        found = json.loads(data)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""
