"""The logs of a node on disk."""

from pathlib import Path

import pytest
from support.counting import PARTITION_COUNTS, check_linear
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


class CountingDisk(MemoryDisk):
    """Counts the names it lists."""

    listed = 0

    def listdir(self, path: Path) -> list[str]:
        names = super().listdir(path)
        self.listed += len(names)
        return names


@pytest.mark.slow
def test_opening_a_partition_costs_the_same_however_many_the_topic_has() -> None:
    """The topic's directory is listed once."""
    listed = {}
    for count in PARTITION_COUNTS:
        disk = CountingDisk(record=False)
        logs = logs_of(disk)
        partitions = [TopicPartition("t", number) for number in range(count)]
        for partition in partitions:
            logs.prepare(partition, "id")
            disk.mkdir(HOME / "t" / str(partition.partition))
        logs = logs_of(disk)
        disk.listed = 0
        for partition in partitions:
            assert logs.prepare(partition, "id") == (True, [])
        listed[count] = disk.listed
    check_linear("names listed to open each partition of a topic", listed)


def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look finds the earlier ranges."""
    logs = logs_of(disk)
    aside = logs.put_aside(WHERE, logs.open(WHERE, "id"))
    logs = logs_of(disk)

    def refuse(disk: MemoryDisk, path: Path) -> list[str]:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "listdir", refuse)
        with pytest.raises(OSError, match="too many"):
            logs.prepare(WHERE, "id")
    assert logs.prepare(WHERE, "id") == (False, [aside])


def test_earlier_ranges_are_known_whenever_they_came(disk: MemoryDisk) -> None:
    """At the start, or put aside since; gone with the topic's data."""
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (True, [])
    log = logs.open(WHERE, "id")
    first = logs.put_aside(WHERE, log)
    assert logs.prepare(WHERE, "id") == (False, [first])
    log = logs.open(WHERE, "id", start_offset=5_000)
    append(log, b"y")
    flush(log)
    second = logs.put_aside(WHERE, log)
    for again in (logs, logs_of(disk)):
        assert again.prepare(WHERE, "id") == (False, [first, second])
        assert again.prepare(TopicPartition("t", 1), "id") == (False, [])
    assert second is not None
    disk.rename(second, HOME / "elsewhere")
    assert logs.prepare(WHERE, "id") == (False, [first])
    logs.move_topic("t", "id", keep=False)
    assert logs.prepare(WHERE, "other") == (False, [])


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
