"""Message-id slots: no two holders, late reuse, renewal after a lost session."""

import asyncio

import pytest
from support.coordination import FAULTS, Used, client_of, disarm, expire, strike

from vq.client.ids import EPOCH_MS, IdGenerator, IdsUsedUp
from vq.clock import ManualClock, SystemClock
from vq.coordination.leases import slots
from vq.coordination.leases.slots import IdMaker, NoSlotFree, SlotLease
from vq.coordination.tree.coordinator import Coordinator, Node, SessionState
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.paths import SLOTS
from vq.coordination.tree.values.slots import SlotMark
from vq.errors import CoordinationError, InvalidState
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


async def test_leases_at_once_get_different_slots(client) -> None:
    """Many producers that start together."""
    leases = [SlotLease(client, SystemClock()) for _ in range(12)]
    slots = await asyncio.gather(*(lease.start() for lease in leases))
    assert len(set(slots)) == 12
    for lease in leases:
        await lease.stop()
    assert await client.children("slots") == []


async def test_a_slot_is_reused_only_after_all_others(client) -> None:
    """The search goes on where it ended, round and round."""
    seen = []
    for _ in range(7):
        lease = SlotLease(client, SystemClock(), slots=5)
        seen.append(await lease.start())
        await lease.stop()
    assert seen == [0, 1, 2, 3, 4, 0, 1]


async def test_taken_slots_are_skipped(client) -> None:
    """A long-lived holder keeps its slot when the search comes round."""
    keeper = SlotLease(client, SystemClock(), slots=3)
    assert await keeper.start() == 0
    seen = []
    for _ in range(4):
        lease = SlotLease(client, SystemClock(), slots=3)
        seen.append(await lease.start())
        await lease.stop()
    assert seen == [1, 2, 1, 2]
    await keeper.stop()


async def test_more_producers_than_slots_are_told(client) -> None:
    """Refused with the bound and what to do; a slot given back can be had."""
    leases = [SlotLease(client, SystemClock(), slots=2) for _ in range(3)]
    await leases[0].start()
    await leases[1].start()
    with pytest.raises(NoSlotFree, match="all 2 message-id slots"):
        await leases[2].start()
    await leases[0].stop()
    assert await leases[2].start() == 0
    await leases[1].stop()
    await leases[2].stop()


async def test_a_lost_session_takes_the_slot_and_a_new_one_follows(ensemble, client) -> None:
    """None in between, then another number."""
    told: list[int | None] = []
    lease = SlotLease(client, SystemClock(), maker=Told(told))
    first = await lease.start()
    await expire(ensemble, client)
    await until(lambda: len(told) == 3)
    assert told[:2] == [first, None]
    assert told[2] not in {first, None}
    assert lease.slot == told[2]
    await lease.stop()
    assert lease.slot is None


async def test_a_coordinator_that_gave_up_takes_the_slot(client) -> None:
    """Nobody keeps the session alive any more, so another process may lease the slot soon."""
    changes: list[int | None] = []
    lease = SlotLease(client, SystemClock(), maker=Told(changes))
    slot = await lease.start()
    client.give_up("its clients died")
    assert changes == [slot, None]
    await lease.stop()


async def test_a_new_session_that_takes_a_while_gets_one_slot(
    ensemble, client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for a slot begins while there is no session; what is found then is kept."""
    lease = SlotLease(client, SystemClock())
    first = await lease.start()
    session = client.session_id
    ensemble.disconnect(client)
    ensemble.expire(session)
    searches: list[str] = []
    get = client.get

    async def noted(path: str) -> Node:
        searches.append(path)
        return await get(path)

    monkeypatch.setattr(client, "get", noted)
    client.enter(SessionState.LOST)  # the twin itself has its next session in the same moment
    await until(lambda: searches)
    ensemble.reconnect(client)
    await until(lambda: lease.slot not in {None, first})
    assert await client.children(SLOTS) == [str(lease.slot)]
    await lease.stop()


class Told(IdMaker):
    """Notes the slots in a list."""

    def __init__(self, slots: list[int | None]) -> None:
        self._slots = slots

    def slot_changed(self, slot: int | None) -> None:
        self._slots.append(slot)


class Holder(IdMaker):
    """One process: a clock, a lease of the only slot, and the ids it made."""

    def __init__(self, client: Coordinator, *, wall_ms: int) -> None:
        self.client = client
        self.clock = ManualClock(wall_ms=wall_ms)
        self.generator: IdGenerator | None = None
        self.lease = SlotLease(client, self.clock, maker=self, slots=1)

    def used_ms(self) -> int:
        return 0 if self.generator is None else self.generator.used_ms

    async def start(self) -> None:
        slot = await self.lease.start()
        self.generator = IdGenerator(
            slot, self.clock, after_ms=self.lease.from_ms, until_ms=self.lease.until_ms
        )

    def mark_moved(self, until_ms: int) -> None:
        if self.generator is not None:
            self.generator.limit_to(until_ms)

    async def mark_ms(self) -> int:
        """As the ensemble has it."""
        node = await self.client.get(SlotMark.path(0))
        return SlotMark.decode("m", node.data).until_ms

    async def moves_mark(self) -> bool:
        """Try once to move it."""
        try:
            return await self.lease._is_held(0)
        except CoordinationError:
            return False

    def take(self, count: int) -> set[int]:
        assert self.generator is not None
        return set(self.generator.take(count))


NOW_MS = EPOCH_MS + 10_000_000_000


@pytest.mark.parametrize("clean", [True, False])
async def test_a_clock_set_back_and_a_slot_that_comes_again_make_no_equal_ids(
    ensemble, clean: bool
) -> None:
    """Its former holder had a clock that ran ahead, and may not have given it back."""
    async with client_of(ensemble) as client:
        first = Holder(client, wall_ms=NOW_MS)
        await first.start()
        made = first.take(5_000)
        first.clock.advance(120)
        made |= first.take(5_000)
        if clean:
            await first.lease.stop()
    await first.lease.stop()  # if it has not, it died with its session
    async with client_of(ensemble) as client:
        second = Holder(client, wall_ms=NOW_MS - 3_600_000)
        await second.start()
        assert not made & second.take(200_000)
        ahead_ms = second.lease.from_ms - first.used_ms()
        assert ahead_ms == 0 if clean else 0 < ahead_ms <= slots.MARK_AHEAD_MS
        await second.lease.stop()


async def test_a_holder_keeps_its_mark_ahead_of_its_ids(
    client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose clock leaps; a move whose reply is lost is followed by others."""
    monkeypatch.setattr(slots, "MARK_S", 0.005)
    holder = Holder(client, wall_ms=NOW_MS)
    await holder.start()

    async def is_ahead() -> bool:
        mark = SlotMark.decode("m", (await client.get(SlotMark.path(0))).data)
        return mark.until_ms == holder.clock.wall_ms() + slots.MARK_AHEAD_MS

    assert await is_ahead()
    for days in (1, 2):
        holder.clock.advance(days * 86_400)
        holder.take(1)
        await until_true(is_ahead)
    await holder.lease.stop()
    mark = SlotMark.decode("m", (await client.get(SlotMark.path(0))).data)
    assert mark.until_ms == holder.used_ms()


@pytest.mark.parametrize("read", ["lost", "behind"])
async def test_a_mark_moves_on_after_a_move_without_an_answer(
    ensemble, client, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Nobody else moves it: a version that proves wrong is read again, from the leader."""
    holder = Holder(client, wall_ms=NOW_MS)
    await holder.start()
    ensemble.lose_next_reply(client)
    holder.clock.advance(300)
    assert not await holder.moves_mark(), "it was done, but had no answer"
    await until(lambda: client.state is SessionState.CONNECTED)
    if read == "lost":
        sync = client.sync

        async def lost(path: str = "") -> None:
            ensemble.lose_next_request(client)
            await sync(path)

        with monkeypatch.context() as patch:
            patch.setattr(client, "sync", lost)
            assert not await holder.moves_mark()
        await until(lambda: client.state is SessionState.CONNECTED)
    else:
        ensemble.lag(client)
    for _ in range(5):
        holder.clock.advance(300)
        assert await holder.moves_mark()
        assert holder.lease.until_ms == holder.clock.wall_ms() + slots.MARK_AHEAD_MS
    ensemble.catch_up(client)
    assert await holder.mark_ms() == holder.lease.until_ms
    holder.take(1)
    ensemble.lose_next_reply(client)
    assert not await holder.moves_mark()
    await until(lambda: client.state is SessionState.CONNECTED)
    await holder.lease.stop()
    assert await holder.mark_ms() == holder.used_ms(), "given back although the version was wrong"
    assert await client.children(SLOTS) == []


async def test_a_mark_is_never_moved_back_while_its_slot_is_held(ensemble, client) -> None:
    """Ids were allowed up to it: a clock that is put right does not take that back."""
    holder = Holder(client, wall_ms=NOW_MS)
    await holder.start()
    for answered in (True, False):
        holder.clock.step_wall_ms(3_600_000)
        if not answered:
            ensemble.lose_next_reply(client)
        assert await holder.moves_mark() is answered
        await until(lambda: client.state is SessionState.CONNECTED)
        marked_ms = await holder.mark_ms()
        holder.clock.step_wall_ms(-3_600_000)
        assert await holder.moves_mark()
        assert await holder.mark_ms() == marked_ms
        holder.clock.step_wall_ms(3_600_000)
    await holder.lease.stop()


async def test_a_mark_of_a_slot_that_is_another_s_by_now_is_left_alone(ensemble, client) -> None:
    """The former holder leases another slot; when it stops, it does not free that one either."""
    path = SlotMark.path(0)
    holder = Holder(client, wall_ms=NOW_MS)
    await holder.start()
    async with client_of(ensemble) as thief:
        await client.delete("slots/0")
        other = Holder(thief, wall_ms=NOW_MS)
        await other.start()
        before = await thief.get(path)
        assert not await holder.moves_mark()
        await holder.lease.stop()
        assert (await thief.get(path)).data == before.data
        assert await thief.children(SLOTS) == ["0"]
        await other.lease.stop()


async def test_a_clock_that_leaps_ahead_makes_no_ids_behind_the_mark(ensemble) -> None:
    """Its process is killed before the mark moves, and the clock is put right."""
    async with client_of(ensemble) as client:
        first = Holder(client, wall_ms=NOW_MS)
        await first.start()
        first.clock.step_wall_ms(3_600_000)
        made = first.take(5)
        assert first.generator is not None
        assert first.generator.wants_mark
        assert first.used_ms() <= await first.mark_ms()
    await first.lease.stop()  # it died with its session
    async with client_of(ensemble) as client:
        second = Holder(client, wall_ms=NOW_MS)
        await second.start()
        second.clock.advance(3_600)
        assert not made & second.take(5)
        second.lease.move_mark_soon()
        await until(lambda: not second.generator.wants_mark)
        assert second.used_ms() == second.clock.wall_ms()
        await second.lease.stop()
        with pytest.raises(IdsUsedUp):  # the slot may be another's by now
            second.take(1)


async def test_a_slot_that_a_wrong_clock_has_marked_is_passed_over(client) -> None:
    """Ids with a birth decades ahead stay with the process that had the wrong clock."""
    wrong_ms = NOW_MS + 10**12
    wrong = SlotLease(client, ManualClock(wall_ms=wrong_ms), maker=Used(wrong_ms), slots=5)
    await wrong.start()
    await wrong.stop()
    seen = []
    for _ in range(5):
        lease = SlotLease(client, ManualClock(wall_ms=NOW_MS), slots=5)
        seen.append((await lease.start(), lease.from_ms <= NOW_MS + slots.MARK_AHEAD_MS))
        await lease.stop()
    assert seen == [(1, True), (2, True), (3, True), (4, True), (1, True)]


async def test_a_lease_starts_once(client) -> None:
    """A second start is a mistake."""
    lease = SlotLease(client, SystemClock())
    await lease.start()
    with pytest.raises(InvalidState):
        await lease.start()
    await lease.stop()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_lease_survives_a_fault_at_every_call(fault: str) -> None:
    """Whichever call is struck, the holder's slot is really its own."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as client, client_of(ensemble) as judge:
            lease = SlotLease(client, SystemClock())
            strike(ensemble, client, fault, skip)
            slot = await lease.start()
            was_struck = disarm(client)
            stat = await judge.exists(f"slots/{slot}")
            assert stat is not None
            assert stat.ephemeral_owner == client.session_id
            await lease.stop()
        if not was_struck:
            break
        skip += 1
    assert skip > 3


async def test_a_holder_that_made_no_id_leaves_the_mark_where_it_was(client: Coordinator) -> None:
    """The ids of an earlier holder lie ahead of this clock."""
    clock = ManualClock(wall_ms=1_000_000)
    first = SlotLease(client, clock, slots=1, maker=Used(1_400_000))
    await first.start()
    await first.stop()
    for _ in range(2):
        lease = SlotLease(client, clock, slots=1)
        await lease.start()
        assert lease.from_ms == 1_400_000
        await lease.stop()
