"""One block, and the cache that bounds open files."""

import errno
from pathlib import Path

import pytest

from vq.errors import CorruptData
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.block import Block, BlockCache
from vq.store.records.format import BatchHeader, encode_control

HOME = Path("/b")


def make(disk: MemoryDisk, start: int, *, cache: BlockCache, batches: int = 0) -> Block:
    """A block of empty batches, one every 88 bytes."""
    disk.mkdir(HOME)
    block = Block(HOME, start, disk=disk, cache=cache)
    file = block.open(create=True)
    for number in range(batches):
        header = BatchHeader(start + 88 * number, 88, number, 1000 + number)
        file.pwrite([encode_control(header, 0)], 88 * number)
    block.length = block.synced_length = block.allocated = 88 * batches
    return block


def test_headers_are_walked_from_any_batch() -> None:
    """To the end of the block."""
    block = make(MemoryDisk(), 1000, cache=BlockCache(), batches=5000)
    assert len(list(block.headers(1000))) == 5000
    assert [h.start_offset for h in block.headers(block.end_offset - 176)] == [
        block.end_offset - 176,
        block.end_offset - 88,
    ]
    assert list(block.headers(block.end_offset)) == []
    assert block.header_at(block.start_offset).append_time_ms == 1000


def test_a_walk_stops_at_damage() -> None:
    """And tells where."""
    block = make(MemoryDisk(), 1000, cache=BlockCache(), batches=5)
    assert block.file is not None
    block.file.pwrite([b"\xff"], 176 + 30)
    with pytest.raises(CorruptData) as caught:
        list(block.headers(1000))
    assert caught.value.details["offset"] == 1176
    with pytest.raises(CorruptData) as caught:
        list(block.headers(1001))
    assert caught.value.details["offset"] == 1001


def test_the_index_is_loaded_or_built() -> None:
    """The same either way; a damaged or foreign file is not believed."""
    disk, cache = MemoryDisk(), BlockCache(waits=True)
    block = make(disk, 1000, cache=cache, batches=3000)
    built = block.load_index()
    assert block.messages == sum(range(3000))
    built.messages_before = 77
    disk.write_atomic(block.index_path, block.index_bytes())
    for text, before in (
        (block.index_bytes(), 77),
        (block.index_bytes()[:-1], -1),
        (built.to_bytes(end_offset=5, messages=5), -1),
    ):
        disk.write_atomic(block.index_path, text)
        block.index = None
        assert block.load_index().messages_before == before
        assert block.messages == sum(range(3000))


def test_a_closed_block_opens_itself_and_forgets_only_what_is_saved() -> None:
    """The index in memory goes if it can be had again."""
    block = make(MemoryDisk(), 0, cache=BlockCache(waits=True), batches=3)
    block.load_index()
    block.index_saved = False
    block.close()
    assert (block.file, block.index is None) == (None, False)
    assert len(block.view(0, 88)) == 88
    block.index_saved = True
    block.close()
    block.close()
    assert block.index is None


def test_allocation_takes_what_there_is() -> None:
    """The wish if it fits, the need if only that fits, else nothing."""
    disk = MemoryDisk(capacity_bytes=10_000)
    block = make(disk, 0, cache=BlockCache())
    block.allocate(100, 8192)
    assert (block.allocated, disk.size(block.path)) == (8192, 8192)
    disk.capacity_bytes = 12_288
    block.allocate(8200, 65536)
    assert block.allocated == 12_288
    with pytest.raises(OSError, match="full") as caught:
        block.allocate(12_289, 65536)
    assert caught.value.errno == errno.ENOSPC
    assert block.allocated == disk.size(block.path) == 12_288
    block.cut_allocation()
    assert disk.size(block.path) == 0


def test_the_least_recently_used_are_closed_but_never_dirty_ones() -> None:
    """Or the one that is being used."""
    disk, cache = MemoryDisk(), BlockCache(3)
    blocks = [make(disk, n * 1000, cache=cache, batches=1) for n in range(5)]
    blocks[0].synced_length = 0
    cache.pin(blocks[0])
    blocks[1].view(0, 8)
    cache.trim(blocks[2])
    assert [b.file is not None for b in blocks] == [True, True, True, False, False]
    assert disk.open_files == len(cache) == 3
    blocks[0].synced_length = blocks[0].length
    cache.unpin(blocks[0])
    cache.trim()
    blocks[3].open()
    cache.trim(blocks[3])
    assert [b.file is not None for b in blocks] == [True, True, False, True, False]
    cache.close_all()
    assert disk.open_files == 0


def test_more_dirty_blocks_than_may_be_open_leave_no_room_for_clean_ones() -> None:
    """All dirty ones stay open; of the clean ones only the one in use."""
    disk, cache = MemoryDisk(), BlockCache(3)
    blocks = [make(disk, n * 1000, cache=cache, batches=1) for n in range(6)]
    for block in blocks[:4]:
        block.synced_length = 0
        cache.pin(block)
    cache.trim(blocks[4])
    assert [b.file is not None for b in blocks] == [True, True, True, True, True, False]
    cache.give(blocks[0], own := BlockCache(0))
    own.trim()
    assert blocks[0].file is not None, "a dirty block stays so in another cache"


def test_a_file_that_cannot_be_closed_is_nobody_elses_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no bytes to lose; the log that makes room for itself goes on."""
    disk, cache = MemoryDisk(), BlockCache(1)
    first, second = (make(disk, n * 1000, cache=cache, batches=1) for n in range(2))

    def close(file: object) -> None:
        raise OSError(errno.EIO, "told to fail")

    monkeypatch.setattr(type(first.file), "close", close)
    cache.trim(second)
    assert "closing a block failed" in caplog.text
    assert (first.file, len(cache)) == (None, 1)


def test_a_block_given_away_is_out_of_reach() -> None:
    """Another thread works on it then."""
    disk, cache, own = MemoryDisk(), BlockCache(0), BlockCache()
    block = make(disk, 0, cache=cache, batches=1)
    cache.give(block, own)
    cache.trim()
    assert block.file is not None
    block.close()
    cache.give(block, own)
    assert (disk.open_files, len(own)) == (0, 0)
