"""What holds a block when a log is opened: the table, row by row, and every crash between."""

import io
import random
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.block_files import read_partition
from support.store import (
    DIRECTORY,
    append,
    archive,
    blocks_of,
    flush,
    memory_disk,
    open_log,
    payloads,
    write_archive,
)

from vq.store.archive.archive import ArchiveFiles
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.disk.real_disk import RealDisk
from vq.store.log.block import BlockCache
from vq.store.log.holdings import Holder, holder
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.manifest import HeldAs
from vq.store.log.recovered import Case

ROWS = [
    (HeldAs.BLOCK, True, True, Holder.BLOCK),
    (HeldAs.BLOCK, True, False, Holder.BLOCK),
    (HeldAs.BLOCK, False, True, Holder.ARCHIVE),
    (HeldAs.BLOCK, False, False, Holder.NOTHING),
    (HeldAs.ARCHIVE, True, True, Holder.ARCHIVE),
    (HeldAs.ARCHIVE, False, True, Holder.ARCHIVE),
    (HeldAs.ARCHIVE, True, False, Holder.BLOCK),
    (HeldAs.ARCHIVE, False, False, Holder.NOTHING),
    (None, True, True, Holder.BLOCK),
    (None, True, False, Holder.BLOCK),
    (None, False, True, Holder.ARCHIVE),
    (None, False, False, Holder.NOTHING),
]


@pytest.mark.parametrize(("named", "has_block", "has_archive", "expected"), ROWS)
def test_the_table(
    named: HeldAs | None, has_block: bool, has_archive: bool, expected: Holder
) -> None:
    """Each row, as a function of plain values."""
    assert holder(named, has_block=has_block, has_archive=has_archive) is expected
    if has_block:
        found = holder(named, has_block=True, has_archive=has_archive, only_block=True)
        assert found is Holder.BLOCK


#: Power cuts after each operation that keep some of what was not flushed.
CHANCES = 4
PAYLOADS = [b"%d" % n * 400 for n in range(9)]


def three_blocks(disk: MemoryDisk) -> Log:
    """Return a log of three blocks, all closed, with three messages each."""
    log = open_log(disk)
    for number, payload in enumerate(PAYLOADS):
        append(log, payload, epoch=1 + number // 4)
        if number % 3 == 2:
            log.roll()
    flush(log)
    return log


def reopened(disk: MemoryDisk) -> Log:
    return open_log(disk, cache=BlockCache(waits=True))


def names(disk: MemoryDisk, suffix: str = "") -> list[str]:
    return [name for name in disk.listdir(DIRECTORY) if name.endswith(suffix)]


def kinds(log: Log) -> str:
    return "".join("a" if block.is_archived else "b" for block in blocks_of(log))


def as_row(disk: MemoryDisk, number: int, row: tuple[HeldAs | None, bool, bool]) -> ArchiveFiles:
    """Bring a closed log's directory into the state of one row for one block."""
    named, has_block, has_archive = row
    log = three_blocks(disk)
    block = blocks_of(log)[number]
    files = ArchiveFiles.of(block.path)
    raw = disk.read_bytes(files.block)
    stub = write_archive(disk, block)
    if named is HeldAs.ARCHIVE:
        log.use_archive(block, stub.archive)
    log.close()
    if named is None:
        disk.unlink(DIRECTORY / "checkpoint")
    if has_block and not disk.exists(files.block):
        disk.write_atomic(files.block, raw)
    if not has_block and disk.exists(files.block):
        disk.unlink(files.block)
    if not has_archive:
        disk.unlink(files.zip)
    return files


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("named", "has_block", "has_archive", "expected"), ROWS)
def test_a_log_opens_as_the_row_says(
    number: int, named: HeldAs | None, has_block: bool, has_archive: bool, expected: Holder
) -> None:
    """For the first, a middle and the last block. What is gone is damage, and is told."""
    disk = memory_disk()
    files = as_row(disk, number, (named, has_block, has_archive))
    log = reopened(disk)
    if expected is Holder.NOTHING:
        assert log.state is LogState.QUARANTINED
        assert files.stub.name in log.reason
        lost = set(PAYLOADS[3 * number : 3 * number + 3])
        assert set(payloads(log)) <= set(PAYLOADS) - lost
        assert payloads(log)
        return
    assert log.state is LogState.OK
    assert payloads(log) == PAYLOADS
    assert blocks_of(log)[number].is_archived is (expected is Holder.ARCHIVE)
    append(log, b"more", epoch=9)
    flush(log)
    log.close()
    again = reopened(disk)
    assert payloads(again) == [*PAYLOADS, b"more"]
    assert not disk.exists(files.block) or not blocks_of(again)[number].is_archived
    if named is not None:
        assert disk.exists(files.block) is not blocks_of(again)[number].is_archived
        if expected is Holder.BLOCK and has_archive:
            assert not disk.exists(files.stub)
            assert not disk.exists(files.zip)


def change_byte(disk: MemoryDisk, path: Path) -> bytes:
    """Change one byte in the middle of a file; return what it has then."""
    file = disk.open(path)
    position = disk.size(path) // 2
    (byte,) = file.pread(position, 1)
    file.pwrite([bytes([byte ^ 0xFF])], position)
    file.datasync()
    file.close()
    return disk.read_bytes(path)


@pytest.mark.parametrize("number", range(3))
def test_a_block_file_that_was_put_back_for_a_damaged_zip_is_used(number: int) -> None:
    """The zip has its size still, and the manifest names it; what is right is kept."""
    disk = memory_disk()
    files = as_row(disk, number, (HeldAs.ARCHIVE, True, True))
    change_byte(disk, files.zip)
    log = reopened(disk)
    assert (log.state, kinds(log), payloads(log)) == (LogState.OK, "bbb", PAYLOADS)
    append(log, b"more", epoch=9)
    flush(log)
    log.close()
    log = reopened(disk)
    assert (log.state, payloads(log)) == (LogState.OK, [*PAYLOADS, b"more"])
    assert names(disk, ".zip") == names(disk, ".archive") == []


def test_retention_takes_an_archive_that_a_start_has_not_used_with_its_block() -> None:
    disk = memory_disk()
    files = as_row(disk, 0, (HeldAs.ARCHIVE, True, True))
    change_byte(disk, files.zip)
    log = reopened(disk)
    assert disk.exists(files.stub), "the manifest does not name the block file yet"
    log.drop_before(blocks_of(log)[0].end_offset)
    flush(log)
    assert not any(disk.exists(path) for path in (files.block, files.stub, files.zip))
    assert payloads(log) == PAYLOADS[3:]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("named", [HeldAs.ARCHIVE, HeldAs.BLOCK])
def test_what_is_not_right_is_put_aside_and_not_deleted(number: int, named: HeldAs) -> None:
    """A block file with other bytes than its archive: one of them is damaged. An operator looks."""
    disk = memory_disk()
    files = as_row(disk, number, (named, True, True))
    changed = change_byte(disk, files.block)
    zipped, stub = disk.read_bytes(files.zip), disk.read_bytes(files.stub)
    log = reopened(disk)
    notes = "\n".join(log.recovery.notes)
    if named is HeldAs.ARCHIVE:
        assert (log.state, payloads(log)) == (LogState.OK, PAYLOADS)
        assert disk.read_bytes(Path(f"{files.block}.damaged")) == changed
        assert f"{files.block.name}.damaged" in notes
    else:
        assert kinds(log)[number] == "b"
        assert disk.read_bytes(Path(f"{files.zip}.damaged")) == zipped
        assert disk.read_bytes(Path(f"{files.stub}.damaged")) == stub
        assert f"{files.zip.name}.damaged" in notes


@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_zip_that_alone_has_its_block_stays_and_is_told(
    numbers: tuple[int, ...], tmp_path: Path
) -> None:
    """Checkpoint and stub are lost; the command that the log tells brings the block back."""
    disk = memory_disk()
    log = three_blocks(disk)
    files = [ArchiveFiles.of(blocks_of(log)[number].path) for number in numbers]
    for number in numbers:
        archive(disk, log, blocks_of(log)[number])
    log.close()
    for path in (DIRECTORY / "checkpoint", *(each.stub for each in files)):
        disk.unlink(path)
    zips = [disk.read_bytes(each.zip) for each in files]
    for _ in range(2):
        log = reopened(disk)
        assert log.state is LogState.QUARANTINED
        assert f"unzip -p {files[0].zip.name} 'block/*' > {files[0].block.name}" in log.reason
        log.close()
        assert [disk.read_bytes(each.zip) for each in files] == zips
    for each, data in zip(files, zips, strict=True):
        with ZipFile(io.BytesIO(data)) as opened:
            chunks = [opened.read(n) for n in opened.namelist() if n.startswith("block/")]
        disk.write_atomic(each.block, b"".join(chunks))
    log = reopened(disk)
    assert (log.state, payloads(log)) == (LogState.OK, PAYLOADS)
    assert names(disk, ".zip") == []


@pytest.mark.parametrize("change", ["cut", "longer", "stub cut", "stub of another", "no zip"])
def test_an_archive_that_is_not_whole_is_damage_that_is_told(change: str) -> None:
    """As a block file that is gone is; with the block file there, that is used."""
    for has_block in (False, True):
        disk = memory_disk()
        files = as_row(disk, 1, (HeldAs.ARCHIVE, has_block, True))
        if change in ("cut", "longer"):
            size = disk.size(files.zip)
            disk.open(files.zip).truncate(size + (1 if change == "longer" else -1))
        elif change == "stub cut":
            disk.open(files.stub).truncate(disk.size(files.stub) - 2)
        elif change == "no zip":
            disk.unlink(files.zip)
        else:
            elsewhere = memory_disk()
            other = open_log(elsewhere)
            append(other, b"z")
            other.roll()
            flush(other)
            write_archive(elsewhere, blocks_of(other)[0])
            stub = elsewhere.read_bytes(ArchiveFiles.of(blocks_of(other)[0].path).stub)
            disk.write_atomic(files.stub, stub)
        log = reopened(disk)
        if has_block:
            assert payloads(log) == PAYLOADS
            assert kinds(log) == "bbb"
        else:
            assert log.state is LogState.QUARANTINED
            assert files.stub.name in log.reason
            assert payloads(log) == PAYLOADS[:3]
            assert log.recovery.case is Case.DAMAGED


def test_a_log_of_archives_alone_opens_and_takes_appends() -> None:
    """The next append begins a new block."""
    disk = memory_disk()
    log = three_blocks(disk)
    for block in blocks_of(log):
        archive(disk, log, block)
    assert names(disk, ".block") == []
    append(log, b"before", epoch=9)
    flush(log)
    log.close()
    for payload in (b"x", b"y"):
        log = reopened(disk)
        append(log, payload, epoch=9)
        flush(log)
        log.close()
    log = reopened(disk)
    assert payloads(log) == [*PAYLOADS, b"before", b"x", b"y"]
    assert kinds(log) == "aaab"


def test_a_log_of_archives_alone_survives_a_lost_checkpoint() -> None:
    """Archives are verified like block files then."""
    disk = memory_disk()
    log = three_blocks(disk)
    for block in blocks_of(log):
        archive(disk, log, block)
    log.close()
    disk.unlink(DIRECTORY / "checkpoint")
    log = reopened(disk)
    assert log.state is LogState.OK
    assert payloads(log) == PAYLOADS
    assert log.epoch == 3
    assert kinds(log) == "aaa"


def test_damage_before_an_archive_is_never_cut_off() -> None:
    """Without a checkpoint, and with batches that claim nothing: an archive was durable."""
    disk = memory_disk()
    log = three_blocks(disk)
    archive(disk, log, blocks_of(log)[2])
    log.close()
    disk.unlink(DIRECTORY / "checkpoint")
    file = disk.open(ArchiveFiles.of(blocks_of(log)[1].path).block)
    file.pwrite([b"\xff"], 30)
    log = reopened(disk)
    assert log.state is LogState.QUARANTINED
    assert payloads(log) == PAYLOADS[:3]
    assert names(disk, ".archive") != []


def test_a_stub_alone_that_is_damaged_is_a_log_that_is_lost() -> None:
    disk = memory_disk()
    log = three_blocks(disk)
    for block in blocks_of(log):
        archive(disk, log, block)
    log.close()
    for name in [*names(disk, ".zip"), "checkpoint"]:
        disk.unlink(DIRECTORY / name)
    log = reopened(disk)
    assert log.state is LogState.QUARANTINED
    assert payloads(log) == []


def crashes(base: MemoryDisk, operations: list, begin: int):
    """Yield the disk after each operation from ``begin`` on, as kills and power cuts leave it."""
    for count in range(begin, len(operations) + 1):
        lucky = [RandomChance(random.Random(count * 10 + seed)) for seed in range(CHANCES)]
        for chance in (keep_all, keep_none, *lucky):
            disk = base.crash(keep_all)
            for _ in disk.replay(operations[:count]):
                pass
            yield count, disk.crash(chance)


def judge(disk: MemoryDisk, where: object) -> None:
    """The log is whole after a crash, and a later archive works, whatever was left behind."""
    log = reopened(disk)
    assert log.state is LogState.OK, where
    assert payloads(log) == PAYLOADS, where
    assert log.recovery.cut_bytes == 0
    log.roll()
    flush(log)
    for block in blocks_of(log):
        if not block.is_archived:
            archive(disk, log, block)
    append(log, b"more", epoch=9)
    flush(log)
    log.close()
    log = reopened(disk)
    assert payloads(log) == [*PAYLOADS, b"more"], where
    assert kinds(log) == "aaab"
    assert names(disk, ".tmp") == []
    assert len(names(disk, ".zip")) == len(names(disk, ".archive")) == 3
    assert len(names(disk, ".block")) == 1


@pytest.mark.parametrize("number", range(3))
def test_a_crash_at_any_step_of_archiving_is_finished_or_undone(number: int) -> None:
    """Every operation on the disk, with the process killed and with power lost."""
    base = memory_disk()
    disk = base.crash(keep_all)
    log = three_blocks(disk)
    begin = len(disk.operations)
    archive(disk, log, blocks_of(log)[number])
    seen = set()
    for count, after in crashes(base, disk.operations, begin):
        left = tuple(sorted(name.partition(".")[2] for name in names(after)))
        seen.add(left)
        judge(after, count)
    assert len(seen) >= 6


@pytest.mark.parametrize("number", range(3))
def test_a_crash_at_any_step_of_restoring_is_finished_or_undone(number: int) -> None:
    base = memory_disk()
    disk = base.crash(keep_all)
    log = three_blocks(disk)
    block = blocks_of(log)[number]
    raw = disk.read_bytes(block.path)
    archive(disk, log, block)
    begin = len(disk.operations)
    disk.write_atomic(ArchiveFiles.of(block.path).block, raw)
    log.use_file(block)
    flush(log)
    assert names(disk, ".zip") == names(disk, ".archive") == []
    for count, after in crashes(base, disk.operations, begin):
        judge(after, count)


def test_a_crash_at_any_step_of_retention_is_finished_or_undone() -> None:
    """An archive that is dropped leaves nothing behind, or is back as a whole."""
    base = memory_disk()
    disk = base.crash(keep_all)
    log = three_blocks(disk)
    for block in blocks_of(log)[:2]:
        archive(disk, log, block)
    begin = len(disk.operations)
    log.drop_before(blocks_of(log)[1].start_offset)
    flush(log)
    assert len(names(disk, ".zip")) == len(names(disk, ".archive")) == 1
    for count, after in crashes(base, disk.operations, begin):
        log = reopened(after)
        assert log.state is LogState.OK, count
        assert payloads(log) in (PAYLOADS, PAYLOADS[3:]), count
        log.close()
        log = reopened(after)
        left = len(blocks_of(log)) - 1
        assert len(names(after, ".zip")) == len(names(after, ".archive")) == left, count


def test_who_follows_the_document_reads_archives_and_block_files(tmp_path: Path) -> None:
    """With Python's own zip module, and no code of vq."""
    disk = RealDisk()
    log = open_log(disk, tmp_path / "orders" / "0")
    for number, payload in enumerate(PAYLOADS):
        append(log, payload)
        if number % 3 == 2:
            log.roll()
    flush(log)
    before = read_partition(log.directory)
    archive(disk, log, blocks_of(log)[0])
    archive(disk, log, blocks_of(log)[1])
    assert read_partition(log.directory) == before
    assert [payload for _, payload in before.messages] == PAYLOADS
    log.close()


def test_a_zip_that_nothing_refers_to_is_removed() -> None:
    """A kill came before its stub was written."""
    disk = memory_disk()
    log = three_blocks(disk)
    files = ArchiveFiles.of(blocks_of(log)[1].path)
    write_archive(disk, blocks_of(log)[1])
    log.close()
    disk.unlink(files.stub)
    log = reopened(disk)
    assert names(disk, ".zip") == []
    assert payloads(log) == PAYLOADS


def test_a_block_file_that_was_cut_is_not_preferred_to_its_archive() -> None:
    """A kill came between stub and checkpoint, and the medium lost the end of the file."""
    disk = memory_disk()
    files = as_row(disk, 1, (HeldAs.BLOCK, True, True))
    disk.open(files.block).truncate(900)
    for _ in range(2):
        log = reopened(disk)
        assert payloads(log) == PAYLOADS
        assert kinds(log) == "bab"
        log.close()
    assert not disk.exists(files.block)


def test_the_only_bytes_of_a_block_are_not_removed() -> None:
    """The stub is gone, and so is the block file: the zip stays for whoever can use it."""
    disk = memory_disk()
    files = as_row(disk, 1, (HeldAs.ARCHIVE, False, True))
    disk.unlink(files.stub)
    log = reopened(disk)
    assert log.state is LogState.QUARANTINED
    assert disk.exists(files.zip)
    assert Path(files.zip).name in names(disk)
