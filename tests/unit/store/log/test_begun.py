"""The record of begun logs: what is in it after any crash, and what it costs."""

import errno
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.store import SMALL, append

from vq.clock import ManualClock
from vq.errors import DirectoryRefused
from vq.store.commit.flusher import FlushRunner
from vq.store.disk.disk import Buffer
from vq.store.disk.memory_disk import MemoryDisk, MemoryFile, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.log.begun import BEGUN_NAME, Beginning, BegunLog, BegunLogs
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogState
from vq.store.records.checked_text import checksum

DATA = Path("/data")
FILE = DATA / BEGUN_NAME
#: Logs that begin in one flush; what they cost does not depend on it (seen with 10 000, too).
COUNT = 2_000


def disk_of_logs() -> MemoryDisk:
    disk = MemoryDisk()
    for parent in disk.mkdir(DATA):
        disk.sync_directory(parent)
    return disk


def begin(disk: MemoryDisk, begun: BegunLogs, partition: int, *, start: int = 0) -> Log:
    """Return a new log with one message, to be named with its first flush."""
    directory = DATA / "t" / str(partition)
    log = Log.open(
        directory,
        topic_id="id",
        config=SMALL,
        disk=disk,
        clock=ManualClock(),
        begin=LogBegin(start),
    )
    log.flushing.beginning = Beginning(begun, BegunLog("id", directory.name, start))
    append(log, b"x")
    return log


def flush_all(logs: Sequence[Log]) -> Sequence[BaseException | None]:
    """Flush logs together, as a broker does."""
    tickets = [ticket for log in logs if (ticket := log.begin_sync()) is not None]
    assert len(tickets) == len(logs)
    outcome = FlushRunner(ManualClock()).run(tickets)
    for log, ticket, error in zip(logs, tickets, outcome, strict=True):
        if error is None:
            log.finish_sync(ticket)
    return outcome


def named(disk: MemoryDisk, partition: int = 0) -> dict[str, int]:
    return BegunLogs.load(DATA, disk).of_partition("id", partition)


def test_a_log_is_named_before_its_first_batch_is_acknowledged() -> None:
    """And only then: a log that nobody appended to is no loss."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    log = begin(disk, begun, 0, start=5000)
    assert named(disk.crash(keep_all)) == {}
    assert flush_all([log]) == [None]
    assert named(disk.crash(keep_none)) == {"0": 5000}


@pytest.mark.parametrize("seed", range(5))
def test_no_crash_leaves_a_name_without_a_log(seed: int) -> None:
    """At any operation: a log that is named opens, and one whose flush returned is named."""
    rng = random.Random(seed)
    disk = disk_of_logs()
    stage = disk.crash(keep_all)
    flushed: dict[int, int] = {}  # partition → operations recorded by then
    begun = BegunLogs.load(DATA, disk)
    for first in range(0, 6, 2):
        logs = [begin(disk, begun, first + number) for number in range(2)]
        if rng.random() < 0.3:
            append(logs[0], b"y" * 5000)
        assert flush_all(logs) == [None, None]
        flushed |= dict.fromkeys((first, first + 1), len(disk.operations))
    states = 0
    for at, _ in enumerate(stage.replay(disk.operations), start=1):
        for number in range(3):
            crashed = stage.crash(RandomChance(random.Random(seed * 10_000 + at * 10 + number)))
            for partition in range(6):
                (start,) = named(crashed, partition).values() or (None,)
                log = Log.open(
                    DATA / "t" / str(partition),
                    topic_id="id",
                    config=SMALL,
                    disk=crashed,
                    clock=ManualClock(),
                    begun_at=start,
                )
                assert log.state is LogState.OK, (at, number, log.reason)
                if flushed[partition] <= at:
                    assert start == 0, (at, number, partition)
            states += 1
    assert states > 100


class CountingDisk(MemoryDisk):
    """Counts what is done to the record of begun logs."""

    def __init__(self) -> None:
        super().__init__(record=False)
        self.writes: list[int] = []
        self.syncs = 0

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        """See ``Disk.open``."""
        file = super().open(path, create=create)
        if not path.name.startswith(BEGUN_NAME):
            return file
        pwrite, datasync = file.pwrite, file.datasync

        def counted_write(buffers: Sequence[Buffer], position: int) -> None:
            self.writes.append(sum(map(len, buffers)))
            pwrite(buffers, position)

        def counted_sync() -> None:
            self.syncs += 1
            datasync()

        file.pwrite, file.datasync = counted_write, counted_sync  # type: ignore[method-assign]
        return file


@pytest.mark.slow
def test_logs_that_begin_together_cost_one_write() -> None:
    """One write and one sync for each flush in which logs begin; none later on."""
    disk = CountingDisk()
    begun = BegunLogs.load(DATA, disk)
    logs = [begin(disk, begun, number) for number in range(COUNT)]
    assert set(flush_all(logs)) == {None}
    assert (len(disk.writes), disk.syncs) == (1, 1)
    late = begin(disk, begun, COUNT)
    assert flush_all([late]) == [None]
    assert (len(disk.writes), disk.syncs) == (2, 2)
    assert disk.writes[1] < 100
    for log in logs[:100]:
        append(log, b"y")
    assert set(flush_all(logs[:100])) == {None}
    assert (len(disk.writes), disk.syncs) == (2, 2)
    assert len(BegunLogs.load(DATA, disk).of_partition("id", COUNT)) == 1


def test_a_flush_that_failed_names_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the same flush are named."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    logs = [begin(disk, begun, number) for number in range(2)]

    def refuse(file: MemoryFile) -> None:
        raise OSError(errno.EIO, "broken")

    block = logs[0].blocks.active
    assert block is not None
    monkeypatch.setattr(block.file, "datasync", lambda: refuse(block.file))  # type: ignore[arg-type]
    failed, well = flush_all(logs)
    assert isinstance(failed, OSError)
    assert well is None
    assert (named(disk, 0), named(disk, 1)) == ({}, {"1": 0})


def test_a_full_disk_keeps_no_batch_from_being_acknowledged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The name comes with the next save."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    log = begin(disk, begun, 0)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_atomic", no_space)
        assert flush_all([log]) == [None]
    assert f"list of begun logs cannot be written, trying again path={FILE}" in caplog.text
    assert named(disk) == {}
    begun.save()
    assert named(disk) == {"0": 0}


def no_space(path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_after_an_io_error_another_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs that begin meanwhile fail; a second sync of the same file would prove nothing."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    assert flush_all([begin(disk, begun, 0)]) == [None]
    with monkeypatch.context() as patch:

        def refuse(file: MemoryFile) -> None:
            raise OSError(errno.EIO, "broken")

        patch.setattr(BegunLogs, "_append", lambda begun, end: refuse(disk))  # type: ignore[arg-type]
        (error,) = flush_all([begin(disk, begun, 1)])
    assert isinstance(error, OSError)
    assert flush_all([begin(disk, begun, 2)]) == [None]
    assert [named(disk.crash(keep_none), number) for number in range(3)] == [
        {"0": 0},
        {"1": 0},
        {"2": 0},
    ]


def test_every_change_is_read_back() -> None:
    """Moved, gone, begun again, and topics that are forgotten."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    for number in range(3):
        begun.note(BegunLog("id", str(number), 0))
    begun.note(BegunLog("other", "0", 0))
    begun.save()
    begun.note_moved("id", "0", "0.from-0")
    begun.note(BegunLog("id", "0", 9000))
    begun.note_gone("id", "1")
    begun.note_moved("id", "7", "7.from-0")  # unknown: nothing to say
    begun.save()
    again = BegunLogs.load(DATA, disk.crash(keep_none))
    assert again.of_partition("id", 0) == {"0.from-0": 0, "0": 9000}
    assert again.of_partition("id", 1) == {}
    assert again.of_partition("id", 2) == {"2": 0}
    assert again.of_partition("id", 7) == {}
    begun.forget_topics({"id"})
    begun.save()
    assert begun.topic_ids() == BegunLogs.load(DATA, disk.crash(keep_none)).topic_ids() == {"other"}


def test_its_bytes_are_those_that_the_formats_tell() -> None:
    """docs/formats.md has the same example."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    begun.note(BegunLog("5d2f8c0e91a74b36", "0", 0))
    begun.save()
    begun.note_moved("5d2f8c0e91a74b36", "0", "0.from-0")
    begun.note_gone("5d2f8c0e91a74b36", "0.from-0")
    begun.save()
    assert disk.read_bytes(FILE) == (
        b"vq-logs 1 de7c14d2\n"
        b"begun 5d2f8c0e91a74b36 0 0 7da80ad2\n"
        b"moved 5d2f8c0e91a74b36 0 0.from-0 8accceda\n"
        b"gone 5d2f8c0e91a74b36 0.from-0 e0c66cf0\n"
    )


def test_a_torn_end_is_left_out_and_written_over(caplog: pytest.LogCaptureFixture) -> None:
    """At every byte; the lines before it count, and what is saved next is whole."""
    caplog.set_level(logging.INFO)
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    begun.note(BegunLog("id", "0", 0))
    begun.save()
    whole = len(disk.read_bytes(FILE))
    begun.note(BegunLog("id", "1", 0))
    begun.save()
    data = disk.read_bytes(FILE)
    for rest in [data[whole:at] for at in range(whole + 1, len(data))] + [bytes(40)]:
        disk.write_atomic(FILE, data[:whole] + rest)
        caplog.clear()
        torn = BegunLogs.load(DATA, disk)
        assert torn.of_partition("id", 0) == {"0": 0}
        assert torn.of_partition("id", 1) == {}
        assert "torn lines at the end skipped" in caplog.text
        torn.note(BegunLog("id", "2", 7))
        torn.save()
        assert named(disk, 0) == {"0": 0}
        assert named(disk, 2) == {"2": 7}


def test_a_damaged_line_is_told_and_the_others_count(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever byte of it was changed."""
    disk = disk_of_logs()
    begun = BegunLogs.load(DATA, disk)
    for number in range(3):
        begun.note(BegunLog("id", str(number), 0))
    begun.save()
    data = disk.read_bytes(FILE)
    first = data.index(b"begun id 1 ")
    for at in range(first, data.index(b"\n", first)):
        changed = bytearray(data)
        changed[at] ^= 1
        disk.write_atomic(FILE, bytes(changed))
        caplog.clear()
        assert [named(disk, number) for number in range(3)] == [{"0": 0}, {}, {"2": 0}]
        assert "damaged lines skipped" in caplog.text


def test_a_newer_record_is_refused() -> None:
    """An older vq must not guess what its lines mean."""
    disk = disk_of_logs()
    disk.write_atomic(FILE, f"vq-logs 2 {checksum('vq-logs 2')}\n".encode())
    with pytest.raises(DirectoryRefused, match="run a newer vq"):
        BegunLogs.load(DATA, disk)
