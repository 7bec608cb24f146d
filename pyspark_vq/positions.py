"""Where a stream is: what its checkpoint says, and how it goes on from there.

Pure: what brokers say comes in as values.

In Spark's checkpoint a place is ``{"v": 1, "topics": {"orders": {"id": "3f…", "at": [0, 1024]}}}``:
for each topic its id, and for each of its partitions, in order, the offset where the next
micro-batch begins.

The end of a micro-batch in which topics or partitions are read for the first time also has
``"from"``: where those topics begin, in the form of ``topics``. Spark keeps only ends. It does not
know where a topic begins that joins, and it asks a query that failed in its first micro-batch for
its beginning anew, which is another one by then.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark_vq.planning import TopicNow
from pyspark_vq.ranges import Range, shares
from vq.errors import InvalidArgument

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
        """Return the place in a partition; 0: none is known."""
        return self.at[partition] if partition < len(self.at) else 0


@dataclass(frozen=True, slots=True)
class Positions:
    """The places of a stream, by topic."""

    topics: Mapping[str, TopicPositions]

    def encode(self, joining: "Positions | None" = None) -> dict[str, Any]:
        """Return what Spark keeps; equal places give equal JSON.

        Args:
            joining: Where topics begin of which something is read for the first time.
        """
        topics = {name: {"id": each.id, "at": list(each.at)} for name, each in self._sorted()}
        begins = {"from": joining.encode()["topics"]} if joining and joining.topics else {}
        return {"v": _VERSION, "topics": topics, **begins}

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
    def begin_of(cls, start: Mapping[str, Any], end: Mapping[str, Any]) -> "Positions":
        """Return where a micro-batch begins: what joins in it has its place in the end."""
        return cls.decode(start).with_(cls._of(end.get("from", {})))

    def with_(self, others: "Positions") -> "Positions":
        """Return these places, and those of other topics instead of their own."""
        return Positions({**self.topics, **others.topics})

    def only(self, takes: Callable[[str], bool]) -> "Positions":
        """Return the places in the topics whose names are taken."""
        return Positions({name: each for name, each in self.topics.items() if takes(name)})

    @classmethod
    def _of(cls, topics: Mapping[str, Any]) -> "Positions":
        return cls(
            {name: TopicPositions(each["id"], tuple(each["at"])) for name, each in topics.items()}
        )


def joined(
    start: Positions, now: Iterable[TopicNow], first: Mapping[str, Mapping[int, int]]
) -> tuple[Positions, list[str]]:
    """Return where topics begin of which something is read for the first time, and what was lost.

    A new partition begins with what is there. It and those behind it wait while its broker is
    silent. A topic that was deleted and made again is another one, and the old one is lost.

    Args:
        start: The places so far.
        now: The topics that are there.
        first: By name, where the partitions of a topic begin that is new to the query. One that is
            in neither waits.
    """
    topics, losses = dict[str, TopicPositions](), list[str]()
    for found in now:
        before = start.topics.get(found.name)
        begins = {number: ends.earliest for number, ends in found.ends.items() if ends is not None}
        if before is None:
            if found.name not in first:
                continue
            begins = dict(first[found.name])
        elif before.id != found.id:
            losses.append(
                f"topic {found.name!r} was deleted and created again: its id was {before.id} and "
                f"is {found.id}"
            )
            before = None
        at = list(before.at if before is not None else ())
        while len(at) in begins:
            at.append(begins[len(at)])
        if before is None or len(at) > len(before.at):
            topics[found.name] = TopicPositions(found.id, tuple(at))
    return Positions(topics), losses


def available(
    start: Positions, now: Iterable[TopicNow], waiting: Collection[str] = ()
) -> tuple[Positions, list[str]]:
    """Return how far the stream can read now, and what was lost.

    A partition whose broker is silent, and a topic that is gone, stay where they are.

    Args:
        start: Where the micro-batch begins; see ``joined``.
        now: The topics that are there.
        waiting: Topics that are not among these and are no loss.
    """
    topics = dict(start.topics)
    seen = {each.name: each for each in now}
    gone = sorted(start.topics.keys() - seen.keys() - {*waiting})
    losses = [f"topic {name!r} was deleted" for name in gone]
    for name, before in start.topics.items():
        found = seen.get(name)
        if found is not None and found.id == before.id:
            at = tuple(_end(found, n, place, losses) for n, place in enumerate(before.at))
            topics[name] = TopicPositions(found.id, at)
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
