"""A partition loses its end (its topic does not flush): what comes then has numbers of before."""

import asyncio
from collections import Counter

from vq import ConsumerConfig, Message
from vq.testing import Cluster, simulated, until


async def _lose_the_end(cluster: Cluster) -> None:
    node = await cluster.faults.kill_broker()
    await cluster.faults.start_broker("b1", node)


class _Run:
    """A sender, and what members of a shared group have handled."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen: Counter[object] = Counter()

    async def begin(self) -> None:
        await self.cluster.create_topic("t", partitions=1, flush="async")
        self.factory = await self.cluster.factory("sender")
        self.producer = await self.factory.create_producer()

    async def send(self, name: str, count: int) -> set[str]:
        sent = {f"{name}-{number}" for number in range(count)}
        for key in sorted(sent):
            await self.producer.send(Message("t", b"x", key=key), 60)
        return sent

    async def _handle(self, message: Message) -> None:
        self.seen[message.key] += 1

    async def member(self, name: str) -> object:
        factory = await self.cluster.factory(name)
        config = ConsumerConfig(group="g", model="shared", lease_s=10, workers=2)
        consumer = await factory.create_consumer(config)
        return await consumer.subscribe("t", listener=self._handle).start()


@simulated(seeds=2, nodes=1)
async def test_what_follows_the_cut_of_a_log_is_delivered(cluster: Cluster) -> None:
    """More messages come than were lost. Three members have seen these, and tell of it: once.

    What is delivered between the cut and that comes again.
    """
    run = _Run(cluster)
    await run.begin()
    for name in ("one", "two", "three"):
        await run.member(name)
    lost = await run.send("lost", 12)
    await until(lambda: lost <= run.seen.keys())
    await _lose_the_end(cluster)
    sent = await run.send("new", 30)
    await until(lambda: sent <= run.seen.keys())
    await asyncio.sleep(30)  # a member that tells later
    assert max(run.seen[key] for key in sent) <= 2
    more = await run.send("more", 3)
    await until(lambda: more <= run.seen.keys())


@simulated(seeds=1, nodes=1)
async def test_a_member_that_comes_then_finds_that_the_group_is_too_far(cluster: Cluster) -> None:
    """Nobody was there at the cut, and fewer messages have come since than were lost."""
    run = _Run(cluster)
    await run.begin()
    member = await run.member("one")
    lost = await run.send("lost", 12)
    await until(lambda: lost <= run.seen.keys())
    await member.close()  # type: ignore[attr-defined]
    await _lose_the_end(cluster)
    sent = await run.send("new", 5)
    await run.member("two")
    await until(lambda: sent <= run.seen.keys())
    told = await run.factory.admin.describe_shared_group("g")
    assert [(each.cursor, each.open) for each in told.partitions] == [(5, 0)]
