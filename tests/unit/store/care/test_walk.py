"""Reading a log beside its use: what is intact, what is not, and where the damage ends."""

import random

import pytest
from support.store import append, flush, memory_disk, open_log

from vq.errors import VqError
from vq.store.care import walk
from vq.store.care.reported import ReportedWalk
from vq.store.care.walk import Walk
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.offset_index import INTERVAL_BYTES


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Several steps a block, and batches larger than a step."""
    monkeypatch.setattr(walk, "STEP_BYTES_MIN", 700)
    monkeypatch.setattr(walk, "STEP_BYTES_MAX", 1_500)


def filled(disk: MemoryDisk, batches: int = 40) -> tuple[Log, list[int]]:
    """Return a log of several blocks and the starts of its batches, with the end."""
    log = open_log(disk)
    rng = random.Random(5)
    starts = [
        append(log, *[rng.randbytes(rng.choice([10, 100, 900])) for _ in range(rng.randint(1, 3))])
        for _ in range(batches)
    ]
    flush(log)
    return log, [*starts, log.end_offset]


def overwrite(disk: MemoryDisk, log: Log, offset: int, data: bytes) -> None:
    """Change bytes of the log behind its back."""
    (piece,) = [
        each for each in log.reader.pieces(0, log.end_offset) if each.start <= offset < each.end
    ]
    file = disk.open(piece.path)
    file.pwrite([data], offset - piece.block_start)
    file.close()


def run(disk: MemoryDisk, log: Log, offset: int | None = None) -> Walk:
    """Take all steps: over the whole log, or to the batch that a reader reports."""
    pieces = log.reader.pieces(offset or 0, log.end_offset)
    found = Walk(disk, pieces) if offset is None else ReportedWalk(disk, pieces, offset)
    steps = 0
    while not found.done:
        before = found.read_bytes
        found.step()
        assert found.read_bytes - before <= 5_000
        steps += 1
        assert steps < 1_000
    found.close()
    return found


def ranges(found: Walk) -> list[tuple[int, int]]:
    return [(damage.start, damage.end) for damage in found.damage]


def test_an_intact_log_is_looked_at_whole() -> None:
    """Every byte of every block, in steps."""
    disk = memory_disk()
    log, _ = filled(disk)
    found = run(disk, log)
    assert found.damage == []
    assert found.read_bytes == log.size_bytes


def test_every_changed_byte_is_found_in_its_batch() -> None:
    """Whatever byte of a batch changes, exactly that batch is named, in its file."""
    for number in range(40):
        disk = memory_disk()
        log, starts = filled(disk)
        start, end = starts[number], starts[number + 1]
        rng = random.Random(number)
        at = rng.choice([start, start + 16, start + CONTROL_BYTES - 1, rng.randrange(start, end)])
        (piece,) = [p for p in log.reader.pieces(0, log.end_offset) if p.start <= at < p.end]
        before = log.reader.read(at, 1, at + 1)[0]
        overwrite(disk, log, at, bytes([before ^ 0x40]))
        found = run(disk, log)
        assert ranges(found) == [(start, end)]
        assert found.damage[0].path == piece.path
        assert found.damage[0].why
        assert found.read_bytes == log.size_bytes


def test_several_ranges_are_found_and_neighbours_are_one() -> None:
    """What lies between is intact; damage side by side is one range."""
    disk = memory_disk()
    log, starts = filled(disk)
    first = log.reader.pieces(0, log.end_offset)[0]
    inside = [start for start in starts if start < first.end]
    assert len(inside) > 3
    for number in (0, 1, 20, 39):
        overwrite(disk, log, starts[number] + 30, b"\xff" * 8)
    assert ranges(run(disk, log)) == [
        (starts[0], starts[2]),
        (starts[20], starts[21]),
        (starts[39], starts[40]),
    ]


def test_zeros_over_a_whole_block_are_one_damage() -> None:
    """A lost extent reads as zeros."""
    disk = memory_disk()
    log, _ = filled(disk)
    piece = log.reader.pieces(0, log.end_offset)[1]
    overwrite(disk, log, piece.start, bytes(piece.end - piece.start))
    assert ranges(run(disk, log)) == [(piece.start, piece.end)]


def test_a_file_that_is_gone_or_short_is_damage() -> None:
    """Its part of the log is named."""
    disk = memory_disk()
    log, starts = filled(disk)
    pieces = log.reader.pieces(0, log.end_offset)
    disk.unlink(pieces[1].path)
    short = disk.open(pieces[2].path)
    inside = next(start for start in starts if start > pieces[2].start)
    short.truncate(inside - pieces[2].start)
    short.close()
    found = run(disk, log)
    assert ranges(found) == [(pieces[1].start, pieces[1].end), (inside, pieces[2].end)]
    assert "cannot be read" in found.damage[0].why
    assert "file ends" in found.damage[1].why


def test_the_last_file_may_be_gone() -> None:
    """The walk ends there."""
    disk = memory_disk()
    log, _ = filled(disk)
    last = log.reader.pieces(0, log.end_offset)[-1]
    disk.unlink(last.path)
    assert ranges(run(disk, log)) == [(last.start, last.end)]


def test_a_place_that_the_medium_does_not_deliver_is_damage(monkeypatch) -> None:
    """And what lies behind it is verified."""
    disk = memory_disk()
    log, starts = filled(disk)
    piece = log.reader.pieces(0, log.end_offset)[0]
    opened = disk.open(piece.path)
    pread = type(opened).pread
    opened.close()

    def failing(file, position: int, length: int) -> bytes:
        if position <= starts[2] < position + length and piece.start == 0:
            raise OSError(5, "Input/output error")
        return pread(file, position, length)

    monkeypatch.setattr(type(opened), "pread", failing)
    found = Walk(disk, [piece])
    while not found.done:
        found.step()
    assert len(found.damage) == 1
    assert found.damage[0].start <= starts[2] < found.damage[0].end < piece.end
    assert "Input/output error" in found.damage[0].why


@pytest.mark.parametrize("inside", [0, 7])
def test_one_batch_can_be_looked_at_alone(inside: int) -> None:
    """From the index entry before it to its end, no further. A reader names where it begins."""
    config = LogConfig(block_bytes=1 << 22, allocate_bytes_max=1 << 16, allocate_bytes_min=4096)
    disk = memory_disk()
    log = open_log(disk, config=config)
    starts = [append(log, b"x" * 500) for _ in range(2_000)]
    flush(log)
    overwrite(disk, log, starts[1_000] + 200, b"damage")
    found = run(disk, log, starts[1_000] + inside)
    assert ranges(found) == [(starts[1_000], starts[1_001])]
    assert found.read_bytes < INTERVAL_BYTES + 2_000
    assert run(disk, log, starts[1_500]).damage == []


def test_a_closed_log_has_no_pieces() -> None:
    """What lies on the disk may be another log's by then."""
    disk = memory_disk()
    log, _ = filled(disk)
    log.close()
    with pytest.raises(VqError):
        log.reader.pieces(0, 100)


def test_a_step_has_one_batch_if_that_is_larger_and_not_all_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each batch holds the interpreter: the largest batch has room for thousands of small ones."""
    monkeypatch.setattr(walk, "STEP_BYTES_MIN", 100)
    monkeypatch.setattr(walk, "STEP_BYTES_MAX", 100)
    disk = memory_disk()
    log = open_log(disk)
    for _ in range(30):
        append(log, bytes(20))
    flush(log)
    found = Walk(disk, log.reader.pieces(0, log.end_offset))
    steps, before = [], 0
    while not found.done:
        found.step()
        steps.append(found.read_bytes - before)
        before = found.read_bytes
    assert set(steps) == {log.end_offset // 30}
    assert not found.damage
