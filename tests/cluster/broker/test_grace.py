"""Topics that are deleted and can be brought back: what brokers do meanwhile."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message
from support.client import factory_of, started
from support.node_pair import NodePair, whole

from vq import aio
from vq.broker.base.config import ConnectionLimits
from vq.broker.node import BrokerNode
from vq.broker.partition.partition_state import ChannelState
from vq.client.config import ConsumerConfig
from vq.coordination.topics import grace
from vq.coordination.topics.topics import alter_settings, delete_topic, was_deleted
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.reading import read_topic
from vq.coordination.tree.values.consumers import Assignment
from vq.coordination.tree.values.topics import GraceClock, TopicNode
from vq.errors import InvalidState, UnknownTopic
from vq.model import Message, TopicOrigin
from vq.operations.brokers import removing
from vq.operations.cluster.cluster import cluster_status
from vq.operations.topics import deletion
from vq.store.directory.directory import Trashed
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time

BY = TopicOrigin(client="operator", host="h", time_ms=1)
HOUR_MS = 3_600_000
#: What looks at a node many times a second or a minute does so less often: hours pass here.
QUIET: dict[str, Any] = {
    "refresh_interval_s": 600.0,
    "disk_interval_s": 3_600.0,
    "load_interval_s": 10.0,
    "retention_interval_s": 600.0,
    "connections": ConnectionLimits(sweep_interval_s=3_600.0),
}


async def retire(cluster: MemoryCluster, name: str = "t", grace_ms: int = HOUR_MS) -> None:
    async with cluster.admin() as admin:
        await grace.retire_topic(admin, name, grace_ms=grace_ms, by=BY)


async def undelete(cluster: MemoryCluster, name: str = "t") -> None:
    async with cluster.admin() as admin:
        await grace.undelete_topic(admin, name)


def is_deleted(node: BrokerNode) -> bool:
    channel = node.parts.partitions.channels.get(("t", 0))
    return channel is not None and channel.state is ChannelState.DELETED


def deleted(pair: NodePair, name: str) -> bool:
    return is_deleted(pair.nodes[name])


# What clients meet ------------------------------------------------------------------------------
async def test_nobody_sends_to_or_reads_a_deleted_topic(served) -> None:
    """Also a reader that waits, and whoever asks the broker by itself."""
    await served.client.put("t", 0, [message(b"x")])
    waiting = served.client.send_get("t", 0, 109, max_wait_ms=20_000)
    await retire(served.cluster)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.state is ChannelState.DELETED)
    async with asyncio.timeout(WAIT_S):
        frame = await waiting
    assert frame.status == UnknownTopic.status
    for number in (0, 1):
        with pytest.raises(UnknownTopic, match="was deleted"):
            await served.client.put("t", number, [message(b"x")])
        with pytest.raises(UnknownTopic, match="was deleted"):
            await served.client.get("t", number, 0)
    status = await served.client.status(with_partitions=True)
    assert [each.state for each in status.partitions] == ["deleted", "deleted"]
    assert status.problems == []


async def test_what_deleted_topics_hold_is_measured_and_told(served) -> None:
    """Retention deletes nothing of them, so they fill the disk for as long as they are kept."""

    async def measured() -> float:
        families = {each.name: each for each in await served.node.families()}
        [sample] = families["vq_deleted_topics_bytes"].samples
        return sample.value

    await served.client.put("t", 0, [message(b"x")])
    assert await measured() == 0
    await retire(served.cluster)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.state is ChannelState.DELETED)
    assert await measured() == channel.log.size_bytes
    async with started(served.cluster, host="operator") as client:
        [report] = (await cluster_status(client)).brokers
    assert report.deleted_topics == {"t": channel.log.size_bytes}


async def test_an_undeleted_topic_has_every_message_and_takes_more(served) -> None:
    before = (await served.client.put("t", 0, [message(b"one")])).offset
    await retire(served.cluster)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.state is ChannelState.DELETED)
    log = channel.log
    await undelete(served.cluster)
    await until(lambda: channel.takes_puts)
    assert served.node.parts.partitions.channels["t", 0].log is log, "nothing was opened anew"
    after = (await served.client.put("t", 0, [message(b"two")])).offset
    assert after > before
    _, body = await served.client.get("t", 0, 0)
    assert b"one" in body
    assert b"two" in body


async def test_a_group_goes_on_where_it_was(cluster: MemoryCluster) -> None:
    """Nothing twice and nothing missing, for a member that stays as for the one after it."""
    await cluster.start()
    await cluster.create_topic("t", partitions=1)
    found: list[int] = []
    async with factory_of(cluster) as factory:
        await send(factory, range(10))
        config = ConsumerConfig(group="g", max_wait_s=0.2)
        async with await factory.create_consumer(config) as consumer:

            async def read() -> None:
                async for each in consumer.subscribe("t"):
                    found.append(int(each.content))  # noqa: PERF401 a test looks meanwhile

            reading = asyncio.create_task(read())
            await until(lambda: len(found) == 10)
            await retire(cluster)
            node = cluster.nodes["b1"]
            await until(lambda: node.parts.partitions.channels["t", 0].deleted)
            with pytest.raises(UnknownTopic):
                await send(factory, range(1))
            await asyncio.sleep(60)
            await undelete(cluster)
            await until(lambda: not node.parts.partitions.channels["t", 0].deleted)

            async def sent() -> bool:
                try:
                    await send(factory, range(10, 11))
                except UnknownTopic:
                    return False
                return True

            await until_true(sent)
            await send(factory, range(11, 20))
            await until(lambda: len(found) >= 20)
            reading.cancel()
    assert found == list(range(20))


async def send(factory: aio.MessageFactory, numbers: range) -> None:
    async with await factory.create_producer() as producer:
        for number in numbers:
            await producer.send(Message("t", b"%d" % number))


# Copies, restarts, moves ------------------------------------------------------------------------
async def test_a_node_that_comes_into_sync_meanwhile_has_the_deleted_topic(
    cluster: MemoryCluster,
) -> None:
    """Otherwise it could lead after the undelete without the acknowledged messages."""
    pair = NodePair(cluster)
    await pair.start("n1")
    await cluster.create_topic("t", partitions=1)
    await pair.put(5)
    await retire(cluster)
    await until(lambda: deleted(pair, "n1"))
    await pair.start("n2")
    await pair.in_sync()
    assert pair.log("n2").end_offset == pair.log("n1").end_offset > 0
    kept = whole(pair.log("n1"), 0)
    await pair.stop("n1")
    await until(lambda: pair.nodes["n2"].epoch)
    await undelete(cluster)
    await until(lambda: pair.channel("n2").takes_puts)
    assert whole(pair.log("n2"), 0).startswith(kept)
    await pair.put(1)


@pytest.mark.parametrize("away", ["delete", "undelete", "both"])
@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_a_node_that_was_away_ends_with_the_same_bytes(
    node_pair: NodePair, name: str, away: str
) -> None:
    """It did not run at the delete, at the undelete, or at both; master or copy."""
    cluster = node_pair.cluster
    other = {"n1": "n2", "n2": "n1"}[name]
    kept = whole(node_pair.log(other), 0)
    if away in {"delete", "both"}:
        await node_pair.stop(name)
        await until(lambda: node_pair.nodes[other].epoch)
    await retire(cluster)
    await until(lambda: deleted(node_pair, other))
    if away == "delete":
        await node_pair.start(name)
        await until(lambda: deleted(node_pair, name))
        await node_pair.in_sync()
    if away == "undelete":
        await node_pair.stop(name)
        await until(lambda: node_pair.nodes[other].epoch)
    await undelete(cluster)
    if name not in node_pair.nodes:
        await node_pair.start(name)
    await node_pair.in_sync()
    await until(lambda: node_pair.channel(node_pair.leader()).takes_puts)
    await node_pair.put(3)
    await until(node_pair.same)
    assert whole(node_pair.log(name), 0).startswith(kept)


async def test_a_move_that_was_begun_ends_in_the_deleted_topic(cluster: MemoryCluster) -> None:
    """The partition takes messages again once it is brought back, and lost none."""
    await cluster.start("b1")
    await cluster.create_topic("t", partitions=1)
    await cluster.start("b2")
    async with started(cluster, host="operator") as client, factory_of(cluster) as factory:
        await send(factory, range(3))
        from vq.operations.partitions import placements

        (move,) = await placements.plan_moves(client, "t", [0], "b2")
        real = placements.topics.change_placement

        async def late(coordinator: Any, view: Any, placement: Any, **fields: Any) -> Any:
            await grace.retire_topic(coordinator, "t", grace_ms=HOUR_MS, by=BY)
            return await real(coordinator, view, placement, **fields)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placements.topics, "change_placement", late)
            with pytest.raises(UnknownTopic):
                await placements.move_all(client, [move])
        channel = cluster.nodes["b1"].parts.partitions.channels["t", 0]
        await until(lambda: channel.deleted)
        await undelete(cluster)
        await until(lambda: channel.takes_puts, timeout_s=120)
        await send(factory, range(3, 6))
        bounds = await factory.admin.bounds("t")
        assert bounds[0].latest == channel.high_watermark  # type: ignore[union-attr]


# What must not happen meanwhile -----------------------------------------------------------------
async def test_retention_deletes_nothing_of_a_deleted_topic(served) -> None:
    await served.client.put("t", 0, [message(b"x" * 100)])
    node, channel = served.node, served.node.parts.partitions.channels["t", 0]
    channel.log.roll()
    await served.client.put("t", 0, [message(b"y")])
    retainer = node.parts.upkeep.retainer
    async with served.cluster.admin() as admin:
        await alter_settings(
            admin, "t", lambda before: replace(before, retention_bytes=1, retention_hours=1)
        )
    await retire(served.cluster)
    await until(lambda: channel.deleted and channel.settings.retention_bytes == 1)
    await retainer.look()
    assert channel.start_offset == 0
    await undelete(served.cluster)
    await until(lambda: not channel.deleted)
    await retainer.look()
    await until(lambda: channel.start_offset > 0)


async def test_a_broker_group_with_a_deleted_topic_is_not_removed(
    cluster: MemoryCluster,
) -> None:
    """Nor with accepted data loss: nobody has been asked about that topic."""
    await cluster.start("b1")
    await cluster.create_topic("t", partitions=1)
    await cluster.start("b2")
    await retire(cluster)
    await cluster.nodes["b1"].stop()
    async with started(cluster, host="operator") as client:
        for accept in (False, True):
            with pytest.raises(InvalidState, match="t can be brought back"):
                await removing.remove_broker(client, "b1", accept_data_loss=accept)
        await deletion.delete_topic(client, "t", now=True)
        await removing.remove_broker(client, "b1")


async def test_data_in_the_trash_stay_unless_zookeeper_says_that_the_topic_was_deleted(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper was restored from a backup that is older than the deletion."""
    node = await cluster.start(trash_keep_s=0.5)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    async with cluster.admin() as admin:
        await delete_topic(admin, "t")
        await until(lambda: cluster.disks["b1"].exists(node.config.data / "@trash"))
        await admin.delete("deleted")
    await until(lambda: "data stay in the trash" in caplog.text)
    await asyncio.sleep(10)
    assert len(cluster.disks["b1"].listdir(node.config.data / "@trash")) == 1
    assert caplog.text.count("data stay in the trash") == 1


@pytest.mark.parametrize(("keep_s", "looks"), [(3_600.0, 10), (0.0, 600)])
async def test_the_trash_is_listed_once_a_minute_and_not_without_end(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, keep_s: float, looks: int
) -> None:
    """Once for all that lies there; also where it is emptied at once."""
    node = await cluster.start(trash_keep_s=keep_s, **QUIET)
    stored, count = node.parts.logs, 0
    due_trash = stored.due_trash

    def list_it(keep_s: float) -> list[Trashed]:
        nonlocal count
        count += 1
        return due_trash(keep_s)

    monkeypatch.setattr(stored, "due_trash", list_it)
    await asyncio.sleep(600)
    assert abs(count - looks) <= 1


# The time ---------------------------------------------------------------------------------------
async def test_brokers_remove_a_topic_when_its_time_is_up_and_not_before(
    cluster: MemoryCluster,
) -> None:
    """Two groups count together, and one dies on the way: the time is that of one clock."""
    loop = asyncio.get_running_loop()
    for group in ("b1", "b2"):
        await cluster.start(group, **QUIET)
    await cluster.create_topic("t", partitions=2)
    begun = loop.time()
    await retire(cluster)
    await asyncio.sleep(1_000)
    await cluster.nodes["b1"].stop()

    async with cluster.admin() as admin:
        view = await read_topic(admin, "t", any_phase=True)

        async def gone() -> bool:
            await asyncio.sleep(10)
            return await admin.exists(TopicNode.path("t")) is None

        await until_true(gone, timeout_s=9_000)
        assert await was_deleted(admin, view.id)
    took = loop.time() - begun
    assert 3_600 <= took < 4_200
    disk = cluster.disks["b2"]
    await until(lambda: not disk.exists(cluster.nodes["b2"].config.data / "t"))


async def test_a_clock_that_is_set_removes_nothing_early(cluster: MemoryCluster) -> None:
    """By years, on one broker."""
    node = await cluster.start(**QUIET)
    await cluster.create_topic("t", partitions=1)
    await retire(cluster)
    real = node.parts.context.clock.wall_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.parts.context.clock, "wall_ms", lambda: real() + 10**12)
        await asyncio.sleep(3_000)
        patch.setattr(node.parts.context.clock, "wall_ms", lambda: real() - 10**12)
        await asyncio.sleep(500)
    await undelete(cluster)
    await until(lambda: node.parts.partitions.channels["t", 0].takes_puts)


async def test_the_time_stands_still_while_no_broker_runs(cluster: MemoryCluster) -> None:
    await cluster.start(**QUIET)
    await cluster.create_topic("t", partitions=1)
    await retire(cluster)
    await asyncio.sleep(300)
    await cluster.nodes["b1"].stop()
    await asyncio.sleep(100_000)
    await cluster.start(**QUIET)
    await asyncio.sleep(300)
    async with started(cluster, host="operator") as client:
        ((found,), _) = await deletion.readable_deleted_topics(client)
        assert 2_900 < found.left_s < 3_500
        await deletion.undelete_topic(client, "t")


async def test_a_count_that_was_lost_goes_on_where_the_last_topic_was_deleted(
    cluster: MemoryCluster,
) -> None:
    node = await cluster.start(grace_interval_s=1.0, **QUIET)
    await cluster.create_topic("t", partitions=1)
    async with cluster.admin() as admin:
        await admin.create(GraceClock.path(), GraceClock(counted_ms=10 * HOUR_MS).encode())
        await retire(cluster)
        await until(lambda: is_deleted(node))
        await admin.delete(GraceClock.path())

        async def counts() -> bool:
            return (await grace.read_count(admin)).ms > 10 * HOUR_MS

        await until_true(counts, timeout_s=60)


async def test_a_count_that_cannot_be_read_is_told_once_and_removes_nothing(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = await cluster.start(grace_interval_s=1.0, **QUIET)
    await cluster.create_topic("t", partitions=1)
    await retire(cluster, grace_ms=1)
    async with cluster.admin() as admin:
        await admin.set(GraceClock.path(), b"nonsense")
        await until(lambda: is_deleted(node))
        await asyncio.sleep(100)
        assert caplog.text.count("job failed") == 1
        (job,) = [each for each in node.parts.jobs.told() if each.name == "topic removal"]
        assert job.failures > 10
        assert job.error
        with pytest.raises(Unreadable):
            await topics_of(admin)
        assert await admin.exists(TopicNode.path("t")) is not None
        await undelete(cluster)


async def test_a_topic_that_cannot_be_removed_is_told_and_holds_up_no_other_one(
    cluster: MemoryCluster,
) -> None:
    node = await cluster.start(grace_interval_s=1.0, **QUIET)
    async with cluster.admin() as admin:
        for name in ("a", "b"):
            await cluster.create_topic(name, partitions=1)
        await admin.create(Assignment.path("g", "a", 0), b"nonsense", parents=True)
        for name in ("a", "b"):
            await retire(cluster, name, grace_ms=1)

        async def gone() -> bool:
            return await admin.exists(TopicNode.path("b")) is None

        await until_true(gone, timeout_s=60)
        await asyncio.sleep(10)
        (job,) = [each for each in node.parts.jobs.told() if each.name == "topic removal"]
        assert job.failures > 1
        assert Assignment.path("g", "a", 0) in job.error
        assert await admin.exists(TopicNode.path("a")) is not None


async def topics_of(admin: MemoryCoordinator) -> Any:
    return await grace.read_count(admin)


async def test_a_removal_that_somebody_began_is_finished_by_a_broker(
    cluster: MemoryCluster,
) -> None:
    """An operator's command was killed half-way."""
    node = await cluster.start(grace_interval_s=1.0, **QUIET)
    await cluster.create_topic("t", partitions=3)
    async with cluster.admin() as admin:
        multi, calls = admin.multi, 0

        async def dies(operations: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise RuntimeError("killed")
            return await multi(operations)

        admin.multi = dies  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="killed"):
            await delete_topic(admin, "t")
        assert await admin.exists(TopicNode.path("t")) is not None

        async def gone() -> bool:
            return await admin.exists(TopicNode.path("t")) is None

        await until_true(gone, timeout_s=60)
        await until(lambda: not node.parts.partitions.view.removing)
    await cluster.create_topic("t", partitions=1)
