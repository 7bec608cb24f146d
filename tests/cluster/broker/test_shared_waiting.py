"""A partition loses its end while a member of a shared group waits there for more."""

from collections import Counter

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.shared_member import with_shared_topic

from vq.client.config import ConsumerConfig
from vq.model import FlushMode, Message
from vq.store.disk.memory_disk import keep_none
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_a_log_that_was_cut_is_not_taken_for_one_that_grew(cluster: MemoryCluster) -> None:
    """The member began to wait before it had read what is there; more comes than was lost."""
    await cluster.start()
    await with_shared_topic(cluster)
    await cluster.start("b2")
    await cluster.create_topic("t", partitions=1, flush=FlushMode.ASYNC)
    seen = Counter[bytes]()

    async def handle(message: Message) -> None:
        seen[message.content] += 1

    async with factory_of(cluster) as factory:
        producer = await factory.create_producer()
        config = ConsumerConfig(group="g", model="shared", lease_s=5)
        consumer = await factory.create_consumer(config)
        await consumer.subscribe("t", listener=handle).start()

        async def handled(name: bytes, count: int) -> None:
            for number in range(count):
                await producer.send(Message("t", b"%b %d" % (name, number)), 60)
            await until(lambda: sum(each.startswith(name) for each in seen) == count)

        await handled(b"old", 5)
        cluster.network.kill("b2")
        disk = cluster.disks["b2"].crash(keep_none)
        cluster.ensemble.crash(cluster.coordinators["b2"])
        await cluster.nodes.pop("b2").stop()
        cluster.disks["b2"] = disk
        await cluster.start("b2")
        await handled(b"new", 10)
        await consumer.close()
