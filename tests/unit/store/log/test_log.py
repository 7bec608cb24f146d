"""Appends lie side by side in blocks, keep their order and epochs, and are readable at once."""

import itertools

import pytest
from support.store import (
    DIRECTORY,
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
)

from vq.clock import ManualClock
from vq.errors import (
    BatchTooLarge,
    InvalidRequest,
    NotMaster,
    UnknownProducer,
)
from vq.limits import BATCH_BYTES_MAX
from vq.model import ProducerStamp
from vq.store.disk.memory_disk import keep_none
from vq.store.log.log_config import LogConfig
from vq.store.records.format import CONTROL_BYTES, decode_control


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
    disk = memory_disk()
    log = open_log(disk, clock=clock)
    append(log, b"x")
    clock.step_wall_ms(-3_000)
    append(log, b"y")
    assert log.last_append_time_ms == 5_000
    assert open_log(disk).last_append_time_ms == 5_000


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


def test_producers_survive_restart_with_and_without_checkpoint() -> None:
    """A resend is recognised by the log opened anew."""
    disk = memory_disk()
    log = open_log(disk)
    starts = [append(log, bytes(300), stamp=ProducerStamp(9, 2, n)) for n in range(12)]
    flush(log)
    for opened in (open_log(disk.crash(keep_none)), open_log(disk)):
        assert opened.producers.batches() == log.producers.batches()
        assert opened.producers.check(ProducerStamp(9, 2, 11)) == starts[11]
        assert opened.producers.check(ProducerStamp(9, 2, 7)) == starts[7]
        assert opened.producers.check(ProducerStamp(9, 2, 12)) is None
        with pytest.raises(UnknownProducer):
            opened.producers.check(ProducerStamp(8, 2, 12))
