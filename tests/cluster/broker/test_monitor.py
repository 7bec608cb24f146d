"""What a node tells over HTTP: metrics that agree with what it did, and whether it is well."""

import asyncio

import pytest
from support.broker import Client, MemoryCluster, has_parts, memory_cluster, message
from support.http import Answer, http_get, samples

from vq.broker.observe.survey import OTHER_TOPICS, STEP, Survey
from vq.coordination.brokers.registry import nodes
from vq.errors import AddressUnavailable, UnknownTopic
from vq.model import Address
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

PORT = 9000


async def get(cluster: MemoryCluster, path: str, *, host: str = "b1", port: int = PORT) -> Answer:
    return await http_get(cluster.network, Address(host, port), path)


async def scrape(cluster: MemoryCluster, *, host: str = "b1") -> dict[str, float]:
    return samples((await get(cluster, "/metrics", host=host)).text)


@pytest.fixture
async def cluster():
    async with memory_cluster() as made:
        yield made


async def watched(cluster: MemoryCluster, group: str = "b1", node: str = "n1", **settings):
    return await cluster.start(group, node, metrics_port=PORT, **settings)


async def test_metrics_tell_what_the_node_did(cluster) -> None:
    node = await watched(cluster)
    await cluster.create_topic("t", partitions=2)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"one"), message(b"two", 2)])
    await client.put("t", 1, [message(b"three", 3)])
    await client.get("t", 0, 0)
    with pytest.raises(UnknownTopic):
        await client.put("missing", 0, [message(b"x")])
    waiting = client.send_get("t", 0, 0, min_bytes=1 << 20, max_wait_ms=9000)
    await until(lambda: node.parts.server.reads_waiting == 1)
    found = await scrape(cluster)
    assert found["vq_appended_messages_total"] == 3
    assert found["vq_appended_batches_total"] == 2
    assert found["vq_acknowledgement_seconds_count"] == 2
    assert found["vq_flush_seconds_count"] >= 1
    assert found["vq_waiting_reads"] == 1
    assert found["vq_connections"] == 1
    refused = f'vq_refused_requests_total{{error="UnknownTopic",status="{UnknownTopic.status}"}}'
    assert found[refused] == 1
    assert found['vq_partitions{state="rw"}'] == 2
    assert found['vq_partitions{state="quarantined"}'] == 0
    assert found['vq_topic_partitions{topic="t"}'] == 2
    assert found['vq_topic_stored_bytes{topic="t"}'] == found["vq_stored_bytes"] > 0
    assert found["vq_leader"] == found["vq_epoch"] == found["vq_in_sync_nodes"] == 1
    assert found["vq_ready"] == found["vq_registered"] == found["vq_zookeeper_connected"] == 1
    size, free = (found[f'vq_disk_{each}_bytes{{directory="/data"}}'] for each in ("size", "free"))
    assert size >= free > 0
    waiting.cancel()
    client.close()


async def test_unknown_numbers_are_absent(cluster) -> None:
    """A scrub that never ended has no end; a node that follows has no epoch and no lags."""
    await watched(cluster)
    await watched(cluster, node="n2")
    found = await scrape(cluster, host="b1-n2")
    assert found["vq_leader"] == 0
    assert "vq_epoch" not in found
    assert "vq_in_sync_nodes" not in found
    assert "vq_scrub_end_timestamp_seconds" not in found
    assert not [name for name in found if name.startswith("vq_copy_")]


async def test_the_master_tells_how_far_its_copies_are_behind(cluster) -> None:
    master = await watched(cluster)
    await cluster.create_topic("t", partitions=1)
    await watched(cluster, node="n2")
    client = await Client.connect(cluster.network, master.address)
    await client.put("t", 0, [message(b"one")])

    async def copied() -> bool:
        found = await scrape(cluster)
        return found.get('vq_copy_partitions{node="n2"}') == 1 and (
            found['vq_copy_lag_bytes{node="n2"}'] == found['vq_copy_lag_seconds{node="n2"}'] == 0
        )

    async def in_sync() -> bool:
        return (await scrape(cluster))["vq_in_sync_nodes"] == 2

    await until_true(copied)
    await until_true(in_sync)
    client.close()


async def test_the_port_is_registered_in_zookeeper(cluster) -> None:
    await watched(cluster)
    await cluster.start("b2")
    async with cluster.admin() as coordinator:
        (first,) = await nodes(coordinator, "b1")
        (second,) = await nodes(coordinator, "b2")
    assert (first.metrics_port, second.metrics_port) == (PORT, 0)


async def test_nodes_of_one_machine_take_ports_of_their_own(cluster) -> None:
    for group in ("b1", "b2"):
        await cluster.start(group, host="machine", port=0, metrics_port=None)
    for port, group in ((8124, "b1"), (8125, "b2")):
        text = (await get(cluster, "/metrics", host="machine", port=port)).text
        assert f'group="{group}"' in text


async def test_a_port_that_was_named_and_is_taken_refuses_the_start(cluster) -> None:
    await cluster.start("b1", host="machine", port=0, metrics_port=PORT)
    with pytest.raises(AddressUnavailable, match="--metrics-port"):
        await cluster.start("b2", host="machine", port=0, metrics_port=PORT)


async def test_without_a_port_nothing_is_measured(cluster) -> None:
    node = await cluster.start()
    assert node.parts.context.acknowledged is None
    assert node.parts.monitor.port == 0
    assert not [each for each in asyncio.all_tasks() if "watch_loop" in str(each.get_coro())]


# Health -------------------------------------------------------------------------------------------
async def test_a_node_is_alive_and_not_ready_while_it_starts(cluster) -> None:
    """It waits for its disk, or for ZooKeeper: alive, so nobody should kill it."""
    cluster.ensemble.stop()
    node = cluster.node("b1", metrics_port=PORT, metrics_host="b1")
    starting = asyncio.ensure_future(node.start())
    await until(lambda: has_parts(node) and node.parts.monitor.port)
    assert (await get(cluster, "/healthz")).text == "ok\n"
    answer = await get(cluster, "/readyz")
    assert answer.status == 503
    assert "the node is starting" in answer.text
    assert (await scrape(cluster))["vq_ready"] == 0
    cluster.ensemble.start()
    await starting
    assert (await get(cluster, "/readyz")).text == "ready\n"


async def test_ready_needs_zookeeper(cluster) -> None:
    await watched(cluster)
    assert (await get(cluster, "/readyz")).status == 200
    cluster.ensemble.disconnect(cluster.coordinators["b1"])

    async def tells() -> bool:
        return "ZooKeeper does not answer" in (await get(cluster, "/readyz")).text

    await until_true(tells)
    assert (await get(cluster, "/healthz")).status == 200
    found = await scrape(cluster)
    assert (found["vq_ready"], found["vq_zookeeper_connected"]) == (0, 0)


async def test_a_session_that_ended_is_counted_and_the_node_is_ready_again(cluster) -> None:
    await watched(cluster)
    cluster.ensemble.expire(cluster.coordinators["b1"])

    async def counted() -> bool:
        found = await scrape(cluster)
        return found["vq_zookeeper_sessions_ended_total"] == found["vq_ready"] == 1

    await until_true(counted)


async def test_ready_needs_a_disk_that_takes_messages(cluster) -> None:
    node = await watched(cluster)
    disk = cluster.disks["b1"]
    disk.free_space = lambda path: (5, 100)
    node.parts.disks.main.look_now()
    answer = await get(cluster, "/readyz")
    assert answer.status == 503
    assert "95.0% full" in answer.text
    assert (await scrape(cluster))['vq_disk_refuses{directory="/data"}'] == 1


async def test_a_node_that_stops_is_not_ready_and_frees_its_port(cluster) -> None:
    node = await watched(cluster)
    stopping = asyncio.ensure_future(node.stop())
    await asyncio.sleep(0)
    assert node.parts.vitals.not_ready() == ["the node is stopping"]
    await stopping
    await cluster.start("b2", host="b1", port=0, metrics_port=PORT)


# Cost ---------------------------------------------------------------------------------------------
async def test_a_scrape_lets_the_loop_run_after_every_step(cluster) -> None:
    """Counted, not timed: with many partitions the loop turns at least once for each step."""
    node = await watched(cluster)
    await cluster.create_topic("t", partitions=3 * STEP)
    await until(lambda: len(node.parts.partitions.channels) == 3 * STEP)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.ensure_future(turn())
    survey = Survey(node.parts.partitions.channels, node.parts.verifier)
    await survey.look()
    turning.cancel()
    assert survey.totals.states["rw"] == 3 * STEP
    assert turns >= 3


class Damaged:
    """Knows one damaged range in each partition, as ``Verifier`` tells of it."""

    def count_damage(self, channel) -> int:
        return 1


async def test_topics_beyond_the_bound_are_added_up(cluster) -> None:
    node = await watched(cluster)
    for name in ("a", "b", "c", "d"):
        await cluster.create_topic(name, partitions=2)
    await until(lambda: len(node.parts.partitions.channels) == 8)
    survey = Survey(node.parts.partitions.channels, Damaged(), topics_max=2)  # type: ignore[arg-type]
    await survey.look()
    totals = survey.totals
    assert {name: each.partitions for name, each in totals.topics.items()} == {
        "a": 2,
        "b": 2,
        OTHER_TOPICS: 4,
    }
    assert (totals.topic_count, totals.damaged_ranges) == (4, 8)
