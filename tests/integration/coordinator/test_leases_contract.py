"""The lease of a job, and runs made under it, hold on either coordinator."""

import asyncio
import random

import pytest
from support.coordinator_contract import Ensemble

from vq.clock import SystemClock
from vq.coordination.leases.leases import JobLease, LeaseNotHeld, read_holder
from vq.coordination.leases.runs import make_run, read_results, read_runs, write_result
from vq.coordination.tree.coordinator import BadVersion, Coordinator, Create
from vq.coordination.tree.values.runs import RunOrder, RunResult, RunState
from vq.errors import CoordinationError
from vq.testing.waiting import until


def lease_of(client: Coordinator, name: str) -> JobLease:
    return JobLease(client, SystemClock(), job="archive", holder=name, rng=random.Random(name))


def run(nonce: str, **values: object) -> RunOrder:
    return RunOrder(**{"as_of_ms": 5, "started_ms": 6, "by": "n", "nonce": nonce, **values})


async def test_the_lease_goes_to_the_next_node_with_a_higher_fence(ensemble: Ensemble) -> None:
    one, two = await ensemble.client(), await ensemble.client()
    first, second = lease_of(one, "n1"), lease_of(two, "n2")
    first.start()
    await until(lambda: first.fence == 1)
    second.start()
    check = first.check()
    await ensemble.expire(one)
    await until(lambda: 2 in {first.fence, second.fence})
    with pytest.raises(BadVersion):
        await two.multi([check, Create("late")])
    # The first one may not have heard yet that its session ended.
    await until(lambda: (first.fence is None) != (second.fence is None))
    await (second if first.fence is None else first).stop()
    await until(lambda: 3 in {first.fence, second.fence})
    await first.stop()
    await second.stop()
    assert await read_holder(two, "archive") is None


@pytest.mark.parametrize("calls", range(4))
async def test_a_lost_reply_while_the_lease_is_taken_is_settled(
    ensemble: Ensemble, calls: int
) -> None:
    client, other = await ensemble.client(session_timeout_s=30.0), await ensemble.client()
    lease = lease_of(client, "n1")
    for _ in range(calls):
        await client.exists("nothing")
    ensemble.lose_next_reply(client)
    lease.start()
    await until(lambda: lease.fence is not None)
    found = await read_holder(other, "archive")
    assert found is not None
    assert found.fence == lease.fence
    await other.multi([lease.check(), Create("mine")])
    await lease.stop()


async def test_a_run_is_made_once_under_the_lease(ensemble: Ensemble) -> None:
    one, two = await ensemble.client(), await ensemble.client()
    lease = lease_of(one, "n1")
    lease.start()
    await until(lambda: lease.fence is not None)
    old = lease.check()
    assert await make_run(one, run("a", due_ms=1, fence=1), lease=lease.check) == 0
    assert await make_run(one, run("b", due_ms=1, fence=1), lease=lease.check) == 0
    await lease.stop()
    next_lease = lease_of(two, "n2")
    next_lease.start()
    await until(lambda: next_lease.fence == 2)
    with pytest.raises(LeaseNotHeld):
        await make_run(one, run("c", due_ms=2, fence=1), lease=lambda: old)
    assert await make_run(two, run("d", due_ms=2, fence=2), lease=next_lease.check) == 1
    await next_lease.stop()


async def test_a_lost_reply_makes_no_run_twice(ensemble: Ensemble) -> None:
    client, other = await ensemble.client(session_timeout_s=30.0), await ensemble.client()
    await make_run(other, run("before"))
    for nonce in "abc":
        ensemble.lose_next_reply(client)
        try:
            await make_run(client, run(nonce))
        except CoordinationError:
            await make_run(client, run(nonce))
    await other.sync()
    found = await read_runs(other)
    assert [each.nonce for each in found.known.values()] == ["before", "a", "b", "c"]


async def test_results_are_written_while_many_nodes_write(ensemble: Ensemble) -> None:
    one, two = await ensemble.client(), await ensemble.client()
    await make_run(one, run("a"))
    done = RunResult(state=RunState.DONE, begun_ms=1, ended_ms=2)
    await asyncio.gather(
        *(write_result(each, 0, "b1", f"n{n}", done) for n, each in enumerate([one, two] * 5))
    )
    await one.sync()
    assert list(await read_results(one, 0)) == [("b1", f"n{n}") for n in range(10)]
