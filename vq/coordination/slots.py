"""Message-id slots: a number in [0, 8192) that no other live producer of the cluster has.

A slot is an ephemeral node. The search for a free one starts where the last one ended (a persistent
counter that goes round), so a slot is taken again only after all others: a holder that does not yet
know that its session ended meets nobody on it for a long time.

Beside it each slot has a persistent *mark*: the wall time up to which its holders may have made
ids. A holder keeps its mark ahead of its clock and makes no id that is later than the mark; the
next holder begins behind it. So ids differ also when the slots have gone round and a clock was
wrong meanwhile, whichever way.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from vq import limits
from vq.backoff import Backoff
from vq.clock import Clock
from vq.coordination.coordinator import (
    BadVersion,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
    Set,
)
from vq.coordination.keeper import Keeper
from vq.coordination.paths import SLOT_MARKS, SLOTS, Slot, SlotCounter, SlotMark
from vq.errors import CoordinationError, InvalidState
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Tries to win a slot against other producers that start at the same time.
LEASE_TRIES_MAX: Final = 200
#: Pauses after a try to lease a slot, or to move a mark, that ZooKeeper did not answer.
_BACKOFF: Final = Backoff(first_s=0.05, most_s=5.0)
#: Upper bound of the pause after a lost race for a slot, for each race lost so far; at most 1 s. It
#: grows by addition: those that started together are as many as there are slots to go round, and
#: doubling would have the last of them wait for seconds.
_RACE_S: Final = 0.05
#: How far a mark is kept ahead of the holder's clock. When the holder dies and all other slots are
#: leased within this time, the next holder begins its ids that far in the future.
MARK_AHEAD_MS: Final = 600_000
#: How often it is moved: half of that, so that one move may fail.
MARK_S: Final = MARK_AHEAD_MS / 2_000
#: Tries of one move of a mark whose version proves wrong, before a pause. Not by ``update``: the
#: holder knows the version without reading, and reads only when it proves wrong.
MOVE_TRIES_MAX: Final = 3
#: So many slots are passed over because their marks lie further ahead of this clock than that: a
#: former holder's clock was wrong. When all of them do, it is this clock that was set back.
MARKS_PASSED_MAX: Final = 16
_NO_MARK: Final = -1


class NoSlotFree(CoordinationError):
    """Every message-id slot of the cluster is taken."""


class SlotLease:
    """This producer's slot, leased anew after a lost session.

    ``slot`` is None while there is none (the session was lost and no new one is leased yet): ids
    must not be made then. After a loss the new slot is another number.

    Attributes:
        from_ms: Ids of the slot held now must be later than this wall time,
        until_ms: and not later than this one.

    Args:
        coordinator: A started coordinator.
        clock: For ``since`` in the node.
        holder: Shown to operators: client id, host, process id.
        rng: For the pauses after a lost race.
        on_change: Told the new slot or None, on the loop; must not block.
        on_mark: Told ``until_ms`` when it has moved, and 0 when no id may be made any more, since
            the slot is given back; on the loop, must not block.
        used_ms: The wall time of the last id that was made; may lie ahead of the clock.
        slots: How many there are; tests take fewer.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        *,
        holder: str = "",
        rng: random.Random | None = None,
        on_change: Callable[[int | None], None] | None = None,
        on_mark: Callable[[int], None] = lambda _: None,
        used_ms: Callable[[], int] = lambda: 0,
        slots: int = limits.SLOTS_MAX,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._holder = holder
        self._rng = rng or random.SystemRandom()
        self._on_change = on_change
        self._on_mark = on_mark
        self._used_ms = used_ms
        self.from_ms = 0
        self.until_ms = 0
        self._mark_version = _NO_MARK
        self._mark_sent_ms = 0  # the latest mark of the slot that was ever sent, or read
        self._count = slots
        self._slot: int | None = None
        self._keeper = Keeper(
            coordinator, self._look, what="message-id slot", audit_s=MARK_S, backoff=_BACKOFF
        )
        self._remove_listener: Callable[[], None] | None = None

    @property
    def slot(self) -> int | None:
        """The slot held now, None while there is none."""
        return self._slot

    async def start(self) -> int:
        """Lease a slot and keep one until ``stop``; returns the first.

        Raises:
            CoordinationError: All slots are taken, or ZooKeeper did not answer.
        """
        if self._keeper.started:
            raise InvalidState("the slot lease was started before")
        slot = await self._lease()
        self._remove_listener = self._coordinator.add_listener(self._on_session)
        self._set(slot)
        self._keeper.start()
        return slot

    async def stop(self) -> None:
        """Give the slot back, if ZooKeeper can be reached; otherwise it ends with the session."""
        if self._remove_listener is not None:
            self._remove_listener()
        await self._keeper.stop()
        slot, self._slot = self._slot, None
        if slot is not None and self._coordinator.state is SessionState.CONNECTED:
            self._on_mark(0)  # the mark is about to be set to what was used
            with contextlib.suppress(CoordinationError):
                await self._give_back(slot)

    async def _give_back(self, slot: int) -> None:
        """Free the slot, and set its mark back to what was used: nobody makes ids with it now."""
        path = SlotMark.path(slot)
        used = SlotMark(until_ms=max(self._used_ms(), self.from_ms)).encode()
        for _ in range(MOVE_TRIES_MAX):
            with contextlib.suppress(BadVersion):  # a move of the mark had no answer
                # Whoever leases the slot after us writes its mark: the version tells that it is
                # still ours, and that nobody else's slot is freed here.
                await self._coordinator.multi(
                    [Set(path, used, self._mark_version), Delete(Slot.path(slot))]
                )
                return
            if not await self._read_again(slot):
                return

    def _mark_ahead(self) -> int:
        """Return the next mark: never one before a mark that the slot may have already."""
        latest_ms = max(self._clock.wall_ms(), self._used_ms(), self.from_ms)
        return max(latest_ms + MARK_AHEAD_MS, self._mark_sent_ms)

    async def _lease(self) -> int:
        # Not by ``update``: a lost race is followed by a pause, and a lease whose answer was lost
        # by one of another slot.
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
                # Perhaps leased, perhaps not. A slot that was is left to end with the session;
                # there are plenty, and taking it over could meet its next holder.
                continue
            # An answer is of the session that there is: one that came later is ``ConnectionLost``.
            return slot
        raise CoordinationError(f"no message-id slot was won in {LEASE_TRIES_MAX} tries")

    async def _free_slot(self, passed: set[int]) -> tuple[int, int]:
        """Return the counter's version and the first free slot from where it points.

        Those in ``passed`` only if there is no other.
        """
        try:
            node = await self._coordinator.get(SLOTS)
        except NoNode:
            with contextlib.suppress(NodeExists):
                await self._coordinator.create(SLOTS, SlotCounter().encode(), parents=True)
            node = await self._coordinator.get(SLOTS)
        start = SlotCounter.decode(SLOTS, node.data).next
        taken = set(await self._coordinator.children(SLOTS))
        order = [(start + step) % self._count for step in range(self._count)]
        free = [slot for slot in order if str(slot) not in taken]
        if free:
            slot = next((slot for slot in free if slot not in passed), free[0])
            return node.stat.version, slot
        raise NoSlotFree(
            f"all {self._count} message-id slots are taken: as many producers are open in this "
            "cluster; close some, or share one producer in each process"
        )

    async def _read_mark(self, slot: int) -> tuple[int, int]:
        """Return the mark of a slot and its version; 0 and ``_NO_MARK`` when nobody has held it."""
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
        """Move the mark now: the clock stands behind it."""
        if self._slot is not None:
            self._keeper.wake()

    async def _move_mark(self) -> None:
        """Keep the mark of the slot held now ahead of its ids.

        Raises:
            CoordinationError: It is perhaps moved; then the version proves wrong at the next try.
        """
        slot = self._slot
        for _ in range(MOVE_TRIES_MAX):
            if slot is None or slot != self._slot:
                return
            self._mark_sent_ms = until_ms = self._mark_ahead()
            try:
                version = await self._write_mark(slot, SlotMark(until_ms=until_ms).encode())
            except (BadVersion, NodeExists, NoNode):
                # An earlier move had no answer and was done, or a server was read that lagged.
                if not await self._read_again(slot) and slot == self._slot:
                    logger.warning("message-id slot was lost", slot=slot)
                    self._set(None)
                    self._keeper.wake()
            else:
                if slot == self._slot:
                    self._mark_version, self.until_ms = version, until_ms
                    self._on_mark(until_ms)
                return
        if slot == self._slot:
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
        """Read the version of the mark from a server that does not lag; False: it is not ours.

        Only a holder writes the mark, and only once the one before has gone. So a mark that was
        read before its slot was seen to be ours is ours, and no other version will be until then.
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

    def _on_session(self, state: SessionState) -> None:
        if state in {SessionState.LOST, SessionState.CLOSED}:
            self._set(None)  # CLOSED without LOST before: nobody keeps the session alive any more
            self._keeper.wake()

    def _set(self, slot: int | None) -> None:
        if slot == self._slot:
            return
        self._slot = slot
        if self._on_change is not None:
            self._on_change(slot)

    async def _look(self, _: bool) -> None:
        """Move the mark of the slot, or lease one; see ``Keeper``."""
        if self._slot is not None:
            await self._move_mark()
            return
        slot = await self._lease()
        if not self._keeper.hinted:  # else its session may have ended meanwhile
            self._set(slot)
