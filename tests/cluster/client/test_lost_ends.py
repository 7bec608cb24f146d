"""A partition loses its end, since its topic does not flush: who sends there is ahead of the log.

before   0 1 2 | 3 4     the sender's next batch is number 5
after    0 1 2           the broker waits for number 3, or knows nothing of the sender
"""

import asyncio
from typing import Any

import pytest

from vq import ConsumerConfig, Message
from vq.errors import UnknownTopic
from vq.testing import Cluster, simulated

#: How many messages are flushed at a time, so how many of five are left.
LEFT = {"some": (3, 3), "none": (100, 0)}
MEMBERS: dict[str, dict[str, Any]] = {
    "shared": {"model": "shared", "max_deliveries": 1, "lease_s": 5},
    "in order": {"on_failure": "dead-letter", "max_attempts": 1},
}


async def _lose_the_end(cluster: Cluster) -> None:
    node = await cluster.faults.kill_broker()
    await cluster.faults.start_broker("b1", node)


async def _make_topic(cluster: Cluster, flush_interval_messages: int) -> None:
    await cluster.create_topic(
        "t",
        partitions=1,
        flush="async",
        flush_interval_messages=flush_interval_messages,
        flush_interval_ms=3_600_000,
    )


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("which", LEFT)
@simulated(seeds=1)
async def test_a_member_goes_on_making_dead_letters(
    cluster: Cluster, which: str, member: str
) -> None:
    """Those that their topic has lost are lost; what fails from then on becomes one at once."""
    interval, left = LEFT[which]
    await _make_topic(cluster, interval)
    factory = await cluster.factory("app")
    producer = await factory.create_producer()
    config = ConsumerConfig(group="g", retry_backoff=(0.1, 600.0), **MEMBERS[member])
    consumer = await factory.create_consumer(config)

    async def fail(_: Message) -> None:
        raise ValueError("no")

    async def letters() -> list[bytes]:
        try:
            found = [each async for each in factory.admin.read_dead_letters("g")]
        except UnknownTopic:
            return []  # there was none
        return sorted(each.message.content for each in found)

    await consumer.subscribe("t", listener=fail).start()
    sent = [b"%d" % number for number in range(8)]
    for number in range(5):
        await producer.send(Message("t", sent[number]), 60)
        async with asyncio.timeout(60):
            while await letters() != sent[: number + 1]:
                await asyncio.sleep(0.1)
    await factory.admin.alter_topic("t", flush="sync")  # not that of the dead letters
    await _lose_the_end(cluster)
    assert await letters() == sent[:left]
    for number in range(5, 8):
        await producer.send(Message("t", sent[number]), 60)
    async with asyncio.timeout(60):
        while await letters() != sent[:left] + sent[5:]:
            await asyncio.sleep(0.1)
    await consumer.close()
