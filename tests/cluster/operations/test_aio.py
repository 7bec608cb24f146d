"""``factory.admin`` as coroutines: an operator's day, over a cluster in memory."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from support.broker import memory_cluster
from support.client import factory_of
from support.consumers import coordinator_of

from vq import admin, aio
from vq.client.config import ConsumerConfig
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected
from vq.errors import InvalidArgument, InvalidState
from vq.model import Message, TopicSettings
from vq.operations.topics import verification
from vq.testing.waiting import WAIT_S, until_true

pytestmark = pytest.mark.virtual_time


async def consumed(factory: aio.MessageFactory, count: int) -> list[bytes]:
    """Return what the group is given next."""
    config = ConsumerConfig(group="g", max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:
        found: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            async for message in consumer.subscribe("t"):
                found.append(message.content)
                if len(found) == count:
                    break
    return found


async def test_an_operator_makes_looks_moves_resets_and_deletes() -> None:
    """Everything on the page of `vq.aio.Admin` but time and verification, in one story."""
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.start("b2")
        async with factory_of(cluster) as factory:
            operator = factory.admin
            made = await operator.create_topic("t", TopicSettings(partitions=1))
            source = made.partitions[0].writer_group
            target = {"b1": "b2", "b2": "b1"}[source or ""]
            async with await factory.create_producer() as producer:
                for number in range(3):
                    await producer.send(Message("t", b"%d" % number))
            assert await consumed(factory, 3) == [b"0", b"1", b"2"]

            described = await operator.describe_group("g")
            assert (described.lag_bytes, described.lag_messages) == (0, 0)
            assert [each.group for each in await operator.list_groups()] == ["g"]
            planned = await operator.plan_reset("g", admin.Target(goal=admin.Goal.EARLIEST))
            assert [each.repeats for each in planned] == [3]
            await operator.reset("g", planned)
            assert (await operator.describe_group("g")).lag_messages == 3

            moves = await operator.plan_moves("t", [0], target)
            (moved,) = await operator.move(moves)
            assert (moved.source, moved.target) == (source, target)
            assert await operator.plan_moves("t", [0], target) == []
            assert [
                len(each.spans) for each in (await operator.describe_topic("t")).topic.partitions
            ] == [2]
            assert [each.open for each in await operator.list_topics()] == [{target: 1}]
            bounds = (await operator.bounds("t"))[0]
            assert bounds == admin.PartitionEnds(0, moved.offset, moved.offset, 3)

            await moved_to(operator, target)
            grown = await operator.add_partitions("t", 1)
            assert len(grown.partitions) == 2
            settings = replace(grown.settings, retention_hours=None)
            assert (await operator.change_settings("t", settings)).settings == settings

            assert (await operator.plan_delete("t")).partitions == 2
            await operator.delete_topic("t")
            assert await operator.list_topics() == []


async def moved_to(operator: aio.Admin, target: str) -> None:
    """Wait until the operator's own routes have followed the move."""

    async def done() -> bool:
        return (await operator.placements("t"))[0].writer_group == target

    await until_true(done)


async def test_brokers_are_asked_by_name_or_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "POLL_S", 0.001)
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.create_topic("t")
        async with factory_of(cluster) as factory:
            operator = factory.admin
            (node,) = await operator.list_brokers()
            one = await operator.broker_status(str(node.address))
            assert (one.group, one.address) == ("b1", node.address)
            (report,) = (await operator.cluster_status()).brokers
            assert report.node == node
            (verified,) = await operator.verify(["t"])
            assert (verified.damaged, verified.error) == (0, "")
            assert await operator.offsets_at_time("t", 0) == {0: 0}


async def test_a_reset_that_was_cut_is_perhaps_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(*_: object) -> None:
        raise ConnectionLost("no reply")

    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory:
            async with await factory.create_producer() as producer:
                await producer.send(Message("t", b"0"))
            assert await consumed(factory, 1) == [b"0"]
            target = admin.Target(goal=admin.Goal.EARLIEST)
            planned = await factory.admin.plan_reset("g", target)
            monkeypatch.setattr(ZooKeeperOffsets, "reset", cut)
            with pytest.raises(admin.ResetUnknown, match="resetting g may or may not"):
                await factory.admin.reset("g", planned)


async def test_a_factory_that_is_not_open_has_no_admin() -> None:
    with pytest.raises(InvalidState, match="not open"):
        aio.MessageFactory().admin  # noqa: B018 - the access is what is tested


async def test_a_group_that_nobody_is_a_member_of_is_looked_at_reset_and_deleted() -> None:
    """Its lag is in bytes, messages and seconds; while it has a member it is not deleted."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory:
            operator = factory.admin
            async with await factory.create_producer() as producer:
                for number in range(3):
                    await producer.send(Message("t", b"%d" % number))
            assert await consumed(factory, 1) == [b"0"]
            before = await operator.describe_group("g")
            assert (before.members, before.lag_messages) == ((), 2)
            assert before.lag_s is not None
            await asyncio.sleep(0.05)
            after = await operator.describe_group("g")
            assert (after.lag_s or 0) >= before.lag_s + 0.04
            target = admin.Target(goal=admin.Goal.LATEST)
            await operator.reset("g", await operator.plan_reset("g", target))
            assert (await operator.describe_group("g")).lag_s == 0

            config = ConsumerConfig(group="g", max_wait_s=0.2)
            async with await factory.create_consumer(config) as consumer:
                consumer.subscribe("t")
                await consumer.start()
                await until_true(lambda: is_alive(operator))
                with pytest.raises(InvalidState, match="has members, 1 in all"):
                    await operator.delete_group("g")
            planned = await operator.plan_delete_group("g")
            assert (planned.topics, planned.partitions, planned.members) == (("t",), 1, ())
            await operator.delete_group("g")
            assert await operator.list_groups() == []
            with pytest.raises(admin.UnknownGroup):
                await operator.delete_group("g")
            with pytest.raises(admin.UnknownGroup):
                await operator.plan_delete_group("g")


async def is_alive(operator: aio.Admin) -> bool:
    return bool((await operator.describe_group("g")).members)


async def test_each_command_has_its_method() -> None:
    """Switch, settings of one topic, brokers' checks, cut messages: as from the command line."""
    async with memory_cluster() as cluster:
        await cluster.start()
        async with factory_of(cluster) as factory:
            operator = factory.admin
            await operator.create_topic("t", if_not_exists=True)
            again = await operator.create_topic(
                "t", TopicSettings(partitions=7), if_not_exists=True
            )
            assert again.settings.partitions == 1
            altered = await operator.alter_topic("t", partitions=2, retention_hours=5)
            assert (altered.settings.partitions, altered.settings.retention_hours) == (2, 5)
            assert (await operator.switch_master("b1", "n1")).target == "n1"
            assert await operator.list_cut() == ([], [])
            assert {each.level for each in await operator.check_brokers()} <= set(admin.Level)
            with pytest.raises(InvalidArgument, match="missing: t"):
                await operator.plan_unclean("b1", "n1", [])


async def test_without_zookeeper_a_call_ends_when_it_says() -> None:
    """Whether the cluster is there at all is not asked for another time-out."""
    async with memory_cluster() as cluster, factory_of(cluster) as factory:
        coordinator = coordinator_of(factory)
        cluster.ensemble.disconnect(coordinator)
        coordinator.cut = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(NotConnected) as raised:
            await factory.admin.list_topics()
        (said,) = re.findall(r"within ([0-9.]+) s", str(raised.value))
        assert loop.time() - began == pytest.approx(float(said), abs=0.1)


async def test_an_argument_of_another_class_is_told_with_the_class_that_is_wanted() -> None:
    async with memory_cluster() as cluster, factory_of(cluster) as factory:
        operator: Any = factory.admin
        for call, said in (
            (
                lambda: operator.plan_reset("g", "earliest"),
                "target = 'earliest' is str; give Target",
            ),
            (lambda: operator.apply_allocation("x"), "plan = 'x' is str; give AllocationPlan"),
            (lambda: operator.describe_topic(5), "topic = 5 is int; give text"),
            (lambda: operator.drain_group(["b1"]), r"group = \['b1'\] is list; give text"),
        ):
            with pytest.raises(InvalidArgument, match=said):
                await call()
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            await operator.describe_topic()
