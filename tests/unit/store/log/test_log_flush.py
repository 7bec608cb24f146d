"""What a flush covers survives a power cut, and costs the same with many logs."""

import errno
from pathlib import Path

import pytest
from support.counting import PARTITION_COUNTS, check_linear, count_lines
from support.store import (
    DIRECTORY,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
)

from vq.errors import (
    InvalidState,
)
from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.log.block import BlockCache
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig


def test_a_ticket_covers_what_was_appended_before_it() -> None:
    """Later appends wait for the next one; only one is out at a time."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"one")
    ticket = log.begin_sync()
    assert ticket is not None
    middle = log.end_offset
    append(log, b"two")
    assert log.begin_sync() is None
    ticket.run()
    log.finish_sync(ticket)
    assert (log.synced_offset, log.unsynced_messages) == (middle, 1)
    assert flush(log) is not None
    assert log.synced_offset == log.end_offset
    assert flush(log) is None
    with pytest.raises(InvalidState):
        log.finish_sync(ticket)


def test_flushed_batches_survive_a_power_cut() -> None:
    """From the very first one on, new directory included."""
    disk = memory_disk()
    log = open_log(disk)
    for number in range(20):
        append(log, b"%d" % number + bytes(400))
        flush(log)
        after = open_log(disk.crash(keep_none))
        assert [p.rstrip(b"\0") for p in payloads(after)] == [b"%d" % n for n in range(number + 1)]


def test_bytes_of_one_block_are_flushed_without_a_ticket() -> None:
    """As durable, also over a power cut; what else is to be made durable needs a ticket."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig(checkpoint_batches=5))
    append(log, b"0")
    assert log.begin_data() is None, "the names of directory and block are new"
    flush(log)
    for number in (1, 2):
        append(log, b"%d" % number)
        found = log.begin_data()
        assert found is not None
        assert log.begin_data() is log.begin_sync() is None, "one is out"
        assert found.block.file is not None
        found.block.file.datasync()
        append(log, b"later")
        log.finish_data(found)
        assert (log.synced_offset, log.unsynced_messages) == (found.offset, 1)
        with pytest.raises(InvalidState):
            log.finish_data(found)
    assert log.begin_data() is None, "a checkpoint is due"
    assert payloads(open_log(disk.crash(keep_none))) == [b"0", b"1", b"later", b"2"]
    assert flush(log) is not None
    assert payloads(open_log(disk.crash(keep_none))) == [b"0", b"1", b"later", b"2", b"later"]
    assert log.begin_data() is None, "nothing is to be made durable"


def test_a_flush_of_the_whole_file_system_will_do() -> None:
    """Then only the checkpoint is left to the ticket."""
    disk = memory_disk(syncfs_flushes=True)
    log = open_log(disk)
    append(log, b"x")
    ticket = log.begin_sync()
    assert ticket is not None
    file_system = ticket.file_system
    assert file_system is not None
    file_system.sync()
    before = len(disk.operations)
    ticket.run(synced=file_system)
    log.finish_sync(ticket)
    assert len(disk.operations) == before
    assert payloads(open_log(disk.crash(keep_none))) == [b"x"]


def test_rolling_twice_is_rolling_once() -> None:
    """Also right after a start, when the last block was never appended to by this process."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    append(log, b"x")
    for _ in range(3):
        log.roll()
    flush(log)
    log.roll()
    flush(log)
    append(log, b"y")
    flush(log)
    log.close()
    log = open_log(disk, config=LogConfig())
    for _ in range(3):
        log.roll()
        flush(log)
    append(log, b"z")
    flush(log)
    assert len(log.blocks) == 3
    assert payloads(open_log(disk.crash(keep_none))) == [b"x", b"y", b"z"]


def test_rolling_many_logs_that_share_few_open_files() -> None:
    """The block that is ended may be closed, and its index forgotten."""
    disk, cache = memory_disk(), BlockCache(1)
    logs = [
        open_log(disk, DIRECTORY.with_name(str(n)), config=LogConfig(), cache=cache)
        for n in range(3)
    ]
    for log in logs:
        append(log, b"x")
        flush(log)
    for _ in range(2):
        for log in logs:
            log.roll()
        for log in logs:
            flush(log)
    for log in logs:
        append(log, b"y")
        flush(log)
        assert payloads(log) == [b"x", b"y"]


@pytest.mark.slow
def test_an_append_costs_the_same_however_many_logs_are_dirty() -> None:
    """Also when more of them are dirty than files may be open; so does its flush."""
    modules = (
        "store/log/log.py",
        "store/log/framing.py",
        "store/log/flushing.py",
        "store/log/block.py",
    )
    appends, flushes = {}, {}
    for count in PARTITION_COUNTS[:3]:
        disk, cache = MemoryDisk(record=False), BlockCache()
        logs = [
            open_log(disk, Path("/data") / str(n % 64) / str(n), config=LogConfig(), cache=cache)
            for n in range(count)
        ]

        def append_to_each(logs: list[Log] = logs) -> None:
            for log in logs:
                append(log, b"x")

        def flush_each(logs: list[Log] = logs) -> None:
            for ticket, log in [(log.begin_sync(), log) for log in logs]:
                assert ticket is not None
                log.finish_sync(ticket)

        appends[count] = count_lines(append_to_each, *modules)
        assert len(cache) == count
        flushes[count] = count_lines(flush_each, *modules)
        assert len(cache) == min(count, 256)
        appends[count] += count_lines(append_to_each, *modules)
    check_linear("lines for two appends to each log", appends)
    check_linear("lines for a flush of each log", flushes)


def test_checkpoints_are_written_every_so_many_bytes_or_batches() -> None:
    """Not with every flush."""
    for config, expected in (
        (LogConfig(checkpoint_bytes=4096), 1),
        (LogConfig(checkpoint_batches=5), 4),
    ):
        disk = memory_disk()
        log = open_log(disk, config=config)
        for _ in range(20):
            append(log, bytes(300))
            flush(log)
        written = [o for o in disk.operations if o.kind == "rename" and "checkpoint" in str(o.path)]
        assert len(written) == expected


def test_a_checkpoint_that_cannot_be_written_loses_nothing() -> None:
    """For want of room the flush still counts; the next checkpoint tries again."""
    disk = memory_disk()
    log = open_log(disk)
    disk.fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    for _ in range(30):
        append(log, bytes(300))
        flush(log)
        assert log.synced_offset == log.end_offset
    assert disk.exists(DIRECTORY / "checkpoint")
    assert len(payloads(open_log(disk.crash(keep_none)))) == 30
