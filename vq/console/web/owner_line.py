"""Who had which partition of a group when, as lanes of a picture. Decisions.

The history has claims: when a member took a partition, not when it let go. A lane has a span from
each claim to the next one. The last span ends now if its member still has the partition; otherwise
nobody knows when it ended, and it is drawn as such.

    lane t/0     claims: A at 10:00, B at 10:20; B has it, and it is 10:30
                 spans:  A 0 to 66 %, B 66 to 100 %
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from vq.clock import DAY_MS, MINUTE_MS
from vq.model import TopicPartition
from vq.operations.groups.balance import OwnerChange

#: Partitions of one picture; the others are on further pages.
LANES_MAX: Final = 20
#: So many members have a colour of their own; the others share theirs, and differ by number.
COLOURS: Final = 6
_TICKS: Final = 3
#: Percent that a span is wide at least: a short one is seen, too.
_LEAST: Final = 0.5


@dataclass(frozen=True, slots=True)
class OwnedSpan:
    """A time for which a member had a partition.

    Attributes:
        member: Its name.
        number: Of the member in this picture, from 1 on.
        x, width: In percent of the picture.
        begin_ms, end_ms: Milliseconds since 1970; no end: it goes on, or nobody knows its end.
        lost: The member has the partition no more, and when it lost it is not known.
    """

    member: str
    number: int
    x: float
    width: float
    begin_ms: int
    end_ms: int | None
    lost: bool


@dataclass(frozen=True, slots=True)
class OwnerLane:
    """The spans of one partition, the first one first."""

    partition: TopicPartition
    spans: Sequence[OwnedSpan]


@dataclass(frozen=True, slots=True)
class OwnerLine:
    """A picture.

    Attributes:
        lanes: One for each partition.
        members: Those that are in it, by their numbers.
        ticks: Times below it: percent, and text.
    """

    lanes: Sequence[OwnerLane]
    members: Mapping[int, str]
    ticks: Sequence[tuple[float, str]]

    @staticmethod
    def colour(number: int) -> int:
        """Return the number of the colour of a member."""
        return (number - 1) % COLOURS


def owner_line(
    partitions: Sequence[TopicPartition],
    changes: Sequence[OwnerChange],
    owners: Mapping[TopicPartition, str | None],
    *,
    now_ms: int,
    back_ms: int | None = None,
) -> OwnerLine:
    """Return the picture of some partitions.

    Args:
        partitions: Those to draw, in their order.
        changes: Claims of any partitions of the group.
        owners: Who has a partition now.
        now_ms: The right edge, in milliseconds since 1970.
        back_ms: How far back it goes; None: to the first claim that is remembered.
    """
    claims: dict[TopicPartition, list[OwnerChange]] = {each: [] for each in partitions}
    for change in changes:
        place = TopicPartition(change.topic, change.partition)
        if place in claims:
            claims[place].append(change)
    first = min((each.time_ms for of in claims.values() for each in of), default=now_ms)
    begin_ms = min(first, now_ms - 1) if back_ms is None else now_ms - max(1, back_ms)
    numbers: dict[str, int] = {}
    lanes = [
        OwnerLane(place, _spans(of, owners.get(place), numbers, begin_ms, now_ms))
        for place, of in claims.items()
    ]
    ticks = [
        (
            share * 100 / _TICKS,
            _time(begin_ms + (now_ms - begin_ms) * share // _TICKS, begin_ms, now_ms),
        )
        for share in range(_TICKS + 1)
    ]
    return OwnerLine(lanes, {number: name for name, number in numbers.items()}, ticks)


def _spans(
    claims: Sequence[OwnerChange],
    owner: str | None,
    numbers: dict[str, int],
    begin_ms: int,
    now_ms: int,
) -> list[OwnedSpan]:
    """Return the spans of one partition; clocks of members may be wrong, so times only rise."""
    found = []
    ordered = sorted(claims, key=lambda each: each.generation)
    at_ms = 0
    for place, claim in enumerate(ordered):
        at_ms = min(max(at_ms, claim.time_ms), now_ms)
        last = place == len(ordered) - 1
        end_ms = now_ms if last else min(max(at_ms, ordered[place + 1].time_ms), now_ms)
        if not claim.member or end_ms < begin_ms:
            continue
        x = _percent(max(at_ms, begin_ms), begin_ms, now_ms)
        width = max(_percent(end_ms, begin_ms, now_ms) - x, _LEAST)
        found.append(
            OwnedSpan(
                claim.member,
                numbers.setdefault(claim.member, len(numbers) + 1),
                min(x, 100 - width),
                width,
                at_ms,
                None if last else end_ms,
                last and claim.member != owner,
            )
        )
    return found


def _percent(time_ms: int, begin_ms: int, now_ms: int) -> float:
    return round((time_ms - begin_ms) / (now_ms - begin_ms) * 100, 3)


def _time(time_ms: int, begin_ms: int, now_ms: int) -> str:
    form = "%m-%d %H:%M" if now_ms - begin_ms > DAY_MS else "%H:%M"
    if now_ms - begin_ms < 10 * MINUTE_MS:
        form = "%H:%M:%S"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""
