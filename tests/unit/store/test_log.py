"""The life of a log: append, flush, roll, retention, seal, errors, close."""

import errno
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.counting import PARTITION_COUNTS, check_linear, count_lines
from support.store import (
    DIRECTORY,
    SMALL,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
    records,
)

from vq.clock import ManualClock
from vq.errors import (
    BatchTooLarge,
    Busy,
    CorruptData,
    DirectoryRefused,
    DiskFull,
    InvalidRequest,
    InvalidState,
    NotMaster,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionReadOnly,
    SequenceStale,
    ShuttingDown,
    StorageFailed,
    UnknownProducer,
)
from vq.limits import BATCH_BYTES_MAX
from vq.model import ProducerStamp
from vq.store.block import BlockCache
from vq.store.disk import RealDisk
from vq.store.format import CONTROL_BYTES, decode_control
from vq.store.log import Log, LogConfig, LogState
from vq.store.memory_disk import MemoryDisk, RandomChance, keep_all, keep_none


# Appending --------------------------------------------------------------------------------------
def test_a_log_nobody_appended_to_has_no_files() -> None:
    """No directory, no descriptor; closing leaves none either."""
    disk = memory_disk()
    log = open_log(disk)
    assert (log.start_offset, log.end_offset, log.messages) == (0, 0, 0)
    assert flush(log) is None
    log.close()
    assert not disk.exists(DIRECTORY)
    assert disk.open_files == 0


def test_appends_lie_side_by_side_and_are_readable_at_once() -> None:
    """The next batch starts where the last one ended."""
    log = open_log(memory_disk())
    first = append(log, b"one", b"two")
    second = append(log, b"three")
    assert (first, second) == (0, CONTROL_BYTES + 2 * 23)
    assert log.end_offset == second + CONTROL_BYTES + 25
    assert payloads(log) == [b"one", b"two", b"three"]
    assert (log.messages, log.unsynced_messages, log.synced_offset) == (3, 3, 0)


def test_the_control_record_tells_what_the_log_knew() -> None:
    """Epoch, synced offset, time, producer, transaction."""
    clock = ManualClock(wall_ms=5_000)
    log = open_log(memory_disk(), clock=clock)
    append(log, b"x")
    flush(log)
    start = append(log, b"y", epoch=3, stamp=ProducerStamp(7, 1, 0))
    header = decode_control(log.reader.read(start, CONTROL_BYTES, log.end_offset))
    assert header is not None
    assert (header.master_epoch, header.synced_offset, header.append_time_ms) == (3, start, 5_000)
    assert (header.producer_id, header.producer_epoch, header.producer_sequence) == (7, 1, 0)
    assert log.producers.check(ProducerStamp(7, 1, 0)) == start


def test_append_times_never_fall() -> None:
    """A clock set back does not show in the log."""
    clock = ManualClock(wall_ms=5_000)
    log = open_log(memory_disk(), clock=clock)
    append(log, b"x")
    clock.step_wall_ms(-3_000)
    append(log, b"y")
    assert log.last_append_time_ms == 5_000
    assert open_log(log._disk).last_append_time_ms == 5_000


def test_neither_append_times_nor_epochs_fall_over_a_clean_restart() -> None:
    """The checkpoint alone tells the last ones: nothing behind it is read again."""
    disk, clock = memory_disk(), ManualClock(wall_ms=5_000)
    log = open_log(disk, clock=clock)
    append(log, b"x", epoch=3)
    log.close()
    clock.step_wall_ms(-3_000)
    log = open_log(disk, clock=clock)
    assert log.recovery.verified_bytes == 0
    with pytest.raises(NotMaster):
        append(log, b"y", epoch=2)
    append(log, b"y", epoch=3)
    assert log.last_append_time_ms == 5_000


def test_an_older_epoch_cannot_append() -> None:
    """Nor after a restart: the log itself remembers."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x", epoch=4)
    for opened in (log, open_log(disk)):
        with pytest.raises(NotMaster):
            append(opened, b"y", epoch=3)
        assert payloads(opened) == [b"x"]


def test_a_batch_beyond_the_bound_is_refused_even_if_there_is_room() -> None:
    """Recovery would take it for damage."""
    log = open_log(memory_disk(), config=LogConfig(allocate_bytes_min=8 << 20))
    append(log, b"x")
    with pytest.raises(BatchTooLarge):
        log.append(bytes(BATCH_BYTES_MAX + 1), record_count=1, records_crc=0, epoch=1)
    assert payloads(log) == [b"x"]


def test_a_stamp_that_does_not_fit_is_refused() -> None:
    """Producer epochs have 16 bits on disk."""
    log = open_log(memory_disk())
    with pytest.raises(InvalidRequest):
        append(log, b"x", stamp=ProducerStamp(1, 65_536, 0))
    assert log.end_offset == 0


def test_batches_roll_into_blocks_and_never_span_two() -> None:
    """A block that would grow beyond its size is ended; a larger batch has one for itself."""
    disk = memory_disk()
    log = open_log(disk)
    sizes = [500] * 20 + [9_000] + [500]
    starts = [append(log, bytes(size)) for size in sizes]
    flush(log)
    blocks = [n for n in disk.listdir(DIRECTORY) if n.endswith(".block")]
    assert len(blocks) == 6
    assert f"{starts[20]:016d}.block" in blocks
    assert [len(p) for p in payloads(log)] == sizes
    for name, following in itertools.pairwise(blocks):
        assert disk.size(DIRECTORY / name) == int(following[:16]) - int(name[:16])


def test_space_is_taken_ahead_and_given_back_on_close() -> None:
    """Growing steps while active, the exact length afterwards."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    append(log, b"x")
    path = DIRECTORY / f"{0:016d}.block"
    assert disk.size(path) == 64 * 1024
    append(log, bytes(100_000))
    assert disk.size(path) > 100_000
    end = log.end_offset
    log.close()
    assert disk.size(path) == end


# Appending what another copy framed ---------------------------------------------------------------
def copy_from(source: Log, target: Log, max_batches: int = 7) -> None:
    """Feed a log with the framed bytes of another, some batches at a time."""
    while target.end_offset < source.end_offset:
        offset = target.end_offset
        block = source._blocks.at(offset)
        assert block is not None
        ends = [
            header.end_offset for header in itertools.islice(block.headers(offset), max_batches)
        ]
        view = source.reader.read(offset, ends[-1] - offset, source.end_offset)
        assert target.append_framed(bytes(view)) == ends[-1]


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
    """And goes on behind them once there is room."""
    source = open_log(memory_disk())
    for number in range(20):
        append(source, b"%d" % number + bytes(1000))
    disk = memory_disk()
    target = open_log(disk)
    data = bytes(source.reader.read(0, 1 << 20, source.end_offset))
    second = source.reader.read(len(data), 1 << 20, source.end_offset)
    target.append_framed(data)
    disk.capacity_bytes = 1
    with pytest.raises(DiskFull):
        target.append_framed(bytes(second))
    assert target.end_offset == len(data)
    disk.capacity_bytes = None
    copy_from(source, target)
    assert payloads(target) == payloads(source)


# Flushing ---------------------------------------------------------------------------------------
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
    assert len(log._blocks) == 3
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
    modules = "store/log.py", "store/framing.py", "store/flushing.py", "store/block.py"
    appends, flushes = {}, {}
    for count in PARTITION_COUNTS:
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


# Errors -----------------------------------------------------------------------------------------
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


# Producers --------------------------------------------------------------------------------------
def test_producers_survive_restart_with_and_without_checkpoint() -> None:
    """A resend is recognised by the log opened anew."""
    disk = memory_disk()
    log = open_log(disk)
    starts = [append(log, bytes(300), stamp=ProducerStamp(9, 2, n)) for n in range(12)]
    flush(log)
    for opened in (open_log(disk.crash(keep_none)), open_log(disk)):
        assert opened.producers.check(ProducerStamp(9, 2, 11)) == starts[11]
        assert opened.producers.check(ProducerStamp(9, 2, 7)) == starts[7]
        assert opened.producers.check(ProducerStamp(9, 2, 12)) is None
        with pytest.raises(UnknownProducer):
            opened.producers.check(ProducerStamp(8, 2, 12))


# Retention --------------------------------------------------------------------------------------
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


# Sealing and moving -----------------------------------------------------------------------------
def test_a_sealed_log_refuses_appends_also_after_a_restart() -> None:
    """Until it is unsealed."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    flush(log)
    assert log.seal() == log.end_offset
    log.save_seal()
    for opened in (log, open_log(disk.crash(keep_none))):
        assert opened.state is LogState.SEALED
        with pytest.raises(PartitionReadOnly):
            append(opened, b"y")
        assert payloads(opened) == [b"x"]
    log.unseal()
    append(log, b"y")
    log.close()
    assert payloads(open_log(disk)) == [b"x", b"y"]


@pytest.mark.parametrize("kind", ["datasync", "rename"])
def test_a_sealed_log_that_failed_takes_no_appends_again(kind: str) -> None:
    """The first I/O error is the last also when a move that was called off lifts the seal."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    log.seal()
    disk.fail(kind)
    with pytest.raises(StorageFailed):
        log.save_seal()
    assert log.state is LogState.FAILED
    log.unseal()
    with pytest.raises(PartitionFailed):
        append(log, b"y")
    assert flush(log) is None


def test_an_empty_log_can_be_sealed() -> None:
    """Its end survives although it has no block."""
    disk = memory_disk()
    log = open_log(disk, start_offset=77)
    log.seal()
    log.save_seal()
    again = open_log(disk.crash(keep_none))
    assert (again.state, again.end_offset) == (LogState.SEALED, 77)
    fresh = memory_disk()
    log = open_log(fresh)
    log.seal()
    log.save_seal()
    assert open_log(fresh.crash(keep_none)).state is LogState.SEALED


def test_a_moved_partition_goes_on_with_offset_and_producers() -> None:
    """Both are durable before the first append."""
    old = open_log(memory_disk())
    start = append(old, b"x", stamp=ProducerStamp(5, 0, 0))
    disk = memory_disk()
    open_log(disk, start_offset=old.end_offset, producers=old.producers.to_bytes())
    log = open_log(disk.crash(keep_none))
    assert (log.start_offset, log.end_offset) == (old.end_offset, old.end_offset)
    assert log.producers.check(ProducerStamp(5, 0, 0)) == start
    assert append(log, b"y", stamp=ProducerStamp(5, 0, 1)) == old.end_offset
    assert log.producers.check(ProducerStamp(6, 0, 0), resend=True) is None


def test_a_log_that_begins_without_its_table_tells_no_first_batch_from_its_resend() -> None:
    """It may be stored in the range before, of which nothing is known here."""
    disk = memory_disk()
    open_log(disk, start_offset=77)
    for log in (open_log(disk.crash(keep_none)), open_log(memory_disk(), start_offset=77)):
        with pytest.raises(SequenceStale):
            log.producers.check(ProducerStamp(5, 0, 0), resend=True)
        assert log.producers.check(ProducerStamp(5, 0, 0)) is None
    assert open_log(memory_disk()).producers.check(ProducerStamp(5, 0, 0), resend=True) is None


def test_another_topic_of_the_same_name_is_refused() -> None:
    """Data of a deleted topic never meets its namesake."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    log.close()
    with pytest.raises(DirectoryRefused, match="t2"):
        open_log(disk, topic_id="t2")


# Closing ----------------------------------------------------------------------------------------
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
