"""Which archives at URLs a data directory owns: the original, a copy, and one that adopts them."""

import shutil
from pathlib import Path

import pytest

from vq.errors import DirectoryRefused
from vq.store.archive.archive import owner_of
from vq.store.archive.archive_owner import ARCHIVES_NAME, ArchiveOwner
from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.disk.real_disk import RealDisk
from vq.store.records.checked_text import encode_text

DISK = RealDisk()


def url(owner: str) -> str:
    node = f"n1.{owner}" if owner else "n1"
    return f"s3://bucket/vq/c/b1/{node}/t.5d2f/0/0000000000000000.zip"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original"
    path.mkdir()
    return path


def copy_of(original: Path, name: str = "copy") -> Path:
    """A copy with everything that a copy can keep."""
    target = original.with_name(name)
    shutil.copytree(original, target)
    return target


def test_a_directory_owns_what_it_writes_and_nothing_else(original: Path) -> None:
    """Also after a start; before its first zip nothing is written."""
    archives = ArchiveOwner.load(original, DISK)
    assert list(original.iterdir()) == []
    assert not archives.owns(url(""))
    own = archives.own()
    assert owner_of(url(own)) == own
    for each in (archives, ArchiveOwner.load(original, DISK)):
        assert each.own() == own
        assert each.owns(url(own))
        assert not each.owns(url("0123456789abcdef"))
        assert not each.owns(url("")), "an earlier vq wrote it, perhaps for a copy of this one"


def test_a_copy_owns_nothing_of_the_original(
    original: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own zips get another owner; the original is as it was."""
    own = ArchiveOwner.load(original, DISK).own()
    assert not caplog.records
    copied = ArchiveOwner.load(copy_of(original), DISK)
    assert "--adopt-archives" in caplog.text
    assert not copied.owns(url(own))
    other = copied.own()
    assert other != own
    assert ArchiveOwner.load(original.with_name("copy"), DISK).own() == other
    assert ArchiveOwner.load(original, DISK).owns(url(own))


def test_a_directory_that_was_moved_counts_as_copied(original: Path) -> None:
    """A clone of its whole file system has the same files, and lies elsewhere."""
    own = ArchiveOwner.load(original, DISK).own()
    moved = original.rename(original.with_name("moved"))
    assert not ArchiveOwner.load(moved, DISK).owns(url(own))


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "after it wrote zips"])
def test_who_restores_a_copy_adopts_its_archives(original: Path, is_late: bool) -> None:
    """Those of an earlier vq, and of the copy's own, too; a copy of a copy, likewise."""
    own = ArchiveOwner.load(original, DISK).own()
    copied = copy_of(copy_of(original), "copy of a copy")
    mine = ArchiveOwner.load(copied, DISK).own() if is_late else own
    shutil.rmtree(original)
    ArchiveOwner.load(copied, DISK, adopt=True)
    archives = ArchiveOwner.load(copied, DISK)
    assert archives.own() == mine
    assert all(archives.owns(url(each)) for each in (own, mine, ""))
    assert not archives.owns(url("0123456789abcdef"))


def test_a_damaged_file_owns_nothing(original: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = ArchiveOwner.load(original, DISK).own()
    path = original / ARCHIVES_NAME
    path.write_bytes(path.read_bytes().replace(b'"owner"', b'"0wner"'))
    archives = ArchiveOwner.load(original, DISK)
    assert not archives.owns(url(own))
    assert "owns" in caplog.text
    assert archives.own() != own


def test_a_file_of_a_newer_vq_is_refused(original: Path) -> None:
    (original / ARCHIVES_NAME).write_bytes(encode_text(3, {}))
    with pytest.raises(DirectoryRefused, match="run a newer vq"):
        ArchiveOwner.load(original, DISK)


def test_an_owner_is_durable_before_it_is_used() -> None:
    """A loss of power right after takes nothing of it; one before leaves a directory without."""
    data = Path("/data")
    base = MemoryDisk()
    base.sync_directory(base.mkdir(data)[0])
    disk = base.crash(keep_none)
    own = ArchiveOwner.load(data, disk).own()
    assert ArchiveOwner.load(data, disk.crash(keep_none)).own() == own
    replayed = base.crash(keep_none)
    owned = [
        ArchiveOwner.load(data, replayed.crash(keep_none)).owns(url(own))
        for _ in replayed.replay(disk.operations)
    ]
    assert owned == sorted(owned)
    assert owned[-1]
