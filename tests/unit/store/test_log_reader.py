"""Reading from a log: ranges, boundaries, times, counts."""

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log, records

from vq.clock import ManualClock
from vq.errors import Busy, OffsetNotBoundary, OffsetOutOfRange, PartitionFailed
from vq.store.log import Log
from vq.store.memory_disk import MemoryDisk
from vq.store.record import boundaries


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
    block_end = int(log._blocks[0].end_offset)
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
            assert opened.reader.offset_at_time(1_000_000 + number * 10_000) == starts[number]
            assert opened.reader.offset_at_time(1_000_000 + number * 10_000 - 1) == starts[number]
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
