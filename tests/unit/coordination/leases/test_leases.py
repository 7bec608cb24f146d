"""The lease of a job: one holder, a fence that only rises, lost sessions and lost replies."""

import asyncio
import random

import pytest
from support.coordination import FAULTS, client_of, disarm, expire, strike

from vq.clock import ManualClock
from vq.coordination.leases.leases import JobLease, LeaseNotHeld, read_holder
from vq.coordination.tree.coordinator import BadVersion, Coordinator, Create, SessionState
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.leases import LeaseFence, LeaseHolder
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def lease_of(coordinator: Coordinator, name: str = "b1/n1", **options: object) -> JobLease:
    return JobLease(
        coordinator,
        ManualClock(wall_ms=7),
        job="j",
        holder=name,
        rng=random.Random(name),
        **options,
    )


async def held(lease: JobLease) -> int:
    await until(lambda: lease.fence is not None)
    assert lease.fence is not None
    return lease.fence


async def test_one_node_holds_the_lease_and_gives_it_back(client, other) -> None:
    first, second = lease_of(client), lease_of(other, "b1/n2")
    assert await read_holder(client, "j") is None
    first.start()
    assert await held(first) == 1
    second.start()
    await asyncio.sleep(0.05)
    assert second.fence is None
    found = await read_holder(other, "j")
    assert found is not None
    assert (found.holder, found.fence, found.since_ms) == ("b1/n1", 1, 7)
    await first.stop()
    assert first.fence is None
    assert await held(second) == 2
    await second.stop()
    assert await read_holder(client, "j") is None


async def test_many_nodes_have_one_holder_and_each_taking_raises_the_fence(ensemble) -> None:
    fences: list[int] = []
    async with (
        client_of(ensemble) as a,
        client_of(ensemble) as b,
        client_of(ensemble) as c,
        client_of(ensemble) as d,
    ):
        leases = [lease_of(each, f"b1/n{n}") for n, each in enumerate((a, b, c, d))]
        for each in leases:
            each.start()
        for _ in range(4):
            await until(lambda: any(each.fence is not None for each in leases))
            holders = [each for each in leases if each.fence is not None]
            assert len(holders) == 1
            fences.append(holders[0].fence)
            await holders[0].stop()
            leases.remove(holders[0])
    assert fences == [1, 2, 3, 4]


async def test_a_lost_session_ends_the_lease_at_once_and_it_is_taken_anew(ensemble, client) -> None:
    told: list[int | None] = []
    lease = lease_of(client, on_change=told.append)
    lease.start()
    await held(lease)
    await expire(ensemble, client)
    await until(lambda: len(told) == 3)
    assert told == [1, None, 2]
    await lease.stop()


async def test_a_lost_session_lets_another_node_take_the_lease(ensemble, client, other) -> None:
    first, second = lease_of(client), lease_of(other, "b1/n2")
    first.start()
    await held(first)
    second.start()
    check = first.check()
    ensemble.expire(client)
    await until(lambda: second.fence == 2 or first.fence == 2)
    with pytest.raises(BadVersion):
        await other.multi([check, Create("late")])
    assert await other.exists("late") is None
    await first.stop()
    await second.stop()


async def test_what_is_done_under_the_lease_is_checked(client) -> None:
    lease = lease_of(client)
    with pytest.raises(LeaseNotHeld, match="b1/n1 does not hold"):
        lease.check()
    lease.start()
    await held(lease)
    await client.multi([lease.check(), Create("mine")])
    await lease.stop()
    with pytest.raises(LeaseNotHeld):
        lease.check()


async def test_a_node_that_an_operator_deletes_is_made_again(client) -> None:
    lease = lease_of(client)
    lease.start()
    await held(lease)
    await client.delete(LeaseHolder.path("j"))
    await until(lambda: lease.fence == 2)
    await lease.stop()


async def test_a_fence_that_cannot_be_read_is_not_overwritten(client) -> None:
    """Whoever wrote it may have counted further."""
    await client.create(LeaseFence.path("j"), b"odd", parents=True)
    lease = lease_of(client)
    lease.start()
    await asyncio.sleep(0.05)
    assert lease.fence is None
    await client.set(LeaseFence.path("j"), LeaseFence(fence=8).encode())
    lease.wake()
    assert await held(lease) == 9
    await lease.stop()


async def test_a_coordinator_that_is_closed_ends_the_lease(ensemble: MemoryEnsemble) -> None:
    client = ensemble.coordinator("test", session_timeout_s=4.0)
    await client.start()
    lease = lease_of(client)
    lease.start()
    await held(lease)
    await client.close()
    assert client.state is SessionState.CLOSED
    assert lease.fence is None
    await lease.stop()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("skip", range(9))
async def test_a_fault_of_any_call_ends_with_one_holder(
    ensemble: MemoryEnsemble, fault: str, skip: int
) -> None:
    """A request or a reply is lost, or the session ends, at each call in turn."""
    async with client_of(ensemble) as client, client_of(ensemble) as other:
        lease = lease_of(client)
        strike(ensemble, client, fault, skip)
        lease.start()
        await until(lambda: lease.fence is not None)
        disarm(client)
        lease.wake()
        await asyncio.sleep(0.02)
        await until(lambda: lease.fence is not None)
        found = await read_holder(other, "j")
        assert found is not None
        assert found.fence == lease.fence
        fence = LeaseFence.decode("f", (await other.get(LeaseFence.path("j"))).data).fence
        assert fence == lease.fence
        await other.multi([lease.check(), Create("mine")])
        await lease.stop()
        assert await read_holder(other, "j") is None
