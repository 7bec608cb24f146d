"""Which blocks of a log retention deletes, and what keeps the others; without I/O.

Blocks go in rising order and as a whole, so the answer is an offset: what lies before it goes. A
block goes when it is too old or too much, and nobody needs it.

*Age.* A block is as old as its last batch. Append times never fall along a log, so a clock that was
set back makes blocks look younger than they are, never older. A time that cannot be read is taken
from the next block that has one.

*Pressure.* While a disk is too full, topics may let go of messages before that: ``relieve`` takes
the oldest blocks of all that may go, over all partitions, until enough bytes are free.

*Size.* Blocks go while at least ``size_bytes`` are left: the newest bytes stay.

*Example*: blocks [0, 100), [100, 200), [200, 300), appended up to 01:00, 02:00 and 03:00, and an
open block [300, 330). At 05:30, with an age of 3 hours, [0, 200) goes. With the policy ``keep`` and
a group that has committed 150, [0, 100) goes, and that group holds back [100, 200).
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class Kept(NamedTuple):
    """A block that takes no more appends.

    Attributes:
        start, end: Its offsets, ``[start, end)``; the next block starts at ``end``.
        last_ms: Append time of its last batch; None: not known.
        archive_bytes: What an archive of it takes on the disk, 0: nothing, it lies elsewhere; None:
            it is no archive, and takes what it has.
        is_ahead: That time lay ahead of the clock; ``last_ms`` is when this was first seen.
    """

    start: int
    end: int
    last_ms: int | None
    archive_bytes: int | None = None
    is_ahead: bool = False

    @property
    def frees(self) -> int:
        """How many bytes its deletion frees on the disk."""
        return self.end - self.start if self.archive_bytes is None else self.archive_bytes


class OpenBlock(NamedTuple):
    """The block that takes appends.

    Attributes:
        start, end: Its offsets.
        first_ms: Append time of its first batch; None: not known.
    """

    start: int
    end: int
    first_ms: int | None


class Limits(NamedTuple):
    """What a topic keeps.

    Attributes:
        age_ms: Blocks older than this go; None: no block is too old.
        size_bytes: So many bytes stay; None: nothing is too much.
    """

    age_ms: int | None = None
    size_bytes: int | None = None


class Cut(NamedTuple):
    """What goes.

    Attributes:
        start: Where the log starts.
        offset: Everything before it goes. Invariant: ``start <= offset``.
        wanted: What would go if nobody needed it. Invariant: ``offset <= wanted``.
        holder: Who needs the bytes behind ``offset``, which the topic would not keep; "": nobody.
    """

    start: int
    offset: int
    wanted: int
    holder: str = ""


def decide(
    blocks: Sequence[Kept],
    limits: Limits,
    *,
    start: int,
    size_bytes: int,
    now_ms: int,
    committed: int,
    needed: Mapping[str, int] | None = None,
    early: int = 0,
) -> Cut:
    """Return what goes of a partition.

    Args:
        blocks: Its closed blocks, in rising order. There may be gaps: ranges that others hold.
        limits: What its topic keeps.
        start: Where the first of them starts.
        size_bytes: Of all its blocks, with the open one.
        now_ms: The time now.
        committed: Nothing from here on goes.
        needed: By name of who needs it: from which offset on.
        early: What lies before it goes whatever the limits say; see ``relieve``.
    """
    wanted = max(start, early, _aged(blocks, limits, now_ms), _excess(blocks, limits, size_bytes))
    wanted = _last_end(blocks, start, min(wanted, committed))
    if not needed or wanted == start:
        return Cut(start, wanted, wanted)
    holder, first = min(needed.items(), key=lambda each: (each[1], each[0]))
    if first >= wanted:
        return Cut(start, wanted, wanted)
    return Cut(start, _last_end(blocks, start, first), wanted, holder)


def times_of(blocks: Sequence[Kept]) -> list[int | None]:
    """Return how old blocks count as: one without a time is as old as the next one that has one.

    One whose time lay ahead is at least as old as the next one. No other one is: the next one may
    have the time of a clock that was behind, or of a damaged index.
    """
    times: list[int | None] = []
    time_ms: int | None = None
    for block in reversed(blocks):
        if block.last_ms is not None and not (
            block.is_ahead and time_ms is not None and time_ms < block.last_ms
        ):
            time_ms = block.last_ms
        times.append(time_ms)
    return times[::-1]


def _last_end(blocks: Sequence[Kept], start: int, offset: int) -> int:
    """Return where the last block ends that ends at or before ``offset``; ``start``: none does."""
    return max((block.end for block in blocks if block.end <= offset), default=start)


def _aged(blocks: Sequence[Kept], limits: Limits, now_ms: int) -> int:
    """Return where the blocks end that are too old; 0 if none is."""
    if limits.age_ms is None:
        return 0
    before_ms = now_ms - limits.age_ms
    offset = 0
    for block, time_ms in zip(blocks, times_of(blocks), strict=True):
        if time_ms is None or time_ms > before_ms:
            break
        offset = block.end
    return offset


def _excess(blocks: Sequence[Kept], limits: Limits, size_bytes: int) -> int:
    """Return where the blocks end without which enough bytes are left; 0 if there are none."""
    if limits.size_bytes is None:
        return 0
    offset, left = 0, size_bytes
    for block in blocks:
        left -= block.end - block.start
        if left < limits.size_bytes:
            break
        offset = block.end
    return offset


def must_roll(block: OpenBlock, limits: Limits, *, now_ms: int) -> bool:
    """Return whether the open block must end, so that it can go one day.

    Otherwise a block that takes years to fill would keep its first message for years. Its first
    batch is too old, or the block alone has as much as is to stay.
    """
    if block.end == block.start:
        return False
    if limits.size_bytes is not None and block.end - block.start >= limits.size_bytes:
        return True
    if limits.age_ms is None or block.first_ms is None:
        return False
    return block.first_ms <= now_ms - limits.age_ms


def relieve(spare: Mapping[P, Sequence[Kept]], excess_bytes: int) -> dict[P, int]:
    """Return where the blocks end, by partition, that go early so that enough bytes are free.

    The oldest go first, whatever partition they are of, and of each partition the first ones. No
    more go than are needed, or all if they are not enough. Blocks that free nothing, archives that
    lie elsewhere, go only where one behind them frees something.

    *Example*: p has blocks [0, 50) of 01:00 and [50, 100) of 03:00, q has [0, 80) of 02:00. For 60
    bytes, p goes up to 50 and q up to 80; the block of 03:00 stays.

    Args:
        spare: Of each partition, the blocks that may go, in rising order from its first one.
        excess_bytes: How many bytes are to be freed.
    """
    by_age: list[tuple[int, int, int, P, Kept]] = []
    for number, (partition, blocks) in enumerate(spare.items()):
        newest_ms = 0
        for at, (block, time_ms) in enumerate(zip(blocks, times_of(blocks), strict=True)):
            newest_ms = max(newest_ms, time_ms or 0)  # none goes before the one in front of it
            if block.frees:
                by_age.append((newest_ms, number, at, partition, block))
    by_age.sort(key=lambda each: each[:3])
    ends: dict[P, int] = {}
    for _, _, _, partition, block in by_age:
        if excess_bytes <= 0:
            break
        excess_bytes -= block.frees
        ends[partition] = block.end
    return ends
