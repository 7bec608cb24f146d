"""Reading from a log: ranges, boundaries, times, counts."""

import itertools

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log, patiently, records

from vq.clock import ManualClock
from vq.errors import (
    Busy,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionFailed,
    ShuttingDown,
)
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.log.log import Log
from vq.store.log.lookup import EpochEnd
from vq.store.records.record import boundaries


def make() -> tuple[MemoryDisk, Log, list[int], ManualClock]:
    """Forty batches of 1 to 4 messages, 10 s apart, over several blocks."""
    disk, clock = memory_disk(), ManualClock(wall_ms=1_000_000)
    log = open_log(disk, clock=clock)
    starts = []
    for number in range(40):
        starts.append(append(log, *[bytes(50 + number)] * (number % 4 + 1)))
        clock.advance(10)
    flush(log)
    return disk, log, starts, clock


def test_a_read_stays_within_bytes_limit_and_block() -> None:
    """The smallest of the three counts."""
    _, log, starts, _ = make()
    assert len(log.reader.read(0, 10, log.end_offset)) == 10
    assert len(log.reader.read(0, 10_000, 300)) == 300
    block_end = int(log.blocks[0].end_offset)
    assert len(log.reader.read(0, 1 << 20, log.end_offset)) == block_end
    assert len(log.reader.read(starts[1], 1 << 20, log.end_offset)) == block_end - starts[1]


def test_a_read_at_limit_or_end_is_empty() -> None:
    """Waiting for more is the caller's."""
    _, log, starts, _ = make()
    assert bytes(log.reader.read(log.end_offset, 10, log.end_offset)) == b""
    assert bytes(log.reader.read(starts[3], 10, starts[3])) == b""
    assert bytes(log.reader.read(starts[4], 10, starts[3])) == b""
    empty = open_log(memory_disk())
    assert bytes(empty.reader.read(0, 10, 10)) == b""


@pytest.mark.parametrize("far", [-1, 1])
def test_a_read_outside_is_refused_with_the_range(far: int) -> None:
    """Never a silent jump."""
    _, log, starts, _ = make()
    log.drop_before(starts[30])
    offset = log.start_offset - 1 if far < 0 else log.end_offset + 1
    with pytest.raises(OffsetOutOfRange) as caught:
        log.reader.read(offset, 10, log.end_offset)
    assert caught.value.details == {"earliest": log.start_offset, "latest": log.end_offset}


def test_a_failing_medium_is_an_error_for_that_read_only() -> None:
    """Other reads and appends go on; running out of descriptors is Busy."""
    disk, log, _, _ = make()
    disk.fail("view")
    with pytest.raises(PartitionFailed):
        log.reader.read(0, 10, log.end_offset)
    assert len(log.reader.read(0, 10, log.end_offset)) == 10
    append(log, b"on")
    log.close()
    log = open_log(disk)
    disk.open_files_max = 0
    with pytest.raises(Busy):
        log.reader.read(0, 10, log.end_offset)
    disk.open_files_max = 9
    assert len(log.reader.read(0, 10, log.end_offset)) == 10


def test_boundaries_are_told_from_the_inside_of_records() -> None:
    """Every offset of the log: a boundary passes, another tells the next one."""
    _, log, _, _ = make()
    edges = set()
    offset = 0
    while offset < log.end_offset:
        view = log.reader.read(offset, 1 << 20, log.end_offset)
        edges.update(boundaries(view, offset))
        offset += len(view)
    for at in [*range(400), *range(log.end_offset - 400, log.end_offset + 1)]:
        if at in edges:
            log.reader.check_boundary(at)
        else:
            with pytest.raises(OffsetNotBoundary) as caught:
                log.reader.check_boundary(at)
            assert caught.value.details == {"next": min(e for e in edges if e > at)}
    with pytest.raises(OffsetOutOfRange):
        log.reader.check_boundary(log.end_offset + 1)


def test_offset_at_time_is_the_first_batch_not_older() -> None:
    """Exact, between two, before all, after all; also after a restart without indexes."""
    disk, log, starts, _ = make()
    log.close()
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".index"):
            disk.unlink(DIRECTORY / name)
    for opened in (make()[1], open_log(disk)):
        assert opened.reader.offset_at_time(0) == 0
        for number in range(40):
            for time_ms in (1_000_000 + number * 10_000, 1_000_000 + number * 10_000 - 1):
                found, _ = patiently(
                    lambda opened=opened, time_ms=time_ms: opened.reader.offset_at_time(time_ms)
                )
                assert found == starts[number]
        assert opened.reader.offset_at_time(1_390_001) == opened.end_offset
    assert open_log(memory_disk()).reader.offset_at_time(5) == 0


def test_batches_of_one_time_are_found_from_the_first() -> None:
    """Many appends in one millisecond, over several blocks."""
    log = open_log(memory_disk(), clock=ManualClock(wall_ms=77))
    for _ in range(30):
        append(log, bytes(400))
    assert log.reader.offset_at_time(77) == 0
    assert log.reader.offset_at_time(78) == log.end_offset


def test_counts_agree_with_reading() -> None:
    """Between any two offsets, boundaries or not."""
    _, log, starts, _ = make()
    messages = [r.offset for r in records(log)]
    points = [0, 1, 88, 89, 90, starts[3], starts[3] + 100, starts[20] + 7, starts[39]]
    for low in points:
        for high in [p for p in points if p >= low] + [log.end_offset]:
            expected = sum(1 for offset in messages if low <= offset < high)
            assert log.reader.count(low, high) == (expected, True), (low, high)


def test_counts_beyond_the_log_are_not_exact() -> None:
    """And an empty or turned range counts nothing."""
    _, log, starts, _ = make()
    assert log.reader.count(0, log.end_offset + 1) == (log.messages, False)
    assert log.reader.count(starts[5], starts[5]) == (0, True)
    assert log.reader.count(starts[5], starts[4]) == (0, True)
    log.drop_before(starts[30])
    assert log.reader.count(0, log.end_offset) == (log.messages, False)


def test_counts_are_right_after_retention_and_restart() -> None:
    """The count before the start is remembered."""
    disk, log, starts, _ = make()
    log.drop_before(starts[30])
    flush(log)
    log.close()
    again = open_log(disk)
    assert again.reader.count(again.start_offset, again.end_offset) == (len(records(again)), True)
    assert again.messages == len(records(again))


# Ends of epochs -----------------------------------------------------------------------------------
def reigns(disk: MemoryDisk) -> tuple[Log, list[tuple[int, int]]]:
    """Thirty batches over several blocks in epochs 2, 5, 6 and 9; each with where it ends."""
    log = open_log(disk)
    batches = []
    for number in range(30):
        epoch = (2, 5, 6, 9)[number // 8]
        append(log, bytes(600), epoch=epoch)
        batches.append((epoch, log.end_offset))
    flush(log)
    assert len(log.blocks) > 3
    return log, batches


def check_epochs(log: Log, batches: list[tuple[int, int]]) -> None:
    """Compare the ends of all epochs, had or not, with those of the batches that are kept."""
    kept = [(epoch, end) for epoch, end in batches if end > log.start_offset]
    for epoch in range(12):
        expected = max((each for each in kept if each[0] <= epoch), default=None)
        found, _ = patiently(lambda epoch=epoch: log.reader.epoch_end(epoch))
        assert found == expected, epoch


def test_an_epoch_ends_where_a_later_one_begins() -> None:
    """One without a batch is answered with the last one before it; the last ends with the log."""
    disk = memory_disk()
    log, batches = reigns(disk)
    check_epochs(log, batches)
    assert log.reader.epoch_end(1) is None
    assert log.reader.epoch_end(4) == EpochEnd(2, batches[7][1])
    assert log.reader.epoch_end(99) == EpochEnd(9, log.end_offset)


def test_ends_of_epochs_are_the_same_after_a_restart() -> None:
    """After a stop, a kill, a power cut; without checkpoint and indexes, too."""
    disk = memory_disk()
    log, batches = reigns(disk)
    for crashed in (disk.crash(keep_all), disk.crash(keep_none)):
        check_epochs(open_log(crashed), batches)
    log.close()
    check_epochs(open_log(disk), batches)
    for name in disk.listdir(DIRECTORY):
        if not name.endswith(".block"):
            disk.unlink(DIRECTORY / name)
    again = open_log(disk)
    check_epochs(again, batches)
    append(again, b"on", epoch=11)
    check_epochs(again, [*batches, (11, again.end_offset)])


def test_retention_takes_the_ends_of_epochs_along() -> None:
    """Of an epoch of which no batch is left nothing is told, at once and after a restart."""
    disk = memory_disk()
    log, batches = reigns(disk)
    for number in (7, 8, 15, 20):
        log.drop_before(batches[number][1])
        check_epochs(log, batches)
        flush(log)
        check_epochs(open_log(disk.crash(keep_none)), batches)


def test_a_log_of_which_nothing_is_left_knows_its_last_epoch() -> None:
    """And one that never had a batch says epoch 0."""
    disk = memory_disk()
    log, _ = reigns(disk)
    end = log.end_offset
    log.roll()
    flush(log)
    log.drop_before(end)
    flush(log)
    for each in (log, open_log(disk)):
        assert each.start_offset == end
        assert each.reader.epoch_end(9) == EpochEnd(9, end)
        assert each.reader.epoch_end(8) is None
    assert open_log(memory_disk(), start_offset=77).reader.epoch_end(3) == EpochEnd(0, 77)


def test_a_damaged_log_tells_the_epochs_of_what_is_left() -> None:
    """Not the one in which its checkpoint was written."""
    disk = memory_disk()
    log, _ = reigns(disk)
    paths, end = [block.path for block in log.blocks], log.blocks[0].end_offset
    log.close()
    disk.unlink(paths[1])
    again = open_log(disk)
    assert again.end_offset == end
    assert again.reader.epoch_end(9) == EpochEnd(2, end)
    for path in paths:
        if disk.exists(path):
            disk.unlink(path)
    assert open_log(disk).reader.epoch_end(9) is None


def test_a_returning_copy_finds_where_it_left_the_others() -> None:
    """Each asks the other in turn, as long as they name different epochs (KIP-279).

    epoch     1    1    2    3    3          of the returning copy
              1    1    1    4               of the others: 2 and 3 came from masters cut off
                   ^ common up to here, wherever high watermarks were
    """
    returning, others = open_log(memory_disk()), open_log(memory_disk())
    for log, epochs in ((returning, (1, 1, 2, 3, 3)), (others, (1, 1, 1, 4))):
        for epoch in epochs:
            append(log, b"m", epoch=epoch)
    common = others.end_offset // 4 * 2
    epoch = returning.epoch
    while True:
        theirs = others.reader.epoch_end(epoch)
        assert theirs is not None
        mine = returning.reader.epoch_end(theirs.epoch)
        assert mine is not None
        if mine.epoch == theirs.epoch:
            break
        epoch = mine.epoch
    assert min(mine.offset, theirs.offset) == common


@pytest.mark.parametrize("failure", ["view", "open"])
def test_an_end_that_cannot_be_read_is_an_error(failure: str) -> None:
    """Never an answer that would cut off too much."""
    disk = memory_disk()
    log, _ = reigns(disk)
    log.close()
    log = open_log(disk)
    disk.fail(failure)
    with pytest.raises(PartitionFailed):
        log.reader.epoch_end(5)
    log.close()
    with pytest.raises(ShuttingDown):
        log.reader.epoch_end(5)


# Epochs before an offset --------------------------------------------------------------------------
def test_the_epoch_before_an_offset_is_that_of_the_batch_that_has_the_byte() -> None:
    """Whatever order is asked in; nothing lies before the start, and nothing behind the end."""
    log, batches = reigns(memory_disk())
    for asked in (batches, batches[::-1], batches[4:] + batches):
        for epoch, end in asked:
            assert log.reader.epoch_before(end) == log.reader.epoch_before(end - 1) == epoch
    for (epoch, _), (_, end) in itertools.pairwise(reversed(batches)):
        assert log.reader.epoch_before(end + 1) == epoch
    assert log.reader.epoch_before(0) == log.reader.epoch_before(log.end_offset + 1) == 0
    append(log, b"new", epoch=11)
    assert log.reader.epoch_before(log.end_offset) == 11
    assert log.reader.epoch_before(batches[-1][1]) == 9


def test_after_retention_the_epoch_before_the_start_is_not_told() -> None:
    log, batches = reigns(memory_disk())
    log.reader.epoch_before(batches[0][1])
    log.drop_before(batches[20][1])
    assert log.reader.epoch_before(log.start_offset) == 0
    for epoch, end in batches:
        if end > log.start_offset:
            assert log.reader.epoch_before(end) == epoch


def test_the_epoch_before_an_offset_is_asked_for_without_io_in_the_newest_epoch() -> None:
    log, batches = reigns(memory_disk())
    assert log.reader.epoch_before(log.end_offset) == 9
    log.reader._blocks = None  # type: ignore[assignment]
    assert log.reader.epoch_before(batches[-1][1]) == 9


def test_a_damaged_log_tells_no_epoch_before_an_offset() -> None:
    """Nothing is checked against it then; what it claims may be damaged, too."""
    disk = memory_disk()
    log, _ = reigns(disk)
    paths, end = [block.path for block in log.blocks], log.blocks[0].end_offset
    log.close()
    disk.unlink(paths[1])
    assert open_log(disk).reader.epoch_before(end) == 0
