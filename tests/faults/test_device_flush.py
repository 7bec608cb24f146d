"""A commit is durable when the device has flushed its cache: FLUSH requests are counted, not calls.

    append to k logs ──▶ one flush of all of them ──▶ acknowledged
                              │
                              └──▶ loop device: at least one FLUSH request

Goal: on every file system that commits many logs at once, each single commit reaches the device.
"""

import contextlib
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_disk import (
    device_flushes,
    loop_disk_at,
    make_image,
    make_image_without_room_for_its_journal,
    mounted_image,
    small_disk_at,
)
from support.store import append, open_log

from vq.clock import ManualClock
from vq.errors import VqError
from vq.limits import MIB
from vq.store.commit.flusher import FlushRunner
from vq.store.disk.real_disk import RealDisk
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig, LogState

pytestmark = [pytest.mark.root, pytest.mark.slow]

KINDS = ("ext4", "xfs")
COMMITS = 200
CONFIG = LogConfig(allocate_bytes_min=256 * 1024)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A mounted file system on a device of its own."""
    with loop_disk_at(tmp_path / "disk", 320 * MIB, request.param) as place:
        yield place


class Committer:
    """Group commits over logs in some directories."""

    def __init__(self, directories: list[Path]) -> None:
        disk = RealDisk()
        self.logs = [open_log(disk, directory, config=CONFIG) for directory in directories]
        # On a clock that stands still all at once is never dearer than one after the other.
        self._runner = FlushRunner(ManualClock())

    def commit(self, size: int = 100) -> list[BaseException | None]:
        """Append ``size`` bytes to every log that takes them, and make them durable."""
        logs: list[Log] = []
        tickets = []
        for log in self.logs:
            if log.state is not LogState.OK:
                continue
            try:
                append(log, bytes(size))
            except VqError:
                continue
            ticket = log.begin_sync()
            assert ticket is not None
            logs.append(log)
            tickets.append(ticket)
        outcome = self._runner.run(tickets) if tickets else []
        for log, ticket, error in zip(logs, tickets, outcome, strict=True):
            if error is None:
                log.finish_sync(ticket)
            else:
                log.fail(error)
        return outcome

    def close(self) -> None:
        for log in self.logs:
            log.close()


@pytest.mark.parametrize("count", [2, 16])
def test_every_commit_of_many_logs_flushes_the_device(place: Path, count: int) -> None:
    """Small messages overwrite space taken ahead: the file system may have nothing to add."""
    committer = Committer([place / "t" / str(number) for number in range(count)])
    committer.commit()
    first = device_flushes(place)
    without = 0
    for _ in range(COMMITS):
        before = device_flushes(place)
        assert committer.commit() == [None] * count
        without += device_flushes(place) == before
    flushes = device_flushes(place) - first
    print(f"{COMMITS} commits of {count} logs: {flushes} flushes, {without} commits without one")
    assert not without
    if count > 2:
        assert flushes < COMMITS * count / 2, "no flush was shared; the test proves nothing"
    committer.close()


def test_a_partition_on_another_file_system_is_flushed_there(place: Path, tmp_path: Path) -> None:
    """Its directory is a link or a mount: a sync of the data directory's own does not reach it."""
    with loop_disk_at(tmp_path / "linked", 64 * MIB) as linked:
        data = place / "t"
        (data / "mounted").mkdir(parents=True)
        (linked / "there").mkdir()
        (data / "linked").symlink_to(linked / "there")
        with loop_disk_at(data / "mounted", 64 * MIB) as mounted:
            names = [*(str(number) for number in range(16)), "linked", "mounted"]
            committer = Committer([data / name for name in names])
            committer.commit()
            devices = (place, linked, mounted)
            assert len({device.stat().st_dev for device in devices}) == len(devices)
            for _ in range(20):
                before = [device_flushes(device) for device in devices]
                assert committer.commit() == [None] * len(names)
                after = [device_flushes(device) for device in devices]
                assert all(a > b for a, b in zip(after, before, strict=True)), (before, after)
            committer.close()
        (data / "linked").unlink()


def fill(path: Path) -> None:
    """Write to a file until its file system is full."""
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(64 * 1024))
        os.fsync(file.fileno())


@pytest.mark.parametrize("what", ["ext4", "xfs", "ext4's journal"])
@pytest.mark.parametrize("size", [148, 916, 3_988])
def test_a_device_that_fails_makes_no_log_lie(tmp_path: Path, what: str, size: int) -> None:
    """The device runs full below the file system; then power is cut.

    What a log called durable is there, whether the kernel told the error once, to whom, or never.
    A batch on disk is a whole fraction of a page: a loop device takes a write of several pages for
    done when the first of them fits, and no file system could tell.
    """
    with small_disk_at(tmp_path / "below", 128 * MIB) as below:
        image, data = below / "device.img", tmp_path / "data"
        if what == "ext4's journal":
            make_image_without_room_for_its_journal(image, 64 * MIB)
        else:
            make_image(image, 320 * MIB, what)
        with mounted_image(image, data):
            committer = Committer([data / "t" / str(number) for number in range(4)])
            for _ in range(10):
                assert committer.commit(size) == [None] * 4
            fill(below / "stranger")
            for _ in range(500):
                if all(committer.commit(size)):
                    break
            else:
                raise AssertionError("the device never failed; the test proves nothing")
            promised = {log.directory.name: log.synced_offset for log in committer.logs}
            (below / "stranger").unlink()
            found = tmp_path / "after.img"
            subprocess.run(["cp", "--sparse=always", str(image), str(found)], check=True)
            committer.close()
            del committer
            gc.collect()  # the descriptors of the file system, too
        # XFS mounts no copy of what is still mounted, and a lazy unmount may take its time.
        with mounted_image(found, data, *(["nouuid"] if what == "xfs" else [])):
            for name, promise in promised.items():
                log = open_log(RealDisk(), data / "t" / name, config=CONFIG)
                assert log.end_offset >= promise, f"log {name} lost what it called durable"
                log.close()
