"""What all partitions of a node add up to, counted in steps so that the event loop is not held."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.partition_state import RULES
from vq.broker.replication.lag import LagSum

#: Partitions looked at in one step: some hundred microseconds.
STEP: Final = 100
#: Topics with numbers of their own. Those of all further topics are added up.
TOPICS_MAX: Final = 500
#: The name under which they are; no topic can have it.
OTHER_TOPICS: Final = "(other)"
#: Every word that STATUS tells as the state of a partition.
STATES: Final = tuple(sorted({rules.told for rules in RULES.values()}))


@dataclass(slots=True)
class TopicSum:
    """What the partitions of one topic, or of some, add up to on this node."""

    partitions: int = 0
    stored_bytes: int = 0
    start_bytes: int = 0
    end_bytes: int = 0


@dataclass(slots=True)
class Totals:
    """What all partitions add up to.

    Attributes:
        states: How many partitions are in which state.
        topics: By name; see ``OTHER_TOPICS``.
        topic_count: How many topics there are.
        stored_bytes: Bytes of the logs on disk, earlier ranges of partitions included.
        deleted_bytes: Of these, those of deleted topics that can be brought back.
        damaged_ranges: Known damage.
        lost_messages: Of topics with async replication, in take-overs; what is kept of them.
        lag: How far other nodes are behind.
    """

    states: Counter[str] = field(default_factory=Counter)
    topics: dict[str, TopicSum] = field(default_factory=dict)
    topic_count: int = 0
    stored_bytes: int = 0
    deleted_bytes: int = 0
    damaged_ranges: int = 0
    lost_messages: int = 0
    lag: LagSum = field(default_factory=LagSum)


async def survey(
    channels: Channels,
    count_damage: Callable[[Channel], int],
    *,
    topics_max: int = TOPICS_MAX,
) -> Totals:
    """Return what the partitions add up to; the loop runs other things after each ``STEP``.

    The topics with numbers of their own are the first by name, so they are the same ones each time
    until topics are created or deleted.
    """
    totals = Totals()
    everything = list(channels.values())
    names = sorted({topic for topic, _ in channels})
    totals.topic_count = len(names)
    named = set(names[:topics_max])
    for start in range(0, len(everything), STEP):
        for channel in everything[start : start + STEP]:
            _add(totals, channel, named)
            totals.damaged_ranges += count_damage(channel)
        await asyncio.sleep(0)
    return totals


def _add(totals: Totals, channel: Channel, named: set[str]) -> None:
    totals.states[RULES[channel.state].told] += 1
    topic = channel.partition.topic
    name = topic if topic in named else OTHER_TOPICS
    of_topic = totals.topics.get(name)
    if of_topic is None:
        of_topic = totals.topics[name] = TopicSum()
    log = channel.log
    size = log.size_bytes if log is not None else 0
    of_topic.start_bytes += channel.start_offset
    of_topic.end_bytes += log.end_offset if log is not None else channel.high_watermark
    totals.lag.add(channel)
    totals.lost_messages += sum(file.messages for file in channel.lost)
    for older in channel.older:
        size += older.log.size_bytes if older.log is not None else 0
        totals.lost_messages += sum(file.messages for file in older.lost)
    of_topic.partitions += 1
    of_topic.stored_bytes += size
    totals.stored_bytes += size
    totals.deleted_bytes += size if channel.deleted else 0
