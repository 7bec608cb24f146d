"""A producer follows the load of brokers in memory, whatever happens to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of, started
from support.producers import client_of, core_of, producer_of

from vq import aio, limits
from vq.client.cluster import ClusterClient
from vq.client.producer.spread import following
from vq.client.producer.spread.following import INTERVAL_S, LoadFollower, read_stored
from vq.client.producer.spread.partitioner import Sense, TopicPartitions
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import TimedOut
from vq.model import Message
from vq.remoting.format import Command
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

GROUPS = ("b1", "b2", "b3")
SENSES = [sense.value for sense in Sense]


@asynccontextmanager
async def three_brokers(**settings: Any) -> AsyncIterator[MemoryCluster]:
    """Three groups, and a topic with a partition on each."""
    async with memory_cluster() as cluster:
        for group in GROUPS:
            await cluster.start(group, load_interval_s=1.0, **settings)
        await cluster.create_topic("t", partitions=3)
        yield cluster


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with three_brokers() as made:
        yield made


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[ClusterClient]:
    async with started(cluster) as made:
        await made.track("t")
        yield made


@dataclass
class Noted:
    """A topic that notes its weights."""

    client: ClusterClient
    topic: str = "t"
    told: list[Any] = field(default_factory=list)

    @property
    def topic_id(self) -> str:
        return self.client.routes.topic(self.topic).id

    def follow_weights(self, weights: Any) -> None:
        self.told.append(weights)

    def follow_loads(self, loads: Any) -> None:
        self.told.append(loads)


def group_of(client: ClusterClient, partition: int) -> str:
    group = client.routes.topic("t").partitions[partition].writer_group
    assert group is not None
    return group


def pretend(cluster: MemoryCluster, group: str, **fields: Any) -> None:
    """Have a broker publish these fields from now on, instead of what it measures."""
    publisher = cluster.nodes[group].parts.presence.registration
    publish = type(publisher).publish_load
    load = BrokerLoad(
        **{
            "disk_bytes_free": 50,
            "disk_bytes_total": 100,
            "busy": 0.1,
            "capacity_bytes_per_s": 1e6,
            "bytes_per_s": 1e5,
            **fields,
        }
    )

    async def publish_other(_: BrokerLoad) -> None:
        await publish(publisher, load)  # type: ignore[arg-type]

    publisher.publish_load = publish_other  # type: ignore[union-attr, method-assign, assignment]


async def put(cluster: MemoryCluster, client: ClusterClient, partition: int, size: int) -> None:
    async with aio.MessageFactory.on_cluster(client) as factory:
        producer = await producer_of(factory, partitioner=lambda *_: partition)
        await producer.send(Message("t", b"x" * size))


# What is read ---------------------------------------------------------------------------------
async def test_stored_bytes_are_those_that_each_broker_has(cluster):
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner=lambda *_: 1)
        await producer.send(Message("t", b"x" * 1000))
        found = await read_stored(client_of(factory), "t")
        assert found[0] == found[2] == 0
        assert 1000 < found[1] < 1300
        assert await read_stored(client_of(factory), "other") == {}


async def test_a_broker_that_does_not_answer_is_asked_for_one_step(cluster, client, monkeypatch):
    """And the others are known nevertheless: a topic may have thousands of partitions there."""
    await cluster.create_topic("many", partitions=60)
    await client.track("many")
    monkeypatch.setattr(following, "AT_ONCE_MAX", 4)
    deaf = client.routes.masters["b2"].address
    asked: dict[Any, int] = dict.fromkeys((m.address for m in client.routes.masters.values()), 0)
    request = client.request

    async def count(address: Any, command: Any, message: Any, *args: Any, **more: Any) -> Any:
        assert command == Command.OFFSETS
        asked[address] += 1
        if address == deaf:
            raise TimedOut("no answer")
        return await request(address, command, message, *args, **more)

    monkeypatch.setattr(client, "request", count)
    found = await read_stored(client, "many")
    assert asked.pop(deaf) == 4
    assert list(asked.values()) == [20, 20]
    assert len(found) == 40


async def test_a_size_that_cannot_be_is_unknown(client, monkeypatch):
    """A broker that tells nonsense keeps nobody from following the others."""

    async def read(*_: Any) -> dict[int, int]:
        return {0: 2**63 - 1, 1: 0, 2: 2**30}

    monkeypatch.setattr(following, "read_stored", read)
    topic = Noted(client)
    await LoadFollower(client, Sense.STORED, {"t": topic}).look()
    [[unknown, empty, full]] = topic.told
    assert empty > unknown > full


@pytest.mark.parametrize("sense", Sense)
async def test_a_look_costs_one_call_for_each_group(client, sense, monkeypatch):
    """Nothing for the topic, whose routes are known."""
    follower = LoadFollower(client, sense, {"t": Noted(client)})
    call, calls = client.coordinator._call, list[int]()

    async def count(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return await call(*args, **options)

    monkeypatch.setattr(client.coordinator, "_call", count)
    await follower.look()
    assert len(calls) == len(GROUPS)


# What follows ---------------------------------------------------------------------------------
@pytest.mark.parametrize("sense", Sense)
async def test_equal_brokers_get_the_same(cluster, client, sense):
    for group in GROUPS:
        pretend(cluster, group)
    await asyncio.sleep(20)
    topic = Noted(client)
    follower = LoadFollower(client, sense, {"t": topic})
    await follower.look()
    assert topic.told == [None]


@pytest.mark.parametrize(
    ("sense", "fields"),
    [
        (Sense.HEADROOM, {"bytes_per_s": 9e5}),
        (Sense.LOAD, {"busy": 0.9}),
        (Sense.LOAD, {"flush_ms": 50.0, "queue_depth": 4}),
        (Sense.STORED, {"disk_bytes_free": 13}),
        (Sense.LOAD, {"disk_bytes_free": 5}),
    ],
)
async def test_a_broker_with_more_load_gets_less(cluster, client, sense, fields):
    """Less with each reading, down to a bound."""
    for group in GROUPS:
        pretend(cluster, group, **(fields if group == group_of(client, 1) else {}))
    topic = Noted(client)
    follower = LoadFollower(client, sense, {"t": topic})
    for _ in range(4):
        await asyncio.sleep(15)
        await follower.look()
    shares = [1 / 3 if weights is None else weights[1] for weights in topic.told]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.1
    assert topic.told[-1][0] == pytest.approx(topic.told[-1][2])


async def test_the_partition_with_more_bytes_gets_less(cluster):
    async with factory_of(cluster) as factory:
        full = await producer_of(factory, partitioner=lambda *_: 2)
        for _ in range(8):
            await full.send(Message("t", b"x" * limits.MESSAGE_BYTES_MAX))
        topic = Noted(client_of(factory))
        await LoadFollower(client_of(factory), Sense.STORED, {"t": topic}).look()
        [[one, other, most]] = topic.told
        assert most < one / 3
        assert one == other


async def test_a_topic_that_is_gone_or_another_one_gets_no_weights(cluster, client):
    """Its partitions may be others."""

    @dataclass
    class Old(Noted):
        @property
        def topic_id(self) -> str:
            return "another"

    topics = [Old(client), Noted(client)]
    by_name = {"old": topics[0], "t": topics[1]}
    await LoadFollower(client, Sense.LOAD, by_name).look()
    assert [len(topic.told) for topic in topics] == [0, 1]
    gone = Old(client, topic="gone")
    await LoadFollower(client, Sense.STORED, {"t": gone}).look()
    assert gone.told == []


async def test_what_was_known_is_used_while_zookeeper_is_away_and_then_no_load(cluster, client):
    """After half a minute all count the same again, in steps."""
    for group in GROUPS:
        pretend(cluster, group, busy=0.9 if group == group_of(client, 0) else 0.1)
    await asyncio.sleep(15)
    topic = Noted(client)
    follower = LoadFollower(client, Sense.LOAD, {"t": topic})
    await follower.look()
    cluster.ensemble.stop()
    await asyncio.sleep(10)
    await follower.look()
    assert topic.told[1] == topic.told[0]
    for _ in range(30):
        await asyncio.sleep(5)
        await follower.look()
    assert topic.told[-1] == pytest.approx([1 / 3] * 3, abs=0.04)
    cluster.ensemble.start()


# The task of a producer -----------------------------------------------------------------------
@pytest.mark.parametrize("strategy", SENSES)
async def test_a_producer_sends_less_to_a_broker_on_a_full_disk(cluster, strategy):
    """From soon after the topic is published, and as long as the producer is open."""
    async with factory_of(cluster) as factory:
        cluster_client = client_of(factory)
        await cluster_client.track("t")
        for group in GROUPS:
            full = group == group_of(cluster_client, 1)
            pretend(cluster, group, disk_bytes_free=5 if full else 50)
        await asyncio.sleep(15)
        producer = await producer_of(factory, partitioner=strategy)
        await producer.publish("t")
        queues = core_of(producer).accumulator.topics["t"]
        await until(lambda: queues.weights is not None)
        results = [await producer.send(Message("t", b"x")) for _ in range(60)]
        sent = [sum(each.partition == number for each in results) for number in range(3)]
        assert sent[1] == 0
        assert min(sent[0], sent[2]) > 20


@pytest.mark.parametrize("strategy", SENSES)
async def test_the_load_is_read_again_and_again(cluster, strategy):
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner=strategy)
        await producer.publish("t")
        looks = count_looks(producer)
        interval = INTERVAL_S[Sense(strategy)]
        await asyncio.sleep(20 * interval)
        assert 17 <= len(looks) <= 23


async def test_a_new_topic_is_read_at_once(cluster: MemoryCluster) -> None:
    """Also if it is published during a reading, which may have begun without it."""
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner="headroom")
        await producer.publish("t")
        follower, begins = core_of(producer).follower, list[float]()
        assert follower is not None
        await until(lambda: follower.weights)
        look, time = follower.look, asyncio.get_running_loop().time

        async def look_while_a_topic_comes() -> None:
            begins.append(time())
            await look()
            if len(begins) == 1:
                follower.look_soon()

        follower.look = look_while_a_topic_comes  # type: ignore[method-assign]
        begin = time()
        follower.look_soon()
        await until(lambda: len(begins) == 2)
        assert begins[1] - begin < INTERVAL_S[Sense.HEADROOM] / 2


async def test_a_reading_that_fails_is_tried_again(cluster, caplog):
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner="headroom")
        await producer.publish("t")
        looks = count_looks(producer, fail=ZeroDivisionError("a defect"))
        await asyncio.sleep(30)
        assert len(looks) >= 4
        await producer.send(Message("t", b"x"))
    assert "following the load failed" in caplog.text


def count_looks(producer: Any, fail: Exception | None = None) -> list[int]:
    follower, looks = core_of(producer).follower, list[int]()
    look = follower.look

    async def count() -> None:
        looks.append(1)
        if fail is not None:
            raise fail
        await look()

    follower.look = count
    return looks


@pytest.mark.parametrize("strategy", [None, "hash", "round-robin", "random", "sticky"])
async def test_no_other_strategy_reads_any_load(cluster, strategy):
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner=strategy)
        await producer.publish("t")
        assert core_of(producer).follower is None
        assert not client_of(factory).loads._entries


async def test_no_task_is_left_when_a_producer_closes(cluster):
    """Also during a reading, and when nothing was ever published."""
    async with factory_of(cluster) as factory:
        before = asyncio.all_tasks()
        never = await producer_of(factory, partitioner="least-stored")
        producer = await producer_of(factory, partitioner="least-stored")
        await producer.publish("t")
        task = core_of(producer).follower.task
        assert task in asyncio.all_tasks() - before
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await producer.close()
            await never.close()
        assert task.done()
        core_of(producer).follower.look_soon()
        assert core_of(producer).follower.task is task


async def test_no_task_is_left_when_a_producer_is_abandoned(cluster):
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner="least-loaded")
        await producer.publish("t")
        task = core_of(producer).follower.task
        core_of(producer).abandon("the loop ends")
        await until(task.done)


async def test_a_partitioner_of_ones_own_sees_the_load(cluster: MemoryCluster) -> None:
    class LeastBusy:
        wants_load = True

        def choose(self, message: Message, partitions: TopicPartitions) -> int:
            busy = [load.busy for load in partitions.loads]
            return busy.index(min(busy)) if all(each.known for each in partitions.loads) else 0

    for group, busy in (("b1", 0.5), ("b2", 0.2), ("b3", 0.9)):
        pretend(cluster, group, busy=busy)
    async with factory_of(cluster) as factory:
        producer = await producer_of(factory, partitioner=LeastBusy())
        await producer.publish("t")
        client = client_of(factory)
        assert client is not None
        await until(lambda: _shown(producer) == {"b1": 0.5, "b2": 0.2, "b3": 0.9})
        result = await producer.send(Message("t", b"x"))
        assert group_of(client, result.partition) == "b2"


def _shown(producer: aio.MessageProducer) -> dict[str, float]:
    queues = core_of(producer).accumulator.topics["t"]
    return {load.broker: load.busy for load in queues.partitions.loads if load.known}
