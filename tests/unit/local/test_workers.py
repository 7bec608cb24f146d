"""Threads at a local queue: order by key, pauses, handlers that raise, pipelines."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import vq
from vq.clock import SystemClock
from vq.errors import BufferFull, InvalidArgument, InvalidState, LeaseLost
from vq.local import LocalQueue, LocalQueueConfig, LocalWorkers
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until


class StillClock(SystemClock):
    """A wall clock that stands."""

    def wall_ms(self) -> int:
        """See ``Clock``."""
        return 1_800_000_000_000


CONFIG = LocalQueueConfig(retries=1, retry_s=0.02, lease_s=5.0)


@pytest.fixture(params=["directory", "memory"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalQueue]:
    directory = tmp_path / "jobs" if request.param == "directory" else None
    with LocalQueue(directory, CONFIG) as opened:
        yield opened


def test_messages_of_a_key_are_handled_in_order_one_at_a_time(queue: LocalQueue) -> None:
    seen, running, together = defaultdict[object, list[bytes]](list), set[object](), []

    def handle(message: Message) -> None:
        together.append(message.key in running)
        running.add(message.key)
        seen[message.key].append(message.content)
        running.discard(message.key)

    queue.put_many([Message("t", b"%d" % n, key=n % 7) for n in range(210)])
    with LocalWorkers(queue, handle, workers=4, by_key=True):
        assert queue.drain(WAIT_S)
    assert not any(together)
    assert seen == {key: [b"%d" % n for n in range(key, 210, 7)] for key in range(7)}


def test_a_handler_that_raises_stops_no_box_and_keeps_the_order(queue: LocalQueue) -> None:
    calls, done = defaultdict[bytes, int](int), []

    def handle(message: Message) -> None:
        calls[message.content] += 1
        if calls[message.content] < 4 and message.content in {b"1", b"3"}:
            raise ValueError(message.content)
        done.append((message.key, message.content))

    queue.put_many([Message("t", b"%d" % n, key="k") for n in range(5)])
    queue.put(Message("t", b"other", key="o"))
    with LocalWorkers(queue, handle, by_key=True):
        assert queue.drain(WAIT_S)
    assert [content for key, content in done if key == "k"] == [b"%d" % n for n in range(5)]
    assert calls[b"1"] == calls[b"3"] == 4


def test_a_paused_key_waits_and_others_go_on(queue: LocalQueue) -> None:
    done = []
    with LocalWorkers(queue, lambda message: done.append(message.content), by_key=True) as workers:
        workers.pause("a")
        queue.put_many([Message("t", b"a1", key="a"), Message("t", b"a2", key="a")])
        queue.put(Message("t", b"b", key="b"))
        block_until(lambda: done == [b"b"] and workers.held == 2)
        workers.pause()
        workers.resume("a")
        queue.put(Message("t", b"c", key="c"))
        block_until(lambda: workers.held == 3)
        assert done == [b"b"]
        workers.resume()
        assert queue.drain(WAIT_S)
    assert [each for each in done if each[:1] == b"a"] == [b"a1", b"a2"]
    assert b"c" in done


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "failing"])
def test_a_key_that_stalls_with_more_messages_than_the_window_stops_no_other(
    tmp_path: Path, *, is_paused: bool
) -> None:
    """Its messages wait beside the window, up to ``later_max`` of the queue."""
    done = []

    def handle(message: Message) -> None:
        if message.key == "bad":
            raise ValueError
        done.append(message.content)

    config = LocalQueueConfig(retries=0, retry_s=3600.0, later_max=5)
    with LocalQueue(tmp_path / "jobs", config) as queue:
        queue.put_many([Message("t", b"bad", key="bad")] * 6)
        queue.put_many([Message("t", b"%d" % number, key=number) for number in range(9)])
        with LocalWorkers(queue, handle, by_key=True, window=2) as workers:
            if is_paused:
                workers.pause("bad")
            block_until(lambda: len(done) == 9)
            queue.put_many([Message("t", b"bad", key="bad")] * 5)
            block_until(lambda: workers.held == 7)
            assert queue.metrics().ready == 4
        assert len(queue) == 11


def test_a_pause_takes_hold_after_the_handler_that_runs(queue: LocalQueue) -> None:
    entered, leave, done = threading.Event(), threading.Event(), []

    def handle(message: Message) -> None:
        entered.set()
        assert leave.wait(WAIT_S)
        done.append(message.content)

    queue.put_many([Message("t", b"1", key="k"), Message("t", b"2", key="k")])
    with LocalWorkers(queue, handle, by_key=True) as workers:
        assert entered.wait(WAIT_S)
        workers.pause("k")
        leave.set()
        block_until(lambda: done == [b"1"] and workers.held == 1)
        workers.resume("k")
        assert queue.drain(WAIT_S)
    assert done == [b"1", b"2"]


def test_without_keys_a_failed_message_goes_back_to_the_queue(queue: LocalQueue) -> None:
    calls = []

    def handle(message: Message) -> None:
        calls.append(message.content)
        if len(calls) < 4:
            raise ValueError

    queue.put(b"x")
    with LocalWorkers(queue, handle, workers=2):
        assert queue.drain(WAIT_S)
    assert calls == [b"x"] * 4
    assert queue.metrics().failed == 3


@pytest.mark.parametrize("by_key", [True, False])
def test_whatever_a_handler_raises_or_asks_for_its_message_is_tried_again(
    queue: LocalQueue, by_key: bool
) -> None:
    """Also a lease of another queue that was lost, and a coroutine that nobody awaits."""

    async def nothing() -> None: ...

    tries = iter([LeaseLost("of another queue"), nothing(), vq.RETRY, vq.Retry(after_s=0), None])

    def handle(message: Message) -> object:
        outcome = next(tries)
        if isinstance(outcome, LeaseLost):
            raise outcome
        return outcome

    queue.put(Message("t", b"x", key="k"))
    with LocalWorkers(queue, handle, by_key=by_key):
        assert queue.drain(WAIT_S)
    assert next(tries, "all were made") == "all were made"


def test_what_a_call_does_not_run_is_no_handler() -> None:
    async def coroutine(message: Message) -> None: ...

    def generator(message: Message) -> Iterator[bytes]:
        yield message.content

    with LocalQueue(None) as queue, LocalQueue(None) as other:
        for wrong in (coroutine, generator, None):
            with pytest.raises(InvalidArgument, match="handler"):
                LocalWorkers(queue, wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="to"):
            LocalWorkers(queue, print, to="x")  # type: ignore[arg-type]
        queue.put(b"x")
        with LocalWorkers(queue, generator, to=other):
            assert queue.drain(WAIT_S)
        assert len(other) == 1


def test_a_close_gives_back_what_was_not_handled_in_order(queue: LocalQueue) -> None:
    entered, leave = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        entered.set()
        assert leave.wait(WAIT_S)

    queue.put_many([Message("t", b"%d" % n, key="k") for n in range(4)])
    workers = LocalWorkers(queue, handle, by_key=True)
    assert entered.wait(WAIT_S)
    block_until(lambda: workers.held == 4)
    closing = threading.Thread(target=workers.close)
    closing.start()
    leave.set()
    closing.join(WAIT_S)
    left = []
    while (item := queue.take(0)) is not None:
        left.append((item.content, item.attempts))
    assert left == [(b"%d" % n, 1) for n in range(4 - len(left), 4)]
    assert len(left) >= 3


def test_stages_hand_each_message_on_once(tmp_path: Path) -> None:
    with LocalQueue(tmp_path / "a") as first, LocalQueue(tmp_path / "b") as second:
        with (
            LocalWorkers(first, lambda message: [message.content, message.content * 2], to=second),
        ):
            first.put_many([b"%d" % n for n in range(20)])
            assert first.drain(WAIT_S)
        found = []
        while (item := second.take(0)) is not None:
            found.append(item.content)
    assert sorted(found) == sorted(
        each for n in range(20) for each in (b"%d" % n, b"%d%d" % (n, n))
    )


def test_stages_of_queues_with_one_name_do_not_meet(tmp_path: Path) -> None:
    """Their messages of one millisecond have the same ids."""
    clock = StillClock()
    with (
        LocalQueue(tmp_path / "a" / "jobs", clock=clock) as first,
        LocalQueue(tmp_path / "b" / "jobs", clock=clock) as second,
        LocalQueue(tmp_path / "next") as to,
    ):
        for queue, content in ((first, b"1"), (second, b"2")):
            queue.put(content)
            with LocalWorkers(queue, lambda message: message.content, to=to):
                assert queue.drain(WAIT_S)
        assert len(to) == 2


def test_a_stage_that_fails_for_long_hands_on_once(tmp_path: Path) -> None:
    """What was handed on before it failed is recognised, however often it is tried again."""
    ids = []

    def handle(message: Message) -> Iterator[bytes]:
        ids.append(message.id)
        yield b"one"
        if len(ids) < 5:
            raise ConnectionError
        yield b"two"

    with LocalQueue(tmp_path / "a", CONFIG) as queue, LocalQueue(tmp_path / "b") as to:
        queue.put(b"x")
        with LocalWorkers(queue, handle, to=to):
            assert queue.drain(WAIT_S)
        assert [each.message.content for each in to.list()] == [b"one", b"two"]
    assert len(set(ids)) == 1


def test_what_is_taken_is_bounded_in_bytes_and_one_larger_message_passes(queue: LocalQueue) -> None:
    queue.put_many([bytes(100)] * 5)
    queue.put(bytes(1_000))
    handled = []
    with LocalWorkers(queue, lambda m: handled.append(len(m.content)), window_bytes=250) as workers:
        assert queue.drain(WAIT_S)
        workers.pause()
        queue.put_many([bytes(100)] * 5)
        block_until(lambda: workers.held == 3)
        assert queue.metrics().ready == 2
        workers.resume()
        assert queue.drain(WAIT_S)
    assert sorted(handled) == [100] * 10 + [1_000]


@pytest.mark.parametrize("settings", [{"workers": 0}, {"window": True}, {"window_bytes": 0}])
def test_unusable_numbers_are_refused(settings: dict[str, int]) -> None:
    with (
        LocalQueue(None) as queue,
        pytest.raises(InvalidArgument, match=next(iter(settings))),
    ):
        LocalWorkers(queue, print, **settings)  # type: ignore[arg-type]


def test_a_handler_that_closes_its_workers_is_refused() -> None:
    """They would wait for each other; whoever closes them outside does not wait for that."""
    errors, both = list[str](), threading.Barrier(2)

    def handle(_: Message) -> None:
        both.wait(WAIT_S)
        try:
            workers.close()
        except InvalidState as error:
            errors.append(str(error))

    with LocalQueue(None) as queue:
        with LocalWorkers(queue, handle, workers=2) as workers:
            queue.put_many([b"1", b"2"])
            assert queue.drain(WAIT_S)
        assert len(errors) == 2


def test_a_close_does_not_wait_for_a_handler_without_an_end(
    queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is given again, and its late end changes nothing."""
    monkeypatch.setattr("vq.local.workers._CLOSE_S", 0.1)
    begun, end = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        end.wait(WAIT_S)

    workers = LocalWorkers(queue, handle, workers=1, by_key=True)
    queue.put(Message("t", b"1", key="k"))
    assert begun.wait(WAIT_S)
    workers.close()
    item = queue.take(WAIT_S)
    assert item is not None
    end.set()
    for thread in workers._threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in workers._threads)
    queue.complete(item)


def test_a_close_ends_the_wait_for_room_in_the_next_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is given again; its try is not counted."""
    monkeypatch.setattr("vq.local.workers._ROOM_S", 0.02)
    made = threading.Event()

    def handle(_: Message) -> bytes:
        made.set()
        return b"made"

    with LocalQueue(None) as queue, LocalQueue(None, LocalQueueConfig(capacity=1)) as full:
        full.put(b"there")
        queue.put(b"1")
        with LocalWorkers(queue, handle, workers=1, to=full):
            assert made.wait(WAIT_S)
        item = queue.take(0)
        assert item is not None
        assert item.attempts == 1
        assert len(full) == 1


def test_workers_may_close_while_others_put(queue: LocalQueue) -> None:
    """Whatever wakes the thread that takes, it may be woken already."""
    stop, errors = threading.Event(), []

    def put() -> None:
        while not stop.is_set():
            try:
                queue.put(b"job", timeout=0)
            except BufferFull:
                queue.purge()
            except BaseException as error:
                errors.append(error)
                return

    putting = threading.Thread(target=put)
    putting.start()
    for _ in range(40):
        with LocalWorkers(queue, lambda _: None, workers=1):
            pass
    stop.set()
    putting.join()
    assert errors == []


def test_whoever_closes_leaves_a_message_to_others_that_wait(queue: LocalQueue) -> None:
    """The thread that takes was woken for it, and takes none any more."""
    for _ in range(5):
        closing = LocalWorkers(queue, lambda _: None, workers=1)
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(queue.take, WAIT_S)
            block_until(lambda: len(queue._core.base.takers.line) == 2)
            queue.put(b"job")
            closing.close()
            if len(queue):  # the workers have not handled it
                item = taking.result()
                assert item is not None
                queue.complete(item)
            else:
                queue.put(b"next")
                assert taking.result() is not None
                queue.complete(taking.result())


def test_workers_that_become_full_leave_a_message_to_others_that_wait(queue: LocalQueue) -> None:
    """A key that is tried again fills the window while the thread that takes is in line."""
    tries, goes_on = [], threading.Event()

    def handle(message: Message) -> None:
        tries.append(message.key)
        if len(tries) < 3:  # one retry at once, and then it waits for its next one
            raise ValueError
        goes_on.wait(WAIT_S)

    with LocalWorkers(queue, handle, workers=1, by_key=True, window=1):
        queue.put(Message("", b"job", key="bad"))
        with ThreadPoolExecutor(1) as pool:
            block_until(lambda: len(tries) == 3)
            taking = pool.submit(queue.take, WAIT_S)
            queue.put(Message("", b"job", key="good"))
            item = taking.result()
            goes_on.set()
        assert item is not None
        assert item.key == "good"
        queue.complete(item)
