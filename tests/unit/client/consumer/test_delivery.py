"""Listeners: called in order, by one thread a partition, and by whom after an error."""

import asyncio
import gc
import math
import os
import threading
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.delivery import Told, endless
from support.threads import in_thread
from support.waiting import WAIT_S, block_until

from vq import limits
from vq.client.config import ConsumerConfig, OnListenerError
from vq.client.consumer import decode
from vq.client.consumer import delivery as deliveries
from vq.client.consumer.delivery import Progress, ThreadDelivery, Workers, _Place
from vq.client.consumer.fetcher import Chunk
from vq.client.runtime import LoopThread
from vq.clock import ManualClock
from vq.errors import CorruptData, ListenerFailed
from vq.model import Message, TopicPartition
from vq.store.compression import compress
from vq.store.format import COMPRESSION_ZLIB
from vq.store.record import encode_record


class Partition:
    """A line of chunks of one partition; message contents are numbers from 0."""

    def __init__(
        self, workers: Workers, listener: Callable[[Message], Any], number: int = 0, **settings: Any
    ) -> None:
        self.offset = 0
        self.count = 0
        self.told = Told()
        self.permit = endless()
        self.stopped = threading.Event()
        config = ConsumerConfig(
            **{"group": "g", "listener_backoff_s": 0.001, "listener_retries": 2, **settings}
        )
        self.delivery = ThreadDelivery(
            TopicPartition("t", number),
            0,
            listener,
            config,
            hooks=self.told.hooks,
            workers=workers,
            permit=self.permit,
        )

    @property
    def consumed(self) -> int:
        return self.told.consumed

    def chunk(self, count: int, *, picked: bool = False, gap: int = 0) -> Chunk:
        """The next ``count`` messages; with ``picked`` as a filtered answer, ``gap`` bytes long."""
        begin, offsets, body = self.offset, [], b""
        for _ in range(count):
            record = encode_record(self.count + 1, b"%d" % self.count)
            offsets.append(self.offset)
            self.offset += len(record)
            self.count += 1
            body += record
        self.offset += gap
        return Chunk(begin, self.offset, body, offsets if picked else None)

    def add(self, count: int, **how: Any) -> Chunk:
        chunk = self.chunk(count, **how)
        self.delivery.add(chunk)
        return chunk

    def stop(self) -> None:
        self.delivery.stop(self.stopped.set)


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, name="test")
    yield workers
    assert workers.close(WAIT_S)


class Listener:
    """Notes what it was called with, and by which thread; raises what it is told to."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.threads: dict[int, set[int]] = defaultdict(set)
        self.fail: Callable[[int, int], BaseException | None] = lambda content, nth: None

    def __call__(self, message: Message) -> None:
        content = int(message.content)
        self.calls.append(content)
        self.threads[message.partition].add(threading.get_ident())
        error = self.fail(content, self.calls.count(content))
        if error is not None:
            raise error


def test_messages_come_in_order_over_many_chunks(workers: Workers) -> None:
    listener = Listener()
    partition = Partition(workers, listener)
    chunks = [partition.add(count) for count in (1, 5, 0, 20, 1)]
    block_until(lambda: partition.delivery.delivered == 27)
    assert listener.calls == list(range(27))
    block_until(lambda: partition.consumed == sum(chunk.size for chunk in chunks))
    assert partition.delivery.position == partition.offset


def test_the_position_passes_what_a_filter_left_out(workers: Workers) -> None:
    partition = Partition(workers, Listener())
    partition.add(2, picked=True, gap=1_000)
    block_until(lambda: partition.delivery.position == partition.offset)
    partition.add(0, picked=True, gap=500)
    block_until(lambda: partition.delivery.position == partition.offset)
    assert partition.delivery.delivered == 2


def test_progress_names_the_last_message_that_was_handled(workers: Workers) -> None:
    """Inside a chunk, behind it, and behind chunks without a message: ids count from 1 here."""
    seen: list[tuple[int, int | None]] = []
    partition = Partition(workers, lambda _: seen.append(partition.delivery.progress()))
    assert partition.delivery.progress() == (0, None)
    first, second = partition.add(2), partition.add(1)
    block_until(lambda: partition.consumed == first.size + second.size)
    half = first.next_offset // 2
    assert seen == [(0, None), (half, 1), (first.next_offset, 2)]
    assert partition.delivery.progress() == (second.next_offset, 3)
    partition.add(0, picked=True, gap=100)
    block_until(lambda: partition.delivery.position == partition.offset)
    assert partition.delivery.progress() == (partition.offset, 3)


def test_a_partition_is_in_one_thread_at_a_time() -> None:
    workers = Workers(4, name="test")
    inside: set[int] = set()
    overlaps = []
    order: dict[int, list[int]] = defaultdict(list)

    def listener(message: Message) -> None:
        if message.partition in inside:
            overlaps.append(message)
        inside.add(message.partition)
        time.sleep(0)
        order[message.partition].append(int(message.content))
        inside.discard(message.partition)

    partitions = [Partition(workers, listener, number) for number in range(6)]
    for _ in range(20):
        for partition in partitions:
            partition.add(10)
    block_until(lambda: all(each.delivery.delivered == 200 for each in partitions))
    assert not overlaps
    assert all(order[number] == list(range(200)) for number in range(6))
    assert workers.close(WAIT_S)


def test_different_partitions_may_be_side_by_side() -> None:
    workers = Workers(2, name="test")
    both = threading.Barrier(2)
    partitions = [Partition(workers, lambda _: both.wait(WAIT_S), number) for number in range(2)]
    for partition in partitions:
        partition.add(1)
    block_until(lambda: all(each.delivery.delivered == 1 for each in partitions))
    assert workers.close(WAIT_S)


def test_a_long_backlog_does_not_keep_the_others_waiting(workers: Workers) -> None:
    """After each chunk the others have their turn, though the next one is there already."""
    order: list[int] = []
    begin = threading.Event()

    def listener(message: Message) -> None:
        begin.wait(WAIT_S)
        order.append(message.partition)

    first, second = (Partition(workers, listener, number) for number in range(2))
    for _ in range(5):
        first.add(2)
    second.add(2)
    begin.set()
    block_until(lambda: len(order) == 12)
    assert order == [0, 0, 1, 1, *[0] * 8]


# Errors -------------------------------------------------------------------------------------------
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

    monkeypatch.setattr(deliveries.logger, "exception", raising)
    monkeypatch.setattr(deliveries.logger, "warning", raising)
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
    partition = Partition(workers, listener, on_listener_error=OnListenerError.SKIP)
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


def test_pauses_double_up_to_their_bound(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "_BACKOFF_MAX_S", 0.005)
    pauses: list[float] = []
    later = workers.submit_later

    def submit_later(delivery: ThreadDelivery, pause_s: float) -> None:
        pauses.append(pause_s)
        later(delivery, pause_s)

    monkeypatch.setattr(workers, "submit_later", submit_later)
    listener = Listener()
    listener.fail = lambda content, nth: ValueError() if nth <= 5 else None
    partition = Partition(workers, listener)
    partition.add(2)
    block_until(lambda: partition.delivery.delivered == 2)
    assert pauses == [0.001, 0.002, 0.004, 0.005, 0.005] * 2


def test_skip_goes_on_after_so_many_tries(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError("poison") if content in {1, 2} else None
    partition = Partition(workers, listener, on_listener_error=OnListenerError.SKIP)
    partition.add(4)
    block_until(lambda: partition.delivery.delivered == 4)
    assert listener.calls == [0, 1, 1, 1, 2, 2, 2, 3]
    assert "listener raised, message skipped partition=t-0 tries=3" in caplog.text
    assert partition.delivery.position == partition.offset


def test_skip_without_retries_skips_at_once(workers: Workers) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError()
    partition = Partition(
        workers, listener, on_listener_error=OnListenerError.SKIP, listener_retries=0
    )
    partition.add(3)
    block_until(lambda: partition.delivery.delivered == 3)
    assert listener.calls == [0, 1, 2]


def test_a_message_that_always_fails_holds_up_its_partition_alone(workers: Workers) -> None:
    """Even with a single thread for all."""
    poisoned, healthy = Listener(), Listener()
    poisoned.fail = lambda content, nth: ValueError("poison")
    first = Partition(workers, poisoned, 0, listener_backoff_s=60.0)
    second = Partition(workers, healthy, 1)
    first.add(2)
    block_until(lambda: poisoned.calls == [0])
    second.add(3)
    block_until(lambda: second.delivery.delivered == 3)
    assert poisoned.calls == [0]
    assert first.delivery.position == 0
    first.stop()
    assert first.stopped.is_set(), "it waits for its next try: nobody is in the listener"


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
    assert partition.delivery.progress() == (4 * size, 4)
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


# The permit ---------------------------------------------------------------------------------------
def test_nothing_is_handed_out_once_the_permit_has_lapsed(workers: Workers) -> None:
    """Also in the middle of a chunk: here the process stands still while the listener works."""
    partition = Partition(workers, lambda message: handle(message))
    clock = ManualClock()
    partition.permit.now = clock.monotonic
    partition.permit.until = 3.0
    calls: list[int] = []

    def handle(message: Message) -> None:
        calls.append(int(message.content))
        if len(calls) == 2:
            clock.advance(4.0)

    partition.add(5)
    block_until(lambda: partition.delivery.delivered == 2)
    partition.add(1)
    other = Partition(workers, lambda _: None, 1)
    other.add(1)
    block_until(lambda: other.delivery.delivered == 1)
    assert calls == [0, 1]
    assert partition.delivery.position == 2 * len(encode_record(1, b"0")), "what was done, was"
    partition.permit.until = 10.0
    block_until(lambda: partition.delivery.delivered == 6)
    assert calls == [0, 1, 2, 3, 4, 5]


def test_a_partition_whose_permit_has_lapsed_can_be_given_up(workers: Workers) -> None:
    listener = Listener()
    partition = Partition(workers, listener)
    partition.permit.until = -1.0
    partition.add(3)
    block_until(lambda: partition.delivery._place is _Place.PAUSED)
    partition.stop()
    assert partition.stopped.wait(WAIT_S)
    partition.permit.until = math.inf
    assert listener.calls == []
    assert partition.delivery.position == 0


# Stopping -----------------------------------------------------------------------------------------
def test_stopping_an_idle_partition_is_done_at_once(workers: Workers) -> None:
    partition = Partition(workers, Listener())
    partition.stop()
    assert partition.stopped.is_set()
    partition.add(1)
    assert partition.delivery.delivered == 0


def test_stopping_does_not_wait_for_the_listener_of_another_partition(workers: Workers) -> None:
    """Nothing runs for the one that is in line, so it may be another member's at once."""
    leave = threading.Event()
    slow = Partition(workers, lambda _: leave.wait(WAIT_S))
    waiting = Partition(workers, Listener(), 1)
    slow.add(1)
    waiting.add(1)
    waiting.stop()
    assert waiting.stopped.is_set()
    slow.stop()
    leave.set()
    assert slow.stopped.wait(WAIT_S)
    assert waiting.delivery.delivered == 0


@pytest.mark.parametrize("picked", [False, True])
def test_stopping_waits_for_the_listener_and_delivers_nothing_further(
    workers: Workers, picked: bool
) -> None:
    inside, leave = threading.Event(), threading.Event()
    calls = []

    def listener(message: Message) -> None:
        calls.append(message)
        inside.set()
        leave.wait(WAIT_S)

    partition = Partition(workers, listener)
    partition.add(5, picked=picked)
    partition.add(5, picked=picked)
    assert inside.wait(WAIT_S)
    partition.stop()
    assert not partition.stopped.is_set()
    leave.set()
    assert partition.stopped.wait(WAIT_S)
    assert len(calls) == 1
    assert partition.delivery.position == calls[0].next_offset, "the one in hand counts"


def test_stopping_between_two_tries_leaves_the_message_for_the_next_owner(
    workers: Workers,
) -> None:
    listener = Listener()
    listener.fail = lambda content, nth: ValueError() if content == 1 else None
    partition = Partition(workers, listener, listener_backoff_s=0.001)
    partition.add(3)
    block_until(lambda: listener.calls.count(1) >= 3)
    partition.stop()
    assert partition.stopped.wait(WAIT_S)
    calls = len(listener.calls)
    assert partition.delivery.delivered == 1
    assert partition.delivery.position == len(encode_record(1, b"0"))
    other = Partition(workers, Listener(), 1)
    other.add(1)
    block_until(lambda: other.delivery.delivered == 1)
    assert len(listener.calls) == calls


def test_stops_that_race_with_deliveries_are_always_told() -> None:
    workers = Workers(3, name="test")
    listener = Listener()
    listener.fail = lambda content, nth: ValueError() if content % 3 == 0 and nth == 1 else None
    for round_ in range(200):
        listener.calls.clear()
        partition = Partition(workers, listener, listener_backoff_s=0.0001)
        partition.add(4)
        if round_ % 2:
            partition.add(2)
        partition.stop()
        assert partition.stopped.wait(WAIT_S)
        count = partition.delivery.delivered
        ends = [0]
        for number in range(6):
            ends.append(ends[-1] + len(encode_record(1, b"%d" % number)))
        assert partition.delivery.position == ends[count]
    assert workers.close(WAIT_S)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_listener_that_forks_is_called_no_more_in_the_child(workers: Workers) -> None:
    """The child is a copy of the thread, in the middle of a chunk; the parent handles the rest."""
    runtime = LoopThread("test")
    runtime.on_loss(forked=workers.forsake, ended=lambda _: None)
    read, write = os.pipe()
    child = 0

    def listener(message: Message) -> None:
        nonlocal child
        os.write(write, message.content)
        if message.content == b"1":
            child = os.fork()

    partition = Partition(workers, listener)
    try:
        partition.add(4)
        block_until(lambda: partition.delivery.delivered == 4)
        block_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
        assert os.read(read, 100) == b"0123"
    finally:
        runtime.stop()
        os.close(read)
        os.close(write)


def test_closing_tells_when_a_listener_does_not_return() -> None:
    workers = Workers(1, name="test")
    inside, leave = threading.Event(), threading.Event()

    def listener(_: Message) -> None:
        inside.set()
        leave.wait(WAIT_S)

    Partition(workers, listener).add(1)
    assert inside.wait(WAIT_S)
    assert not workers.close(0.01)
    leave.set()
    assert workers.close(WAIT_S)


def test_workers_know_their_own_threads(workers: Workers) -> None:
    seen: list[bool] = []
    Partition(workers, lambda _: seen.append(workers.is_current)).add(1)
    block_until(lambda: seen)
    assert (seen, workers.is_current) == ([True], False)


# Compressed messages ------------------------------------------------------------------------------
def expanding(contents: list[bytes]) -> Chunk:
    """A chunk of compressed messages."""
    body = b"".join(
        encode_record(number, compress(content, COMPRESSION_ZLIB), None, None, COMPRESSION_ZLIB)
        for number, content in enumerate(contents, 1)
    )
    return Chunk(0, len(body), body, None)


def test_what_a_chunk_expands_to_does_not_fill_the_memory(workers: Workers) -> None:
    """Neither while the listener works, nor while it is waited for; 40 MiB come of 180 KB."""
    sizes: list[int] = []
    partition = Partition(workers, lambda message: sizes.append(len(message.content)))
    chunk = expanding([bytes(limits.MESSAGE_BYTES_MAX)] * 40)
    tracemalloc.start()
    try:
        partition.delivery.add(chunk)
        block_until(lambda: partition.consumed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sizes == [limits.MESSAGE_BYTES_MAX] * 40
    assert peak < 12 * limits.MIB
    assert partition.delivery._decoder._data == b""


def test_what_a_listener_raised_keeps_no_messages(
    workers: Workers, caplog: pytest.LogCaptureFixture
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
        Partition(workers, listener, number, listener_backoff_s=WAIT_S * 10)
        for number in range(count)
    ]
    tracemalloc.start()
    try:
        for number, partition in enumerate(partitions):
            partition.delivery.add(chunk)
            block_until(lambda partition=partition: partition.told.errors)
            block_until(lambda partition=partition: partition.delivery._place is _Place.PAUSED)
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
    pause = deliveries.Workers.submit_later

    def noted(self: Workers, delivery: ThreadDelivery, pause_s: float) -> None:
        kept.append(len(delivery._messages))
        pause(self, delivery, pause_s)

    monkeypatch.setattr(deliveries.Workers, "submit_later", noted)
    partition.delivery.add(expanding([b"%d" % number for number in range(20)]))
    block_until(lambda: partition.consumed)
    expected = [*range(failing), *[failing] * 3, *range(failing + 1, 20)]
    assert listener.calls == expected
    assert kept == [0, 0]
    assert partition.delivery.progress().message_id == 20
    assert partition.delivery.error is None


def test_progress_names_its_message_in_any_step(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "STEP_BYTES", 5)
    told: list[tuple[int, int | None]] = []
    ends: list[int] = []

    def listener(message: Message) -> None:
        told.append(tuple(partition.delivery.progress()))
        ends.append(message.next_offset)

    partition = Partition(workers, listener)
    partition.delivery.add(expanding([b"%d" % number for number in range(20)]))
    block_until(lambda: partition.consumed)
    assert told == [(0, None), *zip(ends[:-1], range(1, 20), strict=True)]


@pytest.mark.parametrize("busy", [False, True])
def test_what_is_called_at_a_stop_may_call_back_in(workers: Workers, busy: bool) -> None:
    """It asks how far the partition was handled, say: nothing is locked meanwhile."""
    entered, let_go = threading.Event(), threading.Event()

    def listener(_: Message) -> None:
        entered.set()
        assert let_go.wait(WAIT_S)

    partition = Partition(workers, listener)
    progress: list[Progress] = []

    def stopped() -> None:
        progress.append(partition.delivery.progress())
        partition.delivery.add(partition.chunk(1))
        partition.delivery.stop(partition.stopped.set)

    if busy:
        partition.add(2)
        assert entered.wait(WAIT_S)
    with in_thread(lambda: partition.delivery.stop(stopped)) as stopping:
        let_go.set()
        stopping.result(WAIT_S)
    assert partition.stopped.wait(WAIT_S)
    assert [each.position for each in progress] == [partition.delivery.position]
    assert partition.delivery.delivered == busy


@pytest.mark.parametrize("number", range(8))  # which thread hears of the retry is up to the kernel
def test_a_retry_does_not_wait_for_the_listener_of_another_partition(number: int) -> None:
    """Both threads are free when the message fails; one of them is taken by the other partition."""
    workers = Workers(2, name="test")
    failing, reached, go_on = Listener(), threading.Event(), threading.Event()
    failing.fail = lambda content, nth: ValueError("not now") if nth == 1 else None

    def long(_: Message) -> None:
        reached.set()
        go_on.wait(4 * WAIT_S)

    first = Partition(workers, failing, 0, listener_backoff_s=0.05)
    second = Partition(workers, long, 1)
    first.add(1)
    block_until(lambda: first.delivery._place is _Place.PAUSED)
    second.add(1)
    try:
        assert reached.wait(WAIT_S)
        block_until(lambda: failing.calls == [0, 0])
    finally:
        go_on.set()
        workers.close(WAIT_S)
