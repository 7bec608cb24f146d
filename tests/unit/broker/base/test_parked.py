"""Requests that wait in a channel: each looks again, whatever the others do."""

import pytest

from vq.broker.base.parked import Parked, wake_all
from vq.model import TopicPartition


class Waiting:
    """Takes itself out when it is woken, or fails."""

    def __init__(self, parked: Parked, *, fails: bool = False) -> None:
        self._parked = parked
        self._fails = fails
        self.woken = 0
        parked[self] = None

    def wake(self) -> None:
        self.woken += 1
        if self._fails:
            raise RuntimeError("a bug")
        self._parked.pop(self)


def test_all_are_woken_though_each_takes_itself_out() -> None:
    parked: Parked = {}
    waiting = [Waiting(parked) for _ in range(3)]
    wake_all(TopicPartition("t", 0), parked)
    assert [each.woken for each in waiting] == [1, 1, 1]
    assert not parked


def test_one_that_fails_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """It is taken out, and the failure is in the log."""
    parked: Parked = {}
    waiting = [Waiting(parked, fails=number == 0) for number in range(2)]
    wake_all(TopicPartition("t", 0), parked)
    assert [each.woken for each in waiting] == [1, 1]
    assert not parked
    assert "waking a reader failed" in caplog.text
    assert "t-0" in caplog.text
