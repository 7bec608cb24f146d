"""Plans for a cluster in memory: measured, carried out under traffic, cancelled, gone on with."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import cluster_client, factory_of, started
from support.consumers import consumer_of

from vq import Message
from vq.client.cluster import ClusterClient
from vq.coordination.leases.leases import ALLOCATION, JobLease, read_holder
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import BadVersion
from vq.coordination.tree.values.allocations import AllocationState
from vq.errors import InvalidArgument, InvalidState
from vq.model import TopicPartition
from vq.operations.allocation import applying
from vq.operations.allocation.applying import (
    AllocationBusy,
    PlanOutdated,
    apply_allocation,
    cancel_allocation,
    resume_allocation,
)
from vq.operations.allocation.goals import AllocationGoals, LoadGoal
from vq.operations.allocation.measuring import group_loads, measure_allocation
from vq.operations.allocation.planning import allocation_changes, plan_allocation
from vq.operations.allocation.plans import AllocationPlan
from vq.operations.allocation.runs import describe_allocation, list_allocations
from vq.operations.brokers.draining import drain_group
from vq.operations.partitions.placements import Move, carry_out, move_all, plan_moves, seal
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time

PARTITIONS = 6
ALL_TO_B2 = [(TopicPartition("t", number), "b2") for number in range(PARTITIONS)]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Two brokers that forget seals soon, and topic ``t`` with three partitions on each."""
    async with memory_cluster() as made:
        await made.start("b1", seal_timeout_s=2.0)
        await made.start("b2", seal_timeout_s=2.0)
        await made.create_topic("t", partitions=PARTITIONS)
        yield made


async def places(client: ClusterClient, topic: str = "t") -> list[str | None]:
    """The group of each partition."""
    view = await topics.describe_topic(client.coordinator, topic)
    return [each.writer_group for each in view.partitions]


async def until_one_is_moved(client: ClusterClient) -> None:
    """Wait until the newest plan has made its first move."""

    async def is_moved() -> bool:
        found = await list_allocations(client)
        return bool(found) and found[0].done == 1

    await until_true(is_moved)


async def all_to_b2(client: ClusterClient) -> AllocationPlan:
    return await plan_allocation(client, wanted=ALL_TO_B2, window_s=1.0)


async def until_loads_are_published(client: ClusterClient) -> None:
    async def known() -> bool:
        return all(each.bytes_per_s is not None for each in await group_loads(client))

    await until_true(known)


async def test_what_partitions_get_is_measured_and_the_busy_group_gives_some_away(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster) as client, factory_of(cluster, host="c2", seed=5) as factory:
        await until_loads_are_published(client)
        async with await factory.create_producer() as producer:
            held = await places(client)
            keys = {}
            for number in range(60):
                result = await producer.send(Message("t", b"x", key=f"k{number}"))
                keys[result.partition] = f"k{number}"
            busy = [number for number, group in enumerate(held) if group == "b1"]
            assert keys.keys() >= set(busy)

            async def send() -> None:
                while True:
                    for number in busy:
                        await producer.send(Message("t", b"x" * 1_000, key=keys[number]))
                    await asyncio.sleep(0.1)

            sending = asyncio.create_task(send())
            goals = AllocationGoals(soft=(LoadGoal.BYTES,), skew=1.4)
            plan = await plan_allocation(client, goals, window_s=10.0)
            facts = await measure_allocation(client, window_s=10.0)
            sending.cancel()
        for number in range(PARTITIONS):
            load = facts.partitions[TopicPartition("t", number)]
            assert load.stored_bytes
            if number in busy:
                assert load.bytes_per_s == pytest.approx(10_700, rel=0.1)
                assert load.messages_per_s == pytest.approx(10, rel=0.1)
            else:
                assert (load.bytes_per_s, load.messages_per_s) == (0, 0)
        assert facts.groups["b1"].disk_bytes_total
        assert plan.skew(LoadGoal.BYTES, after=False) == pytest.approx(2.0)
        assert plan.skew(LoadGoal.BYTES) == pytest.approx(4 / 3, rel=0.05)
        (move,) = plan.moves
        assert (move.source, move.target) == ("b1", "b2")
        run = await apply_allocation(client, plan)
        assert (run.state, run.done, run.total) == ("done", 1, 1)
        assert (await places(client))[move.partition] == "b2"
        with pytest.raises(InvalidState, match="carried out"):
            await apply_allocation(client, plan)


async def test_messages_flow_during_the_moves_and_none_is_lost_or_out_of_order(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster) as client, factory_of(cluster, host="c2", seed=5) as factory:
        sent: dict[str, list[bytes]] = defaultdict(list)
        got: dict[str, list[bytes]] = defaultdict(list)
        stop = asyncio.Event()
        async with (
            await factory.create_producer() as producer,
            await consumer_of(factory) as consumer,
        ):

            async def send(key: str) -> None:
                while not stop.is_set():
                    body = b"%d" % len(sent[key])
                    await producer.send(Message("t", body, key=key))
                    sent[key].append(body)
                    await asyncio.sleep(0.01)

            async def read() -> None:
                async for message in consumer:
                    got[str(message.key)].append(message.content)

            reading = asyncio.create_task(read())
            sending = [asyncio.create_task(send(f"k{number}")) for number in range(20)]
            there = await apply_allocation(client, await all_to_b2(client), at_a_time=3)
            back = [(TopicPartition("t", number), "b1") for number in range(PARTITIONS)]
            plan = await plan_allocation(client, wanted=back, window_s=0.5)
            again = await apply_allocation(client, plan, at_a_time=2, pause_s=0.1)
            stop.set()
            await asyncio.gather(*sending)
            assert (there.state, again.state) == ("done", "done")

            async def all_read() -> bool:
                return sum(map(len, got.values())) >= sum(map(len, sent.values()))

            await until_true(all_read)
            reading.cancel()
            await asyncio.wait([reading])
        assert set(await places(client)) == {"b1"}
        assert all(len(each) > 20 for each in sent.values())
        assert got == sent


async def test_a_plan_is_refused_if_what_it_rests_on_has_changed(cluster: MemoryCluster) -> None:
    async with started(cluster) as client:
        plan = await all_to_b2(client)
        assert await allocation_changes(client, plan) == []
        moved = plan.moves[0]
        await move_all(client, await plan_moves(client, "t", [moved.partition], "b2"))
        await drain_group(client, "b2")
        name = str(moved.key)
        with pytest.raises(PlanOutdated, match=rf"{name}: on b1 from 0 -> on b2") as caught:
            await apply_allocation(client, plan)
        assert [each.what for each in caught.value.changes] == ["group", "partition"]
        assert caught.value.changes[0].now == "draining"
        assert await list_allocations(client) == []
        stay = [each for each in await places(client) if each == "b1"]
        assert len(stay) == len(plan.moves) - 1


async def test_a_plan_that_breaks_a_hard_goal_or_is_of_elsewhere_is_not_applied(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster) as client:
        await drain_group(client, "b2")
        plan = await all_to_b2(client)
        assert {each.goal for each in plan.refused} == {"draining"}
        with pytest.raises(InvalidArgument, match=r"breaks \d hard goal"):
            await apply_allocation(client, plan)
        with pytest.raises(InvalidArgument, match="of cluster 'other'"):
            await apply_allocation(client, replace(plan, cluster="other"))
        with pytest.raises(InvalidArgument, match=r"at_a_time = 65 is outside \[1, 64\]"):
            await apply_allocation(client, plan, at_a_time=65)
        with pytest.raises(InvalidArgument, match="no moves"):
            await apply_allocation(client, replace(plan, moves=(), topics=(), refused=()))


async def test_one_plan_at_a_time_is_carried_out_and_anybody_may_end_it(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster) as client, started(cluster, host="c2", seed=5) as other:
        plan = await all_to_b2(client)
        told: list[int] = []
        task = asyncio.create_task(
            apply_allocation(
                client, plan, pause_s=30.0, on_progress=lambda run: told.append(run.done)
            )
        )

        async def moves() -> bool:
            found = await list_allocations(other)
            return bool(found) and found[0].done == 1

        await until_true(moves)
        (seen,) = await list_allocations(other)
        assert (seen.plan, seen.state, seen.total) == (plan.id, "running", len(plan.moves))
        with pytest.raises(AllocationBusy, match="carries out a plan now"):
            await apply_allocation(other, await all_to_b2(other))
        ended = await cancel_allocation(other)
        run = await task
        assert ended.state == run.state == "cancelled"
        assert ended.done == sum(each.done is True for each in ended.moves) == 1
        assert ended.cancelled_by
        assert told[-1] == 1
        assert (await places(client)).count("b2") == PARTITIONS - len(plan.moves) + 1
        # It may be gone on with, by another process and without the plan.
        wanted: set[str] = set()
        again = await resume_allocation(other, on_progress=lambda run: wanted.add(run.cancelled_by))
        assert (again.state, again.done, again.cancelled_by) == ("done", len(plan.moves), "")
        assert wanted == {""}  # whoever wanted the end is told by nobody any more
        with pytest.raises(InvalidState, match="is done: there is nothing to cancel"):
            await cancel_allocation(client)


async def test_another_process_goes_on_where_a_dead_one_stopped(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one dies after a SEAL: its partition is sealed, and its session is still there."""
    async with started(cluster) as client, started(cluster, host="c2", seed=5) as other:
        plan = await all_to_b2(client)
        sealed = asyncio.Event()
        count = 0

        async def dies(cluster: ClusterClient, planned: Move, **more: Any) -> int:
            nonlocal count
            count += 1
            if count == 2:
                await seal(cluster, planned)
                sealed.set()
                await asyncio.Event().wait()
            return await carry_out(cluster, planned, **more)

        monkeypatch.setattr(applying, "carry_out", dies)
        task = asyncio.create_task(apply_allocation(client, plan, pause_s=1.0))
        await asyncio.wait_for(sealed.wait(), WAIT_S)
        monkeypatch.undo()
        cluster.ensemble.disconnect(client.coordinator)  # as the kill of its process
        run = await resume_allocation(other)
        assert (run.state, run.done) == ("done", len(plan.moves))
        assert set(await places(other)) == {"b2"}
        task.cancel()
        cluster.ensemble.reconnect(client.coordinator)
        await asyncio.wait([task])


async def test_who_lost_the_lease_finishes_no_move(cluster: MemoryCluster) -> None:
    """It slept in the middle of a move, and wakes up after another one took the lease."""
    async with started(cluster) as client, started(cluster, host="c2", seed=5) as other:
        number = (await places(client)).index("b1")
        (planned,) = await plan_moves(client, "t", [number], "b2")
        mine, others = (
            JobLease(each.coordinator, each.clock, job=ALLOCATION, holder=name, rng=each.rng)
            for each, name in ((client, "first"), (other, "second"))
        )
        mine.start()
        await until(lambda: mine.fence is not None)
        check = mine.check()
        await mine.stop()
        others.start()
        await until(lambda: others.fence is not None)
        with pytest.raises(BadVersion):
            await carry_out(client, planned, only_if=[check])
        assert (await places(other))[number] == "b1"
        await others.stop()


async def test_a_dead_process_is_told_as_interrupted_and_can_be_ended(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster, host="c2", seed=5) as other:
        client = cluster_client(cluster)
        await client.start()
        plan = await all_to_b2(client)
        task = asyncio.create_task(apply_allocation(client, plan, pause_s=3_000.0))
        await until_one_is_moved(other)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()
        (seen,) = await list_allocations(other)
        assert (seen.state, seen.done, seen.has_ended) == ("interrupted", 1, True)
        ended = await cancel_allocation(other)
        assert (ended.state, ended.done) == ("cancelled", 1)
        assert await read_holder(other.coordinator, ALLOCATION) is None
        assert AllocationState(ended.state) is AllocationState.CANCELLED


async def test_a_broker_that_is_away_for_a_while_only_delays_the_moves(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster) as client:
        plan = await all_to_b2(client)
        task = asyncio.create_task(apply_allocation(client, plan, pause_s=1.0))
        await until_one_is_moved(client)
        await cluster.nodes["b2"].stop()
        await asyncio.sleep(5.0)
        await cluster.start("b2", seal_timeout_s=2.0)
        run = await task
        assert (run.state, run.done, run.failed) == ("done", len(plan.moves), ())
        assert set(await places(client)) == {"b2"}


async def test_a_broker_that_stays_away_fails_the_plan_and_the_rest_stays_where_it_is(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster) as client:
        plan = await all_to_b2(client)
        task = asyncio.create_task(apply_allocation(client, plan, pause_s=1.0))
        await until_one_is_moved(client)
        await cluster.nodes["b2"].stop()
        run = await task
        assert (run.state, run.done) == ("failed", 1)
        (failed,) = run.failed
        assert "b2" in failed.error
        assert (await places(client)).count("b1") == len(plan.moves) - 1
        await cluster.start("b2", seal_timeout_s=2.0)
        again = await resume_allocation(client, plan.id)
        assert (again.state, again.done, again.failed) == ("done", len(plan.moves), ())


async def test_a_topic_is_isolated_into_a_pool(cluster: MemoryCluster) -> None:
    """Its setting changes first, then its partitions move; new ones would be there, too."""
    await cluster.start("p1", pool="fast")
    async with started(cluster) as client:
        await until_loads_are_published(client)
        await asyncio.sleep(6.0)  # brokers look for new topics every 5 s
        goals = AllocationGoals(pools={"t": "fast"})
        plan = await plan_allocation(client, goals, window_s=1.0)
        assert {each.target for each in plan.moves} == {"p1"}
        assert not plan.broken
        assert (await apply_allocation(client, plan)).state == "done"
        view = await topics.describe_topic(client.coordinator, "t")
        assert view.settings.pool == "fast"
        assert set(await places(client)) == {"p1"}


async def test_a_plan_that_was_not_carried_out_is_said_so(cluster: MemoryCluster) -> None:
    async with started(cluster) as client:
        for call in (describe_allocation, cancel_allocation, resume_allocation):
            with pytest.raises(InvalidArgument, match="no plan was carried out yet"):
                await call(client)
        with pytest.raises(InvalidArgument, match="'0123'"):
            await describe_allocation(client, "0123")
