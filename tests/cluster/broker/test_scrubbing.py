"""The slow pass over all that a node stores: when it is due, where it goes on after a restart."""

import asyncio

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.store import SMALL

from vq.broker.health.scrubbing import SAVE_S, SCRUB_NAME, Position
from vq.broker.node import BrokerNode
from vq.store.disk.memory_disk import keep_all
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

INTERVAL_S, BYTES_PER_S = 300.0, 100


async def start(
    cluster: MemoryCluster, *, bytes_per_s: int = BYTES_PER_S
) -> tuple[BrokerNode, Client]:
    node = await cluster.start(
        scrub_interval_s=INTERVAL_S, scrub_bytes_per_s=bytes_per_s, log_config=SMALL
    )
    return node, await Client.connect(cluster.network, node.address)


def saved(cluster: MemoryCluster) -> Position:
    disk = cluster.disks["b1"]
    if not disk.exists(DATA / SCRUB_NAME):
        return Position()
    return Position.from_bytes(disk.read_bytes(DATA / SCRUB_NAME))


async def wait_for_pass(client: Client, *, ended: bool) -> None:
    async with asyncio.timeout(WAIT_S * 1_000):  # of virtual time
        while True:
            told = await client.status()
            if told.scrub_begun_ms and bool(told.scrub_ended_ms) == ended:
                return
            await asyncio.sleep(1.0)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_pass_goes_on_where_it_was_within_a_partition(
    cluster: MemoryCluster, end: str
) -> None:
    """Not at its first byte: one partition may take days. A kill costs what was not saved."""
    node, client = await start(cluster)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    for number in range(60):
        await client.put("t", 0, [message(b"%04d" % number * 50)])
    stored = (await client.status(with_partitions=True)).partitions[0].size_bytes
    await wait_for_pass(client, ended=False)
    begun_ms = (await client.status()).scrub_begun_ms
    await until(lambda: saved(cluster).offset > 0, timeout_s=20 * SAVE_S)
    if end == "stop":
        await node.stop()
    else:
        await node.parts.tasks.close()
        cluster.ensemble.crash(cluster.coordinators["b1"])
        cluster.network.kill("b1")
        cluster.disks["b1"] = cluster.disks["b1"].crash(keep_all)
    position = saved(cluster)
    assert (position.begun_ms, position.ended_ms) == (begun_ms, 0)
    assert 0 < position.offset < stored

    _, client = await start(cluster)
    told = await client.status()
    assert (told.scrub_begun_ms, told.scrub_ended_ms) == (begun_ms, 0)
    assert told.scrub_read_bytes == position.read_bytes
    await wait_for_pass(client, ended=True)
    told = await client.status()
    assert told.scrub_begun_ms == begun_ms
    again = told.scrub_read_bytes - stored  # of the block in which it was
    assert 0 <= again <= SMALL.block_bytes
    assert again < position.read_bytes


@pytest.mark.parametrize("under_way", [True, False])
async def test_a_pass_waits_until_the_partitions_are_there(
    cluster: MemoryCluster, under_way: bool
) -> None:
    """A start may wait for ZooKeeper: a pass over nothing would count for a whole interval."""
    node, client = await start(cluster, bytes_per_s=1_000)
    await cluster.create_topic("t", partitions=1)
    for number in range(20):
        await client.put("t", 0, [message(b"%04d" % number * 50)])
    stored = (await client.status(with_partitions=True)).partitions[0].size_bytes
    await node.stop()
    begun_ms = cluster.ensemble.clock.wall_ms() - int(INTERVAL_S * 1_500)
    last = Position(begun_ms=begun_ms, ended_ms=0 if under_way else begun_ms + 1)
    cluster.disks["b1"].write_atomic(DATA / SCRUB_NAME, last.to_bytes())
    cluster.ensemble.stop()
    starting = asyncio.ensure_future(
        cluster.start(
            scrub_interval_s=INTERVAL_S,
            scrub_bytes_per_s=1_000,
            log_config=SMALL,
            start_timeout_s=1_000.0,
        )
    )
    await asyncio.sleep(INTERVAL_S)
    cluster.ensemble.start()
    client = await Client.connect(cluster.network, (await starting).address)
    if not under_way:
        await wait_for_pass(client, ended=False)
    await wait_for_pass(client, ended=True)
    told = await client.status()
    assert (told.scrub_begun_ms == begun_ms) is under_way
    assert told.scrub_read_bytes >= stored


async def test_it_is_told_when_the_next_pass_begins(cluster: MemoryCluster) -> None:
    """Not while one goes on: that may take longer than the interval."""
    node, client = await start(cluster)
    clock = cluster.ensemble.clock
    started_ms = clock.wall_ms()
    await cluster.create_topic("t", partitions=1)
    await client.put("t", 0, [message(b"x" * 5_000)])
    told = await client.status()
    assert told.scrub_begun_ms == 0
    assert abs(told.scrub_next_ms - started_ms - INTERVAL_S * 1_000) < 1_000
    due_ms = told.scrub_next_ms
    await wait_for_pass(client, ended=False)
    told = await client.status()
    assert told.scrub_next_ms == 0
    assert 0 <= told.scrub_begun_ms - due_ms <= 11_000
    await wait_for_pass(client, ended=True)
    told = await client.status()
    assert told.scrub_next_ms == told.scrub_begun_ms + INTERVAL_S * 1_000
    due_ms = told.scrub_next_ms
    await node.stop()
    _, client = await start(cluster)
    assert (await client.status()).scrub_next_ms == due_ms


async def test_the_first_pass_comes_although_the_node_is_restarted_within_each_interval(
    cluster: MemoryCluster,
) -> None:
    """Which is usual: a machine is patched more often than once a week."""
    node, client = await start(cluster)
    await until(lambda: saved(cluster).since_ms, timeout_s=SAVE_S)
    due_ms = (await client.status()).scrub_next_ms
    for _ in range(3):
        await asyncio.sleep(INTERVAL_S / 4)
        await node.stop()
        node, client = await start(cluster)
        await until(lambda: saved(cluster).since_ms)
        assert abs((await client.status()).scrub_next_ms - due_ms) < 1_000
    await wait_for_pass(client, ended=True)
    assert (await client.status()).scrub_begun_ms - due_ms < 60_000
    assert saved(cluster).since_ms == 0


async def test_a_node_without_passes_tells_of_none(cluster: MemoryCluster) -> None:
    _, client = await start(cluster, bytes_per_s=0)
    told = await client.status()
    assert (told.scrub_bytes_per_s, told.scrub_next_ms) == (0, 0)
