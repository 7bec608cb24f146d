"""The mark that says whether a loss of power may have taken something."""

from pathlib import Path

import pytest

from vq.store.disk.disk import Disk
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.disk.real_disk import RealDisk
from vq.store.log.unflushed import UNFLUSHED_NAME, Unflushed


class RebootingDisk(RealDisk):
    """A real disk whose machine starts again on request."""

    boot = "first"

    def boot_id(self) -> str:
        """See ``Disk.boot_id``."""
        return self.boot


@pytest.fixture
def disk() -> RebootingDisk:
    return RebootingDisk()


def load(data: Path, disk: Disk) -> Unflushed:
    return Unflushed.load(data, disk)


def test_a_machine_has_an_id_of_its_boot() -> None:
    assert RealDisk().boot_id() == RealDisk().boot_id()
    assert len(RealDisk().boot_id()) in {0, 36}


def test_another_boot_may_have_lost_what_was_not_flushed(
    tmp_path: Path, disk: RebootingDisk
) -> None:
    load(tmp_path, disk).mark()
    assert not load(tmp_path, disk).lost  # the process was killed: the page cache is there
    disk.boot = "second"
    assert load(tmp_path, disk).lost
    assert load(tmp_path, disk).lost  # also for the start after this one


def test_a_clean_stop_leaves_no_mark(tmp_path: Path, disk: RebootingDisk) -> None:
    mark = load(tmp_path, disk)
    mark.clear()  # there is none
    mark.mark()
    mark.clear()
    assert list(tmp_path.iterdir()) == []
    disk.boot = "second"
    assert not load(tmp_path, disk).lost


def test_the_mark_of_a_loss_stays_until_the_node_has_caught_up(
    tmp_path: Path, disk: RebootingDisk
) -> None:
    load(tmp_path, disk).mark()
    disk.boot = "second"
    lost = load(tmp_path, disk)
    lost.mark()
    lost.clear()  # a stop before that: what is missing is missing still
    assert load(tmp_path, disk).lost
    lost.lost = False
    lost.settle()
    assert not load(tmp_path, disk).lost
    disk.boot = "third"
    assert load(tmp_path, disk).lost


@pytest.mark.parametrize("content", [b"", b"vq-unflushed 1 first 00000000\n", b"\0" * 60])
def test_a_mark_that_cannot_be_read_counts_as_a_loss(
    tmp_path: Path, disk: RebootingDisk, content: bytes
) -> None:
    (tmp_path / UNFLUSHED_NAME).write_bytes(content)
    assert load(tmp_path, disk).lost


def test_a_machine_without_an_id_counts_as_started_again(
    tmp_path: Path, disk: RebootingDisk
) -> None:
    disk.boot = ""
    load(tmp_path, disk).mark()
    assert load(tmp_path, disk).lost


def test_the_file_is_as_documented(tmp_path: Path, disk: RebootingDisk) -> None:
    disk.boot = "5c8b7c5e-9f0c-4f3e-8a53-3d3a3d2b1f07"
    load(tmp_path, disk).mark()
    text = (tmp_path / UNFLUSHED_NAME).read_text()
    assert text in Path("docs/formats.md").read_text()


def test_the_mark_is_durable_before_anything_counts() -> None:
    disk, data = MemoryDisk(), Path("/data")
    disk.mkdir(data)
    disk.sync_directory(Path("/"))
    load(data, disk).mark()
    assert load(data, disk.crash(keep_none)).lost
    assert not load(data, disk.crash(keep_all)).lost


def test_a_doubt_lasts_until_the_node_has_caught_up(tmp_path: Path, disk: RebootingDisk) -> None:
    """Whatever the machine did meanwhile: what a start found missing is missing still."""
    mark = load(tmp_path, disk)
    mark.doubt()
    mark.mark()
    mark.clear()
    assert mark.lost
    found = load(tmp_path, disk)
    assert found.lost
    found.mark()
    found.lost = False
    found.settle()
    assert not load(tmp_path, disk).lost
    disk.boot = "second"
    assert load(tmp_path, disk).lost, "messages are counted that are not flushed"


def test_a_doubt_leaves_no_mark_where_all_is_flushed(tmp_path: Path, disk: RebootingDisk) -> None:
    """So a loss of power after it takes nothing, and nobody is waited for."""
    load(tmp_path, disk).doubt()
    found = load(tmp_path, disk)
    found.lost = False
    found.settle()
    assert list(tmp_path.iterdir()) == []
    disk.boot = "second"
    assert not load(tmp_path, disk).lost


def test_a_doubt_that_cannot_be_written_counts_for_this_start() -> None:
    disk, data = MemoryDisk(), Path("/data")
    disk.mkdir(data)
    mark = load(data, disk)
    disk.fail("pwrite")
    with pytest.raises(OSError, match="told to fail"):
        mark.doubt()
    assert mark.lost
    assert not load(data, disk).lost
    mark.doubt()  # now the next one knows it, too
    assert load(data, disk.crash(keep_all)).lost


def test_a_new_doubt_is_not_wiped_by_the_end_of_the_last_one(
    tmp_path: Path, disk: RebootingDisk
) -> None:
    """A log is cut between "this node has caught up" and the moment at which that is on disk."""
    mark = load(tmp_path, disk)
    mark.doubt()
    mark.lost = False
    mark.doubt()
    mark.settle()
    assert mark.lost
    assert load(tmp_path, disk).lost


def test_a_doubt_after_the_end_of_the_last_one_is_on_disk(
    tmp_path: Path, disk: RebootingDisk
) -> None:
    mark = load(tmp_path, disk)
    mark.mark()
    for _ in range(2):
        mark.doubt()
        assert load(tmp_path, disk).lost
        mark.lost = False
        mark.settle()
        assert not load(tmp_path, disk).lost


def test_a_doubt_that_is_taken_back_while_it_is_written_stands(
    tmp_path: Path, disk: RebootingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, write = load(tmp_path, disk), disk.write_atomic

    def write_atomic(path: Path, data: bytes) -> None:
        mark.lost = False
        write(path, data)

    monkeypatch.setattr(disk, "write_atomic", write_atomic)
    mark.doubt()
    mark.settle()
    assert mark.lost
    assert load(tmp_path, disk).lost
