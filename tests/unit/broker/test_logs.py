"""The logs of a node on disk."""

from pathlib import Path

import pytest
from support.store import SMALL, append, flush

from vq.broker.logs import Logs
from vq.broker.reserve import Reserve
from vq.clock import ManualClock
from vq.model import TopicPartition
from vq.store.directory import DataDirectory
from vq.store.log import LogState
from vq.store.memory_disk import MemoryDisk

HOME = Path("/data")
WHERE = TopicPartition("t", 0)
BLOCK = HOME / "t" / "0" / f"{0:016d}.block"


@pytest.fixture
def disk() -> MemoryDisk:
    """A disk with one log of one message, which was closed."""
    disk = MemoryDisk()
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    log = logs.open(WHERE, "id")
    append(log, b"x")
    flush(log)
    log.close()
    return disk


def logs_of(disk: MemoryDisk) -> Logs:
    disk._locks.clear()
    directory = DataDirectory.open(HOME, "c", "b1", "n1", disk)
    reserve = Reserve(HOME, disk)
    return Logs(directory, disk=disk, clock=ManualClock(), config=SMALL, reserve=reserve)


def test_an_empty_log_that_is_put_aside_leaves_nothing() -> None:
    """There is nothing to read from it."""
    disk = MemoryDisk()
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    log = logs.open(WHERE, "id", start_offset=7)
    assert logs.put_aside(WHERE, log) is None
    assert not disk.exists(BLOCK.parent)


def test_a_log_with_messages_is_put_aside_whole(disk: MemoryDisk) -> None:
    """Under the offset where it begins."""
    logs = logs_of(disk)
    path = logs.put_aside(WHERE, logs.open(WHERE, "id"))
    assert path == HOME / "t" / "0.from-0"
    assert disk.exists(path / BLOCK.name)


@pytest.mark.parametrize("how", ["damaged", "unreadable"])
def test_a_log_that_shows_nothing_is_not_taken_for_an_empty_one(disk: MemoryDisk, how: str) -> None:
    """In quarantine from its first byte, or on a medium that fails: its files stay."""
    logs = logs_of(disk)
    if how == "damaged":
        disk.write_atomic(BLOCK, b"")  # the checkpoint says that there was more
    else:
        disk.fail("read_bytes")
    log = logs.open(WHERE, "id")
    assert log.size_bytes == 0
    assert log.state in (LogState.QUARANTINED, LogState.FAILED)
    path = logs.put_aside(WHERE, log)
    assert path is not None
    assert disk.exists(path / BLOCK.name)
