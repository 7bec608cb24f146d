"""Message ids: 63 bits, time-ordered, made by the producer without asking anyone.

    40 bits  milliseconds since 2025-01-01 UTC (until 2059)
    13 bits  slot, leased by the producer's process in ZooKeeper
    10 bits  sequence within the millisecond

Two ids of one slot never meet: the generator's own time only moves forward. A clock set back is
outwaited by staying at the last millisecond used; a burst beyond 1 024 ids in a millisecond borrows
from the following ones. Two processes never share a slot; that is the lease's promise. A slot that
another process has held before comes with the time of its last id, and goes on behind it; and no id
is later than the mark of the slot, behind which its next holder begins. While a clock that leapt
stands behind the mark, ids go on from the last millisecond used, until the mark has moved.

Example: the first id of slot 5 in the first millisecond of the epoch is ``0 << 23 | 5 << 10 | 0``
= 5120.
"""

from vq import limits
from vq.clock import Clock
from vq.errors import CoordinationError, InvalidArgument

#: 2025-01-01T00:00:00Z in milliseconds since 1970.
EPOCH_MS = 1_735_689_600_000
_TIME_SHIFT = limits.ID_SLOT_BITS + limits.ID_SEQUENCE_BITS
_PER_MS = 1 << limits.ID_SEQUENCE_BITS
_TIME_MAX = (1 << limits.ID_TIME_BITS) - 1


def time_ms_of(message_id: int) -> int:
    """Return the birth time of a message in milliseconds since 1970."""
    return (message_id >> _TIME_SHIFT) + EPOCH_MS


class IdsUsedUp(CoordinationError):
    """All ids up to the mark of the slot are used; there are more once the mark has moved."""


class IdGenerator:
    """Makes ids for one slot. Not thread-safe: one owner, or a lock around it.

    Attributes:
        wants_mark: The clock stands behind the mark of the slot, so that ids lag behind it.
    """

    def __init__(
        self, slot: int, clock: Clock, *, after_ms: int = 0, until_ms: int = EPOCH_MS + _TIME_MAX
    ) -> None:
        self.wants_mark = False
        self._clock = clock
        self._ms = 0
        self._sequence = 0
        self._slot_bits = 0
        self._until = 0  # no id is later
        self.use_slot(slot, after_ms=after_ms, until_ms=until_ms)

    @property
    def used_ms(self) -> int:
        """The wall time, in milliseconds since 1970, that no id made so far is later than."""
        return self._ms + EPOCH_MS

    def use_slot(
        self, slot: int, *, after_ms: int = 0, until_ms: int = EPOCH_MS + _TIME_MAX
    ) -> None:
        """Go on with another slot, after the lease of the first one was lost.

        Ids will be later than ``after_ms``, in milliseconds since 1970, whatever the clock says,
        and not later than ``until_ms``, the mark of the slot.
        """
        if not 0 <= slot < limits.SLOTS_MAX:
            raise InvalidArgument(f"slot {slot} is outside [0, {limits.SLOTS_MAX})")
        self._slot_bits = slot << limits.ID_SEQUENCE_BITS
        after = min(after_ms - EPOCH_MS, _TIME_MAX - 1)
        if after >= self._ms:
            self._ms, self._sequence = after + 1, 0
        self.hold_to(until_ms)

    def hold_to(self, until_ms: int) -> None:
        """Make no id later than ``until_ms``, in milliseconds since 1970; 0: make none."""
        self._until = min(until_ms - EPOCH_MS, _TIME_MAX)
        self._follow(self._clock.wall_ms() - EPOCH_MS)

    def _follow(self, now: int) -> None:
        """Go on at the time of the clock, unless that is over or behind the mark."""
        self.wants_mark = now > self._until
        if now > self._ms and not self.wants_mark:
            self._ms, self._sequence = now, 0

    def take(self, count: int) -> list[int]:
        """Return ``count`` new ids in rising order.

        Raises:
            InvalidArgument: The clock stands before 2025 or after 2059.
            IdsUsedUp: There are not so many up to the mark of the slot; none was used up.
        """
        now = self._clock.wall_ms() - EPOCH_MS
        if not 0 <= now <= _TIME_MAX:
            raise InvalidArgument(f"the clock reads {now + EPOCH_MS} ms: ids cover 2025 to 2059")
        if now > self._ms:
            self._follow(now)
        if self._ms + (self._sequence + count - 1) // _PER_MS > self._until:
            self.wants_mark = True
            raise IdsUsedUp(
                f"no {count} message ids are left before {self._until + EPOCH_MS} ms, the mark of "
                "their slot: ZooKeeper has not taken a later mark yet"
            )
        ids: list[int] = []
        while count:
            if self._sequence == _PER_MS:
                self._ms, self._sequence = self._ms + 1, 0
            some = min(count, _PER_MS - self._sequence)
            first = self._ms << _TIME_SHIFT | self._slot_bits | self._sequence
            ids.extend(range(first, first + some))
            self._sequence += some
            count -= some
        return ids
