"""Answers about a cluster in memory: the cause is made, found, and gone after what mends it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import ask_for_more, consumer_of, send, take
from support.explained import check_command

from vq import aio
from vq.admin import DiskExplanation, Explanation, Goal, Target
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.producer.spread.partitioner import key_partition
from vq.coordination.groups import claims, groups
from vq.coordination.tree.coordinator import SessionState
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Member, Owner
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import InvalidArgument, UnknownPartition, UnknownTopic
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition, TopicSettings
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time

WHERE = TopicPartition("t", 0)


def checked(found: Explanation, cause: str, *, certain: bool = True) -> Explanation:
    """Return an answer that has a cause, and commands that ``vq`` takes."""
    assert (found.found.cause, found.is_certain) == (cause, certain), found
    for each in (found.found, *found.also):
        for command in each.commands:
            check_command(command)
    return found


def fact(found: Explanation, name: str) -> Any:
    return {each.name: each.value for each in found.facts}[name]


async def partition(
    factory: aio.MessageFactory, cause: str, group: str = "g", number: int = 0, **more: Any
) -> Explanation:
    return checked(await factory.admin.explain_partition(group, "t", number), cause, **more)


async def until_cause(ask: Callable[[], Awaitable[Explanation]], cause: str) -> Explanation:
    found: list[Explanation] = []

    async def is_it() -> bool:
        found.append(await ask())
        return found[-1].found.cause == cause

    await until_true(is_it)
    return checked(found[-1], cause, certain=found[-1].is_certain)


async def in_group(factory: aio.MessageFactory, **terms: Any) -> None:
    """Make group ``g`` of topic ``t``."""
    contract = ConsumerGroup(**{"topics": {"t": ALL}, **terms})
    await groups.ensure_group(factory.admin.cluster.coordinator, "g", contract)


async def stored(factory: aio.MessageFactory, *messages: Message) -> list[Message]:
    """Send messages to partition 0 of ``t``, by a key that belongs there; return them as stored."""
    key = next(each for each in range(9) if key_partition(each, 2) == 0)
    sent = [each._replace(key=key) for each in messages or (Message("t", b"1"), Message("t", b"2"))]
    results = await send(factory, *sent)
    return [
        each._replace(id=result.id, offset=result.offset, partition=result.partition)
        for each, result in zip(sent, results, strict=True)
    ]


async def commit(factory: aio.MessageFactory, offset: int, **more: Any) -> None:
    client = factory.admin.cluster
    value = CommittedOffset(offset=offset, **more)
    await client.offsets.reset("g", WHERE, value)


# Partitions ---------------------------------------------------------------------------------------
async def test_a_partition_from_no_group_to_a_group_that_consumes_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Each cause in turn, with what mends it."""
    admin = factory.admin
    await stored(factory)
    await partition(factory, "no_group")
    planned = await admin.plan_create_group("g", {"t": "*"}, Target(goal=Goal.EARLIEST))
    await admin.make_group(planned)
    found = await partition(factory, "no_members")
    assert fact(found, "lag_bytes") > 0
    async with await consumer_of(factory, member_id="m") as consumer:
        await take(consumer, 1)
        found = await partition(factory, "consumed")
        assert fact(found, "owner") == "m"
        assert fact(found, "owner_runs_at") is not None
        await take(consumer, 1)
        await ask_for_more(consumer)
        await consumer.commit()
        await until_cause(lambda: admin.explain_partition("g", "t", 0), "at_end")


async def test_a_topic_that_the_group_does_not_read_or_its_members_do_not_subscribe_to(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("other", partitions=1)
    await stored(factory)
    async with await consumer_of(factory, topic="other") as consumer:
        await consumer.start()
        await partition(factory, "not_read")
        await in_group(factory, topics={"t": ALL, "other": ALL})
        await partition(factory, "not_subscribed")
        await factory.admin.forget_topic("g", "t")
        await partition(factory, "not_read")


async def test_a_topic_that_is_closed_for_reading(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await stored(factory)
    await in_group(factory)
    await factory.admin.alter_topic("t", readable=False)
    await partition(factory, "not_readable")
    await factory.admin.alter_topic("t", readable=True)
    await until_cause(lambda: factory.admin.explain_partition("g", "t", 0), "no_members")


@pytest.mark.parametrize(
    ("cause", "offset", "more", "goal"),
    [
        ("needs_reset", 0, {"stopped": "on_bad_record = 'stop'"}, Goal.COMMITTED),
        ("other_topic", 0, {"topic_id": "another"}, Goal.EARLIEST),
        ("beyond_end", 10_000, {}, Goal.LATEST),
    ],
)
async def test_a_group_that_is_stopped_goes_on_after_the_reset_that_is_named(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    cause: str,
    offset: int,
    more: dict[str, Any],
    goal: Goal,
) -> None:
    await stored(factory)
    await in_group(factory)
    await commit(factory, offset, **more)
    found = await partition(factory, cause)
    assert any(str(goal).replace("_", "-") in each for each in found.found.commands) or (
        "--past-damage" in found.found.commands[0]
    )
    planned = await factory.admin.plan_reset(
        "g", Target(goal=goal), only_topics=["t"], only_partitions=[0]
    )
    await factory.admin.reset("g", planned)
    found = await factory.admin.explain_partition("g", "t", 0)
    assert found.found.cause == ("at_end" if goal is Goal.LATEST else "no_members")


async def test_a_broker_group_without_a_master_and_what_comes_of_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Nobody takes the lag that cannot be asked for none; a send is refused for the same cause."""
    await stored(factory)
    async with await consumer_of(factory, member_id="m") as consumer:
        await take(consumer, 1)
        await cluster.nodes["b1"].stop()
        ask = lambda: factory.admin.explain_partition("g", "t", 0)  # noqa: E731
        found = await until_cause(ask, "no_master")
        assert found.unknown
        assert fact(found, "lag_bytes") is None
        checked(await factory.admin.explain_send("t"), "no_master")
        checked(await factory.admin.explain_key("t", "k"), "no_master")
        await cluster.start()
        await until_cause(ask, "consumed")


async def test_a_listener_that_fails_and_the_policy_that_lets_the_group_go_on(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await stored(factory)
    config = ConsumerConfig(group="g", on_failure="hold", max_attempts=1, max_wait_s=0.5)

    async def fail(message: Message) -> None:
        raise ValueError("no id")

    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t", listener=fail)
        await consumer.start()
        ask = lambda: factory.admin.explain_partition("g", "t", 0)  # noqa: E731
        found = await until_cause(ask, "listener_failed")
        assert "no id" in found.found.text
        await factory.admin.alter_group("g", on_failure="dead-letter")
        await until_cause(ask, "at_end")


async def test_a_member_that_takes_no_messages_reports_no_error_and_does_not_move(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await stored(factory)
    async with await consumer_of(factory, member_id="m") as consumer:
        await take(consumer, 1)
        await asyncio.sleep(700)
        found = await partition(factory, "not_moving")
        assert "process" in found.found.text


async def test_a_filter_that_lets_nothing_through(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    messages = await stored(factory, Message("t", b"1", tag="red"))
    await in_group(factory, topics={"t": Filter.parse("blue")})
    bounds = (await factory.admin.bounds("t"))[0]
    assert bounds is not None
    await commit(factory, bounds.latest)
    config = ConsumerConfig(group="g", max_wait_s=0.5)
    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t", message_filter="blue")
        await consumer.start()
        ask = lambda: factory.admin.explain_partition("g", "t", 0)  # noqa: E731
        await until_cause(ask, "filter_matches_nothing")
        await stored(factory, Message("t", b"2", tag="blue"))
        await take(consumer, 1)
        found = await factory.admin.explain_message("g", "t", id=messages[0].id)
        checked(found, "filtered")


async def test_what_is_stored_and_not_on_all_nodes_in_sync_is_not_readable_yet(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """So nobody is told that the end is reached."""
    await in_group(factory)
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        cluster.flushers["b1"].held = True
        sending = asyncio.ensure_future(stored(factory))
        ask = lambda: factory.admin.explain_partition("g", "t", 0)  # noqa: E731
        await until_cause(ask, "not_replicated")
        found = await factory.admin.explain_message("g", "t", partition=0, offset=0)
        checked(found, "not_replicated")
        cluster.flushers["b1"].release()
        await sending


async def joined(factory: aio.MessageFactory, member: str = "m") -> None:
    """Have a member in the group that does nothing."""
    coordinator = factory.admin.cluster.coordinator
    value = Member(topics=("t",), nonce=member, host="h", pid=7)
    await groups.join_group(coordinator, "g", member, value)


async def test_a_broadcasting_group_owns_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await in_group(factory, model="broadcasting")
    await partition(factory, "no_members")
    (message_sent, _) = await stored(factory)
    await joined(factory)
    await partition(factory, "broadcasting")
    await message(factory, "broadcasting", id=message_sent.id)


async def test_a_partition_that_no_member_has_claimed_or_whose_owner_is_no_member_any_more(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    first, _ = await stored(factory)
    await in_group(factory)
    await joined(factory)
    found = await partition(factory, "not_claimed")
    assert fact(found, "members_subscribed") == 1
    coordinator = factory.admin.cluster.coordinator
    await claims.make_parents(coordinator, "g", "t")
    owner = Owner(member="other", generation=1).encode()
    await coordinator.create(Owner.path("g", "t", 0), owner, ephemeral=True)
    await partition(factory, "owner_gone")
    await message(factory, "owner_gone", id=first.id)


async def test_a_master_that_does_not_answer_the_operator(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Members may reach it: what is not known is said."""
    await stored(factory)
    async with (
        await consumer_of(factory) as consumer,
        factory_of(cluster, host="operator", seed=5) as operator,
    ):
        await consumer.start()
        cluster.network.cut("operator", "b1")
        found = await partition(operator, "broker_silent")
        assert found.unknown
        assert {"at_end", "not_moving"} <= {*found.open}
        checked(await operator.admin.explain_send("t"), "broker_silent")
        told = await operator.admin.explain_message("g", "t", partition=0, offset=0)
        assert (told.is_certain, bool(told.unknown)) == (False, True)
        cluster.network.heal()
        await until_cause(lambda: operator.admin.explain_partition("g", "t", 0), "consumed")


async def test_what_is_not_there_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    admin = factory.admin
    with pytest.raises(UnknownTopic):
        await admin.explain_partition("g", "none", 0)
    with pytest.raises(UnknownPartition):
        await admin.explain_partition("g", "t", 9)
    with pytest.raises(UnknownPartition):
        await admin.explain_send("t", partition=9)
    with pytest.raises(InvalidArgument, match="registered; these are: b1/n1"):
        await admin.explain_disk("b9")
    for arguments in ({}, {"id": 5, "partition": 0, "offset": 0}, {"partition": 0}):
        with pytest.raises(InvalidArgument, match="give the id of the message, or"):
            await admin.explain_message("g", "t", **arguments)


# Sends and keys -----------------------------------------------------------------------------------
async def test_a_key_goes_where_a_producer_puts_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    for key in ("a", b"\0k", -5):
        found = checked(await factory.admin.explain_key("t", key), "goes_there")
        (result,) = await send(factory, Message("t", b"x", key=key))
        assert fact(found, "partition") == result.partition


async def test_why_a_send_is_refused_and_what_lets_it_through(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    admin = factory.admin
    checked(await admin.explain_send("t"), "accepted")
    checked(await admin.explain_send("_vq.dlq.g"), "reserved")
    checked(await admin.explain_send("none"), "no_topic")
    await admin.set_auto_create(TopicSettings())
    checked(await admin.explain_send("none"), "accepted")
    checked(await admin.explain_send("t", size=2 << 20), "too_large")
    await admin.set_quotas(["user:alice requests=100 bytes-out=1", "user:* bytes-in=10M"])
    slow = await admin.explain_send("t", sender="alice")
    checked(slow, "quota")
    assert (
        "no more of each broker than bytes-in=10M, requests=100 (quota of user:*, user:alice)"
        in (slow.found.text)
    )
    await admin.remove_quotas(["user:alice", "user:*"])
    checked(await admin.explain_send("t", sender="alice"), "accepted")
    await admin.close_topic("t")
    checked(await admin.explain_send("t", key="k"), "not_writable")
    await admin.open_topic("t")
    await until_cause(lambda: admin.explain_send("t", key="k"), "accepted")
    await admin.delete_topic("t")
    checked(await admin.explain_send("t"), "deleted")
    await admin.undelete_topic("t")
    await until_cause(lambda: admin.explain_send("t"), "accepted")


async def test_a_topic_that_was_made_in_part_is_told_from_a_missing_one(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    coordinator = factory.admin.cluster.coordinator
    node = await coordinator.get(TopicNode.path("t"))
    topic = TopicNode.decode("t", node.data)
    await coordinator.set(TopicNode.path("t"), replace(topic, phase="creating").encode())
    checked(await factory.admin.explain_send("t"), "half_made")


async def test_too_few_nodes_in_sync_refuse_a_send(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("two", min_insync=2)
    admin = factory.admin
    found = await until_cause(lambda: admin.explain_send("two"), "min_insync")
    assert "vq topic alter two --min-insync 1" in found.found.commands
    await admin.alter_topic("two", min_insync=1)
    checked(await admin.explain_send("two"), "accepted")


async def test_a_full_disk_refuses_a_send_and_the_question_about_the_disk_is_named(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await stored(factory)
    disk = cluster.disks["b1"]
    disk.capacity_bytes = disk.used_bytes()
    ask = lambda: factory.admin.explain_send("t")  # noqa: E731
    found = await until_cause(ask, "disk_full")
    assert found.found.commands == ("vq explain disk b1/n1",)
    told = await factory.admin.explain_disk("b1")
    assert told.answer.found.cause in {"other_files", "more_comes_than_goes"}
    assert {each.topic for each in told.topics} == {"t"}


async def test_one_group_of_two_without_a_master_refuses_a_part_of_the_keys(
    two_groups: MemoryCluster,
) -> None:
    async with factory_of(two_groups) as factory:
        await two_groups.nodes["b2"].stop()
        found = await until_cause(lambda: factory.admin.explain_send("t"), "some_partitions")
        assert "1 of 2 partitions" in found.found.text


# Messages -----------------------------------------------------------------------------------------
async def message(factory: aio.MessageFactory, cause: str, **where: Any) -> Explanation:
    return checked(await factory.admin.explain_message("g", "t", **where), cause)


async def test_a_message_from_being_ahead_to_being_handled(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    first, second = await stored(factory)
    await message(factory, "no_group", id=second.id)
    await in_group(factory)
    found = await message(factory, "no_members", id=second.id)
    assert fact(found, "message_offset") == second.offset
    assert fact(found, "key") == str(second.key)
    async with await consumer_of(factory, member_id="m") as consumer:
        await consumer.start()
        await until_cause(
            lambda: factory.admin.explain_message("g", "t", id=second.id), "not_reached"
        )
        await take(consumer, 1)
        await asyncio.sleep(700)
        await message(factory, "not_moving", id=second.id)
        await take(consumer, 1)
        await consumer.commit()
    await message(factory, "handled", id=first.id)
    await message(factory, "handled", partition=0, offset=first.offset)
    await message(factory, "not_yet", partition=0, offset=1_000_000)
    await message(factory, "no_message", partition=0, offset=first.offset + 1)


async def test_a_message_before_the_group_began(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    first, _ = await stored(factory)
    await in_group(factory, start="latest")
    await message(factory, "began_behind", id=first.id)
    planned = await factory.admin.plan_reset(
        "g", Target(goal=Goal.OFFSET, value=first.offset), only_topics=["t"], only_partitions=[0]
    )
    await factory.admin.reset("g", planned)
    await message(factory, "no_members", id=first.id)


async def test_an_id_that_nobody_has_is_not_stored(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    first, _ = await stored(factory)
    await in_group(factory)
    await message(factory, "not_stored", id=first.id + 4_096)


async def test_a_delayed_message_waits_until_it_is_recalled(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await in_group(factory)
    (waits,) = await send(factory, Message("t", b"later", delay_s=600.0))
    found = await message(factory, "delayed", id=waits.id)
    assert fact(found, "due_at_s") is not None
    await factory.admin.cancel_delayed(waits)
    await message(factory, "recalled", id=waits.id)


async def test_a_message_of_a_transaction_waits_for_its_decision(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await in_group(factory)
    async with await factory.create_producer() as producer:
        transaction = await producer.begin_transaction()
        result = await producer.send(Message("t", b"1"))
        await transaction.prepare()
        number = transaction.number
        found = await message(factory, "undecided", id=result.id)
        assert f"vq tx commit {number}" in found.found.commands
        await factory.admin.roll_back_transaction(number)
    await message(factory, "rolled_back", id=result.id)


async def test_a_message_that_a_listener_gave_up_is_a_dead_letter(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    first, second = await stored(factory)
    config = ConsumerConfig(
        group="g", on_failure="dead-letter", max_attempts=1, max_wait_s=0.5, member_id="m"
    )

    async def listen(each: Message) -> None:
        if each.content == b"1":
            raise ValueError("no id")

    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t", listener=listen)
        await consumer.start()
        await until_cause(lambda: factory.admin.explain_partition("g", "t", 0), "at_end")
        found = await message(factory, "dead_letter", id=first.id)
        assert (fact(found, "dead_letter"), "no id" in found.found.text) == ("open", True)
        await message(factory, "handled", id=second.id)


async def test_a_message_whose_copy_waits_for_its_next_try(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    first, _ = await stored(factory)
    config = ConsumerConfig(
        group="g",
        mode="concurrent",
        on_failure="retry-topic",
        max_attempts=1,
        retry_schedule=(900.0,),
        max_wait_s=0.5,
    )

    async def fail(each: Message) -> None:
        raise ValueError("no id")

    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t", listener=fail)
        await consumer.start()
        ask = lambda: factory.admin.explain_message("g", "t", id=first.id)  # noqa: E731
        await until_cause(ask, "retries")


async def test_nobody_guesses_where_a_message_is_while_its_broker_is_away(
    two_groups: MemoryCluster,
) -> None:
    async with factory_of(two_groups) as factory:
        await in_group(factory)
        (sent,) = await stored(factory, Message("t", b"1"))
        await two_groups.nodes["b2"].stop()
        found = await factory.admin.explain_message("g", "t", id=sent.id + 4_096)
        assert not found.is_certain
        assert found.unknown


# Disks --------------------------------------------------------------------------------------------
async def test_what_holds_what_on_a_disk(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    await stored(factory)
    told = await factory.admin.explain_disk("b1/n1")
    checked(told.answer, told.answer.found.cause, certain=told.answer.is_certain)
    (topic,) = told.topics
    assert (topic.topic, topic.disk_bytes > 0) == ("t", True)
    assert client.coordinator.state is SessionState.CONNECTED


async def disk(factory: aio.MessageFactory, cause: str, name: str = "b1") -> DiskExplanation:
    told = await factory.admin.explain_disk(name)
    checked(told.answer, cause)
    return told


async def test_what_fills_a_disk_is_gone_after_what_mends_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A topic without bounds, then a deleted one."""
    await stored(factory, *(Message("t", b"x" * 100_000) for _ in range(10)))
    at_first = cluster.disks["b1"]
    at_first.capacity_bytes = 20 * at_first.used_bytes()
    await factory.admin.alter_topic("t", retention_hours=None)
    told = await disk(factory, "kept_forever")
    (topic,) = told.topics
    assert topic.growth_bytes_per_day is None or topic.growth_bytes_per_day >= 1_000_000
    await factory.admin.alter_topic("t", retention_hours=72)
    told = await factory.admin.explain_disk("b1")
    assert told.answer.found.cause != "kept_forever"
    await factory.admin.delete_topic("t")
    await until_true(lambda: _fills(factory, "deleted_topics"))
    await factory.admin.delete_topic("t", now=True)
    await until_true(lambda: _fills_no_more(factory))


async def _fills(factory: aio.MessageFactory, cause: str) -> bool:
    return (await factory.admin.explain_disk("b1")).answer.found.cause == cause


async def _fills_no_more(factory: aio.MessageFactory) -> bool:
    return (await factory.admin.explain_disk("b1")).topics == ()


async def test_what_a_partition_left_where_it_was_before_it_moved_is_told(
    two_groups: MemoryCluster,
) -> None:
    async with factory_of(two_groups) as factory:
        await stored(factory, *(Message("t", b"x" * 100_000) for _ in range(10)))
        at_first = two_groups.disks["b1"]
        at_first.capacity_bytes = 20 * at_first.used_bytes()
        planned = await factory.admin.plan_moves("t", [0], "b2")
        await factory.admin.move(planned)
        told = await disk(factory, "moved_away")
        assert told.topics[0].moved_bytes == told.topics[0].disk_bytes > 1_000_000


async def test_a_node_that_does_not_answer_is_no_disk_that_is_fine(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    cluster.network.cut("client", "b1")
    found = (await factory.admin.explain_disk("b1")).answer
    checked(found, "broker_silent")
    assert found.unknown
