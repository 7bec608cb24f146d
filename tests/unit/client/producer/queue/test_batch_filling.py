"""How full a batch is: what filled the last ones decides what is worth the next one."""

import math

import pytest

from vq.client.future import SendFuture
from vq.client.producer.queue.batch import Filling
from vq.store.records.format import RECORD_HEADER_BYTES


def filling_of(linger_s: float = 0.0) -> Filling:
    return Filling(2_000, 1_000, linger_s)


def test_at_first_a_batch_is_full_at_its_bound_in_messages() -> None:
    filling = filling_of()
    assert filling.candidates == 2_000
    assert filling.is_worth_a_frame(1_000)
    assert not filling.is_worth_a_frame(999)
    assert filling.are_few(249)
    assert not filling.are_few(250)


def test_a_batch_that_bytes_cut_shows_how_many_messages_fill_one() -> None:
    filling = filling_of()
    filling.note(100, cut=True)
    assert filling.is_worth_a_frame(50)
    assert filling.candidates == 133, "a few more than filled one"
    filling.note(120, cut=False)
    assert filling.full == 120, "messages may have become smaller"
    filling.note(3, cut=False)
    assert filling.full == 120


# Linger -------------------------------------------------------------------------------------------
def waiting(count: int = 1, size: int = 1, deadline: float = math.inf) -> list[SendFuture]:
    """Messages that were appended at 100, 101 …"""
    return [
        SendFuture(b"x" * size, None, None, deadline, appended_at=100.0 + number)
        for number in range(count)
    ]


def test_nothing_lingers_unless_it_is_set() -> None:
    assert filling_of().lingers_until(waiting(), 100.0) == 0.0


def test_a_batch_lingers_from_its_first_message_on() -> None:
    filling = filling_of(5.0)
    assert filling.lingers_until(waiting(3), 102.0) == 105.0
    assert filling.lingers_until(waiting(3), 104.9) == 105.0
    assert filling.lingers_until(waiting(3), 105.0) == 0.0


def test_a_full_batch_does_not_linger() -> None:
    filling = filling_of(5.0)
    fits = 1_000 - RECORD_HEADER_BYTES
    assert filling.lingers_until(waiting(1, fits - 1), 100.0) == 105.0
    assert filling.lingers_until(waiting(1, fits), 100.0) == 0.0
    count = 1_000 // RECORD_HEADER_BYTES
    assert filling.lingers_until(waiting(count - 1, 0), 100.0) == 105.0
    assert filling.lingers_until(waiting(count, 0), 100.0) == 0.0
    filling = Filling(2_000, 1_000_000, 5.0)
    assert filling.lingers_until(waiting(1_999, 0), 100.0) == 105.0
    assert filling.lingers_until(waiting(2_000, 0), 100.0) == 0.0


@pytest.mark.parametrize("number", [0, 2])
def test_a_batch_does_not_linger_when_somebody_waits_for_a_message(number: int) -> None:
    pending = waiting(3)
    pending[number].add_done_callback(lambda _: None)
    assert filling_of(5.0).lingers_until(pending, 102.0) == 0.0


def test_a_message_with_little_time_left_does_not_linger() -> None:
    filling = filling_of(5.0)
    pending = waiting(2) + waiting(1, deadline=107.0)
    assert filling.lingers_until(pending, 101.9) == 105.0
    assert filling.lingers_until(pending, 102.0) == 0.0
