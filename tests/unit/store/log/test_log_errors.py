"""A full disk refuses appends and loses nothing; a failed write or flush ends the log."""

import errno
import random

import pytest
from support.store import (
    DIRECTORY,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
)

from vq.errors import (
    Busy,
    DiskFull,
    PartitionFailed,
    StorageFailed,
)
from vq.model import ProducerStamp
from vq.store.disk.memory_disk import keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.log.log_config import LogConfig, LogState


@pytest.mark.parametrize("kind", ["allocate", "pwrite"])
def test_a_full_disk_refuses_and_the_log_goes_on_when_there_is_space(kind: str) -> None:
    """Definitely not stored, cut back to the last whole batch; nothing lost before or after."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"before")
    end = log.end_offset
    stamp = ProducerStamp(1, 0, 0)
    disk.fail(kind, error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log, bytes(5000), stamp=stamp)
    assert (log.state, log.end_offset) == (LogState.OK, end)
    assert log.producers.check(stamp) is None
    append(log, b"after")
    flush(log)
    assert payloads(open_log(disk.crash(keep_none))) == [b"before", b"after"]


def test_a_power_cut_does_not_bring_back_what_a_full_disk_refused() -> None:
    """Half of it was written, and what is missing are zeros, as allocated space has them."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"before")
    flush(log)
    disk.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log, bytes(500))
    for seed in range(50):
        assert payloads(open_log(disk.crash(RandomChance(random.Random(seed))))) == [b"before"]


@pytest.mark.parametrize("kind", ["mkdir", "open", "allocate", "truncate"])
def test_a_full_disk_at_a_new_block_refuses_too(kind: str) -> None:
    """Every step of beginning a block may find the disk full, and the next append tries again."""
    disk = memory_disk()
    log = open_log(disk)
    if kind == "truncate":
        append(log, bytes(3000))
    disk.fail(kind, error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        append(log, bytes(3000))
    append(log, b"after")
    flush(log)
    assert payloads(open_log(disk.crash(keep_none)))[-1] == b"after"


def test_less_space_than_wished_for_is_enough() -> None:
    """Near the end of the disk, steps shrink to what a batch needs."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    disk.capacity_bytes = 8192 + 400  # for the checkpoint that begins it
    append(log, bytes(5000))
    assert disk.size(DIRECTORY / f"{0:016d}.block") == 8192
    with pytest.raises(DiskFull):
        append(log, bytes(5000))
    append(log, bytes(1000))


def test_no_descriptor_left_is_busy_not_failed() -> None:
    """Nothing was stored; it works again when one is free."""
    disk = memory_disk()
    log = open_log(disk)
    disk.open_files_max = 0
    with pytest.raises(Busy):
        append(log, b"x")
    disk.open_files_max = 10
    append(log, b"y")
    assert payloads(log) == [b"y"]


def test_a_failed_write_ends_the_log() -> None:
    """Outcome unknown for that batch, refusals afterwards, reading goes on."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"before")
    flush(log)
    end = log.end_offset
    disk.fail("pwrite")
    with pytest.raises(StorageFailed):
        append(log, b"lost")
    assert log.state is LogState.FAILED
    with pytest.raises(PartitionFailed):
        append(log, b"more")
    assert flush(log) is None
    assert bytes(log.reader.read(0, 1000, end))[-6:] == b"before"
    log.close()
    assert disk.open_files == 0
    assert payloads(open_log(disk)) == [b"before"]


def test_a_failed_flush_ends_the_log_and_is_never_tried_again() -> None:
    """What the page cache still shows is not believed when the log is opened again."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"durable")
    flush(log)
    append(log, b"lost")
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail("datasync")
    with pytest.raises(OSError, match="told to fail") as caught:
        ticket.run()
    log.fail(caught.value)
    assert log.synced_offset < log.end_offset
    assert flush(log) is None
    with pytest.raises(PartitionFailed):
        append(log, b"more")
    syncs = sum(1 for o in disk.operations if o.kind == "datasync")
    log.close()
    assert sum(1 for o in disk.operations if o.kind == "datasync") == syncs
    assert payloads(open_log(disk)) == [b"durable"]


def test_an_unreadable_directory_gives_a_failed_log() -> None:
    """A start goes on without it; every call says why."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    log.close()
    disk.fail("read_bytes", name="checkpoint")
    broken = open_log(disk)
    assert broken.state is LogState.FAILED
    for call in (lambda: append(broken, b"y"), lambda: broken.reader.read(0, 10, 10)):
        with pytest.raises(PartitionFailed):
            call()
    broken.close()
    assert payloads(open_log(disk)) == [b"x"]
