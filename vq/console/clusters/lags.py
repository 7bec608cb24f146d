"""What looks at consumer groups found, kept small: of each group what lists and series show."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from vq.operations.cluster.bulk import GroupContract
from vq.operations.groups.groups import GroupDescription
from vq.operations.groups.lag_rules import LagThresholds, LagVerdict

THRESHOLDS: Final = LagThresholds()


class TopicLag(NamedTuple):
    """A lag in one topic: bytes, and age in seconds of the oldest message in it; None: unknown."""

    lag_bytes: int | None = None
    lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A consumer group as a look found it; a number that is not known is None, never 0.

    Attributes:
        time_ms: When it was looked at, in milliseconds since 1970.
        members: How many consumers were alive.
        verdict: What was to be thought of it.
        lag_bytes, lag_messages, lag_s: Over all its partitions.
        topics: Its lag in each topic.
        end_bytes: Where the partitions end that it reads, together.
        bytes_per_s: How fast that grew since the look before.
    """

    time_ms: int
    members: int
    verdict: LagVerdict
    lag_bytes: int | None
    lag_messages: int | None
    lag_s: float | None
    topics: Mapping[str, TopicLag]
    end_bytes: int | None = None
    bytes_per_s: float | None = None

    def since(self, before: "SeenGroup | None") -> "SeenGroup":
        """Return this group with what it got since an earlier look."""
        if before is None or before.time_ms >= self.time_ms:
            return self
        if self.end_bytes is None or before.end_bytes is None:
            return replace(self, bytes_per_s=before.bytes_per_s)
        grown, passed_s = self.end_bytes - before.end_bytes, (self.time_ms - before.time_ms) / 1000
        return replace(self, bytes_per_s=max(0.0, grown / passed_s))


def seen(group: GroupDescription, time_ms: int, *, whole: bool = True) -> SeenGroup:
    """Return what is kept of a group; of one that was not looked at as a whole, no lag is known."""
    verdict = group.worst_verdict(THRESHOLDS, now_s=time_ms / 1000)
    if not whole:
        if verdict.verdict in ("ok", "unknown"):
            verdict = LagVerdict("unknown", "not_measured")
        return SeenGroup(time_ms, len(group.members), verdict, None, None, None, {})
    topics: dict[str, TopicLag] = {}
    for each in group.partitions:
        total, age = topics.get(each.topic, (0, 0.0))
        topics[each.topic] = TopicLag(
            None if total is None or each.lag_bytes is None else total + each.lag_bytes,
            _most(age, each.lag_s),
        )
    return SeenGroup(
        time_ms,
        len(group.members),
        verdict,
        group.lag_bytes,
        group.lag_messages,
        group.lag_s,
        topics,
        _total(each.end for each in group.partitions),
    )


def unread(time_ms: int) -> SeenGroup:
    """Return what is kept of a group that could not be read."""
    return SeenGroup(time_ms, 0, LagVerdict("unknown"), None, None, None, {})


@dataclass(frozen=True, slots=True)
class TopicReaders:
    """The groups that read a topic, sorted, and the largest lag of them; None: of one unknown."""

    groups: tuple[str, ...]
    lag: TopicLag


def readers_of(
    contracts: Iterable[GroupContract], lags: Mapping[str, SeenGroup]
) -> dict[str, TopicReaders]:
    """Return the readers of each topic that has some."""
    names: dict[str, list[str]] = {}
    most: dict[str, TopicLag] = {}
    for contract in contracts:
        found = lags.get(contract.group)
        for topic in contract.topics:
            names.setdefault(topic, []).append(contract.group)
            own = (found and found.topics.get(topic)) or TopicLag()
            before = most.get(topic, TopicLag(0, 0.0))
            most[topic] = TopicLag(
                _most(before.lag_bytes, own.lag_bytes), _most(before.lag_s, own.lag_s)
            )
    return {topic: TopicReaders(tuple(sorted(each)), most[topic]) for topic, each in names.items()}


def _total(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(each or 0 for each in known)


def _most(one: Any, other: Any) -> Any:
    return None if one is None or other is None else max(one, other)
