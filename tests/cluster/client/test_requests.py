"""Requests and their replies: ``producer.request`` and ``producer.reply``."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support.access import allow, believe_names
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.producers import client_of, core_of, delete_topic

from vq import aio
from vq.broker.base.config import Authorization
from vq.client import requests
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer.deliver.tries import Retry
from vq.coordination.topics import topics
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    NotAuthorized,
    TimedOut,
    UnknownTopic,
)
from vq.model import Message, RetentionPolicy
from vq.reserved import CORRELATION, REPLY_TO, replies_topic
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

Answers = Callable[[aio.MessageProducer, Message], Awaitable[object]]


async def echo(producer: aio.MessageProducer, message: Message) -> None:
    await producer.reply(message, b"re: " + message.content, {"by": "echo"})


@asynccontextmanager
async def answering(
    factory: aio.MessageFactory, answers: Answers = echo, topic: str = "t", **settings: object
) -> AsyncIterator[None]:
    """Have a group of one member answer what is sent to a topic."""
    producer = await factory.create_producer()

    async def listen(message: Message) -> object:
        return await answers(producer, message)

    config = ConsumerConfig(group="answers", **settings)  # type: ignore[arg-type]
    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe(topic, listener=listen)
        await consumer.start()
        yield


async def test_many_requests_at_once_get_their_own_replies_over_one_reader(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of several producers, each of which gets what is its own; nothing is counted twice."""
    begun: list[object] = []
    real = requests.PartitionReader.bounds

    async def bounds(self: requests.PartitionReader) -> object:
        if self.partition.topic == replies_topic("t"):
            begun.append(self)
        return await real(self)

    monkeypatch.setattr(requests.PartitionReader, "bounds", bounds)
    async with answering(factory, workers=8, mode="concurrent"):
        producers = [await factory.create_producer() for _ in range(2)]
        wanted = [(each, b"%d" % n) for n in range(50) for each in producers]
        replies = await asyncio.gather(*(p.request(Message("t", content)) for p, content in wanted))
    assert [each.content for each in replies] == [b"re: " + content for _, content in wanted]
    assert {(each.headers or {})["by"] for each in replies} == {"echo"}
    assert len(begun) == 2
    for each in producers:
        counts = each.metrics().requests
        assert (counts.waiting, counts.answered, counts.unanswered) == (0, 50, 0)
        assert (counts.late, counts.doubled) == (0, 0)


async def test_who_asks_nothing_has_nothing_made(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b"x"))
        assert replies_topic("t") not in client_of(factory).routes.topics
        with pytest.raises(UnknownTopic):
            await factory.admin.describe_topic(replies_topic("t"))


async def test_replies_are_as_safe_as_requests_and_go_after_an_hour(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """So those to a program that is gone are not kept."""
    await cluster.create_topic("safe", partitions=12, flush="async", retention_hours=72)
    producer = await factory.create_producer()
    with pytest.raises(TimedOut):
        await producer.request(Message("safe", b"x"), timeout=1.0)
    async with cluster.admin() as coordinator:
        settings = (await topics.describe_topic(coordinator, replies_topic("safe"))).settings
    assert (settings.partitions, settings.flush) == (12, "async")
    assert settings.retention_hours == 1
    assert settings.retention_policy is RetentionPolicy.DELETE


async def test_a_request_without_a_reply_says_where_it_is_stored(
    factory: aio.MessageFactory,
) -> None:
    producer = await factory.create_producer()
    with pytest.raises(
        TimedOut, match=r"no reply to a request to t within [\d.]+ s: .* t-1@"
    ) as info:
        await producer.request(Message("t", b"lost", key=1), timeout=2.0)
    details = info.value.details
    consumer = await factory.create_consumer()
    offset = details["offset"]
    assert isinstance(offset, int)
    (found,) = await consumer.get("t", 1, offset, 1000)
    assert (found.id, found.content) == (details["id"], b"lost")
    assert found.reply_to is not None
    assert found.reply_to.correlation == details["correlation"]
    assert producer.metrics().requests.unanswered == 1


async def test_a_late_reply_and_a_second_one_are_counted_and_reach_nobody(
    factory: aio.MessageFactory,
) -> None:
    asked: list[Message] = []

    async def twice_or_never(producer: aio.MessageProducer, message: Message) -> None:
        asked.append(message)
        if message.content == b"twice":
            await producer.reply(message, b"1")
            await producer.reply(message, b"2")

    producer = await factory.create_producer()
    async with answering(factory, twice_or_never):
        assert (await producer.request(Message("t", b"twice", key=0))).content == b"1"
        with pytest.raises(TimedOut):
            await producer.request(Message("t", b"never", key=0), timeout=1.0)
        await producer.reply(asked[-1], b"too late")
        await until(lambda: producer.metrics().requests.late)
    counts = producer.metrics().requests
    assert (counts.answered, counts.doubled, counts.late) == (1, 1, 1)


async def test_a_request_that_failed_is_answered_from_the_retry_topic(
    factory: aio.MessageFactory,
) -> None:
    """Copies of a request keep where its reply goes."""
    tries: list[int] = []

    async def fail_first(producer: aio.MessageProducer, message: Message) -> object:
        tries.append(message.attempts)
        if message.attempts == 1:
            return Retry()
        return await producer.reply(message, b"at last")

    settings = {"mode": "concurrent", "max_attempts": 1, "retry_schedule": (1.0,)}
    async with answering(factory, fail_first, **settings):
        producer = await factory.create_producer()
        reply = await producer.request(Message("t", b"x"), timeout=WAIT_S)
    assert (reply.content, tries) == (b"at last", [1, 2])


async def test_a_request_may_be_sent_on_to_who_answers_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("u")
    asking = await factory.create_producer()

    async def send_on(producer: aio.MessageProducer, message: Message) -> None:
        await producer.send(message._replace(topic="u"))

    async with (
        answering(factory, send_on),
        await factory.create_consumer(ConsumerConfig(group="other")) as other,
    ):
        other.subscribe("u")
        asked = asyncio.create_task(asking.request(Message("t", b"x"), timeout=WAIT_S))
        (message,) = await other.get_many(1)
        await asking.reply(message, b"from u")
        assert (await asked).content == b"from u"


async def test_a_reply_in_a_transaction_comes_with_its_commit(
    factory: aio.MessageFactory,
) -> None:
    async def answer_twice(producer: aio.MessageProducer, message: Message) -> None:
        transaction = await producer.begin_transaction()
        await producer.reply(message, b"rolled back")
        await transaction.rollback()
        async with producer.transaction():
            await producer.reply(message, b"committed")

    async with answering(factory, answer_twice):
        producer = await factory.create_producer()
        assert (await producer.request(Message("t", b"x"))).content == b"committed"


async def test_partitioner_and_diversion_of_the_answering_producer_do_not_move_a_reply(
    factory: aio.MessageFactory,
) -> None:
    """Who asks reads one partition."""
    config = ProducerConfig(partitioner=lambda *_: 0, on_unavailable="any")
    answering_producer = await factory.create_producer(config)

    async def answer(_: aio.MessageProducer, message: Message) -> None:
        await answering_producer.reply(message, b"here")

    async with answering(factory, answer):
        for _ in range(4):  # each producer chooses a partition
            producer = await factory.create_producer()
            assert (await producer.request(Message("t", b"x"))).content == b"here"


async def test_what_cannot_be_a_request_or_a_reply_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("x" * 190)
    producer = await factory.create_producer()
    for message, text in (
        (Message("x" * 190, b""), "takes no requests: its replies go to"),
        (Message("_vq.delayed", b""), "are reserved"),
        (Message("t", b"", delay_s=5), "a request with delay_s"),
        (Message("t", b"", headers="a"), "no mapping"),  # type: ignore[arg-type]
        ("t", "vq.Message"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            await producer.request(message)  # type: ignore[arg-type]
    async with producer.transaction():
        with pytest.raises(InvalidState, match="in a transaction"):
            await producer.request(Message("t", b"x"))
    with pytest.raises(InvalidArgument, match="is no request"):
        await producer.reply(Message("t", b"x"), b"y")
    foreign = {REPLY_TO: "orders-0/tag", CORRELATION: "x"}
    with pytest.raises(InvalidArgument, match="is no request"):
        await producer.reply(Message("t", b"x", headers=foreign), b"y")
    with pytest.raises(InvalidArgument, match="are reserved"):
        await producer.send(Message(replies_topic("t"), b"by hand"))


async def test_a_request_that_is_refused_fails_at_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    with pytest.raises(UnknownTopic):
        await producer.request(Message("nowhere", b"x"))
    await producer.publish("t")
    big = Message("t", b"x", headers={"h": "y" * 40_000})
    with pytest.raises(MessageTooLarge, match=r"headers take"):
        await producer.request(big)
    assert producer.metrics().requests.waiting == 0


async def test_requests_beyond_the_bound_are_refused(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WAITING_MAX", 3)
    producer = await factory.create_producer()
    asked = [asyncio.create_task(producer.request(Message("t", b"x"))) for _ in range(3)]
    await until(lambda: producer.metrics().requests.waiting == 3)
    with pytest.raises(BufferFull, match="3 requests of this producer wait"):
        await producer.request(Message("t", b"x"))
    asked[0].cancel()
    await until(lambda: producer.metrics().requests.waiting == 2)
    await producer.close()
    for each in asked[1:]:
        with pytest.raises(InvalidState, match="closed"):
            await each


async def test_requests_go_on_when_the_topic_of_replies_was_deleted(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    async with answering(factory):
        producer = await factory.create_producer()
        await producer.request(Message("t", b"x"))
        await delete_topic(cluster, replies_topic("t"))
        await until(lambda: replies_topic("t") not in client_of(factory).routes.topics)
        assert (await producer.request(Message("t", b"y"))).content == b"re: y"


@pytest.mark.parametrize("now", [False, True])
async def test_replies_are_deleted_with_the_topic_of_the_requests(
    factory: aio.MessageFactory, now: bool
) -> None:
    """For good; also those of one that is brought back, to which requests go on."""

    async def reserved() -> set[str]:
        return {each.name for each in await factory.admin.list_topics(reserved=True)}

    async with answering(factory):
        producer = await factory.create_producer()
        await producer.request(Message("t", b"one"))
        assert replies_topic("t") in await reserved()
    await factory.admin.delete_topic("t", now=now)
    assert replies_topic("t") not in await reserved()
    assert replies_topic("t") not in {e.name for e in await factory.admin.deleted_topics()}
    if not now:
        await factory.admin.undelete_topic("t")
        other = await factory.create_producer()
        async with answering(factory):
            assert (await other.request(Message("t", b"two"))).content == b"re: two"


async def test_a_reply_to_a_topic_that_was_deleted_holds_no_listener(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    with pytest.raises(TimedOut) as info:
        await producer.request(Message("t", b"x", key=0), timeout=1.0)
    offset = info.value.details["offset"]
    assert isinstance(offset, int)
    consumer = await factory.create_consumer()
    (message,) = await consumer.get("t", 0, offset, 1000)
    await delete_topic(cluster, replies_topic("t"))
    await until(lambda: replies_topic("t") not in client_of(factory).routes.topics)
    assert await producer.reply(message, b"y") is None


async def test_a_failover_loses_no_reply_of_a_topic_with_copies(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The master dies between the request and the reply; the reader goes on at the next one."""
    await cluster.start(node="n2")
    await cluster.create_topic("kept", replication="sync", min_insync=1)
    await cluster.until_in_sync("n1", "n2")
    holding, go = asyncio.Event(), asyncio.Event()

    async def hold(producer: aio.MessageProducer, message: Message) -> None:
        if message.content == b"held":
            holding.set()
            await go.wait()
        await producer.reply(message, message.content, timeout=WAIT_S)

    async with answering(factory, hold, topic="kept"):
        producer = await factory.create_producer()
        assert (await producer.request(Message("kept", b"1"))).content == b"1"
        asked = asyncio.create_task(producer.request(Message("kept", b"held"), timeout=60.0))
        await holding.wait()
        cluster.network.kill("b1")
        cluster.ensemble.expire(cluster.coordinators["b1"])
        await until(lambda: cluster.nodes["b1-n2"].parts.context.role.epoch)
        go.set()
        assert (await asked).content == b"held"
        assert core_of(producer).metrics().requests.answered == 2


async def test_rights_on_replies_are_those_on_the_topic_of_the_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who may send requests reads the replies, who may read requests writes them; no others."""
    believe_names(monkeypatch)
    async with memory_cluster() as cluster:
        await cluster.start(authorization=Authorization.ENFORCED)
        await cluster.create_topic("t")
        await allow(cluster, "allow user:asks write topic:t", "allow user:answers read topic:t")
        async with (
            factory_of(cluster, client_id="user.asks") as asks,
            factory_of(cluster, client_id="user.answers", seed=12) as answers,
            factory_of(cluster, client_id="user.other", seed=13) as other,
        ):
            async with answering(answers):
                producer = await asks.create_producer()
                assert (await producer.request(Message("t", b"x"))).content == b"re: x"
            stranger = await other.create_producer()
            with pytest.raises(NotAuthorized, match="describe topic:t"):
                await stranger.request(Message("t", b"x"))
            headers = {REPLY_TO: f"{replies_topic('t')}-0/ab", CORRELATION: "c"}
            with pytest.raises(NotAuthorized, match="read topic:t"):
                await stranger.reply(Message("t", b"", headers=headers), b"forged")
