"""What all partitions of a node add up to, counted in steps so that the event loop is not held."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from vq.broker.base.facts import Fact, Facts, gauge
from vq.broker.health.verifying import Verifier
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.partition_state import RULES
from vq.broker.partition.ranges import lost_in_take_overs

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
    """

    states: Counter[str] = field(default_factory=Counter)
    topics: dict[str, TopicSum] = field(default_factory=dict)
    topic_count: int = 0
    stored_bytes: int = 0
    deleted_bytes: int = 0
    damaged_ranges: int = 0
    lost_messages: int = 0


class Survey:
    """Adds up the partitions of a node. Loop-bound.

    Args:
        channels: The partitions.
        verifier: Knows their damage.
        topics_max: See ``TOPICS_MAX``.

    Attributes:
        totals: As of the last ``look``.
    """

    def __init__(
        self, channels: Channels, verifier: Verifier, *, topics_max: int = TOPICS_MAX
    ) -> None:
        self._channels = channels
        self._verifier = verifier
        self._topics_max = topics_max
        self.totals = Totals()

    async def look(self) -> None:
        """Add them up; the loop runs other things after each ``STEP``.

        The topics with numbers of their own are the first by name, so they are the same ones each
        time until topics are created or deleted.
        """
        totals = Totals()
        everything = list(self._channels.values())
        names = sorted({topic for topic, _ in self._channels})
        totals.topic_count = len(names)
        named = set(names[: self._topics_max])
        for start in range(0, len(everything), STEP):
            for channel in everything[start : start + STEP]:
                _add(totals, channel, named)
                totals.damaged_ranges += self._verifier.count_damage(channel)
            await asyncio.sleep(0)
        self.totals = totals

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells; metrics are as of the last look."""
        yield Facts[Channels].of(
            self._channels,
            Fact(read=len, status="partition_count", load="partitions"),
            Fact(read=_log_bytes, load="stored_bytes"),
        )
        yield Facts[int](
            labels=("state",),
            things=lambda: {(state,): self.totals.states[state] for state in STATES},
            facts=(gauge("vq_partitions", "Partitions on this node, by state.", int),),
        )
        yield Facts[Totals](
            things=lambda: {(): self.totals},
            facts=(
                gauge(
                    "vq_topics",
                    "Topics with a partition on this node.",
                    lambda totals: totals.topic_count,
                ),
                gauge(
                    "vq_stored_bytes",
                    "Bytes of all logs on this node.",
                    lambda totals: totals.stored_bytes,
                ),
                gauge(
                    "vq_deleted_topics_bytes",
                    "Of these, those of deleted topics that can be brought back.",
                    lambda totals: totals.deleted_bytes,
                ),
                gauge(
                    "vq_damaged_ranges",
                    "Ranges of offsets that are known to be damaged.",
                    lambda totals: totals.damaged_ranges,
                ),
                gauge(
                    "vq_lost_messages",
                    "Messages of topics with async replication that take-overs lost, while their "
                    "files are kept.",
                    lambda totals: totals.lost_messages,
                ),
            ),
        )
        yield Facts[TopicSum](
            labels=("topic",),
            things=lambda: {(name,): each for name, each in self.totals.topics.items()},
            facts=(
                gauge(
                    "vq_topic_partitions",
                    "Partitions of a topic on this node.",
                    lambda topic: topic.partitions,
                ),
                gauge(
                    "vq_topic_stored_bytes",
                    "Bytes of the logs of a topic on this node.",
                    lambda topic: topic.stored_bytes,
                ),
                gauge(
                    "vq_topic_start_offset_bytes",
                    "Starts of the logs of a topic on this node, added up: it grows by deletions.",
                    lambda topic: topic.start_bytes,
                ),
                gauge(
                    "vq_topic_end_offset_bytes",
                    "Ends of the logs of a topic on this node, added up: it grows by what is "
                    "appended.",
                    lambda topic: topic.end_bytes,
                ),
            ),
        )


def _log_bytes(channels: Channels) -> int:
    """Return the bytes of all open logs, earlier ranges of partitions not included."""
    return sum(each.log.size_bytes for each in channels.values() if each.log is not None)


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
    totals.lost_messages += sum(file.messages for file in lost_in_take_overs(channel))
    for older in channel.older:
        size += older.log.size_bytes if older.log is not None else 0
        totals.lost_messages += sum(file.messages for file in lost_in_take_overs(older))
    of_topic.partitions += 1
    of_topic.stored_bytes += size
    totals.stored_bytes += size
    totals.deleted_bytes += size if channel.deleted else 0
