"""Reading a block with distrust."""

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log

from vq.model import ProducerStamp
from vq.store.disk.memory_disk import MemoryFile
from vq.store.log.log_config import LogConfig
from vq.store.records import scan
from vq.store.records.format import BatchHeader, encode_control
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.scan import Behind, LogFacts, is_zero, look_behind, verify

COUNT = 60


def block() -> tuple[MemoryFile, list[int], int]:
    """A block of 60 batches with 1 to 3 messages; its file, their offsets, their end."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    starts = [
        append(log, *[bytes(50)] * (n % 3 + 1), epoch=n // 20, stamp=ProducerStamp(1 + n % 2, 0, n))
        for n in range(COUNT)
    ]
    return disk.open(DIRECTORY / f"{0:016d}.block"), starts, log.end_offset


@pytest.mark.parametrize("chunk", [scan.CHUNK_BYTES, 512])
def test_all_batches_are_verified_and_added_up(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece or in many, from the start or from the middle."""
    monkeypatch.setattr(scan, "CHUNK_BYTES", chunk)
    file, starts, end = block()
    facts, index = LogFacts(), OffsetIndex(0, messages_before=0)
    assert verify(file, 0, 0, file.size(), facts, index) == end
    assert (facts.batches, facts.messages, facts.epoch) == (COUNT, 120, 2)
    assert facts.producers.check(ProducerStamp(1, 0, 58)) == starts[58]
    facts = LogFacts(epoch=1, messages=60)
    assert verify(file, 0, starts[30], end, facts, OffsetIndex(0, messages_before=0)) == end
    assert (facts.batches, facts.messages) == (30, 120)


def test_verification_ends_at_the_first_bad_byte() -> None:
    """Wherever in a batch a bit flips, that batch is the first bad one."""
    file, starts, _ = block()
    for number in (0, 7, 59):
        for at in range(88 + 20 + 50):
            old = file.pread(starts[number] + at, 1)
            file.pwrite([bytes([old[0] ^ 0x10])], starts[number] + at)
            found = verify(file, 0, 0, file.size(), LogFacts(), OffsetIndex(0, messages_before=0))
            assert found == starts[number], (number, at)
            file.pwrite([old], starts[number] + at)


@pytest.mark.parametrize(
    "lie",
    [
        {"start_offset": 1},
        {"master_epoch": 0},
        {"append_time_ms": 0},
        {"byte_length": 89},
        {"byte_length": 1 << 30},
    ],
)
def test_a_batch_with_a_valid_checksum_that_lies_is_not_believed(lie: dict[str, int]) -> None:
    """Place, epoch, time and length must fit what came before."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    append(log, b"x", epoch=5)
    end = log.end_offset
    header = BatchHeader(end, 88, 0, 10**15, master_epoch=5)
    file = disk.open(DIRECTORY / f"{0:016d}.block")
    for fields, believed in (({}, True), (lie, False)):
        file.pwrite([encode_control(header._replace(**fields), 0)], end)
        index = OffsetIndex(0, messages_before=0)
        assert (verify(file, 0, 0, file.size(), LogFacts(), index) > end) is believed


def test_the_highest_synced_offset_behind_damage_is_found() -> None:
    """Also when a record lies across two chunks of the search."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    for number in range(20):
        append(log, bytes(100))
        if number == 10:
            ticket = log.begin_sync()
            assert ticket is not None
            ticket.run()
            log.finish_sync(ticket)
    file = disk.open(DIRECTORY / f"{0:016d}.block")
    size = 88 + 120
    end = log.end_offset
    assert look_behind(file, 0, 0, end, 0) == Behind(11 * size, 20, 20)
    assert look_behind(file, 0, 10 * size, end, 10 * size) == Behind(11 * size, 10, 10)
    assert look_behind(file, 0, 0, 11 * size, 0) == Behind(0, 11, 11)
    assert look_behind(file, 0, 19 * size, end, 19 * size) == Behind(None, 1, 1)
    assert look_behind(file, 0, 19 * size, end, 5 * size) == Behind(11 * size, 1, 1)
    assert look_behind(file, 0, 19 * size + 1, end, 19 * size) == Behind()
    for chunk in (90, 100, 128, 500):
        scan.CHUNK_BYTES, old = chunk, scan.CHUNK_BYTES  # type: ignore[misc]
        try:
            assert look_behind(file, 0, 0, end, 0) == Behind(11 * size, 20, 20)
        finally:
            scan.CHUNK_BYTES = old  # type: ignore[misc]


def test_what_several_blocks_tell_is_added_up() -> None:
    """The highest synced offset of any, and all the messages."""
    found = Behind(None, 1, 3)
    found.add(Behind(7, 2, 5))
    found.add(Behind(4, 1, 1))
    found.add(Behind())
    assert found == Behind(7, 4, 9)


def test_zeros_are_told_from_anything_else() -> None:
    """One set bit anywhere."""
    file, _, end = block()
    size = file.size()
    assert is_zero(file, end, size)
    assert is_zero(file, end, end)
    assert not is_zero(file, 0, size)
    for at in (end, size - 1, (end + size) // 2):
        file.pwrite([b"\x01"], at)
        assert not is_zero(file, end, size)
        file.pwrite([b"\x00"], at)


def test_a_control_record_is_seen_wherever_a_chunk_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of it may be the last one of a chunk."""
    disk = memory_disk()
    log = open_log(disk)
    ends = []
    for _ in range(3):
        append(log, bytes(400))
        flush(log)
        ends.append(log.end_offset)
    log.close()
    file = disk.open(DIRECTORY / f"{0:016d}.block")
    for size in range(ends[0], ends[1]):
        monkeypatch.setattr(scan, "CHUNK_BYTES", size)
        found = look_behind(file, 0, 0, ends[2], 0)
        assert (found.batches, found.synced_offset) == (3, ends[1]), size
