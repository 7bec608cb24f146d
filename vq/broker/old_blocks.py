"""The blocks of a partition that take no more appends, as retention and the archive look at them.

In here: which these are, and reading facts of one on a lane. Not in here: what follows from that.
"""

from collections.abc import Callable
from typing import TypeVar

from vq.broker.channel import Channel
from vq.broker.partition_state import State
from vq.broker.runner import Lane, Runner
from vq.errors import CorruptData
from vq.store.block import Block
from vq.store.block_facts import read_first_ms
from vq.store.disk import Disk
from vq.store.log import Log
from vq.store.retention import Kept
from vq.store.scrub import Piece

__all__ = ["closed_blocks", "first_ms_of", "is_whole", "kept_of", "read_block"]

_BROKEN = frozenset({State.FAILED, State.QUARANTINED, State.UNREADABLE, State.CLOSED})

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


def kept_of(log: Log, block: Block) -> Kept:
    """Return what is known of a block's age, and of what it takes on the disk."""
    last_ms = None if block.facts is None else block.facts.last_ms
    if block.end_offset == log.end_offset:
        last_ms = log.last_append_time_ms
    archive, archive_bytes = block.archive, None
    if archive is not None:
        archive_bytes = 0 if archive.url else archive.zip_bytes
    return Kept(block.start_offset, block.end_offset, last_ms, archive_bytes)


async def first_ms_of(disk: Disk, runner: Runner, block: Block) -> int | None:
    """Return the append time of a block's first batch; None: damage hides it."""
    if block.index is not None:
        return block.index.at_offset(block.start_offset).append_time_ms
    return await read_block(disk, runner, read_first_ms, block)


async def read_block(
    disk: Disk, runner: Runner, read: Callable[[Disk, Piece], T], block: Block
) -> T | None:
    """Return what ``read`` finds in a block; None: damage, or a failing medium, hides it."""
    piece = Piece(block.path, block.start_offset, block.start_offset, block.end_offset)
    try:
        return await runner.run(lambda: read(disk, piece), Lane.VERIFY)
    except (CorruptData, OSError):
        return None
