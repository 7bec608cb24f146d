"""One-way messages: no failure goes by without a line."""

import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from vq.client.producer.send.unheard import LOG_EVERY_S, OnewayLog
from vq.errors import NotSent, StorageFailed, TimedOut, VqError
from vq.model import SendResult

STORED = SendResult(0, 88, 1)


class Loop:
    """Notes the one timer; the test runs it."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay, call))
        return self

    def monotonic(self) -> float:
        return self.now

    def cancel(self) -> None:
        self.timers.clear()

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, and run the timer if it is due."""
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, call in due:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def outcomes(loop: Loop) -> OnewayLog:
    return OnewayLog(loop, loop)  # type: ignore[arg-type]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines since the last call."""

    def take() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        assert all(record.levelno == logging.WARNING for record in caplog.records)
        caplog.clear()
        return found

    return take


def fail(outcomes: OnewayLog, error: VqError, count: int = 1, topic: str = "t") -> None:
    for _ in range(count):
        outcomes.callback_for(topic)(None, error)


def test_what_is_stored_is_not_logged(
    outcomes: OnewayLog, loop: Loop, lines: Callable[[], list[str]]
) -> None:
    outcomes.callback_for("t")(STORED, None)
    assert not loop.timers
    outcomes.close()
    assert lines() == []


def test_failures_of_one_batch_have_one_line(
    outcomes: OnewayLog, loop: Loop, lines: Callable[[], list[str]]
) -> None:
    fail(outcomes, NotSent("broker is down"), 2_000)
    assert len(loop.timers) == 1
    loop.run()
    assert lines() == [
        "one-way messages are not known to be stored topic=t count=2000 outcome=refused "
        'cause=NotSent error="NotSent: broker is down"'
    ]


def test_a_topic_and_a_cause_have_a_line_every_ten_seconds(
    outcomes: OnewayLog, loop: Loop, lines: Callable[[], list[str]]
) -> None:
    """Nothing is left out: the next line has the number of all that failed since."""
    fail(outcomes, NotSent("1"))
    loop.run()
    assert len(lines()) == 1
    for second in range(9):
        fail(outcomes, NotSent(str(second)), 5)
        loop.run(1.0)
        assert lines() == []
        assert len(loop.timers) == 1, "one timer, however many messages fail"
    fail(outcomes, TimedOut("2"))
    fail(outcomes, NotSent("3"), topic="u")
    loop.run(LOG_EVERY_S - 9.0)
    first, *others = sorted(lines(), key=lambda line: ("count=45" not in line, line))
    assert "topic=t count=45 outcome=refused cause=NotSent" in first
    assert "topic=t count=1 outcome=unknown cause=TimedOut" in others[0]
    assert "topic=u count=1 outcome=refused cause=NotSent" in others[1]


def test_a_cause_that_does_not_come_again_is_forgotten(
    outcomes: OnewayLog, loop: Loop, lines: Callable[[], list[str]]
) -> None:
    fail(outcomes, StorageFailed("disk"))
    loop.run()
    loop.run(LOG_EVERY_S)
    assert len(lines()) == 1
    assert outcomes._failures == {}
    assert not loop.timers


def test_the_close_leaves_nothing_unsaid(
    outcomes: OnewayLog, loop: Loop, lines: Callable[[], list[str]]
) -> None:
    """Neither what waits for its next line, nor what fails after the close."""
    fail(outcomes, NotSent("1"))
    loop.run()
    fail(outcomes, NotSent("2"), 3)
    lines()
    outcomes.close()
    assert not loop.timers
    assert "count=3" in lines()[0]
    fail(outcomes, TimedOut("late"))
    assert "count=1 outcome=unknown cause=TimedOut" in lines()[0]
    assert not loop.timers


def test_callbacks_of_many_topics_are_bounded(outcomes: OnewayLog) -> None:
    assert outcomes.callback_for("t") is outcomes.callback_for("t")
    made = []
    for number in range(5_000):
        callback = outcomes.callback_for(str(number))
        callback(STORED, None)
        made.append(weakref.ref(callback))
    assert sum(each() is not None for each in made) <= 1_024
