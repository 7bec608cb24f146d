"""Topics that a producer creates: only where the cluster allows it, once, however many ask."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import factory_of
from support.producers import core_of, producer_of, stored

from vq import aio
from vq.client.producer.interceptors import ProducerInterceptor
from vq.errors import (
    BatchFailed,
    CoordinationError,
    InvalidArgument,
    MessageTooLarge,
    NotSent,
    UnknownTopic,
    VqError,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message, SendResult, TopicSettings
from vq.serializers import Json

pytestmark = pytest.mark.virtual_time

#: Messages that no new topic takes, and the settings of the producer.
NEVER: dict[str, tuple[Message, dict[str, Any]]] = {
    "larger than the topic takes": (Message("new", b"x" * 101), {}),
    "larger than any topic takes": (Message("new", b"x" * (MESSAGE_BYTES_MAX + 1)), {}),
    "a tag that no filter can name": (Message("new", b"x", tag=" a"), {}),
    "a content that is no bytes": (Message("new", "x"), {}),
    "a key of a wrong kind": (Message("new", b"x", key=1.5), {}),  # type: ignore[arg-type]
    "headers that are too large": (Message("new", b"x", headers={"a": "x" * 40_000}), {}),
    "a partition that nothing looks at": (Message("new", b"x", partition=1), {}),
    "no key for hash": (Message("new", b"x"), {"partitioner": "hash"}),
    "a partition that will not exist": (Message("new", b"x"), {"partitioner": lambda *_: 2}),
    "what the serializer refuses": (Message("new", object()), {"serializer": Json()}),
}
WAYS = ("send", "send_async", "send_oneway", "send_batch")


class Noting(ProducerInterceptor):
    """Notes what it sees; makes the content of messages with the tag ``long`` too large."""

    def __init__(self) -> None:
        self.before: list[Message] = []
        self.after: list[tuple[bytes, type[VqError] | None]] = []

    def before_send(self, message: Message) -> Message:
        self.before.append(message)
        return message._replace(content=b"x" * 101) if message.tag == "long" else message

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        self.after.append((message.content, None if error is None else type(error)))


async def names(factory: aio.MessageFactory) -> list[str]:
    return [each.name for each in await factory.admin.list_topics()]


async def test_a_missing_topic_is_an_error_unless_it_is_allowed(
    factory: aio.MessageFactory,
) -> None:
    async with await producer_of(factory) as producer:
        with pytest.raises(UnknownTopic, match="vq cluster settings --auto-create on"):
            await producer.publish("new")
        await factory.admin.set_auto_create(TopicSettings(partitions=2))
        await producer.send(Message("new", b"x"))
    assert await stored(factory, "new") == [b"x"]
    found = await factory.admin.cluster_settings()
    assert found.auto_create == TopicSettings(partitions=2)
    await factory.admin.set_auto_create(None)
    async with await producer_of(factory) as producer:
        with pytest.raises(UnknownTopic):
            await producer.send(Message("newer", b"x"))
        with pytest.raises(InvalidArgument):
            await producer.publish("no/name")


async def test_many_producers_at_once_get_one_topic(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await factory.admin.set_auto_create(TopicSettings(partitions=2))
    async with factory_of(cluster, seed=12) as second:
        producers = [await producer_of(each) for each in (factory, second) * 5]
        sends = [each.send(Message("new", b"%d" % n)) for n, each in enumerate(producers)]
        await asyncio.gather(*sends)
    assert sorted(await stored(factory, "new")) == [b"%d" % n for n in range(10)]


async def test_a_consumer_creates_no_topic(factory: aio.MessageFactory) -> None:
    await factory.admin.set_auto_create(TopicSettings())
    consumer = await factory.create_consumer()
    with pytest.raises(UnknownTopic):
        await consumer.get("new", 0, 0, 1)


@pytest.mark.parametrize("kind", NEVER)
async def test_a_message_that_can_never_be_sent_creates_no_topic(
    factory: aio.MessageFactory, kind: str
) -> None:
    message, settings = NEVER[kind]
    await factory.admin.set_auto_create(TopicSettings(partitions=2, max_message_bytes=100))
    for way in WAYS:
        async with await producer_of(factory, **settings) as producer:
            with case(way), pytest.raises((InvalidArgument, MessageTooLarge, BatchFailed)):
                await getattr(producer, way)([message] if way == "send_batch" else message)
            assert await names(factory) == ["t"]
            assert producer.metrics().topics == {}
    async with await producer_of(factory, **settings) as producer:
        await producer.publish("new")
    assert await names(factory) == ["new", "t"], "publish declares the topic"


async def test_the_first_message_that_a_new_topic_takes_creates_it(
    factory: aio.MessageFactory,
) -> None:
    """Those before it in a batch are refused as usual, those behind it are stored or refused."""
    await factory.admin.set_auto_create(TopicSettings(max_message_bytes=100))
    contents = [b"x" * 101, b"1", "text", b"2"]
    async with await producer_of(factory) as producer:
        with pytest.raises(BatchFailed) as caught:
            await producer.send_batch([Message("new", each) for each in contents])
    assert (caught.value.stored, caught.value.refused) == ([1, 3], [0, 2])
    assert isinstance(caught.value.outcomes[0], MessageTooLarge)
    assert await stored(factory, "new", 1) == [b"1", b"2"]


async def test_interceptors_see_each_message_once(factory: aio.MessageFactory) -> None:
    """A new topic takes what they make of a message."""
    await factory.admin.set_auto_create(TopicSettings(max_message_bytes=100))
    noting = Noting()
    batch = [Message("new", b"0", tag="long"), Message("new", b"1"), Message("new", b"2")]
    async with await producer_of(factory, interceptors=(noting,)) as producer:
        with pytest.raises(BatchFailed):
            await producer.send_batch(batch[:1])
        assert await names(factory) == ["t"]
        with pytest.raises(BatchFailed):
            await producer.send_batch(batch)
    assert noting.before == [batch[0], *batch]
    refused = (b"x" * 101, MessageTooLarge)
    assert noting.after == [refused, refused, (b"1", None), (b"2", None)]
    assert await stored(factory, "new", 1) == [b"1", b"2"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_send_that_cannot_create_its_topic_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory, way: str
) -> None:
    """Certainly not stored, so it is a refusal; publish passes on why."""
    await factory.admin.set_auto_create(TopicSettings())
    async with await producer_of(factory) as producer:
        await producer.publish("t")
        await cluster.stop()
        message = Message("new", b"x")
        with pytest.raises((NotSent, BatchFailed), match="no broker group of the common pool"):
            await getattr(producer, way)([message] if way == "send_batch" else message)
        with pytest.raises(CoordinationError, match="no broker group of the common pool"):
            await producer.publish("new")
    assert await names(factory) == ["t"]


async def test_a_batch_that_cannot_create_its_topic_ends_what_was_begun(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The interceptors know the outcome of a message that was checked and never appended."""
    await factory.admin.set_auto_create(TopicSettings())
    noting = Noting()
    async with await producer_of(factory, interceptors=(noting,)) as producer:
        await producer.publish("t")
        await cluster.stop()
        with pytest.raises(BatchFailed):
            await producer.send_batch([Message("new", b"1"), Message("new", b"2")], timeout=1)
    assert noting.after == [(b"1", NotSent)]
    assert [each.content for each in noting.before] == [b"1"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_topic_that_is_deleted_between_publish_and_append_is_unknown(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A refusal like any other, not an advice to publish."""
    async with await producer_of(factory) as producer:
        core = core_of(producer)
        publish = core.publish_existing

        async def publish_and_delete(topic: str) -> TopicSettings | None:
            found = await publish(topic)
            core.accumulator.topics.pop(topic)
            return found

        monkeypatch.setattr(core, "publish_existing", publish_and_delete)
        message = Message("t", b"x")
        with pytest.raises((UnknownTopic, BatchFailed)) as caught:
            await getattr(producer, way)([message] if way == "send_batch" else message)
        error = caught.value
        if isinstance(error, BatchFailed):
            error = error.outcomes[0]
        assert isinstance(error, UnknownTopic)
        assert "was deleted while the message was sent" in str(error)


async def test_a_topic_says_who_created_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """An operator sees which topics producers have created, and which application did."""
    await factory.admin.set_auto_create(TopicSettings())
    await factory.admin.create_topic("made", TopicSettings())
    async with factory_of(cluster, seed=12, client_id="shop") as shop:
        await (await producer_of(shop)).publish("new")
    found = {each.name: each.origin for each in await factory.admin.list_topics()}
    made, new = found["made"], found["new"]
    assert made is not None
    assert new is not None
    assert (made.client, made.auto) == ("vq-python", False)
    assert (new.client, new.auto) == ("shop", True)
    assert new.host
    assert (await factory.admin.describe_topic("new")).topic.origin == new
