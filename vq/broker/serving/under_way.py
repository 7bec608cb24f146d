"""Requests of one kind that take long: how many may be under way, and for whom.

A node bounds them for each connection, so that one client does not take all, and in sum. Beyond
that a request is refused at once, and may be tried again.
"""

from collections import Counter

from vq.broker.base.session import Session
from vq.errors import Busy


class UnderWay:
    """Counts the requests of one kind. Loop-bound.

    Args:
        what: They are, in the plural, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._counts: Counter[Session] = Counter()

    def __len__(self) -> int:
        """How many are under way."""
        return self._counts.total()

    def begin(self, session: Session, *, per_connection_max: int, total_max: int) -> None:
        """Count one more, until ``end``.

        Raises:
            Busy: Too many are under way; nothing was counted.
        """
        mine, total = self._counts.get(session, 0), len(self)
        if mine >= per_connection_max:
            raise Busy(
                f"{mine} {self._what} of this connection are under way; at most "
                f"{per_connection_max} may be"
            )
        if total >= total_max:
            raise Busy(f"{total} {self._what} are under way; at most {total_max} may be")
        self._counts[session] += 1

    def end(self, session: Session) -> None:
        """Count one less."""
        self._counts[session] -= 1
        if not self._counts[session]:
            del self._counts[session]
