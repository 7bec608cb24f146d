"""Retention drops whole durable blocks, and nothing else."""

import errno

from support.store import (
    DIRECTORY,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
    records,
)

from vq.store.memory_disk import MemoryDisk, keep_none


def filled(disk: MemoryDisk, count: int = 30) -> tuple:
    log = open_log(disk)
    starts = [append(log, b"%04d" % n + bytes(400)) for n in range(count)]
    flush(log)
    return log, starts


def test_retention_drops_whole_durable_blocks_only() -> None:
    """The start moves at once, the files go with the next flush."""
    disk = memory_disk()
    log, starts = filled(disk)
    names = [n for n in disk.listdir(DIRECTORY) if n.endswith(".block")]
    second = int(names[1][:16])
    assert log.drop_before(second - 1) == 0
    assert log.drop_before(starts[-1]) > 0
    assert log.start_offset == int(names[-1][:16])
    assert disk.exists(DIRECTORY / names[0])
    flush(log)
    assert [n for n in disk.listdir(DIRECTORY) if n.endswith(".block")] == names[-1:]
    assert len(records(log)) == log.messages == sum(1 for s in starts if s >= log.start_offset)
    again = open_log(disk.crash(keep_none))
    assert (again.start_offset, again.messages) == (log.start_offset, log.messages)
    assert log.drop_before(log.end_offset) == 0


def test_retention_keeps_what_is_not_durable_yet() -> None:
    """Its flush needs the file; once that is over the block may go."""
    log = open_log(memory_disk())
    append(log, b"x")
    log.roll()
    assert log.drop_before(log.end_offset) == 0
    flush(log)
    assert log.synced_offset == log.end_offset
    assert log.drop_before(log.end_offset) == log.end_offset


def test_after_a_roll_everything_can_be_dropped() -> None:
    """An empty log remembers where it goes on."""
    disk = memory_disk()
    log, _ = filled(disk)
    end = log.end_offset
    log.roll()
    flush(log)
    assert log.drop_before(end) == log.size_bytes + end
    assert (log.start_offset, log.end_offset, log.messages) == (end, end, 0)
    flush(log)
    assert disk.listdir(DIRECTORY) == ["checkpoint"]
    again = open_log(disk.crash(keep_none))
    assert (again.start_offset, again.end_offset, again.messages) == (end, end, 0)
    assert append(again, b"on") == end
    assert payloads(again) == [b"on"]


def test_retention_makes_room_on_a_full_disk() -> None:
    """If the checkpoint does not fit, blocks go first."""
    disk = memory_disk()
    log, starts = filled(disk)
    log.drop_before(starts[-1])
    disk.capacity_bytes = 1
    disk.fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    flush(log)
    disk.capacity_bytes = None
    assert len([n for n in disk.listdir(DIRECTORY) if n.endswith(".block")]) == 1
    assert open_log(disk).messages == log.messages
