"""Message ids: 63 bits, time-ordered, made by the producer without a request.

    40 bits  milliseconds since 2025-01-01 UTC (until 2059)
    13 bits  slot, leased by the producer's process in ZooKeeper
    10 bits  sequence within the millisecond

Two ids of one slot never collide: the generator's time only moves forward. When the clock is set
back, the generator stays at the last millisecond used until the clock has caught up. More than
1 024 ids in a millisecond use the following milliseconds.

The lease ensures that two processes never share a slot. A slot has a *mark*, a time: its holder
makes no id later than the mark, and the next holder begins after it. When the clock leaps past the
mark, ids continue from the last millisecond used until the mark has moved.

Example: the first id of slot 5 in the first millisecond of the epoch is ``0 << 23 | 5 << 10 | 0``
= 5120.
"""

from vq import limits
from vq.bounds import check_between
from vq.clock import Clock
from vq.errors import CoordinationError, InvalidArgument
from vq.model import ID_EPOCH_MS

EPOCH_MS = ID_EPOCH_MS
_TIME_SHIFT = limits.ID_SLOT_BITS + limits.ID_SEQUENCE_BITS
_PER_MS = 1 << limits.ID_SEQUENCE_BITS
_TIME_MAX = (1 << limits.ID_TIME_BITS) - 1


class IdsUsedUp(CoordinationError):
    """All ids up to the mark of the slot are used. The next mark allows more."""


class IdGenerator:
    """Makes ids for one slot. Not thread-safe: it needs one owner or a lock.

    Attributes:
        wants_mark: The clock has passed the mark of the slot, so ids lag behind the clock.
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
        """The time of the latest id made so far, in milliseconds since 1970."""
        return self._ms + EPOCH_MS

    def use_slot(
        self, slot: int, *, after_ms: int = 0, until_ms: int = EPOCH_MS + _TIME_MAX
    ) -> None:
        """Use another slot, after the lease of the first one was lost.

        Ids are later than ``after_ms``, in milliseconds since 1970, whatever the clock says, and
        not later than ``until_ms``, the mark of the slot.
        """
        check_between("slot", slot, 0, limits.SLOTS_MAX - 1)
        self._slot_bits = slot << limits.ID_SEQUENCE_BITS
        after = min(after_ms - EPOCH_MS, _TIME_MAX - 1)
        if after >= self._ms:
            self._ms, self._sequence = after + 1, 0
        self.limit_to(until_ms)

    def limit_to(self, until_ms: int) -> None:
        """Make no id later than ``until_ms``, in milliseconds since 1970; 0: make none."""
        self._until = min(until_ms - EPOCH_MS, _TIME_MAX)
        self._follow(self._clock.wall_ms() - EPOCH_MS)

    def _follow(self, now: int) -> None:
        """Move to the time of the clock, unless it is before the last id or after the mark."""
        self.wants_mark = now > self._until
        if now > self._ms and not self.wants_mark:
            self._ms, self._sequence = now, 0

    def take(self, count: int) -> list[int]:
        """Return ``count`` new ids in rising order.

        Raises:
            InvalidArgument: The clock is before 2025 or after 2059.
            IdsUsedUp: Fewer ids than that are left up to the mark of the slot; none was used.
        """
        now = self._clock.wall_ms() - EPOCH_MS
        if not 0 <= now <= _TIME_MAX:
            raise InvalidArgument(f"the clock reads {now + EPOCH_MS} ms: ids cover 2025 to 2059")
        if now > self._ms:
            self._follow(now)
        if self._ms + (self._sequence + count - 1) // _PER_MS > self._until:
            self.wants_mark = True
            raise IdsUsedUp(
                f"fewer than {count} message ids are left before {self._until + EPOCH_MS} ms, the "
                "mark of the slot: ZooKeeper has no later mark yet"
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
