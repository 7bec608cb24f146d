"""Message ids: 63 bits, time-ordered, made by the producer without asking anyone.

    40 bits  milliseconds since 2025-01-01 UTC (until 2059)
    13 bits  slot, leased by the producer's process in ZooKeeper
    10 bits  sequence within the millisecond

Two ids of one slot never meet: the generator's own time only moves forward. A clock set back is
outwaited by staying at the last millisecond used; a burst beyond 1 024 ids in a millisecond borrows
from the following ones. Two processes never share a slot; that is the lease's promise. A slot that
another process has held before comes with the time of its last id, and goes on behind it.

Example: the first id of slot 5 in the first millisecond of the epoch is ``0 << 23 | 5 << 10 | 0``
= 5120.
"""

from vq import limits
from vq.clock import Clock
from vq.errors import InvalidArgument

#: 2025-01-01T00:00:00Z in milliseconds since 1970.
EPOCH_MS = 1_735_689_600_000
_TIME_SHIFT = limits.ID_SLOT_BITS + limits.ID_SEQUENCE_BITS
_PER_MS = 1 << limits.ID_SEQUENCE_BITS
_TIME_MAX = (1 << limits.ID_TIME_BITS) - 1


def time_ms_of(message_id: int) -> int:
    """Return the birth time of a message in milliseconds since 1970."""
    return (message_id >> _TIME_SHIFT) + EPOCH_MS


class IdGenerator:
    """Makes ids for one slot. Not thread-safe: one owner, or a lock around it."""

    def __init__(self, slot: int, clock: Clock, *, after_ms: int = 0) -> None:
        self._clock = clock
        self._ms = 0
        self._sequence = 0
        self._slot_bits = 0
        self.use_slot(slot, after_ms=after_ms)

    @property
    def used_ms(self) -> int:
        """The wall time, in milliseconds since 1970, that no id made so far is later than."""
        return self._ms + EPOCH_MS

    def use_slot(self, slot: int, *, after_ms: int = 0) -> None:
        """Go on with another slot, after the lease of the first one was lost.

        Ids will be later than ``after_ms``, in milliseconds since 1970, whatever the clock says.
        """
        if not 0 <= slot < limits.SLOTS_MAX:
            raise InvalidArgument(f"slot {slot} is outside [0, {limits.SLOTS_MAX})")
        self._slot_bits = slot << limits.ID_SEQUENCE_BITS
        after = min(after_ms - EPOCH_MS, _TIME_MAX - 1)
        if after >= self._ms:
            self._ms, self._sequence = after + 1, 0

    def take(self, count: int) -> list[int]:
        """Return ``count`` new ids in rising order.

        Raises:
            InvalidArgument: The clock stands before 2025 or after 2059.
        """
        now = self._clock.wall_ms() - EPOCH_MS
        if not 0 <= now <= _TIME_MAX:
            raise InvalidArgument(f"the clock reads {now + EPOCH_MS} ms: ids cover 2025 to 2059")
        if now > self._ms:
            self._ms, self._sequence = now, 0
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
