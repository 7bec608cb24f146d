"""Runs of the archive: made once, forgotten when they are done, set aside when unreadable."""

import asyncio
from dataclasses import replace

import pytest
from support.coordination import FAULTS, client_of, disarm, strike

from vq.coordination.leases import runs
from vq.coordination.leases.leases import LeaseNotHeld
from vq.coordination.leases.runs import (
    begin_runs,
    forget_runs,
    make_run,
    read_result,
    read_results,
    read_runs,
    write_result,
)
from vq.coordination.tree.coordinator import Check, NodeExists
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.brokers import Registration
from vq.coordination.tree.values.leases import LeaseFence
from vq.coordination.tree.values.runs import (
    RUNS_KEPT,
    ArchiveTopicRun,
    RunCounter,
    RunOrder,
    RunResult,
    RunState,
)
from vq.errors import CoordinationError

DONE = RunResult(state=RunState.DONE, begun_ms=1, ended_ms=2, total=ArchiveTopicRun(blocks=3))


def run(nonce: str = "a", **values: object) -> RunOrder:
    return RunOrder(**{"as_of_ms": 5, "started_ms": 6, "by": "me", "nonce": nonce, **values})


async def test_runs_have_rising_numbers_and_are_read_in_order(client) -> None:
    assert await read_runs(client) == type(await read_runs(client))()
    for number, nonce in enumerate("abcdefghijkl"):
        assert await make_run(client, run(nonce)) == number
    found = await read_runs(client)
    assert list(found.known) == list(range(12))
    assert found.known[11] == run("l")


async def test_a_run_that_is_there_is_not_made_again(client) -> None:
    """By its nonce; a daily one also by the time at which it was due."""
    assert await make_run(client, run("a", due_ms=1)) == 0
    assert await make_run(client, run("a")) == 0
    assert await make_run(client, run("b", due_ms=1)) == 0
    assert await make_run(client, run("c", due_ms=2)) == 1


async def test_runs_that_are_made_at_once_get_different_numbers(client, other) -> None:
    numbers = await asyncio.gather(
        *(
            make_run(each, run(f"{name}{n}"))
            for name, each in (("a", client), ("b", other))
            for n in range(5)
        )
    )
    assert sorted(numbers) == list(range(10))


async def test_a_counter_that_is_behind_or_unreadable_gives_no_number_twice(client) -> None:
    for nonce in "ab":
        await make_run(client, run(nonce))
    await client.set(RunCounter.path(), RunCounter(next=0).encode())
    assert await make_run(client, run("c")) == 2
    await client.set(RunCounter.path(), b"odd")
    assert await make_run(client, run("d")) == 3
    await client.set("archive/runs/3", b"odd")
    await client.set(RunCounter.path(), RunCounter(next=0).encode())
    assert await make_run(client, run("e")) == 4


async def test_a_run_is_made_only_under_the_lease(client) -> None:
    await client.create(LeaseFence.path("j"), b"1", parents=True)
    check = Check(LeaseFence.path("j"), 0)
    assert await make_run(client, run("a", fence=1), lease=lambda: check) == 0
    await client.set(LeaseFence.path("j"), b"2")
    with pytest.raises(LeaseNotHeld, match="another node took the lease before me"):
        await make_run(client, run("b", fence=1), lease=lambda: check)
    assert list((await read_runs(client)).known) == [0]


async def test_an_unreadable_run_is_set_aside(client) -> None:
    for nonce in "abc":
        await make_run(client, run(nonce))
    await client.set("archive/runs/1", b'{"v": 2}')
    await client.create("archive/runs/notes")
    found = await read_runs(client)
    assert (list(found.known), list(found.unreadable)) == ([0, 2], [1])
    assert "upgrade vq" in str(found.unreadable[1])


async def test_the_newest_runs_are_kept_with_their_results(client) -> None:
    for n in range(RUNS_KEPT + 3):
        await make_run(client, run(str(n)))
        await write_result(client, n, "b1", "n1", DONE)
    await forget_runs(client)
    assert list((await read_runs(client)).known) == list(range(3, RUNS_KEPT + 3))
    assert await read_result(client, 3, "b1", "n1") == DONE
    assert await read_result(client, 2, "b1", "n1") is None
    await write_result(client, 2, "b1", "n1", DONE)  # of a node that was away
    assert await read_results(client, 2) == {}
    assert await make_run(client, run("next")) == RUNS_KEPT + 3


async def registered(client, *nodes: str) -> None:
    for node in nodes:
        made = Registration(host=node, port=1)
        await client.create(Registration.path("b1", node), made.encode(), parents=True)


async def test_a_run_that_a_registered_node_has_not_done_is_not_forgotten(client) -> None:
    """Forty runs of forty topics, made at once: nodes do them one after the other."""
    await registered(client, "n1", "n2")
    for n in range(RUNS_KEPT + 10):
        await make_run(client, run(str(n), topic=f"t{n}"))
        await forget_runs(client)
    assert len((await read_runs(client)).known) == RUNS_KEPT + 10
    running = RunResult(state=RunState.RUNNING)
    for n in range(RUNS_KEPT + 10):
        await write_result(client, n, "b1", "n1", DONE)
        await write_result(client, n, "b1", "n2", running if n == 4 else DONE)
    await forget_runs(client)
    assert list((await read_runs(client)).known) == [4, *range(10, RUNS_KEPT + 10)]
    await write_result(client, 4, "b1", "n2", replace(DONE, state=RunState.FAILED))
    await forget_runs(client)
    assert list((await read_runs(client)).known) == list(range(10, RUNS_KEPT + 10))


async def test_a_run_that_a_later_one_covers_is_forgotten_whoever_has_not_done_it(client) -> None:
    await registered(client, "n1")
    for n in range(RUNS_KEPT):
        await make_run(client, run(str(n), topic=f"t{n}"))
    await make_run(client, run("dry", dry_run=True))
    await make_run(client, run("all"))
    await forget_runs(client)
    assert list((await read_runs(client)).known) == list(range(2, RUNS_KEPT + 2))
    for n in range(2):
        await make_run(client, run(f"later{n}", as_of_ms=7, topic="t"))
        await forget_runs(client)
    assert list((await read_runs(client)).known)[:2] == [4, 5]


async def test_runs_that_nobody_does_are_refused_at_a_bound(client, monkeypatch) -> None:
    """Not the daily one: it covers what was before it."""
    monkeypatch.setattr(runs, "RUNS_MAX", 3)
    for n in range(3):
        await make_run(client, run(str(n), topic=f"t{n}"))
    with pytest.raises(runs.TooManyRuns, match="at most 3"):
        await make_run(client, run("more"))
    assert await make_run(client, run("0", topic="t0")) == 0, "it is there"


async def test_a_daily_run_is_remembered_when_it_is_forgotten(client) -> None:
    await make_run(client, run("daily", due_ms=77))
    for n in range(RUNS_KEPT + 1):
        await make_run(client, run(str(n), dry_run=n > 0))
        await write_result(client, n + 1, "b1", "n1", DONE)
        await forget_runs(client)
    found = await read_runs(client)
    assert 0 not in found.known
    assert found.daily_ms == 77


async def test_results_are_those_that_nodes_wrote_last(client) -> None:
    await make_run(client, run("a"))
    await write_result(client, 0, "b1", "n1", RunResult(state=RunState.RUNNING, begun_ms=1))
    await write_result(client, 0, "b1", "n1", DONE)
    await write_result(client, 0, "b1", "n2", DONE)
    await client.set(RunResult.path(0, "b1", "n2"), b"odd")
    found = await read_results(client, 0)
    assert list(found) == [("b1", "n1"), ("b1", "n2")]
    assert found["b1", "n1"] == DONE
    assert isinstance(found["b1", "n2"], CoordinationError)
    assert await read_result(client, 0, "b1", "n2") is None, "the node does the run again"


async def test_since_when_runs_can_be_missed_is_noted_once(client) -> None:
    await begin_runs(client, 5)
    await begin_runs(client, 9)
    assert (await read_runs(client)).since_ms == 5
    await make_run(client, run("a"))
    assert (await read_runs(client)).since_ms == 5


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("skip", range(6))
async def test_a_fault_of_any_call_makes_a_run_once_or_tells(
    ensemble: MemoryEnsemble, fault: str, skip: int
) -> None:
    async with client_of(ensemble) as client, client_of(ensemble) as other:
        await make_run(other, run("before"))
        strike(ensemble, client, fault, skip)
        try:
            number = await make_run(client, run("a"))
        except CoordinationError:
            disarm(client)
            number = await make_run(client, run("a"))
        disarm(client)
        found = (await read_runs(other)).known
        assert [at for at, each in found.items() if each.nonce == "a"] == [number]
        with pytest.raises(NodeExists):
            await other.create(RunOrder.path(number))
