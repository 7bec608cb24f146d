"""A log fed with the framed bytes of another is the same byte by byte, and takes nothing else."""

import itertools
import random
from dataclasses import replace

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
from vq.errors import (
    CorruptData,
    DiskFull,
    NotMaster,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionReadOnly,
)
from vq.model import ProducerStamp
from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.log.log import Log
from vq.store.records.batches import headers


def copy_from(source: Log, target: Log, max_batches: int = 7) -> None:
    """Feed a log with the framed bytes of another, some batches at a time."""
    while target.end_offset < source.end_offset:
        offset = target.end_offset
        block = source.blocks.at(offset)
        assert block is not None
        ends = [
            header.end_offset for header in itertools.islice(block.headers(offset), max_batches)
        ]
        view = source.reader.read(offset, ends[-1] - offset, source.end_offset)
        data = bytes(view)
        part = memoryview(data) if len(ends) % 2 else data  # a copy gives parts of an answer
        assert target.append_framed(part) == ends[-1]


def files(disk: MemoryDisk) -> dict[str, bytes]:
    """Everything in the log's directory."""
    return {name: disk.read_bytes(DIRECTORY / name) for name in disk.listdir(DIRECTORY)}


@pytest.mark.parametrize("flush_every", [1, 5, 1000])
def test_a_log_fed_with_framed_bytes_is_the_same_byte_by_byte(flush_every: int) -> None:
    """Blocks, indexes, producer table and checkpoint; and it recovers to the same."""
    disks, clock = (memory_disk(), memory_disk()), ManualClock(wall_ms=1_000_000)
    source = open_log(disks[0], clock=clock)
    target = open_log(disks[1], clock=ManualClock(wall_ms=5))
    chance = random.Random(7)
    for number in range(120):
        stamp = ProducerStamp(1 + number % 3, 0, number // 3) if number % 4 else None
        payloads_ = [bytes(chance.randrange(900))] * (number % 3 + 1)
        append(source, *payloads_, epoch=number // 50 + 1, stamp=stamp)
        clock.step_wall_ms(chance.randrange(-50, 100))
        if number % flush_every == 0:
            copy_from(source, target)
            flush(source)
            flush(target)
    copy_from(source, target)
    assert target.producers.to_bytes() == source.producers.to_bytes()
    assert target.status == source.status
    for log in (source, target):
        flush(log)
        log.close()
    assert files(disks[0]) == files(disks[1])
    assert len(files(disks[0])) > 10
    again = [open_log(disk.crash(keep_none)) for disk in disks]
    assert records(again[0]) == records(again[1])
    assert again[0].status == again[1].status
    assert [again[1].reader.epoch_end(epoch) for epoch in range(5)] == [
        again[0].reader.epoch_end(epoch) for epoch in range(5)
    ]


def test_a_copy_goes_on_as_a_master() -> None:
    """Its producers go on in sequence, a resend is recognised, time does not fall."""
    source = open_log(memory_disk(), clock=ManualClock(wall_ms=9_000))
    start = append(source, b"x", epoch=3, stamp=ProducerStamp(5, 0, 0))
    disk = memory_disk()
    copy = open_log(disk, clock=ManualClock(wall_ms=10))
    copy_from(source, copy)
    assert copy.producers.check(ProducerStamp(5, 0, 0)) == start
    assert copy.producers.batches() == source.producers.batches()
    with pytest.raises(NotMaster):
        append(copy, b"y", epoch=2)
    append(copy, b"y", epoch=4, stamp=ProducerStamp(5, 0, 1))
    assert copy.last_append_time_ms == 9_000
    assert payloads(open_log(disk)) == [b"x", b"y"]


def test_framed_bytes_that_do_not_fit_change_nothing() -> None:
    """A gap, bytes that are there already, damage in the second of two batches, an older epoch."""
    source = open_log(memory_disk())
    starts = [append(source, b"%d" % n, epoch=2) for n in range(4)]
    data = bytes(source.reader.read(0, 1 << 20, source.end_offset))
    target = open_log(memory_disk())
    target.append_framed(data[: starts[1]])
    before = replace(target.status)
    damaged = bytearray(data[starts[1] : starts[3]])
    damaged[-1] ^= 1
    for bad, error in (
        (data[starts[2] :], OffsetOutOfRange),
        (data, OffsetOutOfRange),
        (bytes(damaged), CorruptData),
        (data[starts[1] : starts[3] - 1], CorruptData),
    ):
        with pytest.raises(error):
            target.append_framed(bad)
        assert target.status == before
    assert payloads(target) == [b"0"]
    assert target.append_framed(b"") == starts[1]
    append(target, b"newer", epoch=3)
    late = open_log(memory_disk(), start_offset=target.end_offset)
    append(late, b"old", epoch=2)
    with pytest.raises(NotMaster):
        target.append_framed(bytes(late.reader.read(late.start_offset, 1 << 20, late.end_offset)))
    assert payloads(target) == [b"0", b"newer"]


def test_framed_bytes_are_refused_as_appends_are() -> None:
    """By a sealed log and by one that failed."""
    source = open_log(memory_disk())
    append(source, b"x")
    data = bytes(source.reader.read(0, 1 << 20, source.end_offset))
    sealed, failed = open_log(memory_disk()), open_log(memory_disk())
    sealed.seal()
    failed.fail(OSError("broken"))
    with pytest.raises(PartitionReadOnly):
        sealed.append_framed(data)
    with pytest.raises(PartitionFailed):
        failed.append_framed(data)


def test_a_copy_on_a_full_disk_keeps_whole_batches() -> None:
    """It knows who wrote them, and goes on behind them once there is room."""
    source = open_log(memory_disk())
    for number in range(20):
        append(source, b"%d" % number + bytes(1000), stamp=ProducerStamp(5, 0, number))
    disk = memory_disk()
    target = open_log(disk)
    data = bytes(source.reader.read(0, 1 << 20, source.end_offset))
    second = source.reader.read(len(data), 1 << 20, source.end_offset)
    *_, last = headers(data, 0)
    target.append_framed(data[: last.start_offset])
    disk.capacity_bytes = 1
    with pytest.raises(DiskFull):
        target.append_framed(data[last.start_offset :] + second)
    assert target.end_offset == len(data)
    assert target.producers.check(last.stamp) == last.start_offset
    assert target.producers.check(last.stamp._replace(sequence=last.producer_sequence + 1)) is None
    disk.capacity_bytes = None
    copy_from(source, target)
    assert payloads(target) == payloads(source)
