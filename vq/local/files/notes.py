"""The bytes of what a local queue writes beside its messages: completions, and the snapshot.

A **note** is the content of a record in the log ``notes``: for each lane the ranges of numbers that
were completed.

    | size | field          |                                       |
    |  1   | version        | 1                                     |
    |  1   | lane           |                                       |
    |  4   | count          | of ranges; lane, count and ranges may be repeated |
    | 16   | start, end     | ``[start, end)``, so many times       |

The **snapshot** is JSON with a checksum (``store.records.checked_text``); docs/formats.md has both.
All integers are big-endian. Pure.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vq.errors import CorruptData, DirectoryRefused
from vq.local.items import LATER, PRIORITIES
from vq.store.records.checked_text import decode_text, encode_text

NOTE_VERSION: Final = 1
SNAPSHOT_VERSION: Final = 3
_READABLE: Final = (2, SNAPSHOT_VERSION)  # 2: without the ids of what waits
_LANE: Final = struct.Struct(">BI")
_RANGE: Final = struct.Struct(">QQ")
#: Ranges of one note: half of the largest content.
RANGES_MAX: Final = 32_768

Range = tuple[int, int]
"""Numbers of a lane, ``[start, end)``."""
LaneRange = tuple[int, Range]
"""... and the lane."""


def code_of(lane: int, number: int) -> int:
    """Return one integer for a message."""
    return number << 2 | lane


def lane_and_number(code: int) -> tuple[int, int]:
    """Return what ``code_of`` was given."""
    return code & 3, code >> 2


assert LATER <= 3


def ranges_of(numbers: Iterable[int]) -> list[Range]:
    """Return the ranges that cover some numbers.

    Example: 5, 3, 4, 9 are ``[(3, 6), (9, 10)]``.
    """
    found: list[Range] = []
    start = end = -1
    for number in sorted(numbers):
        if number == end:
            end += 1
        elif number > end:
            if start >= 0:
                found.append((start, end))
            start, end = number, number + 1
    if start >= 0:
        found.append((start, end))
    return found


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in rising order, without overlaps, that cover the same numbers."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def without(kept: Range, gone: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of a range that are in none of some merged ranges."""
    start, end = kept
    for low, high in gone:
        if high <= start:
            continue
        if low >= end:
            break
        if low > start:
            yield start, low
        start = high
    if start < end:
        yield start, end


def encode_notes(codes: Iterable[int], more: Iterable[LaneRange] = ()) -> list[bytes]:
    """Return the notes that say which messages were completed: of these codes, and ranges."""
    lanes: list[list[int]] = [[] for _ in range(LATER + 1)]
    for code in codes:
        lanes[code & 3].append(code >> 2)
    others: list[list[Range]] = [[] for _ in range(LATER + 1)]
    for lane, numbers in more:
        others[lane].append(numbers)
    notes: list[bytes] = []
    parts = [bytes([NOTE_VERSION])]
    left = RANGES_MAX
    for lane, numbers_done in enumerate(lanes):
        ranges = ranges_of(numbers_done) + others[lane]
        while ranges:
            some, ranges = ranges[:left], ranges[left:]
            parts.append(_LANE.pack(lane, len(some)))
            parts += [_RANGE.pack(*each) for each in some]
            left -= len(some)
            if not left:
                notes.append(b"".join(parts))
                parts, left = [bytes([NOTE_VERSION])], RANGES_MAX
    if len(parts) > 1:
        notes.append(b"".join(parts))
    return notes


def decode_note(data: bytes) -> Iterator[tuple[int, Range]]:
    """Yield lane and range of each range in a note.

    Raises:
        CorruptData: It is none that this version knows.
    """
    if not data or data[0] != NOTE_VERSION:
        raise CorruptData(f"a note begins with {data[:1]!r}; this vq knows version {NOTE_VERSION}")
    at = 1
    try:
        while at < len(data):
            lane, count = _LANE.unpack_from(data, at)
            at += _LANE.size
            if lane > LATER:
                raise CorruptData(f"a note names lane {lane}; there are 0 to {LATER}")
            for _ in range(count):
                yield lane, _RANGE.unpack_from(data, at)
                at += _RANGE.size
    except struct.error as error:
        raise CorruptData(f"a note of {len(data)} bytes is cut off: {error}") from error


class OpenRange(NamedTuple):
    """Messages that were read from their lane and are not completed.

    Attributes:
        start, end: Their numbers, ``[start, end)``.
        offset: A boundary of records in the lane, at or before the first of them.
        first: The number of the message at that boundary; -1: ``start``, as in every snapshot.
    """

    start: int
    end: int
    offset: int
    first: int = -1


class Aside(NamedTuple):
    """A message in the lane ``LATER`` that waits for its time; the first to be due is the least.

    Attributes:
        due_ms: When it is given, in ms since 1970.
        number, offset: Where it is.
        priority: Of the lane that it goes to.
        attempts: How often it was given.
        id: Of the message; 0: not known, as in a snapshot of version 2.
    """

    due_ms: int
    number: int
    offset: int
    priority: int
    attempts: int
    id: int = 0


@dataclass(slots=True)
class LaneSnapshot:
    """How far a lane was read.

    Attributes:
        next_number, next_offset: Of the first message that was not read.
        opened: What was read and is not completed.
        skipped: Behind ``next_number``, merged: what is completed nevertheless.
        end: Of the lane's log: what is behind it was put after the snapshot.
    """

    next_number: int = 0
    next_offset: int = 0
    opened: list[OpenRange] = field(default_factory=list)
    skipped: list[Range] = field(default_factory=list)
    end: int = 0

    def is_open(self, number: int) -> bool:
        """Whether a message with this number, if there is one, is not completed."""
        if number < self.next_number:
            return any(each.start <= number < each.end for each in self.opened)
        return not any(start <= number < end for start, end in self.skipped)


@dataclass(slots=True)
class Snapshot:
    """What a queue knows, as of one moment between two commits.

    Attributes:
        lanes: By priority.
        asides: What waits for its time, those that a taker has included.
        later_number, later_offset: The end of the lane ``LATER`` then.
        keys: Idempotency keys, with when they were put, in ms since 1970.
        notes: The offset in the notes from which on they are to be read.
    """

    lanes: list[LaneSnapshot] = field(
        default_factory=lambda: [LaneSnapshot() for _ in range(PRIORITIES)]
    )
    asides: list[Aside] = field(default_factory=list)
    later_number: int = 0
    later_offset: int = 0
    keys: list[tuple[str, int]] = field(default_factory=list)
    notes: int = 0

    def to_bytes(self) -> bytes:
        """Return the file."""
        lanes = [
            {
                "next": [lane.next_number, lane.next_offset],
                "open": [each[:3] for each in lane.opened],
                "skip": lane.skipped,
                "end": lane.end,
            }
            for lane in self.lanes
        ]
        return encode_text(
            SNAPSHOT_VERSION,
            {
                "lanes": lanes,
                "asides": self.asides,
                "later": [self.later_number, self.later_offset],
                "keys": self.keys,
                "notes": self.notes,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """Return what ``to_bytes`` was called on.

        Raises:
            CorruptData: It is damaged.
            DirectoryRefused: A later vq wrote it.
        """
        version, values = decode_text(data, version_max=SNAPSHOT_VERSION)
        if version not in _READABLE:
            raise DirectoryRefused(
                f"the snapshot has version {version}; this vq knows {SNAPSHOT_VERSION}. A later vq "
                "wrote it: use that one"
            )
        try:
            return cls._of(values)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptData(f"the snapshot says {json.dumps(values)[:200]}: {error!r}") from error

    @classmethod
    def _of(cls, values: dict[str, Any]) -> "Snapshot":
        lanes = [
            LaneSnapshot(
                each["next"][0],
                each["next"][1],
                [OpenRange(*one) for one in each["open"]],
                [(start, end) for start, end in each["skip"]],
                each["end"],
            )
            for each in values["lanes"]
        ]
        if len(lanes) != PRIORITIES:
            raise ValueError(f"{len(lanes)} lanes")
        number, offset = values["later"]
        return cls(
            lanes,
            [Aside(*each) for each in values["asides"]],
            number,
            offset,
            [(key, ms) for key, ms in values["keys"]],
            values["notes"],
        )
