"""Where a partition ends never goes back: a new master waits until it knows, or says Busy."""

import asyncio

import pytest
from support.broker import Client, MemoryCluster, message
from support.client import factory_of, started

from vq.aio import MessageConsumer
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.replication.insync_set import InSyncSet
from vq.broker.serving.reading import END_WAIT_S
from vq.client.config import ConsumerConfig, StartPosition
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.errors import Busy, NotMaster
from vq.model import Message, TopicPartition
from vq.operations.cluster import bulk
from vq.operations.groups import resets
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

COUNT = 10


class Pair:
    """Master n1 with ten messages; n2, which was started anew since, and has all of them."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster

    async def start(self) -> "Pair":
        cluster = self.cluster
        self.master = await cluster.start()
        self.copy = await cluster.start(node="n2")
        await cluster.create_topic("t", partitions=1)
        await cluster.until_in_sync("n1", "n2")
        async with factory_of(cluster) as factory:
            producer = await factory.create_producer()
            await producer.publish("t")
            for number in range(COUNT):
                await producer.send(Message("t", b"%d" % number))
        await self.copy.stop()
        self.copy = await cluster.start(node="n2")
        await until(self.copied)
        await asyncio.sleep(1.0)  # the record names it as it is registered now
        await cluster.until_in_sync("n1", "n2")
        return self

    def copied(self) -> bool:
        known = channel(self.master).copies.positions.get("n2")
        return known is not None and known.offset == self.end

    @property
    def end(self) -> int:
        return channel(self.master).high_watermark

    async def switch(self) -> None:
        """Have n2 lead, as an operator does; n1 tells it nothing before ``heal``."""
        self.cluster.network.cut("b1", "b1-n2")
        await self.master.parts.hand_over.run("n2")
        assert self.copy.epoch > 0

    def heal(self) -> None:
        self.cluster.network.heal("b1", "b1-n2")


def channel(node: BrokerNode) -> Channel:
    return node.parts.partitions.channels["t", 0]


@pytest.fixture
async def pair(cluster: MemoryCluster) -> Pair:
    return await Pair(cluster).start()


def keep_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no master put out the one that does not answer."""

    async def look(self: InSyncSet) -> None:
        pass

    monkeypatch.setattr(InSyncSet, "look", look)


async def test_the_end_of_a_partition_does_not_go_back_at_a_change_of_masters(pair):
    """Asked all the time, by a client that goes from one master to the next."""
    end = pair.end
    told: list[int] = []
    async with factory_of(pair.cluster) as factory:
        consumer = await factory.create_consumer()

        async def ask() -> None:
            while True:
                told.append((await consumer.get_bounds("t", 0)).latest)
                await asyncio.sleep(0.005)

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0.1)
        await pair.switch()
        await asyncio.sleep(0.5)
        before = len(told)
        pair.heal()
        await until(lambda: len(told) > before)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert set(told) == {end}


async def test_a_group_that_begins_at_the_end_begins_there_at_a_new_master(pair):
    """It would be given what is older than it; the last messages would not be found."""
    end = pair.end
    await pair.switch()
    async with factory_of(pair.cluster) as factory:
        reader = await factory.create_consumer()
        last = asyncio.create_task(reader.get_last("t", 3))
        found = asyncio.create_task(reader.offset_at("t", 0, "latest"))
        consumer = await factory.create_consumer(
            ConsumerConfig(group="new", start_position=StartPosition.LATEST)
        )
        consumer.subscribe("t", 1 << 20)
        first = asyncio.create_task(first_of(consumer))
        await asyncio.sleep(0.3)
        pair.heal()
        assert [each.content for each in await last] == [b"7", b"8", b"9"]
        assert await found == end
        async with asyncio.timeout(20):
            while not await begun_at(pair.cluster, "new"):
                await asyncio.sleep(0.1)
        assert await begun_at(pair.cluster, "new") == end
        producer = await factory.create_producer()
        await producer.publish("t")
        await producer.send(Message("t", b"fresh"))
        assert await first == b"fresh"


async def first_of(consumer: MessageConsumer) -> bytes:
    async with asyncio.timeout(20):
        async for message in consumer:
            return message.content
    raise AssertionError("the consumer was closed")


async def begun_at(cluster: MemoryCluster, group: str) -> int:
    """Return the committed offset of a group, 0 without one."""
    async with cluster.admin() as coordinator:
        found = await ZooKeeperOffsets(coordinator).read(group, ["t"])
    return max((each.offset for each in found.values()), default=0)


async def test_what_an_operator_asks_meanwhile_waits(pair):
    """A healthy group is not called stopped, a reset does not go to 0, a report has no 0."""
    end = pair.end
    async with factory_of(pair.cluster) as factory:
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))
        consumer.subscribe("t", 1 << 20)
        assert await first_of(consumer) == b"0"
        await consumer.close()
    await pair.switch()
    async with started(pair.cluster) as client:
        target = resets.Target(goal=resets.Goal.LATEST)
        stopped = asyncio.create_task(resets.plan_reset(client, "g", target, only_stopped=True))
        planning = asyncio.create_task(resets.plan_reset(client, "g", target))
        asking = asyncio.create_task(bulk.bounds_on(client, "b1"))
        await asyncio.sleep(0.05)
        assert not planning.done()
        assert not asking.done()
        pair.heal()
        assert await stopped == []
        assert [each.after.offset for each in await planning] == [end]
        bounds = (await asking)[TopicPartition("t", 0)]
        assert bounds is not None
        assert (bounds.latest, bounds.log_end) == (end, end)


async def test_an_end_that_stays_unknown_is_refused_and_not_told(pair, monkeypatch):
    keep_the_set(monkeypatch)
    end = pair.end
    await pair.switch()
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(Busy, match="does not know where the partition ends"):
        await client.offsets("t", 0)
    assert loop.time() - begin == pytest.approx(END_WAIT_S, abs=0.1)
    with pytest.raises(Busy, match="does not know where"):  # nor the end as the place of a time
        await client.offsets("t", 0, by_time=True, time_ms=1)
    async with started(pair.cluster) as operator:
        assert await bulk.bounds_on(operator, "b1") == {TopicPartition("t", 0): None}
    # Whether a group's place is the same does not depend on it: consumers go on.
    answer = await client.offsets("t", 0, place=True, place_offset=end)
    assert answer.end_unknown
    pair.heal()
    await until(lambda: channel(pair.copy).knows_end)
    answer = await client.offsets("t", 0)
    assert (answer.latest, answer.end_unknown) == (end, False)
    client.close()


async def test_who_waits_for_the_end_is_told_when_this_node_leads_no_more(pair, monkeypatch):
    """And a connection that ends leaves nothing behind."""
    keep_the_set(monkeypatch)
    await pair.switch()
    here = channel(pair.copy)
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    gone = await Client.connect(pair.cluster.network, pair.copy.address)
    waiting = asyncio.create_task(client.offsets("t", 0))
    left = asyncio.create_task(gone.offsets("t", 0))
    await until(lambda: len(here.parked) == 2)
    gone.close()
    await until(lambda: len(here.parked) == 1)
    here.role.follow("n1", NotMaster("n1 leads"))
    here.begin_epoch()
    with pytest.raises(Exception, match="is led by n1"):
        await waiting
    assert not here.parked
    await asyncio.gather(left, return_exceptions=True)
    client.close()


async def test_the_log_of_a_master_that_is_opened_again_shows_what_it_did(pair):
    """After a repair: what the others told in this epoch counts for it."""
    here = channel(pair.master)
    end = here.high_watermark
    await pair.master.parts.partitions.logs.open_again(here, here)
    assert here.high_watermark == end
    assert here.knows_end


async def test_a_node_alone_in_sync_knows_where_its_logs_end(cluster):
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"first")])
    end = (await client.offsets("t", 0)).latest
    client.close()
    await node.stop()
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    assert (await client.offsets("t", 0)).latest == end > 0
    client.close()
