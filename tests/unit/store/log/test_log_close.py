"""A closed log is durable and silent, and open files stay within their bound."""

import pytest
from support.store import (
    DIRECTORY,
    SMALL,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
)

from vq.errors import (
    InvalidState,
    ShuttingDown,
    StorageFailed,
)
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.disk.real_disk import RealDisk
from vq.store.log.block import BlockCache


def test_a_closed_log_is_durable_whole_and_silent() -> None:
    """Reopened, nothing needs to be verified; the closed one refuses everything."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    log.close()
    log.close()
    again = open_log(disk.crash(keep_none))
    assert payloads(again) == [b"x"]
    assert again.recovery.verified_bytes == 0
    for call in (lambda: append(log, b"y"), lambda: log.reader.read(0, 9, 9)):
        with pytest.raises(ShuttingDown):
            call()
    assert disk.open_files == 0


def test_closing_with_a_flush_out_is_refused() -> None:
    """The flusher thread still uses the files."""
    log = open_log(memory_disk())
    append(log, b"x")
    ticket = log.begin_sync()
    assert ticket is not None
    with pytest.raises(InvalidState):
        log.close()
    ticket.run()
    log.finish_sync(ticket)
    log.close()


def test_a_failed_close_says_so_and_leaks_nothing() -> None:
    """What was not durable is unknown."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    disk.fail("datasync")
    with pytest.raises(StorageFailed):
        log.close()
    assert disk.open_files == 0


def test_open_files_are_bounded_over_all_logs() -> None:
    """Forty logs, one cache: idle ones are closed and open themselves again."""
    disk = MemoryDisk()
    cache = BlockCache(8)
    logs = [open_log(disk, DIRECTORY / str(n), cache=cache) for n in range(40)]
    for turn in range(3):
        for log in logs:
            append(log, b"%d" % turn)
            flush(log)
            assert disk.open_files <= 8
    for log in logs:
        assert payloads(log) == [b"0", b"1", b"2"]
        assert disk.open_files <= 8
        log.close()
    assert disk.open_files == 0


def test_a_clean_block_is_closed_for_one_that_is_written() -> None:
    """At the append: with ``flush = never`` there is no flush that would close it."""
    disk = MemoryDisk()
    cache = BlockCache(2)
    logs = [open_log(disk, DIRECTORY / str(n), cache=cache) for n in range(5)]
    for log in logs:
        append(log, b"0")
        flush(log)
    for log in logs[:2]:  # closed, and opened for this
        append(log, b"1")
        assert disk.open_files == 2


def test_dirty_blocks_stay_open_whatever_the_bound() -> None:
    """A descriptor that has not seen its fsync must not be closed: it would miss an error."""
    disk = MemoryDisk()
    cache = BlockCache(2)
    logs = [open_log(disk, DIRECTORY / str(n), cache=cache) for n in range(5)]
    for log in logs:
        append(log, b"x")
    assert disk.open_files == 5
    for log in logs:
        flush(log)
    assert disk.open_files == 2


def test_a_block_appended_to_during_its_flush_stays_open() -> None:
    """It is dirty again as soon as that flush ends, whoever needs its place."""
    disk = MemoryDisk()
    cache = BlockCache(1)
    log, other = (open_log(disk, DIRECTORY / str(n), cache=cache) for n in range(2))
    append(log, b"x")
    ticket = log.begin_sync()
    assert ticket is not None
    append(log, b"y")
    ticket.run()
    log.finish_sync(ticket)
    append(other, b"z")
    flush(other)
    assert disk.open_files == 1
    flush(log)
    assert log.synced_offset == log.end_offset


def test_the_same_on_a_real_disk(tmp_path) -> None:
    """Mapped reads, real appends, roll, reopen."""
    directory = tmp_path / "orders" / "0"
    log = open_log(RealDisk(), directory)
    sent = [b"%d" % n + bytes(n * 7) for n in range(100)]
    for payload in sent:
        append(log, payload)
    flush(log)
    assert payloads(log) == sent
    assert payloads(open_log(RealDisk(), directory)) == sent
    log.close()
    again = open_log(RealDisk(), directory)
    assert payloads(again) == sent
    assert again.recovery.verified_bytes == 0
    append(again, b"more")
    again.close()
    again = open_log(RealDisk(), directory, config=SMALL)
    assert payloads(again) == [*sent, b"more"]
    again.close()


def test_a_killed_process_loses_nothing_that_was_written() -> None:
    """Without a flush, too: the page cache survives the process."""
    disk = memory_disk()
    log = open_log(disk)
    for number in range(30):
        append(log, b"%d" % number)
    assert len(payloads(open_log(disk.crash(keep_all)))) == 30
