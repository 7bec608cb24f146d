"""A subscription by pattern follows topics that come and go, in every member alike."""

import asyncio
from collections import defaultdict

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import client_of_factory, send

from vq import aio
from vq.client.config import ConsumerConfig
from vq.coordination.topics import topics
from vq.coordination.topics.needs import read_needs
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import InvalidArgument
from vq.model import Message, TopicPartition
from vq.operations.groups.groups import describe_group
from vq.operations.groups.resets import Target, plan_reset, reset
from vq.operations.groups.terms import alter_group
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time


class Taken:
    """What a listener got, by topic."""

    def __init__(self) -> None:
        self.by_topic: dict[str, list[bytes]] = defaultdict(list)

    async def __call__(self, message: Message) -> None:
        self.by_topic[message.topic].append(message.content)

    def has(self, topic: str, *contents: bytes) -> bool:
        return self.by_topic[topic] == list(contents)


async def member(
    factory: aio.MessageFactory, *patterns: str, **settings: object
) -> tuple[aio.MessageConsumer, Taken]:
    """Return a started member of group ``g``, and what it takes."""
    taken = Taken()
    consumer = await factory.create_consumer(
        ConsumerConfig(**{"group": "g", "max_wait_s": 0.5, **settings})  # type: ignore[arg-type]
    )
    for pattern in patterns:
        consumer.subscribe(pattern, listener=taken)
    await consumer.start()
    return consumer, taken


async def recreate(cluster: MemoryCluster, topic: str) -> None:
    async with cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, topic)
    await cluster.create_topic(topic, partitions=1)


async def test_topics_come_go_and_come_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Each is read from its start, also with ``latest`` if it is younger than the group."""
    await cluster.create_topic("orders.old", partitions=1)
    await send(factory, Message("orders.old", b"before"))
    consumer, taken = await member(factory, "orders.*", start_position="latest")
    await until(lambda: len(consumer.assignment()) == 1)
    await cluster.create_topic("orders.new", partitions=2)
    await cluster.create_topic("other", partitions=1)
    for topic in ("orders.old", "orders.new", "other", "t"):
        await send(factory, Message(topic, b"1"))
    begun = asyncio.get_running_loop().time()
    await until(lambda: taken.has("orders.old", b"1") and taken.has("orders.new", b"1"))
    assert asyncio.get_running_loop().time() - begun < 2.0
    await recreate(cluster, "orders.new")
    await send(factory, Message("orders.new", b"2"))
    await until(lambda: taken.has("orders.new", b"1", b"2"))
    async with cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, "orders.old")
    await until(lambda: consumer.assignment() == [TopicPartition("orders.new", 0)])
    assert not taken.by_topic.keys() & {"other", "t"}
    assert consumer.troubles() == {}
    await consumer.close()
    consumer, taken = await member(factory, "orders.*", start_position="latest")
    await cluster.create_topic("orders.old", partitions=1)
    await send(factory, Message("orders.old", b"3"))
    await until(lambda: taken.has("orders.old", b"3"))
    assert not taken.by_topic["orders.new"], "it goes on behind what was committed"
    await consumer.close()


async def test_progress_of_a_topic_that_is_gone_is_none_of_its_namesake(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """By name it stops the group; a pattern follows what comes, from its start."""
    await cluster.create_topic("orders.a", partitions=1)
    await send(factory, *(Message("orders.a", b"%d" % number) for number in range(3)))
    where = TopicPartition("orders.a", 0)
    offsets = client_of_factory(factory).offsets
    await offsets.reset("g", where, CommittedOffset(offset=10**6, topic_id="0ld"))
    consumer, taken = await member(factory, "orders.*", start_position="latest")
    await until(lambda: taken.has("orders.a", b"0", b"1", b"2"))
    await consumer.close()
    committed = await offsets.at("g", where)
    assert committed is not None
    assert committed.offset < 10**6
    assert committed.topic_id != "0ld"


async def test_a_reset_counts_from_where_members_would_begin(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """In a topic that came while no member was there: at its start, also with ``latest``."""
    consumer, _ = await member(factory, "orders.*", start_position="latest")
    await consumer.close()
    await cluster.create_topic("orders.a", partitions=1)
    await send(factory, *(Message("orders.a", b"%d" % number) for number in range(3)))
    client = client_of_factory(factory)
    [planned] = await plan_reset(client, "g", Target(goal="shift", value=1))
    assert (planned.skips, planned.repeats) == (1, 0)
    await reset(client, "g", [planned])
    consumer, taken = await member(factory, "orders.*", start_position="latest")
    await until(lambda: taken.has("orders.a", b"1", b"2"))
    await consumer.close()


async def test_what_a_pattern_matches_is_read_by_iteration_too(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The other way to take messages has patterns, too."""
    consumer = (await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.5))).subscribe(
        "w?de"
    )
    await send(factory, *(Message("wide", b"%d" % number) for number in range(4)))
    found: set[bytes] = set()
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            found.add(message.content)
            if len(found) == 4:
                break
    await consumer.close()


async def test_members_share_what_matches_and_others_are_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The difference is spelled out; ``describe`` shows what matches."""
    await cluster.create_topic("orders.a", partitions=2)
    async with factory_of(cluster) as other:
        first, one = await member(factory, "orders.*", member_id="a")
        second, two = await member(other, "orders.*", member_id="b")
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
        await cluster.create_topic("orders.b", partitions=2)
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
        await send(factory, *(Message("orders.b", b"%d" % number) for number in range(6)))
        await until(lambda: len(one.by_topic["orders.b"] + two.by_topic["orders.b"]) == 6)
        with pytest.raises(
            InvalidArgument,
            match=r"of the topics 'orders.\*' the group reads all messages, this member none; of "
            r"the topics 'orders.a\*' the group reads none, this member all messages",
        ):
            await member(other, "orders.a*")
        with pytest.raises(InvalidArgument, match="the group reads all messages, this member none"):
            await member(other, "orders.a")
        found = await describe_group(client_of_factory(factory), "g")
        assert found.patterns == {"orders.*": ""}
        assert found.matched_by("orders.*") == ["orders.a", "orders.b"]
        assert [each.topics for each in found.members] == [("orders.*",)] * 2
        assert (found.unsubscribed, found.deleted_topics) == ((), ())
        assert len(found.partitions) == 4
        await first.close()
        await second.close()


async def test_no_topic_has_two_subscriptions(factory: aio.MessageFactory) -> None:
    """It has one listener and one filter."""
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("a.*").subscribe("b.*")
    for given in ("a.x", "*", "?.y"):
        with pytest.raises(InvalidArgument, match="may be the same topic"):
            consumer.subscribe(given)
    await consumer.close()


async def test_an_operator_changes_the_patterns_of_a_group(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """While it has no members; what it had by name it goes on with by pattern."""
    await cluster.create_topic("orders.a", partitions=1)
    await send(factory, Message("orders.a", b"1"))
    consumer, taken = await member(factory, "orders.a")
    await until(lambda: taken.has("orders.a", b"1"))
    await consumer.close()
    client = client_of_factory(factory)
    with pytest.raises(InvalidArgument, match="has no pattern 'x"):
        await alter_group(client, "g", drop_patterns=["x*"])
    await alter_group(client, "g", filters={"orders.*": "*"})
    with pytest.raises(InvalidArgument, match="may be the same topic"):
        await alter_group(client, "g", filters={"*.a": "*"})
    consumer, taken = await member(factory, "orders.*")
    await send(factory, Message("orders.a", b"2"))
    await until(lambda: taken.has("orders.a", b"2"))
    await consumer.close()
    await alter_group(client, "g", drop_patterns=["orders.*"])
    assert (await describe_group(client, "g")).topics == {}


async def test_a_topic_that_keeps_unread_messages_knows_who_reads_it_by_pattern(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Otherwise they would be deleted before a new topic was found."""
    consumer, _ = await member(factory, "orders.*")
    await cluster.create_topic("orders.a", partitions=1)
    async with cluster.admin() as coordinator:
        view = await topics.describe_topic(coordinator, "orders.a")

        async def is_needed() -> bool:
            needs = await read_needs(coordinator, "orders.a", view.id)
            return needs.of(0) == {"group g": 0}

        await until_true(is_needed)
    await consumer.close()
