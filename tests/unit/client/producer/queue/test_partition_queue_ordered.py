"""A partition's queue of an ordered producer: what fails with an earlier message."""

from support.partition_line import Line, contents, numbers, outcomes

from vq import errors


def test_ordered_what_is_behind_a_refused_batch_is_refused_too() -> None:
    line = Line(batch_records=1, window=5, ordered=True)
    futures = line.submit(b"1", b"2", b"3", b"4", b"5", b"6")
    first, second, *_ = line.send()
    line.refuse(second, errors.MessageTooLarge("no"))
    assert outcomes(futures) == ["pending"] * 6, "what is before it has no outcome yet"
    line.queue.on_stored(first, 88)
    assert outcomes(futures) == ["SendResult", "MessageTooLarge", *["NotSent"] * 4]
    assert "an earlier message" in str(futures[2].outcome)
    assert line.idle
    line.submit(b"7")
    (batch,) = line.send()
    assert numbers([batch]) == [(1, 0)], "copies of the others may still come to the broker"


def test_ordered_what_was_sent_behind_an_unknown_one_is_unknown() -> None:
    line = Line(batch_records=1, window=2, ordered=True)
    futures = line.submit(b"1", within=1.0) + line.submit(b"2", b"3")
    line.send()
    line.later(1.0)
    assert outcomes(futures) == ["TimedOut", "TimedOut", "NotSent"]
    assert len(line.queue.in_flight) == 2, "the broker may still store them"


def test_ordered_a_late_message_takes_along_only_what_is_behind_it() -> None:
    line = Line(batch_records=4, ordered=True)
    futures = line.submit(b"1") + line.submit(b"2", within=1.0) + line.submit(b"3")
    (batch,) = line.send()
    line.refuse(batch, errors.Busy("later"))
    futures += line.submit(b"4")
    line.later(1.0)
    assert outcomes(futures) == ["pending", "Busy", "NotSent", "NotSent"]
    line.now += 10
    (again,) = line.send()
    assert contents(again) == [b"1"]
    assert again.count == 1
    line.queue.on_stored(again, 88)
    assert line.idle
    assert sum(count for count, _ in line.ended) == 4


def test_ordered_late_pending_messages_take_along_what_is_behind_them() -> None:
    line = Line(ordered=True)
    futures = line.submit(b"1") + line.submit(b"2", within=1.0) + line.submit(b"3")
    line.later(1.0)
    assert outcomes(futures) == ["pending", "NotSent", "NotSent"]
    assert "deadline" in str(futures[1].outcome)
    assert "an earlier message" in str(futures[2].outcome)
