"""Errors and interrupts in the middle of a commit: of the disk, and of its caller."""

import asyncio
import contextlib
import errno
import itertools
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.interrupts import Interrupted, Interrupter
from support.local_queue import taken

from vq import aio
from vq.clock import SystemClock
from vq.errors import DiskFull, InvalidState, PartitionFailed, StorageFailed
from vq.local import LocalItem, LocalQueue, LocalQueueConfig, LocalWorkers
from vq.local.core import commits
from vq.local.core.core import QueueCore
from vq.local.files.pad import CodePad
from vq.local.files.storage import Storage
from vq.store.disk.real_disk import RealDisk, RealFile
from vq.testing.waiting import WAIT_S, block_until


class FailingFile:
    """A file that calls its disk before a flush."""

    file_system = None  # it is flushed by itself

    def __init__(self, file: RealFile, disk: "FailingDisk", log: str) -> None:
        self._file, self._disk, self._log = file, disk, log

    def datasync(self) -> None:
        """See ``File.datasync``."""
        if self._log == self._disk.log:
            self._disk.on_flush()
        self._file.datasync()

    def pwrite(self, buffers: Sequence[Any], position: int) -> None:
        """See ``File.pwrite``."""
        if self._log == self._disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._file.pwrite(buffers, position)

    def view(self, position: int, length: int) -> memoryview:
        """See ``File.view``."""
        if self._log == self._disk.unreadable:
            self._disk.on_view()
        return self._file.view(position, length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FailingDisk(RealDisk):
    """A real disk on which each flush of one log does something else first, such as fail."""

    def __init__(self) -> None:
        super().__init__()
        self.log = self.unreadable = self.full = ""
        self.on_flush: Callable[[], object] = fail
        self.on_view: Callable[[], object] = fail
        self.is_full = False

    def open(self, path: Path, *, create: bool = False) -> Any:
        """See ``Disk.open``."""
        return FailingFile(super().open(path, create=create), self, path.parent.name)

    def write_atomic(self, path: Path, data: bytes) -> None:
        """See ``Disk.write_atomic``."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_atomic(path, data)


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def refuse(*_: object) -> None:
    raise DiskFull("no space")


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def queue(tmp_path: Path, disk: FailingDisk) -> Iterator[LocalQueue]:
    with LocalQueue(tmp_path / "jobs", LocalQueueConfig(retries=0), disk=disk) as opened:
        yield opened


def test_a_lane_stops_and_the_others_and_its_takers_go_on(
    tmp_path: Path, queue: LocalQueue, disk: FailingDisk
) -> None:
    """A flush that failed is never tried again as if it had worked, only by a new start."""
    queue.put(b"stored")
    disk.log = "lane-0"
    with pytest.raises(StorageFailed, match="lane-0 of queue 'jobs' takes no more") as caught:
        queue.put(b"unknown")
    assert "open it again" in (caught.value.hint or "")
    disk.log = ""
    with pytest.raises(StorageFailed, match="lane-0"):
        queue.put_many([b"refused", b"too"])
    queue.put(b"refused", wait=False)
    with pytest.raises(StorageFailed, match="lane-0"):
        queue.flush()
    assert queue.put(b"urgent", priority=1)
    assert queue.metrics().stopped == 1
    assert [taken(queue).content, taken(queue).content] == [b"urgent", b"stored"]
    assert queue.take(0) is None
    for item in [each.message for each in queue.list()]:
        assert item.content in (b"urgent", b"stored")
    queue.close()
    with LocalQueue(tmp_path / "jobs") as again:
        found = {each.message.content for each in again.list()}
        assert found in ({b"urgent", b"stored"}, {b"urgent", b"stored", b"unknown"})
        assert again.put(b"next")


def test_completions_outlive_a_lane_that_stopped(
    tmp_path: Path, queue: LocalQueue, disk: FailingDisk
) -> None:
    queue.put_many([b"one", b"two"])
    disk.log = "lane-0"
    with pytest.raises(StorageFailed):
        queue.put(b"unknown")
    queue.complete(taken(queue), wait=True)
    queue.close()
    with LocalQueue(tmp_path / "jobs") as again:
        assert taken(again).content == b"two"


def test_a_lane_that_cannot_be_read_holds_up_no_other(tmp_path: Path, disk: FailingDisk) -> None:
    config = LocalQueueConfig(memory_items=1, retry_s=0.01)
    with LocalQueue(tmp_path / "jobs", config, disk=disk) as queue:
        queue.put_many([b"in memory", b"on disk"], priority=2)
        queue.put(b"low")
        disk.unreadable = "lane-2"
        for content in (b"in memory", b"low"):
            item = taken(queue)
            assert item.content == content
            queue.complete(item)
        with pytest.raises(PartitionFailed, match="cannot be read"):
            queue.take(0)
        with LocalWorkers(queue, lambda _: None):
            queue.put(b"low")
            block_until(lambda: len(queue) == 1)
            disk.unreadable = ""
            assert queue.drain(WAIT_S)


def test_a_put_without_space_is_refused_and_the_next_one_is_tried(
    queue: LocalQueue, disk: FailingDisk
) -> None:
    queue.put(b"stored")
    disk.full = "lane-0"
    with pytest.raises(DiskFull):
        queue.put(b"refused", idempotency_key="k")
    assert queue.put(b"urgent", priority=1)
    disk.full = ""
    assert queue.put(b"next", idempotency_key="k")
    assert [taken(queue).content for _ in range(3)] == [b"urgent", b"stored", b"next"]
    assert queue.metrics().stopped == 0


def test_a_message_that_cannot_be_moved_to_the_retry_lane_stays_with_its_taker(
    queue: LocalQueue, disk: FailingDisk
) -> None:
    queue.put(b"job")
    disk.log = "later"
    queue.fail(taken(queue), delay_s=60)  # its copy cannot be stored, so it is given again
    item = taken(queue)
    with pytest.raises(StorageFailed, match="later of queue"):
        queue.fail(item, delay_s=60)
    queue.fail(item, delay_s=0)
    queue.complete(taken(queue))
    with pytest.raises(StorageFailed, match="later of queue"):
        queue.put(b"job", delay_s=60)
    assert queue.put(b"job")


def test_a_queue_whose_completions_cannot_be_stored_stops(
    tmp_path: Path, queue: LocalQueue, disk: FailingDisk
) -> None:
    queue.put_many([b"one", b"two"])
    disk.log = "notes"
    item = taken(queue)
    with pytest.raises(StorageFailed, match="has stopped"):
        queue.complete(item, wait=True)
    for act in (lambda: queue.put(b"three"), queue.take, queue.flush):
        with pytest.raises(StorageFailed, match="has stopped") as caught:
            act()
        assert "open it again" in (caught.value.hint or "")
    queue.close()
    disk.log = ""
    with LocalQueue(tmp_path / "jobs") as again:
        contents = [each.message.content for each in again.list()]
        assert contents in ([b"two"], [b"one", b"two"])


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError()], ids=repr)
def test_what_a_signal_handler_raises_in_a_put_is_no_error_of_the_disk(
    queue: LocalQueue, disk: FailingDisk, error: Exception
) -> None:
    def handler() -> None:
        raise error

    disk.log, disk.on_flush = "lane-0", handler
    with pytest.raises(type(error)):
        queue.put(b"interrupted")
    disk.log = ""
    assert queue.put(b"next")
    assert queue.metrics().stopped == 0
    assert [each.message.content for each in queue.list()][-1] == b"next"


def test_a_call_by_a_signal_handler_inside_of_a_put_is_refused(
    queue: LocalQueue, disk: FailingDisk
) -> None:
    """It would wait for the put that it interrupts."""

    def handler() -> None:
        disk.log = ""
        for act in (lambda: queue.put(b"x"), lambda: queue.take(0), queue.flush, queue.close):
            with pytest.raises(InvalidState, match="signal handler"):
                act()
        queue.put(b"later", wait=False)

    queue.put(b"first")
    disk.log, disk.on_flush = "lane-0", handler
    assert queue.put(b"interrupted")
    queue.flush()
    assert [taken(queue).content for _ in range(3)] == [b"first", b"interrupted", b"later"]


def test_a_call_by_a_signal_handler_inside_of_a_take_is_refused(
    tmp_path: Path, disk: FailingDisk
) -> None:
    """It would wait for the lock that the interrupted code holds; a close at SIGTERM does."""
    called: list[object] = []

    def handler() -> None:
        disk.unreadable = ""
        for act in (
            queue.close,
            queue.flush,
            queue.requeue,
            lambda: queue.put(b"x", idempotency_key="k"),
            lambda: queue.put(b"x", delay_s=1),
            lambda: queue.fail(item),
            lambda: queue.extend(item),
            lambda: queue._core.takes.give_back(item),
        ):
            with pytest.raises(InvalidState, match="signal handler"):
                act()
            called.append(act)

    with LocalQueue(tmp_path / "jobs", LocalQueueConfig(memory_items=1), disk=disk) as queue:
        queue.put_many([b"first", b"on disk"])
        item = taken(queue)
        disk.unreadable, disk.on_view = "lane-0", handler
        assert taken(queue).content == b"on disk"
        assert len(called) == 8
        queue.complete(item)


def test_a_purge_is_durable_when_the_snapshot_cannot_be_written(
    tmp_path: Path, disk: FailingDisk
) -> None:
    config = LocalQueueConfig(memory_items=1)
    with LocalQueue(tmp_path / "jobs", config, disk=disk) as queue:
        queue.put_many([b"x"] * 50)
        disk.is_full = True
        assert queue.purge() == 50
        shutil.copytree(tmp_path / "jobs", tmp_path / "as-it-was")
    with LocalQueue(tmp_path / "as-it-was") as again:
        assert len(again) == 0


def test_a_queue_opens_on_a_full_disk(tmp_path: Path, disk: FailingDisk) -> None:
    """Its takers are who makes room."""
    with LocalQueue(tmp_path / "jobs") as queue:
        queue.put_many([b"one", b"two"])
    disk.is_full = True
    with LocalQueue(tmp_path / "jobs", disk=disk) as queue:
        queue.complete(taken(queue))
    with LocalQueue(tmp_path / "jobs") as queue:
        assert [each.message.content for each in queue.list()] == [b"two"]
    with pytest.raises(DiskFull, match="cannot be opened"):
        LocalQueue(tmp_path / "new", disk=disk)


def test_a_close_on_a_full_disk_ends_and_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = LocalQueue(tmp_path / "jobs")
    queue.put_many([b"one", b"two"])
    monkeypatch.setattr(Storage, "note", refuse)
    queue.complete(taken(queue))
    errors: list[Exception] = []

    def close() -> None:
        try:
            queue.close()
        except DiskFull as error:
            errors.append(error)

    closing = threading.Thread(target=close)
    closing.start()
    closing.join(WAIT_S)
    assert len(errors) == 1
    monkeypatch.undo()
    with LocalQueue(tmp_path / "jobs") as again:
        assert [each.message.content for each in again.list()] == [b"two"]


@dataclass
class Stalled:
    """A queue of coroutines whose notes are being flushed by a disk that hangs.

    Attributes:
        queue: The queue.
        items: Messages that were taken, and are to be completed.
        killed: Opens what a kill would leave now.
    """

    queue: aio.LocalQueue
    items: list[LocalItem]
    killed: Callable[[], LocalQueue]


@pytest.fixture
async def stalled(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stalled]:
    """Coroutines do not wait for the notes, and the pad has 64 slots here, not 65,536."""
    monkeypatch.setattr(commits, "SLOTS", 64)
    monkeypatch.setattr(CodePad.__init__, "__defaults__", (64,))
    stalls, goes_on = threading.Event(), threading.Event()

    def stall() -> None:
        stalls.set()
        goes_on.wait(WAIT_S)

    def killed() -> LocalQueue:
        shutil.copytree(tmp_path / "jobs", tmp_path / "killed")
        return LocalQueue(tmp_path / "killed")

    core = QueueCore(tmp_path / "jobs", LocalQueueConfig(), disk, SystemClock())
    queue = aio.LocalQueue.over(core)
    await queue.put_many([b""] * 1_000)
    first, *items = await queue.take_many(1_000)
    disk.log, disk.on_flush = "notes", stall
    queue.complete(first)
    assert await asyncio.to_thread(stalls.wait, WAIT_S)
    yield Stalled(queue, items, killed)
    goes_on.set()
    core.end()


async def test_a_kill_undoes_no_completion_however_many_while_a_flush_stalls(
    stalled: Stalled,
) -> None:
    for item in stalled.items:
        stalled.queue.complete(item)
    with stalled.killed() as again:
        assert len(again) == 0


async def test_a_signal_in_one_completion_undoes_none_of_others(stalled: Stalled) -> None:
    """Its handler raises at one place after another of the notes that a coroutine writes."""
    place = 0
    for item in stalled.items:
        interrupter = Interrupter(place, "local/core/commits", "local/core/waits")
        try:
            interrupter.run(lambda item=item: stalled.queue.complete(item))
        except Interrupted:
            place += 1
    assert place > 10, "completions write no notes any more"
    with stalled.killed() as again:
        assert len(again) == 0


def test_a_take_that_is_interrupted_leaves_no_place_in_line() -> None:
    """Who waits behind it has the next message."""
    for place in itertools.count():
        with LocalQueue(None, LocalQueueConfig()) as queue:
            interrupter = Interrupter(place, "local/queue", "local/core/takes", "local/core/waits")
            with contextlib.suppress(Interrupted):
                interrupter.run(lambda queue=queue: queue.take(0.001))
            with ThreadPoolExecutor(1) as pool:
                line = queue._core.base.takers.line
                left_behind = len(line)
                taking = pool.submit(queue.take, WAIT_S)
                block_until(lambda line=line, left=left_behind: len(line) > left)
                queue.put(b"job")
                assert taking.result() is not None, interrupter.reached
            if not interrupter.reached:
                break
    assert place > 10, "the places are no more where they were"


def test_a_put_hears_of_a_thread_that_fails_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would end its wait."""

    class Raising:
        def release(self) -> None:
            raise ZeroDivisionError

    with LocalQueue(tmp_path / "jobs", LocalQueueConfig()) as queue:
        monkeypatch.setattr(queue._core.commits, "lead", lambda _: False)  # somebody else commits
        queue._core.base.takers.line.append(Raising())
        with pytest.raises(StorageFailed, match="has stopped after an error"):
            queue.put(b"job")


def test_a_requeue_by_id_reads_nothing(queue: LocalQueue, disk: FailingDisk) -> None:
    queue.put(b"job")
    item = taken(queue)
    queue.fail(item, delay_s=3600)
    block_until(lambda: queue.metrics().later == 1)
    disk.unreadable = "later"
    assert queue.requeue([item.id + 1]) == 0
    disk.unreadable = ""
    assert queue.requeue([item.id]) == 1
    assert taken(queue).id == item.id


INSIDE = ("vq/local/", "vq/store/log/", "vq/store/commit/")
#: Every so manieth place, for the time it takes; every one was tried once.
STEP = 5


def test_an_interrupted_put_loses_no_other_message(tmp_path: Path) -> None:
    """What returned is given once, what was interrupted at most once, and puts go on."""
    put, interrupted, place = list[bytes](), set[bytes](), 0
    with LocalQueue(tmp_path / "jobs") as queue:
        queue.put(b"warm")
        passed = 0
        while passed < 30:  # in turn at one place: a put that the thread commits has fewer
            content = b"interrupted-%d-%d" % (place, passed)
            try:
                Interrupter(place, *INSIDE).run(lambda content=content: queue.put(content))
            except Interrupted:
                interrupted.add(content)
                place, passed = place + STEP, 0
            else:
                put.append(content)
                passed += 1
            queue.put(b"next-%d-%d" % (place, passed))
            put.append(b"next-%d-%d" % (place, passed))
        assert len(interrupted) > 100 // STEP, "callers do not commit their messages any more"
        found = []
        while (item := queue.take(0)) is not None:
            found.append(item.content)
    assert found[0] == b"warm"
    assert len(found) == len(set(found))
    assert [each for each in found[1:] if each not in interrupted] == put
    with LocalQueue(tmp_path / "jobs") as queue:
        assert [each.message.content for each in queue.list(10_000)] == found


def test_a_flush_tells_the_thread_that_has_put_and_no_other(
    queue: LocalQueue, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that did not fit on the disk: whoever flushes first must not take its error."""

    before = queue.metrics().commits
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "append", refuse)
        queue.put(b"x", wait=False)
        block_until(lambda: queue.metrics().commits > before)
    stranger = threading.Thread(target=queue.flush)
    stranger.start()
    stranger.join(WAIT_S)
    with pytest.raises(DiskFull):
        queue.flush()
    queue.flush()
