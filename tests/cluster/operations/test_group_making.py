"""Groups that are made before their first member: empty, as another one, from an export."""

from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.consumers import consumer_of, send, take, texts

from vq import aio
from vq.admin import GroupExport, PlannedGroup, Target
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.tries import RETRY
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import InvalidArgument, InvalidState, OffsetOutOfRange, UnknownTopic
from vq.model import Message, TopicPartition
from vq.reserved import GROUP_CHARS_MAX
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


def places(planned: PlannedGroup) -> dict[tuple[str, int], int]:
    return {tuple(each.partition): each.after.offset for each in planned.offsets}


async def handled(factory: aio.MessageFactory, group: str, count: int) -> list[bytes]:
    async with await consumer_of(factory, group=group) as consumer:
        return await take(consumer, count)


async def test_a_group_is_made_empty_where_it_is_to_begin(factory: aio.MessageFactory) -> None:
    """What was there before is skipped with `latest`, and nothing is done by planning."""
    admin = factory.admin
    await send(factory, *texts(1, 2, 3))
    planned = await admin.plan_create_group("g", {"t": "*"}, Target(goal="latest"))
    assert planned.is_new
    assert len(planned.offsets) == 2
    assert await admin.list_groups() == []
    await admin.make_group(planned)
    (made,) = await admin.list_groups()
    assert (made.topics, made.members, made.start) == (("t",), 0, "earliest")
    await send(factory, *texts(4))
    assert await handled(factory, "g", 1) == [b"4"]
    with pytest.raises(InvalidState, match="there is a group 'g' already"):
        await admin.plan_create_group("g", {"t": "*"}, Target(goal="latest"))
    with pytest.raises(InvalidState, match="there is a group 'g' already"):
        await admin.make_group(planned)


async def test_its_members_must_have_its_filter_and_terms(factory: aio.MessageFactory) -> None:
    """They stand in the contract before the first one comes."""
    admin = factory.admin
    planned = await admin.plan_create_group(
        "g", {"t": "red"}, Target(goal="earliest"), strategy="circle"
    )
    await admin.make_group(planned)
    async with await consumer_of(factory) as consumer:
        with pytest.raises(InvalidArgument, match="'red' of topic 't', this member all messages"):
            await consumer.start()
    assert (await admin.describe_group("g")).terms.strategy == "circle"


@pytest.mark.parametrize(
    ("filters", "target", "error", "told"),
    [
        ({}, Target(goal="latest"), InvalidArgument, "names no topic"),
        ({"t": "*"}, Target(goal="committed"), InvalidArgument, "a new one is nowhere yet"),
        ({"t": "*"}, Target(goal="shift", value=1), InvalidArgument, "a new one is nowhere yet"),
        ({"u": "*"}, Target(goal="latest"), UnknownTopic, "'u'"),
        ({"t": "*"}, Target(goal="offset", value=5), InvalidArgument, "an offset means one"),
    ],
)
async def test_what_no_group_can_begin_with_is_refused(
    factory: aio.MessageFactory, filters, target: Target, error: type[Exception], told: str
) -> None:
    """Nothing is made."""
    with pytest.raises(error, match=told):
        await factory.admin.plan_create_group("g", filters, target)
    assert await factory.admin.list_groups() == []


async def test_a_clone_reads_by_the_same_expression(factory: aio.MessageFactory) -> None:
    admin = factory.admin
    planned = await admin.plan_create_group("g", {"t": "WHERE price > 10"}, Target(goal="earliest"))
    await admin.make_group(planned)
    planned = await admin.plan_clone_group("g", "h")
    await admin.make_group(planned)
    assert (await admin.describe_group("h")).topics == {"t": "WHERE price > 10"}


async def test_a_clone_goes_on_where_the_other_group_is(factory: aio.MessageFactory) -> None:
    """With its filter; and each goes its own way from there."""
    admin = factory.admin
    await send(factory, *texts(1, 2, 3))
    seen = await handled(factory, "g", 2)
    planned = await admin.plan_clone_group("g", "h")
    found = {each.partition: each for each in (await admin.describe_group("g")).partitions}
    assert places(planned) == {
        ("t", number): each.committed
        for number, each in found.items()
        if each.committed is not None
    }
    await admin.make_group(planned)
    rest = await handled(factory, "h", 1)
    assert sorted(seen + rest) == [b"1", b"2", b"3"]
    assert await handled(factory, "g", 1) == rest
    with pytest.raises(UnknownGroup, match="'x'"):
        await admin.plan_clone_group("x", "y")
    with pytest.raises(InvalidState, match="'h' already"):
        await admin.plan_clone_group("g", "h")


async def test_exported_offsets_are_imported_again(factory: aio.MessageFactory) -> None:
    """Into the group itself, or into one that is made by that; with the messages that moves by."""
    admin = factory.admin
    await send(factory, *texts(1, 2))
    assert sorted(await handled(factory, "g", 1)) in ([b"1"], [b"2"])
    exported = await admin.export_group("g")
    assert exported.topics == {"t": ""}
    await handled(factory, "g", 1)
    planned = await admin.plan_import_group(exported, "g")
    assert not planned.is_new
    assert sum(each.repeats or 0 for each in planned.offsets) == 1
    await admin.make_group(planned)
    again = await admin.export_group("g")
    assert again.offsets == exported.offsets
    other = await admin.plan_import_group(exported, "h")
    assert other.is_new
    await admin.make_group(other)
    assert (await admin.export_group("h")).offsets == exported.offsets


async def test_what_is_handled_ahead_goes_with_an_export(factory: aio.MessageFactory) -> None:
    """As with a clone; otherwise what transactions made of these messages would be made twice."""
    admin = factory.admin
    await send(factory, *(Message("t", b"%d" % each, key=0) for each in range(4)))
    got: list[bytes] = []

    async def listener(message: Message) -> Any:
        if message.content == b"0" and fails:
            return RETRY
        got.append(message.content)
        return None

    async def until_handled(group: str, count: int) -> None:
        settings: dict[str, Any] = {"mode": "concurrent", "on_failure": "hold", "max_wait_s": 0.5}
        consumer = await factory.create_consumer(ConsumerConfig(group=group, **settings))
        async with consumer:
            await consumer.subscribe("t", listener=listener).start()
            await until(lambda: len(got) >= count)

    fails = True
    await until_handled("g", 3)
    exported = await admin.export_group("g")
    (place,) = [each for each in exported.offsets if each.ahead]
    assert len(place.ahead) == 3
    await admin.make_group(await admin.plan_import_group(exported, "h"))
    assert (await admin.export_group("h")).offsets == exported.offsets
    fails = False
    await until_handled("h", 4)
    assert sorted(got) == [b"0", b"1", b"2", b"3"]
    for wrong in ([(1,)], [(place.offset + 1, "x")], [(0, 1)], [(place.offset + 1, 1)] * 201):
        bad = replace(exported, offsets=(replace(place, ahead=tuple(wrong)),))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="ahead of"):
            await admin.plan_import_group(bad, "i")


async def test_an_export_that_does_not_fit_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Another topic of the name, an offset that is not there, a topic that the group reads not."""
    admin = factory.admin
    await send(factory, *texts(1, 2))
    await handled(factory, "g", 2)
    exported = await admin.export_group("g")
    first = exported.offsets[0]

    def changed(**fields: object) -> GroupExport:
        return replace(exported, offsets=(replace(first, **fields),))

    with pytest.raises(InvalidState, match="deleted and made anew since the export"):
        await admin.plan_import_group(changed(topic_id="another"), "g")
    with pytest.raises(OffsetOutOfRange, match="99999"):
        await admin.plan_import_group(changed(offset=99_999), "g")
    await cluster.create_topic("u", partitions=1)
    with pytest.raises(InvalidArgument, match="does not read topic 'u'"):
        await admin.plan_import_group(changed(topic="u", topic_id=None), "g")


async def test_an_import_waits_for_members_unless_it_fences_them(
    factory: aio.MessageFactory,
) -> None:
    """As a reset does."""
    admin = factory.admin
    await send(factory, *texts(1, 2))
    await handled(factory, "g", 2)
    exported = await admin.export_group("g")
    planned = await admin.plan_import_group(exported, "g")
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        with pytest.raises(InvalidState, match="has members"):
            await admin.make_group(planned)
        await admin.make_group(planned, fence=True)
    assert TopicPartition("t", 0).topic in exported.topics


async def test_terms_of_a_group_go_with_it(factory: aio.MessageFactory) -> None:
    """Those that it was made with go into its clone and its export; a member finds them there."""
    admin = factory.admin
    terms: dict[str, Any] = {
        "mode": "concurrent",
        "strategy": "circle",
        "offset_store": "any",
        "max_attempts": 5,
        "retry_backoff_s": (1.0, 2.0),
        "retry_topic_s": (7.0,),
        "on_bad_record": "skip",
    }
    target = Target(goal="earliest")
    await admin.make_group(await admin.plan_create_group("g", {"t": "*"}, target, **terms))
    made = (await admin.describe_group("g")).terms
    assert (made.mode, made.strategy, made.offset_store) == ("concurrent", "circle", "any")
    assert made.failure == FailurePolicy(
        on_failure="retry-topic",
        max_attempts=5,
        retry_backoff_s=(1.0, 2.0),
        retry_topic_s=(7.0,),
        on_bad_record="skip",
    )
    await admin.make_group(await admin.plan_clone_group("g", "cloned"))
    await admin.roll_group("g", for_s=60.0, strategy="hash", filters={"t": "a || b"})
    rolling = (await admin.describe_group("g")).terms
    assert rolling.rolls_to == {"strategy": "hash", "filter of t": "a || b"}
    exported = await admin.export_group("g")
    assert exported.terms == made, "what it rolls to is not what it has"
    await admin.make_group(await admin.plan_import_group(exported, "imported"))
    for name in ("cloned", "imported"):
        assert (await admin.describe_group(name)).terms == made

    async def handle(_: Message) -> None: ...

    config = ConsumerConfig(group="imported", mode="concurrent", strategy="circle")
    async with (await factory.create_consumer(config)).subscribe("t", listener=handle) as consumer:
        await consumer.start()
        assert (await admin.describe_group("imported")).terms.offset_store == "zookeeper"


async def test_terms_that_no_group_can_have_are_refused(factory: aio.MessageFactory) -> None:
    """By any way that makes a group."""
    admin, target = factory.admin, Target(goal="earliest")
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"offset_store": "sqlite:1"}, "'any' or 'zookeeper'"),
        ({"on_bad_record": "hold"}, "on_bad_record"),
        ({"on_failure": "retry-topic"}, "give order = 'relaxed'"),
        ({"model": "broadcasting", "on_bad_record": "dead-letter"}, "does not go with"),
    )
    for terms, told in refused:
        with pytest.raises(InvalidArgument, match=told):
            await admin.plan_create_group("g", {"t": "*"}, target, **terms)
    await admin.make_group(
        await admin.plan_create_group("g", {"t": "*"}, target, mode="concurrent")
    )
    exported = await admin.export_group("g")
    long = "g" * GROUP_CHARS_MAX + "h"
    with pytest.raises(InvalidArgument, match="give it a name of at most"):
        await admin.plan_create_group(long, {"t": "*"}, target, mode="concurrent")
    with pytest.raises(InvalidArgument, match="give it a name of at most"):
        await admin.plan_clone_group("g", long)
    with pytest.raises(InvalidArgument, match="give it a name of at most"):
        await admin.plan_import_group(exported, long)
    wrong = replace(exported, terms=replace(exported.terms, mode="several"))
    with pytest.raises(InvalidArgument, match="several"):
        await admin.plan_import_group(wrong, "h")
    everyone = replace(exported.terms, model="broadcasting", failure=FailurePolicy())
    with pytest.raises(InvalidState, match="broadcasting"):
        await admin.plan_import_group(replace(exported, terms=everyone), "h")
