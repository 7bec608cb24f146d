"""A partition's queue: sequence numbers, epochs and producer ids."""

import pytest
from support.partition_line import BACKOFF_S, Line, numbers, outcomes

from vq import errors
from vq.client.producer.queue import batch as stamps
from vq.client.producer.queue.batch import Batch


def ids_of(batches: list[Batch]) -> list[int]:
    return [batch.stamp.producer_id for batch in batches]


def test_a_refused_batch_with_nothing_behind_it_costs_no_epoch() -> None:
    """Its number is used again, so refusals may go on for ever."""
    line = Line(batch_records=1)
    for _ in range(100):
        line.submit(b"no")
        (batch,) = line.send()
        assert numbers([batch]) == [(0, 0)]
        line.refuse(batch, errors.PermissionRefused("no"))
    line.submit(b"yes")
    (batch,) = line.send()
    line.queue.on_stored(batch, 88)
    line.submit(b"no")
    (batch,) = line.send()
    assert numbers([batch]) == [(0, 1)]
    line.refuse(batch, errors.PermissionRefused("no"))
    assert line.idle


def test_numbers_are_not_used_again_while_a_copy_without_an_answer_may_come() -> None:
    """Of a batch that waits for its resend: its first copy may be late on the connection cut."""
    line = Line(batch_records=1)
    late = line.submit(b"1", within=1.0)
    line.submit(b"2")
    first, second = line.send()
    line.refuse(first, errors.Busy("later"))
    line.cut(second)
    line.later(1.5)
    assert outcomes(late) == ["Busy"]
    assert numbers([second]) == [(1, 0)]


def test_a_refused_batch_that_may_be_stored_all_the_same_costs_an_epoch() -> None:
    """Its copy must not meet the number of another batch."""
    line = Line(batch_records=1)
    line.submit(b"1")
    (batch,) = line.send()
    line.cut(batch)
    line.now += BACKOFF_S
    assert line.send() == [batch]
    line.refuse(batch, errors.PermissionRefused("no"))
    line.submit(b"2")
    line.now += BACKOFF_S
    assert numbers(line.send()) == [(1, 0)]


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs 0 to 6; from 3 on a new producer id is due."""
    monkeypatch.setattr(stamps, "PRODUCER_EPOCH_MAX", 6)
    monkeypatch.setattr(stamps, "RENEW_EPOCH", 3)


def doubt(line: Line) -> None:
    """One message more leaves the line although it may be stored."""
    line.submit(b"perhaps")
    line.now += 10
    (batch,) = line.send()
    line.cut(batch)
    line.now += 10
    assert line.send() == [batch]
    line.refuse(batch, errors.PermissionRefused("no"))


@pytest.mark.usefixtures("few_epochs")
def test_a_new_producer_id_is_taken_once_the_line_is_empty_and_its_copies_are_shut_out() -> None:
    line = Line(batch_records=1)
    for _ in range(3):
        doubt(line)
    line.submit(b"1", b"2", b"3")
    line.now += 10
    (first,) = line.send()
    assert (ids_of([first]), numbers([first])) == ([7], [(3, 0)]), "shuts out the copies before"
    assert line.send() == [], "the line becomes empty first"
    line.queue.on_stored(first, 88)
    second, third = line.send()
    assert ids_of([second, third]) == [8, 8]
    assert numbers([second, third]) == [(0, 0), (0, 1)]


@pytest.mark.usefixtures("few_epochs")
def test_a_cut_keeps_a_batch_under_its_producer_id() -> None:
    """Perhaps it is stored: under another one it would be stored twice."""
    line = Line(batch_records=1)
    for _ in range(3):
        doubt(line)
    for expected in ((7, 3), (8, 0)):
        line.submit(b"x")
        line.now += 10
        (batch,) = line.send()
        stamp = batch.stamp
        assert stamp[:2] == expected
        for _ in range(3):
            line.cut(batch)
            line.now += 10
            assert line.send() == [batch]
            assert batch.stamp == stamp
        line.queue.on_stored(batch, 88)


@pytest.mark.usefixtures("few_epochs")
def test_the_last_epoch_is_never_passed() -> None:
    """Not even when nothing is ever stored."""
    line = Line(batch_records=1)
    stamps = []
    for _ in range(20):
        doubt(line)
        line.submit(b"x")
        line.now += 10
        (batch,) = line.send()
        stamps.append(batch.stamp[:2])
        line.refuse(batch, errors.PermissionRefused("no"))
    assert max(epoch for _, epoch in stamps) == 6
    assert stamps == sorted(set(stamps))
