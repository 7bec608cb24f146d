"""The logs of a node on disk."""

from pathlib import Path
from typing import Any

import pytest
from support.archive_places import URL, Failing, stored
from support.counting import PARTITION_COUNTS, check_linear
from support.store import SMALL, append, archive, flush

from vq.broker.logs.logs import Logs
from vq.broker.logs.reserve import Reserve
from vq.clock import ManualClock
from vq.errors import Busy, PartitionQuarantined
from vq.model import TopicPartition
from vq.store.archive.archive import url_of
from vq.store.archive.archive_place import ZipUnreachable
from vq.store.directory.directories import DataDirectories
from vq.store.directory.directory import DataDirectory
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.store.log.begun import BEGUN_NAME
from vq.store.log.block import Block
from vq.store.log.log_config import LogBegin, LogState
from vq.store.log.unflushed import Unflushed

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
    logs.save_begun()
    return disk


class Leads:
    """The role of a node that leads others while the test says so, once the mark is there."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.now = True

    @property
    def leads_others(self) -> bool:
        return self.now and Unflushed.load(HOME, self.disk).lost


def logs_of(disk: MemoryDisk, role: Any = None) -> Logs:
    disk.release_locks()
    directory = DataDirectory.open(HOME, "c", "b1", "n1", disk)
    reserve = Reserve(HOME, disk)
    return Logs(
        DataDirectories([directory], disk),
        disk=disk,
        clock=ManualClock(),
        config=SMALL,
        reserves={HOME: reserve},
        role=role,
    )


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
    """At the start, or put aside since; one that is lost, too. Gone with the topic's data."""
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (True, [])
    log = logs.open(WHERE, "id")
    first = logs.put_aside(WHERE, log)
    assert logs.prepare(WHERE, "id") == (False, [first])
    log = logs.open(WHERE, "id", begin=LogBegin(5_000))
    append(log, b"y")
    flush(log)
    second = logs.put_aside(WHERE, log)
    for again in (logs, logs_of(disk)):
        assert again.prepare(WHERE, "id") == (False, [first, second])
        assert again.prepare(TopicPartition("t", 1), "id") == (False, [])
    assert second is not None
    disk.rename(second, HOME / "elsewhere")
    assert logs.prepare(WHERE, "id") == (False, [first, second])
    assert logs.prepare(WHERE, "id", lambda offset: offset < 5_000) == (False, [first])
    logs.move_topic("t", "id", keep=False)
    assert logs.prepare(WHERE, "other") == (False, [])


def test_an_empty_log_that_is_put_aside_leaves_nothing() -> None:
    """There is nothing to read from it."""
    disk = MemoryDisk()
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    log = logs.open(WHERE, "id", begin=LogBegin(7))
    assert logs.put_aside(WHERE, log) is None
    assert not disk.exists(BLOCK.parent)


def test_an_empty_log_keeps_the_marks_of_zips_elsewhere_when_it_is_put_aside() -> None:
    """Retention took all of it while their place did not answer; nothing else names them."""
    Failing.reset()
    disk = MemoryDisk()
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    log = logs.open(WHERE, "id")
    append(log, b"x")
    log.roll()
    flush(log)
    (block,) = log.closed_blocks
    node = f"n1.{logs._directory.archives.own()}"
    archive(disk, log, block, url=url_of(URL, ("c", "b1", node, "t.id", "0"), block.start_offset))
    log.drop_before(log.end_offset)
    flush(log)
    (mark,) = log.flushing.discards
    path = logs.put_aside(WHERE, log)
    assert path is not None
    older = logs.open(WHERE, "id", path=path)
    assert older.flushing.discards == [path / mark.name]
    assert stored() == [f"{0:016d}.zip"]
    logs.discard(path / mark.name)
    assert stored() == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_nothing_is_archived_below_a_mount_that_is_missing(
    tmp_path: Path, is_restarted: bool
) -> None:
    """It would be hidden once the mount is back, and count as lost."""
    mount = tmp_path / "mnt"
    place = f"file://{mount}/"
    disk = MemoryDisk()
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    log = logs.open(WHERE, "id")
    for each in (b"a", b"b"):
        append(log, each)
        log.roll()
    flush(log)

    def to_archive(block: Block) -> None:
        writer = logs.new_archive(
            WHERE, "id", block.path, block.start_offset, block.end_offset, place=place
        )
        while not writer.done:
            writer.step()
        path = block.path
        stub = writer.place()
        writer.close()
        logs.save_stub(path, stub)
        log.use_archive(block, stub.archive)
        flush(log)

    first, second = log.closed_blocks
    to_archive(first)
    if is_restarted:
        log.close()
        logs = logs_of(disk)
        logs.prepare(WHERE, "id")
        log = logs.open(WHERE, "id")
        log.roll()
        flush(log)
        _, second = log.closed_blocks
    mount.rename(tmp_path / "device")
    mount.mkdir()
    with pytest.raises(ZipUnreachable, match="mount it"):
        to_archive(second)
    assert list(mount.iterdir()) == []
    mount.rmdir()
    (tmp_path / "device").rename(mount)
    to_archive(second)
    assert second.is_archived


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


# Logs that are lost -------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["the directory", "its files", "the topic"])
def test_a_log_that_was_begun_and_has_no_files_is_quarantined(disk: MemoryDisk, what: str) -> None:
    """It is no new log, whatever of it is gone; and nothing is made in its place."""
    match what:
        case "the directory":
            disk.rmtree(BLOCK.parent)
        case "its files":
            for name in disk.listdir(BLOCK.parent):
                disk.unlink(BLOCK.parent / name)
        case _:
            disk.rmtree(HOME / "t")
    for _ in range(2):
        logs = logs_of(disk)
        assert logs.prepare(WHERE, "id") == (True, [])
        log = logs.open(WHERE, "id", begin=LogBegin(0))
        assert log.state is LogState.QUARANTINED
        assert f"{BLOCK.parent} is gone or empty" in log.reason
        with pytest.raises(PartitionQuarantined):
            append(log, b"over the old offsets")
        log.close()
        assert not disk.exists(BLOCK)


def test_a_log_that_was_never_flushed_is_new(disk: MemoryDisk) -> None:
    """Nothing of it was acknowledged as durable; so is one of a topic with another id."""
    logs = logs_of(disk)
    other = TopicPartition("t", 1)
    append(logs.open(other, "id"), b"x")
    disk.rmtree(HOME / "t" / "1")
    logs = logs_of(disk)
    assert logs.prepare(other, "id") == (False, [])
    assert logs.open(other, "id").state is LogState.OK
    disk.rmtree(HOME / "t")
    assert logs_of(disk).prepare(WHERE, "made-anew") == (False, [])


def test_a_log_of_an_earlier_vq_is_recorded_when_it_is_opened(disk: MemoryDisk) -> None:
    """From then on it is missed."""
    disk.unlink(HOME / BEGUN_NAME)
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (True, [])
    assert logs.open(WHERE, "id").state is LogState.OK
    logs.save_begun()
    disk.rmtree(BLOCK.parent)
    assert logs_of(disk).open(WHERE, "id").state is LogState.QUARANTINED


def test_a_partition_that_was_given_another_begin_is_not_missed(disk: MemoryDisk) -> None:
    """What was lost lies below; the new log is recorded with its own begin."""
    disk.rmtree(BLOCK.parent)

    def holds(offset: int) -> bool:
        return offset >= 9_000

    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id", holds) == (False, [])
    log = logs.open(WHERE, "id", begin=LogBegin(9_000), holds=holds)
    append(log, b"y")
    flush(log)
    logs.save_begun()
    disk.rmtree(BLOCK.parent)
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id", holds) == (True, [])
    lost = logs.open(WHERE, "id", begin=LogBegin(9_000), holds=holds)
    assert (lost.state, lost.start_offset) == (LogState.QUARANTINED, 9_000)


def test_a_log_that_was_put_aside_and_not_noted_is_the_same_log(disk: MemoryDisk) -> None:
    """The process was killed between the two: nothing is lost."""
    aside = HOME / "t" / "0.from-0"
    disk.rename(BLOCK.parent, aside)
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (False, [aside])
    assert logs.open(WHERE, "id", path=aside).state is LogState.OK
    logs.save_begun()
    disk.rmtree(aside)
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (False, [aside])
    assert logs.open(WHERE, "id", path=aside).state is LogState.QUARANTINED


def test_a_log_begun_behind_one_that_was_put_aside_and_not_noted_is_not_lost(
    disk: MemoryDisk,
) -> None:
    """The record could not be written, and the process was killed when it made the next log."""
    aside = HOME / "t" / "0.from-0"
    disk.rename(BLOCK.parent, aside)
    disk.mkdir(BLOCK.parent)
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (True, [aside])
    assert logs.open(WHERE, "id", path=aside).state is LogState.OK
    assert logs.open(WHERE, "id", begin=LogBegin(9_000)).state is LogState.OK


def test_a_lost_log_stays_known_when_another_takes_its_place(disk: MemoryDisk) -> None:
    """The partition moves away and comes back: the range that is lost is an earlier one now."""
    disk.rmtree(BLOCK.parent)
    logs = logs_of(disk)
    aside = logs.put_aside(WHERE, logs.open(WHERE, "id"))
    assert aside == HOME / "t" / "0.from-0"
    assert not disk.exists(aside)
    assert logs.open(WHERE, "id", begin=LogBegin(9_000)).state is LogState.OK
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (True, [aside])
    assert logs.open(WHERE, "id", path=aside).state is LogState.QUARANTINED


def test_a_log_whose_last_block_was_deleted_may_be_removed(disk: MemoryDisk) -> None:
    """Retention left nothing of it; another one takes its place."""
    logs = logs_of(disk)
    log = logs.open(WHERE, "id")
    log.roll()
    log.drop_before(log.end_offset)
    flush(log)
    assert logs.put_aside(WHERE, log) is None
    assert logs_of(disk).prepare(WHERE, "id") == (False, [])


def emptied_aside(disk: MemoryDisk, logs: Logs) -> Path:
    """An earlier range of which retention has left nothing."""
    path = logs.put_aside(WHERE, logs.open(WHERE, "id"))
    assert path is not None
    log = logs.open(WHERE, "id", path=path)
    log.roll()
    log.drop_before(log.end_offset)
    flush(log)
    log.close()
    return path


def test_an_earlier_range_is_removed_under_another_name(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its checkpoint it would be missed; what is left is removed by the next look."""
    logs = logs_of(disk)
    path = emptied_aside(disk, logs)

    def rmtree(disk: MemoryDisk, victim: Path) -> None:
        assert victim != path
        disk.unlink(victim / "checkpoint")
        raise OSError(5, "killed here")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "rmtree", rmtree)
        with pytest.raises(OSError, match="killed here"):
            logs.remove_aside(WHERE, logs.open(WHERE, "id", path=path))
    assert disk.listdir(HOME / "t") == ["0.from-0.gone", "topic.json"]
    assert logs_of(disk).prepare(WHERE, "id") == (False, [])
    assert disk.listdir(HOME / "t") == ["topic.json"]


def test_an_earlier_range_stays_while_an_operator_has_bytes_of_it(disk: MemoryDisk) -> None:
    logs = logs_of(disk)
    path = emptied_aside(disk, logs)
    disk.write_atomic(path / f"{0:016d}.diverged", b"bytes")
    logs.remove_aside(WHERE, logs.open(WHERE, "id", path=path))
    assert logs_of(disk).prepare(WHERE, "id") == (False, [path])


def test_topics_are_forgotten_when_their_data_are_gone(disk: MemoryDisk) -> None:
    """Not before: ZooKeeper may be restored, and the data taken back from the trash."""
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    logs.forget_begun({"other"})
    logs.save_begun()
    assert logs.move_topic("t", "id", keep=False) is not None
    logs.forget_begun({"other"})
    logs.save_begun()
    logs = logs_of(disk)
    assert logs.prepare(WHERE, "id") == (True, []), "the topic is back, its data are in the trash"
    disk.rmtree(HOME / "t")
    logs.forget_begun({"id"})
    assert logs.prepare(WHERE, "id") == (True, []), "ZooKeeper has the topic"
    disk.rmtree(HOME / "t")
    disk.rmtree(HOME / "@trash")
    logs.forget_begun({"other"})
    logs.save_begun()
    assert logs_of(disk).prepare(WHERE, "id") == (False, [])


def test_a_log_is_not_cut_while_this_node_leads_others(disk: MemoryDisk) -> None:
    """They would cut what it cuts. It has the mark first, so it cannot begin to lead meanwhile."""
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    append(logs.open(WHERE, "id"), b"y")
    disk = disk.crash(keep_all)
    size = len(disk.read_bytes(BLOCK))
    file = disk.open(BLOCK)
    file.pwrite([b"?"], size - 1)
    file.close()
    before, role = disk.read_bytes(BLOCK), Leads(disk)
    logs = logs_of(disk, role)
    logs.prepare(WHERE, "id")
    with pytest.raises(Busy, match="does not cut it while it leads"):
        logs.open(WHERE, "id")
    assert disk.read_bytes(BLOCK) == before
    role.now = False
    assert logs.open(WHERE, "id").recovery.cut_bytes
