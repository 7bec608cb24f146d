"""Message-id slots: no two holders, late reuse, renewal after a lost session."""

import asyncio

import pytest
from support.coordination import FAULTS, client_of, disarm, expire, strike, until

from vq.clock import SystemClock
from vq.coordination.coordinator import SessionState
from vq.coordination.memory import MemoryEnsemble
from vq.coordination.paths import SLOTS
from vq.coordination.slots import NoSlotFree, SlotLease
from vq.errors import InvalidState


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
    lease = SlotLease(client, SystemClock(), on_change=told.append)
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
    lease = SlotLease(client, SystemClock(), on_change=changes.append)
    slot = await lease.start()
    client.give_up("its clients died")
    assert changes == [slot, None]
    await lease.stop()


async def test_a_new_session_that_takes_a_while_gets_one_slot(ensemble, client) -> None:
    """The search for a slot begins while there is no session; what is found then is kept."""
    lease = SlotLease(client, SystemClock())
    first = await lease.start()
    session = client.session_id
    ensemble.disconnect(client)
    ensemble.expire(session)
    client._enter(SessionState.LOST)  # the twin itself has its next session in the same moment
    await asyncio.sleep(0.02)
    ensemble.reconnect(client)
    await until(lambda: lease.slot not in {None, first})
    assert await client.children(SLOTS) == [str(lease.slot)]
    await lease.stop()


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
