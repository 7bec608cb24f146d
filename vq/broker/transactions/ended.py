"""Transactions of one journal that have ended: only what became of each is remembered. Pure.

A request for one cannot come later than ``REMEMBERED_MS``. When there are too many, the first one
that ended is forgotten earlier. So that nobody begins it anew, no number up to its own is begun
from then on: ``floor_ms``. A number says when it was made, by the clock of its producer, and one
that is ahead of the clock here would raise the floor above what others begin now. So these are kept
apart, are never forgotten earlier, and only so many are begun.
"""

from collections import OrderedDict
from typing import Final

from vq.broker.transactions.judging import Ended
from vq.errors import Busy
from vq.model import time_ms_of

#: The first request of a transaction comes at most so long after its number was made, and the
#: clocks of producer and master differ by no more.
BEGUN_WITHIN_MS: Final = 5 * 60_000
REMEMBERED_MS: Final = 2 * BEGUN_WITHIN_MS
#: So many are remembered, and of those so many that were ahead of the clock, by more than this.
ENDED_MAX: Final = 200_000
AHEAD_MAX: Final = ENDED_MAX // 2
AHEAD_MS: Final = 1_000
#: Parts of all that is remembered, and of those again.
ENDED_PARTS_MAX: Final = 1_000_000
AHEAD_PARTS_MAX: Final = ENDED_PARTS_MAX // 2


class EndedTransactions:
    """See the module. Not safe for several threads.

    Attributes:
        floor_ms: Of what was begun until then, not all that has ended is remembered.
    """

    def __init__(self) -> None:
        self.floor_ms = 0
        self._ended: OrderedDict[int, Ended] = OrderedDict()  # in the order of their ends
        self._ahead: OrderedDict[int, Ended] = OrderedDict()
        self._parts = self._ahead_parts = 0

    def __contains__(self, number: int) -> bool:
        return number in self._ended or number in self._ahead

    def get(self, number: int) -> Ended | None:
        """Return what became of a transaction; None: it is not remembered, or has not ended."""
        return self._ended.get(number) or self._ahead.get(number)

    def check_may_begin(self, number: int, now_ms: int) -> None:
        """Return if a transaction may begin, or end at once, of which nothing is known.

        Raises:
            Busy: It is ahead of the clock, and too many such ones have ended.
        """
        ahead_ms = time_ms_of(number) - now_ms
        if ahead_ms > AHEAD_MS and (
            len(self._ahead) >= AHEAD_MAX or self._ahead_parts >= AHEAD_PARTS_MAX
        ):
            raise Busy(
                f"transaction {number} was begun {ahead_ms / 1_000:.1f} s ahead of this broker's "
                f"clock, as {len(self._ahead)} before it, of {self._ahead_parts} parts; at most "
                f"{AHEAD_MAX} of {AHEAD_PARTS_MAX} are remembered, for "
                f"{REMEMBERED_MS // 60_000} minutes",
                hint="set the clocks of producers and brokers",
            )

    def add(self, number: int, ended: Ended) -> None:
        """Remember what became of a transaction, perhaps in the place of another one."""
        _, _, offsets, ended_ms, _ = ended
        if time_ms_of(number) - ended_ms > AHEAD_MS:
            self._ahead[number] = ended
            self._ahead_parts += len(offsets)
        else:
            self._ended[number] = ended
            self._parts += len(offsets)
        while self._ended and (
            len(self._ended) + len(self._ahead) > ENDED_MAX
            or self._parts + self._ahead_parts > ENDED_PARTS_MAX
        ):
            first, (_, _, offsets, _, _) = self._ended.popitem(last=False)
            self._parts -= len(offsets)
            self.floor_ms = max(self.floor_ms, time_ms_of(first))

    def forget(self, now_ms: int) -> None:
        """Forget what nobody can ask for any more."""
        self._parts -= _forget(self._ended, now_ms)
        self._ahead_parts -= _forget(self._ahead, now_ms)


def _forget(ended: OrderedDict[int, Ended], now_ms: int) -> int:
    """Forget those that ended long ago; return how many parts they had."""
    parts = 0
    while ended:
        number, (_, _, offsets, ended_ms, _) = next(iter(ended.items()))
        if ended_ms + REMEMBERED_MS > now_ms:
            break
        del ended[number]
        parts += len(offsets)
    return parts
