"""Turns of the loop that fetch sessions share: so many steps in each, for all of a node.

Looking through bytes for tags, checking an offset and looking for partitions take a while: a client
that begins names hundreds of partitions at once, and hundreds of clients may look for tags. A
session that needs more than a turn has goes on in a later one, behind those that wait for it.
"""

from collections.abc import Callable
from typing import Final, Protocol

#: Steps in one turn, some 2 ms each at most: 128 KiB are looked through, an offset is checked,
#: which may walk through a batch of thousands of records, or a few partitions are looked for.
STEPS_PER_TURN: Final = 8


class Stepping(Protocol):
    """A session; in practice ``fetching.ServedSession``."""

    def turn_came(self) -> None:
        """Go on: there is at least one step for it."""
        ...


class FetchTurns:
    """The turns of one node. Loop-bound.

    Args:
        call_later: Calls a function after so many seconds.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._call_later = call_later
        self._left = STEPS_PER_TURN
        self._waiting: dict[Stepping, None] = {}  # in the order in which they go on
        self._is_due = False

    def take_step(self) -> bool:
        """Count one more step of this turn; False: it has had its steps."""
        if not self._left:
            return False
        self._left -= 1
        self._have_next()
        return True

    def add(self, session: Stepping) -> None:
        """Have a session go on in a later turn."""
        self._waiting[session] = None
        self._have_next()

    def remove(self, session: Stepping) -> None:
        """Forget a session that has ended."""
        self._waiting.pop(session, None)

    def _have_next(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_later(0, self._begin)

    def _begin(self) -> None:
        self._is_due, self._left = False, STEPS_PER_TURN
        for session in list(self._waiting):
            if not self._left:
                return  # the last step has the next turn called
            if session in self._waiting:  # one before it may have ended it
                del self._waiting[session]
                session.turn_came()
