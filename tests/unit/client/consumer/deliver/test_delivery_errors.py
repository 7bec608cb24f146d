"""What a listener raises is tried again or skipped, and holds up its own partition alone."""

import asyncio
import gc
import itertools
import threading
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.delivery import Listener, NotedWorkers, Partition, expanding

from vq import limits
from vq.client.consumer.deliver import delivery as deliveries
from vq.client.consumer.deliver import failures
from vq.client.consumer.deliver import workers as threads
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.tries import Retry
from vq.client.consumer.deliver.workers import Workers
from vq.client.reading import decode
from vq.client.reading.chunk import Chunk
from vq.coordination.tree.values.group_terms import OnFailure
from vq.errors import CorruptData, ListenerFailed
from vq.model import Message
from vq.store.records.record import encode_record
from vq.testing.waiting import WAIT_S, block_until


class Odd(BaseException):
    """Neither an ``Exception``, nor able to say what it is."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


class Worse(BaseException):
    """One whose text cannot be had, and the attempt raises no ``Exception`` either."""

    def __repr__(self) -> str:
        raise GeneratorExit("no repr")


#: What user code may raise beside an ``Exception``: some libraries cancel with these.
ANYTHING = [
    ValueError("mine"),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    pytest.fail.Exception("failed"),
    Odd(),
    Worse(),
]


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
def test_retry_calls_again_until_it_succeeds(
    workers: Workers, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: error if content == 1 and nth <= 5 else None
    partition = Partition(workers, listener)
    partition.add(3)
    block_until(lambda: partition.delivery.delivered == 3)
    assert listener.calls == [0, 1, 1, 1, 1, 1, 1, 2]
    assert "tries=5" in caplog.text
    assert partition.delivery.position == partition.offset
    assert [type(each) for each in partition.told.errors] == [ListenerFailed] * 5
    assert partition.told.errors[0].__cause__ is error
    assert (partition.delivery.error, partition.told.went_on) == (None, 1)


@pytest.mark.slow
def test_a_retry_that_is_due_before_anybody_waits_for_it_comes(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: a nanosecond was left, and the wait begins some later."""
    seconds = (second for at in itertools.count() for second in (at, *[at + 1 - 1e-9] * 2, at + 1))
    monkeypatch.setattr(threads, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    left = iter(range(5_000))
    done = threading.Event()

    class Again:
        is_stopped = False

        def enter(self) -> bool:
            if next(left, None) is None:
                done.set()
            else:
                workers.put_later(cast("InTurn", self), 1.0)
            return False

    workers.put(cast("InTurn", Again()))
    assert done.wait(WAIT_S), f"{sum(1 for _ in left)} retries never came"


@pytest.mark.parametrize("error", ANYTHING, ids=lambda error: type(error).__name__)
def test_whatever_a_listener_raises_its_thread_lives_and_the_partition_can_be_given_up(
    workers: Workers, error: BaseException
) -> None:
    listener, healthy = Listener(), Listener()
    listener.fail = lambda content, nth: error
    first, second = Partition(workers, listener, 0), Partition(workers, healthy, 1)
    first.add(2)
    block_until(lambda: len(first.told.errors) >= 3)
    second.add(3)
    block_until(lambda: second.delivery.delivered == 3)
    first.stop()
    assert first.stopped.wait(WAIT_S)
    assert first.delivery.position == 0


def test_logging_that_raises_does_not_keep_a_partition_from_being_given_up(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter or handler of the application may have a bug, too."""

    def raising(*_: Any, **__: Any) -> None:
        raise GeneratorExit("a bug")

    monkeypatch.setattr(deliveries.logger, "error", raising)
    monkeypatch.setattr(failures.logger, "warning", raising)
    listener, healthy = Listener(), Listener()
    listener.fail = lambda content, nth: ValueError()
    first, second = Partition(workers, listener, 0), Partition(workers, healthy, 1)
    first.add(2)
    block_until(lambda: first.told.again)
    second.add(3)
    block_until(lambda: second.delivery.delivered == 3)
    first.stop()
    assert first.stopped.wait(WAIT_S)


def test_what_a_listener_raises_counts_as_a_try_of_skip_whatever_it_is(workers: Workers) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: asyncio.CancelledError() if content == 1 else None
    partition = Partition(workers, listener, on_failure=OnFailure.SKIP)
    partition.add(3)
    block_until(lambda: partition.delivery.delivered == 3)
    assert listener.calls == [0, 1, 1, 1, 2]
    assert (partition.delivery.error, partition.told.went_on) == (None, 1)


def test_that_a_partition_goes_on_is_told_before_the_rest_of_its_chunk(workers: Workers) -> None:
    """The rest may take a slow listener hours."""
    listener = Listener()
    listener.fail = lambda content, nth: ValueError() if (content, nth) == (1, 1) else None
    told: list[int] = []
    partition = Partition(workers, lambda message: (told.append(went_on()), listener(message)))

    def went_on() -> int:
        return partition.told.went_on

    partition.add(5)
    block_until(lambda: partition.delivery.delivered == 5)
    assert told == [0, 0, 0, 1, 1, 1]


def test_pauses_double_up_to_their_bound(workers: NotedWorkers) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError() if nth <= 5 else None
    partition = Partition(workers, listener, retry_backoff=(0.001, 0.005))
    partition.add(2)
    block_until(lambda: partition.delivery.delivered == 2)
    pauses = [pause_s for _, pause_s in workers.pauses]
    assert pauses == pytest.approx([0.001, 0.002, 0.004, 0.005, 0.005] * 2, rel=0.2)  # the jitter
    assert len(set(pauses)) == len(pauses)


def test_skip_goes_on_after_so_many_tries(workers: Workers) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError("poison") if content in {1, 2} else None
    partition = Partition(workers, listener, on_failure=OnFailure.SKIP)
    partition.add(4)
    block_until(lambda: partition.delivery.delivered == 4)
    assert listener.calls == [0, 1, 1, 1, 2, 2, 2, 3]
    assert [(each.message.content, each.failure.attempts) for each in partition.copied] == [
        (b"1", 3),
        (b"2", 3),
    ]
    assert [each.error for each in partition.copied] == [None, None], "it was logged before"
    assert partition.delivery.position == partition.offset


def test_messages_that_fail_for_one_cause_share_its_traceback(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes longer than all else about a failure; each of them has its line."""

    def listener(message: Message) -> None:
        if message.attempts == 1:
            raise ValueError(message.content) if int(message.content) % 2 else OSError("busy")

    partition = Partition(workers, listener, mode="concurrent")
    partition.add(20)
    block_until(lambda: partition.delivery.delivered == 20)
    lines = [each for each in caplog.records if "trying again" in each.message]
    assert len(lines) == 20
    assert [each.exc_info[0] for each in lines if each.exc_info] == [OSError, ValueError]


def test_the_traceback_is_logged_once_for_each_cause(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a message that is skipped at once, and of another cause at a later try."""
    listener = Listener()
    listener.fail = lambda content, nth: (ValueError if nth < 3 else KeyError)("poison")
    partition = Partition(workers, listener, on_failure=OnFailure.SKIP, max_attempts=4)
    partition.add(1)
    block_until(lambda: partition.delivery.delivered == 1)
    shown = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert shown == [ValueError, KeyError]
    caplog.clear()
    at_once = Partition(workers, listener, on_failure=OnFailure.SKIP, max_attempts=1)
    at_once.add(1)
    block_until(lambda: at_once.delivery.delivered == 1)
    assert not caplog.records
    [spent] = at_once.copied
    assert isinstance(spent.error, KeyError), "whoever copies it logs it"


def test_skip_without_retries_skips_at_once(workers: Workers) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError()
    partition = Partition(workers, listener, on_failure=OnFailure.SKIP, max_attempts=1)
    partition.add(3)
    block_until(lambda: partition.delivery.delivered == 3)
    assert listener.calls == [0, 1, 2]


def test_a_message_that_always_fails_holds_up_its_partition_alone(workers: Workers) -> None:
    """Even with a single thread for all."""
    poisoned, healthy = Listener(), Listener()
    poisoned.fail = lambda content, nth: ValueError("poison")
    first = Partition(workers, poisoned, 0, retry_backoff=(60.0, 60.0))
    second = Partition(workers, healthy, 1)
    first.add(2)
    block_until(lambda: poisoned.calls == [0])
    second.add(3)
    block_until(lambda: second.delivery.delivered == 3)
    assert poisoned.calls == [0]
    assert first.delivery.position == 0
    first.stop()
    assert first.stopped.is_set(), "it waits for its next try: nobody is in the listener"


def test_the_pauses_of_all_partitions_end_together(workers: Workers) -> None:
    """As the group has another policy; whatever was asked for before."""
    fails: list[int] = []

    def listener(message: Message) -> object:
        if message.attempts == 1:
            fails.append(message.partition)
            return Retry(after_s=WAIT_S * 10)
        return None

    made = [
        Partition(workers, listener, number, mode=mode)
        for number, mode in enumerate(("orderly", "keyed", "concurrent"))
    ]
    for each in made:
        each.add(1)
    block_until(lambda: sorted(fails) == [0, 1, 2])
    block_until(lambda: not any(each.delivery.is_entered for each in made))
    assert [each.delivery.delivered for each in made] == [0, 0, 0]
    workers.end_pauses()
    block_until(lambda: [each.delivery.delivered for each in made] == [1, 1, 1])


def test_a_bug_of_ours_is_said_and_the_chunk_is_fetched_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that fail a check may look like anything to code that takes them for sound."""
    first, second = Partition(workers, Listener(), 0), Partition(workers, Listener(), 1)

    def stumble() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(first.delivery._decoder, "more", stumble)
    chunk = first.add(1)
    second.add(1)
    block_until(lambda: second.delivery.delivered == 1 and first.told.again == [0])
    assert "a bug" in str(first.delivery.error)
    assert "a bug" in caplog.text
    first.delivery.add(chunk)
    block_until(lambda: first.delivery.delivered == 1)
    assert (first.delivery.error, first.told.went_on) == (None, 1)


def damage(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


@pytest.mark.parametrize("picked", [False, True])
def test_bytes_that_fail_a_check_are_fetched_again_and_nothing_else_is_taken(
    workers: Workers, picked: bool
) -> None:
    """From behind the last good message; as often as it takes, and told each time."""
    listener = Listener()
    partition = Partition(workers, listener)
    size = len(encode_record(1, b"0"))
    chunk = partition.chunk(4, picked=picked)
    bad = chunk._replace(body=damage(chunk.body, 2 * size + 20))
    partition.delivery.add(bad)
    block_until(lambda: partition.told.again == [2 * size])
    assert listener.calls == [0, 1]
    assert partition.delivery.position == 2 * size
    assert isinstance(partition.delivery.error, CorruptData)
    assert partition.consumed == 0
    partition.add(1)  # asked for before the damage was seen: the fetcher begins anew
    offsets = [2 * size, 3 * size] if picked else None
    again = Chunk(2 * size, 4 * size, chunk.body[2 * size :], offsets)
    partition.delivery.add(again._replace(body=damage(again.body, 20)))
    block_until(lambda: partition.told.again == [2 * size] * 2)
    assert [type(each) for each in partition.told.errors] == [CorruptData] * 2
    assert partition.told.went_on == 0
    partition.delivery.add(again)
    block_until(lambda: partition.delivery.delivered == 4)
    assert listener.calls == [0, 1, 2, 3]
    assert (partition.delivery.error, partition.told.went_on) == (None, 1)
    assert partition.delivery.progress()[:2] == (4 * size, 4)
    block_until(lambda: partition.consumed == again.size)
    partition.stop()
    assert partition.stopped.wait(WAIT_S)


def test_a_partition_that_waits_for_sound_bytes_can_be_given_up(workers: Workers) -> None:
    partition = Partition(workers, Listener())
    chunk = partition.chunk(1)
    partition.delivery.add(chunk._replace(body=damage(chunk.body, 20)))
    block_until(lambda: partition.told.again == [0])
    partition.stop()
    assert partition.stopped.wait(WAIT_S)
    partition.delivery.add(chunk)
    assert partition.delivery.delivered == 0


def test_what_a_listener_raised_keeps_no_messages(
    workers: NotedWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its frames nor those of what it came from; where it was raised is logged."""

    def unpack(message: Message) -> None:
        raise KeyError(message.offset)

    def listener(message: Message) -> None:
        try:
            unpack(message)
        except KeyError as error:
            raise ValueError("mine") from error

    count = 20
    chunk = expanding([bytes(limits.MIB)] * 3)
    partitions = [
        Partition(workers, listener, number, retry_backoff=(WAIT_S * 10, WAIT_S * 10))
        for number in range(count)
    ]
    tracemalloc.start()
    try:
        for number, partition in enumerate(partitions):
            partition.delivery.add(chunk)
            block_until(lambda partition=partition: partition.told.errors)
            block_until(lambda partition=partition: workers.has_left(partition.delivery))
            if not number:
                assert "in unpack" in caplog.text
            caplog.clear()  # it keeps what was logged, frames included, until it is told
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 2 * limits.MIB
    assert all(isinstance(each.told.errors[0].__cause__, ValueError) for each in partitions)


@pytest.mark.parametrize("failing", [0, 1, 4, 5, 6, 11, 19])
def test_a_listener_that_raises_in_any_step_is_tried_again_there(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """In order, none twice, none left out; no message is kept while it waits for its next try."""
    monkeypatch.setattr(decode, "STEP_BYTES", 5)
    listener = Listener()
    listener.fail = lambda content, nth: OSError() if content == failing and nth < 3 else None
    partition = Partition(workers, listener)
    kept: list[int] = []
    pause = Workers.put_later

    def noted(self: Workers, delivery: InTurn, pause_s: float, message: None = None) -> None:
        kept.append(len(delivery.window.messages))
        pause(self, delivery, pause_s, message)

    monkeypatch.setattr(Workers, "put_later", noted)
    partition.delivery.add(expanding([b"%d" % number for number in range(20)]))
    block_until(lambda: partition.consumed)
    expected = [*range(failing), *[failing] * 3, *range(failing + 1, 20)]
    assert listener.calls == expected
    assert kept == [0, 0]
    assert partition.delivery.progress().message_id == 20
    assert partition.delivery.error is None


@pytest.mark.parametrize("number", range(8))  # which thread hears of the retry is up to the kernel
def test_a_retry_does_not_wait_for_the_listener_of_another_partition(number: int) -> None:
    """Both threads are free when the message fails; one of them is taken by the other partition."""
    workers = NotedWorkers(2)
    failing, reached, go_on = Listener(), threading.Event(), threading.Event()
    failing.fail = lambda content, nth: ValueError("not now") if nth == 1 else None

    def long(_: Message) -> None:
        reached.set()
        go_on.wait(4 * WAIT_S)

    first = Partition(workers, failing, 0, retry_backoff=(0.05, 0.05))
    second = Partition(workers, long, 1)
    first.add(1)
    block_until(lambda: workers.has_left(first.delivery))
    second.add(1)
    try:
        assert reached.wait(WAIT_S)
        block_until(lambda: failing.calls == [0, 0])
    finally:
        go_on.set()
        workers.close(WAIT_S)


def test_of_many_messages_that_are_tried_again_a_few_are_logged_and_the_others_counted(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: OSError("busy") if nth == 1 else None
    partition = Partition(workers, listener, mode="concurrent", max_attempts=9)
    count = failures.LINES_PER_S + 7
    partition.add(count)
    block_until(lambda: partition.delivery.delivered == count)
    lines = [each for each in caplog.records if "trying again" in each.message]
    assert len(lines) == failures.LINES_PER_S
    partition.now_ms += 1_500
    partition.add(1)
    block_until(lambda: partition.delivery.delivered == count + 1)
    last = [each for each in caplog.records if "trying again" in each.message][-1]
    assert "left_out=7" in last.message
