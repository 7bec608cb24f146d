"""Several messages of a partition are in hand: by key, in any order, in lists."""

import gc
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from support.delivery import Listener, Partition, expanding

from vq.client.consumer.deliver.tries import RETRY, Retry
from vq.client.consumer.deliver.workers import Workers
from vq.clock import ManualClock
from vq.errors import InvalidArgument, ListenerFailed
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until

KEYS = ["a", "b", "c", None, 7, b"d"]


@pytest.fixture
def four() -> Iterator[Workers]:
    workers = Workers(4, name="test")
    yield workers
    assert workers.close(WAIT_S)


class Gate:
    """A listener that keeps the messages with some contents until they are let go."""

    def __init__(self, *kept: int) -> None:
        self.kept = {number: threading.Event() for number in kept}
        self.calls: list[int] = []
        self.done: list[int] = []

    def __call__(self, message: Message) -> None:
        number = int(message.content)
        self.calls.append(number)
        if number in self.kept:
            assert self.kept[number].wait(WAIT_S)
        self.done.append(number)

    def let_go(self) -> None:
        for each in self.kept.values():
            each.set()


def test_messages_of_a_partition_are_side_by_side(four: Workers) -> None:
    together = threading.Barrier(4)
    partition = Partition(four, lambda _: together.wait(WAIT_S), mode="concurrent")
    partition.add(4)
    block_until(lambda: partition.delivery.delivered == 4)
    assert partition.delivery.position == partition.offset


def test_what_is_committed_is_the_lowest_unfinished_message(four: Workers) -> None:
    gate = Gate(1)
    partition = Partition(four, gate, mode="concurrent")
    chunk = partition.add(5)
    partition.add(5)
    block_until(lambda: len(gate.done) == 9)
    assert partition.delivery.progress()[:2] == (chunk.next_offset // 5, 1)
    gate.let_go()
    block_until(lambda: partition.delivery.delivered == 10)
    assert partition.delivery.progress()[:2] == (partition.offset, 10)


def test_the_messages_of_a_key_are_one_at_a_time_and_in_order(four: Workers) -> None:
    inside: defaultdict[Any, int] = defaultdict(int)
    most: defaultdict[Any, int] = defaultdict(int)
    order: defaultdict[Any, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def listener(message: Message) -> None:
        with lock:
            inside[message.key] += 1
            most[message.key] = max(most[message.key], inside[message.key])
            order[message.key].append(int(message.content))
        time.sleep(0.0002)
        with lock:
            inside[message.key] -= 1

    partition = Partition(four, listener, mode="keyed")
    for _ in range(10):
        partition.add(60, keys=KEYS)
    block_until(lambda: partition.delivery.delivered == 600)
    assert {key: count for key, count in most.items() if key is not None} == dict.fromkeys(
        (key for key in KEYS if key is not None), 1
    )
    assert most[None] > 1, "messages without a key stand by themselves"
    for key in set(KEYS) - {None}:
        assert order[key] == sorted(order[key])
    assert sum(map(len, order.values())) == 600


def test_a_key_waits_for_its_message_and_the_others_go_on(four: Workers) -> None:
    gate = Gate(0)
    partition = Partition(four, gate, mode="keyed")
    partition.add(12, keys=["a", "b", "c"])
    block_until(lambda: len(gate.done) == 8)
    assert gate.calls.count(0) == 1
    assert not {3, 6, 9} & set(gate.calls)
    gate.let_go()
    block_until(lambda: partition.delivery.delivered == 12)
    assert [each for each in gate.done if each % 3 == 0] == [0, 3, 6, 9]


@pytest.mark.parametrize("mode", ["keyed", "concurrent"])
def test_a_failed_message_comes_again_and_nothing_else_waits(four: Workers, mode: str) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: OSError("busy") if content == 0 and nth < 3 else None
    partition = Partition(four, listener, mode=mode, retry_backoff=(0.05, 0.1), max_attempts=9)
    partition.add(9, keys=["a", "b", "c"])
    block_until(lambda: partition.delivery.delivered == 9)
    assert listener.calls.count(0) == 3
    others = [each for each in listener.calls if each]
    assert sorted(others) == list(range(1, 9))
    last_try = len(listener.calls) - 1 - listener.calls[::-1].index(0)
    before = listener.calls[:last_try]
    if mode == "keyed":
        assert not {3, 6} & set(before)
        assert {1, 2, 4, 5, 7, 8} <= set(before)
    else:
        assert set(before) == set(range(9))


def test_of_several_messages_that_are_held_the_first_is_told(four: Workers) -> None:
    """With how many there are; when it is handled, the next one is."""
    works: set[bytes] = set()

    def listener(message: Message) -> None:
        if message.content in {b"1", b"2"} - works:
            raise OSError("busy")

    partition = Partition(four, listener, mode="keyed", retry_backoff=(0.001, 0.002))
    partition.add(4, keys=["a", "b", "c", "d"])
    first, second = partition.chunk(0).offset // 4, partition.offset // 2
    told = partition.told.errors
    block_until(lambda: told and told[-1].details["held"] == 2)
    count = len(told)
    block_until(lambda: len(told) > count + 10)
    assert {each.details["offset"] for each in told[count:]} == {first}
    works.add(b"1")
    block_until(lambda: told[-1].details["offset"] == second)
    assert told[-1].details["held"] == 1
    assert partition.told.went_on == 0
    works.add(b"2")
    block_until(lambda: partition.told.went_on == 1)
    assert partition.delivery.error is None


def test_a_held_message_is_told_until_it_is_handled(
    four: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    works = threading.Event()
    attempts: list[int] = []

    def listener(message: Message) -> None:
        if message.content == b"0":
            attempts.append(message.attempts)
            if not works.is_set():
                raise OSError("busy")

    partition = Partition(four, listener, mode="keyed", retry_backoff=(0.001, 0.002))
    partition.add(4, keys=["a", "b"])
    block_until(lambda: partition.told.errors)
    block_until(lambda: len(attempts) >= 5)
    assert partition.delivery.position == 0
    assert isinstance(partition.told.errors[0], ListenerFailed)
    told = {**partition.told.errors[0].details}
    assert told.pop("next_try_ms") >= 1_000 + 1
    assert told == {"offset": 0, "message_id": 1, "attempts": 3, "since_ms": 1_000, "held": 1}
    assert "what follows waits" in caplog.text
    works.set()
    block_until(lambda: partition.told.went_on == 1)
    block_until(lambda: partition.delivery.delivered == 4)
    assert attempts == list(range(1, len(attempts) + 1))
    assert partition.delivery.error is None


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
def test_a_listener_may_ask_for_its_message_again(workers: Workers, mode: str) -> None:
    tried: list[tuple[int, int]] = []

    asked = {1: RETRY, 2: Retry(after_s=0.001), 3: Retry}  # the class: the parentheses forgotten

    def listener(message: Message) -> object:
        tried.append((int(message.content), message.attempts))
        return asked.get(message.attempts) if message.content == b"1" else None

    partition = Partition(workers, listener, mode=mode)
    partition.add(3, keys=["a"])
    block_until(lambda: partition.delivery.delivered == 3)
    in_order = [(0, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    assert sorted(tried) == in_order
    assert mode == "concurrent" or tried == in_order


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
def test_a_message_is_skipped_after_its_attempts(workers: Workers, mode: str) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError("poison") if content == 1 else None
    partition = Partition(workers, listener, mode=mode, on_failure="skip")
    partition.add(4, keys=["a", "b"])
    block_until(lambda: partition.delivery.delivered == 4)
    assert sorted(listener.calls) == [0, 1, 1, 1, 2, 3]
    assert [each.message.content for each in partition.copied] == [b"1"]
    assert partition.delivery.position == partition.offset


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
def test_the_group_stops_at_a_message_after_its_attempts(workers: Workers, mode: str) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError("poison") if content == 1 else None
    partition = Partition(workers, listener, mode=mode, on_failure="stop", max_attempts=2)
    chunk = partition.add(4, keys=["a"])
    block_until(lambda: partition.told.stops)
    partition.stop()
    assert partition.stopped.wait(WAIT_S)
    assert "at offset" in str(partition.told.stops[0])
    assert partition.delivery.position == chunk.next_offset // 4
    assert listener.calls.count(1) == 2


def test_at_its_bound_the_window_takes_nothing_and_nothing_is_fetched(four: Workers) -> None:
    gate = Gate(0)
    partition = Partition(four, gate, mode="concurrent", window_messages=10)
    first, second = partition.add(6), partition.add(20)
    block_until(lambda: len(gate.done) == 9)
    assert sorted(gate.calls) == list(range(10))
    assert partition.consumed == first.size, "what is not taken counts in the buffer"
    gate.let_go()
    partition.commit_until(26)
    block_until(lambda: partition.consumed == first.size + second.size)


def test_the_window_is_bounded_in_bytes_too(four: Workers) -> None:
    """Of what a chunk expands to: here a thousandfold."""
    gate = Gate(0)
    content = [b"%d" % number + b" " * 40_000 for number in range(10)]
    partition = Partition(four, gate, mode="concurrent", window_bytes=64 * 1024)
    partition.delivery.add(expanding(content))
    block_until(lambda: len(gate.done) == 1)
    time.sleep(0.01)
    assert sorted(gate.calls) == [0, 1]
    gate.let_go()
    block_until(lambda: partition.delivery.delivered == 10)


@pytest.mark.parametrize("mode", ["keyed", "concurrent"])
def test_a_hand_over_waits_for_all_that_are_in_hand_and_for_no_other(
    four: Workers, mode: str
) -> None:
    gate = Gate(0, 1)
    partition = Partition(four, gate, mode=mode)
    chunk = partition.add(2)
    block_until(lambda: len(gate.calls) == 2)
    partition.add(10)
    block_until(lambda: len(gate.done) == 10)
    partition.stop()
    assert not partition.stopped.is_set()
    partition.add(3)
    gate.kept[1].set()
    time.sleep(0.01)
    assert not partition.stopped.is_set()
    assert partition.delivery.position == 0
    gate.let_go()
    assert partition.stopped.wait(WAIT_S)
    assert len(gate.calls) == 12
    assert partition.delivery.position > chunk.next_offset


def test_a_message_between_two_tries_stays_for_the_next_owner(four: Workers) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: OSError() if content == 1 else None
    partition = Partition(four, listener, mode="concurrent", retry_backoff=(60.0, 60.0))
    chunk = partition.add(3)
    block_until(lambda: len(listener.calls) == 3)
    partition.stop()
    assert partition.stopped.wait(WAIT_S), "nobody is in the listener"
    assert partition.delivery.position == chunk.next_offset // 3


def test_nothing_is_handed_out_once_the_permit_has_lapsed(workers: Workers) -> None:
    clock, calls = ManualClock(), []

    def handle(message: Message) -> None:
        calls.append(int(message.content))
        if len(calls) == 2:
            clock.advance(4.0)

    partition = Partition(workers, handle, mode="concurrent")
    partition.permit.now = clock.monotonic
    partition.permit.until = 3.0
    partition.add(5)
    block_until(lambda: partition.delivery.delivered == 2)
    assert calls == [0, 1]
    partition.permit.until = 100.0
    block_until(lambda: partition.delivery.delivered == 5)
    assert calls == [0, 1, 2, 3, 4]


def test_damage_is_fetched_again_and_what_is_in_hand_stays(four: Workers) -> None:
    gate = Gate(1)
    partition = Partition(four, gate, mode="concurrent")
    partition.add(3)
    block_until(lambda: len(gate.done) == 2)
    good = partition.chunk(2)
    partition.delivery.add(good._replace(body=good.body[:-1] + b"\xff"))
    block_until(lambda: partition.told.again)
    half = good.offset + len(good.body) // 2
    assert partition.told.again == [half]
    assert partition.delivery.position < good.offset
    partition.delivery.add(good._replace(offset=half, body=good.body[len(good.body) // 2 :]))
    gate.let_go()
    block_until(lambda: partition.delivery.delivered == 5)
    assert sorted(gate.calls) == [0, 1, 2, 3, 4]
    block_until(lambda: partition.told.went_on == 1)


def test_a_long_backlog_does_not_keep_the_others_waiting(workers: Workers) -> None:
    order: list[int] = []

    def listener(message: Message) -> None:
        time.sleep(0.002)
        order.append(message.partition)

    first, second = (Partition(workers, listener, each, mode="concurrent") for each in range(2))
    first.add(100)
    second.add(2)
    block_until(lambda: len(order) == 102)
    assert 1 in order[:50]


@pytest.mark.parametrize("on_failure", ["hold", "skip"])
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("mode", ["keyed", "concurrent"])
def test_no_function_is_called_for_each_message_but_the_listener(
    mode: str, size: int, on_failure: str
) -> None:
    """What is done for each of them is done for a step of them at a time.

    With ``skip`` there is one call more: of what stands before the listener.
    """
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is not listener.__code__:
            calls[frame.f_code.co_name] += 1

    def listener(_: object) -> None:
        pass

    threading.setprofile(note)
    try:
        workers = Workers(1, name="test")
    finally:
        threading.setprofile(None)
    gc.collect()  # what other tests have left is not to end in that thread
    partition = Partition(workers, listener, mode=mode, batch_size=size, on_failure=on_failure)
    partition.add(5_000, keys=range(5_000))
    block_until(lambda: partition.delivery.delivered == 5_000)
    assert workers.close(WAIT_S)
    lists = 0 if size == 1 else 5_000 // size
    assert calls.pop("call", 0) == (0 if on_failure == "hold" else 5_000 // size)
    assert max(calls.values()) <= 200 + 4 * lists, calls.most_common(3)


# Lists --------------------------------------------------------------------------------------------
class Lists:
    """A listener of lists; fails for those with some contents."""

    def __init__(self, fail: Callable[[list[int]], object] = lambda numbers: None) -> None:
        self.calls: list[list[int]] = []
        self._fail = fail

    def __call__(self, messages: list[Message]) -> object:
        numbers = [int(message.content) for message in messages]
        self.calls.append(numbers)
        answer = self._fail(numbers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
def test_a_listener_may_get_lists(workers: Workers, mode: str) -> None:
    lists = Lists()
    partition = Partition(workers, lists, mode=mode, batch_size=4)
    partition.add(10, keys=["a"])
    block_until(lambda: partition.delivery.delivered == 10)
    assert lists.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_list_waits_for_more_messages_only_so_long(workers: Workers) -> None:
    """It goes over chunks; the last one stays short."""
    lists = Lists()
    partition = Partition(workers, lists, batch_size=4, batch_wait_ms=100.0)
    partition.add(3)
    partition.add(3)
    block_until(lambda: partition.delivery.delivered == 6)
    assert lists.calls == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
def test_the_messages_of_a_failed_list_are_tried_one_by_one(workers: Workers, mode: str) -> None:
    """So that only the bad one is skipped."""
    lists = Lists(lambda numbers: ValueError("poison") if 2 in numbers else None)
    partition = Partition(workers, lists, mode=mode, batch_size=4, on_failure="skip")
    partition.add(6, keys=["a"])
    block_until(lambda: partition.delivery.delivered == 6)
    assert lists.calls[0] == [0, 1, 2, 3]
    assert lists.calls.count([2]) == 2
    again = [each for each in lists.calls[1:] if len(each) == 1]
    assert sorted(again) == [[0], [1], [2], [2], [3]]
    if mode != "concurrent":
        assert lists.calls[1:] == [[0], [1], [2], [2], [3], [4, 5]]


def test_a_list_says_how_many_of_it_are_done(workers: Workers) -> None:
    lists = Lists(lambda numbers: Retry(done=2, after_s=0.0) if len(numbers) == 4 else None)
    partition = Partition(workers, lists, batch_size=4)
    partition.add(5)
    block_until(lambda: partition.delivery.delivered == 5)
    assert lists.calls == [[0, 1, 2, 3], [2], [3], [4]]


@pytest.mark.parametrize(
    "wrong",
    [{"after_s": -1.0}, {"after_s": "1"}, {"after_s": float("nan")}, {"done": -1}, {"done": True}],
)
def test_another_try_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Retry(**wrong)


@pytest.mark.parametrize("mode", ["orderly", "concurrent"])
def test_a_listener_may_change_its_list(four: Workers, mode: str) -> None:
    """What it takes out of it is handled when it returns, as the rest is."""
    seen: list[int] = []

    def listener(messages: list[Message]) -> None:
        while messages:
            seen.append(int(messages.pop().content))

    partition = Partition(four, listener, mode=mode, batch_size=4)
    partition.add(10)
    block_until(lambda: partition.delivery.delivered == 10)
    assert sorted(seen) == list(range(10))
    assert partition.delivery.position == partition.offset
