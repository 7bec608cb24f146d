"""Where a stream is: what its checkpoint says, and how it goes on from there.

Pure: what brokers say comes in as values.

In Spark's checkpoint a place is ``{"v": 1, "topics": {"orders": {"id": "3f…", "at": [0, 1024]}}}``:
for each topic its id, and for each of its partitions, in order, the offset where the next
micro-batch begins. A partition that is not in it begins at 0.

The end of the first micro-batch also has ``"from"``: where that begins, in the form of ``topics``.
Spark keeps only ends, and asks a query that failed in its first micro-batch for its beginning anew,
which is another one by then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark_vq.planning import TopicNow
from pyspark_vq.ranges import Range, shares
from vq.errors import InvalidArgument

__all__ = ["Positions", "TopicPositions", "available", "capped", "limited", "ranges_between"]

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """The places in one topic.

    Attributes:
        id: Tells the topic from a namesake that was deleted.
        at: By partition, the offset where the next message to read begins, or before it.
    """

    id: str
    at: tuple[int, ...]

    def of(self, partition: int) -> int:
        """Return the place in a partition; the topic may have got it later."""
        return self.at[partition] if partition < len(self.at) else 0


@dataclass(frozen=True, slots=True)
class Positions:
    """The places of a stream, by topic."""

    topics: Mapping[str, TopicPositions]

    def encode(self) -> dict[str, Any]:
        """Return what Spark keeps; equal places give equal JSON."""
        topics = {name: {"id": each.id, "at": list(each.at)} for name, each in self._sorted()}
        return {"v": _VERSION, "topics": topics}

    def encode_first(self, begin: "Positions") -> dict[str, Any]:
        """Return the same for the end of the first micro-batch, which begins at ``begin``."""
        return {**self.encode(), "from": begin.encode()["topics"]}

    def _sorted(self) -> list[tuple[str, TopicPositions]]:
        return sorted(self.topics.items())

    def of(self, topic: str, id: str) -> TopicPositions:
        """Return the places in the topic with this id; in a new one, all begin at 0."""
        found = self.topics.get(topic)
        return found if found is not None and found.id == id else TopicPositions(id, ())

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> "Positions":
        """Return what ``encode`` was given.

        Raises:
            InvalidArgument: It is none, or of a later version.
        """
        if document.get("v") != _VERSION:
            raise InvalidArgument(
                f"the checkpoint has places of version {document.get('v')!r}, this vq knows "
                f"{_VERSION}; use the vq that wrote it, or another checkpoint"
            )
        return cls._of(document["topics"])

    @classmethod
    def begin_of(cls, end: Mapping[str, Any]) -> "Positions | None":
        """Return where the micro-batch begins that ends there, if it is the first one."""
        return cls._of(end["from"]) if "from" in end else None

    @classmethod
    def _of(cls, topics: Mapping[str, Any]) -> "Positions":
        return cls(
            {name: TopicPositions(each["id"], tuple(each["at"])) for name, each in topics.items()}
        )


def available(start: Positions, now: Iterable[TopicNow]) -> tuple[Positions, list[str]]:
    """Return how far the stream can read now, and what was lost.

    A partition whose broker is silent, and a topic that is gone, stay where they are. A topic that
    was deleted and made again is read from its beginning.
    """
    topics = dict(start.topics)
    seen = {each.name: each for each in now}
    gone = sorted(start.topics.keys() - seen.keys())
    losses = [f"topic {name!r} was deleted" for name in gone]
    for name, found in seen.items():
        before = start.topics.get(name)
        if before is not None and before.id != found.id:
            losses.append(
                f"topic {name!r} was deleted and created again: its id was {before.id} and is "
                f"{found.id}"
            )
            before = None
        before = before or TopicPositions(found.id, ())
        topics[name] = TopicPositions(
            found.id,
            tuple(
                _end(found, number, before.of(number), losses)
                for number in range(max(len(found.ends), len(before.at)))
            ),
        )
    return Positions(topics), losses


def _end(found: TopicNow, number: int, at: int, losses: list[str]) -> int:
    ends = found.ends.get(number)
    if ends is None:
        return at
    if at > ends.log_end:
        losses.append(
            f"{found.name}-{number} ends at {ends.log_end}, and the stream has read up to {at}: "
            "its log was cut after an unclean election"
        )
        return ends.latest
    if at < ends.earliest:
        losses.append(
            f"[{at}, {ends.earliest}) of {found.name}-{number} was deleted before it was read"
        )
    return max(at, ends.latest)  # a new master may not say yet that all may be read


def capped(positions: Positions, most: Positions, start: Positions) -> Positions:
    """Return places that do not go beyond ``most``; what is not in it stays at its start."""
    topics = {}
    for name, each in positions.topics.items():
        bound, begin = most.topics.get(name), start.topics.get(name)
        if bound is None or bound.id != each.id:
            if begin is not None:
                topics[name] = begin
            continue
        low = start.of(name, each.id)
        # A log that was cut ends before ``low``; to stay there would pass what comes in between.
        at = tuple(min(end, max(low.of(n), bound.of(n))) for n, end in enumerate(each.at))
        topics[name] = TopicPositions(each.id, at)
    return Positions(topics)


def ranges_between(start: Positions, end: Positions) -> list[Range]:
    """Return the ranges of a micro-batch, sorted; empty ones are left out."""
    found = []
    for name, each in end.topics.items():
        before = start.of(name, each.id)
        found += [
            Range(name, number, before.of(number), at, each.id)
            for number, at in enumerate(each.at)
            if at > before.of(number)
        ]
    return sorted(found)


def limited(
    start: Positions, end: Positions, now: Iterable[TopicNow], limit: int
) -> tuple[Positions, dict[str, dict[int, int]]]:
    """Return places with about ``limit`` bytes before them, and those that were moved back.

    The latter, by topic and partition, may lie inside messages: the caller puts the starts of the
    next messages instead. What was deleted before it was read counts nothing.
    """
    earliest = {
        (each.name, number): found.earliest
        for each in now
        for number, found in each.ends.items()
        if found is not None
    }
    begins = {
        (each.topic, each.partition): max(
            each.start, min(earliest.get((each.topic, each.partition), 0), each.end)
        )
        for each in ranges_between(start, end)
    }
    sizes = {
        (topic, number): end.topics[topic].at[number] - begin
        for (topic, number), begin in begins.items()
    }
    if sum(sizes.values()) <= limit:
        return end, {}
    topics, moved = dict(end.topics), dict[str, dict[int, int]]()
    for (topic, number), size in shares(sizes, limit).items():
        if size < sizes[topic, number]:
            moved.setdefault(topic, {})[number] = begins[topic, number] + size
    for topic, places in moved.items():
        topics[topic] = _moved(topics[topic], places)
    return Positions(topics), moved


def _moved(each: TopicPositions, places: Mapping[int, int]) -> TopicPositions:
    return replace(each, at=tuple(places.get(n, at) for n, at in enumerate(each.at)))


def moved(positions: Positions, places: Mapping[str, Mapping[int, int]]) -> Positions:
    """Return places with some of them put elsewhere."""
    topics = {name: _moved(each, places.get(name, {})) for name, each in positions.topics.items()}
    return Positions(topics)
