"""Retention drops whole durable blocks, and nothing else."""

import errno
from pathlib import Path

import pytest
from support.store import (
    DIRECTORY,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
    records,
)

from vq.clock import ManualClock
from vq.errors import CorruptData
from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.disk.real_disk import RealDisk
from vq.store.log.block import BlockCache
from vq.store.log.block_facts import read_facts, read_first_ms


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


def test_no_flush_waits_until_the_space_of_a_block_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On ext4, 30 ms for each block of 128 MiB, in which no message is acknowledged."""
    disk = memory_disk()
    log, _ = filled(disk)
    beside: list[str] = []
    monkeypatch.setattr(disk, "unlink_large", lambda path: beside.append(path.name))
    dropped = [each.path.name for each in log.closed_blocks[:2]]
    log.drop_before(log.closed_blocks[2].start_offset)
    flush(log)
    assert [name for name in beside if name.endswith(".block")] == dropped


def test_a_key_index_is_deleted_with_its_block() -> None:
    """And no other one."""
    disk = memory_disk()
    log, _ = filled(disk)
    keys = [each.path.with_suffix(".keys") for each in log.closed_blocks]
    for path in keys:
        disk.write_atomic(path, b"index")
    log.drop_before(log.closed_blocks[1].start_offset)
    flush(log)
    assert [disk.exists(path) for path in keys] == [False] + [True] * (len(keys) - 1)


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


def test_the_last_block_of_a_sealed_log_goes_too() -> None:
    """Nothing is appended any more: a move that is abandoned begins a new block."""
    log, _ = filled(memory_disk())
    log.seal()
    flush(log)
    end = log.end_offset
    assert log.drop_before(end) == end
    assert (log.start_offset, log.messages) == (end, 0)
    log.unseal()
    assert append(log, b"on") == end
    flush(log)
    assert payloads(log) == [b"on"]


def test_facts_of_blocks_are_the_same_from_memory_and_from_files() -> None:
    disk, clock = memory_disk(), ManualClock(wall_ms=1_000)
    log = open_log(disk, clock=clock)
    for number in range(30):
        append(log, b"%04d" % number + bytes(400), b"second")
        clock.advance(1.0)
    log.roll()
    flush(log)
    assert log.open_block is None
    known = [block.facts for block in log.closed_blocks]
    assert read_first_ms(disk, log.reader.pieces(0, log.end_offset)[0]) == 1_000
    assert known[-1].last_ms == log.last_append_time_ms
    assert sum(each.messages for each in known) == log.messages == 60
    pieces = log.reader.pieces(0, log.end_offset)
    assert [read_facts(disk, piece) for piece in pieces] == known
    for piece in pieces:
        disk.unlink(piece.path.with_suffix(".index"))
    assert [read_facts(disk, piece) for piece in pieces] == known


def test_counts_are_right_whether_facts_are_known_or_not() -> None:
    disk = memory_disk()
    log, starts = filled(disk)
    log.roll()
    flush(log)
    log.close()
    one, other = open_log(disk.crash(keep_none)), open_log(disk.crash(keep_none))
    for piece, block in zip(one.reader.pieces(0, one.end_offset), one.closed_blocks, strict=False):
        block.facts = read_facts(disk, piece)
    for log in (one, other):
        log.drop_before(starts[20])
        assert log.messages == sum(1 for start in starts if start >= log.start_offset)


def test_a_damaged_batch_has_no_facts() -> None:
    disk = memory_disk()
    log, _ = filled(disk)
    piece = log.reader.pieces(0, log.end_offset)[0]
    file = disk.open(piece.path)
    file.pwrite([b"damage!!"], 30)
    with pytest.raises(CorruptData):
        read_facts(disk, piece)


def test_bytes_on_their_way_to_a_reader_stay_on_a_real_disk(tmp_path: Path) -> None:
    """Their file is unlinked, and stays mapped; the descriptor is given back."""
    cache = BlockCache()
    log = open_log(RealDisk(), tmp_path / "t" / "0", cache=cache)
    for number in range(30):
        append(log, b"%04d" % number + bytes(400))
    log.roll()
    flush(log)
    views = [log.reader.read(block.start_offset, 4096, log.end_offset) for block in log.blocks]
    before = [bytes(view) for view in views]
    assert len(cache) == len(views)
    log.drop_before(log.end_offset)
    flush(log)
    assert [path.name for path in (tmp_path / "t" / "0").iterdir()] == ["checkpoint"]
    assert [bytes(view) for view in views] == before
    assert len(cache) == 0
    append(log, b"on")
    flush(log)
    assert payloads(log) == [b"on"]
    log.close()
