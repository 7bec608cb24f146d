"""A group begins where it is told, and its next member goes on behind the last commit."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of, started
from support.consumers import (
    ask_for_more,
    client_of_factory,
    consumer_of,
    send,
    take,
    texts,
    until_committed,
)
from support.coordination import strike

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, StartPosition
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Operation, Stat
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import (
    UnknownTopic,
)
from vq.model import Message, TopicPartition
from vq.operations.partitions import placements
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def test_a_group_begins_where_it_is_told(factory: aio.MessageFactory) -> None:
    await send(factory, *texts(1, 2))
    earliest = await consumer_of(factory, "early")
    latest = await consumer_of(factory, "late", start_position=StartPosition.LATEST)
    await earliest.start()
    await latest.start()
    await until(lambda: earliest.assignment() and latest.assignment())
    await send(factory, *texts(3))
    assert await take(earliest, 3) == [b"1", b"2", b"3"]
    assert await take(latest, 1) == [b"3"]


async def test_a_group_begins_with_the_oldest_message_of_a_partition_that_moved(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Where that lies on another broker group than the newest one, too."""
    await send(factory, *texts(1, 2))
    await cluster.start("b2")
    async with started(cluster) as operator:
        await placements.move_all(operator, await placements.plan_moves(operator, "t", [0], "b2"))
    await send(factory, *texts(3))
    consumer = await consumer_of(factory)
    assert await take(consumer, 3) == [b"1", b"2", b"3"]
    await consumer.close()


async def test_a_partition_younger_than_the_group_is_read_from_its_start(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A group that starts at the latest message leaves out what is older than itself, no more:
    here partitions are added and filled while it has no member."""
    await send(factory, *texts(0))
    consumer = await consumer_of(factory, start_position=StartPosition.LATEST)
    await consumer.start()
    await until(consumer.assignment)
    await consumer.close()
    async with cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 3)
    await until(lambda: len(client_of_factory(factory).routes.partitions("t")) == 4)
    await send(factory, *(Message("t", b"%d" % n, key=str(n)) for n in range(1, 41)))
    consumer = await consumer_of(factory, start_position=StartPosition.LATEST)
    assert sorted(map(int, await take(consumer, 40))) == list(range(1, 41))


async def test_where_it_begins_is_kept_at_once(factory: aio.MessageFactory) -> None:
    """A crash before the first commit must not skip what came in between."""
    await send(factory, *texts(1))
    latest = await consumer_of(factory, start_position=StartPosition.LATEST)
    await latest.start()
    await until(latest.assignment)
    offsets = await latest.get_offset("t")
    assert offsets == {TopicPartition("t", 0): (await latest.get_bounds("t", 0)).latest}


async def test_consumed_messages_are_committed_and_the_next_member_goes_on(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(1, 2, 3))
    first = await consumer_of(factory)
    assert await take(first, 2) == [b"1", b"2"]
    await first.close()
    second = await consumer_of(factory)
    assert await take(second, 1) == [b"3"]


async def test_commit_writes_what_was_consumed_so_far(factory: aio.MessageFactory) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory)
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            seen.append(message)
            if len(seen) == 2:
                await consumer.commit()
                break
    where = TopicPartition("t", 0)
    assert (await consumer.get_offset("t"))[where] == results[0].offset + 21
    await consumer.commit()


async def test_the_last_handled_message_is_named_beside_the_offset(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Also when only a filter moved on since then, and by a later owner."""
    where = TopicPartition("t", 0)

    async def committed() -> CommittedOffset:
        async with cluster.admin() as coordinator:
            return (await ZooKeeperOffsets(coordinator).read("g", ["t"]))[where]

    async def consume(count: int) -> None:
        consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.1))
        consumer.subscribe("t", message_filter="a")
        assert len(await take(consumer, count)) == count
        await consumer.close()

    results = await send(factory, Message("t", b"1", "a"), Message("t", b"2", "a"))
    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.1))
    await consumer.subscribe("t", message_filter="a").start()
    await until(consumer.assignment)
    assert (await committed()).message_id is None, "nothing was handled yet"
    await consumer.close()
    await consume(2)
    assert (await committed()).message_id == results[1].id
    await send(factory, Message("t", b"3", "b"))
    latest = (await consumer.get_bounds("t", 0)).latest
    idle = await factory.create_consumer(
        ConsumerConfig(group="g", max_wait_s=0.1, commit_interval_s=0.01)
    )
    await idle.subscribe("t", message_filter="a").start()
    waiting = asyncio.create_task(take(idle, 1))
    await until_committed(idle, latest)
    assert (await committed()).message_id == results[1].id
    await idle.close()
    assert await waiting == []


async def test_offsets_are_committed_regularly(factory: aio.MessageFactory) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory, commit_interval_s=0.02)
    await take(consumer, 2)
    await until_committed(consumer, results[0].offset + 21)
    await ask_for_more(consumer)
    await until_committed(consumer, results[1].offset + 21)


async def test_a_commit_that_fails_is_tried_again(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory, commit_interval_s=0.01)
    commit = ZooKeeperOffsets.commit
    errors: list[Exception] = [RuntimeError("a bug"), UnknownTopic("any error")]

    async def fail(*arguments: Any, **options: Any) -> Any:
        if errors and consumer.assignment():
            raise errors.pop()
        return await commit(*arguments, **options)

    await consumer.start()
    await until(consumer.assignment)
    monkeypatch.setattr(ZooKeeperOffsets, "commit", fail)
    await take(consumer, 2)
    await ask_for_more(consumer)
    await until_committed(consumer, results[1].offset + 21)
    assert not errors
    assert "a bug" in caplog.text


async def test_what_is_handled_while_a_commit_is_under_way_is_left_for_the_next(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory, commit_interval_s=60.0)
    assert await take(consumer, 2) == [b"1", b"2"]
    commit = ZooKeeperOffsets.commit
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Any:
        under_way.set()
        await go_on.wait()
        return await commit(*arguments, **options)

    monkeypatch.setattr(ZooKeeperOffsets, "commit", slow)
    committing = asyncio.create_task(consumer.commit())
    await under_way.wait()
    await ask_for_more(consumer)
    go_on.set()
    await committing
    assert await consumer.get_offset("t") == {TopicPartition("t", 0): results[0].offset + 21}
    await consumer.commit()
    assert await consumer.get_offset("t") == {TopicPartition("t", 0): results[1].offset + 21}


async def test_two_members_share_and_hand_over_without_a_repetition(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *(Message("wide", b"%d" % n, key=str(n)) for n in range(200)))
    seen: list[bytes] = []

    async def consume(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            seen.append(message.content)
            await asyncio.sleep(0)

    first = await consumer_of(factory, topic="wide")
    tasks = [asyncio.create_task(consume(first))]
    await until(lambda: len(seen) >= 20)
    second = await consumer_of(factory, topic="wide")
    tasks.append(asyncio.create_task(consume(second)))
    await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
    await first.close()
    await until(lambda: len(seen) >= 200)
    await second.close()
    await asyncio.gather(*tasks)
    assert sorted(map(int, seen)) == list(range(200))


def lose_commits(
    cluster: MemoryCluster, client: ClusterClient, fault: str, count: int
) -> list[int]:
    """Strike the next ``count`` writes of an offset; return a list that holds how many are left."""
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    multi, left = coordinator.multi, [count]

    async def struck(operations: Sequence[Operation]) -> list[Stat | None]:
        if left[0] and any("/offsets/" in each.path for each in operations):
            left[0] -= 1
            strike(cluster.ensemble, coordinator, fault, 0)
        return await multi(operations)

    coordinator.multi = struck  # type: ignore[method-assign]
    return left


@pytest.mark.parametrize(("fault", "count"), [("request", 4), ("reply", 1)])
@pytest.mark.parametrize("closing", [False, True], ids=["rebalance", "close"])
async def test_a_hand_over_waits_for_its_last_commit(
    cluster: MemoryCluster, fault: str, count: int, closing: bool
) -> None:
    """Drain, commit, then release: a hiccup of ZooKeeper in between repeats nothing.

    Four lost requests are more than one commit tries; one lost reply is settled by reading.
    """
    seen: list[int] = []

    async def consume(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            number = int(message.content)
            seen.append(number)

    async with (
        started(cluster, session_timeout_s=10.0) as client,
        aio.MessageFactory.on_cluster(client) as one,
        factory_of(cluster, session_timeout_s=10.0) as other,
    ):
        await send(one, *(Message("wide", b"%d" % n, key=str(n)) for n in range(40)))
        first = await consumer_of(one, topic="wide", commit_interval_s=60.0)
        tasks = [asyncio.create_task(consume(first))]
        await until(lambda: len(seen) == 40)
        left = lose_commits(cluster, client, fault, count)
        if closing:
            await first.close()
        second = await consumer_of(other, topic="wide", commit_interval_s=60.0)
        tasks.append(asyncio.create_task(consume(second)))
        share = 4 if closing else 2
        await until(lambda: len(second.assignment()) == share)
        await send(other, *(Message("wide", b"%d" % n, key=str(n)) for n in range(40, 80)))
        await until(lambda: 79 in seen and len(seen) >= 80)
        await first.close()
        await second.close()
        await asyncio.gather(*tasks)
    assert left == [0], "the fault struck"
    assert sorted(seen) == list(range(80))
