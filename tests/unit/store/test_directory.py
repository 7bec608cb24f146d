"""The data directory: topics, trash, and who may open it."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from vq.errors import DirectoryRefused, InvalidArgument
from vq.store.directory import DataDirectory, LocalTopic
from vq.store.disk import Disk, RealDisk
from vq.store.memory_disk import MemoryDisk, keep_none

HOME = Path("/srv/vq")


def open_directory(disk: Disk, path: Path = HOME) -> DataDirectory:
    return DataDirectory.open(path, cluster="c", group="b1", node="n1", disk=disk)


def test_a_new_directory_is_made_durably() -> None:
    """Parents, lock and identity; after a power cut it is the same one."""
    disk = MemoryDisk()
    first = open_directory(disk)
    again = open_directory(disk.crash(keep_none))
    assert again.identity == first.identity


def test_two_processes_cannot_have_it(tmp_path: Path) -> None:
    """The second is told who has it; closing lets it in."""
    first = open_directory(RealDisk(), tmp_path / "data")
    with pytest.raises(DirectoryRefused, match="another broker uses this data directory"):
        open_directory(RealDisk(), tmp_path / "data")
    first.close()
    first.close()
    open_directory(RealDisk(), tmp_path / "data").close()


def test_a_refused_directory_is_not_left_locked() -> None:
    """The right broker can open it afterwards."""
    disk = MemoryDisk()
    open_directory(disk).close()
    with pytest.raises(DirectoryRefused):
        DataDirectory.open(HOME, cluster="other", group="b1", node="n1", disk=disk)
    open_directory(disk).close()


def test_a_claimed_topic_keeps_its_id() -> None:
    """Claimed again it stays; the log's directory comes with the first append."""
    disk = MemoryDisk()
    data = open_directory(disk)
    for _ in range(2):
        data.claim_topic("orders", "id1")
    assert data.log_directory("orders", 3) == HOME / "orders" / "3"
    assert not disk.exists(HOME / "orders" / "3")
    assert data.topics() == [LocalTopic("orders", "id1", ())]
    assert DataDirectory.topics(open_directory(disk.crash(keep_none))) == data.topics()


def test_data_of_a_namesake_go_to_the_trash() -> None:
    """Nothing is deleted until purged, and two generations do not collide."""
    disk = MemoryDisk()
    data = open_directory(disk)
    for topic_id in ("id1", "id2", "id1", "id3"):
        data.claim_topic("orders", topic_id)
        disk.mkdir(HOME / "orders" / "0")
    assert disk.listdir(HOME / "@trash") == ["orders.id1", "orders.id1.1", "orders.id2"]
    assert data.topics() == [LocalTopic("orders", "id3", (0,))]
    assert data.purge_trash() == 3
    assert data.purge_trash() == 0
    assert disk.listdir(HOME / "@trash") == []


def test_a_topic_directory_without_its_file_is_a_strangers() -> None:
    """It cannot be told whose data these are, so they are put aside."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.mkdir(HOME / "orders" / "0")
    disk.write_atomic(HOME / "orders" / "topic.json", b"not json")
    assert data.topics() == [LocalTopic("orders", "", (0,))]
    data.claim_topic("orders", "id1")
    assert disk.listdir(HOME / "@trash") == ["orders.unknown"]


def test_a_topic_of_a_newer_format_is_refused() -> None:
    """And not put aside."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.mkdir(HOME / "orders")
    disk.write_atomic(HOME / "orders" / "topic.json", b'{"v": 2, "id": "id1"}')
    with pytest.raises(DirectoryRefused, match="newer"):
        data.claim_topic("orders", "id1")
    assert disk.exists(HOME / "orders")


def test_a_file_of_a_topics_name_is_left_alone() -> None:
    """Whatever it is, it is nobody's topic."""
    disk = MemoryDisk()
    data = open_directory(disk)
    disk.write_atomic(HOME / "orders", b"mine")
    with pytest.raises(DirectoryRefused, match="is a file"):
        data.claim_topic("orders", "id1")
    assert disk.read_bytes(HOME / "orders") == b"mine"


def test_trashing_what_is_not_there_is_nothing() -> None:
    """A deleted topic may never have had data here."""
    assert open_directory(MemoryDisk()).trash_topic("orders") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "@trash", "x" * 201])
def test_names_that_are_no_names_never_reach_the_disk(name: str) -> None:
    """Whatever the caller forgot to check."""
    data = open_directory(MemoryDisk())
    for call in (
        lambda: data.claim_topic(name, "id"),
        lambda: data.log_directory(name, 0),
        lambda: data.trash_topic(name),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_what_is_no_topic_is_not_listed() -> None:
    """The trash, the file system's own directory, stray files."""
    disk = MemoryDisk()
    data = open_directory(disk)
    data.claim_topic("orders", "id1")
    data.trash_topic("orders")
    disk.mkdir(HOME / "lost+found")
    disk.write_atomic(HOME / "notes", b"")
    assert data.topics() == []


class NoLock(RealDisk):
    """A file system that takes no new file."""

    def lock(self, path: Path) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@pytest.mark.parametrize(
    ("place", "disk"),
    [("/proc/nope", RealDisk()), ("file/sub", RealDisk()), ("read only", NoLock())],
    ids=["not made", "below a file", "read only"],
)
def test_a_directory_that_the_system_refuses_is_named(
    tmp_path: Path, place: str, disk: Disk
) -> None:
    """The error says which directory, why, and what to give instead."""
    (tmp_path / "file").touch()
    path = tmp_path / place
    with pytest.raises(DirectoryRefused, match=r"cannot be used: .*; give one") as refused:
        open_directory(disk, path)
    assert str(path) in str(refused.value)
