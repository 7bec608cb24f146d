"""What a flush does, in which order."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log, payloads

from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig, LogState
from vq.store.log.manifest import ManifestEntry
from vq.store.log.ticket import SyncTicket


def kinds(disk: MemoryDisk, since: int) -> list[str]:
    return [f"{o.kind} {o.path.name}" for o in disk.operations[since:]]


def test_files_first_then_names_then_the_checkpoint() -> None:
    """Nothing may say that something is durable before it is."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, bytes(3000))
    append(log, bytes(3000))
    since = len(disk.operations)
    flush(log)
    second = f"{log.blocks[1].start_offset:016d}.block"
    assert kinds(disk, since) == [
        f"datasync {0:016d}.block",
        f"datasync {second}",
        "datasync checkpoint",
        "sync_directory 0",
        "sync_directory orders",
        f"open {0:016d}.index.tmp",
        f"pwrite {0:016d}.index.tmp",
        f"datasync {0:016d}.index.tmp",
        f"rename {0:016d}.index.tmp",
        "sync_directory 0",
        "open checkpoint.tmp",
        "pwrite checkpoint.tmp",
        "datasync checkpoint.tmp",
        "rename checkpoint.tmp",
        "sync_directory 0",
    ]


def test_an_ordinary_flush_is_one_datasync() -> None:
    """No checkpoint, no directory."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    flush(log)
    append(log, b"y")
    since = len(disk.operations)
    flush(log)
    assert kinds(disk, since) == [f"datasync {0:016d}.block"]


@pytest.mark.parametrize("kind", ["datasync", "sync_directory"])
def test_an_error_is_the_callers_and_ends_the_ticket(kind: str) -> None:
    """Nothing after it is done: no checkpoint may vouch for what failed."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, bytes(3000))
    append(log, bytes(3000))
    ticket = log.begin_sync()
    assert ticket is not None
    assert ticket.checkpoint is not None
    first = disk.read_bytes(DIRECTORY / "checkpoint")
    disk.fail(kind)
    with pytest.raises(OSError, match="told to fail"):
        ticket.run()
    assert disk.read_bytes(DIRECTORY / "checkpoint") == first
    assert Checkpoint.from_bytes(first).offset == 0


def test_the_first_manifest_is_durable_before_the_first_acknowledgement() -> None:
    """It names the first block, and vouches for none of its bytes."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    flush(log)
    found = Checkpoint.from_bytes(disk.crash(keep_none).read_bytes(DIRECTORY / "checkpoint"))
    assert found.manifest == (ManifestEntry(0),)
    assert found.offset == 0


def test_a_first_manifest_that_finds_no_descriptor_ends_nothing() -> None:
    """The next checkpoint has it, too."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"x")
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail("open", error=errno.EMFILE, name="checkpoint")
    ticket.run()
    log.finish_sync(ticket)
    assert log.synced_offset == log.end_offset


@pytest.mark.parametrize("name", ["checkpoint.tmp", ".index.tmp"])
@pytest.mark.parametrize("kind", ["pwrite", "datasync", "rename"])
def test_an_error_of_what_saves_work_is_the_callers(kind: str, name: str) -> None:
    """The first error of a medium is the last, also where the file could be made again."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, bytes(3000))
    append(log, bytes(3000))
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail(kind, name=name)
    with pytest.raises(OSError, match="told to fail"):
        ticket.run()
    assert not ticket.checkpoint_written


@pytest.mark.parametrize("after", [1, 2])
def test_an_error_of_the_directory_is_the_callers(after: int) -> None:
    """It is the one in which blocks get their names: what it says later proves nothing."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, bytes(3000))
    append(log, bytes(3000))
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail("sync_directory", name=DIRECTORY.name, after=after)  # of the index, the checkpoint
    with pytest.raises(OSError, match="told to fail"):
        ticket.run()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_a_want_of_room_ends_nothing(error: int) -> None:
    """What may be gone the next time costs the checkpoint only; the data are durable."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, bytes(3000))
    append(log, bytes(3000))
    disk.fail("open", error=error, name=".index.tmp")
    ticket = flush(log)
    assert ticket is not None
    assert not ticket.checkpoint_written
    assert log.synced_offset == log.end_offset


def test_dropped_blocks_go_after_the_checkpoint_with_all_that_is_theirs() -> None:
    """Indexes too; what a start cut from a block stays until somebody has seen it."""
    disk = memory_disk()
    log = open_log(disk)
    for _ in range(5):
        append(log, bytes(3000))
    flush(log)
    last = log.blocks[4].start_offset
    for start in (0, last):
        disk.write_atomic(DIRECTORY / f"{start:016d}.cut-{start + 5}", b"cut")
    log.drop_before(last)
    since = len(disk.operations)
    flush(log)
    done = kinds(disk, since)
    assert done.index("rename checkpoint.tmp") < done.index(f"unlink {0:016d}.block")
    assert disk.listdir(DIRECTORY) == [
        f"{0:016d}.cut-5",
        f"{last:016d}.block",
        f"{last:016d}.cut-{last + 5}",
        "checkpoint",
    ]


def test_a_deletion_that_fails_is_tried_again() -> None:
    """With the next checkpoint."""
    disk = memory_disk()
    log = open_log(disk)
    for _ in range(3):
        append(log, bytes(3000))
    flush(log)
    log.drop_before(log.end_offset)
    disk.fail("unlink", name=f"{0:016d}.block")
    flush(log)
    assert disk.exists(DIRECTORY / f"{0:016d}.block")
    for _ in range(2):
        append(log, bytes(3000))
        flush(log)
    assert not disk.exists(DIRECTORY / f"{0:016d}.block")


def dropped_on_a_full_disk(failures: int) -> tuple[MemoryDisk, Log]:
    """A log of three blocks whose first was dropped; checkpoints find no room so many times."""
    disk = memory_disk()
    log = open_log(disk)
    for _ in range(3):
        append(log, bytes(3000))
    flush(log)
    log.drop_before(log.blocks[1].start_offset)
    for _ in range(failures):
        disk.fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    flush(log)
    return disk, log


def test_a_full_disk_empties_dropped_blocks_before_the_checkpoint() -> None:
    """That makes the room it needs; nothing of them is left."""
    disk, log = dropped_on_a_full_disk(1)
    names = disk.listdir(DIRECTORY)
    assert not [name for name in names if name.startswith("0" * 16)]
    again = open_log(disk.crash(keep_none))
    assert (again.state, again.start_offset) == (LogState.OK, log.start_offset)


def test_a_full_disk_cuts_no_file_that_may_be_mapped() -> None:
    """An answer that waits to be sent may still show its pages: touching them would be SIGBUS."""
    disk, _ = dropped_on_a_full_disk(1)
    assert not [kind for kind in kinds(disk, 0) if kind.startswith("truncate") and "drop" in kind]


def test_a_block_dropped_without_a_checkpoint_is_not_missing() -> None:
    """The last checkpoint still names it; its mark says that retention took it."""
    disk, log = dropped_on_a_full_disk(2)
    mark = DIRECTORY / f"{0:016d}.drop"
    assert disk.size(mark) == 0
    assert not disk.exists(DIRECTORY / f"{0:016d}.block")
    again = open_log(disk.crash(keep_none))
    assert (again.state, again.start_offset) == (LogState.OK, log.start_offset)
    assert len(payloads(again)) == 2
    log.drop_before(log.blocks[1].start_offset)
    flush(log)
    assert not disk.exists(mark)


def test_an_empty_log_keeps_its_blocks_until_its_checkpoint_has_room() -> None:
    """Nothing else says where it goes on: without both, its offsets would begin again."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, bytes(3000))
    log.roll()
    flush(log)
    log.drop_before(log.end_offset)
    for _ in range(2):
        disk.fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    flush(log)
    names = disk.listdir(DIRECTORY)
    assert f"{0:016d}.block" in names
    assert not [name for name in names if name.endswith(".drop")]
    again = open_log(disk.crash(keep_none))
    assert again.end_offset == log.end_offset
    append(log, bytes(3000))
    flush(log)
    assert not disk.exists(DIRECTORY / f"{0:016d}.block")


def test_a_ticket_knows_whether_it_needs_new_metadata() -> None:
    """Bytes in a block of the file system that is durable already need none."""
    log = open_log(memory_disk(), config=LogConfig())
    found = []
    for size in (10, 10, 4096, 10):
        append(log, bytes(size))
        ticket = log.begin_sync()
        assert ticket is not None
        found.append(ticket.needs_metadata(4096))
        ticket.run()
        log.finish_sync(ticket)
    assert found == [True, False, True, False]


def test_a_file_that_has_grown_needs_new_metadata() -> None:
    """Also when its new bytes lie in an old block of the file system: they go with the old size."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig())
    append(log, bytes(10))
    log.close()
    again = open_log(disk, config=LogConfig())
    append(again, bytes(10))
    ticket = again.begin_sync()
    assert ticket is not None
    assert ticket.needs_metadata(4096)


def test_a_ticket_over_two_file_systems_belongs_to_none() -> None:
    """A sync of one of them says nothing about the files on the other."""
    disks = [memory_disk(syncfs_flushes=True) for _ in range(2)]
    ticket = SyncTicket(directory=DIRECTORY, disk=disks[0], offset=0, messages=0)
    for disk in disks:
        block: Any = SimpleNamespace(length=1, synced_length=0, allocated=1)
        ticket.add(block, disk.open(DIRECTORY.parent / "file", create=True))
    assert disks[0].file_system(DIRECTORY.parent) is not disks[1].file_system(DIRECTORY.parent)
    assert ticket.file_system is None


def test_the_first_byte_in_a_new_block_of_the_file_system_needs_metadata() -> None:
    """Also when the flushed end of the log is the very end of a block."""
    log = open_log(memory_disk(), config=LogConfig())
    append(log, b"")
    overhead = log.end_offset
    append(log, bytes(4096 - 2 * overhead))
    flush(log)
    assert log.synced_offset == 4096
    append(log, b"x")
    ticket = log.begin_sync()
    assert ticket is not None
    assert ticket.needs_metadata(4096)
