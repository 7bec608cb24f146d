"""For how many more messages a member of a shared group has room. Pure.

It has about as many in hand as it settles in a quarter of a second, and twice as many as it has
workers at least: so no worker waits for the journal, and no other member waits for what lies here.
"""

from typing import Final

__all__ = ["SharedRoom"]

ROOM_MAX: Final = 5_000
ROOM_S: Final = 0.25


class SharedRoom:
    """See the module.

    Args:
        workers: So many are at messages at a time.
        now: The time in seconds, by a clock that is never set.

    Attributes:
        in_hand: Messages that are asked for and not settled.
    """

    def __init__(self, workers: int, now: float) -> None:
        self.in_hand = 0
        self._least = 2 * workers
        self._rate = 0.0  # messages a second, settled lately
        self._rated_at = now
        self._settled = 0  # since then

    def over(self) -> None:
        """Note that a message is not in hand any more."""
        self.in_hand -= 1
        self._settled += 1

    def free(self, now: float) -> int:
        """Return how many to ask for; 0: it is not worth it yet."""
        passed = now - self._rated_at
        if passed >= ROOM_S:
            self._rate = (self._rate + self._settled / passed) / 2
            self._rated_at, self._settled = now, 0
        wanted = min(max(self._least, int(self._rate * ROOM_S)), ROOM_MAX)
        free = wanted - self.in_hand
        return free if free >= max(1, self._least // 4) else 0
