"""Message-id slots: a number in [0, 8192) that no other live producer of the cluster has.

A slot is an ephemeral node. The search for a free slot starts where the last search ended (a
persistent counter that wraps around), so a slot is leased again only after all others. So a holder
that does not yet know that its session ended has the slot alone for a long time.

Each slot also has a persistent *mark*: the wall time up to which its holders may have made ids. A
holder keeps the mark ahead of its clock and makes no id that is later than the mark; the next
holder begins after it. So ids differ even if the counter has wrapped around and a clock was wrong,
in either direction.
"""

import asyncio
import contextlib
import random
from itertools import chain
from typing import Final

from vq import limits
from vq.backoff import Backoff
from vq.clock import Clock
from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SessionExpired,
    Set,
)
from vq.coordination.tree.own_node import OwnNode
from vq.coordination.tree.paths import SLOT_MARKS, SLOTS
from vq.coordination.tree.values.slots import Slot, SlotCounter, SlotMark
from vq.errors import CoordinationError, InvalidState
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Tries to lease a slot while other producers start at the same time.
LEASE_TRIES_MAX: Final = 200
#: Pauses after a try to lease a slot, or to move a mark, without an answer.
_BACKOFF: Final = Backoff(first_s=0.05, most_s=5.0)
#: Upper bound of the pause after a lost race for a slot, per race lost so far; at most 1 s. It
#: grows linearly: many producers may start together, and with doubling the last ones would wait for
#: seconds.
_RACE_S: Final = 0.05
#: How far a mark is kept ahead of the holder's clock. When the holder dies and all other slots are
#: leased within this time, the next holder begins its ids that far in the future.
MARK_AHEAD_MS: Final = 600_000
#: How often the mark is moved: twice in that time, so that one move may fail.
MARK_S: Final = MARK_AHEAD_MS / 2_000
#: Tries of one move of a mark after ``BadVersion``, before a pause. It does not use ``update``: the
#: holder knows the version without a read, and reads only after ``BadVersion``.
MOVE_TRIES_MAX: Final = 3
#: How many slots to skip because their marks are more than ``MARK_AHEAD_MS`` ahead of this clock:
#: the clock of a former holder was wrong. If all of them are, this clock was set back.
MARKS_PASSED_MAX: Final = 16
_NO_MARK: Final = -1


class NoSlotFree(CoordinationError):
    """Every message-id slot of the cluster is leased."""


class IdMaker:
    """Makes ids with a slot; this one makes none. What is called on the loop must not block."""

    def used_ms(self) -> int:
        """Return the wall time of the last id; it may be ahead of the clock."""
        return 0

    def slot_changed(self, slot: int | None) -> None:
        """Make ids with another slot; None: with none, until there is one again."""

    def mark_moved(self, until_ms: int) -> None:
        """Make ids up to the slot's new mark; 0: the slot is released, no more ids are made."""


class SlotLease(OwnNode[int]):
    """This producer's slot; after a lost session it leases another one.

    ``slot`` is None after the session was lost, until a new slot is leased: no ids may be made
    then. The new slot has another number.

    Attributes:
        from_ms: Ids of the present slot must be later than this wall time,
        until_ms: and not later than this one.

    Args:
        coordinator: A started coordinator.
        clock: For ``since`` in the node.
        holder: Shown to operators: client id, host, process id.
        rng: For the pauses after a lost race.
        maker: Makes the ids.
        slots: The number of slots; tests use fewer.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        *,
        holder: str = "",
        rng: random.Random | None = None,
        maker: IdMaker | None = None,
        slots: int = limits.SLOTS_MAX,
    ) -> None:
        super().__init__(coordinator, what="message-id slot", audit_s=MARK_S, backoff=_BACKOFF)
        self._clock = clock
        self._holder = holder
        self._rng = rng or random.SystemRandom()
        self._maker = maker or IdMaker()
        self.from_ms = 0
        self.until_ms = 0
        self._mark_version = _NO_MARK
        self._mark_sent_ms = 0  # the latest mark of the slot that was sent or read
        self._count = slots

    @property
    def slot(self) -> int | None:
        """The present slot, None while there is none."""
        return self._held

    async def start(self) -> int:
        """Lease a slot and keep one until ``stop``; return the first one.

        Raises:
            CoordinationError: All slots are leased, or ZooKeeper did not answer.
        """
        if self._keeper.started:
            raise InvalidState("the slot lease was started before")
        slot = await self._take()
        self._begin(slot)
        return slot

    async def _give_back(self, slot: int | None) -> None:
        """Delete the slot's node, and set its mark back to the last id."""
        if slot is None:
            return
        self._maker.mark_moved(0)  # no more ids from here on
        path = SlotMark.path(slot)
        used = SlotMark(until_ms=max(self._maker.used_ms(), self.from_ms)).encode()
        for _ in range(MOVE_TRIES_MAX):
            with contextlib.suppress(BadVersion):  # an earlier move of the mark got no answer
                # A later holder writes the mark, so the version proves that the slot is still ours
                # and that this does not delete another holder's node.
                await self._coordinator.multi(
                    [Set(path, used, self._mark_version), Delete(Slot.path(slot))]
                )
                return
            if not await self._read_again(slot):
                return

    def _mark_ahead(self) -> int:
        """Return the next mark; it is not before any mark that the slot may have."""
        latest_ms = max(self._clock.wall_ms(), self._maker.used_ms(), self.from_ms)
        return max(latest_ms + MARK_AHEAD_MS, self._mark_sent_ms)

    async def _take(self) -> int:
        # It does not use ``update``: it pauses after a lost race, and after a lost answer it leases
        # another slot.
        value = Slot(holder=self._holder, since_ms=self._clock.wall_ms()).encode()
        passed: set[int] = set()
        for attempt in range(LEASE_TRIES_MAX):
            if attempt > len(passed):
                await asyncio.sleep(self._rng.uniform(0, min(1.0, _RACE_S * attempt)))
            try:
                version, slot = await self._free_slot(passed)
                marked_ms, mark_version = await self._read_mark(slot)
                is_far = marked_ms > self._clock.wall_ms() + MARK_AHEAD_MS
                if is_far and slot not in passed and len(passed) < MARKS_PASSED_MAX:
                    passed.add(slot)
                    continue
                self.from_ms = marked_ms
                self._mark_sent_ms = marked_ms
                until_ms = self._mark_ahead()
                mark = SlotMark(until_ms=until_ms).encode()
                path = SlotMark.path(slot)
                is_new = mark_version == _NO_MARK
                await self._coordinator.multi(
                    [
                        Set(SLOTS, SlotCounter(next=(slot + 1) % self._count).encode(), version),
                        Create(Slot.path(slot), value, ephemeral=True),
                        Create(path, mark) if is_new else Set(path, mark, mark_version),
                    ]
                )
                self._mark_version = mark_version + 1
                self._mark_sent_ms = self.until_ms = until_ms
            except (BadVersion, NodeExists, NoNode, SessionExpired):
                continue
            except ConnectionLost:
                # The slot may be leased; then its node ends with the session. There are many other
                # slots, and a use of this one could conflict with its next holder.
                continue
            # The session is the same one: an answer after its end raises ``ConnectionLost``.
            return slot
        raise CoordinationError(f"no message-id slot could be leased in {LEASE_TRIES_MAX} tries")

    async def _free_slot(self, passed: set[int]) -> tuple[int, int]:
        """Return the counter's version and the first free slot from the counter on.

        A slot in ``passed`` is returned only if there is no other.
        """
        try:
            node = await self._coordinator.get(SLOTS)
        except NoNode:
            with contextlib.suppress(NodeExists):
                await self._coordinator.create(SLOTS, SlotCounter().encode(), parents=True)
            node = await self._coordinator.get(SLOTS)
        start = SlotCounter.decode(SLOTS, node.data).next
        taken = set(await self._coordinator.children(SLOTS))
        order = ((start + step) % self._count for step in range(self._count))
        free = (slot for slot in order if str(slot) not in taken)  # there are many: no list of all
        first = next(free, None)
        if first is not None:
            unpassed = (slot for slot in chain([first], free) if slot not in passed)
            return node.stat.version, next(unpassed, first)
        raise NoSlotFree(
            f"all {self._count} message-id slots are leased: so many producers are open in this "
            "cluster; close some, or share one producer in each process"
        )

    async def _read_mark(self, slot: int) -> tuple[int, int]:
        """Return the mark of a slot and its version; 0 and ``_NO_MARK`` for an unused slot."""
        path = SlotMark.path(slot)
        try:
            node = await self._coordinator.get(path)
        except NoNode:
            if await self._coordinator.exists(SLOT_MARKS) is None:
                with contextlib.suppress(NodeExists):
                    await self._coordinator.create(SLOT_MARKS, parents=True)
            return 0, _NO_MARK
        return SlotMark.decode(path, node.data).until_ms, node.stat.version

    def move_mark_soon(self) -> None:
        """Move the mark now, because the clock has passed it."""
        if self._held is not None:
            self.wake()

    async def _is_held(self, slot: int) -> bool:
        """Move the mark of the slot ahead of its ids; return False if the slot is not ours.

        Raises:
            CoordinationError: The mark may have moved; then the next try gets ``BadVersion``.
        """
        for _ in range(MOVE_TRIES_MAX):
            self._mark_sent_ms = until_ms = self._mark_ahead()
            try:
                version = await self._write_mark(slot, SlotMark(until_ms=until_ms).encode())
            except (BadVersion, NodeExists, NoNode):
                # An earlier move was applied without an answer, or an earlier read was stale.
                if not await self._read_again(slot):
                    logger.warning("message-id slot was lost", slot=slot)
                    return False
            else:
                self._mark_version, self.until_ms = version, until_ms
                self._maker.mark_moved(until_ms)
                return True
        raise CoordinationError(
            f"the mark of message-id slot {slot} changed {MOVE_TRIES_MAX} times meanwhile"
        )

    async def _write_mark(self, slot: int, mark: bytes) -> int:
        """Write the mark, whose version is known; return the next version."""
        path = SlotMark.path(slot)
        if self._mark_version == _NO_MARK:
            await self._coordinator.create(path, mark)
            return 0
        return (await self._coordinator.set(path, mark, version=self._mark_version)).version

    async def _read_again(self, slot: int) -> bool:
        """Sync, then read the mark and its version; return False if the slot is not ours.

        Only the present holder of a slot writes its mark. So if the slot is ours after the read of
        the mark, no other producer can have written the mark since that read.
        """
        session = self._coordinator.session_id
        await self._coordinator.sync(SlotMark.path(slot))
        marked_ms, version = await self._read_mark(slot)
        holder = await self._coordinator.exists(Slot.path(slot))
        if holder is None or not session or holder.ephemeral_owner != session:
            return False
        self._mark_version = version
        self._mark_sent_ms = max(self._mark_sent_ms, marked_ms)
        return True

    def _changed(self, slot: int | None) -> None:
        self._maker.slot_changed(slot)
