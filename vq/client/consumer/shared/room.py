"""For how many more messages a member of a shared group has room. Pure.

It has about as many in hand as it settles in a quarter of a second, and as many as it has workers
at least: no worker of quick messages waits for the journal, and behind long ones nothing lies here
that another member could begin.
Where calls take messages, there are no workers: it has as many as calls ask for, or take in a
quarter of a second, and what was taken is not in hand any more.
"""

from typing import Final

ROOM_MAX: Final = 5_000
ROOM_S: Final = 0.25


class SharedRoom:
    """See the module.

    Args:
        workers: So many are at messages at a time.
        now: The time in seconds, by a clock that is never set.
    """

    def __init__(self, workers: int, now: float) -> None:
        self._least = workers
        self._rate = 0.0  # messages a second, settled lately
        self._rated_at = now
        self._settled = 0  # since then
        self._asked = 0  # by calls that wait,
        self._left = 0  # and by one before that has got nothing

    def be_pulled(self) -> None:
        """Have room for what calls ask for, and not for workers."""
        self._least = 0

    def asks(self, most: int) -> None:
        """Note that a call waits for so many messages."""
        self._asked += most

    def asked(self, most: int, *, in_vain: bool) -> None:
        """Note that the call does not wait any more; one in vain will come again, and ask that."""
        self._asked -= most
        self._left = max(self._left, most) if in_vain else 0

    def forget_asked(self) -> None:
        """Note that nobody takes what calls before have asked for."""
        self._left = 0

    def over(self) -> None:
        """Note that a message is settled, or taken."""
        self._settled += 1

    def free(self, in_hand: int, now: float) -> int:
        """Return how many to ask for beside those in hand; 0: it is not worth it yet."""
        passed = now - self._rated_at
        if passed >= ROOM_S:
            self._rate = (self._rate + self._settled / passed) / 2
            self._rated_at, self._settled = now, 0
        least = max(self._least, self._asked, self._left)
        wanted = min(max(least, int(self._rate * ROOM_S)), ROOM_MAX)
        free = wanted - in_hand
        is_worth_it = in_hand < least or free >= max(1, self._least // 2)
        return free if free > 0 and is_worth_it else 0
