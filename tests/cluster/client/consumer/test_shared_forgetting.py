"""What a shared group has of a topic goes with the topic, or when the group forgets it."""

import asyncio

from vq import ConsumerConfig, Message, aio
from vq.testing import Cluster, simulated, until, until_true


async def _open_of(factory: aio.MessageFactory) -> dict[str, int]:
    told = await factory.admin.describe_shared_group("g")
    return {each.topic: each.open for each in told.partitions if each.cursor}


@simulated(seeds=1, nodes=1)
async def test_a_shared_group_keeps_nothing_of_a_topic_that_is_gone(cluster: Cluster) -> None:
    """One is removed for good while a member waits, one is forgotten when none reads it.

    Their open messages are nowhere any more, also when the node begins anew. A topic of the name
    that comes then begins from its first message.
    """
    seen: list[object] = []

    async def listener(message: Message) -> None:
        seen.append((message.topic, message.key))
        if message.key == "bad":
            raise ValueError("it fails")

    factory = await cluster.factory("app")
    producer = await factory.create_producer()
    config = ConsumerConfig(
        group="g",
        model="shared",
        lease_s=5,
        retry_backoff=(3_600, 3_600),
        start_position="earliest",
    )
    consumer = await factory.create_consumer(config)
    topics = ("run-kept", "run-gone", "run-forgotten")
    for topic in topics:
        await cluster.create_topic(topic, partitions=1)
        await producer.send(Message(topic, b"x", key="bad"))
    await consumer.subscribe("run-*", listener=listener).start()
    await until(lambda: len(seen) == 3)
    await factory.admin.delete_topic("run-gone", now=True)

    async def has(*names: str) -> bool:
        return await _open_of(factory) == dict.fromkeys(names, 1)

    await asyncio.sleep(60)  # it is looked so often whether topics are gone
    await until_true(lambda: has("run-kept", "run-forgotten"), timeout_s=300)
    await consumer.close()
    await factory.admin.forget_topic("g", "run-forgotten")
    assert await has("run-kept")
    node = await cluster.faults.kill_broker()
    await cluster.faults.start_broker("b1", node)
    await until_true(lambda: has("run-kept"))
    await cluster.create_topic("run-gone", partitions=1)
    await producer.send(Message("run-gone", b"x", key="good"))
    consumer = await factory.create_consumer(config)
    await consumer.subscribe("run-*", listener=listener).start()
    await until(lambda: ("run-gone", "good") in seen)
    await consumer.close()
