"""Closing a topic for writes, and opening it again.

Loop-bound functions on a ``ClusterClient``. ``TopicSettings.writable`` says whether a topic is
closed; brokers follow it within moments. Nothing is appended any more once every node that could
take messages has followed, and what was appended before is stored where it has to be.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.topics import topics
from vq.coordination.tree.reading import TopicView, gather_all
from vq.errors import InvalidState, UnknownTopic, VqError
from vq.model import PartitionState, TopicSettings, check_timeout
from vq.operations.base.acts import About, audited
from vq.operations.brokers.brokers import broker_status
from vq.operations.topics.topics import alter_settings

#: How long ``close_topic`` waits for brokers.
CLOSE_WAIT_S: Final = 10.0
_LOOKS: Final = Backoff(first_s=0.02, most_s=0.5)
_TAKES_MESSAGES: Final = "rw"
#: What a partition may be for a moment, also on a node that has not heard yet that the topic is
#: closed: while it is moved or opened, and before the node knows that it is there. Then it may take
#: messages again.
_PASSING: Final = frozenset({"ro", "sealed"})


@dataclass(frozen=True, slots=True)
class ClosedTopic:
    """A topic that is closed for writes.

    Attributes:
        topic: Its name.
        id: Its id.
        changed: It was open before.
        closed_ms: When it was known that nothing is appended any more, in milliseconds since 1970,
            by the clock of this process; None: that is not known yet.
        ends: The end of each partition; None: no broker told it, or it may still move.
        unconfirmed: What keeps ``closed_ms`` from being known; empty when it is known.
    """

    topic: str
    id: str
    changed: bool
    closed_ms: int | None
    ends: Mapping[int, int | None]
    unconfirmed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenedTopic:
    """A topic that is open for writes; ``changed``: it was closed before."""

    topic: str
    id: str
    changed: bool


@audited(About.TOPIC)
async def close_topic(
    cluster: ClusterClient, topic: str, *, timeout: float = CLOSE_WAIT_S
) -> ClosedTopic:
    """Close a topic for writes, and wait until nothing is appended to it any more.

    A message that is sent meanwhile is acknowledged, or refused with ``TopicClosed``; stored
    ones are read as before. ``closed_ms`` of the result is None if that is not known within
    ``timeout`` seconds; the topic is closed all the same. Closing it again is fine.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidState: Somebody opened it meanwhile.
        ChangeUnknown: ZooKeeper went away; it is closed or not. May be repeated.
    """
    deadline = cluster.clock.monotonic() + check_timeout(timeout)
    topic_id, changed = await _write(cluster, topic, writable=False)
    for look in itertools.count(1):
        view = await topics.describe_topic(cluster.coordinator, topic)
        if view.id != topic_id:
            raise UnknownTopic(f"topic {topic!r} was deleted and made anew meanwhile")
        if view.settings.writable:
            raise InvalidState(f"topic {topic!r} was opened again meanwhile")
        found = await _look(cluster, view)
        if not found.missing or cluster.clock.monotonic() >= deadline:
            break
        left_s = deadline - cluster.clock.monotonic()
        await asyncio.sleep(min(_LOOKS.pause_s(look), max(0.0, left_s)))
    return ClosedTopic(
        topic=topic,
        id=topic_id,
        changed=changed,
        closed_ms=None if found.missing else cluster.clock.wall_ms(),
        ends=found.ends,
        unconfirmed=tuple(found.missing),
    )


@audited(About.TOPIC)
async def open_topic(cluster: ClusterClient, topic: str) -> OpenedTopic:
    """Open a topic for writes again; also if it is open.

    Raises:
        UnknownTopic: There is none of this name.
        ChangeUnknown: ZooKeeper went away; it is open or not. May be repeated.
    """
    topic_id, changed = await _write(cluster, topic, writable=True)
    return OpenedTopic(topic, topic_id, changed)


async def _write(cluster: ClusterClient, name: str, *, writable: bool) -> tuple[str, bool]:
    """Write the setting; return the topic's id, and whether it was another one."""
    changed = False

    def change(before: TopicSettings) -> TopicSettings:
        nonlocal changed
        changed = changed or before.writable is not writable  # also if the first answer was lost
        return replace(before, writable=writable)

    return (await alter_settings(cluster, name, change)).id, changed


@dataclass(slots=True)
class Found:
    """What brokers say of a topic that is closed.

    Attributes:
        ends: Where each partition ends.
        missing: What is not known yet, or not so yet.
    """

    ends: dict[int, int | None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


async def _look(cluster: ClusterClient, view: TopicView) -> Found:
    """Ask every node of the groups that take the topic's messages."""
    found = Found(dict.fromkeys(range(len(view.partitions))))
    wanted: dict[str, list[int]] = {}
    for placement in view.partitions:
        if placement.writer_group is not None:
            wanted.setdefault(placement.writer_group, []).append(placement.partition)
        elif placement.spans:
            found.ends[placement.partition] = placement.spans[-1].end
    await gather_all(
        _look_at_group(cluster, view, group, numbers, found)
        for group, numbers in sorted(wanted.items())
    )
    found.missing.sort()
    return found


async def _look_at_group(
    cluster: ClusterClient, view: TopicView, group: str, numbers: Sequence[int], found: Found
) -> None:
    """Ask each node that leads the group, or may lead it at once: it would take messages.

    A node that is not registered may run all the same, and take messages while its lease lasts.
    """
    state = await registry.read_state(cluster.coordinator, group)
    nodes = {each.node: each for each in await registry.nodes(cluster.coordinator, group)}
    names = sorted({*nodes, *(() if state is None else state.insync)})
    if not names:
        found.missing.append(f"group {group} has no running node")
        return
    missing: list[str] = []
    is_led = False
    for name in names:
        node = nodes.get(name)
        if node is None:
            missing.append(f"{group}/{name} is not registered")
            continue
        try:
            status = await broker_status(cluster, node.address)
        except VqError as error:
            missing.append(f"{group}/{name} does not answer: {type(error).__name__}: {error}")
            continue
        told = {
            each["partition"]: each
            for each in status.raw["partitions"]
            if each["topic"] == view.name
        }
        leads = bool(status.raw["master"])
        is_led = is_led or leads
        for number in numbers:
            placed = view.partitions[number].state
            why = _why_not(told.get(number), placed, leads=leads)
            if why:
                missing.append(f"{group}/{name}: {view.name}-{number} {why}")
            elif leads:
                found.ends[number] = told[number]["log_end_offset"]
    if not (missing or is_led):  # a new master may have what is not stored by all in sync
        missing.append(f"no node leads group {group} at this moment")
    found.missing += missing


def _why_not(told: Mapping[str, Any] | None, placed: PartitionState, *, leads: bool) -> str:
    """Return why it is not known that a node appends nothing more to a partition, "" if it is."""
    if told is None:
        return "is not known there yet"
    if told["state"] == _TAKES_MESSAGES:
        return "still takes messages"
    if told["state"] in _PASSING and placed is PartitionState.RW:
        return f"is {told['state']} at this moment, so it may not be known there yet"
    end, committed = told["log_end_offset"], told["high_watermark"]
    if leads and committed < end:
        return f"waits until [{committed}, {end}) is stored by all nodes in sync"
    return ""
