"""A partition's queue: what the broker refuses, for now or for good."""

import pytest
from support.partition_line import BACKOFF_S, Line, numbers, outcomes

from vq import errors
from vq.model import Address


@pytest.mark.parametrize(
    "error", [errors.Busy(), errors.NotMaster(), errors.DiskFull(), errors.UnknownTopic()]
)
def test_what_may_pass_later_is_sent_again_with_its_stamp(error: errors.VqError) -> None:
    line = Line()
    sent = line.submit(b"1")
    (batch,) = line.send()
    line.refuse(batch, error)
    assert outcomes(sent) == ["pending"]
    line.now += BACKOFF_S
    assert line.send() == [batch]
    assert numbers([batch]) == [(0, 0)]


def test_a_final_refusal_is_told_and_the_rest_goes_on_under_the_next_epoch() -> None:
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.refuse(first, errors.MessageTooLarge("too large"))
    assert outcomes(sent) == ["MessageTooLarge", "pending", "pending"]
    assert not second.sent, "it cannot be stored as it was sent: one is missing before it"
    assert line.send() == [second, third]
    assert numbers([second, third]) == [(1, 0), (1, 1)]


def test_a_final_refusal_waits_for_its_elders() -> None:
    """Until they are settled nothing passes the hole."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.refuse(second, errors.PermissionRefused("no"))
    line.refuse(third, errors.SequenceGap())
    assert outcomes(sent) == ["pending", "pending", "pending"]
    line.now += BACKOFF_S
    assert line.send() == []
    line.queue.on_stored(first, 88)
    assert outcomes(sent) == ["SendResult", "PermissionRefused", "pending"]
    assert line.send() == [third]
    assert numbers([third]) == [(0, 1)], "both were refused, so no copy is under way"


def test_a_gap_behind_an_elder_without_an_answer_waits_for_it() -> None:
    line = Line(batch_records=1)
    line.submit(b"1", b"2")
    first, second = line.send()
    line.refuse(first, errors.Busy())
    line.refuse(second, errors.SequenceGap())
    line.now = line.queue.retry_at
    assert line.send() == [first, second]
    assert numbers([first, second]) == [(0, 0), (0, 1)]


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    line = Line(batch_records=1)
    line.submit(b"1", b"2")
    batches = line.send()
    line.refuse(batches[0], errors.UnknownProducer())
    assert line.send() == batches
    assert numbers(batches) == [(1, 0), (1, 1)]


def test_an_id_that_another_user_has_taken_is_replaced() -> None:
    """Who may write to the same partition may have used it first after a failover."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2")
    batches = line.send()
    taken = batches[0].stamp.producer_id
    line.refuse(batches[1], errors.NotAuthorized("its", details={"number": taken}))
    line.refuse(batches[0], errors.NotAuthorized("its", details={"number": taken}))
    line.now += BACKOFF_S
    assert line.send() == batches
    assert {each.stamp.producer_id for each in batches} - {taken}
    assert len({each.stamp.producer_id for each in batches}) == 1
    assert [sequence for _, sequence in numbers(batches)] == [0, 1]
    assert outcomes(sent) == ["pending", "pending"]


def test_what_may_be_stored_under_an_id_that_is_taken_by_now_is_unknown() -> None:
    """It is not sent under another one: it would be stored twice."""
    line = Line(batch_records=1)
    sent = line.submit(b"1")
    (batch,) = line.send()
    line.cut(batch)
    line.now = line.queue.retry_at
    line.send()
    taken = batch.stamp.producer_id
    line.refuse(batch, errors.NotAuthorized("its", details={"number": taken}))
    assert isinstance(sent[0].exception(0), errors.OutcomeUnknown)


def test_a_right_that_is_missing_is_told() -> None:
    line = Line()
    sent = line.submit(b"1")
    (batch,) = line.send()
    line.refuse(batch, errors.NotAuthorized("no rule", details={"right": "write"}))
    assert outcomes(sent) == ["NotAuthorized"]


def test_a_broker_that_forgets_the_producer_each_time_is_not_asked_without_pause() -> None:
    line = Line()
    line.submit(b"1")
    (batch,) = line.send()
    line.refuse(batch, errors.UnknownProducer())
    pauses = []
    for _ in range(3):
        assert line.send() == [batch]
        line.refuse(batch, errors.UnknownProducer())
        pauses.append(line.queue.retry_at - line.now)
        line.now = line.queue.retry_at
    assert pauses == [0.5, 1.0, 2.0]


def test_a_refusal_after_an_attempt_without_an_answer_leaves_the_outcome_unknown() -> None:
    """The first attempt may be stored; so may be those behind it that were sent then."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.cut(first, second)
    line.queue.on_refused(third, errors.Busy(), line.now)
    line.now = line.queue.retry_at
    line.send()
    line.refuse(first, errors.InvalidRequest("by a broker of another mind"))
    assert outcomes(sent) == ["TimedOut", "TimedOut", "TimedOut"]
    assert isinstance(sent[0].exception(0), errors.OutcomeUnknown)
    later = line.submit(b"4")
    assert numbers(line.send()) == [(1, 0)]
    assert outcomes(later) == ["pending"]


def test_a_batch_too_old_to_be_told_is_unknown_and_not_sent_again() -> None:
    """Also when the answer came to its first attempt; those that were sent behind it leave, too."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2")
    first, _ = line.send()
    line.answer(first, errors.SequenceStale("too old"))
    assert outcomes(sent) == ["SequenceStale", "TimedOut"]
    assert isinstance(sent[0].exception(0), errors.OutcomeUnknown)
    line.later(1.0)
    assert line.send() == []
    later = line.submit(b"3")
    assert numbers(line.send()) == [(1, 0)]
    assert outcomes(later) == ["pending"]


def test_a_new_master_is_tried_at_once() -> None:
    """The pause grew while there was none; with the same master it stays."""
    line = Line()
    address = Address("b1", 1)
    line.queue.led_by(address, 1)
    line.submit(b"1")
    (batch,) = line.send()
    line.refuse(batch, errors.NotMaster())
    line.queue.led_by(address, 1)
    assert line.send() == []
    line.queue.led_by(address, 2)
    assert line.send() == [batch]
    line.refuse(batch, errors.NotMaster())
    assert line.queue.retry_at - line.now == BACKOFF_S
    line.queue.led_by(Address("b1", 2), 2)
    assert line.send() == [batch]


@pytest.mark.parametrize("unknown", [False, True])
def test_a_batch_whose_sequence_is_taken_is_not_stored_and_the_next_ones_are(unknown: bool) -> None:
    """Somebody else uses the stamps; the next batch must not have the one that is taken."""
    line = Line(batch_records=1)
    sent = line.submit(b"1")
    (batch,) = line.send()
    if unknown:
        line.cut(batch)
        line.now = line.queue.retry_at
        assert line.send() == [batch]
    line.answer(batch, errors.SequenceTaken("somebody else's"))
    assert outcomes(sent) == ["SequenceTaken"]
    later = line.submit(b"2")
    assert numbers(line.send()) == [(1, 0)]
    assert outcomes(later) == ["pending"]


def test_what_was_sent_behind_a_taken_sequence_may_be_stored() -> None:
    """There is no hole: the broker takes what follows. So it must not be sent again."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.queue.on_stored(second, 88)
    line.answer(first, errors.SequenceTaken("somebody else's"))
    assert outcomes(sent) == ["SequenceTaken", "SendResult", "TimedOut"]
    assert not third.sent
    line.later(1.0)
    assert line.send() == []
