"""The ordered collection of blocks."""

from pathlib import Path

import pytest

from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.block import Block, BlockCache
from vq.store.log.blocks import Blocks


def block(start: int, length: int) -> Block:
    return Block(Path("/b"), start, disk=MemoryDisk(), cache=BlockCache(), length=length)


def test_an_offset_is_found_in_the_block_that_begins_before_it() -> None:
    """Binary search on the names."""
    made = [block(100, 50), block(150, 10), block(160, 0)]
    blocks = Blocks(made)
    assert [blocks.at(o) for o in (100, 149, 150, 159, 160, 999)] == [
        made[0],
        made[0],
        made[1],
        made[1],
        made[2],
        made[2],
    ]
    assert blocks.at(99) is None
    assert blocks.index_at(99) == -1
    assert (len(blocks), list(blocks), blocks[1], blocks.last) == (3, made, made[1], made[2])


def test_blocks_lie_side_by_side() -> None:
    """A gap or an overlap is our bug."""
    for start in (149, 151):
        with pytest.raises(ValueError, match="does not follow"):
            Blocks([block(100, 50), block(start, 1)])


def test_the_first_can_be_dropped() -> None:
    """Until none is left."""
    blocks = Blocks([block(0, 5), block(5, 5)])
    assert blocks.drop_first().start_offset == 0
    assert blocks.at(4) is None
    blocks.drop_first()
    assert (len(blocks), blocks.last) == (0, None)
