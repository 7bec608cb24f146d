"""Numbers of messages where something is missing: they are right, or not known."""

from dataclasses import replace

import pytest
from support.store import DIRECTORY, append, archive, flush, memory_disk, open_log

from vq.errors import OffsetOutOfRange, PartitionQuarantined
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.block import BlockCache
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogConfig, LogState
from vq.store.records.format import CHECKPOINT_NAME, CONTROL_BYTES, INDEX_SUFFIX

PATH = DIRECTORY / CHECKPOINT_NAME


def filled(disk: MemoryDisk, *, start: int = 0, number: int | None = None) -> list[int]:
    """Store 24 batches of two messages in several blocks; return where each begins."""
    log = open_log(disk, start_offset=start, number=number)
    starts = [append(log, bytes(300), bytes(300)) for _ in range(24)]
    flush(log)
    assert len(log.blocks) > 3
    log.close()
    return starts


def opened(disk: MemoryDisk) -> Log:
    """Open the log on a thread that may wait for an index."""
    return open_log(disk, cache=BlockCache(waits=True))


def of_an_earlier_vq(disk: MemoryDisk) -> None:
    """Have the checkpoint tell no number, as one of an earlier version."""
    checkpoint = replace(Checkpoint.from_bytes(disk.read_bytes(PATH)), first_number=None)
    disk.write_atomic(PATH, checkpoint.to_bytes())
    assert disk.read_bytes(PATH)[4] <= 3


@pytest.mark.parametrize("archived", [False, True])
def test_data_of_an_earlier_vq_have_numbers_if_they_begin_with_the_first_message(
    archived: bool,
) -> None:
    disk = memory_disk()
    starts = filled(disk)
    if archived:
        log = opened(disk)
        archive(disk, log, log.closed_blocks[0])
        log.close()
    of_an_earlier_vq(disk)
    log = opened(disk)
    assert [log.reader.number_at(at) for at in starts] == list(range(0, 48, 2))
    log.drop_before(starts[10])
    flush(log)
    log.close()
    again = opened(disk)
    kept = [at for at in starts if at >= again.start_offset]
    assert 0 < len(kept) < 24
    assert [again.reader.number_at(at) for at in kept] == [2 * starts.index(at) for at in kept]
    assert disk.read_bytes(PATH)[4] == 4


def test_data_of_an_earlier_vq_that_begin_later_have_none() -> None:
    """Nobody knows how many messages lay before; what follows is counted all the same."""
    disk = memory_disk()
    filled(disk)
    log = opened(disk)
    log.drop_before(log.blocks[2].start_offset)
    flush(log)
    log.close()
    of_an_earlier_vq(disk)
    again = opened(disk)
    assert again.reader.number_at(again.end_offset) is None
    assert again.reader.offset_at_number(5) is None
    assert again.successor.number is None
    assert again.reader.count(again.start_offset, again.end_offset) == (again.messages, True)


def test_damage_hides_the_numbers_behind_it_up_to_the_next_entry_of_the_index() -> None:
    """It is never counted as if it were whole."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig(block_bytes=1 << 20))
    starts = [append(log, bytes(10_000)) for _ in range(40)]
    flush(log)
    file = disk.open(log.blocks[0].path)
    file.pwrite([b"damage"], starts[3] + 30)
    file.close()
    numbers = [log.reader.number_at(at) for at in starts]
    assert numbers[:3] == [0, 1, 2]
    hidden = numbers.count(None)
    assert 0 < hidden < 8, "an entry each 64 KiB"
    assert None not in numbers[3 + hidden :]
    assert all(found in (None, number) for number, found in enumerate(numbers))
    for number, at in enumerate(starts):
        assert log.reader.offset_at_number(number) in (None, at + CONTROL_BYTES)
    assert log.reader.offset_at_number(30) == starts[30] + CONTROL_BYTES


def test_a_log_in_quarantine_numbers_what_is_left() -> None:
    """Up to the damage; behind it nothing is served."""
    disk = memory_disk()
    starts = filled(disk, start=7_000, number=100)
    log = opened(disk)
    gone = log.blocks[2]
    log.close()
    disk.unlink(gone.path)
    log = opened(disk)
    assert log.state is LogState.QUARANTINED
    left = [at for at in starts if at < gone.start_offset]
    assert [log.reader.number_at(at) for at in left] == [100 + 2 * n for n in range(len(left))]
    assert log.reader.offset_at_number(101) == starts[0] + CONTROL_BYTES + 320
    with pytest.raises(PartitionQuarantined):
        log.reader.number_at(gone.start_offset)
    with pytest.raises(PartitionQuarantined):
        log.reader.offset_at_number(100 + 2 * len(left))


@pytest.mark.parametrize("with_index", [True, False])
def test_numbers_behind_lost_first_blocks_are_right_or_unknown(with_index: bool) -> None:
    """The index of the next block tells how many messages lay before it."""
    disk = memory_disk()
    starts = filled(disk)
    log = opened(disk)
    paths = [block.path for block in log.blocks]
    second = log.blocks[1].start_offset
    log.close()
    disk.unlink(paths[0])
    if not with_index:
        for path in paths[:-1]:
            disk.unlink(path.with_suffix(INDEX_SUFFIX))
    log = opened(disk)
    assert log.state is LogState.QUARANTINED
    right = 2 * starts.index(second)
    assert log.reader.number_at(second) == (right if with_index else None)
    with pytest.raises(PartitionQuarantined):
        log.reader.number_at(0)
    if with_index:
        assert log.reader.offset_at_number(right) == second + CONTROL_BYTES
        with pytest.raises(PartitionQuarantined):
            log.reader.offset_at_number(right - 1)


def test_an_offset_outside_has_no_number() -> None:
    log = open_log(memory_disk(), start_offset=500, number=3)
    assert log.successor == LogBegin(500, log.successor.producers, 3)
    assert log.reader.number_at(500) == 3
    assert log.reader.offset_at_number(0) == 500
    for offset in (499, 501):
        with pytest.raises(OffsetOutOfRange):
            log.reader.number_at(offset)
