"""Counting over blocks whose index was lost (the rest is seen through the log's own questions)."""

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log

from vq.errors import CorruptData
from vq.store import lookup
from vq.store.memory_disk import keep_all


def test_counts_before_a_block_are_found_from_the_blocks_behind() -> None:
    """Whichever indexes are missing."""
    disk = memory_disk()
    log = open_log(disk)
    for number in range(30):
        append(log, *[bytes(300)] * (number % 3 + 1))
    flush(log)
    blocks, total = log._blocks, log.messages_appended
    right = [lookup.before_block(blocks, at, messages_appended=total) for at in range(len(blocks))]
    log.close()
    indexes = [n for n in disk.listdir(DIRECTORY) if n.endswith(".index")]
    assert len(indexes) == len(right) - 1
    for lost in (indexes, indexes[1:3], indexes[-1:]):
        copy = disk.crash(keep_all)
        for name in lost:
            copy.unlink(DIRECTORY / name)
        again = open_log(copy)
        for at, expected in enumerate(right):
            found = lookup.before_block(again._blocks, at, messages_appended=total)
            assert found == expected


def test_a_batch_that_cannot_be_found_is_damage() -> None:
    """An offset behind the block's end holds none."""
    log = open_log(memory_disk())
    append(log, b"x")
    with pytest.raises(CorruptData):
        lookup.batch_at(log._blocks[0], log.end_offset)
