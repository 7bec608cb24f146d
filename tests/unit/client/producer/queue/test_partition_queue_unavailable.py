"""A partition's queue: messages that leave an unavailable partition, or come from one."""

import contextlib
import itertools

import pytest
from support.interrupts import Interrupted, Interrupter
from support.partition_line import Line, contents, numbers, outcomes, waited

from vq import errors
from vq.client.future import SendFuture
from vq.client.producer.queue import partition_queue
from vq.client.producer.queue.batch import is_diverted


def test_batches_that_are_certainly_not_stored_are_taken_apart() -> None:
    line = Line(batch_records=2, window=5)
    futures = line.submit(b"1", b"2", b"3", b"4", b"5", b"6")
    first, second, third = line.send()
    line.cut(first)
    line.refuse(second, errors.Busy("later"))
    line.refuse(third, errors.Busy("later"))
    line.submit(b"7")
    line.queue.take_apart()
    assert [item.content for item in line.queue.pending] == [b"3", b"4", b"5", b"6", b"7"]
    assert list(line.queue.in_flight) == [first], "it may be stored"
    line.now += 10
    again = line.send()
    assert [contents(batch) for batch in again] == [
        [b"1", b"2"],
        [b"3", b"4"],
        [b"5", b"6"],
        [b"7"],
    ]
    assert numbers(again) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert outcomes(futures) == ["pending"] * 6
    for batch in again:
        line.queue.on_stored(batch, 0)
    found = line.meter.read()
    assert (found.messages_stored, found.bytes_stored) == (7, 7), "each message counts once"
    assert (found.batches_stored, found.mean_batch_messages) == (4, 7 / 4)


def test_a_batch_in_front_of_one_that_may_be_stored_stays() -> None:
    line = Line(batch_records=1, window=5)
    line.submit(b"1", b"2")
    first, second = line.send()
    line.refuse(first, errors.Busy("later"))
    line.queue.take_apart()
    assert list(line.queue.in_flight) == [first, second]


def test_refused_messages_leave_and_others_stay() -> None:
    line = Line()
    one, two, three = line.submit(b"1", b"2", b"3")
    line.queue.refuse([one, three], errors.PartitionUnavailable("away"))
    assert line.queue.pending == [two]
    assert outcomes([one, three]) == ["PartitionUnavailable"] * 2
    assert outcomes([two]) == ["pending"]
    assert line.ended == [(2, 2)]


def test_a_message_of_another_partition_is_told_that_it_was_diverted() -> None:
    line = Line(batch_records=10)
    own, spread, diverted = line.submit(b"1", b"2", b"3")
    own.partition, diverted.partition = 3, 1
    blocking = waited(line)
    blocking.partition, blocking.dealt = 1, True
    line.queue.has_diverted = True
    (batch,) = line.send()
    assert not line.queue.has_diverted, "none is pending"
    line.queue.on_stored(batch, 88)
    results = [future.result(0) for future in (own, spread, diverted, blocking)]
    assert [result.diverted for result in results] == [False, False, True, False]
    assert [result.partition for result in results] == [3] * 4


def test_each_message_is_looked_at_once_while_diverted_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a look at all that wait, each batch would cost as much as the whole line."""
    looks: list[SendFuture] = []

    def counted(item: SendFuture, partition: int) -> bool:
        looks.append(item)
        return is_diverted(item, partition)

    monkeypatch.setattr(partition_queue, "is_diverted", counted)
    line = Line(batch_records=10, window=1)
    *_, diverted = futures = line.submit(*[b"x"] * 500)
    diverted.partition = 1
    line.queue.has_diverted = True
    while batches := line.send():
        line.queue.on_stored(batches[0], 88)
    assert diverted.result(0).diverted
    assert len(looks) == len(futures)


def test_a_message_is_told_that_it_was_diverted_wherever_its_sending_is_interrupted() -> None:
    for place in itertools.count():
        line = Line()
        (diverted,) = line.submit(b"1")
        diverted.partition = 1
        line.queue.has_diverted = True
        interrupter = Interrupter(place, "partition_queue.py")
        with contextlib.suppress(Interrupted):
            interrupter.run(line.send)
        line.send()
        (batch,) = line.queue.in_flight
        line.queue.on_stored(batch, 88)
        assert diverted.result(0).diverted, interrupter.reached
        if not interrupter.reached:
            break
    assert place > 10


def test_a_batch_of_a_thread_does_not_hide_what_the_sender_diverts_meanwhile() -> None:
    """The sender marks the queue, and then moves messages to it: the batch may be made between."""
    line = Line()
    blocking = waited(line)
    items = line.queue.claim(blocking)
    assert items
    line.queue.has_diverted = True
    line.queue.batch_of(items, [1])
    (diverted,) = line.submit(b"1")
    diverted.partition = 1
    line.queue.leave()
    batches = [*line.queue.in_flight]
    line.queue.on_stored(batches[0], 88)
    (batch,) = line.send()
    line.queue.on_stored(batch, 90)
    assert diverted.result(0).diverted


def test_a_thread_does_not_lead_where_its_message_was_moved_to() -> None:
    line = Line()
    future = waited(line)
    future.partition = 1
    line.queue.owner = "sender"
    assert line.queue.leave(), "the sender has work here"
    assert line.queue.owner is None


def test_a_blocking_send_whose_batch_is_taken_apart_is_sent_by_the_loop() -> None:
    line = Line()
    future = waited(line)
    (batch,) = line.send()
    future.leads = True
    line.refuse(batch, errors.Busy("later"))
    line.queue.take_apart()
    assert line.queue.pending == [future]
    assert not future.leads
