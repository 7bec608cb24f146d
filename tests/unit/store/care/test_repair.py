"""Intact batches of another copy go where a log has damaged bytes; a crash leaves old or new."""

import random

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log, payloads

from vq.clock import ManualClock
from vq.errors import CorruptData
from vq.store.care.repair import check_intact, find_damage, read_intact
from vq.store.care.walk import BadRange
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.store.disk.memory_names import RandomChance
from vq.store.disk.new_block import NewBlock
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.repair_file import put_back
from vq.store.records.format import BLOCK_SUFFIX, CHECKPOINT_NAME, block_name

COUNT = 12  # batches of about 1,200 bytes in blocks of 4,096 bytes: four blocks


def fill(disk: MemoryDisk, *, epoch: int = 1, fills: int = 0) -> list[int]:
    """Make a log and close it; return where each batch begins, and the end."""
    log = open_log(disk, clock=ManualClock(wall_ms=1_000_000))
    starts = []
    for number in range(COUNT):
        starts.append(append(log, b"%04d" % number + bytes([fills]) * 1100, epoch=epoch))
        flush(log)
    starts.append(log.end_offset)
    log.close()
    return starts


def block_of(disk: MemoryDisk, offset: int) -> int:
    names = [n for n in disk.listdir(DIRECTORY) if n.endswith(BLOCK_SUFFIX)]
    return max(s for s in (int(n.removesuffix(BLOCK_SUFFIX)) for n in names) if s <= offset)


def scratch(disk: MemoryDisk, offset: int, data: bytes = b"damage") -> None:
    start = block_of(disk, offset)
    file = disk.open(DIRECTORY / block_name(start))
    file.pwrite([data], offset - start)
    file.datasync()
    file.close()


def files(disk: MemoryDisk) -> dict[str, bytes]:
    names = [n for n in disk.listdir(DIRECTORY) if n.endswith(BLOCK_SUFFIX)]
    return {name: disk.read_bytes(DIRECTORY / name) for name in names}


def whole(log: Log) -> bool:
    return log.state is LogState.OK and len(payloads(log)) == COUNT


def take(good: MemoryDisk, damage: BadRange) -> tuple[bytes, bytes]:
    """The bytes of the other copy."""
    log = open_log(good)
    pieces = log.reader.pieces(damage.start, log.end_offset)
    found = read_intact(good, pieces, damage.start, damage.end - damage.start)
    log.close()
    return found


def heal(disk: MemoryDisk, good: MemoryDisk, damage: BadRange) -> None:
    start = int(damage.path.stem)
    while damage.start < damage.end:
        data, following = take(good, damage)
        end = check_intact(disk, damage, start, data, following, trusted=False)
        put_back(disk, damage.path, start, damage.start, data)
        damage = damage._replace(start=end)


@pytest.mark.parametrize("number", range(COUNT - 1))
def test_a_damaged_batch_is_replaced(number: int) -> None:
    """At every place; the log then has the bytes that it had."""
    disk, good = memory_disk(), memory_disk()
    starts = fill(disk)
    assert fill(good) == starts
    was = files(disk)
    scratch(disk, starts[number] + 100)
    disk.unlink(DIRECTORY / CHECKPOINT_NAME)
    log = open_log(disk)
    assert (log.state, log.end_offset) == (LogState.QUARANTINED, starts[number])
    log.close()
    for stray in ("notes.drop", "12.drop", ".drop"):  # somebody else's
        disk.write_atomic(DIRECTORY / stray, b"")
    [damage] = find_damage(disk, DIRECTORY, log.end_offset)
    assert (damage.start, damage.end) == (starts[number], starts[number + 1])
    heal(disk, good, damage)
    assert files(disk) == was
    assert whole(open_log(disk))
    [saved] = [name for name in disk.listdir(DIRECTORY) if ".damaged" in name]
    assert b"damage" in disk.read_bytes(DIRECTORY / saved)


def test_a_crash_leaves_the_old_bytes_or_the_new_ones() -> None:
    """After every operation, with whatever was not synced lost or not; again does the rest."""
    disk, good = memory_disk(), memory_disk()
    starts = fill(disk)
    fill(good)
    was = files(disk)
    scratch(disk, starts[4] + 100, b"damage" * 180)  # in several sectors: some could be written
    stage, running = disk.crash(keep_all), disk.crash(keep_all)
    scratched = files(disk)
    damage = BadRange(starts[4], starts[5], DIRECTORY / block_name(block_of(disk, starts[4])), "")
    heal(running, good, damage)
    seen = set()
    for at, _ in enumerate(stage.replay(list(running.operations))):
        for number in range(6):
            crashed = stage.crash(RandomChance(random.Random(at * 10 + number)))
            open_log(crashed).close()
            assert files(crashed) in (was, scratched), f"operation {at}, {number}"
            seen.add(files(crashed) == was)
            heal(crashed, good, damage)
            assert files(crashed) == was
            assert whole(open_log(crashed))
    assert seen == {True, False}


@pytest.mark.parametrize("other", [{"epoch": 2}, {"fills": 7}])
def test_bytes_that_do_not_join_are_refused(other: dict[str, int]) -> None:
    """Intact batches of a log that is another one behind the damage."""
    disk, good = memory_disk(), memory_disk()
    starts = fill(disk)
    assert fill(good, **other) == starts
    scratch(disk, starts[4] + 100)
    damage = BadRange(starts[4], starts[5], DIRECTORY / block_name(block_of(disk, starts[4])), "")
    was = files(disk)
    with pytest.raises(CorruptData):
        heal(disk, good, damage)
    assert files(disk) == was


@pytest.mark.parametrize("trusted", [False, True])
def test_a_copy_that_goes_on_with_another_batch_is_refused(trusted: bool) -> None:
    """Whatever is known of it: one of both is wrong."""
    disk, good = memory_disk(), memory_disk()
    starts = fill(disk)
    fill(good, epoch=2)
    damage = BadRange(starts[4], starts[5], DIRECTORY / block_name(block_of(disk, starts[4])), "")
    data, following = take(good, damage)
    with pytest.raises(CorruptData, match="both copies differ"):
        check_intact(disk, damage, int(damage.path.stem), data, following, trusted=trusted)


def test_the_end_of_a_log_is_taken_only_from_a_copy_that_is_known_to_be_equal() -> None:
    """Nothing that follows tells it, and no checkpoint."""
    disk, good = memory_disk(), memory_disk()
    starts = fill(disk)
    fill(good, fills=7)
    disk.unlink(DIRECTORY / CHECKPOINT_NAME)
    damage = BadRange(
        starts[-2], starts[-1], DIRECTORY / block_name(block_of(disk, starts[-2])), ""
    )
    data, following = take(good, damage)
    block_start = int(damage.path.stem)
    with pytest.raises(CorruptData, match="nothing shows that both copies are equal"):
        check_intact(disk, damage, block_start, data, following, trusted=False)
    end = check_intact(disk, damage, block_start, data, following, trusted=True)
    assert end == starts[-1]


@pytest.mark.parametrize(("epoch", "lost", "taken"), [(1, 2, True), (1, 3, False), (2, 2, False)])
def test_the_end_that_a_checkpoint_names_is_taken_from_a_log_with_that_batch(
    epoch: int, lost: int, taken: bool
) -> None:
    """Of that epoch, and there: one of a later epoch, or one that lies before, tells nothing."""
    disk, good = memory_disk(), memory_disk()
    starts = fill(disk)
    fill(good, epoch=epoch)
    begin, end = starts[-lost], starts[-lost + 1]
    path = DIRECTORY / block_name(block_of(disk, begin))
    file = disk.open(path)
    file.truncate(begin - int(path.name.removesuffix(BLOCK_SUFFIX)))
    file.close()
    damage = BadRange(begin, end, path, "")
    data, following = take(good, damage)
    if taken:
        assert check_intact(disk, damage, int(path.stem), data, following, trusted=False) == end
        return
    with pytest.raises(CorruptData, match="nothing shows that both copies are equal"):
        check_intact(disk, damage, int(path.stem), data, following, trusted=False)


def test_damaged_bytes_of_the_other_copy_are_not_read() -> None:
    disk = memory_disk()
    starts = fill(disk)
    scratch(disk, starts[4] + 100)
    damage = BadRange(starts[4], starts[5], DIRECTORY / block_name(block_of(disk, starts[4])), "")
    with pytest.raises(CorruptData, match="no intact batch"):
        take(disk, damage)


@pytest.mark.parametrize("at", range(3))
def test_a_block_whose_file_is_gone_is_written_anew(at: int) -> None:
    disk, good = memory_disk(), memory_disk()
    fill(disk)
    fill(good)
    was = files(disk)
    name = sorted(was)[at]
    disk.unlink(DIRECTORY / name)
    log = open_log(disk)
    assert log.state is LogState.QUARANTINED
    log.close()
    [damage] = find_damage(disk, DIRECTORY, log.end_offset)
    assert damage.path == DIRECTORY / name
    new = NewBlock(disk, damage.path)
    while damage.start < damage.end:
        data, following = take(good, damage)
        end = check_intact(disk, damage, int(damage.path.stem), data, following, trusted=False)
        new.add(data)
        damage = damage._replace(start=end)
    assert whole_when_closed(disk) is False, "it is not in its place yet"
    new.finish()
    assert files(disk) == was
    assert whole(open_log(disk))


def whole_when_closed(disk: MemoryDisk) -> bool:
    log = open_log(disk.crash(keep_all))
    return whole(log)


@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_the_end_of_a_log_that_a_checkpoint_names_is_missed(how: str) -> None:
    """Bytes below the checkpoint were verified once, and may be gone since."""
    disk = memory_disk()
    starts = fill(disk)
    start = block_of(disk, starts[-2])
    path = DIRECTORY / block_name(start)
    file = disk.open(path)
    if how == "cut":
        file.truncate(starts[-2] - start)
    else:
        file.pwrite([bytes(starts[-1] - starts[-2])], starts[-2] - start)
    file.datasync()
    file.close()
    log = open_log(disk)
    assert (log.state, log.end_offset) == (LogState.QUARANTINED, starts[-2])
    assert len(payloads(log)) == COUNT - 1
    log.close()
    [damage] = find_damage(disk, DIRECTORY, log.end_offset)
    assert (damage.start, damage.end) == (starts[-2], starts[-1])
