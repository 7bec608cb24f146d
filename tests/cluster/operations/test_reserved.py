"""Topics of vq's own: users neither make them nor send to them, and see them when they ask."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import factory_of, started

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.coordination.topics.reserved_topics import ensure_reserved
from vq.coordination.topics.topics import TopicExists
from vq.errors import BatchFailed, InvalidArgument, UnknownTopic
from vq.model import FlushMode, Message, TopicSettings
from vq.operations.topics import deletion, topics
from vq.reserved import DELAYED_TOPIC, TRANSACTIONS_TOPIC, Purpose, topic_of

pytestmark = pytest.mark.virtual_time

NAME = "_vq.dlq.g"


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


async def made(client: ClusterClient, *origins: str) -> None:
    await ensure_reserved(client.coordinator, NAME, origins or ("t",), client.origin(auto=True))


async def test_users_cannot_create_a_reserved_topic(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    for settings in (None, TopicSettings()):
        for if_not_exists in (False, True):
            with case(settings, if_not_exists), pytest.raises(InvalidArgument, match="reserved"):
                await topics.create_topic(client, NAME, settings, if_not_exists=if_not_exists)
    with pytest.raises(InvalidArgument, match="reserved"):
        await topics.ensure_topic(client, NAME)
    assert await topics.list_topics(client, reserved=True) == await topics.list_topics(client)


@pytest.mark.parametrize("exists", [False, True])
async def test_users_cannot_send_to_a_reserved_topic(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient, exists: bool
) -> None:
    """Whether it is there or not, and where producers may create topics, too."""
    await factory.admin.set_auto_create(TopicSettings())
    if exists:
        await made(client)
    async with await factory.create_producer(ProducerConfig()) as producer:
        message = Message(NAME, b"x")
        for send in (
            lambda: producer.publish(NAME),
            lambda: producer.send(message),
            lambda: producer.send_batch([message]),
        ):
            with pytest.raises(
                (InvalidArgument, BatchFailed), match="only vq sends to them; choose another"
            ):
                await send()
    found = await topics.list_topics(client, reserved=True)
    assert (NAME in {each.name for each in found}) is exists


async def test_users_cannot_give_a_message_a_header_of_vq(factory: aio.MessageFactory) -> None:
    async with await factory.create_producer() as producer:
        headers = {"a": "b", "_vq.origin": "t-0@88"}
        with pytest.raises(InvalidArgument, match=r"'_vq\.origin'.*reserved.*leave it out"):
            await producer.send(Message("t", b"x", headers=headers))
        await producer.send(Message("t", b"x", headers={"a": "_vq.origin", "x_vq.y": "z"}))
        await producer.send(Message("t", b"x", key="_vq.origin"))


async def test_a_reserved_topic_is_in_lists_only_when_asked_for(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await made(client)
    assert [each.name for each in await topics.list_topics(client)] == ["t"]
    assert [each.name for each in await topics.list_topics(client, reserved=True)] == [NAME, "t"]
    await client.coordinator.set(f"topics/{NAME}", b"{")
    assert (await topics.readable_topics(client))[1] == {}
    assert list((await topics.readable_topics(client, reserved=True))[1]) == [NAME]


async def test_it_stays_as_safe_as_what_it_keeps(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """What is acknowledged there may be nowhere else: no setting has it acknowledged earlier."""
    await client.track_internal(TRANSACTIONS_TOPIC)
    await client.track_internal(DELAYED_TOPIC)
    await made(client)
    less: tuple[dict[str, Any], ...] = ({"flush": "async"}, {"replication": "async"})
    for topic in (TRANSACTIONS_TOPIC, DELAYED_TOPIC, NAME):
        before = (await topics.get_topic(client, topic)).settings
        for change in less:
            with case(topic, change), pytest.raises(InvalidArgument, match=r"keeps .* not 'async'"):
                await topics.alter_topic(client, topic, retention_hours=5, **change)
        assert (await topics.get_topic(client, topic)).settings == before
    for change in less:
        await topics.alter_topic(client, "t", **change)
    await deletion.delete_topic(client, NAME, now=True)
    await made(client, "t")
    altered = await topics.alter_topic(client, NAME, flush="async", retention_hours=5)
    assert altered.settings.flush is FlushMode.ASYNC, "as the topics that it is for"


async def test_it_is_made_once_however_many_need_it_first(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    async with started(cluster, host="other", seed=12) as other:
        views = await asyncio.gather(
            *(
                ensure_reserved(each.coordinator, NAME, ("t",), each.origin())
                for each in (client, other) * 3
            )
        )
    assert len({view.id for view in views}) == 1
    assert views[0].settings.partitions == 2
    assert views[0].settings.retention_hours is None


async def test_it_is_read_described_altered_and_deleted_by_name(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await made(client)
    async with factory_of(cluster, host="reader", seed=13) as factory:
        assert (await factory.admin.bounds(NAME)).keys() == {0, 1}
        assert await factory.admin.find_messages(NAME, key="k")
        altered = await factory.admin.alter_topic(NAME, retention_hours=5)
        assert altered.settings.retention_hours == 5
        await factory.admin.delete_topic(NAME)
    with pytest.raises(TopicExists, match="can be brought back"):
        await made(client)
    await deletion.delete_topic(client, NAME, now=True)
    with pytest.raises(UnknownTopic):
        await topics.get_topic(client, NAME)
    await made(client, "gone", "t")
    assert (await topics.get_topic(client, NAME)).settings.partitions == 2


def test_the_names_are_those_of_the_pages() -> None:
    assert topic_of(Purpose.DEAD_LETTERS, "g") == NAME
