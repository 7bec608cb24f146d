"""Files without a name: who unlinks them does not wait for their space."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vq.store.disk import unlinked
from vq.store.disk.real_disk import RealDisk
from vq.store.disk.unlinked import FILES_MAX, UnlinkedFiles

DEADLINE_S = 30.0


class SlowClose:
    """Stands in for ``os.close``: no call of another thread ends before ``go_on``."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self._here = threading.get_ident()
        self._go_on = threading.Event()
        self._changed = threading.Condition()

    def __call__(self, fd: int) -> None:
        if threading.get_ident() != self._here:
            assert self._go_on.wait(DEADLINE_S)
        os.close(fd)
        with self._changed:
            self.closed.append(fd)
            self._changed.notify_all()

    def go_on(self) -> None:
        self._go_on.set()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.closed) >= count, DEADLINE_S)


@pytest.fixture
def slow_close(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowClose]:
    """Descriptors that take long to close, on any thread but the test's."""
    slow = SlowClose()
    module = type("os", (), {"close": staticmethod(slow), "fstat": os.fstat})
    monkeypatch.setattr(unlinked, "os", module)
    monkeypatch.setattr(unlinked, "SMALL_BYTES", 0)
    yield slow
    slow.go_on()


def test_a_large_file_loses_its_name_before_its_space_is_back(
    tmp_path: Path, slow_close: SlowClose
) -> None:
    """The caller goes on while a thread gives the space back, file after file."""
    disk = RealDisk()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
        disk.unlink_large(tmp_path / name)
        assert not (tmp_path / name).exists()
    assert not slow_close.closed
    slow_close.go_on()
    slow_close.wait_for(2)


def test_the_space_of_a_small_file_is_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_close: SlowClose
) -> None:
    """Who deletes small blocks of a full disk can append right away."""
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    size = (tmp_path / "a").stat().st_blocks * 512
    assert size >= 100_000
    disk = RealDisk()
    monkeypatch.setattr(unlinked, "SMALL_BYTES", size + 1)
    disk.unlink_large(tmp_path / "a")
    assert len(slow_close.closed) == 1


def test_a_file_is_closed_by_the_caller_when_too_many_wait(
    tmp_path: Path, slow_close: SlowClose
) -> None:
    """So no more descriptors are held than ``FILES_MAX`` and the one that is being closed."""
    files = UnlinkedFiles()
    fds = [os.open(tmp_path, os.O_RDONLY) for _ in range(FILES_MAX + 3)]
    for fd in fds:
        files.close(fd)
    assert set(slow_close.closed) <= set(fds[FILES_MAX:])
    assert len(slow_close.closed) in {2, 3}  # the thread holds one of its own, once it runs
    slow_close.go_on()
    slow_close.wait_for(len(fds))


def test_a_file_is_closed_by_the_caller_when_there_is_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_close: SlowClose
) -> None:
    """A process that may have no more threads deletes more slowly."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files, fd = UnlinkedFiles(), os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    files.close(fd)
    assert slow_close.closed == [fd]


def test_a_large_file_goes_without_a_descriptor_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it can be opened does not matter."""
    (tmp_path / "a").write_bytes(b"x")
    disk = RealDisk()

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    disk.unlink_large(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_space_that_comes_back_in_a_moment_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_close: SlowClose
) -> None:
    """Else retention, which looks right after it has deleted, deletes messages for it once more."""
    disk = RealDisk()
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    free, total = disk.free_space(tmp_path)
    size = 0
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 100_000)
        fd = os.open(tmp_path / name, os.O_RDONLY)
        os.fsync(fd)  # its blocks are not allocated before
        os.close(fd)
        size += (tmp_path / name).stat().st_blocks * 512
        disk.unlink_large(tmp_path / name)
    assert size >= 200_000
    assert disk.free_space(tmp_path) == (min(free + size, total), total)
    (tmp_path / "c").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "c", tmp_path / "d")
    disk.unlink_large(tmp_path / "c")  # it has another name
    assert disk.free_space(tmp_path) == (min(free + size, total), total)
    slow_close.go_on()
    slow_close.wait_for(3)
    until_equal(lambda: disk.free_space(tmp_path), (free, total))


def until_equal(call: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while call() != wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    assert call() == wanted


def test_an_error_of_one_file_keeps_no_other_one_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system in a network may refuse to close, and to tell a size."""
    (tmp_path / "a").write_bytes(b"x")
    fds = [os.open(tmp_path / "a", os.O_RDONLY) for _ in range(3)]
    closed: list[int] = []

    def close(fd: int) -> None:
        os.close(fd)
        closed.append(fd)
        raise OSError(5, "Input/output error")

    def fstat(fd: int) -> os.stat_result:
        raise OSError(116, "Stale file handle")

    module = type("os", (), {"close": staticmethod(close), "fstat": staticmethod(fstat)})
    monkeypatch.setattr(unlinked, "os", module)
    files = UnlinkedFiles()
    for number, fd in enumerate(fds, start=1):
        files.close(fd)
        until_equal(lambda number=number: len(closed), number)  # type: ignore[misc]
    assert closed == fds
