"""Brokers of ``vq standalone`` that end are started again, and not for ever."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vq.cli.standalone import STARTS_MAX, Supervised


class Child:
    """A broker that runs until it is told to end."""

    def __init__(self) -> None:
        self.running = False
        self.starts = 0
        self.process = SimpleNamespace(returncode=-9)
        self.spec = SimpleNamespace(name="b1/n1", log=Path("b1.log"))

    def start(self) -> None:
        self.starts += 1
        self.running = True


def supervised() -> tuple[Child, Supervised]:
    child: Any = Child()
    found = Supervised(child)
    found.start(0.0)
    return child, found


def test_a_broker_that_runs_is_left_alone() -> None:
    child, found = supervised()
    assert [found.look(now) for now in (1.0, 2.0)] == ["", ""]
    assert child.starts == 1


def test_one_that_ended_is_started_again_after_a_pause_that_grows() -> None:
    child, found = supervised()
    now = 0.0
    for pause_s in ("0.5", "1", "2"):
        child.running = False
        told = found.look(now)
        assert told == (
            "broker b1/n1 ended unexpectedly (code -9); its log is b1.log. It is started again in "
            f"{pause_s} s"
        )
        starts = child.starts
        assert found.look(now + float(pause_s) - 0.1) == ""
        assert child.starts == starts
        now += float(pause_s)
        assert found.look(now) == ""
        assert child.starts == starts + 1


def test_one_that_ran_well_for_a_minute_begins_anew() -> None:
    child, found = supervised()
    for now in (100.0, 200.0):
        child.running = False
        assert "started again in 0.5 s" in found.look(now)
        found.look(now + 1)


def test_one_that_ends_at_once_again_and_again_is_given_up() -> None:
    child, found = supervised()
    now, told = 0.0, []
    while not found.given_up:
        child.running = False
        told.append(found.look(now))
        now += 30
        found.look(now)
    assert len(told) == child.starts == STARTS_MAX
    assert told[-1].endswith(f"It ended {STARTS_MAX} times in a row and is not started again")
    assert found.look(now) == ""


def test_one_of_a_group_with_one_node_stays_down_and_that_is_told_once() -> None:
    """The tutorial kills one, to show what waits."""
    child: Any = Child()
    found = Supervised(child, restarts=False)
    found.start(0.0)
    child.running = False
    assert "stop this command and start it again to have it back" in found.look(1.0)
    assert found.given_up
    assert found.look(99.0) == ""
    assert child.starts == 1
