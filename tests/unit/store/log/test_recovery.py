"""Every row of recovery's table, and every layout a directory can be found in."""

from dataclasses import replace

import google_crc32c
import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log, patiently, payloads

from vq.errors import OffsetOutOfRange, PartitionQuarantined
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig, LogState
from vq.store.log.recovered import Case, classify
from vq.store.records.format import CONTROL_BYTES

NO_CHECKPOINT = LogConfig(block_bytes=4096, allocate_bytes_min=4096, allocate_bytes_max=4096)
FIRST = DIRECTORY / f"{0:016d}.block"
SIZE = 20 + 88 + 400  # of every batch below


@pytest.mark.parametrize(
    ("x", "checkpoint", "rest_is_zero", "claimed", "case"),
    [
        (100, 100, True, None, Case.CLEAN),
        (100, 50, True, None, Case.CLEAN),
        (100, 50, False, None, Case.TORN_TAIL),
        (100, 100, False, None, Case.TORN_TAIL),
        (100, 50, False, 80, Case.UNSYNCED),
        (100, 50, False, 100, Case.UNSYNCED),
        (100, 50, False, 101, Case.DAMAGED),
        (100, 101, True, None, Case.DAMAGED),
        (100, 101, False, None, Case.DAMAGED),
        (100, 101, False, 0, Case.DAMAGED),
    ],
)
def test_the_table(
    x: int, checkpoint: int, rest_is_zero: bool, claimed: int | None, case: Case
) -> None:
    """Row by row, boundaries included."""
    found = classify(
        x, checkpoint_offset=checkpoint, rest_is_zero=rest_is_zero, claimed_synced=claimed
    )
    assert found is case


def fill(disk: MemoryDisk, count: int, *, flushed: bool, config: LogConfig = NO_CHECKPOINT) -> Log:
    """Append batches of 400 bytes that begin with their number, 8 to a block."""
    log = open_log(disk, config=config)
    for number in range(log.messages, log.messages + count):
        append(log, b"%04d" % number + bytes(396))
        if flushed:
            flush(log)
    return log


def numbers(log: Log) -> list[int]:
    return [int(p[:4]) for p in payloads(log)]


def overwrite(disk: MemoryDisk, offset: int, data: bytes) -> None:
    start = offset // (8 * SIZE) * 8 * SIZE
    file = disk.open(DIRECTORY / f"{start:016d}.block")
    file.pwrite([data], offset - start)
    file.datasync()
    file.close()


def reopen(disk: MemoryDisk) -> Log:
    """Open twice: the second time must find what the first one left."""
    first = open_log(disk, config=NO_CHECKPOINT)
    second = open_log(disk, config=NO_CHECKPOINT)
    assert (first.start_offset, first.end_offset, first.state) == (
        second.start_offset,
        second.end_offset,
        second.state,
    )
    if first.state is LogState.OK:
        assert second.recovery.case in (Case.CLEAN, Case.NEW)
        assert second.recovery.cut_bytes == 0
    return first


def test_new() -> None:
    """No directory, or an empty one."""
    disk = memory_disk()
    assert reopen(disk).recovery.case is Case.NEW
    disk.mkdir(DIRECTORY)
    assert reopen(disk).recovery.case is Case.NEW


def test_clean_with_space_taken_ahead() -> None:
    """A killed process leaves zeros at the end; they are no damage."""
    disk = memory_disk()
    fill(disk, 3, flushed=False)
    log = reopen(disk)
    assert (log.recovery.case, log.recovery.batches) == (Case.CLEAN, 3)
    assert numbers(log) == [0, 1, 2]
    assert disk.listdir(DIRECTORY) == [FIRST.name, "checkpoint"]


@pytest.mark.parametrize("damage", [0, 4, 17, 30, 84, 88, 120, SIZE - 1])
def test_torn_tail(damage: int) -> None:
    """The last batch is damaged anywhere: cut, kept aside, and the log goes on."""
    disk = memory_disk()
    fill(disk, 3, flushed=False)
    overwrite(disk, 2 * SIZE + damage, b"\xff")
    log = reopen(disk)
    assert (log.recovery.case, log.end_offset) == (Case.TORN_TAIL, 2 * SIZE)
    [aside] = log.recovery.cut_files
    assert aside.name == f"{FIRST.name.removesuffix('.block')}.cut-{2 * SIZE}"
    [note] = log.recovery.notes
    for said in (str(DIRECTORY), f"from offset {2 * SIZE} on", aside.name, "bytes"):
        assert said in note
    header_is_whole = damage >= CONTROL_BYTES
    assert log.recovery.cut_messages == (1 if header_is_whole else None)
    assert ("at least 1 messages" if header_is_whole else "it is unknown") in note
    assert disk.read_bytes(aside)[damage] == 0xFF
    append(log, b"0009")
    assert numbers(log) == [0, 1, 9]


@pytest.mark.parametrize("size", [4, 50, 87, 88, 100, SIZE - 1])
def test_truncated_tail(size: int) -> None:
    """A file cut off inside the last batch is the same."""
    disk = memory_disk()
    fill(disk, 3, flushed=False)
    file = disk.open(FIRST)
    file.truncate(2 * SIZE + size)
    file.datasync()
    log = reopen(disk)
    assert (log.recovery.case, log.end_offset) == (Case.TORN_TAIL, 2 * SIZE)
    assert numbers(log) == [0, 1]


def test_tails_torn_twice_at_one_place_are_both_kept() -> None:
    """A second cut does not overwrite what the first one put aside."""
    disk = memory_disk()
    for _ in range(2):
        log = fill(disk, 2 - open_log(disk, config=NO_CHECKPOINT).messages, flushed=False)
        overwrite(disk, SIZE + 90, b"%d" % len(disk.listdir(DIRECTORY)))
        log = reopen(disk)
        assert log.end_offset == SIZE
    assert len([n for n in disk.listdir(DIRECTORY) if ".cut-" in n]) == 2


def test_unsynced_group() -> None:
    """A hole in a group of appends nobody was told are durable: cut from the hole on."""
    disk = memory_disk()
    log = fill(disk, 3, flushed=True)
    append(log, bytes(400))
    append(log, bytes(400))
    overwrite(disk, 3 * SIZE + 90, b"torn")
    log = reopen(disk)
    assert (log.recovery.case, log.end_offset) == (Case.UNSYNCED, 3 * SIZE)
    assert numbers(log) == [0, 1, 2]
    assert log.recovery.cut_bytes > SIZE
    assert log.recovery.cut_messages == 2
    [note] = log.recovery.notes
    assert "at least 2 messages" in note


def test_unsynced_group_over_several_blocks() -> None:
    """Later blocks are renamed, none of their bytes is lost."""
    disk = memory_disk()
    fill(disk, 30, flushed=False)
    overwrite(disk, 3 * SIZE, bytes(SIZE))
    log = reopen(disk)
    assert (log.recovery.case, log.end_offset) == (Case.UNSYNCED, 3 * SIZE)
    names = disk.listdir(DIRECTORY)
    assert [n for n in names if n.endswith(".block")] == [FIRST.name]
    assert len([n for n in names if ".cut-" in n]) == 4
    append(log, b"0100")
    assert numbers(log) == [0, 1, 2, 100]


def test_a_lost_block_of_an_unsynced_group() -> None:
    """The directory entry of a middle block did not survive: cut before it."""
    disk = memory_disk()
    fill(disk, 30, flushed=False)
    disk.unlink(DIRECTORY / f"{8 * SIZE:016d}.block")
    log = reopen(disk)
    assert (log.recovery.case, numbers(log)) == (Case.UNSYNCED, list(range(8)))


def test_damage_in_the_middle() -> None:
    """Later batches say it was flushed: nothing is cut, what lies below is served."""
    disk = memory_disk()
    fill(disk, 20, flushed=True)
    disk.unlink(DIRECTORY / "checkpoint")
    before = {n: disk.read_bytes(DIRECTORY / n) for n in disk.listdir(DIRECTORY)}
    overwrite(disk, 3 * SIZE + 100, b"!")
    damaged = {n: disk.read_bytes(DIRECTORY / n) for n in disk.listdir(DIRECTORY)}
    log = reopen(disk)
    assert (log.state, log.recovery.case) == (LogState.QUARANTINED, Case.DAMAGED)
    assert numbers(log) == [0, 1, 2]
    assert log.reader.count(0, log.end_offset) == (3, True)
    assert "Nothing was cut" in log.reason
    with pytest.raises(PartitionQuarantined):
        append(log, b"x")
    for offset in (3 * SIZE, 4 * SIZE, 10**9):
        with pytest.raises(PartitionQuarantined):
            log.reader.read(offset, 100, 10**9)
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(-1, 100, 100)
    log.close()
    assert {n: disk.read_bytes(DIRECTORY / n) for n in disk.listdir(DIRECTORY)} == damaged
    overwrite(disk, 0, before[FIRST.name])
    assert numbers(reopen(disk)) == list(range(20))


def test_a_flushed_block_that_is_gone() -> None:
    """A missing middle block is damage if later ones say it was flushed."""
    disk = memory_disk()
    fill(disk, 30, flushed=True)
    disk.unlink(DIRECTORY / f"{8 * SIZE:016d}.block")
    log = reopen(disk)
    assert (log.state, numbers(log)) == (LogState.QUARANTINED, list(range(8)))


def test_a_message_that_quotes_a_batch_is_no_evidence() -> None:
    """Log bytes inside a message lie elsewhere than they say, so they do not count."""
    disk = memory_disk()
    log = fill(disk, 3, flushed=True)
    quote = bytes(log.reader.read(2 * SIZE, SIZE, log.end_offset))
    append(log, quote)
    overwrite(disk, 3 * SIZE + 20, b"\xff")
    log = reopen(disk)
    assert (log.recovery.case, log.end_offset) == (Case.TORN_TAIL, 3 * SIZE)


# With a checkpoint ------------------------------------------------------------------------------
def closed(count: int) -> MemoryDisk:
    disk = memory_disk()
    fill(disk, count, flushed=True).close()
    return disk


def test_only_what_lies_behind_the_checkpoint_is_verified() -> None:
    """Twenty batches before it, two behind."""
    disk = closed(20)
    fill(disk, 2, flushed=False)
    log = reopen(disk)
    assert (log.recovery.batches, log.recovery.checkpoint_offset) == (2, 20 * SIZE)
    assert numbers(log) == list(range(22))
    assert log.messages == 22
    assert log.reader.count(0, log.end_offset) == (22, True)


@pytest.mark.parametrize("keep", [0, 1, SIZE, 3 * SIZE + 5])
def test_a_log_shorter_than_its_checkpoint(keep: int) -> None:
    """Acknowledged messages are missing: quarantine, whole batches below are served."""
    disk = closed(20)
    file = disk.open(DIRECTORY / f"{16 * SIZE:016d}.block")
    file.truncate(keep)
    file.datasync()
    log = reopen(disk)
    assert log.state is LogState.QUARANTINED
    assert numbers(log) == list(range(16 + keep // SIZE))


def test_a_short_block_before_the_checkpoint() -> None:
    """Compared by name and length, without reading it."""
    disk = closed(30)
    file = disk.open(DIRECTORY / f"{8 * SIZE:016d}.block")
    file.truncate(2 * SIZE)
    file.datasync()
    log = reopen(disk)
    assert (log.state, numbers(log)) == (LogState.QUARANTINED, list(range(10)))
    assert log.messages == 10


def test_all_blocks_gone() -> None:
    """The checkpoint alone tells that there were some."""
    disk = closed(20)
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".block"):
            disk.unlink(DIRECTORY / name)
    log = reopen(disk)
    assert log.state is LogState.QUARANTINED
    with pytest.raises(PartitionQuarantined):
        log.reader.read(0, 10, 10)


def test_a_first_block_that_is_gone_though_the_manifest_names_it() -> None:
    """No retention said so: quarantine; what is left is served."""
    disk = closed(30)
    disk.unlink(FIRST)
    log = reopen(disk)
    assert (log.state, log.start_offset) == (LogState.QUARANTINED, 8 * SIZE)
    assert numbers(log) == list(range(8, 30))
    assert log.messages == 22
    assert f"manifest names {FIRST.name}" in log.reason
    assert f"offsets [0, {8 * SIZE})" in log.reason
    for offset in (0, 8 * SIZE - 1, 30 * SIZE):
        with pytest.raises(PartitionQuarantined):
            log.reader.read(offset, 10, 10)
    assert log.reader.offset_at_time(1 << 62) == 30 * SIZE
    with pytest.raises(PartitionQuarantined):  # an older message may have been the first one
        log.reader.offset_at_time(0)
    with pytest.raises(PartitionQuarantined):
        append(log, b"x")


def test_a_first_block_that_an_operator_gives_up() -> None:
    """The mark that the message names excuses it; it goes with the next checkpoint."""
    disk = closed(30)
    disk.unlink(FIRST)
    mark = FIRST.with_suffix(".drop")
    assert mark.name in open_log(disk, config=NO_CHECKPOINT).reason
    disk.write_atomic(mark, b"")
    log = reopen(disk)
    assert (log.state, log.start_offset) == (LogState.OK, 8 * SIZE)
    assert numbers(log) == list(range(8, 30))
    assert log.messages == 22
    assert any("deleted" in note for note in log.recovery.notes)
    append(log, b"0030")
    flush(log)
    assert not disk.exists(mark)
    assert numbers(reopen(disk)) == list(range(8, 31))


def test_a_block_that_comes_back_outlives_its_mark() -> None:
    """An operator gave it up, then found a copy: the mark goes, the block stays."""
    disk = closed(30)
    first = disk.read_bytes(FIRST)
    disk.unlink(FIRST)
    mark = FIRST.with_suffix(".drop")
    disk.write_atomic(mark, b"")
    assert open_log(disk, config=NO_CHECKPOINT).state is LogState.OK  # and is killed at once
    disk.write_atomic(FIRST, first)
    log = reopen(disk)
    assert (log.state, log.start_offset) == (LogState.OK, 0)
    assert any(mark.name in note for note in log.recovery.notes)
    append(log, b"0030")
    flush(log)
    log.close()
    assert disk.exists(FIRST)
    assert not disk.exists(mark)
    assert numbers(reopen(disk)) == list(range(31))


def test_a_first_block_that_a_kill_left_empty_is_named_with_the_next_flush() -> None:
    """Without a manifest nobody would miss it: the log would begin anew at 0."""
    disk = memory_disk()
    disk.mkdir(DIRECTORY)
    disk.open(FIRST, create=True).close()
    log = open_log(disk)
    append(log, b"0000")
    flush(log)
    disk.unlink(FIRST)
    assert reopen(disk).state is LogState.QUARANTINED


def killed(count: int) -> MemoryDisk:
    """Acknowledge batches and end without a close, as kill -9 does."""
    disk = memory_disk()
    fill(disk, count, flushed=True)
    return disk


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_block_that_is_gone_after_a_kill(at: int) -> None:
    """The first, a middle one, or the one that took appends: the manifest names each."""
    disk = killed(20)
    disk.unlink(DIRECTORY / f"{at * 8 * SIZE:016d}.block")
    log = reopen(disk)
    assert log.state is LogState.QUARANTINED
    assert f"{at * 8 * SIZE:016d}.block" in log.reason
    assert numbers(log) == (list(range(8, 20)) if at == 0 else list(range(at * 8)))


def test_the_only_block_is_gone_after_a_kill() -> None:
    """One acknowledged message is enough: the log is not taken for a new one."""
    disk = killed(1)
    disk.unlink(FIRST)
    log = reopen(disk)
    assert log.state is LogState.QUARANTINED
    assert FIRST.name in log.reason
    with pytest.raises(PartitionQuarantined):
        append(log, b"x")


@pytest.mark.parametrize("behind", [0, 17])
def test_a_log_cut_below_its_checkpoint_after_a_kill(behind: int) -> None:
    """Whole batches or not: the checkpoint proves that they were there."""
    disk = killed(20)
    block = DIRECTORY / f"{8 * SIZE:016d}.block"
    file = disk.open(block)
    file.truncate(3 * SIZE + behind)
    file.datasync()
    log = reopen(disk)
    assert (log.state, numbers(log)) == (LogState.QUARANTINED, list(range(11)))
    assert f"{block.name} is too short" in log.reason


def test_a_block_that_the_manifest_does_not_name_is_left_alone() -> None:
    """A stray copy among the blocks is no part of the log."""
    disk = closed(30)
    stray = DIRECTORY / f"{9 * SIZE:016d}.block"
    disk.write_atomic(stray, b"not of this log")
    log = reopen(disk)
    assert numbers(log) == list(range(30))
    assert any(stray.name in note for note in log.recovery.notes)
    assert disk.read_bytes(stray) == b"not of this log"


def test_a_checkpoint_of_the_first_version_proves_less() -> None:
    """It has no manifest: a first block that is gone counts as deleted, and is told."""
    disk = closed(30)
    checkpoint = Checkpoint.from_bytes(disk.read_bytes(DIRECTORY / "checkpoint"))
    assert checkpoint.manifest is not None
    assert [entry.start_offset for entry in checkpoint.manifest] == [
        0,
        8 * SIZE,
        16 * SIZE,
        24 * SIZE,
    ]
    data = first_version(checkpoint)
    disk.write_atomic(DIRECTORY / "checkpoint", data)
    disk.unlink(FIRST)
    log = reopen(disk)
    assert (log.state, log.start_offset) == (LogState.OK, 8 * SIZE)
    assert any("deleted" in note for note in log.recovery.notes)


def first_version(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the first version wrote it."""
    new = replace(checkpoint, manifest=()).to_bytes()
    old = new[:4] + b"\1" + new[5:64] + new[68:-4]
    return old + int(google_crc32c.value(old)).to_bytes(4, "big")


def test_everything_up_to_the_checkpoint_deleted() -> None:
    """What is left cannot follow on anything: quarantine."""
    disk = closed(8)
    checkpoint = disk.read_bytes(DIRECTORY / "checkpoint")
    fill(disk, 17, flushed=True)
    disk.write_atomic(DIRECTORY / "checkpoint", checkpoint)
    disk.unlink(FIRST)
    disk.unlink(DIRECTORY / f"{8 * SIZE:016d}.block")
    assert reopen(disk).state is LogState.QUARANTINED


def test_interrupted_retention_is_finished() -> None:
    """The checkpoint says a later start than the files: they go."""
    disk = closed(30)
    kept = {n: disk.read_bytes(DIRECTORY / n) for n in disk.listdir(DIRECTORY)}
    log = open_log(disk, config=NO_CHECKPOINT)
    log.drop_before(20 * SIZE)
    flush(log)
    for name in (FIRST.name, f"{8 * SIZE:016d}.block"):
        disk.write_atomic(DIRECTORY / name, kept[name])
    log = reopen(disk)
    assert (log.start_offset, log.messages) == (16 * SIZE, 14)
    assert not disk.exists(FIRST)
    assert not disk.exists(DIRECTORY / f"{8 * SIZE:016d}.block"), "it ends where the log begins"
    assert log.recovery.notes == []


def test_a_damaged_checkpoint_costs_time_only() -> None:
    """Everything is verified instead."""
    disk = closed(20)
    data = bytearray(disk.read_bytes(DIRECTORY / "checkpoint"))
    data[20] ^= 1
    disk.write_atomic(DIRECTORY / "checkpoint", bytes(data))
    log = reopen(disk)
    assert (log.recovery.batches, numbers(log)) == (20, list(range(20)))
    assert any("unusable" in note for note in log.recovery.notes)


@pytest.mark.parametrize("dropped", [0, 8])
def test_a_log_without_its_checkpoint_knows_whether_it_knows_all_producers(dropped: int) -> None:
    """Behind dropped blocks a first batch that is sent again may be stored twice."""
    disk = closed(20)
    log = open_log(disk, config=NO_CHECKPOINT)
    log.drop_before(dropped * SIZE)
    log.close()
    disk.unlink(DIRECTORY / "checkpoint")
    log = reopen(disk)
    assert log.start_offset == dropped * SIZE
    assert log.producers.forgot == bool(dropped)


def test_key_indexes_stay_beside_what_is_left_of_a_block_and_no_longer() -> None:
    """Whatever holds its bytes has the digits of the block; those of dropped blocks go."""
    disk = closed(30)
    blocks = [name[:16] for name in disk.listdir(DIRECTORY) if name.endswith(".block")]
    for digits in (*blocks, "9" * 16):
        disk.write_atomic(DIRECTORY / f"{digits}.keys", b"index")
    disk.write_atomic(DIRECTORY / f"{7:016d}.keys", b"index")
    disk.write_atomic(DIRECTORY / f"{7:016d}.archive", b"its bytes lie elsewhere")
    reopen(disk)
    kept = [name[:16] for name in disk.listdir(DIRECTORY) if name.endswith(".keys")]
    assert kept == sorted([*blocks, f"{7:016d}"])


def test_a_key_index_goes_with_a_block_whose_deletion_was_interrupted() -> None:
    disk = closed(30)
    log = open_log(disk)
    first, second = log.closed_blocks[:2]
    path = first.path.with_suffix(".keys")
    disk.write_atomic(path, b"index")
    log.drop_before(second.start_offset)
    disk.fail("unlink", name=first.path.name)
    flush(log)
    assert disk.exists(first.path)
    reopen(disk)
    assert not disk.exists(first.path)
    assert not disk.exists(path)


@pytest.mark.parametrize("suffix", [".index", ".index.tmp", ".tmp"])
def test_leftovers_and_lost_indexes(suffix: str) -> None:
    """Indexes are rebuilt, half-written files removed."""
    disk = closed(30)
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".index"):
            disk.unlink(DIRECTORY / name)
    disk.write_atomic(DIRECTORY / ("9" * 16 + suffix), b"junk")
    log = reopen(disk)
    assert not any("9999" in name for name in disk.listdir(DIRECTORY))
    assert patiently(lambda: log.reader.count(3 * SIZE, 25 * SIZE))[0] == (22, True)
    assert patiently(lambda: log.reader.offset_at_time(0))[0] == 0


def test_a_checkpoint_of_a_block_that_was_lost_again() -> None:
    """The disk was full when the next block began: the checkpoint speaks of the one before."""
    disk = closed(8)
    log = open_log(disk, config=NO_CHECKPOINT)
    disk.fail("allocate")
    log._tail._allocation_failed = lambda error: error  # type: ignore[method-assign]
    with pytest.raises(OSError, match="told to fail"):
        append(log, bytes(400))
    log.seal()
    log.save_seal()
    disk.unlink(DIRECTORY / f"{8 * SIZE:016d}.block")
    again = reopen(disk)
    assert (again.end_offset, again.messages) == (8 * SIZE, 8)
    again.unseal()
    append(again, b"0008")
    assert numbers(again) == list(range(9))
    assert again.reader.count(0, again.end_offset) == (9, True)


def test_rot_below_the_checkpoint_is_found_when_it_is_read() -> None:
    """Recovery does not read there, so the log opens; the reader's checksum tells."""
    disk = closed(20)
    overwrite(disk, 2 * SIZE + 20 + 3, b"\xff\xff")
    log = reopen(disk)
    assert log.state is LogState.OK
    assert log.reader.count(SIZE, 4 * SIZE)[1] is False


def test_recovery_flushes_before_it_serves() -> None:
    """What a killed process left in the page cache is durable once the log is open."""
    disk = memory_disk()
    fill(disk, 3, flushed=False)
    open_log(disk, config=NO_CHECKPOINT)
    assert numbers(open_log(disk.crash(keep_none), config=NO_CHECKPOINT)) == [0, 1, 2]


def test_nothing_is_open_after_recovery() -> None:
    """A thousand logs recovered take no descriptor until they are used."""
    disk = closed(20).crash(keep_all)
    open_log(disk)
    assert disk.open_files == 0


@pytest.mark.parametrize("kind", ["pwrite", "datasync", "rename"])
def test_a_tail_that_could_not_be_kept_aside_is_still_there(kind: str) -> None:
    """Nothing is cut off the log before its copy is durable."""
    disk = memory_disk()
    fill(disk, 2, flushed=True)
    file = disk.open(FIRST)
    file.pwrite([b"torn"], 2 * SIZE)
    file.datasync()
    file.close()
    disk.fail(kind, name=f".cut-{2 * SIZE}.tmp")
    assert open_log(disk, config=NO_CHECKPOINT).state is LogState.FAILED
    disk.forget_faults()
    log = open_log(disk, config=NO_CHECKPOINT)
    assert (log.recovery.case, log.recovery.cut_bytes) == (Case.TORN_TAIL, 4)
    (aside,) = log.recovery.cut_files
    assert disk.read_bytes(aside) == b"torn"
