"""The twin's own powers: faults on order, and what a power cut leaves."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cases import case

from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance

HOME = Path("/d")


def disk_with(name: str, content: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    for parent in disk.mkdir(HOME):
        disk.sync_directory(parent)
    disk.write_atomic(HOME / name, content)
    return disk


def test_unsynced_bytes_go_with_the_power_and_synced_ones_stay() -> None:
    """``keep_none`` is the strictest disk, ``keep_all`` a killed process."""
    disk = disk_with("f", b"old!")
    file = disk.open(HOME / "f")
    file.pwrite([b"new"], 0)
    assert disk.crash(keep_none).read_bytes(HOME / "f") == b"old!"
    assert disk.crash(keep_all).read_bytes(HOME / "f") == b"new!"
    file.datasync()
    assert disk.crash(keep_none).read_bytes(HOME / "f") == b"new!"


def test_a_crash_tears_at_sectors() -> None:
    """Every 512 bytes survive or not by themselves, so all mixtures occur, and nothing else."""
    disk = disk_with("f", b"o" * 1536)
    disk.open(HOME / "f").pwrite([b"n" * 1536], 0)
    seen = set()
    for seed in range(200):
        left = disk.crash(RandomChance(random.Random(seed))).read_bytes(HOME / "f")
        sectors = [left[at : at + 512] for at in (0, 512, 1024)]
        assert all(s in (b"o" * 512, b"n" * 512) for s in sectors)
        seen.add(bytes(s[0] for s in sectors))
    assert len(seen) == 8


def test_growth_can_survive_without_its_bytes() -> None:
    """A zero-filled tail in its simplest form: length there, data not."""
    disk = disk_with("f", b"")
    disk.open(HOME / "f").pwrite([b"n" * 512], 0)
    seen = {disk.crash(RandomChance(random.Random(s))).read_bytes(HOME / "f") for s in range(50)}
    assert seen == {b"", bytes(512), b"n" * 512}


def test_a_name_needs_its_directory_synced() -> None:
    """A file that was synced is still lost with its name."""
    disk = disk_with("f", b"")
    file = disk.open(HOME / "g", create=True)
    file.pwrite([b"x"], 0)
    file.datasync()
    assert not disk.crash(keep_none).exists(HOME / "g")
    disk.sync_directory(HOME)
    assert disk.crash(keep_none).read_bytes(HOME / "g") == b"x"


def test_a_rename_is_all_or_nothing() -> None:
    """There is always one of the two contents under the name."""
    disk = disk_with("f", b"old")
    file = disk.open(HOME / "f.tmp", create=True)
    file.pwrite([b"new"], 0)
    file.datasync()
    disk.rename(HOME / "f.tmp", HOME / "f")
    seen = {disk.crash(RandomChance(random.Random(s))).read_bytes(HOME / "f") for s in range(50)}
    assert seen == {b"old", b"new"}


def test_a_crash_leaves_the_disk_itself_alone() -> None:
    """So that one story can be crashed at every step."""
    disk = disk_with("f", b"1")
    after = disk.crash(keep_all)
    after.write_atomic(HOME / "f", b"2")
    assert disk.read_bytes(HOME / "f") == b"1"


def test_faults_strike_once_where_they_were_ordered() -> None:
    """By kind, after so many calls, on one name."""
    disk = disk_with("f", b"")
    disk.fail("datasync", after=1, name="f")
    other, file = disk.open(HOME / "g", create=True), disk.open(HOME / "f")
    other.datasync()
    file.datasync()
    with pytest.raises(OSError, match="told to fail") as caught:
        file.datasync()
    assert caught.value.errno == errno.EIO
    file.datasync()


def test_a_call_that_was_told_to_fail_changes_nothing() -> None:
    calls: dict[str, Callable[[MemoryDisk], object]] = {
        "open": lambda disk: disk.open(HOME / "g", create=True),
        "exists": lambda disk: disk.exists(HOME / "f"),
        "mkdir": lambda disk: disk.mkdir(HOME / "below"),
        "rename": lambda disk: disk.rename(HOME / "f", HOME / "g"),
        "unlink": lambda disk: disk.unlink(HOME / "f"),
        "rmtree": lambda disk: disk.rmtree(HOME),
        "born": lambda disk: disk.born(HOME / "f"),
        "read_bytes": lambda disk: disk.read_bytes(HOME / "f"),
    }
    for kind, call in calls.items():
        disk = disk_with("f", b"x")
        disk.fail(kind)
        with case(kind):
            with pytest.raises(OSError, match=f"{kind} was told to fail"):
                call(disk)
            assert disk.listdir(HOME) == ["f"]
            call(disk)  # once


def test_a_failed_datasync_lies_the_second_time_as_real_ones_do() -> None:
    """The page cache shows the bytes, the medium does not have them; forgetting shows the truth."""
    disk = disk_with("f", b"")
    file = disk.open(HOME / "f")
    file.pwrite([b"lost"], 0)
    disk.fail("datasync")
    with pytest.raises(OSError, match="told to fail"):
        file.datasync()
    assert file.pread(0, 4) == b"lost"
    file.forget_cache()
    assert file.pread(0, 4) == b""


def test_a_full_disk_takes_what_fits() -> None:
    """A write is cut short and says ENOSPC; an allocation takes nothing."""
    disk = disk_with("f", b"")
    disk.capacity_bytes = 10
    file = disk.open(HOME / "f")
    with pytest.raises(OSError, match="full") as caught:
        file.pwrite([b"x" * 11], 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 10
    file.truncate(0)
    with pytest.raises(OSError, match="full"):
        file.allocate(0, 11)
    assert file.size() == 0
    assert disk.free_space(HOME) == (10, 10)


def test_a_replayed_recording_gives_the_same_disk() -> None:
    """Every operation is recorded with all it needs."""
    start = disk_with("f", b"start")
    disk = start.crash(keep_all)
    disk.mkdir(HOME / "sub")
    disk.write_atomic(HOME / "sub" / "g", b"g")
    file = disk.open(HOME / "f")
    file.allocate(0, 100)
    file.pwrite([b"more"], 50)
    file.truncate(60)
    file.datasync()
    disk.rename(HOME / "f", HOME / "h")
    disk.open(HOME / "f", create=True).close()
    disk.unlink(HOME / "f")
    disk.rmtree(HOME / "sub")
    copy = start.crash(keep_all)
    for _ in copy.replay(disk.operations):
        pass
    assert copy.listdir(HOME) == disk.listdir(HOME) == ["h"]
    assert copy.read_bytes(HOME / "h") == disk.read_bytes(HOME / "h")
    assert copy.operations == disk.operations


def test_descriptors_run_out_when_told() -> None:
    """EMFILE at the bound, and closing gives one back."""
    disk = disk_with("f", b"")
    disk.open_files_max = 1
    file = disk.open(HOME / "f")
    with pytest.raises(OSError, match="too many") as caught:
        disk.open(HOME / "f")
    assert caught.value.errno == errno.EMFILE
    file.close()
    disk.open(HOME / "f").close()
