"""Ten messages for groups that give some of them up, and what becomes of those."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of

import vq
from vq import aio
from vq.client.cluster import ClusterClient
from vq.errors import UnknownTopic
from vq.model import Message


@asynccontextmanager
async def ten_messages() -> AsyncIterator[MemoryCluster]:
    """One broker, and a topic ``t`` with two partitions and ten messages, each with a key."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        async with (
            factory_of(cluster, host="sender", seed=21) as factory,
            await factory.create_producer() as producer,
        ):
            for number in range(10):
                message = Message("t", b"%d" % number, "red", f"k{number}", {"n": str(number)})
                await producer.send(message)
        yield cluster


async def lag(client: ClusterClient, group: str = "g") -> int | None:
    """Return how many messages a group has not handled."""
    factory = aio.MessageFactory.on_cluster(client)
    return (await factory.admin.describe_group(group)).lag_messages


async def letters(client: ClusterClient, group: str = "g") -> list[vq.admin.DeadLetter]:
    """Return the dead letters of a group."""
    admin = aio.MessageFactory.on_cluster(client).admin
    try:
        return [each async for each in admin.read_dead_letters(group)]
    except UnknownTopic:  # nobody has needed it yet
        return []
