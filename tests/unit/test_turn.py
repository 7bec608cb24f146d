"""What a turn of the loop leaves for its end."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from vq.turn import Turn


def test_a_turn_ends_once_with_the_action_first():
    """However much is gathered, one callback; what it starts goes on beside the writes."""
    scheduled, seen = [], []
    turn = Turn(scheduled.append)
    turn.on_end(lambda: seen.append("action"))
    turn.add(SimpleNamespace(write_out=lambda: seen.append("a")))
    turn.schedule()
    turn.add(SimpleNamespace(write_out=lambda: seen.append("b")))
    assert len(scheduled) == 1
    scheduled[0]()
    assert seen == ["action", "a", "b"]
    turn.schedule()
    assert len(scheduled) == 2


def test_what_is_marked_while_a_turn_writes_out_has_a_turn_of_its_own():
    """The action of the turn that writes was over by then."""
    scheduled, seen = [], []
    turn = Turn(scheduled.append)
    turn.on_end(lambda: seen.append("action"))
    turn.add(SimpleNamespace(write_out=turn.schedule))
    scheduled.pop()()
    scheduled.pop()()
    assert seen == ["action", "action"]
    assert not scheduled


def test_what_fails_at_the_end_of_a_turn_stops_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the action nor a writer: the other writers write, and the next turn ends, too."""
    scheduled, seen = [], []
    turn = Turn(scheduled.append)

    def broken() -> None:
        raise RuntimeError("a bug")

    turn.on_end(broken)
    for _ in range(2):
        turn.add(SimpleNamespace(write_out=broken))
        turn.add(SimpleNamespace(write_out=lambda: seen.append("b")))
        scheduled.pop()()
    assert seen == ["b", "b"]
    assert not scheduled
    assert caplog.text.count("RuntimeError: a bug") == 4


def test_a_turn_that_its_caller_ends_schedules_nothing() -> None:
    """A callback scheduled by a callback costs one more iteration of the loop."""
    scheduled: list[Callable[[], None]] = []
    seen: list[str] = []
    turn = Turn(scheduled.append)
    turn.on_end(lambda: seen.append("action"))
    turn.begin()
    turn.add(SimpleNamespace(write_out=lambda: seen.append("a")))
    turn.schedule()
    assert not scheduled
    turn.run()
    assert seen == ["action", "a"]
    turn.schedule()
    assert len(scheduled) == 1, "the next turn ends by itself"


def test_what_nothing_more_could_share_is_done_before_the_end_of_a_turn():
    """An action that fails stops neither the others nor the end of the turn."""
    scheduled, seen = [], []
    turn = Turn(scheduled.append)

    def broken():
        seen.append("broken")
        raise ValueError("a bug")

    turn.on_end(broken, early=True)
    turn.on_end(lambda: seen.append("early"), early=True)
    turn.on_end(lambda: seen.append("end"))
    turn.add(SimpleNamespace(write_out=lambda: seen.append("written")))
    turn.hasten()
    assert seen == ["broken", "early", "written"]
    assert len(scheduled) == 1
    scheduled[0]()
    assert seen == ["broken", "early", "written", "broken", "early", "end"]


def test_a_turn_of_which_all_was_hastened_needs_no_end() -> None:
    """Its end would be one more iteration of the loop; without that it is scheduled."""
    scheduled: list[Callable[[], None]] = []
    seen: list[str] = []
    turn = Turn(scheduled.append)
    turn.on_end(lambda: seen.append("early"), early=True)
    for hastened in (True, False):
        assert turn.begin()
        turn.add(SimpleNamespace(write_out=lambda: seen.append("written")))
        turn.hasten()
        turn.leave(hastened=hastened)
        assert seen == ["early", "written"]
        assert len(scheduled) == (not hastened)
        seen.clear()
    assert not turn.begin(), "its end is scheduled"


def test_a_writer_that_another_one_adds_writes_in_the_same_turn() -> None:
    """A session that answers makes its connection a writer: no turn is needed for that."""
    scheduled: list[Callable[[], None]] = []
    seen: list[str] = []
    turn = Turn(scheduled.append)
    connection = SimpleNamespace(write_out=lambda: seen.append("connection"))
    turn.add(SimpleNamespace(write_out=lambda: turn.add(connection)))
    scheduled.pop()()
    assert seen == ["connection"]
    assert not scheduled


def test_a_turn_in_which_nothing_was_gathered_needs_no_end() -> None:
    """A read that waits begins nothing."""
    scheduled: list[Callable[[], None]] = []
    turn = Turn(scheduled.append)
    assert turn.begin()
    turn.leave(hastened=False)
    assert not scheduled
    assert turn.begin()
    turn.schedule()
    turn.leave(hastened=False)
    assert len(scheduled) == 1
