"""What keeps a client from going on is named by its cause, not by what follows from it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.broker import memory_cluster
from support.client import factory_of

from vq import aio
from vq.broker.replication import insync_set
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.producer.send import sender
from vq.errors import UnknownTopic, VqError
from vq.model import Message, TopicSettings
from vq.operations.base.connect import UnknownCluster
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def subscribe(factory: aio.MessageFactory) -> None:
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    await consumer.subscribe("t").start()


async def read(factory: aio.MessageFactory) -> None:
    await (await factory.create_consumer()).get("t", 0, 0, 100)


async def publish(factory: aio.MessageFactory) -> None:
    await (await factory.create_producer()).publish("t")


async def send(factory: aio.MessageFactory) -> None:
    await (await factory.create_producer()).send(Message("t", b"x"), timeout=1.0)


@pytest.mark.parametrize("act", [subscribe, read, publish, send])
async def test_a_cluster_that_does_not_exist_is_said_to_be_missing(act: object) -> None:
    """Its name is misspelled; making the topic would not help."""
    async with memory_cluster() as cluster:  # no broker has ever registered
        async with factory_of(cluster) as factory:
            with pytest.raises(VqError, match=r"there is no cluster 'test' at .*no topic 't'"):
                await act(factory)  # type: ignore[operator]
        await cluster.start()
        async with factory_of(cluster) as factory:
            with pytest.raises(UnknownTopic, match="there is no topic 't'; create it"):
                await subscribe(factory)


ASKED = (
    lambda admin: admin.describe_topic("t"),
    lambda admin: admin.get_topic("t"),
    lambda admin: admin.delete_topic("t"),
    lambda admin: admin.alter_topic("t", min_insync=1),
    lambda admin: admin.change_settings("t", TopicSettings()),
    lambda admin: admin.plan_moves("t", [0], "b1"),
    lambda admin: anext(admin.read_columns("t", 0, 0, 1)),
)
LISTED = (
    lambda admin: admin.list_topics(),
    lambda admin: admin.list_groups(),
    lambda admin: admin.create_topic("t"),
)


@pytest.mark.parametrize("ask", ASKED)
async def test_an_operator_hears_that_the_cluster_does_not_exist(
    ask: Callable[[aio.Admin], Awaitable[object]],
) -> None:
    """Also instead of an empty list, which would be taken for an empty cluster."""
    async with memory_cluster() as cluster:
        async with factory_of(cluster) as factory:
            with pytest.raises(UnknownTopic, match=r"there is no cluster 'test' at .*: no broker"):
                await ask(factory.admin)
        await cluster.start()
        async with factory_of(cluster) as factory:
            with pytest.raises(UnknownTopic, match="there is no topic 't'"):
                await ask(factory.admin)


@pytest.mark.parametrize("ask", LISTED)
async def test_an_empty_list_of_a_cluster_that_does_not_exist_is_an_error(
    ask: Callable[[aio.Admin], Awaitable[object]],
) -> None:
    async with memory_cluster() as cluster:
        async with factory_of(cluster) as factory:
            with pytest.raises(UnknownCluster, match="there is no cluster 'test' at "):
                await ask(factory.admin)
        await cluster.start()
        async with factory_of(cluster) as factory:
            await ask(factory.admin)


async def test_a_batch_that_waits_for_other_nodes_is_said_to_do_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(insync_set, "LAG_MAX_S", 0.3)
    monkeypatch.setattr(insync_set, "TICK_S", 0.02)
    monkeypatch.setattr(sender, "SILENCE_S", 1.0)
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1, min_insync=2)
        await cluster.start(node="n2")
        await until(lambda: cluster.nodes["b1"].parts.context.role.named == 2)
        async with (
            factory_of(cluster) as factory,
            await factory.create_producer(ProducerConfig()) as producer,
        ):
            await producer.send(Message("t", b"1"))
            cluster.flushers["b1-n2"].held = True
            sending = asyncio.ensure_future(producer.send(Message("t", b"2"), timeout=60.0))
            await until(lambda: "messages are not acknowledged" in caplog.text)
            assert (
                "1 node(s) of broker group b1 in sync, the topic's min_insync is 2" in caplog.text
            )
            assert "broker does not answer" not in caplog.text
            cluster.flushers["b1-n2"].release()
            await sending
