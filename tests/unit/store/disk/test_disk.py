"""One contract for the real disk and its twin in memory."""

import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vq.errors import DirectoryRefused
from vq.store.disk import real_disk as disk_module
from vq.store.disk.disk import Disk
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.disk.real_disk import RealDisk


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    """A disk and an empty directory on it."""
    disk: Disk = RealDisk() if request.param == "real" else MemoryDisk()
    disk.mkdir(tmp_path)
    return disk, tmp_path


def test_what_was_written_is_read(place: tuple[Disk, Path]) -> None:
    """Several buffers back to back, at a position, by ``pread`` and by ``view``."""
    disk, path = place
    file = disk.open(path / "f", create=True)
    file.pwrite([b"abc", bytearray(b"def"), memoryview(b"ghi")], 5)
    assert file.size() == disk.size(path / "f") == 14
    assert file.pread(0, 100) == bytes(5) + b"abcdefghi"
    assert bytes(file.view(8, 3)) == b"def"
    assert file.pread(14, 5) == b""
    file.datasync()
    file.forget_cache()
    assert disk.read_bytes(path / "f") == bytes(5) + b"abcdefghi"
    file.close()
    file.close()


def test_a_file_is_told_from_its_copies_and_keeps_that_with_its_name(
    place: tuple[Disk, Path],
) -> None:
    """Another name and other bytes leave it as it is; a copy differs, wherever it lies."""
    disk, path = place
    disk.mkdir(path / "copied")
    disk.write_atomic(path / "f", b"abc")
    born = disk.born(path / "f")
    disk.rename(path / "f", path / "g")
    file = disk.open(path / "g")
    file.pwrite([b"x"], 0)
    file.close()
    assert disk.born(path / "g") == born
    disk.write_atomic(path / "copied" / "g", disk.read_bytes(path / "g"))
    disk.write_atomic(path / "h", disk.read_bytes(path / "g"))
    assert len({born, disk.born(path / "copied" / "g"), disk.born(path / "h")}) == 3
    with pytest.raises(FileNotFoundError):
        disk.born(path / "f")


@pytest.mark.parametrize("text", [None, "", "uninitialized\n"])
def test_a_machine_without_an_id_is_another_one_after_a_boot(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of a volume at the same path in another container is no original."""
    machine, boot = tmp_path / "machine-id", tmp_path / "boot_id"
    monkeypatch.setattr(disk_module, "MACHINE_ID_PATH", machine)
    monkeypatch.setattr(disk_module, "BOOT_ID_PATH", boot)
    (tmp_path / "f").touch()
    if text is not None:
        machine.write_text(text)
    born = set()
    for name in ("one", "one", "another"):
        boot.write_text(name)
        born.add(RealDisk().born(tmp_path / "f"))
    assert len(born) == 2
    machine.write_text("3d1219c7c4c5404aaa1f6d2a48adfda4")
    named = RealDisk().born(tmp_path / "f")
    boot.write_text("a third")
    assert RealDisk().born(tmp_path / "f") == named


def test_on_a_read_only_file_system_files_are_read_and_refuse_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an error of the device: what is stored is not damaged, and a write says why."""
    disk, path = RealDisk(), tmp_path / "f"
    disk.write_atomic(path, b"abcdef")
    opened = os.open

    def refuse(name: object, flags: int, *args: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "read-only file system", str(name))
        return opened(name, flags, *args)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", refuse)
    file = disk.open(path)
    assert file.pread(1, 3) == bytes(file.view(1, 3)) == b"bcd"
    assert file.resident(0, 6) in {True, False}
    file.fetch(0, 6)
    for write in (
        lambda: file.pwrite([b"x"], 0),
        lambda: file.allocate(0, 100),
        lambda: file.truncate(1),
        lambda: disk.open(tmp_path / "new", create=True),
    ):
        with pytest.raises(OSError, match="read-only") as caught:
            write()
        assert caught.value.errno == errno.EROFS
    file.close()
    assert path.read_bytes() == b"abcdef"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is known to refuse it")
def test_a_file_opened_before_its_file_system_turned_read_only_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux then maps only what was opened for reading; the file may have another name."""
    disk, path = RealDisk(), tmp_path / "f"
    disk.write_atomic(path, b"abcdef")
    file = disk.open(path)
    path.rename(tmp_path / "g")
    mapped = mmap.mmap

    def refuse(fd: int, *args: Any, **options: Any) -> mmap.mmap:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "read-only file system")
        return mapped(fd, *args, **options)

    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(mmap, "mmap", refuse)
    assert bytes(file.view(1, 3)) == b"bcd"
    file.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1, "of the file itself"


def test_what_the_kernel_moves_in_pieces_lies_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal or a full disk may cut a write or a read short; the next goes on behind it."""
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 2), at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:2], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: pwrite(fd, buffers[0][:2], at))
    file = RealDisk().open(tmp_path / "f", create=True)
    file.pwrite([b"abc", bytearray(b"def"), memoryview(b"g")], 5)
    assert (tmp_path / "f").read_bytes() == bytes(5) + b"abcdefg"
    assert file.pread(4, 100) == b"\0abcdefg"
    assert file.pread(4, 5) == b"\0abcd"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="wrote nothing"):
        file.pwrite([b"abc"], 0)
    file.close()


def test_a_view_outlives_growth_cuts_and_close(place: tuple[Disk, Path]) -> None:
    """Readers hold slices while the file changes under them."""
    disk, path = place
    file = disk.open(path / "f", create=True)
    file.allocate(0, 65536)
    file.pwrite([b"first"], 0)
    view = file.view(0, 5)
    file.allocate(65536, 1 << 20)
    file.pwrite([b"second"], 100_000)
    assert bytes(file.view(100_000, 6)) == b"second"
    file.truncate(5)
    file.close()
    assert bytes(view) == b"first"


def test_reading_beyond_the_end_is_an_error_not_a_signal(place: tuple[Disk, Path]) -> None:
    """A view the file cannot fill raises, also when the file shrank behind our back."""
    disk, path = place
    file = disk.open(path / "f", create=True)
    file.pwrite([bytes(100_000)], 0)
    with (
        pytest.raises(OSError, match="at least")
        if isinstance(disk, RealDisk)
        else pytest.raises(OSError) as caught
    ):
        file.view(90_000, 20_000)
    file.view(0, 100_000)
    other = disk.open(path / "f")
    other.truncate(10)
    with pytest.raises(OSError) as caught:
        file.view(50_000, 100)
    assert caught.value.errno == errno.EIO
    other.close()
    file.close()


def test_allocate_grows_with_zeros_and_keeps_what_is_there(place: tuple[Disk, Path]) -> None:
    """Space ahead reads as zeros; truncate gives it back or fills up."""
    disk, path = place
    file = disk.open(path / "f", create=True)
    file.pwrite([b"x" * 10], 0)
    file.allocate(0, 4096)
    assert file.pread(0, 5000) == b"x" * 10 + bytes(4086)
    file.truncate(3)
    file.truncate(6)
    assert file.pread(0, 100) == b"xxx\0\0\0"
    file.close()


def test_names(place: tuple[Disk, Path]) -> None:
    """Directories, renames, removal."""
    disk, path = place
    assert disk.mkdir(path / "a" / "b") == [path, path / "a"]
    assert disk.mkdir(path / "a" / "b") == []
    disk.write_atomic(path / "a" / "one", b"1")
    disk.write_atomic(path / "a" / "two", b"2")
    disk.sync_directory(path / "a")
    assert disk.listdir(path / "a") == ["b", "one", "two"]
    assert disk.is_directory(path / "a" / "b")
    assert not disk.is_directory(path / "a" / "one")
    disk.rename(path / "a" / "one", path / "a" / "two")
    assert disk.read_bytes(path / "a" / "two") == b"1"
    assert not disk.exists(path / "a" / "one")
    disk.mkdir(path / "c" / "d")
    with pytest.raises(OSError, match="not empty"):
        disk.rename(path / "a", path / "c")
    disk.rmtree(path / "c" / "d")
    disk.rename(path / "a", path / "c")
    assert disk.read_bytes(path / "c" / "two") == b"1"
    disk.unlink(path / "c" / "two")
    disk.rmtree(path / "c")
    disk.rmtree(path / "c")
    assert disk.listdir(path) == []


def test_missing_things_raise_as_an_operating_system_does(place: tuple[Disk, Path]) -> None:
    """The same classes on both disks."""
    disk, path = place
    for call in (
        lambda: disk.open(path / "no"),
        lambda: disk.size(path / "no"),
        lambda: disk.listdir(path / "no"),
        lambda: disk.read_bytes(path / "no"),
        lambda: disk.unlink(path / "no"),
        lambda: disk.unlink_large(path / "no"),
        lambda: disk.rename(path / "no", path / "x"),
        lambda: disk.sync_directory(path / "no"),
        lambda: disk.open(path / "no" / "f", create=True),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    disk.open(path / "f", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open(path / "f", create=True)


def test_a_lock_has_one_holder(place: tuple[Disk, Path]) -> None:
    """The second is refused at once; released, it can be taken."""
    disk, path = place
    lock = disk.lock(path / "lock")
    with pytest.raises(DirectoryRefused, match="another broker uses"):
        disk.lock(path / "lock")
    lock.release()
    lock.release()
    disk.lock(path / "lock").release()


def test_a_negative_number_without_its_sign_is_no_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an overdrawn quota gives it; a new log would go to the fullest disk."""
    odd = SimpleNamespace(
        f_bavail=2**64 - 10,
        f_bfree=0,
        f_blocks=100,
        f_frsize=4_096,
        f_favail=2**64 - 1,
        f_ffree=0,
        f_files=50,
    )
    monkeypatch.setattr(os, "statvfs", lambda path: odd)
    assert RealDisk().free_space(tmp_path) == (0, 409_600)
    assert RealDisk().free_files(tmp_path) == (0, 50)


@pytest.mark.parametrize("free", [100, 2**64 - 10])
def test_a_file_system_of_which_we_can_have_nothing_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """All of it is kept for others; or free space for root lost its sign, too."""
    odd = SimpleNamespace(
        f_bavail=0, f_bfree=free, f_blocks=100, f_frsize=4_096, f_favail=0, f_ffree=free, f_files=50
    )
    monkeypatch.setattr(os, "statvfs", lambda path: odd)
    assert RealDisk().free_space(tmp_path) == (0, 409_600)
    assert RealDisk().free_files(tmp_path) == (0, 50)
    odd.f_files = 0  # it has no bound for files
    assert RealDisk().free_files(tmp_path) == (0, 0)


def test_what_only_root_can_have_counts_neither_as_free_nor_as_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 of 250 blocks are in use and 70 are free for us: 1/8 is in use, as ``df`` says."""
    reserved = SimpleNamespace(
        f_bavail=70, f_bfree=240, f_blocks=250, f_frsize=512, f_favail=30, f_ffree=35, f_files=40
    )
    monkeypatch.setattr(os, "statvfs", lambda path: reserved)
    assert RealDisk().free_space(tmp_path) == (70 * 512, 80 * 512)
    assert RealDisk().free_files(tmp_path) == (30, 35)


def test_the_share_in_use_is_that_of_df(tmp_path: Path) -> None:
    """To a percent; both look at a disk that others use meanwhile."""
    free, total = RealDisk().free_space(tmp_path)
    shown = subprocess.run(
        ["df", "--output=pcent", str(tmp_path)], capture_output=True, check=True, text=True
    )
    percent = int(shown.stdout.split()[-1].rstrip("%"))
    assert abs(100 * (1 - free / total) - percent) <= 1


def test_directories_on_one_file_system_have_the_same_id(tmp_path: Path) -> None:
    below = tmp_path / "d"
    below.mkdir()
    disk = RealDisk()
    assert disk.file_system_id(tmp_path) == disk.file_system_id(below)
    assert disk.file_system_id(Path("/proc")) != disk.file_system_id(tmp_path)
    with pytest.raises(FileNotFoundError):
        disk.file_system_id(tmp_path / "missing")


def test_free_files_are_within_the_total(place: tuple[Disk, Path]) -> None:
    disk, path = place
    free, total = disk.free_files(path)
    assert 0 <= free <= total


def test_free_space_is_within_the_total(place: tuple[Disk, Path]) -> None:
    """Both in bytes."""
    disk, path = place
    free, total = disk.free_space(path)
    assert 0 <= free <= total


def test_write_atomic_replaces_and_survives_a_leftover(place: tuple[Disk, Path]) -> None:
    """A temporary file of a killed process is in nobody's way."""
    disk, path = place
    disk.write_atomic(path / "f", b"old")
    disk.open(path / "f.tmp", create=True).close()
    disk.write_atomic(path / "f", b"new")
    assert disk.read_bytes(path / "f") == b"new"
    assert disk.listdir(path) == ["f"]


def test_a_file_system_is_synced_as_a_whole(place: tuple[Disk, Path]) -> None:
    """Where that can be done; files and directories on it know the same object."""
    disk, path = place
    first, second = (disk.open(path / name, create=True) for name in ("f", "g"))
    assert first.file_system is second.file_system
    assert disk.file_system(path) is first.file_system
    if first.file_system is not None:
        first.pwrite([b"data"], 0)
        first.file_system.sync()
    first.close()
    second.close()


def test_names_can_be_made_durable_without_a_descriptor_left(tmp_path: Path) -> None:
    """The last append before the limit must still be acknowledged."""
    disk = RealDisk()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError) as caught:
            disk.open(tmp_path / "f", create=True)
        assert caught.value.errno == errno.EMFILE
        for _ in range(3):
            disk.sync_directory(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    disk.open(tmp_path / "f", create=True).close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_data_are_for_the_broker_and_its_group(tmp_path: Path, umask: int) -> None:
    """Whatever the umask; what was there before keeps its mode."""
    disk, given = RealDisk(), tmp_path / "given"
    given.mkdir()
    given.chmod(0o777)
    before = os.umask(umask)
    try:
        disk.mkdir(given / "topic" / "0")
        disk.open(given / "topic" / "0" / "a.block", create=True).close()
        disk.write_atomic(given / "topic.json", b"{}")
        disk.lock(given / "lock").release()
    finally:
        os.umask(before)
    modes = {
        str(each.relative_to(tmp_path)): each.stat().st_mode & 0o777
        for each in [given, *given.rglob("*")]
    }
    assert modes == {
        "given": 0o777,
        "given/topic": 0o750,
        "given/topic/0": 0o750,
        "given/topic/0/a.block": 0o640,
        "given/topic.json": 0o640,
        "given/lock": 0o640,
    }


def test_bytes_that_are_not_in_memory_can_be_fetched(place: tuple[Disk, Path]) -> None:
    """Whoever must not wait for the medium can tell, and have somebody else wait."""
    disk, path = place
    file = disk.open(path / "f", create=True)
    size = 3 << 20
    file.pwrite([bytes(size)], 0)
    file.datasync()
    assert file.resident(0, size)
    assert file.resident(size - 1, 1)
    if isinstance(disk, MemoryDisk):
        disk.cold = True
    else:
        file.forget_cache()
        if file.resident(0, size):
            pytest.skip("this file system keeps or hides what is in memory")
    assert not file.resident(0, size)
    file.fetch(0, size)
    assert file.resident(0, size)
    assert bytes(file.view(size - 4, 4)) == bytes(4)
    file.close()


def test_one_cold_part_makes_the_whole_cold(tmp_path: Path) -> None:
    """Looked for every 128 KiB, and at the last byte."""
    file = RealDisk().open(tmp_path / "f", create=True)
    file.pwrite([bytes(8 << 20)], 0)
    file.datasync()
    file.forget_cache()
    if file.resident(0, 8 << 20):
        pytest.skip("this file system keeps or hides what is in memory")
    os.posix_fadvise(file._fd, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
    file.pread(0, 2 << 20)
    assert file.resident(0, 2 << 20)
    assert not file.resident(1 << 20, 7 << 20)
    file.close()
