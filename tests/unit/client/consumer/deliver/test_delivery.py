"""Listeners get the messages of a partition in order, from one thread at a time."""

import os
import threading
import time
import tracemalloc
from collections import defaultdict

import pytest
from support.delivery import Listener, Partition, expanding

from vq import limits
from vq.client.consumer.deliver.workers import Workers
from vq.client.reading import decode
from vq.client.runtime import LoopThread
from vq.clock import ManualClock
from vq.model import Message
from vq.store.records.record import encode_record
from vq.testing.waiting import WAIT_S, block_until


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
    partition = Partition(workers, lambda _: seen.append(partition.delivery.progress()[:2]))
    assert partition.delivery.progress()[:2] == (0, None)
    first, second = partition.add(2), partition.add(1)
    block_until(lambda: partition.consumed == first.size + second.size)
    half = first.next_offset // 2
    assert seen == [(0, None), (half, 1), (first.next_offset, 2)]
    assert partition.delivery.progress()[:2] == (second.next_offset, 3)
    partition.add(0, picked=True, gap=100)
    block_until(lambda: partition.delivery.position == partition.offset)
    assert partition.delivery.progress()[:2] == (partition.offset, 3)


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


def test_workers_know_their_own_threads(workers: Workers) -> None:
    seen: list[bool] = []
    Partition(workers, lambda _: seen.append(workers.is_current)).add(1)
    block_until(lambda: seen)
    assert (seen, workers.is_current) == ([True], False)


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


def test_progress_names_its_message_in_any_step(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "STEP_BYTES", 5)
    told: list[tuple[int, int | None]] = []
    ends: list[int] = []

    def listener(message: Message) -> None:
        told.append(tuple(partition.delivery.progress()[:2]))
        ends.append(message.next_offset)

    partition = Partition(workers, listener)
    partition.delivery.add(expanding([b"%d" % number for number in range(20)]))
    block_until(lambda: partition.consumed)
    assert told == [(0, None), *zip(ends[:-1], range(1, 20), strict=True)]
