"""The settings of the cluster, and topics that producers create because these allow it."""

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from support.coordination import FAULTS, LeadingBroker, client_of, disarm, strike

from vq.coordination.brokers import group_views
from vq.coordination.brokers.registry import ensure_group
from vq.coordination.topics import cluster_settings, topics
from vq.coordination.topics.cluster_settings import (
    change_settings,
    create_missing_topic,
    read_settings,
)
from vq.coordination.tree.coordinator import Check, Coordinator
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.model import Address, FlushMode, TopicSettings

pytestmark = pytest.mark.virtual_time

WANTED = TopicSettings(partitions=3, flush=FlushMode.ASYNC)


async def allow(client: MemoryCoordinator, wanted: TopicSettings = WANTED) -> None:
    await change_settings(
        client, lambda before: replace(before, may_create=True, new_topics=wanted)
    )


async def forbid(client: MemoryCoordinator) -> None:
    await change_settings(client, lambda before: replace(before, may_create=False))


async def test_producers_may_create_nothing_unless_an_operator_says_so(
    client: MemoryCoordinator,
) -> None:
    assert await read_settings(client) == ClusterSettings()
    assert ClusterSettings().auto_create is None
    with pytest.raises(UnknownTopic, match=r"`vq topic create t -.*`vq cluster settings --auto"):
        await create_missing_topic(client, "t")
    assert await topics.list_topics(client) == []


async def test_settings_are_kept_changed_and_taken_back(client: MemoryCoordinator) -> None:
    await allow(client)
    assert (await read_settings(client)).auto_create == WANTED
    node = await client.get("settings")
    written = json.loads(node.data)
    assert written["v"] == 1
    assert written["auto_create"] | {"enabled": True, "partitions": 3} == written["auto_create"]
    await allow(client)
    assert (await client.get("settings")).stat.version == node.stat.version, "no write"
    await forbid(client)
    assert (await read_settings(client)).auto_create is None


async def test_settings_are_kept_while_producers_may_create_nothing(
    client: MemoryCoordinator,
) -> None:
    await allow(client)
    await forbid(client)
    assert (await read_settings(client)).new_topics == WANTED
    made = await change_settings(client, lambda before: replace(before, may_create=True))
    assert made.auto_create == WANTED


async def test_two_operators_at_once_lose_no_change(
    client: MemoryCoordinator, other: MemoryCoordinator
) -> None:
    await allow(client, TopicSettings())

    def grow(before: ClusterSettings) -> ClusterSettings:
        more = before.new_topics.partitions + 1
        return replace(before, new_topics=replace(before.new_topics, partitions=more))

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
        b'{"v":1,"auto_create":{"enabled":true,"partitions":501}}',
        b'{"v":1,"auto_create":{"enabled":true,"writable":false}}',
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
    off = b'{"v":1,"auto_create":{"enabled":false}}'  # as an earlier vq wrote it
    assert ClusterSettings.decode("settings", off) == ClusterSettings(new_topics=TopicSettings())


def test_topics_of_a_new_cluster_are_archived_after_a_day_and_deleted_after_three() -> None:
    for each in (ClusterSettings().new_topics, ClusterSettings().defaults):
        assert (each.archived_after_hours, each.retention_hours) == (24, 72)


def test_the_defaults_of_topics_are_what_is_said_of_age_and_archives() -> None:
    given = {"retention_hours": 200, "retention_policy": "archive", "archive_to": "file:///a"}
    wanted = TopicSettings(partitions=7, flush="async", archive_after_hours=50, **given)
    defaults = ClusterSettings(new_topics=wanted).defaults
    assert defaults == TopicSettings(archive_after_hours=50, **given)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (TopicSettings(partitions=501), r"partitions = 501 is above 500.*`vq topic create`"),
        (TopicSettings(writable=False), "writable = False.*give True"),
        (
            TopicSettings(pool="fast"),
            "'fast'.*no broker has registered yet.*`vq broker --pool fast`",
        ),
    ],
)
async def test_settings_with_which_no_topic_could_be_created_are_refused(
    client: MemoryCoordinator, wanted: TopicSettings, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        await allow(client, wanted)
    assert await read_settings(client) == ClusterSettings()


async def test_a_pool_without_broker_groups_is_refused(client: MemoryCoordinator) -> None:
    """The error shows the pools that exist; a cluster without brokers has the common pool."""
    await allow(client)
    for group, pool in (("b1", "fast"), ("b2", "slow"), ("b3", "slow")):
        await ensure_group(client, group, pool=pool)
    await allow(client, TopicSettings(pool="slow"))
    with pytest.raises(
        InvalidArgument, match=r"pool = 'fats': .* the pools are fast \(b1\), slow \(b2, b3\): cho"
    ):
        await allow(client, TopicSettings(pool="fats"))
    with pytest.raises(InvalidArgument, match="pool = 'common': no broker group is in the common"):
        await allow(client)
    assert (await read_settings(client)).new_topics.pool == "slow"
    await forbid(client)


async def test_many_clients_at_once_create_one_topic(ensemble: MemoryEnsemble) -> None:
    async with client_of(ensemble) as first, client_of(ensemble) as second:
        broker = LeadingBroker(first, node="n1", address=Address("127.0.0.1", 8123))
        await broker.start()
        await allow(first)
        await asyncio.gather(*(create_missing_topic(each, "t") for each in (first, second) * 10))
        view = await topics.describe_topic(second, "t")
        assert (view.settings, len(view.partitions)) == (WANTED, 3)
        await broker.stop()


@pytest.mark.parametrize("when", ["before the check is read", "after the check was read"])
@pytest.mark.parametrize("then", ["off", "others", "gone"])
async def test_no_topic_is_created_with_settings_that_were_changed_meanwhile(
    client: MemoryCoordinator,
    other: MemoryCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    when: str,
) -> None:
    """After an operator has forbidden it, no producer creates a topic."""
    broker = LeadingBroker(client, node="n1", address=Address("127.0.0.1", 8123))
    await broker.start()
    await allow(client)
    unchanged, changed = cluster_settings.unchanged_since, False

    async def change() -> None:
        nonlocal changed
        if not changed:
            changed = True
            if then == "off":
                await forbid(other)
            elif then == "others":
                await allow(other, TopicSettings(partitions=2))
            else:
                await other.delete("settings")

    async def meanwhile(*arguments: Any) -> Check:
        if when.startswith("before"):
            await change()
        check = await unchanged(*arguments)
        await change()
        return check

    monkeypatch.setattr(cluster_settings, "unchanged_since", meanwhile)
    if then == "others":
        await create_missing_topic(client, "t")
        assert (await topics.describe_topic(client, "t")).settings.partitions == 2
    else:
        with pytest.raises(UnknownTopic, match="--auto-create on"):
            await create_missing_topic(client, "t")
        assert await topics.list_topics(client) == []
    await broker.stop()


async def test_settings_that_always_change_end_in_an_error(
    client: MemoryCoordinator, other: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = LeadingBroker(client, node="n1", address=Address("127.0.0.1", 8123))
    await broker.start()
    await allow(client)
    counted, partitions = topics.counted_groups, itertools.count(10)

    async def counted_groups(coordinator: Coordinator) -> Any:
        await allow(other, TopicSettings(partitions=next(partitions)))
        return await counted(coordinator)

    monkeypatch.setattr(topics, "counted_groups", counted_groups)
    with pytest.raises(CoordinationError, match="changed 20 times while topic 't'"):
        await create_missing_topic(client, "t")
    assert await topics.list_topics(client) == []
    await broker.stop()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("skip", range(9))
async def test_a_fault_leaves_a_whole_topic_or_none(
    ensemble: MemoryEnsemble, fault: str, skip: int
) -> None:
    """At any call: the topic is created, or the error says that it perhaps is."""
    async with client_of(ensemble) as first, client_of(ensemble) as second:
        broker = LeadingBroker(second, node="n1", address=Address("127.0.0.1", 8123))
        await broker.start()
        await allow(second)
        strike(ensemble, first, fault, skip)
        failed = False
        try:
            await create_missing_topic(first, "t")
        except CoordinationError:
            failed = True
        disarm(first)
        found = await topics.list_topics(second)
        assert found == ["t"] or (failed and found == [])
        if found:
            assert len((await topics.describe_topic(second, "t")).partitions) == 3
        else:
            await create_missing_topic(second, "t")
        assert [view.partitions for view in await group_views.groups(second)] == [3]
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
