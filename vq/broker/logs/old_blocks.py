"""The blocks of a partition that take no more appends, as retention and the archive look at them.

In here: which these are, and reading facts of one on a lane. Not in here: what follows from that.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from vq.broker.base.runner import Lane, Runner
from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelState
from vq.clock import Clock
from vq.errors import CorruptData
from vq.store.disk.disk import Disk
from vq.store.log.block import Block
from vq.store.log.block_facts import read_first_ms
from vq.store.log.log import Log
from vq.store.log.piece import Piece
from vq.store.log.retention import Kept

#: An append time so far ahead of the clock is not believed. A clock that goes back by less makes
#: blocks look younger for as long as that.
AHEAD_MS: Final = 3_600_000
_BROKEN = frozenset(
    {ChannelState.FAILED, ChannelState.QUARANTINED, ChannelState.UNREADABLE, ChannelState.CLOSED}
)

T = TypeVar("T")


def is_whole(channel: Channel) -> bool:
    """Whether the log of a partition can be changed."""
    return channel.log is not None and channel.state not in _BROKEN and not channel.place.silent


def closed_blocks(channel: Channel) -> list[tuple[Log, Block]]:
    """Return the blocks that take no more appends, with their logs, in rising order.

    Those of an earlier range count as closed: nothing is appended to it any more. One that is
    damaged stays as it is.
    """
    found: list[tuple[Log, Block]] = []
    for part in (*channel.older, channel):
        log = part.log
        if log is None or not log.status.can_flush:
            continue
        blocks = list(log.closed_blocks)
        if part is not channel and log.open_block is not None:
            blocks.append(log.open_block)
        found += [(log, block) for block in blocks if block.length]
    return found


def kept_of(log: Log, block: Block, clock: Clock) -> Kept:
    """Return what is known of a block's age, and of what it takes on the disk."""
    last_ms = None if block.facts is None else block.facts.last_ms
    if block.end_offset == log.end_offset:
        last_ms = log.last_append_time_ms
    last_ms = _aging(block, last_ms, clock, closed=True)
    archive, archive_bytes = block.archive, None
    if archive is not None:
        archive_bytes = 0 if archive.url else archive.zip_bytes
    ahead = block.ahead_since is not None
    return Kept(block.start_offset, block.end_offset, last_ms, archive_bytes, ahead)


async def first_ms_of(disk: Disk, runner: Runner, block: Block, clock: Clock) -> int | None:
    """Return since when a block that takes appends has a batch; None: damage hides it."""
    if block.index is not None:
        first_ms: int | None = block.index.at_offset(block.start_offset).append_time_ms
    else:
        first_ms = await read_block(disk, runner, read_first_ms, block)
    return _aging(block, first_ms, clock, closed=False)


def is_ahead(time_ms: int, clock: Clock) -> bool:
    """Whether an append time lies so far ahead that a clock must have been wrong."""
    return time_ms > clock.wall_ms() + AHEAD_MS


def ahead_ms_of(channel: Channel, clock: Clock) -> int:
    """Return how far what is stored now gets a time ahead of the clock; 0: an hour at most."""
    time_ms = 0 if channel.log is None else channel.log.last_append_time_ms
    return time_ms - clock.wall_ms() if is_ahead(time_ms, clock) else 0


def _aging(block: Block, time_ms: int | None, clock: Clock, *, closed: bool) -> int | None:
    """Return an append time of a block; one that lies ahead is when that was first seen.

    A clock was wrong then, and append times never fall along a log: the block would stay young
    until that time has come. Since it was seen, a block is as old as the time that passed; a clock
    that is set changes nothing of that. What was seen is forgotten when the log is closed, and when
    the block is ``closed``: so it is never taken for older than it is.
    """
    if time_ms is None or not is_ahead(time_ms, clock):
        block.ahead_since = None
        return time_ms
    if block.ahead_since is None or block.ahead_since[0] is not closed:
        block.ahead_since = closed, clock.monotonic()
    return clock.wall_ms() - int((clock.monotonic() - block.ahead_since[1]) * 1000)


async def read_block(
    disk: Disk, runner: Runner, read: Callable[[Disk, Piece], T], block: Block
) -> T | None:
    """Return what ``read`` finds in a block; None: damage, or a failing medium, hides it."""
    piece = block.piece
    try:
        return await runner.run(lambda: read(disk, piece), Lane.VERIFY)
    except (CorruptData, OSError):
        return None
