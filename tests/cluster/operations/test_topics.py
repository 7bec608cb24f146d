"""Topics: what brokers say of them, and what deleting one takes away."""

from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of

from vq.client.cluster import ClusterClient
from vq.coordination.topics import topics as coordination
from vq.coordination.tree.values.topics import CREATING, TopicNode
from vq.errors import Busy, InvalidArgument, UnknownTopic
from vq.model import Address, Message, StatusResult, TopicSettings
from vq.operations.brokers.brokers import Damage
from vq.operations.cluster import settings
from vq.operations.topics import deletion, topics
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time

SIZE = 88 + 20 + 1  # of a batch with one message of one byte


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


async def served(client: ClusterClient) -> None:
    """Wait until the brokers have heard of the topic."""

    async def done() -> bool:
        found = await topics.describe_topic(client, "t")
        return [each.state for each in found.partitions] == ["rw", "rw"]

    await until_true(done)


async def test_a_topic_is_described_by_the_brokers_that_hold_it(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    async with factory_of(cluster) as factory, await factory.create_producer() as producer:
        for number in range(4):
            await producer.send(Message("t", b"%d" % number))
    await served(client)
    found = await topics.describe_topic(client, "t")
    assert (found.topic.name, found.topic.settings.partitions) == ("t", 2)
    assert found.refusing == ()
    for each, group in zip(found.partitions, ("b1", "b2"), strict=True):
        assert each.placement.writer_group == group
        assert (each.damaged, each.damage, each.reasons) == (0, (), ())
        assert each.ends is not None
        assert each.ends.earliest == 0
    assert sum(each.ends.latest for each in found.partitions if each.ends) == 4 * SIZE
    assert await deletion.plan_delete(client, "t") == deletion.Deletion(
        "t", 2, 4 * SIZE, exact=True, grace_s=72 * 3600
    )


async def test_what_a_silent_broker_would_tell_is_unknown(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await served(client)
    await cluster.nodes["b2"].stop()
    found = await topics.describe_topic(client, "t")
    one, two = found.partitions
    assert (one.state, one.damaged, one.reasons) == ("rw", 0, ())
    assert (two.state, two.ends, two.damaged) == (None, None, None)
    assert two.reasons == ("group b2 has no running master",)
    assert found.refusing == ()
    assert not (await deletion.plan_delete(client, "t")).exact


def status(*partitions: dict[str, Any]) -> StatusResult:
    """Return a status that tells of these partitions of ``t``."""
    sound = {"topic": "t", "state": "rw", "reason": "", "damage": [], "damaged_ranges": 0}
    raw = {"partitions": [{**sound, **each} for each in partitions]}
    return StatusResult(Address("b1", 1), "b1", "n1", "", 0.0, len(partitions), raw=raw)


async def described(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch, *partitions: dict[str, Any]
) -> topics.TopicDescription:
    """Return what is said of ``t`` where every broker tells of these partitions."""

    async def answer(*_: object) -> StatusResult:
        return status(*partitions)

    monkeypatch.setattr(topics, "broker_status", answer)
    return await topics.describe_topic(client, "t")


async def test_damage_and_the_reason_of_a_failed_partition_are_told(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served(client)
    damage = {"start": 1, "end": 2, "file": "f", "reason": "r", "found_ms": 3}
    found = await described(
        client,
        monkeypatch,
        {"partition": 0, "state": "failed", "reason": "EIO"},
        {"partition": 1, "damage": [damage], "damaged_ranges": 5},
    )
    one, two = found.partitions
    assert (one.state, one.reasons, one.damaged) == ("failed", ("EIO",), None)
    assert (two.state, two.reasons, two.damaged) == ("rw", (), 5)
    assert two.damage == (Damage("t", 1, "b1", 1, 2, "f", "r", 3, "n1"),)


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_broker_that_does_not_name_a_partition_is_asked_why(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """One that refuses says so; one that has not heard of the topic yet does not."""
    await served(client)
    if refuses:
        request = client.request

        async def refuse(address: Address, command: Any, message: Any) -> Any:
            if message.DESCRIPTOR.name == "VerifyRequest":
                raise Busy("the directory is damaged")
            return await request(address, command, message)

        monkeypatch.setattr(client, "request", refuse)
    found = await described(client, monkeypatch)
    assert found.refusing == (("b1", "b2") if refuses else ())
    reasons = [each.reasons for each in found.partitions]
    told = "group {} refuses t: Busy: the directory is damaged (status 27)"
    assert reasons == ([(told.format("b1"),), (told.format("b2"),)] if refuses else [(), ()])


async def test_a_topic_is_made_listed_changed_and_deleted(client: ClusterClient) -> None:
    made = await topics.create_topic(client, "u", TopicSettings(partitions=1))
    assert [each.name for each in await topics.list_topics(client)] == ["t", "u"]
    grown = await topics.add_partitions(client, "u", 2)
    assert (grown.id, len(grown.partitions)) == (made.id, 3)
    settings = replace(grown.settings, retention_hours=None)
    assert (await topics.change_settings(client, "u", settings)).settings == settings
    with pytest.raises(InvalidArgument):
        await topics.change_settings(client, "u", replace(settings, partitions=4))
    await deletion.delete_topic(client, "u")
    with pytest.raises(UnknownTopic):
        await topics.describe_topic(client, "u")


async def test_min_insync_is_not_raised_above_the_nodes_of_a_group(
    client: ClusterClient,
) -> None:
    """Every message would be refused. A value that is there already stands in no other's way."""
    change = topics.changed({"min_insync": 2, "retention_hours": None})
    wanted = "group 'b1' has 1 node.s., and the topic's min_insync is 2: topic 't' would take no"
    for altering in (
        topics.change_topic(client, "t", change),
        topics.alter_settings(client, "t", change),
        topics.change_settings(client, "t", TopicSettings(partitions=2, min_insync=2)),
    ):
        with pytest.raises(InvalidArgument, match=wanted):
            await altering
    view = await topics.get_topic(client, "t")
    assert (view.settings.min_insync, view.settings.retention_hours) == (1, 72)
    settings = replace(view.settings, min_insync=2)
    await coordination.change_settings(client.coordinator, "t", settings)
    altered = await topics.change_topic(client, "t", change)
    assert (altered.settings.min_insync, altered.settings.retention_hours) == (2, None)
    lowered = await topics.change_topic(client, "t", topics.changed({"min_insync": 1}))
    assert lowered.settings.min_insync == 1


async def test_a_topic_is_made_only_if_there_is_none(client: ClusterClient) -> None:
    """One that exists stays as it is; one that was made in part is not taken for one."""
    made, is_new = await topics.ensure_topic(client, "new", TopicSettings(partitions=3))
    assert (is_new, made.settings.partitions) == (True, 3)
    found, is_new = await topics.ensure_topic(client, "new", TopicSettings(partitions=9))
    assert (is_new, found) == (False, made)
    path = TopicNode.path("new")
    value = TopicNode.decode(path, (await client.coordinator.get(path)).data)
    await client.coordinator.set(path, replace(value, phase=CREATING).encode())
    with pytest.raises(topics.TopicExists, match="half-way"):
        await topics.ensure_topic(client, "new")


async def test_settings_and_partitions_are_altered_together(client: ClusterClient) -> None:
    change = topics.changed({"max_message_bytes": 1_000, "retention_hours": None})
    altered = await topics.change_topic(client, "t", change, partitions=5)
    assert len(altered.partitions) == altered.settings.partitions == 5
    found = altered.settings
    assert (found.max_message_bytes, found.retention_hours) == (1_000, None)
    assert await topics.change_topic(client, "t", change, partitions=5) == altered
    with pytest.raises(InvalidArgument, match="can grow, not fall to 4"):
        await topics.change_topic(client, "t", topics.changed({"min_insync": 1}), partitions=4)
    with pytest.raises(InvalidArgument, match="partitions = 4097 is outside"):
        await topics.change_topic(client, "t", topics.changed({"min_insync": 1}), partitions=4_097)
    with pytest.raises(InvalidArgument, match="'min_in' is not a setting of a topic; known: flush"):
        topics.changed({"min_in": 1})
    assert (await topics.describe_topic(client, "t")).topic.settings == altered.settings


async def test_a_topic_that_is_completed_while_it_is_deleted_can_be_brought_back(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is created in part goes at once; this one has messages by then, perhaps."""
    read, looks = deletion.read_remains, 0

    async def early(*given: Any) -> Any:
        nonlocal looks
        found, looks = await read(*given), looks + 1
        assert found.view is not None
        phase = CREATING if looks == 1 else found.view.phase
        return replace(found, view=replace(found.view, phase=phase))

    monkeypatch.setattr(deletion, "read_remains", early)
    await deletion.delete_topic(client, "t")
    (found,), _ = await deletion.readable_deleted_topics(client)
    assert (found.name, looks) == ("t", 2)


async def test_deleted_topics_are_looked_for_by_name(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """A list that knows which are deleted reads only these; one that came back is none of them."""
    await cluster.create_topic("u", partitions=1)
    await deletion.delete_topic(client, "t")
    for names, found in ((None, ["t"]), (["t", "u", "none"], ["t"]), (["u"], []), ([], [])):
        deleted = await deletion.deleted_topics(client, names)
        assert [each.name for each in deleted] == found


async def test_a_topic_that_is_deleted_already_keeps_the_time_it_was_given(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Also if topics that are deleted now go at once."""
    await deletion.delete_topic(client, "t")
    await settings.change_settings(client, lambda before: replace(before, delete_grace_hours=0))
    planned = await deletion.plan_delete(client, "t")
    assert planned.deleted
    assert 72 * 3_600 - 60 < planned.grace_s <= 72 * 3_600
    await deletion.delete_topic(client, "t")
    (found,), unreadable = await deletion.readable_deleted_topics(client)
    assert (found.name, found.partitions, unreadable) == ("t", 2, {})
    assert (found.deletion.client, found.deletion.grace_ms) == ("vq-python", 72 * 3_600_000)
    await deletion.delete_topic(client, "t", now=True)
    assert await deletion.readable_deleted_topics(client) == ([], {})
    await topics.create_topic(client, "t")
    await deletion.delete_topic(client, "t")
    assert await deletion.readable_deleted_topics(client) == ([], {})


async def test_a_topic_that_is_created_without_a_word_has_the_defaults_of_the_cluster(
    client: ClusterClient,
) -> None:
    """It is archived after a day, unless an operator has changed that; it may say what it wants."""
    made = await topics.create_topic(client, "a")
    assert (made.settings.archived_after_hours, made.settings.retention_hours) == (24, 72)
    said = await topics.create_topic(client, "b", TopicSettings())
    assert said.settings.archived_after_hours is None
    never = TopicSettings(retention_hours=100)
    await settings.change_settings(client, lambda before: replace(before, new_topics=never))
    made = await topics.create_topic(client, "c")
    assert (made.settings.archived_after_hours, made.settings.retention_hours) == (None, 100)
