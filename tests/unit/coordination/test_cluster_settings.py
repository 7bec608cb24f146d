"""The settings of the cluster, and topics that producers create because these allow it."""

import asyncio
import json
from dataclasses import replace

import pytest
from support.coordination import LeadingBroker, client_of

from vq.coordination import topics
from vq.coordination.cluster_settings import (
    change_settings,
    create_missing_topic,
    read_settings,
)
from vq.coordination.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.paths import ClusterSettings
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.model import Address, FlushMode, TopicSettings

WANTED = TopicSettings(partitions=3, flush=FlushMode.ASYNC)


async def allow(client: MemoryCoordinator, wanted: TopicSettings | None = WANTED) -> None:
    await change_settings(client, lambda before: replace(before, auto_create=wanted))


async def test_producers_may_create_nothing_unless_an_operator_says_so(
    client: MemoryCoordinator,
) -> None:
    assert await read_settings(client) == ClusterSettings(auto_create=None)
    with pytest.raises(UnknownTopic, match=r"`vq topic create t -.*`vq cluster settings --auto"):
        await create_missing_topic(client, "t")
    assert await topics.list_topics(client) == []


async def test_settings_are_kept_changed_and_taken_back(client: MemoryCoordinator) -> None:
    await allow(client)
    assert await read_settings(client) == ClusterSettings(auto_create=WANTED)
    node = await client.get("settings")
    written = json.loads(node.data)
    assert written["v"] == 1
    assert written["auto_create"] | {"enabled": True, "partitions": 3} == written["auto_create"]
    await allow(client)
    assert (await client.get("settings")).stat.version == node.stat.version, "no write"
    await allow(client, None)
    assert await read_settings(client) == ClusterSettings()


async def test_two_operators_at_once_lose_no_change(
    client: MemoryCoordinator, other: MemoryCoordinator
) -> None:
    await allow(client, TopicSettings())

    def grow(before: ClusterSettings) -> ClusterSettings:
        assert before.auto_create is not None
        more = before.auto_create.partitions + 1
        return replace(before, auto_create=replace(before.auto_create, partitions=more))

    await asyncio.gather(*(change_settings(each, grow) for each in (client, other) * 3))
    found = (await read_settings(client)).auto_create
    assert found is not None
    assert found.partitions == 7


@pytest.mark.parametrize(
    "value",
    [
        b'{"v":1,"auto_create":[]}',
        b'{"v":1,"auto_create":{"enabled":1}}',
        b'{"v":1,"auto_create":{"enabled":true,"partitions":0}}',
        b'{"v":1,"auto_create":{"enabled":true,"flush":"never"}}',
    ],
)
def test_other_values_are_damage(value: bytes) -> None:
    with pytest.raises(CoordinationError, match="not a settings of the cluster"):
        ClusterSettings.decode("settings", value)


def test_fields_that_are_missing_have_their_default() -> None:
    found = ClusterSettings.decode("settings", b'{"v":1,"auto_create":{"enabled":true}}')
    assert found.auto_create == TopicSettings()
    assert ClusterSettings.decode("settings", b'{"v":1}') == ClusterSettings()


async def test_a_topic_of_many_steps_is_refused(client: MemoryCoordinator) -> None:
    with pytest.raises(InvalidArgument, match="partitions = 501 is above 500"):
        await allow(client, TopicSettings(partitions=501))
    assert await read_settings(client) == ClusterSettings()


async def test_many_clients_at_once_create_one_topic(ensemble: MemoryEnsemble) -> None:
    async with client_of(ensemble) as first, client_of(ensemble) as second:
        broker = LeadingBroker(first, node="n1", address=Address("127.0.0.1", 8123))
        await broker.start()
        await allow(first)
        await asyncio.gather(*(create_missing_topic(each, "t") for each in (first, second) * 10))
        view = await topics.describe_topic(second, "t")
        assert (view.settings, len(view.partitions)) == (WANTED, 3)
        await broker.stop()


async def test_a_bad_name_and_a_cluster_without_brokers_write_nothing(
    client: MemoryCoordinator,
) -> None:
    await allow(client)
    with pytest.raises(InvalidArgument, match="topic name 'a/b'"):
        await create_missing_topic(client, "a/b")
    with pytest.raises(CoordinationError, match="group"):
        await create_missing_topic(client, "t")
    assert await topics.list_topics(client) == []
