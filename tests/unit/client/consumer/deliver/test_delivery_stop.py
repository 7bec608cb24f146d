"""A partition stops once its listener returned, and delivers nothing afterwards."""

import contextlib
import gc
import itertools
import logging
import math
import os
import threading
import weakref
from typing import Any

import pytest
from support.delivery import Listener, NotedWorkers, Partition
from support.interrupts import Interrupted, Interrupter
from support.threads import in_thread

from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.deliver.workers import Workers
from vq.model import Message
from vq.store.records.record import encode_record
from vq.testing.waiting import WAIT_S, block_until


def test_a_partition_whose_permit_has_lapsed_can_be_given_up(workers: NotedWorkers) -> None:
    listener = Listener()
    partition = Partition(workers, listener)
    partition.permit.until = -1.0
    partition.add(3)
    block_until(lambda: workers.has_left(partition.delivery))
    partition.stop()
    assert partition.stopped.wait(WAIT_S)
    partition.permit.until = math.inf
    assert listener.calls == []
    assert partition.delivery.position == 0


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
    partition = Partition(workers, listener, retry_backoff=(0.001, 30.0))
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


def failing(workers: Workers, mode: str) -> Partition:
    """Return a partition whose messages failed, and wait for an hour."""
    tried: list[int] = []

    def listener(message: Message) -> None:
        tried.append(int(message.content))
        raise ValueError

    settings = {"mode": mode, "retry_backoff": (3_600.0, 3_600.0), "on_failure": "hold"}
    partition = Partition(workers, listener, **settings)
    partition.add(5)
    block_until(lambda: len(tried) == (1 if mode == "orderly" else 5))
    return partition


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
def test_what_waits_for_its_next_try_is_not_kept(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The pause of a message of a partition that is another member's by then may be of days."""
    caplog.set_level(logging.CRITICAL, "vq")  # what is captured keeps the errors
    workers = Workers(1, name="test")

    def stopped() -> weakref.ref[Any]:
        partition = failing(workers, mode)
        partition.stop()
        assert partition.stopped.wait(WAIT_S)
        return weakref.ref(partition.delivery)

    delivery = stopped()

    def is_gone() -> bool:
        gc.collect()
        return delivery() is None

    block_until(is_gone)
    assert workers.close(WAIT_S)


def test_stops_that_race_with_deliveries_are_always_told() -> None:
    workers = Workers(3, name="test")
    listener = Listener()
    listener.fail = lambda content, nth: ValueError() if content % 3 == 0 and nth == 1 else None
    for round_ in range(200):
        listener.calls.clear()
        partition = Partition(workers, listener, retry_backoff=(0.0001, 30.0))
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


def test_a_close_that_is_interrupted_anywhere_may_be_repeated() -> None:
    """No lock stays taken: threads, and the loop that gives them work, would wait for it."""
    for place in itertools.count():
        workers = Workers(1, name="test")
        interrupter = Interrupter(place, "deliver/workers.py", f"{os.sep}threading.py")
        with contextlib.suppress(Interrupted):
            assert interrupter.run(lambda workers=workers: workers.close(WAIT_S))
        with in_thread(lambda workers=workers: workers.close(WAIT_S)) as closed:
            assert closed.result(WAIT_S), interrupter.reached
        if not interrupter.reached:
            break
    assert place > 5
