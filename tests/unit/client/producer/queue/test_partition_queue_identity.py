"""A producer with an identity: it never numbers batches anew, and ends at its first failure."""

from typing import Any

import pytest
from support.partition_line import Line

from vq import errors
from vq.client.future import SendFuture
from vq.model import ProducerIdentity, ProducerStamp

IDENTITY: Any = ProducerIdentity(900, 4)


def line() -> Line:
    return Line(identity=IDENTITY, ordered=True)


def outcomes(futures: list[SendFuture]) -> list[type]:
    return [type(each.outcome) for each in futures]


def ended(made: Line) -> bool:
    """Whether what comes now fails, too, and is not sent."""
    [future] = made.submit(b"late")
    assert made.send() == []
    made.queue.fail_rest()
    return isinstance(future.outcome, errors.NotSent) and made.idle


def test_batches_have_the_identity_from_sequence_0() -> None:
    made = line()
    made.submit(b"1", b"2", b"3")
    assert [batch.stamp for batch in made.send()] == [
        ProducerStamp(900, 4, 0),
        ProducerStamp(900, 4, 1),
    ]


@pytest.mark.parametrize("error", [errors.UnknownProducer, errors.SequenceGap])
def test_a_gap_is_a_failure(error: type[errors.VqError]) -> None:
    """Another producer would begin its next epoch, which belongs to a later attempt here."""
    made = line()
    futures = made.submit(b"1", b"2", b"3")
    first, second = made.send()
    made.refuse(first, error("gap"))
    assert first.stamp == ProducerStamp(900, 4, 0)
    made.refuse(second, error("gap"))
    assert outcomes(futures) == [error, error, errors.TimedOut]  # it may be stored
    assert ended(made)


def test_a_later_producer_ends_it() -> None:
    made = line()
    futures = made.submit(b"1", b"2", b"3", b"4")
    first, second = made.send()
    made.queue.on_stored(first, 88)
    made.refuse(second, errors.ProducerFenced("a newer epoch"))
    assert outcomes(futures)[2:] == [errors.ProducerFenced] * 2
    assert ended(made)
    assert ended(made)


def test_a_lost_outcome_is_a_failure() -> None:
    made = line()
    futures = made.submit(b"1")
    [batch] = made.send()
    made.answer(batch, errors.SequenceStale("forgotten"))
    assert outcomes(futures) == [errors.SequenceStale]
    assert ended(made)


def test_what_is_sent_again_keeps_its_number() -> None:
    made = line()
    futures = made.submit(b"1", b"2", b"3")
    first, second = made.send()
    made.queue.on_unanswered([first, second], made.now)
    made.now += 10
    assert made.send() == [first, second]
    made.queue.on_stored(first, 88)
    made.queue.on_stored(second, 300)
    assert all(each.exception() is None for each in futures)
    made.submit(b"4")
    assert [batch.stamp.sequence for batch in made.send()] == [2]
