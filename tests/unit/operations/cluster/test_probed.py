"""What becomes of a message of the probe: each has one end, and only a promise can be broken."""

from vq.operations.cluster.probed import (
    FORGET_S,
    LATE_S,
    WAITING_MAX,
    Outstanding,
    ProbeResult,
)


def begun(*numbers: int) -> Outstanding:
    made = Outstanding(ProbeResult("b1"))
    for number in numbers:
        made.begin(number, 100.0)
    return made


def test_a_message_is_received_before_or_after_its_acknowledgement() -> None:
    made = begun(1, 2)
    made.acknowledge(1, 0)
    made.read(1, 100.5, 7_000)
    made.read(2, 100.7, 8_000)
    made.acknowledge(2, 50)
    assert made.passed(100, 101.0) == []
    result = made.result
    assert (result.sent, result.received, result.late, result.lost) == (2, 2, 0, 0)
    assert result.success_ms == 8_000
    assert sum(result.latency.counts) == 2
    assert made.waiting_s(110.0) == 0


def test_a_message_that_takes_long_is_late_and_not_lost() -> None:
    made = begun(1)
    made.acknowledge(1, 0)
    assert made.passed(0, 103.0) == []
    assert made.waiting_s(103.0) == 3.0
    made.read(1, 100.0 + LATE_S + 1, 7_000)
    assert (made.result.received, made.result.late, made.result.lost) == (1, 1, 0)


def test_an_acknowledged_message_whose_place_was_passed_is_lost_once() -> None:
    made = begun(1, 2)
    made.acknowledge(1, 0)
    made.acknowledge(2, 50)
    assert made.passed(50, 101.0) == [1]
    assert made.passed(50, 102.0) == []
    assert made.result.lost == 1
    assert made.waiting_s(102.0) == 2.0


def test_what_was_not_acknowledged_cannot_be_lost() -> None:
    """A refused one is forgotten at once, one without an answer when nobody waits for it."""
    made = begun(1, 2, 3)
    made.fail(1, is_unknown=False)
    made.fail(2, is_unknown=True)
    made.fail(3, is_unknown=True)
    made.read(3, 101.0, 7_000)
    assert made.passed(1_000, 101.0) == []
    assert made.passed(1_000, 101.0 + FORGET_S) == []
    made.read(2, 300.0, 8_000)
    assert (made.result.failed, made.result.received, made.result.lost) == (3, 1, 0)


def test_what_retention_deleted_is_not_lost() -> None:
    made = begun(1, 2)
    made.acknowledge(1, 0)
    made.acknowledge(2, 50)
    made.deleted(50)
    assert made.passed(100, 101.0) == [2]


def test_what_waits_is_bounded() -> None:
    made = begun(*range(WAITING_MAX - 1))
    assert not made.is_full
    made.begin(WAITING_MAX, 100.0)
    assert made.is_full
