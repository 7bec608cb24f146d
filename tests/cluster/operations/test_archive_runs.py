"""Operators make runs of the archive, wait for them, and look at what was done."""

import asyncio
from dataclasses import replace

import pytest
from support.archives import archiver_of, noted, run_of
from support.broker import Client as Connection
from support.broker import MemoryCluster, memory_cluster, message
from support.client import factory_of
from support.node_pair import settled

from vq.coordination.leases.runs import make_run
from vq.coordination.tree.values.runs import RunCounter
from vq.errors import InvalidArgument, PartitionFailed, UnknownTopic
from vq.operations.archives import archive_runs
from vq.operations.archives.archive_runs import ArchiveRun
from vq.operations.cluster.checks import Level
from vq.operations.cluster.doctor import archive_facts
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

HOUR_MS = 3_600_000


@pytest.fixture
async def cluster():
    async with memory_cluster() as found:
        yield found


async def filled(cluster: MemoryCluster, **settings: object) -> int:
    """A topic with two closed blocks on one node; return the time now."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1, **settings)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Connection.connect(cluster.network, node.address)
    channel = node.parts.partitions.channels["t", 0]
    for _ in range(2):
        await client.put("t", 0, [message(b"x" * 100)])
        channel.log.roll()
        await settled(channel)
    return node.parts.context.clock.wall_ms()


async def test_a_run_is_made_and_waited_for(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = await filled(cluster, retention_policy="archive")
    archives = noted(cluster.nodes["b1"], monkeypatch)
    async with factory_of(cluster) as factory:
        admin = factory.admin
        later_ms = now_ms + 25 * HOUR_MS
        dry = await admin.start_archive_run("t", as_of_ms=later_ms, dry_run=True)
        told = await admin.wait_for_archive_run(dry)
        assert (told.dry_run, told.total.blocks, archives.done) == (True, 2, [])
        seen: list[ArchiveRun] = []
        number = await admin.start_archive_run(as_of_ms=later_ms)
        found = await admin.wait_for_archive_run(number, on_progress=seen.append)
        assert (found.state, found.total.blocks, found.topic) == ("done", 2, None)
        assert [each.number for each in seen] == [number] * len(seen)
        [node] = found.nodes
        assert (node.group, node.node, node.state) == ("b1", "n1", "done")
        assert node.topics == {"t": found.total}
        assert "@" in found.by
        history = await admin.archive_history()  # with the daily run, where it is 02:00 here
        assert [each for each in history if each.due_ms is None] == [found, told]


async def test_a_run_without_a_time_is_of_now(cluster) -> None:
    now_ms = await filled(cluster, retention_policy="archive")
    async with factory_of(cluster) as factory:
        found = await factory.admin.wait_for_archive_run(await factory.admin.start_archive_run())
    assert found.total.blocks == 0
    assert now_ms <= found.as_of_ms == found.started_ms


async def test_a_node_that_has_not_begun_is_told(cluster) -> None:
    now_ms = await filled(cluster, retention_policy="archive")
    async with factory_of(cluster) as factory, cluster.admin() as coordinator:
        number = await factory.admin.start_archive_run(as_of_ms=now_ms)
        await factory.admin.wait_for_archive_run(number)
        await coordinator.delete(f"archive/runs/{number}/b1:n1")
        [found] = await factory.admin.archive_history()
        assert (found.state, found.nodes[0].state, found.nodes[0].has_ended) == (
            "running",
            None,
            False,
        )


async def test_a_node_that_never_begins_is_not_waited_for(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of an earlier version, say. One that is busy with another run is waited for."""
    now_ms = await filled(cluster, retention_policy="archive")
    archives = noted(cluster.nodes["b1"], monkeypatch)
    monkeypatch.setattr(archive_runs, "BEGIN_S", 0.1)
    monkeypatch.setattr(archive_runs, "POLL_S", 0.02)
    archives.gate.clear()
    async with factory_of(cluster) as factory:
        admin = factory.admin
        first = await admin.start_archive_run(as_of_ms=now_ms + 25 * HOUR_MS)
        await until(lambda: archives.done)
        second = await admin.start_archive_run(as_of_ms=now_ms)
        found = await admin.wait_for_archive_run(second, timeout=0.5)
        assert (found.state, found.nodes[0].state) == ("running", None)
        waiting = asyncio.create_task(admin.wait_for_archive_run(second))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        monkeypatch.setattr(archive_runs, "BEGIN_S", 30.0)  # a busy machine may take its time
        archives.gate.set()
        assert (await waiting).state == "done"
        assert (await admin.wait_for_archive_run(first)).total.blocks == 2
        await archiver_of(cluster.nodes["b1"])._keeper.stop()
        monkeypatch.setattr(archive_runs, "BEGIN_S", 0.1)
        third = await admin.start_archive_run(as_of_ms=now_ms)
        found = await admin.wait_for_archive_run(third)
        assert (found.state, found.nodes[0].state) == ("running", None)


async def test_runs_and_results_that_cannot_be_read_are_told(cluster) -> None:
    await filled(cluster, retention_policy="archive")
    async with factory_of(cluster) as factory, cluster.admin() as coordinator:
        number = await factory.admin.start_archive_run()
        await factory.admin.wait_for_archive_run(number)
        await coordinator.set(f"archive/runs/{number}/b1:n1", b"odd")
        await coordinator.create("archive/runs/9", b"odd")
        bad, run = await factory.admin.archive_history()
        assert (bad.number, bad.state) == (9, "unreadable")
        assert "odd" in bad.error
        assert "odd" in run.nodes[0].error
        with pytest.raises(InvalidArgument, match="run 9 of the archive"):
            await factory.admin.wait_for_archive_run(9)
        with pytest.raises(InvalidArgument, match="there is none, or it is forgotten"):
            await factory.admin.wait_for_archive_run(7)


async def test_a_run_that_could_do_nothing_is_refused(cluster) -> None:
    await filled(cluster)
    async with factory_of(cluster) as factory, cluster.admin() as coordinator:
        with pytest.raises(InvalidArgument, match="no topic has its blocks archived"):
            await factory.admin.start_archive_run()
        with pytest.raises(InvalidArgument, match="--retention-policy archive"):
            await factory.admin.start_archive_run("t")
        with pytest.raises(UnknownTopic):
            await factory.admin.start_archive_run("u")
        with pytest.raises(InvalidArgument, match="as_of_ms = -1"):
            await factory.admin.start_archive_run(as_of_ms=-1)
        found = await coordinator.children(RunCounter.path())
        assert found == []


async def test_what_the_doctor_judges_is_read(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long no daily run was made, and why the newest one failed."""
    now_ms = await filled(cluster, retention_policy="archive")
    archives = noted(cluster.nodes["b1"], monkeypatch)
    archives.bad[0] = PartitionFailed("no space")
    async with factory_of(cluster) as factory, cluster.admin() as coordinator:
        client = factory.admin.cluster
        await until_true(lambda: coordinator.exists(RunCounter.path()))
        facts = await archive_facts(client)
        assert (facts.topics, facts.failure) == (1, "")
        assert facts.quiet_s is not None
        assert 0 <= facts.quiet_s < 60
        daily = run_of(cluster.nodes["b1"], -30, due_ms=5)
        await coordinator.set(RunCounter.path(), RunCounter(since_ms=1, next=0).encode())
        number = await make_run(coordinator, replace(daily, started_ms=now_ms - 30 * HOUR_MS))
        await factory.admin.wait_for_archive_run(number)
        facts = await archive_facts(client)
        assert facts.failure == ""
        assert facts.quiet_s is not None
        assert 30 * 3600 <= facts.quiet_s < 31 * 3600
        number = await factory.admin.start_archive_run(as_of_ms=now_ms + 25 * HOUR_MS)
        await factory.admin.wait_for_archive_run(number)
        assert "no space" in (await archive_facts(client)).failure
        found = {each.check: each for each in await factory.admin.check_brokers()}
        assert found["archive"].level is Level.WARN
