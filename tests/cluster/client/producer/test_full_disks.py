"""Producers and disks that are full: of one broker, or one directory of a broker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.client import factory_of

from vq.client.config import ProducerConfig
from vq.errors import DiskFull
from vq.model import Message
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

D1, D2 = Path("/d1"), Path("/d2")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A broker with two directories; partitions 0 and 2 of topic ``t`` lie in the first one.

    All have a message: one without would go to the directory that has space.
    """
    async with memory_cluster() as made:
        node = await made.start(data=(D1, D2), disk_interval_s=0.5)
        await made.create_topic("t", partitions=4)
        await until(lambda: len(node.parts.partitions.channels) == 4)
        client = await Client.connect(made.network, node.address)
        for number in range(4):
            await client.put("t", number, [message(b"x")])
        yield made


def fill(cluster: MemoryCluster, **free: int) -> None:
    by_path = {D1: free["d1"], D2: free["d2"]}
    cluster.disks["b1"].free_space = lambda path: (by_path[path], 1_000)  # type: ignore[method-assign]


async def sent(producer: Any, count: int, **of_message: Any) -> Counter[Any]:
    """Send a message every tenth of a second; return the partitions and errors."""

    async def send(number: int) -> Any:
        try:
            return (await producer.send(Message("t", b"%d" % number, **of_message))).partition
        except DiskFull:
            return DiskFull

    sends = []
    for number in range(count):
        sends.append(asyncio.ensure_future(send(number)))
        await asyncio.sleep(0.1)
    return Counter(await asyncio.gather(*sends))


@pytest.mark.parametrize(
    "partitioner", [None, "sticky", "random", "least-stored", "headroom", "least-loaded"]
)
async def test_messages_without_a_key_pass_a_full_directory_by(
    cluster: MemoryCluster, partitioner: str | None
) -> None:
    """The load that the broker publishes tells of both directories together: half full."""
    async with factory_of(cluster) as factory:
        config = ProducerConfig(partitioner=partitioner)
        async with await factory.create_producer(config) as producer:
            fill(cluster, d1=900, d2=50)
            await asyncio.sleep(1)
            found = await sent(producer, 200)
            assert sum(found[number] for number in (0, 2)) >= 196
            fill(cluster, d1=900, d2=900)
            await asyncio.sleep(60)
            found = await sent(producer, 200)
            assert sum(found[number] for number in (1, 3)) > 10
            assert not found[DiskFull]


async def test_messages_with_a_key_wait_for_their_partition(cluster: MemoryCluster) -> None:
    """Another one would break their order; they are sent once there is space."""
    async with factory_of(cluster) as factory, await factory.create_producer() as producer:
        keys = {(await producer.send(Message("t", b"x", key=n))).partition: n for n in range(64)}
        fill(cluster, d1=900, d2=50)
        await asyncio.sleep(1)
        waiting = asyncio.ensure_future(sent(producer, 5, key=keys[1]))
        await asyncio.sleep(10)
        fill(cluster, d1=900, d2=900)
        assert await waiting == {1: 5}
