"""Programs of users under rules of access: the rights of the how-to suffice, and no others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest
from support.access import allow, believe_names
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.users import add

from vq import aio
from vq.broker.base.config import Authorization
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.errors import NotAuthenticated, NotAuthorized, UnknownTopic
from vq.model import Message
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

SENDS = "allow user:alice write topic:orders"
READS = "allow user:alice read topic:orders"


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryCluster]:
    """Two broker groups that enforce rules; deliveries go from one to the other."""
    believe_names(monkeypatch)
    async with memory_cluster() as made:
        for group in ("b1", "b2"):
            await made.start(group, authorization=Authorization.ENFORCED)
        await made.create_topic("orders", partitions=2)
        yield made


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """A factory of alice."""
    async with factory_of(cluster, client_id="user.alice") as made:
        yield made


async def got(consumer: aio.MessageConsumer, count: int) -> list[bytes]:
    contents: list[bytes] = []
    while len(contents) < count:
        contents += [each.content for each in await consumer.get_many(count - len(contents))]
    return sorted(contents)


async def test_a_send_without_the_right_fails_at_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It is refused for certain, and is no error that passes."""
    await allow(cluster, READS)
    producer = await factory.create_producer()
    begun = asyncio.get_running_loop().time()
    with pytest.raises(NotAuthorized, match="user alice has no right to write topic:orders"):
        await producer.send(Message("orders", b"x"))
    assert asyncio.get_running_loop().time() - begun < 1
    await allow(cluster, SENDS)
    await producer.send(Message("orders", b"x"))


async def test_two_rights_are_enough_to_send_delay_and_read(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Also in transactions; brokers deliver for users to partitions of other groups."""
    await allow(cluster, SENDS, READS)
    producer = await factory.create_producer()
    for number in range(4):
        await producer.send(Message("orders", b"later %d" % number, delay_s=5, key=number))
    async with producer.transaction():
        for number in range(4):
            await producer.send(Message("orders", b"part %d" % number, key=number))
            await producer.send(Message("orders", b"both %d" % number, key=number, delay_s=5))
    async with producer.transaction():  # of one partition: it needs no journal
        await producer.send(Message("orders", b"alone", key=1))
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("orders")
    wanted = [b"%s %d" % (kind, n) for kind in (b"later", b"part", b"both") for n in range(4)]
    assert await got(consumer, 13) == sorted([*wanted, b"alone"])


async def test_a_transactional_id_needs_its_right(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await allow(cluster, SENDS, "allow user:bob write transactional-id:shop")
    config = ProducerConfig(transactional_id="shop")
    with pytest.raises(NotAuthorized, match="write transactional-id:shop"):
        async with (await factory.create_producer(config)).transaction():
            pass
    await allow(cluster, SENDS, "allow user:alice write transactional-id:shop")
    producer = await factory.create_producer(config)
    async with producer.transaction():
        await producer.send(Message("orders", b"x"))


async def test_a_consumer_stops_while_the_right_is_withdrawn(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its FETCH that waits ends, its trouble says why, and it goes on by itself later."""
    await allow(cluster, SENDS, READS)
    producer = await factory.create_producer()
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("orders")
    await producer.send(Message("orders", b"1"))
    assert await got(consumer, 1) == [b"1"]
    await allow(cluster, SENDS)
    await until(lambda: len(consumer.troubles()) == 2)
    errors = {type(each.error) for each in consumer.troubles().values()}
    assert errors == {NotAuthorized}
    await producer.send(Message("orders", b"2"))
    await allow(cluster, SENDS, READS)
    assert await got(consumer, 1) == [b"2"]


async def test_rules_are_about_who_has_proved_its_password() -> None:
    """Users and roles as brokers know them from ZooKeeper, with no door of a test."""
    async with memory_cluster() as cluster:
        await add(cluster, "anna", "secret", roles=("shop",))
        await add(cluster, "bert", "secret")
        for group in ("b1", "b2"):
            await cluster.start(
                group, authentication="required", authorization=Authorization.ENFORCED
            )
        await cluster.create_topic("orders", partitions=2)
        await allow(
            cluster, "allow role:shop read,write topic:orders", "deny user:root read cluster"
        )
        async with factory_of(cluster, user="anna", password="secret") as factory:
            assert (await factory.admin.decide_access("anna", "write", "topic:orders")).allowed
            assert not (await factory.admin.decide_access("bert", "write", "topic:orders")).allowed
            producer = await factory.create_producer()
            for number in range(4):
                await producer.send(Message("orders", b"%d" % number, key=number, delay_s=2))
            async with producer.transaction():
                for number in range(4, 8):
                    await producer.send(Message("orders", b"%d" % number, key=number))
            consumer = await factory.create_consumer(ConsumerConfig(group="g"))
            consumer.subscribe("orders")
            assert await got(consumer, 8) == [b"%d" % number for number in range(8)]
        async with factory_of(cluster, user="bert", password="secret", seed=5) as factory:
            producer = await factory.create_producer()
            with pytest.raises(NotAuthorized, match="user bert has no right to write topic:orders"):
                await producer.send(Message("orders", b"x"))


async def test_a_broker_that_refuses_the_user_is_not_told_to_be_silent() -> None:
    """Whoever asks for ends would look for a broker that is down."""
    async with memory_cluster() as cluster:
        await add(cluster, "anna", "secret")
        await cluster.start(authentication="required", authorization=Authorization.ENFORCED)
        await cluster.create_topic("orders", partitions=2)
        await allow(cluster, "allow user:anna describe topic:others")
        for password, refusal in (("wrong", NotAuthenticated), ("secret", NotAuthorized)):
            async with factory_of(cluster, user="anna", password=password) as factory:
                with pytest.raises(refusal):
                    await factory.admin.bounds("orders")
                with pytest.raises(refusal):
                    await factory.admin.offsets_at_time("orders", 0)
                told = await factory.admin.describe_topic("orders")
                assert [each.ends for each in told.partitions] == [None, None]


@pytest.mark.parametrize("authentication", ["off", "optional", "required"])
async def test_commands_of_operators_need_no_rule(authentication: str) -> None:
    """They know the cluster's secret, and show it when rules refuse them."""
    async with memory_cluster() as cluster:
        await cluster.start(authentication=authentication, authorization=Authorization.ENFORCED)
        await cluster.create_topic("orders", partitions=1)
        async with factory_of(cluster, operator=True) as factory:
            producer = await factory.create_producer()
            with pytest.raises(NotAuthorized) if authentication != "required" else nullcontext():
                await producer.send(Message("orders", b"x"))  # no command of an operator
            status = await factory.admin.cluster_status()
            assert [each.error for each in status.brokers] == [""]
            (bounds,) = (await factory.admin.bounds("orders")).values()
            assert bounds is not None


async def test_a_group_reads_its_own_dead_letters_and_no_others(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await allow(cluster, SENDS, READS, "allow user:alice read group:g")
    producer = await factory.create_producer()
    await producer.send(Message("orders", b"bad"))

    async def fails(message: Message) -> None:
        raise ValueError("no")

    config = ConsumerConfig(group="g", max_attempts=1, on_failure="dead-letter")
    consumer = await factory.create_consumer(config)
    consumer.subscribe("orders", listener=fails)
    await consumer.start()

    async def letters(of: aio.MessageFactory) -> list[bytes]:
        try:
            return [each.message.content async for each in of.admin.read_dead_letters("g")]
        except UnknownTopic:  # nobody has needed it yet
            return []

    async def is_there() -> bool:
        return await letters(factory) == [b"bad"]

    await until_true(is_there)
    async with factory_of(cluster, client_id="user.bob", seed=5) as other:
        with pytest.raises(NotAuthorized, match="group:g"):
            await letters(other)
