"""A sealed log refuses appends, and its successor goes on with its offset and producers."""

import pytest
from support.store import (
    append,
    flush,
    memory_disk,
    open_log,
    payloads,
)

from vq.errors import (
    DirectoryRefused,
    PartitionFailed,
    PartitionReadOnly,
    SequenceStale,
    StorageFailed,
)
from vq.model import ProducerStamp
from vq.store.disk.memory_disk import keep_none
from vq.store.log.log_config import LogState


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
