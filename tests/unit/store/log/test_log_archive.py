"""Reading archived blocks: the same answers as before, and nothing is decompressed unasked."""

import itertools
import threading
import zlib

import pytest
from support.store import (
    DIRECTORY,
    append,
    archive,
    blocks_of,
    flush,
    memory_disk,
    open_log,
    patiently,
    payloads,
    restore,
    write_archive,
)

from vq.clock import ManualClock
from vq.errors import Busy, CorruptData, InvalidState, OffsetNotBoundary, PartitionFailed
from vq.store.archive.archive import ArchiveFiles
from vq.store.archive.archived_file import (
    ChunkCache,
    NotInMemory,
    open_stored,
    read_stub,
    stored_length,
)
from vq.store.care.walk import Walk
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.block import BlockCache
from vq.store.log.block_facts import read_facts
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig
from vq.store.log.piece import Piece

BLOCK = LogConfig(block_bytes=64 * 1024)
PAYLOADS = [b"%04d" % n * 200 for n in range(240)]


def filled(disk: MemoryDisk, *, archived: bool = True) -> Log:
    """Return a log of four blocks, of which the first three are archived, in many chunks."""
    clock = ManualClock()
    log = open_log(disk, config=BLOCK, clock=clock)
    for number, payload in enumerate(PAYLOADS):
        append(log, payload, epoch=1 + number // 50)
        clock.advance(1.0)
        flush(log)
    if archived:
        for block in blocks_of(log)[:3]:
            archive(disk, log, block, chunk_bytes=8192)
    return log


@pytest.fixture
def pair() -> tuple[Log, Log]:
    """The same log with and without archives."""
    return filled(memory_disk()), filled(memory_disk(), archived=False)


def starts(log: Log) -> list[int]:
    return [
        header.start_offset
        for block in blocks_of(log)
        for header in block.headers(block.start_offset)
    ]


def test_the_log_reads_as_before(pair: tuple[Log, Log]) -> None:
    """Every batch, byte by byte, chunk after chunk."""
    log, plain = pair
    assert [block.is_archived for block in blocks_of(log)] == [True] * 3 + [False]
    offset, found, fetches = 0, b"", 0
    while offset < log.end_offset:
        fetch = log.reader.cold(offset, 1 << 20, log.end_offset)
        if fetch is not None:
            fetch()
            fetches += 1
        view = log.reader.read(offset, 1 << 20, log.end_offset)
        found += view
        offset += len(view)
    expected = b"".join(
        plain.reader.read(b.start_offset, 1 << 20, plain.end_offset) for b in blocks_of(plain)
    )
    assert found == expected
    assert fetches > 20


def test_all_lookups_answer_as_before(pair: tuple[Log, Log]) -> None:
    """Boundaries, times, epochs, counts, the message before, across archives and live blocks."""
    log, plain = pair
    ends = [*starts(plain), plain.end_offset]
    for offset in ends[::7]:
        if offset < log.end_offset:
            assert patiently(lambda offset=offset: log.reader.check_boundary(offset))[0] is None
            with pytest.raises(OffsetNotBoundary) as ours:
                patiently(lambda offset=offset: log.reader.check_boundary(offset + 5))
            with pytest.raises(OffsetNotBoundary) as theirs:
                plain.reader.check_boundary(offset + 5)
            assert ours.value.details == theirs.value.details
            assert patiently(lambda offset=offset: log.reader.appended_ms(offset))[
                0
            ] == plain.reader.appended_ms(offset)
        assert patiently(lambda offset=offset: log.reader.message_before(offset))[
            0
        ] == plain.reader.message_before(offset)
        count = patiently(lambda offset=offset: log.reader.count(offset, log.end_offset))[0]
        assert count == plain.reader.count(offset, plain.end_offset)
    first_ms, last_ms = blocks_of(plain)[0].header_at(0).append_time_ms, plain.last_append_time_ms
    for time_ms in range(first_ms - 1500, last_ms + 1500, 3777):
        found = patiently(lambda time_ms=time_ms: log.reader.offset_at_time(time_ms))[0]
        assert found == plain.reader.offset_at_time(time_ms)


def test_epochs_are_known_without_looking_into_archives(pair: tuple[Log, Log]) -> None:
    """Every answer to a reader tells one."""
    log, plain = pair
    for epoch in range(8):
        assert log.reader.epoch_end(epoch) == plain.reader.epoch_end(epoch)
    for offset in starts(plain):
        assert log.reader.epoch_before(offset) == plain.reader.epoch_before(offset)


def test_nothing_is_decompressed_by_a_lookup(
    pair: tuple[Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not in memory is said; only its fetch decompresses."""
    log, plain = pair
    offset = starts(plain)[30]
    monkeypatch.setattr(zlib, "decompressobj", lambda *_: pytest.fail("decompressed"))
    for call in (
        lambda: log.reader.read(offset, 100, log.end_offset),
        lambda: log.reader.check_boundary(offset),
        lambda: log.reader.message_before(offset),
        lambda: log.reader.count(offset, offset + 1),
        lambda: log.reader.appended_ms(offset),
    ):
        with pytest.raises(NotInMemory):
            call()
    assert log.reader.epoch_before(offset) == plain.reader.epoch_before(offset)
    assert log.reader.pieces(0, log.end_offset)
    log.drop_before(blocks_of(log)[1].start_offset)
    assert log.start_offset == blocks_of(plain)[1].start_offset
    assert log.messages == plain.messages_appended - blocks_of(plain)[0].messages


def test_a_block_file_before_an_archive_is_dropped_without_looking_into_it() -> None:
    """After a restart nobody knows how many messages the file has; its end is the archive's start.

    Nor into the archive, where its index is gone: it may lie elsewhere, and its stub tells enough.
    """
    for is_gone in (False, True):
        disk = memory_disk()
        log = filled(disk, archived=False)
        archive(disk, log, blocks_of(log)[1], chunk_bytes=8192)
        log.close()
        if is_gone:
            disk.unlink(blocks_of(log)[1].index_path)
        log = open_log(disk, config=BLOCK)
        end = blocks_of(log)[0].end_offset
        _, fetches = patiently(lambda log=log, end=end: log.drop_before(end))
        assert fetches == 0
        assert log.start_offset == end
        assert log.messages == len(PAYLOADS) - log.status.start_messages
        assert log.status.start_messages > 0


def test_an_index_that_is_gone_is_built_by_a_fetch_and_saved(pair: tuple[Log, Log]) -> None:
    """Also where it cannot be saved, and of a block that is not archived."""
    for full, archived in itertools.product((False, True), repeat=2):
        disk = memory_disk()
        log = filled(disk, archived=archived)
        log.close()
        for block in blocks_of(log)[:3]:
            disk.unlink(block.index_path)
        log = open_log(disk, config=BLOCK)
        path = blocks_of(log)[1].index_path
        if full:
            disk.capacity_bytes = 0
        offset = starts(pair[1])[100]
        assert patiently(lambda log=log, offset=offset: log.reader.message_before(offset))[0] == 1
        assert disk.exists(path) is not full
        again, fetches = patiently(lambda log=log, offset=offset: log.reader.message_before(offset))
        assert (again, fetches <= archived) == (1, True)


def test_an_index_that_damage_keeps_from_being_built_is_told_as_damage() -> None:
    """Each time somebody looks; nobody is sent for it for ever."""
    disk = memory_disk()
    log = filled(disk, archived=False)
    offset = starts(log)[100]
    log.close()
    log = open_log(disk, config=BLOCK)
    block = log.reader.block_at(offset)
    assert block is not None
    disk.unlink(block.index_path)
    file = disk.open(block.path)
    file.pwrite([b"damage"], starts(log)[95] + 30 - block.start_offset)
    for _ in range(2):
        with pytest.raises(CorruptData, match="no intact batch"):
            patiently(lambda: log.reader.message_before(offset))
        assert patiently(lambda: log.reader.check_boundary(offset))[1] == 1
    assert not disk.exists(block.index_path)


def test_a_damaged_chunk_is_told_once_per_read_and_not_served(pair: tuple[Log, Log]) -> None:
    """The others are."""
    log, plain = pair
    disk = log._disk
    files = ArchiveFiles.of(blocks_of(log)[1].path)
    stub = read_stub(disk, files.stub)
    chunk = stub.chunks[3]
    disk.open(files.zip).pwrite([b"\xff\xff"], chunk.at + 5)
    told: list[int] = []
    log.reader.on_unreadable = told.append
    offset = blocks_of(log)[1].start_offset + chunk.start
    for _ in range(3):
        with pytest.raises(PartitionFailed, match=r"CRC|decompress"):
            patiently(lambda: log.reader.read(offset, 10, log.end_offset))
    assert told == [offset] * 3
    before = blocks_of(log)[1].start_offset
    assert patiently(lambda: bytes(log.reader.read(before, 10, log.end_offset)))[0] == bytes(
        plain.reader.read(before, 10, plain.end_offset)
    )


def test_the_cache_keeps_what_was_used_last_and_no_more() -> None:
    cache = ChunkCache(100)
    for number in range(5):
        cache.put(("z", number), bytes(30))
        cache.get(("z", 0))
    assert [cache.has(("z", number)) for number in range(5)] == [True, False, False, True, True]
    cache.put(("z", 9), bytes(200))
    assert cache.get(("z", 9)) == bytes(200)
    assert not cache.has(("z", 0))


def test_an_error_in_the_cache_is_told_once() -> None:
    cache = ChunkCache()
    cache.fail(("z", 1), OSError(5, "no"))
    assert cache.has(("z", 1))
    with pytest.raises(OSError, match="no"):
        cache.get(("z", 1))
    assert cache.get(("z", 1)) is None
    cache.fail(("z", 1), OSError(5, "no"))
    cache.put(("z", 1), b"yes")
    assert cache.get(("z", 1)) == b"yes"


def test_a_view_outlives_the_archive() -> None:
    """It waits in a socket while retention drops the block."""
    disk = memory_disk()
    log = filled(disk)
    view, _ = patiently(lambda: log.reader.read(0, 5000, log.end_offset))
    before = bytes(view)
    log.drop_before(blocks_of(log)[0].end_offset)
    flush(log)
    assert not disk.exists(DIRECTORY / "0000000000000000.zip")
    assert bytes(view) == before


def test_files_are_bounded_as_those_of_blocks_are() -> None:
    disk = memory_disk()
    log = filled(disk)
    log.close()
    cache = BlockCache(2)
    before = disk.open_files
    log = open_log(disk, config=BLOCK, cache=cache)
    for offset in starts(filled(memory_disk(), archived=False))[::5]:
        patiently(lambda offset=offset: log.reader.read(offset, 100, log.end_offset))
    assert disk.open_files - before <= 2
    log.close()
    assert disk.open_files == before


def test_a_block_that_is_archived_or_restored_meanwhile_is_found_under_its_other_name() -> None:
    """By those who read beside the log's thread."""
    disk = memory_disk()
    log = filled(disk, archived=False)
    block = blocks_of(log)[0]
    path, length = block.path, block.length
    raw = disk.read_bytes(path)
    piece = Piece(path, 0, 0, length)
    facts = read_facts(disk, piece)
    archive(disk, log, block)
    assert not disk.exists(path)
    assert read_facts(disk, piece) == facts == block.facts
    assert stored_length(disk, path) == length
    file = open_stored(disk, path)
    assert file.pread(0, length + 50) == raw
    assert bytes(file.view(700, 2000)) == raw[700:2700]
    walk = Walk(disk, [piece])
    while not walk.done:
        walk.step()
    assert (walk.damage, walk.read_bytes) == ([], length)
    stub = block.path
    disk.write_atomic(path, raw)
    log.use_file(block)
    flush(log)
    assert open_stored(disk, stub).pread(0, length) == raw
    assert payloads(log) == PAYLOADS


def test_a_scrub_finds_the_damaged_batches_of_an_archive() -> None:
    """A chunk is damaged as a whole; what is around is intact."""
    disk = memory_disk()
    log = filled(disk)
    block = blocks_of(log)[0]
    files = ArchiveFiles.of(block.path)
    chunk = read_stub(disk, files.stub).chunks[2]
    disk.open(files.zip).pwrite([b"\xff\xff"], chunk.at + 5)
    walk = Walk(disk, log.reader.pieces(0, log.end_offset))
    while not walk.done:
        walk.step()
    assert [each.path for each in walk.damage] == [files.stub]
    damage = walk.damage[0]
    assert damage.start <= chunk.start
    assert damage.end >= chunk.end
    assert walk.read_bytes == log.end_offset


def test_only_a_closed_and_durable_block_is_archived() -> None:
    disk = memory_disk()
    log = open_log(disk, config=BLOCK)
    append(log, b"x")
    block = blocks_of(log)[0]
    with pytest.raises(InvalidState, match="appends"):
        log.check_archivable(block)
    log.roll()
    with pytest.raises(InvalidState, match="durable"):
        log.check_archivable(block)
    flush(log)
    log.check_archivable(block)
    stub = write_archive(disk, block)
    log.use_archive(block, stub.archive)
    with pytest.raises(InvalidState, match="already"):
        log.check_archivable(block)
    flush(log)
    log.drop_before(block.end_offset)
    with pytest.raises(InvalidState, match="not in the log"):
        log.use_file(block)
    log.fail(OSError("gone"))
    with pytest.raises(PartitionFailed):
        log.check_archivable(block)


def test_an_index_that_was_not_saved_is_saved_with_the_archive() -> None:
    """The block was rolled a moment ago."""
    disk = memory_disk()
    log = open_log(disk, config=BLOCK)
    append(log, b"x")
    flush(log)
    log.roll()
    block = blocks_of(log)[0]
    stub = write_archive(disk, block)
    log.use_archive(block, stub.archive)
    flush(log)
    assert disk.listdir(DIRECTORY) == [
        "0000000000000000.archive",
        "0000000000000000.index",
        "0000000000000000.zip",
        "checkpoint",
    ]


def test_a_flush_under_way_while_a_block_is_archived_deletes_nothing() -> None:
    """Its checkpoint names the block; the next one does not."""
    disk = memory_disk()
    log = filled(disk, archived=False)
    block = blocks_of(log)[0]
    path = block.path
    append(log, b"more", epoch=9)
    log.flushing.checkpoint_wanted = True
    ticket = log.begin_sync()
    stub = write_archive(disk, block)
    log.use_archive(block, stub.archive)
    assert ticket is not None
    ticket.run()
    assert disk.exists(path)
    assert log.flushing.deletes
    log.finish_sync(ticket)
    flush(log)
    assert not disk.exists(path)
    assert not log.flushing.deletes


def test_a_block_is_not_restored_before_its_file_is_deleted() -> None:
    """The flush that deletes it would take the new one for the old one; and the same again."""
    disk = memory_disk()
    log = filled(disk, archived=False)
    block = blocks_of(log)[0]
    stub = write_archive(disk, block)
    log.use_archive(block, stub.archive)
    with pytest.raises(Busy):
        log.check_restorable(block)
    ticket = log.begin_sync()
    assert ticket is not None
    with pytest.raises(Busy):
        log.use_file(block)
    ticket.run()
    log.finish_sync(ticket)
    log.check_restorable(block)
    restore(disk, log, block)
    with pytest.raises(Busy):
        log.check_archivable(block)
    flush(log)
    log.check_archivable(block)


def test_on_a_full_disk_a_dropped_archive_is_emptied_first() -> None:
    """That frees the space that the checkpoint needs; a mark excuses what is gone."""
    disk = memory_disk()
    log = filled(disk)
    log.drop_before(blocks_of(log)[1].end_offset)
    disk.capacity_bytes = 0
    flush(log)
    names = disk.listdir(DIRECTORY)
    assert "0000000000000000.zip" not in names
    disk.capacity_bytes = None
    log.close()
    log = open_log(disk, config=BLOCK, cache=BlockCache(waits=True))
    assert payloads(log) == PAYLOADS[-len(payloads(log)) :]
    assert log.state.value == "ok"
    log.close()


def test_the_cache_takes_calls_from_many_threads() -> None:
    cache = ChunkCache(1000)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for number in range(2000):
                key = ("z", (number * seed) % 17)
                cache.put(key, bytes(90))
                cache.get(("z", (number * 3) % 17))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert cache.size_bytes == sum(map(len, cache.chunks.values())) <= 1000
