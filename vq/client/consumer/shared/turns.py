"""Which of its partitions a member of a shared group asks for with its next request. Pure.

A request has a bound of partitions. A member that reads more asks for them in turns; those of which
it has heard that they have more come first, up to half of a request, so that no other one waits for
more than twice as many requests as it would without them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from vq import limits


class SourceTurn(NamedTuple):
    """What one request asks for.

    Attributes:
        sources: The partitions, as numbers of the member's.
        is_all: These are all.
        waits: The request may wait: all of them were asked for since something was found.
    """

    sources: Sequence[int]
    is_all: bool
    waits: bool


class SourceTurns:
    """See the module.

    Args:
        most: So many partitions go into a request; 2 at least.
    """

    def __init__(self, most: int = limits.SHARED_SOURCES_PER_REQUEST_MAX) -> None:
        self._most: Final = most
        self._news: dict[int, None] = {}  # have more, and were not asked for since
        self._last = -1  # was asked for last in its turn
        self._without = 0  # so many were asked for in a row, and had nothing

    def has_more(self, source: int) -> None:
        """Note that a partition has more than when it was asked for."""
        self._news[source] = None

    def next(self, sources: Sequence[int]) -> SourceTurn:
        """Return what the next request asks for.

        Args:
            sources: All that the member reads, rising.
        """
        if len(sources) <= self._most:
            self._news.clear()
            return SourceTurn(sources, is_all=True, waits=True)
        known = set(sources)
        first = [each for each in self._news if each in known][: self._most // 2]
        self._news = {each: None for each in self._news if each in known and each not in first}
        waits = self._without >= len(sources) and not self._news
        start, taken = bisect_right(sources, self._last), set(first)
        in_turn: list[int] = []
        for source in _around(sources, start):
            if len(in_turn) == self._most - len(first):
                break
            self._last = source
            self._without += 1
            if source not in taken:
                in_turn.append(source)
        return SourceTurn([*first, *in_turn], is_all=False, waits=waits)

    def found(self, *, something: bool) -> None:
        """Note whether the last request has brought anything."""
        if something:
            self._without = 0


def _around(sources: Sequence[int], start: int) -> Iterable[int]:
    """Go once through all, from an index on."""
    yield from sources[start:]
    yield from sources[:start]
