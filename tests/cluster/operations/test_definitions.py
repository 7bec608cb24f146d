"""Definitions: a cluster made of those of another one, plans, and what changes meanwhile."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of, started
from support.consumers import consumer_of, send, take

from vq import aio
from vq.admin import (
    ChangeUnknown,
    DefinedTopic,
    DefinitionAction,
    Definitions,
    DefinitionStep,
    Goal,
    PlannedDefinitions,
    Target,
    Topic,
    definitions_from,
    definitions_json,
)
from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.groups import groups
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import CoordinationError, InvalidState
from vq.model import Message, TopicSettings
from vq.operations.cluster import definitions as module
from vq.operations.cluster.definitions import (
    changed_definitions,
    export_definitions,
    import_definitions,
    plan_import_definitions,
)

pytestmark = pytest.mark.virtual_time

EARLIEST = Target(goal=Goal.EARLIEST)


@pytest.fixture
async def defined(two_groups: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """A cluster with something of everything."""
    async with factory_of(two_groups) as factory:
        admin = factory.admin
        coordinator = admin.cluster.coordinator
        await registry.change_group(
            coordinator, "b2", lambda now: replace(now, pool="big", labels={"rack": "r2"})
        )
        await admin.create_topic("big", TopicSettings(partitions=3, pool="big", flush="async"))
        await admin.create_topic("kept", TopicSettings(retention_hours=None, compression="zstd"))
        await admin.set_auto_create(TopicSettings(partitions=2, retention_hours=5))
        planned = await admin.plan_create_group(
            "g",
            {"t": "a || b", "orders.*": "WHERE price > 10"},
            EARLIEST,
            mode="concurrent",
            on_failure="retry-topic",
            max_attempts=7,
        )
        await admin.make_group(planned)
        planned = await admin.plan_create_group("all", {"t": "*"}, EARLIEST, model="broadcasting")
        await admin.make_group(planned)
        await send(factory, Message("t", b"1", key=0), Message("t", b"x", delay_s=50.0))
        yield factory


def timeless(found: Definitions) -> Definitions:
    """Definitions without when they were exported."""
    of_groups = tuple(replace(each, time_ms=0) for each in found.groups or ())
    return replace(found, time_ms=0, groups=of_groups)


def told(steps: Any, *, done: bool = True) -> set[tuple[str, str, str]]:
    return {
        (str(each.action), each.kind, each.name)
        for each in steps
        if (each.action is not DefinitionAction.LEAVE) is done
    }


def why_not(steps: list[DefinitionStep] | tuple[DefinitionStep, ...]) -> dict[str, str]:
    return {each.name: each.why_not for each in steps if each.why_not}


async def imported(
    client: ClusterClient, wanted: Definitions, **options: Any
) -> PlannedDefinitions:
    planned = await plan_import_definitions(client, wanted, **options)
    assert why_not(await import_definitions(client, planned)) == {}
    return planned


async def test_an_empty_cluster_that_gets_the_definitions_of_another_has_the_same(
    defined: aio.MessageFactory,
) -> None:
    """Through the file; and importing them once more changes nothing."""
    found = await defined.admin.export_definitions()
    assert {each.topic for each in found.topics or ()} == {"t", "big", "kept"}, "not vq's own"
    document = json.loads(json.dumps(definitions_json(found)))
    assert timeless(definitions_from(document)) == timeless(found)
    async with memory_cluster() as second:
        await second.start("b1")
        await second.start("b2")
        async with started(second, host="operator") as client:
            planned = await imported(client, definitions_from(document))
            assert told(planned.steps) == {
                ("change", "settings", ""),
                ("change", "broker_group", "b2"),
                *(("make", "topic", name) for name in ("t", "big", "kept")),
                *(("make", "group", name) for name in ("g", "all")),
            }
            again = await export_definitions(client)
            assert timeless(again) == timeless(found)
            planned = await imported(client, definitions_from(document))
            assert told(planned.steps) == set()


async def test_the_plan_says_what_changes_and_nothing_else_does(
    defined: aio.MessageFactory,
) -> None:
    admin = defined.admin
    found = await admin.export_definitions()
    topics = tuple(
        replace(each, settings=replace(each.settings, retention_hours=9, partitions=4))
        if each.topic == "t"
        else each
        for each in found.topics or ()
    )
    more = DefinedTopic("new", TopicSettings(partitions=2))
    wanted = Definitions(topics=(*topics, more))
    planned = await admin.plan_import_definitions(wanted)
    assert told(planned.steps) == {("change", "topic", "t"), ("make", "topic", "new")}
    (changed,) = [each for each in planned.steps if each.action is DefinitionAction.CHANGE]
    assert [(each.field, each.before, each.after) for each in changed.changes] == [
        ("partitions", "2", "4"),
        ("retention_hours", "72", "9"),
    ]
    before: Topic = await admin.get_topic("big")
    await admin.import_definitions(planned)
    after = await admin.get_topic("t")
    assert (after.settings.retention_hours, len(after.partitions)) == (9, 4)
    assert await admin.get_topic("big") == before
    assert len((await admin.get_topic("new")).partitions) == 2
    assert (await admin.export_definitions()).settings == found.settings


async def test_nothing_is_deleted_unless_told_and_a_topic_can_be_brought_back(
    defined: aio.MessageFactory,
) -> None:
    admin = defined.admin
    found = await admin.export_definitions()
    wanted = replace(found, topics=found.topics[:1], groups=())  # type: ignore[index]
    assert told((await admin.plan_import_definitions(wanted)).steps) == set()
    planned = await admin.plan_import_definitions(wanted, prune=True)
    assert [(each.kind, each.name) for each in planned.steps if each.action == "delete"] == [
        ("group", "all"),
        ("group", "g"),
        ("topic", "kept"),
        ("topic", "t"),
    ]
    async with await consumer_of(defined, group="busy") as consumer:
        await consumer.start()
        planned = await admin.plan_import_definitions(wanted, prune=True)
        assert "1 member(s): stop them" in why_not(planned.steps)["busy"]
        await admin.import_definitions(planned)
    assert [each.name for each in await admin.list_topics()] == ["big"]
    assert [each.group for each in await admin.list_groups()] == ["busy"]
    await admin.undelete_topic("t")


async def test_what_cannot_be_as_defined_is_said_and_the_rest_is_done(
    defined: aio.MessageFactory,
) -> None:
    admin = defined.admin
    found = await admin.export_definitions()
    fewer = DefinedTopic("big", TopicSettings(partitions=1))
    own = DefinedTopic("_vq.dlq.g", TopicSettings())
    nowhere = DefinedTopic("nowhere", TopicSettings(pool="none"))
    await admin.delete_topic("kept")
    wanted = replace(
        found,
        settings=None,
        broker_groups=(replace(found.broker_groups[0], group="b9"),),  # type: ignore[index]
        topics=(fewer, own, nowhere, DefinedTopic("kept", TopicSettings())),
        groups=(replace(found.groups[1], start="latest"),),  # type: ignore[index]
    )
    async with await consumer_of(defined, group="g", topic="t") as consumer:
        assert consumer
    planned = await admin.plan_import_definitions(wanted)
    reasons = why_not(planned.steps)
    assert "can only grow" in reasons["big"]
    assert "vq's own" in reasons["_vq.dlq.g"]
    assert "it is deleted" in reasons["kept"]
    assert "its first broker makes it" in reasons["b9"]
    done = why_not(await admin.import_definitions(planned))
    assert done.keys() - reasons.keys() == {"nowhere"}
    assert "pool 'none'" in done["nowhere"]
    contract = await groups.known_group(admin.cluster.coordinator, "g")
    assert contract.start == "latest"


async def test_a_group_with_members_changes_only_what_they_follow(
    two_groups: MemoryCluster,
) -> None:
    async with factory_of(two_groups) as factory:
        admin = factory.admin
        async with await consumer_of(factory) as consumer:
            await consumer.start()
            found = await admin.export_definitions()
            (group,) = found.groups or ()
            failure = replace(group.terms.failure, max_attempts=9)
            wanted = replace(group, terms=replace(group.terms, failure=failure))
            await imported(admin.cluster, Definitions(groups=(wanted,)))
            assert (await admin.describe_group("g")).terms.failure.max_attempts == 9
            other = replace(wanted, terms=replace(wanted.terms, strategy="circle"))
            planned = await admin.plan_import_definitions(Definitions(groups=(other,)))
            assert "vq group roll" in why_not(planned.steps)["g"]
        await imported(admin.cluster, Definitions(groups=(other,)))
        assert (await admin.describe_group("g")).terms.strategy == "circle"


async def test_a_group_that_is_made_again_goes_on_at_the_offsets_of_the_file(
    two_groups: MemoryCluster,
) -> None:
    """Only if somebody asks for them: in another cluster they mean nothing."""
    async with factory_of(two_groups) as factory:
        await send(factory, *(Message("t", b"%d" % each, key=0) for each in range(3)))
        async with await consumer_of(factory) as consumer:
            await take(consumer, 2)
            await consumer.commit()
        admin = factory.admin
        plain = await admin.export_definitions()
        assert [each.offsets for each in plain.groups or ()] == [()]
        found = await admin.export_definitions(with_offsets=True)
        found = definitions_from(json.loads(json.dumps(definitions_json(found))))
        await admin.delete_group("g")
        await imported(admin.cluster, found, with_offsets=True)
        async with await consumer_of(factory) as consumer:
            assert await take(consumer, 1) == [b"2"]


async def test_a_topic_that_is_made_after_the_plan_is_not_pruned(
    defined: aio.MessageFactory,
) -> None:
    """The person who looked at the plan has not seen it there."""
    admin = defined.admin
    found = await admin.export_definitions()
    planned = await admin.plan_import_definitions(found, prune=True)
    assert await changed_definitions(admin.cluster, planned) == []
    await admin.create_topic("later")
    assert [each.name for each in await changed_definitions(admin.cluster, planned)] == ["later"]
    with pytest.raises(InvalidState, match="the topic later has changed since the plan"):
        await admin.import_definitions(planned)
    await admin.get_topic("later")


@pytest.mark.parametrize("kind", ["topic", "settings", "group", "broker_group"])
async def test_what_changed_since_the_plan_refuses_all_of_it(
    defined: aio.MessageFactory, kind: str
) -> None:
    admin = defined.admin
    found = await admin.export_definitions()
    wanted = replace(found, topics=(*(found.topics or ()), DefinedTopic("new", TopicSettings())))
    planned = await admin.plan_import_definitions(wanted)
    match kind:
        case "topic":
            await admin.alter_topic("kept", retention_hours=4)
        case "settings":
            await admin.set_auto_create(None)
        case "group":
            await admin.alter_group("g", max_attempts=2)
        case _:
            await admin.drain_group("b2")
    with pytest.raises(InvalidState, match="has changed since the plan; nothing was done"):
        await admin.import_definitions(planned)
    assert "new" not in {each.name for each in await admin.list_topics()}


async def test_a_change_between_the_look_and_the_write_is_not_undone(
    defined: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = defined.admin
    wanted = Definitions(topics=(DefinedTopic("kept", TopicSettings(retention_hours=9)),))
    planned = await admin.plan_import_definitions(wanted)

    plan = module._plan

    async def changed_then(*arguments: Any, **named: Any) -> Any:
        found = await plan(*arguments, **named)
        await admin.alter_topic("kept", retention_hours=4)
        return found

    monkeypatch.setattr(module, "_plan", changed_then)
    done = why_not(await admin.import_definitions(planned))
    assert "has changed since the plan" in done["kept"]
    assert (await admin.get_topic("kept")).settings.retention_hours == 4


async def test_zookeeper_that_goes_away_in_the_middle_leaves_what_is_done(
    defined: aio.MessageFactory, two_groups: MemoryCluster
) -> None:
    """And the import may be repeated."""
    admin = defined.admin
    names = [f"n{number}" for number in range(4)]
    wanted = Definitions(topics=tuple(DefinedTopic(each, TopicSettings()) for each in names))
    coordinator = admin.cluster.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    planned = await admin.plan_import_definitions(wanted)
    create = coordinator.multi

    async def cut(operations: Any) -> Any:
        if any(each.path == TopicNode.path("n2") for each in operations):
            two_groups.ensemble.expire(coordinator)
        return await create(operations)

    coordinator.multi = cut  # type: ignore[method-assign]
    with pytest.raises((ChangeUnknown, CoordinationError)):
        await admin.import_definitions(planned)
    coordinator.multi = create  # type: ignore[method-assign]
    await imported(admin.cluster, wanted)
    assert {each.name for each in await admin.list_topics()} >= {*names}
