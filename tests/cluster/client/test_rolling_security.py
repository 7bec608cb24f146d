"""A running cluster changes to users and rules, one node after the other, under load.

Goal: the steps of the how-to pages fail no send, and each message that was acknowledged is stored
once, in order, and received. Three nodes with copies in memory; TLS, and real processes, are in the
long form: ``faults/test_rolling_security.py``.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from support.access import allow
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.users import add

from vq.broker.base.config import Authorization
from vq.client.config import ConsumerConfig
from vq.coordination.topics.topics import change_settings
from vq.errors import NotAuthenticated, NotAuthorized
from vq.model import Message, TopicSettings
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

NODES = ("n1", "n2", "n3")
PACE_S = 0.1
EACH = 1_000_000


class Clients:
    """A sender of numbers and a member of a group."""

    def __init__(self, number: int, received: list[int]) -> None:
        self.sent: list[int] = []
        self._next = EACH * number
        self._received = received
        self._held = AsyncExitStack()
        self._stops = False

    async def start(self, cluster: MemoryCluster, **known: str) -> None:
        """Open a session as ``known``, and begin."""
        options = {"seed": self._next, "host": f"client-{self._next}", **known}
        factory = await self._held.enter_async_context(factory_of(cluster, **options))
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))

        async def listener(message: Message) -> None:
            self._received.append(int(message.content))

        await consumer.subscribe("t", listener=listener).start()
        self._producer = await factory.create_producer()
        self._sending = asyncio.create_task(self._send())
        await until(lambda: len(self.sent) > 20 or self._sending.done())

    async def _send(self) -> None:
        while not self._stops:
            await self._producer.send(Message("t", b"%d" % self._next, key="k"))
            self.sent.append(self._next)
            self._next += 1
            await asyncio.sleep(PACE_S)

    async def check(self) -> None:
        """Raise what a send raised; it goes on otherwise."""
        count = len(self.sent)
        await until(lambda: len(self.sent) > count or self._sending.done())
        if self._sending.done():
            await self._sending

    async def finish(self) -> None:
        """Stop sending, and raise what a send raised."""
        self._stops = True
        await self._sending

    async def close(self) -> None:
        """Leave the group."""
        self._stops = True
        await self._held.aclose()


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as made:
        await made.start()
        await made.create_topic("t")
        for node in NODES[1:]:
            await made.start("b1", node)
        await made.until_in_sync(*NODES)
        async with made.admin() as coordinator:
            await change_settings(coordinator, "t", TopicSettings(min_insync=2))
        yield made


async def change(cluster: MemoryCluster, clients: Clients, **settings: object) -> None:
    """Restart one node after the other with settings; the clients go on."""
    for node in NODES:
        key = "b1" if node == "n1" else f"b1-{node}"
        await cluster.nodes[key].stop()
        await cluster.start("b1", node, **settings)
        await cluster.until_in_sync(*NODES)
        await clients.check()


async def without_right(cluster: MemoryCluster) -> dict[str, float]:
    """Return how often which right was missing at all nodes, as the metrics have it."""
    found: dict[str, float] = {}
    for node in cluster.nodes.values():
        for each in await node.families():
            if each.name == "vq_requests_without_right":
                for sample in each.samples:
                    right = sample.labels["right"]
                    found[right] = found.get(right, 0.0) + sample.value
    return found


async def stored(cluster: MemoryCluster, **known: str) -> list[int]:
    """Return the numbers in the log."""
    await allow(cluster, "allow user:anna read topic:t")
    async with factory_of(cluster, seed=9, host="judge", **known) as factory:
        consumer = await factory.create_consumer()
        bounds = await consumer.get_bounds("t", 0)
        offset, found = bounds.earliest, []
        while offset < bounds.latest:
            for each in await consumer.get("t", 0, offset, 1 << 20):
                found.append(int(each.content))
                offset = each.next_offset
    return found


async def test_a_running_cluster_changes_to_users_and_rules(cluster: MemoryCluster) -> None:
    received: list[int] = []
    generations = [Clients(number, received) for number in (1, 2)]
    nobody, anna = generations
    secret = {"user": "anna", "password": "secret"}
    try:
        await nobody.start(cluster)
        # docs/howto/users.md
        await change(cluster, nobody, authentication="optional")
        await add(cluster, "anna", "secret")
        await anna.start(cluster, **secret)
        await nobody.finish()
        await nobody.close()
        required = {"authentication": "required"}
        await change(cluster, anna, **required)
        async with factory_of(cluster, seed=7, host="stranger") as factory:
            with pytest.raises(NotAuthenticated):
                await (await factory.create_producer()).send(Message("t", b"0"))
        # docs/howto/rules.md
        await change(cluster, anna, **required, authorization=Authorization.PERMISSIVE)
        assert (await without_right(cluster)).keys() >= {"write", "read"}
        await allow(cluster, "allow user:anna read,write topic:t")
        before = await without_right(cluster)
        await asyncio.sleep(5)
        assert await without_right(cluster) == before  # nothing more would be refused
        await change(cluster, anna, **required, authorization=Authorization.ENFORCED)
        await anna.finish()
        acknowledged = [number for each in generations for number in each.sent]
        await until(lambda: {*acknowledged} <= {*received})
        await allow(cluster)
        async with factory_of(cluster, seed=8, host="other", **secret) as factory:
            with pytest.raises(NotAuthorized):
                await (await factory.create_producer()).send(Message("t", b"0"))
    finally:
        for each in generations:
            await each.close()
    found = await stored(cluster, **secret)
    assert sorted(found) == sorted({*found}), "a message is stored twice"
    assert {*acknowledged} <= {*found}
    for number in (1, 2):
        own = [each for each in found if each // EACH == number]
        assert own == sorted(own), "messages are stored in another order"
