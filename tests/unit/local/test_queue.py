"""One suite over a queue in a directory and one in memory, and what only a directory has."""

import contextlib
import itertools
import linecache
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.interrupts import Interrupted, Interrupter
from support.local_queue import contents, taken

from vq.clock import SystemClock
from vq.errors import (
    BufferFull,
    DirectoryRefused,
    InvalidArgument,
    InvalidState,
    LeaseLost,
    MessageTooLarge,
    TimedOut,
)
from vq.local import LocalItem, LocalQueue, LocalQueueConfig, many
from vq.local.core.state import QueueState
from vq.local.core.waits import LineOfWakers
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until

Open = Callable[..., LocalQueue]


@pytest.fixture(params=["directory", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens a queue with some settings; all are closed at the end."""
    queues: list[LocalQueue] = []

    def make(clock: SystemClock | None = None, **settings: object) -> LocalQueue:
        directory = tmp_path / f"jobs{len(queues)}" if request.param == "directory" else None
        config = LocalQueueConfig(**settings)  # type: ignore[arg-type]
        queue = LocalQueue(directory, config, clock=clock)
        queues.append(queue)
        return queue

    yield make
    for queue in queues:
        queue.close()


def test_messages_are_given_in_order_each_once(opened: Open) -> None:
    queue = opened()
    wanted = [b"%d" % number for number in range(300)]
    queue.put_many(wanted[:200])
    for content in wanted[200:]:
        queue.put(content, wait=False)
    queue.flush()
    assert contents(queue) == wanted
    assert len(queue) == 0


def test_many_that_were_taken_are_given_again_if_the_call_is_interrupted(opened: Open) -> None:
    """In their order; one that ``take`` was about to return comes when its lease is over."""
    queue = opened()
    for place in itertools.count():
        queue.put_many([b"%d" % number for number in range(4)])
        interrupter = Interrupter(place, "local/many.py")
        with contextlib.suppress(Interrupted):
            interrupter.run(lambda: queue.take_many(3))
        if not interrupter.reached:
            break
        found = contents(queue)
        line = int(interrupter.reached.rpartition(":")[2])
        missing = 4 - len(found)
        assert missing <= ("take(" in linecache.getline(many.__file__, line))
        assert found == sorted(found)
    assert place > 5


def test_a_message_has_its_tag_key_and_headers(opened: Open) -> None:
    queue = opened(name="orders")
    queue.put(Message("elsewhere", b"paid", tag="t", key=17, headers={"a": "b"}))
    message = taken(queue).message
    assert message[:5] == ("orders", b"paid", "t", 17, {"a": "b"})


def test_a_higher_priority_goes_first(opened: Open) -> None:
    queue = opened()
    for number, priority in enumerate([0, 2, 1, 0, 2, 1]):
        queue.put(b"%d" % number, priority=priority)
    assert contents(queue) == [b"1", b"4", b"2", b"5", b"0", b"3"]


def test_a_delayed_message_is_not_given_before_its_time(opened: Open) -> None:
    queue = opened()
    queue.put(b"later", delay_s=0.2, priority=1)
    queue.put(b"now")
    assert queue.take(0).content == b"now"  # type: ignore[union-attr]
    assert queue.take(0) is None
    assert taken(queue).content == b"later"


def test_a_failed_message_is_given_at_once_then_every_so_often(opened: Open) -> None:
    queue = opened(retries=2, retry_s=0.1)
    queue.put(b"poison")
    attempts = []
    for _ in range(6):
        item = taken(queue)
        attempts.append(item.attempts)
        queue.fail(item)
        if item.attempts > 2:
            assert queue.take(0) is None
    assert attempts == [1, 2, 3, 4, 5, 6]
    item = taken(queue)
    queue.complete(item)
    assert len(queue) == 0


def test_a_message_that_fails_for_ever_holds_up_no_other(opened: Open) -> None:
    queue = opened(retries=0, retry_s=30.0)
    queue.put_many([b"poison", b"good"])
    queue.fail(taken(queue))
    assert contents(queue) == [b"good"]
    assert len(queue) == 1


def test_only_the_item_of_the_taker_completes_a_message(opened: Open) -> None:
    queue = opened()
    queue.put(b"x")
    first = taken(queue)
    queue.fail(first)
    second = taken(queue)
    for late in (queue.complete, queue.fail, queue.extend):
        with pytest.raises(LeaseLost):
            late(first)
    queue.complete(second)
    with pytest.raises(LeaseLost):
        queue.complete(second)


def test_a_message_whose_lease_ended_is_given_to_another_taker(opened: Open) -> None:
    queue = opened(lease_s=0.1)
    queue.put(b"x")
    first = taken(queue)
    second = taken(queue)
    assert (second.content, second.attempts) == (b"x", 2)
    with pytest.raises(LeaseLost):
        queue.complete(first)
    queue.extend(second)
    queue.complete(second)


def test_an_idempotency_key_adds_a_message_once_in_its_window(opened: Open) -> None:
    queue = opened(idempotency_s=600.0)
    assert queue.put(b"a", idempotency_key="k1")
    assert not queue.put(b"b", idempotency_key="k1")
    assert queue.put(b"c", idempotency_key="k2")
    assert contents(queue) == [b"a", b"c"]
    assert not queue.put(b"d", idempotency_key="k1")


def test_the_oldest_idempotency_keys_are_forgotten_at_their_bound(opened: Open) -> None:
    queue = opened(idempotency_keys=2)
    for key in ("k1", "k2", "k3"):
        assert queue.put(b"x", idempotency_key=key)
    assert queue.put(b"x", idempotency_key="k1")
    assert not queue.put(b"x", idempotency_key="k3")


def test_a_full_queue_refuses_or_waits_for_room(opened: Open) -> None:
    refusing = opened(capacity=2, when_full="raise")
    refusing.put_many([b"1", b"2"])
    with pytest.raises(BufferFull, match="capacity is 2"):
        refusing.put(b"3", idempotency_key="k")
    refusing.complete(taken(refusing))
    assert refusing.put(b"3", idempotency_key="k")

    waiting = opened(capacity=1)
    waiting.put(b"1")
    with pytest.raises(BufferFull):
        waiting.put(b"2", timeout=0.01)
    putter = threading.Thread(target=waiting.put, args=(b"2",))
    putter.start()
    waiting.complete(taken(waiting))
    putter.join(WAIT_S)
    assert contents(waiting) == [b"2"]


def test_threads_share_the_messages_and_each_gets_its_own(opened: Open) -> None:
    queue, found = opened(memory_items=100), list[bytes]()

    def produce(name: int) -> None:
        for number in range(500):
            queue.put(b"%d-%d" % (name, number), wait=number % 50 == 0)
        queue.flush()

    def consume() -> None:
        while (item := queue.take()) is not None and item.content != b"end":
            found.append(item.content)
            queue.complete(item)
        if item is not None:
            queue.complete(item)

    producers = [threading.Thread(target=produce, args=(name,)) for name in range(4)]
    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for thread in [*producers, *consumers]:
        thread.start()
    for thread in producers:
        thread.join(WAIT_S)
    queue.put_many([b"end"] * 4)
    for thread in consumers:
        thread.join(WAIT_S)
    assert sorted(found) == sorted(b"%d-%d" % (n, k) for n in range(4) for k in range(500))
    assert len(queue) == 0


def test_a_taker_waits_until_a_message_comes_and_no_longer_than_asked(opened: Open) -> None:
    queue, found = opened(), list[LocalItem | None]()
    assert queue.take(0.01) is None
    takers = [threading.Thread(target=lambda: found.append(queue.take())) for _ in range(3)]
    for thread in takers:
        thread.start()
    queue.put_many([b"1", b"2", b"3"])
    for thread in takers:
        thread.join(WAIT_S)
    assert sorted(item.content for item in found if item is not None) == [b"1", b"2", b"3"]


def test_a_close_wakes_who_waits_and_refuses_the_rest(opened: Open) -> None:
    queue, errors = opened(), list[BaseException]()

    def wait() -> None:
        try:
            queue.take()
        except InvalidState as error:
            errors.append(error)

    takers = [threading.Thread(target=wait) for _ in range(3)]
    for thread in takers:
        thread.start()
    queue.close()
    for thread in takers:
        thread.join(WAIT_S)
    assert len(errors) == 3
    for act in (lambda: queue.put(b"x"), lambda: queue.take(0), lambda: queue.put_many([b"x"])):
        with pytest.raises(InvalidState, match="closed"):
            act()
    queue.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"content": "text"}, "give bytes"),
        ({"content": b"x", "priority": 3}, r"priority = 3 is outside \[0, 2\]"),
        ({"content": b"x", "priority": True}, "give a whole number"),
        ({"content": b"x", "delay_s": -1}, "delay_s = -1 is outside"),
        ({"content": b"x", "delay_s": "1"}, "give a number"),
        ({"content": b"x", "idempotency_key": ""}, "1 to 256 characters"),
    ],
)
def test_unusable_arguments_of_a_put_are_refused(
    opened: Open, arguments: dict[str, object], says: str
) -> None:
    queue = opened()
    with pytest.raises(InvalidArgument, match=says):
        queue.put(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no item"):
        queue.complete("x")  # type: ignore[arg-type]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda queue: queue.take("5"), "'5'"),
        (lambda queue: queue.put(b"x", timeout="5"), "'5'"),
        (lambda queue: queue.drain("x"), "'x'"),
        (lambda queue: queue.take_many("3"), "count = '3'"),
        (lambda queue: queue.take_many(0), r"count = 0 is outside \[1"),
        (lambda queue: queue.put_many(None), "contents = None is no list"),
        (lambda queue: queue.put_many(b"abc"), "several in a list"),
        (lambda queue: queue.put_many(Message("t", b"x")), "several in a list"),
        (lambda queue: queue.complete_many(5), "items = 5"),
        (lambda queue: queue.requeue(5), "ids = 5 is no list"),
        (lambda queue: queue.requeue(["a"]), "an id = 'a'"),
        (lambda queue: queue.list(standing="x"), "'ready' or 'taken' or 'later'"),
        (lambda queue: LocalQueue("q", {"retries": 3}), "LocalQueueConfig"),  # type: ignore[arg-type]
        (lambda queue: LocalQueue(5), "directory = 5 is no path"),  # type: ignore[arg-type]
        (lambda queue: LocalQueue(b"x"), "directory = b'x' is no path"),  # type: ignore[arg-type]
        (lambda queue: LocalQueue(""), "directory = '' is no path"),
    ],
)
def test_unusable_arguments_are_refused(act: Callable[[LocalQueue], object], says: str) -> None:
    with LocalQueue(None) as queue, pytest.raises(InvalidArgument, match=says):
        act(queue)


def test_an_item_of_another_queue_is_refused_and_both_are_named() -> None:
    with (
        LocalQueue(None, LocalQueueConfig(name="one")) as one,
        LocalQueue(None, LocalQueueConfig(name="two")) as two,
    ):
        one.put(b"x")
        item = taken(one)
        with pytest.raises(InvalidArgument, match=r"of queue 'one', and this is queue 'two'"):
            two.complete(item)
        one.complete(item)


def test_a_content_beyond_the_bound_is_refused(opened: Open) -> None:
    with pytest.raises(MessageTooLarge, match="1048577 bytes"):
        opened().put(bytes(1024 * 1024 + 1))


@pytest.mark.parametrize(
    "settings",
    [{"capacity": 0}, {"lease_s": 0}, {"retries": -1}, {"when_full": "no"}, {"memory_items": 1.5}],
)
def test_unusable_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(settings))):
        LocalQueueConfig(**settings)  # type: ignore[arg-type]


def test_a_fork_is_refused_in_the_child(opened: Open) -> None:
    held, forked = threading.Event(), threading.Event()

    class Clock(SystemClock):
        """Stops a thread in the middle of a call, which has the lock."""

        def monotonic(self) -> float:
            if threading.current_thread().name == "caller":
                held.set()
                forked.wait(WAIT_S)
            return super().monotonic()

    queue = opened(Clock())
    queue.put_many([b"x", b"y"])
    item = taken(queue)
    caller = threading.Thread(target=queue.extend, args=(item,), name="caller")
    caller.start()
    held.wait(WAIT_S)
    child = os.fork()
    if not child:
        told = 0
        for act in (lambda: queue.take(0), lambda: queue.extend(item), queue.requeue):
            try:
                act()
            except InvalidState as error:
                told += "forked" in str(error)
        os._exit(told)
    forked.set()
    caller.join(WAIT_S)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    queue.complete(item)
    assert contents(queue) == [b"y"]


# In memory ----------------------------------------------------------------------------------------
def test_a_ring_drops_what_waits_longest() -> None:
    with LocalQueue(None, LocalQueueConfig(capacity=3, when_full="drop-oldest")) as queue:
        for number in range(5):
            queue.put(b"%d" % number)
        assert contents(queue) == [b"2", b"3", b"4"]


# In a directory -----------------------------------------------------------------------------------
@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def test_a_restart_gives_what_was_not_completed(directory: Path) -> None:
    with LocalQueue(directory) as queue:
        queue.put_many([b"%d" % number for number in range(10)])
        items = [taken(queue) for _ in range(6)]
        for item in (items[1], items[4]):
            queue.complete(item)
    with LocalQueue(directory) as queue:
        assert contents(queue) == [b"0", b"2", b"3", b"5", b"6", b"7", b"8", b"9"]
    with LocalQueue(directory) as queue:
        assert queue.take(0) is None


def test_a_restart_keeps_delays_retries_priorities_and_keys(directory: Path) -> None:
    config = LocalQueueConfig(retries=0, retry_s=0.05)
    with LocalQueue(directory, config) as queue:
        queue.put(b"failed", idempotency_key="k")
        queue.fail(taken(queue))  # first: the delayed one may be due before the next line
        queue.put(b"delayed", delay_s=0.1, priority=2)
        queue.put(b"far", delay_s=3600)
        queue.put(b"high", priority=1)
    with LocalQueue(directory, config) as queue:
        assert not queue.put(b"again", idempotency_key="k")
        found: list[tuple[bytes, int]] = []
        while len(found) < 3:
            item = taken(queue)
            found.append((item.content, item.attempts))
            queue.complete(item)
        assert sorted(found) == [(b"delayed", 1), (b"failed", 2), (b"high", 1)]
        assert len(queue) == 1
    with LocalQueue(directory, config) as queue:
        assert queue.take(0) is None
        assert len(queue) == 1


def test_what_does_not_fit_into_memory_waits_on_disk(directory: Path) -> None:
    config = LocalQueueConfig(memory_items=10)
    wanted = [b"%d" % number for number in range(500)]
    with LocalQueue(directory, config) as queue:
        queue.put_many(wanted)
        head = [taken(queue) for _ in range(25)]
        for item in head[::2]:
            queue.complete(item)
    with LocalQueue(directory, config) as queue:
        queue.put(b"last")
        assert contents(queue) == [*wanted[1:25:2], *wanted[25:], b"last"]


def test_contents_beyond_the_bound_of_bytes_wait_on_disk(directory: Path) -> None:
    config = LocalQueueConfig(memory_bytes=3_000)
    wanted = [bytes([number]) * 1_000 for number in range(40)]
    with LocalQueue(directory, config) as queue:
        for content in wanted:
            queue.put(content, wait=False)
        queue.flush()
        assert contents(queue) == wanted


def test_a_directory_has_one_owner_who_is_named(directory: Path) -> None:
    says = f"is open in process {os.getpid()}, which is this one"
    with LocalQueue(directory), pytest.raises(DirectoryRefused, match=says) as caught:
        LocalQueue(directory)
    assert "LocalQueueServer" in (caught.value.hint or "")


def files_of(process: int) -> set[str]:
    """Return what a process has open."""
    found = set()
    for each in list(Path(f"/proc/{process}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # that of this list itself
            found.add(os.readlink(each))
    return found


def test_a_child_of_a_fork_does_not_keep_the_directory(directory: Path) -> None:
    """Nor one that outlives a parent that was killed: it has nothing of the lock."""
    (read_end, write_end), (ready, told) = os.pipe(), os.pipe()
    queue = LocalQueue(directory)
    child = os.fork()
    if not child:
        os.close(write_end)
        os.write(told, b"x")
        os.read(read_end, 1)  # the parent is done
        os._exit(0)
    os.read(ready, 1)
    of_parent, of_child = files_of(os.getpid()), files_of(child)
    queue.close()
    with LocalQueue(directory):
        pass
    for each in (read_end, write_end, ready, told):
        os.close(each)
    os.waitpid(child, 0)
    lock = str(directory / "@lock")
    assert lock in of_parent
    assert lock not in of_child


def test_files_of_others_in_the_directory_do_not_matter(directory: Path) -> None:
    with LocalQueue(directory) as queue:
        queue.put(b"x")
    for name in ("@damaged.lane-0.16.0.1.gz", "@damaged.notes", "@damaged.x.1.2.3~"):
        (directory / name).write_bytes(b"")
    with LocalQueue(directory) as queue:
        assert contents(queue) == [b"x"]
        assert not queue.damaged()


def test_a_directory_that_is_something_else_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "mine.txt").write_text("x")
    with pytest.raises(DirectoryRefused, match="no local queue"):
        LocalQueue(directory)
    assert [each.name for each in directory.iterdir() if each.name[0] != "@"] == ["mine.txt"]


def test_an_empty_queue_gives_its_blocks_back(directory: Path) -> None:
    with LocalQueue(directory) as queue:
        for _ in range(4):
            queue.put_many([bytes(500_000)] * 8)
            contents(queue)
    with LocalQueue(directory) as queue:
        block_until(lambda: sum(f.stat().st_size for f in directory.glob("lane-0/*")) < 100_000)
        queue.put(b"x")
        assert contents(queue) == [b"x"]


# Looks --------------------------------------------------------------------------------------------
def test_a_peek_and_a_list_leave_the_messages_where_they_are(opened: Open) -> None:
    queue = opened(memory_items=2, retries=0, retry_s=3600.0)
    assert queue.peek() is None
    queue.put_many([b"%d" % number for number in range(6)])
    queue.fail(taken(queue))
    item = taken(queue)
    queue.put(b"delayed", delay_s=3600)
    queue.put(b"high", priority=2)
    assert queue.peek().content == b"high"  # type: ignore[union-attr]
    block_until(lambda: len(queue.list(standing="later")) == 2)
    found = [(each.message.content, str(each.standing), each.attempts) for each in queue.list()]
    assert found[:2] == [(b"1", "taken", 1), (b"high", "ready", 0)]
    assert found[2:6] == [(b"%d" % number, "ready", 0) for number in range(2, 6)]
    assert sorted(found[6:]) == [(b"0", "later", 1), (b"delayed", "later", 0)]
    assert len(queue.list(3)) == 3
    queue.complete(item)
    assert contents(queue) == [b"high", b"2", b"3", b"4", b"5"]


def test_requeued_messages_are_given_now(opened: Open) -> None:
    queue = opened(retries=0, retry_s=3600.0)
    queue.put(b"failed")
    queue.fail(taken(queue))
    queue.put(b"delayed", delay_s=3600)
    block_until(lambda: queue.metrics().later == 2)
    assert queue.requeue([-1]) == 0
    assert queue.requeue() == 2
    assert {taken(queue).content, taken(queue).content} == {b"failed", b"delayed"}


def test_a_purge_drops_what_no_taker_has(opened: Open) -> None:
    queue = opened(memory_items=2)
    queue.put_many([b"x"] * 7)
    queue.put(b"delayed", delay_s=3600)
    item = taken(queue)
    assert queue.purge() == 7
    assert queue.take(0) is None
    queue.complete(item)
    assert len(queue) == 0
    queue.put(b"next")
    assert contents(queue) == [b"next"]


def test_a_purge_survives_a_restart(directory: Path) -> None:
    with LocalQueue(directory, LocalQueueConfig(memory_items=2)) as queue:
        queue.put_many([b"x"] * 50)
        queue.put(b"delayed", delay_s=3600)
        assert queue.purge() == 51
        queue.put(b"next")
    with LocalQueue(directory) as queue:
        assert contents(queue) == [b"next"]
        assert len(queue) == 0


def test_a_drain_waits_until_every_message_is_completed(opened: Open) -> None:
    queue = opened()
    queue.put_many([b"1", b"2"])
    first = taken(queue)
    assert not queue.drain(0.01)

    def work() -> None:
        queue.complete(first)
        queue.complete(taken(queue))

    worker = threading.Thread(target=work)
    worker.start()
    assert queue.drain(WAIT_S)
    worker.join(WAIT_S)
    assert len(queue) == 0


def test_who_waits_in_vain_wakes_nobody_without_an_end(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that drain: a completion that is not the last one wakes each of them at most once."""
    queue = opened()
    queue.put_many([b"1", b"2"])
    first, second = taken(queue), taken(queue)
    drained: list[bool] = []
    waiting = [threading.Thread(target=lambda: drained.append(queue.drain(WAIT_S))) for _ in "ab"]
    for thread in waiting:
        thread.start()
    spaces = queue._core.base.spaces
    block_until(lambda: len(spaces.line) == 2)
    calls = []
    hand_on = LineOfWakers.hand_on
    monkeypatch.setattr(
        LineOfWakers, "hand_on", lambda line, *given: calls.append(line) or hand_on(line, *given)
    )
    queue.complete(first)
    assert queue.take(0.05) is None
    block_until(lambda: len(spaces.line) == 2)
    assert len([each for each in calls if each is spaces]) <= 3
    queue.complete(second)
    for thread in waiting:
        thread.join(WAIT_S)
    assert drained == [True, True]


def test_messages_in_line_are_given_when_fewer_wait_for_their_times(opened: Open) -> None:
    """Once fewer than ``later_max`` do, all takers that wait are woken."""
    queue = opened(later_max=1, retries=0, retry_s=3600.0)
    queue.put(b"failed")
    queue.fail(taken(queue))
    block_until(lambda: queue.metrics().later == 1)
    queue.put_many([b"1", b"2"])
    assert queue.take(0) is None
    found: list[bytes] = []
    takers = [threading.Thread(target=lambda: found.append(taken(queue).content)) for _ in "abc"]
    for thread in takers:
        thread.start()
    block_until(lambda: queue.metrics().takers == 3)
    queue.requeue()
    for thread in takers:
        thread.join(WAIT_S)
    assert sorted(found) == [b"1", b"2", b"failed"]


def test_a_message_on_its_way_into_the_line_gets_no_lease() -> None:
    """Else it would be in line twice when that ends."""
    state = QueueState(LocalQueueConfig(lease_s=1.0), durable=False)
    item = LocalItem(b"x", "q")
    state.opened.add(item)
    for now in (1.0, 2.0, 9.0):
        assert not state.overdue(now)
    assert not item.deadline
    state.give(item)
    state.lines[0].ready.clear()  # its taker was interrupted
    assert [state.overdue(now) for now in (10.0, 11.0, 13.0)] == [[], [], [item]]


def test_the_metrics_count(opened: Open) -> None:
    queue = opened(retries=0, retry_s=3600.0)
    queue.put_many([b"x"] * 5)
    queue.put(b"x", idempotency_key="k")
    queue.put(b"x", idempotency_key="k")
    queue.complete(taken(queue))
    queue.fail(taken(queue))
    taken(queue)
    block_until(lambda: queue.metrics().later == 1)
    found = queue.metrics()
    assert (found.put, found.completed, found.failed, found.repeated) == (6, 1, 1, 1)
    assert (found.ready, found.taken, found.later) == (3, 1, 1)


def test_what_fails_for_ever_keeps_no_blocks(directory: Path) -> None:
    """It is copied forward, with its time and its tries, and the blocks behind it go."""
    content = bytes(1 << 20)
    with LocalQueue(directory, LocalQueueConfig(retries=0, retry_s=3600.0)) as queue:
        queue.put(Message("t", b"poison", "tag", "key", {"a": "b"}), priority=1)
        queue.fail(taken(queue))
        queue.put(b"far", delay_s=7200)
        for _ in range(7):
            queue.put_many([Message("t", content, delay_s=0.001)] * 16)
            for _ in range(16):
                queue.complete(taken(queue))
        before = queue.list(standing="later")
        assert [each.message.content for each in before] == [b"poison", b"far"]
        assert queue.metrics().bytes_on_disk < 100 << 20  # of 112
    with LocalQueue(directory) as queue:
        after = queue.list(standing="later")
        assert [(e.message[1:5], e.attempts, e.due_ms, e.priority) for e in after] == [
            (e.message[1:5], e.attempts, e.due_ms, e.priority) for e in before
        ]
        assert queue.requeue() == 2
        assert sorted([taken(queue).content, taken(queue).content]) == [b"far", b"poison"]
        assert len(queue) == 2


# Bounds, keys and errors that others must not take ------------------------------------------------
def test_a_ring_whose_messages_are_all_taken_refuses_in_time() -> None:
    config = LocalQueueConfig(capacity=1, when_full="drop-oldest")
    with LocalQueue(None, config) as queue:
        queue.put(b"1")
        item = taken(queue)
        with pytest.raises(BufferFull):
            queue.put(b"2", timeout=0.01)
        queue.complete(item)
        assert queue.put(b"2", timeout=0.01)


def test_completed_messages_take_no_room_after_a_kill(directory: Path, tmp_path: Path) -> None:
    """Those that no snapshot tells of: their files as they were while the queue was open."""
    config = LocalQueueConfig(capacity=10)
    with LocalQueue(directory, config) as queue:
        queue.put_many([b"x"] * 10)
        queue.complete_many(queue.take_many(10), wait=True)
        shutil.copytree(directory, tmp_path / "as-it-was")
    with LocalQueue(tmp_path / "as-it-was", config) as queue:
        assert (len(queue), queue.metrics().ready) == (0, 0)
        assert queue.drain(0)
        assert queue.put(b"y", timeout=0)
        assert taken(queue).content == b"y"


def test_a_put_with_a_key_waits_for_what_another_one_comes_to(opened: Open) -> None:
    """The first one waits for room, and gets none: then its key was not seen."""
    queue = opened(capacity=1)
    queue.put(b"full")
    outcomes: list[object] = []

    def first() -> None:
        try:
            outcomes.append(queue.put(b"charge", idempotency_key="k", timeout=0.2))
        except BufferFull as error:
            outcomes.append(error)

    thread = threading.Thread(target=first)
    thread.start()

    def is_on_its_way() -> bool:
        try:
            queue.put(b"other", idempotency_key="k", timeout=0)
        except TimedOut:
            return True
        except BufferFull:
            return False
        raise AssertionError("there is room")

    block_until(is_on_its_way)
    second = threading.Thread(
        target=lambda: outcomes.append(queue.put(b"charge", idempotency_key="k"))
    )
    second.start()
    thread.join(WAIT_S)
    assert isinstance(outcomes[0], BufferFull)
    queue.complete(taken(queue))
    second.join(WAIT_S)
    assert outcomes[1] is True
    assert queue.put(b"charge", idempotency_key="k", timeout=0) is False


def test_delayed_messages_do_not_stop_those_in_line(opened: Open) -> None:
    """Only failed ones do, at their bound, whatever way a taker comes."""
    queue = opened(later_max=2, retries=0, retry_s=3_600.0)
    for _ in range(2):
        queue.put(b"later", delay_s=3_600)
    with pytest.raises(BufferFull):
        queue.put(b"later", delay_s=3_600)
    queue.put_many([b"%d" % n for n in range(4)])
    for _ in range(2):
        queue.fail(taken(queue))
    block_until(lambda: queue.metrics().later == 4)
    assert queue.take(0) is None
    queue.requeue()
    assert taken(queue)


class SettableClock(SystemClock):
    """A wall clock that can be set."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        """See ``Clock``."""
        return super().wall_ms() + self.ahead_ms


def test_a_clock_that_is_set_back_forgets_no_key(tmp_path: Path) -> None:
    clock = SettableClock()
    for directory in (tmp_path / "q", None):
        with LocalQueue(directory, clock=clock) as queue:
            assert queue.put(b"x", idempotency_key="k")
            clock.ahead_ms -= 10_000
            assert not queue.put(b"x", idempotency_key="k")
            clock.ahead_ms += 3_600_000
            assert queue.put(b"x", idempotency_key="k")


def test_a_closed_queue_says_nothing_of_its_messages(directory: Path) -> None:
    queue = LocalQueue(directory)
    queue.put(b"x")
    queue.close()
    for act in (queue.drain, queue.metrics):
        with pytest.raises(InvalidState):
            act()
