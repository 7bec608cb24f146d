"""Turns that fetch sessions share: so many steps in each, first come, first served."""

from collections.abc import Callable

from vq.broker.serving.fetch_turns import STEPS_PER_TURN, FetchTurns


class Loop:
    """Calls what was put off, a turn at a time."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.turns = FetchTurns(lambda _, call: self.later.append(call))

    def turn(self) -> None:
        due, self.later = self.later, []
        for call in due:
            call()


class Stepping:
    """A session that needs some steps, one in each of its turns."""

    def __init__(self, loop: Loop, name: str, steps: int, told: list[str]) -> None:
        self._loop, self._name, self._steps, self._told = loop, name, steps, told

    def turn_came(self) -> None:
        if self._loop.turns.take_step():
            self._told.append(self._name)
            self._steps -= 1
        if self._steps:
            self._loop.turns.add(self)


def test_a_turn_has_so_many_steps():
    loop = Loop()
    for _ in range(2):
        taken = [loop.turns.take_step() for _ in range(STEPS_PER_TURN + 1)]
        assert taken == [True] * STEPS_PER_TURN + [False]
        assert len(loop.later) == 1
        loop.turn()
    assert not loop.later  # nobody waits: nothing is called for ever


def test_sessions_take_turns_in_the_order_in_which_they_came():
    loop, told = Loop(), []
    names = [f"s{number}" for number in range(STEPS_PER_TURN + 2)]
    for name in names:
        loop.turns.add(Stepping(loop, name, 2, told))
    loop.turn()
    assert told == names[:STEPS_PER_TURN]
    loop.turn()
    assert told == (names + names)[: 2 * STEPS_PER_TURN]
    loop.turn()
    assert told == names + names
    loop.turn()
    assert not loop.later


def test_a_session_that_has_ended_is_not_called():
    """Also when one that goes on in the same turn ends it."""
    loop, told = Loop(), []
    first, second, third = (Stepping(loop, name, 1, told) for name in ("a", "b", "c"))

    class Ending:
        def turn_came(self) -> None:
            loop.turns.remove(second)

    for session in (first, Ending(), second, third):
        loop.turns.add(session)
    loop.turns.remove(first)
    loop.turn()
    assert told == ["c"]
    loop.turns.remove(first)  # once more does no harm
