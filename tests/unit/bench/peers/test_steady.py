"""Senders that go on: their schedule, their bound, and what they say of outcomes."""

import pytest

from bench.peers.steady import Progress
from vq.cli.bench.workload import WorkFailed, content


def progress(in_flight: int = 2, rate: float = 1e9) -> Progress:
    return Progress(stream=3, size=16, in_flight=in_flight, rate=rate)


def test_no_more_messages_than_allowed_have_no_outcome() -> None:
    steady = progress(in_flight=2)
    assert steady.take() == (0, content(3, 0, 16))
    assert steady.is_due()
    steady.take()
    assert not steady.is_due()
    steady.done(0)
    assert steady.is_due()


def test_a_message_waits_for_its_turn_in_the_schedule() -> None:
    """The first one is due at once, the second one a thousand seconds later."""
    steady = progress(rate=0.001)
    steady.begin()
    assert steady.is_due()
    steady.take()
    assert not steady.is_due()


def test_an_outcome_that_stays_unknown_is_told_with_its_number() -> None:
    steady = progress()
    steady.take()
    steady.take()
    steady.done(1)
    steady.done(0, ValueError("gave up"))
    result = steady.result()
    assert (result["sent"], result["failed"], len(result["times"])) == (2, [0], 1)
    assert result["errors"] == ["ValueError: gave up"]


def test_a_message_without_outcome_is_no_result() -> None:
    steady = progress()
    steady.take()
    with pytest.raises(WorkFailed, match="1 messages had no outcome"):
        steady.result()
