"""A partition's queue: messages whose deadline passes."""

from typing import Any

import pytest
from support.partition_line import Line, contents, numbers, outcomes

from vq import errors
from vq.client.future import SendFuture
from vq.model import Address, SendResult


def test_what_was_never_sent_is_refused_at_its_deadline() -> None:
    line = Line()
    sent = line.submit(b"1", b"22", within=3.0)
    line.later(2.9)
    assert outcomes(sent) == ["pending", "pending"]
    line.later(0.1)
    assert outcomes(sent) == ["NotSent", "NotSent"]
    assert str(sent[0].outcome) == "t-3: not sent within its deadline of 3 s: no broker took it"
    assert line.ended[-1] == (2, 3)
    assert line.idle


def test_what_waits_behind_a_silent_broker_is_told_so() -> None:
    line = Line(batch_records=1, window=1)
    line.queue.master = Address("b1", 7000)
    line.submit(b"1", within=30)
    line.send()
    behind = line.submit(b"2", within=0.25)
    line.later(0.25)
    assert str(behind[0].outcome) == (
        "t-3: not sent within its deadline of 0.25 s: its broker b1:7000 has not answered earlier "
        "messages"
    )


def test_what_waits_behind_a_refusal_is_told_why() -> None:
    """A full disk refuses the batch in front; those behind it never reach the broker."""
    line = Line(batch_records=1, window=1)
    first, behind = line.submit(b"1", within=3.0), line.submit(b"2", within=3.0)
    line.refuse(line.send()[0], errors.DiskFull("95 % full"))
    line.later(3.0)
    assert outcomes(first + behind) == ["DiskFull", "DiskFull"]
    assert "95 % full" in str(behind[0].exception(0))
    later = line.submit(b"3")
    [batch] = line.send()
    line.queue.on_stored(batch, 88)
    assert outcomes(later) != ["DiskFull"]
    late = line.submit(b"4", within=1.0)
    line.later(1.0)
    assert outcomes(late) == ["NotSent"], "the broker takes messages again"


def test_a_short_deadline_behind_long_ones_is_kept() -> None:
    """A blocking send of 3 s is told after 3 s, whatever waits before it."""
    line = Line()
    before = line.submit(b"1", within=30)
    short = line.submit(b"2", within=3)
    after = line.submit(b"3", within=30)
    line.later(3.0)
    assert outcomes(before + short + after) == ["pending", "NotSent", "pending"]
    assert contents(line.send()[0]) == [b"1", b"3"]


def test_a_long_line_is_looked_through_once_a_second() -> None:
    line = Line()
    line.submit(*[b"x"] * 3_000, within=30)
    line.later(0.0)
    short = line.submit(b"2", within=0.1)
    line.later(0.5)
    assert outcomes(short) == ["pending"]
    line.later(0.6)
    assert outcomes(short) == ["NotSent"]


def test_without_an_answer_the_outcome_is_unknown_and_the_place_is_kept() -> None:
    line = Line(batch_records=1)
    line.queue.master = Address("b1", 7000)
    sent = line.submit(b"1", within=3) + line.submit(b"2")
    first, second = line.send()
    assert line.queue.silence(line.now + 2.5) == 2.5
    line.later(3.0)
    assert outcomes(sent) == ["TimedOut", "pending"]
    assert str(sent[0].outcome) == (
        "t-3: no answer from broker b1:7000 within its deadline of 3 s; it may be stored: sending "
        "it again may store it twice (status 48)"
    )
    line.cut(first, second)
    line.now = line.queue.retry_at
    assert line.send() == [first, second], "a hole would put the second in doubt"
    line.queue.on_stored(first, 88)
    line.queue.on_stored(second, 200)
    assert outcomes(sent) == ["TimedOut", "SendResult"]
    assert line.ended == [(1, 1), (1, 1)]


def test_a_batch_refused_until_its_deadline_is_told_why_and_never_stored() -> None:
    line = Line(batch_records=1)
    sent = line.submit(b"1", within=3) + line.submit(b"2")
    first, second = line.send()
    line.refuse(first, errors.DiskFull("full"))
    line.refuse(second, errors.SequenceGap())
    line.later(3.0)
    assert outcomes(sent) == ["DiskFull", "pending"]
    line.now = max(line.now, line.queue.retry_at)
    assert line.send() == [second]
    assert numbers([second]) == [(0, 0)]


def test_in_a_batch_under_way_each_message_keeps_its_own_deadline() -> None:
    line = Line()
    short = line.submit(b"short", within=3)
    long = line.submit(b"long", within=30)
    (batch,) = line.send()
    line.later(3.0)
    assert outcomes(short + long) == ["TimedOut", "pending"]
    assert line.ended == [(1, 5)]
    line.later(0.1)
    assert contents(batch) == [b"short", b"long"], "the bytes are those that were sent"
    line.queue.on_stored(batch, 88)
    assert long[0].result(0).offset == 88 + 25
    assert outcomes(short) == ["TimedOut"]
    assert line.ended == [(1, 5), (1, 4)]


def test_in_a_batch_that_nobody_took_each_message_keeps_its_own_deadline() -> None:
    """What is told as refused must not be stored with the others later."""
    line = Line(batch_records=3)
    short = line.submit(b"short", within=3)
    long = line.submit(b"long", b"longer", within=30)
    (batch,) = line.send()
    line.refuse(batch, errors.Busy("later"))
    line.later(3.0)
    assert outcomes(short + long) == ["Busy", "pending", "pending"]
    assert line.send() == [batch]
    assert (contents(batch), numbers([batch])) == ([b"long", b"longer"], [(0, 0)])
    assert batch.ids == [2, 3]
    line.queue.on_stored(batch, 88)
    assert long[0].result(0) == SendResult(3, 88, 2)
    assert line.ended == [(1, 5), (2, 10)]


def test_messages_given_up_in_doubt_are_not_sent_anew_with_their_batch() -> None:
    """First one is given up on the wire; later the batch turns out to be stored nowhere."""
    line = Line(batch_records=3)
    first = line.submit(b"1", within=3)
    second = line.submit(b"2", within=5)
    third = line.submit(b"3", within=30)
    (batch,) = line.send()
    line.later(3.0)
    line.refuse(batch, errors.UnknownProducer())
    assert numbers([batch]) == [(1, 0)]
    assert not batch.sent
    line.later(2.0)
    assert outcomes(first + second + third) == ["TimedOut", "NotSent", "pending"]
    assert contents(batch) == [b"3"]
    assert line.send() == [batch]
    line.queue.close(errors.InvalidState("closed"))
    assert outcomes(third) == ["TimedOut"]
    assert line.ended == [(1, 1), (1, 1), (1, 1), (0, 0)]


class Racing(list[SendFuture]):
    """Pending messages to which another thread appends one just after they were copied."""

    def __init__(self, items: list[SendFuture], new: SendFuture) -> None:
        super().__init__(items)
        self._new = [new]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if self._new:
            self.append(self._new.pop())
        return found


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_that_comes_while_late_ones_are_taken_out_stays(ordered: bool) -> None:
    line = Line(ordered=ordered)
    late = line.submit(b"late", within=1.0)
    new = SendFuture(b"new", None, None, line.now + 30)
    line.queue.pending = Racing(line.queue.pending, new)
    line.queue.take_late(line.now + 2)
    assert line.queue.failing is not None
    assert line.queue.failing.items == late
    assert line.queue.pending == [new]


def test_what_is_not_sent_in_time_says_which_broker_did_not_take_it_and_why() -> None:
    """Also for a caller that sends by itself: the last failure alone says nothing of the time."""
    line = Line()
    (sent,) = line.submit(b"1", within=3)
    for _ in range(2):
        (batch,) = line.send()
        refused = errors.Unreachable("cannot connect to b1:7000: Connection refused")
        line.refuse(batch, refused)
        line.now = line.queue.retry_at
    line.later(3.0)
    assert isinstance(sent.outcome, errors.NotSent)
    assert str(sent.outcome) == (
        "t-3: not sent within its deadline of 3 s: cannot connect to b1:7000: Connection refused"
    )
