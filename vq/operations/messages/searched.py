"""What a search for messages has searched: its results, and how far one under way is.

In here: values, and what follows from them. Not in here: asking brokers (``finding``).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vq import limits
from vq.errors import (
    CorruptData,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionQuarantined,
    VqError,
)
from vq.model import Message, Span, TopicPartition

#: A search ends when the messages found have so many bytes.
CONTENT_BYTES_MAX: Final = 256 * limits.MIB
#: Errors that say that bytes are lost where they should be.
DAMAGE: Final = (PartitionQuarantined, PartitionFailed, CorruptData, OffsetOutOfRange)


class GapKind(enum.StrEnum):
    """Why a range could not be searched."""

    DELETED = "deleted"
    """Its messages were deleted, since the topic does not keep them."""
    DAMAGED = "damaged"
    UNREACHABLE = "unreachable"
    """No broker that has it answered, or its broker cannot reach it now."""


@dataclass(frozen=True, slots=True)
class SearchGap:
    """A range of offsets ``[start, end)`` that was asked for and could not be searched.

    Attributes:
        start: Its first offset.
        end: The offset behind it; None: up to the end of the partition, which is not known.
        kind: Why.
        reason: The same for people.
    """

    start: int
    end: int | None
    kind: GapKind
    reason: str


@dataclass(frozen=True, slots=True)
class SearchedPartition:
    """What was searched of one partition: ``[start, next_offset)`` without the ``gaps``.

    Attributes:
        partition: Its number.
        start: The first offset that was to be searched.
        end: Where the range ended that was to be searched; None: not known.
        next_offset: Where to go on; ``end`` if nothing is left.
        done: Whether nothing is left; gaps are not left.
        read_bytes: Bytes of the log that brokers read.
        skipped_bytes: Bytes of the log that key indexes ruled out.
        first_ms: When the first batch searched was stored, in milliseconds since 1970; None: there
            was none.
        last_ms: When the last one was.
        gaps: In rising order.
    """

    partition: int
    start: int
    end: int | None
    next_offset: int
    done: bool
    read_bytes: int
    skipped_bytes: int
    first_ms: int | None
    last_ms: int | None
    gaps: tuple[SearchGap, ...]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """What a search found, and where it searched.

    Attributes:
        messages: In the order in which they were sent, as far as that of each partition allows it.
        searched: One for each partition.
        since_ms: Only messages stored at or after this time count; None: all.
        until_ms: Only those stored before this time do; None: all.
        stopped: Why it ended early: ``limit`` (enough messages), ``bytes`` or ``timeout``; None: it
            did not.
    """

    messages: tuple[Message, ...]
    searched: tuple[SearchedPartition, ...]
    since_ms: int | None
    until_ms: int | None
    stopped: str | None

    @property
    def rest(self) -> dict[int, int]:
        """Where a search with ``offsets`` goes on: the partitions of which something is left."""
        return {each.partition: each.next_offset for each in self.searched if not each.done}

    @property
    def gaps(self) -> list[tuple[int, SearchGap]]:
        """The ranges that could not be searched, with their partitions."""
        return [(each.partition, gap) for each in self.searched for gap in each.gaps]

    @property
    def complete(self) -> bool:
        """Whether all that is kept of the range was searched."""
        lost = any(gap.kind is not GapKind.DELETED for _, gap in self.gaps)
        return not self.rest and not lost


class Budget:
    """How much all partitions together may still find and search."""

    def __init__(self, messages: int, searched_bytes: int | None) -> None:
        self.messages = messages
        self.searched_bytes = searched_bytes
        self.content_bytes = CONTENT_BYTES_MAX
        self.stopped: str | None = None

    def stop(self, why: str) -> None:
        """Note the first reason to end early."""
        self.stopped = self.stopped or why

    def spend(self, messages: Sequence[Message], searched_bytes: int) -> None:
        """Note what a broker has found and searched."""
        self.messages -= len(messages)
        self.content_bytes -= sum(len(each.content) for each in messages)
        if self.searched_bytes is not None:
            self.searched_bytes -= searched_bytes
            if self.searched_bytes <= 0:
                self.stop("bytes")
        if self.messages <= 0 or self.content_bytes <= 0:
            self.stop("limit")


class SearchPlace(NamedTuple):
    """Where a search of one partition is."""

    start: int
    position: int
    end: int | None
    gaps: int


@dataclass(slots=True)
class Work:
    """The search of one partition, under way."""

    partition: TopicPartition
    start: int
    position: int
    end: int | None = None
    read_bytes: int = 0
    skipped_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    gaps: list[SearchGap] = field(default_factory=list)

    @property
    def place(self) -> SearchPlace:
        """Where it is."""
        return SearchPlace(self.start, self.position, self.end, len(self.gaps))

    def go_back(self, place: SearchPlace) -> None:
        """Be where it was, as nothing was searched since."""
        self.start, self.position, self.end, _ = place

    def add_gap(self, start: int, end: int | None, kind: GapKind, reason: str) -> None:
        """Note a gap, unless it is empty."""
        if end is None or start < end:
            self.gaps.append(SearchGap(start, end, kind, reason))

    def fail(self, span: Span, error: VqError) -> None:
        """Give up the rest of a range."""
        kind = GapKind.DAMAGED if isinstance(error, DAMAGE) else GapKind.UNREACHABLE
        self.add_gap(self.position, span.end, kind, f"{type(error).__name__}: {error}")
        self.end = span.end
        if span.end is not None:
            self.position = span.end

    def result(self, *, done: bool) -> SearchedPartition:
        """Return what became of it."""
        return SearchedPartition(
            self.partition.partition,
            self.start,
            self.end,
            self.position,
            done,
            self.read_bytes,
            self.skipped_bytes,
            self.first_ms,
            self.last_ms,
            tuple(sorted(self.gaps, key=lambda gap: gap.start)),
        )
