"""A partition's queue: cut connections, answers that come after the end, and the end itself."""

from collections.abc import Callable

import pytest
from support.partition_line import BACKOFF_S, Line, numbers, outcomes

from vq import errors
from vq.client.producer.queue.batch import Batch


def test_after_a_cut_everything_goes_out_again_in_order_with_the_same_stamps() -> None:
    line = Line(batch_records=1)
    line.submit(b"1", b"2")
    batches = line.send()
    line.cut(*batches)
    assert line.send() == [], "it waits a moment first"
    line.now += BACKOFF_S
    assert line.send() == batches
    assert numbers(batches) == [(0, 0), (0, 1)]


def test_pauses_double_up_to_their_bound_and_begin_anew_after_a_success() -> None:
    line = Line()
    pauses = []
    line.submit(b"1")
    (batch,) = line.send()
    for _ in range(4):
        line.cut(batch)
        pauses.append(line.queue.retry_at - line.now)
        line.now = line.queue.retry_at
        assert line.send() == [batch]
    assert pauses == [0.5, 1.0, 2.0, 2.0]
    line.queue.on_stored(batch, 88)
    line.submit(b"2")
    (batch,) = line.send()
    line.cut(batch)
    assert line.queue.retry_at - line.now == BACKOFF_S


@pytest.mark.parametrize(
    "answer",
    [
        lambda line, batch: line.queue.on_stored(batch, 88),
        lambda line, batch: line.refuse(batch, errors.Busy()),
        lambda line, batch: line.refuse(batch, errors.MessageTooLarge()),
        lambda line, batch: line.refuse(batch, errors.SequenceGap()),
        lambda line, batch: line.cut(batch),
    ],
)
def test_answers_after_the_end_change_nothing(answer: Callable[[Line, Batch], None]) -> None:
    line = Line()
    sent = line.submit(b"1") + line.submit(b"2")
    (batch,) = line.send()
    waiting = line.submit(b"3")
    line.queue.close(errors.UnknownTopic("deleted"))
    assert outcomes(sent + waiting) == ["TimedOut", "TimedOut", "UnknownTopic"]
    told = list(line.ended)
    answer(line, batch)
    assert line.ended == told
    assert not line.queue.in_flight


def test_what_is_closed_says_why_and_not_that_its_deadline_has_passed() -> None:
    """A factory that is shut down ends messages long before their deadlines."""
    line = Line(batch_records=1)
    sent, refused = line.submit(b"1", b"2")
    batches = line.send()
    (waiting,) = line.submit(b"3")
    line.refuse(batches[1], errors.Busy())
    line.queue.close(errors.NotSent("the factory is shut down"))
    why = "the factory is shut down"
    expected = f"t-3: sent, and perhaps stored; no answer came before the end: {why} (status 48)"
    assert (type(sent.outcome), str(sent.outcome)) == (errors.TimedOut, expected)
    assert outcomes([refused, waiting]) == ["Busy", "NotSent"]
    assert str(waiting.outcome) == why
