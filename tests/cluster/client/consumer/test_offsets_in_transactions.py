"""Consume, transform, produce: a group's offsets are committed with a transaction, or not."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of, started
from support.consumers import client_of_factory

from vq import aio
from vq.broker.transactions import journal
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.producer.transaction import with_offsets
from vq.coordination.groups import decisions as decision_nodes
from vq.coordination.groups import zookeeper_offsets
from vq.coordination.tree.coordinator import SessionExpired
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.reading import children_or_none
from vq.coordination.tree.values.decisions import Decision
from vq.errors import (
    BatchTooLarge,
    Busy,
    GenerationStale,
    InvalidState,
    TransactionInDoubt,
    TransactionRefused,
    VqError,
)
from vq.model import Message, TopicPartition, TransactionState
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time
IN = TopicPartition("t", 0)
ALL = [b"%d" % each for each in range(10)]


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[ClusterClient]:
    """Topic ``t`` with ten messages in its first partition, and ``out``; and a client."""
    await cluster.create_topic("out", partitions=2)
    async with factory_of(cluster, seed=98) as other:
        producer = await other.create_producer()
        await producer.send_batch([Message("t", each, key=0) for each in ALL])
    async with started(cluster, session_timeout_s=20.0) as made:
        yield made


@pytest.fixture
async def factory(client: ClusterClient) -> AsyncIterator[aio.MessageFactory]:
    """A factory of the client."""
    async with aio.MessageFactory.on_cluster(client) as made:
        yield made


async def stored(cluster: MemoryCluster, topic: str = "out") -> list[bytes]:
    async with factory_of(cluster, seed=99) as other:
        consumer = await other.create_consumer()
        found = [await consumer.get(topic, number, 0, 8 << 20) for number in range(2)]
        return sorted(each.content for messages in found for each in messages)


async def member(factory: aio.MessageFactory, **config: Any) -> aio.MessageConsumer:
    wanted = {"group": "g", "max_wait_s": 0.5, "commit_interval_s": 1.0, **config}
    return await factory.create_consumer(ConsumerConfig(**wanted))


async def committed(cluster: MemoryCluster) -> int:
    async with factory_of(cluster, seed=97) as other:
        consumer = await other.create_consumer(ConsumerConfig(group="g"))
        return (await consumer.get_offset("t")).get(IN, 0)


async def left_in_doubt(
    cluster: MemoryCluster, client: ClusterClient, transaction: Any
) -> MemoryCoordinator:
    """Lose the answer to a commit, and ZooKeeper with it; return what is to be reconnected."""
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.lose_next_reply(coordinator)
    coordinator.cut = True
    with pytest.raises(TransactionInDoubt):
        await transaction.commit(3.0)
    return coordinator


async def test_what_is_refused_leaves_no_decision_node(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often offsets alone are tried that are too far ahead of a message that is held."""
    monkeypatch.setattr("vq.client.consumer.group.taken.AHEAD_MAX", 1)
    producer = await factory.create_producer()
    held, refused, done = asyncio.Event(), [], set()

    async def listener(message: Message) -> None:
        if message.content == ALL[0]:
            await held.wait()
        try:
            async with producer.transaction():
                await producer.send_offsets(consumer)
        except Busy:
            refused.append(message.content)
            raise
        done.add(message.content)

    consumer = await member(
        factory, mode="concurrent", max_attempts=1_000, retry_backoff=(0.1, 0.2), workers=16
    )
    await consumer.subscribe("t", listener=listener).start()
    await until(lambda: len(refused) > 50)
    assert len(await decisions(cluster)) <= 16  # as many as were under way at a time
    held.set()
    await until(lambda: len(done) == len(ALL))


async def test_what_cannot_be_prepared_leaves_no_decision_node(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try of a transaction with messages and offsets uses the node of the one before."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=0.5))
    refused: list[VqError] = []

    async def listener(message: Message) -> None:
        try:
            await (await transform(producer, consumer, [message])).commit()
        except VqError as error:
            refused.append(error)
            raise

    consumer = await member(factory, max_attempts=1_000, retry_backoff=(0.1, 0.2))
    with monkeypatch.context() as patch:
        patch.setattr("vq.broker.transactions.ledger.UNDECIDED_MAX", 0)
        await consumer.subscribe("t", listener=listener).start()
        await until(lambda: len(refused) > 20)
        assert len(await decisions(cluster)) <= 8  # one for each journal that was tried

    async def is_done() -> bool:
        return len(await stored(cluster)) == len(ALL)

    await until_true(is_done)


async def decisions(cluster: MemoryCluster) -> list[str]:
    """The paths of all decision nodes."""
    async with started(cluster, seed=96) as other:
        found = []
        for journal in range(8):
            parent = Decision.parent(journal)
            names = await children_or_none(other.coordinator, parent)
            found += [f"{parent}/{name}" for name in names]
        return found


async def transform(
    producer: aio.MessageProducer, consumer: aio.MessageConsumer, messages: list[Message]
) -> aio.Transaction:
    """Produce what follows from messages; return the transaction, not ended."""
    transaction = await producer.begin_transaction()
    for message in messages:
        await producer.send(Message("out", b"x" + message.content, key=message.content))
    await producer.send_offsets(consumer)
    return transaction


async def told(transaction: aio.Transaction) -> None:
    """Commit, and return once the journal knows it: its decision node is free again."""
    await transaction.commit()
    await transaction.commit()


# Without listeners --------------------------------------------------------------------------------
async def test_messages_and_offsets_are_committed_together(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    seen: list[bytes] = []
    while len(seen) < 10:
        messages = await consumer.get_many(4)
        transaction = await transform(producer, consumer, messages)
        with pytest.raises(InvalidState, match="belongs to a transaction"):
            await consumer.get_many(4, timeout=0)
        assert [each.offset for each in await transaction.commit()] == [-1] * len(messages)
        assert min(each.offset for each in await transaction.commit()) >= 0  # now it is stored
        assert await transaction.outcome() is TransactionState.COMMITTED
        seen += [each.content for each in messages]
        assert (await consumer.get_offset("t"))[IN] == messages[-1].next_offset
    assert seen == ALL
    assert await stored(cluster) == sorted(b"x" + each for each in seen)
    assert len(await decisions(cluster)) == 1  # used again
    await producer.close()
    assert await decisions(cluster) == []


async def test_what_is_rolled_back_comes_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    first = await consumer.get_many(4)
    transaction = await transform(producer, consumer, first)
    await asyncio.sleep(5)  # of virtual time: the ordinary commit does not pass them
    await transaction.rollback()
    assert (await consumer.get_offset("t"))[IN] == 0
    assert await consumer.get_many(4) == first
    assert await stored(cluster) == []


async def test_an_iteration_gives_its_message_to_the_transaction(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    seen = []
    async for message in consumer:
        seen.append(message.content)
        transaction = await transform(producer, consumer, [message])
        if len(seen) == 3:
            await transaction.rollback()
            continue
        await transaction.commit()
        assert (await consumer.get_offset("t"))[IN] == message.next_offset
        if message.content == ALL[-1]:
            break
    assert seen == [*ALL[:3], *ALL[2:]]
    assert await stored(cluster) == [b"x" + each for each in ALL]


async def test_offsets_without_messages_need_no_journal(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    messages = await consumer.get_many(10)
    async with producer.transaction():
        await producer.send_offsets(consumer)
    assert (await consumer.get_offset("t"))[IN] == messages[-1].next_offset
    journals = cluster.nodes["b1"].parts.journals.readers.all.values()
    assert not any([*each.ledger.listed(ended=True)] for each in journals)
    async with producer.transaction() as transaction:
        await producer.send_offsets(consumer)  # nothing is in hand
    assert await transaction.commit() == []


async def test_a_transaction_without_offsets_asks_zookeeper_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    producer = await factory.create_producer()
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    for turn in range(3):
        if turn == 1:  # what follows needs no session: it has no calls
            cluster.ensemble.disconnect(coordinator)
        async with producer.transaction():
            for key in (0, 1):
                await producer.send(Message("out", b"%d" % turn, key=key))
    cluster.ensemble.reconnect(coordinator)
    assert await stored(cluster) == [b"0", b"0", b"1", b"1", b"2", b"2"]


# With listeners -----------------------------------------------------------------------------------
@pytest.mark.parametrize("config", [{}, {"mode": "concurrent", "workers": 4}, {"mode": "keyed"}])
@pytest.mark.parametrize("batch_size", [1, 3])
async def test_a_listener_handles_each_message_once_whatever_it_raises(
    cluster: MemoryCluster, factory: aio.MessageFactory, config: dict[str, Any], batch_size: int
) -> None:
    """It fails before its commit, and behind it; or it returns without an end of it."""
    producer = await factory.create_producer()
    tries: dict[bytes, int] = {}

    async def listener(given: Any) -> None:
        messages = given if isinstance(given, list) else [given]
        first = messages[0].content
        tries[first] = tries.get(first, 0) + 1
        transaction = await transform(producer, consumer, messages)
        if tries[first] == 1 and int(first) % 3 == 0:
            return  # it is rolled back, and the messages come again
        if tries[first] == 1 and int(first) % 3 == 1:
            await transaction.rollback()
            raise LookupError("before")
        await transaction.commit()
        raise LookupError("behind")

    consumer = await member(factory, batch_size=batch_size, retry_backoff=(0.1, 1.0), **config)
    await consumer.subscribe("t", listener=listener).start()

    async def is_over() -> bool:
        return len(await stored(cluster)) >= 10

    await until_true(is_over)
    await asyncio.sleep(10)
    assert await stored(cluster) == [b"x" + each for each in ALL]
    await consumer.close()
    assert await committed(cluster) == 358


async def test_what_is_finished_ahead_is_committed_as_that(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The first message is held; the member's session ends, and the next one gets only that."""
    producer = await factory.create_producer()
    held = asyncio.Event()

    async def listener(message: Message) -> None:
        if message.content == ALL[0]:
            await held.wait()
        await (await transform(producer, consumer, [message])).commit()

    consumer = await member(factory, mode="concurrent", workers=4)
    await consumer.subscribe("t", listener=listener).start()

    async def is_done() -> bool:
        return len(await stored(cluster)) == 9

    await until_true(is_done)
    await asyncio.sleep(3)  # regular commits leave that as it is
    assert await committed(cluster) == 0
    coordinator = client_of_factory(factory).coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.disconnect(coordinator)
    seen = []

    async def second(message: Message) -> None:
        seen.append(message.content)

    async with factory_of(cluster, seed=5) as other:
        heir = await member(other, mode="concurrent")
        await heir.subscribe("t", listener=second).start()
        await until(lambda: bool(seen), timeout_s=100)
        await asyncio.sleep(10)
        assert seen == [ALL[0]]
        await heir.close()
    cluster.ensemble.reconnect(coordinator)
    held.set()


async def test_a_commit_names_so_many_messages_ahead_at_most(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vq.client.consumer.group.taken.AHEAD_MAX", 3)
    producer = await factory.create_producer()
    held, refused = asyncio.Event(), []

    async def listener(message: Message) -> None:
        if message.content == ALL[0]:
            await held.wait()
        try:
            await (await transform(producer, consumer, [message])).commit()
        except Busy as error:
            refused.append(error)
            raise

    held_up = {"on_failure": "hold", "retry_backoff": (0.5, 0.5)}
    consumer = await member(factory, mode="concurrent", workers=2, **held_up)
    await consumer.subscribe("t", listener=listener).start()
    await until(lambda: len(refused) > 3)
    assert len(await stored(cluster)) == 3
    held.set()

    async def is_done() -> bool:
        return len(await stored(cluster)) == 10

    await until_true(is_done)


# Who is late --------------------------------------------------------------------------------------
async def test_a_member_that_has_lost_its_partition_commits_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """Its session ends between read and commit, and another member has the partition."""
    producer = await factory.create_producer()
    zombie = (await member(factory)).subscribe("t")
    transaction = await transform(producer, zombie, await zombie.get_many(10))
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    async with factory_of(cluster, seed=5) as other:
        cluster.ensemble.disconnect(coordinator)
        heir = (await member(other)).subscribe("t")
        again = await heir.get_many(10)
        assert [each.content for each in again] == ALL
        cluster.ensemble.reconnect(coordinator)
        with pytest.raises((GenerationStale, SessionExpired)):
            await transaction.commit()
        assert await transaction.outcome() is TransactionState.ROLLED_BACK
        await told(await transform(await other.create_producer(), heir, again))
    await asyncio.sleep(100)
    assert await stored(cluster) == [b"x" + each for each in ALL]


async def test_a_group_that_is_set_back_meanwhile_refuses_the_transaction(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    transaction = await transform(producer, consumer, await consumer.get_many(4))
    known = await client.offsets.at("g", IN)
    assert known is not None
    await client.offsets.reset("g", IN, replace(known, offset=0))
    with pytest.raises(GenerationStale):
        await transaction.commit()
    assert await stored(cluster) == []


@pytest.mark.parametrize("fault", ["lose_next_reply", "lose_next_request"])
async def test_a_lost_answer_of_zookeeper_changes_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient, fault: str
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory, commit_interval_s=1000.0)).subscribe("t")
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    messages = await consumer.get_many(5)
    transaction = await transform(producer, consumer, messages)
    getattr(cluster.ensemble, fault)(coordinator)
    await told(transaction)
    assert (await consumer.get_offset("t"))[IN] == messages[-1].next_offset
    assert await stored(cluster) == [b"x" + each for each in ALL]


async def test_in_doubt_is_settled_by_another_commit(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """The answer is lost and ZooKeeper away: it is committed, and so says the next call."""
    producer = await factory.create_producer()
    consumer = (await member(factory, commit_interval_s=1000.0)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    transaction = await transform(producer, consumer, await consumer.get_many(5))
    coordinator = await left_in_doubt(cluster, client, transaction)
    with pytest.raises(InvalidState, match="belongs to a transaction"):
        await consumer.get_many(5, timeout=0)
    cluster.ensemble.reconnect(coordinator)
    await told(transaction)
    assert await consumer.get_many(5, timeout=0.1) == []
    assert await stored(cluster) == [b"x" + each for each in ALL]


async def test_doubt_does_not_stop_a_listener_that_needs_no_transaction_behind_it(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """Its own commits settle what is left: otherwise the window would be full for ever."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=3.0))
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    handled: list[bytes] = []

    async def listener(message: Message) -> None:
        handled.append(message.content)
        if message.content not in {b"0", b"1"} or handled.count(message.content) > 1:
            return
        transaction = await transform(producer, consumer, [message])
        if message.content == b"0":
            await told(transaction)
            return
        cluster.ensemble.lose_next_reply(coordinator)
        coordinator.cut = True
        asyncio.get_running_loop().call_later(6.0, cluster.ensemble.reconnect, coordinator)
        await transaction.commit()

    consumer = await member(factory, window_messages=4, retry_backoff=(0.1, 1.0))
    await consumer.subscribe("t", listener=listener).start()
    await until(lambda: handled[-1:] == ALL[-1:])
    await asyncio.sleep(3)
    assert handled == [b"0", b"1", *ALL[1:]]
    assert await committed(cluster) == 358
    assert await stored(cluster) == [b"x0", b"x1"]


async def test_offsets_go_on_when_the_journal_has_told_the_outcome(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """A rollback hears that it is committed; the next messages need no transaction."""
    producer = await factory.create_producer()
    consumer = (await member(factory, window_messages=6)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(2)))
    transaction = await transform(producer, consumer, await consumer.get_many(2))
    coordinator = await left_in_doubt(cluster, client, transaction)
    cluster.ensemble.reconnect(coordinator)
    with pytest.raises(TransactionRefused, match="committed"):
        await transaction.rollback()
    rest: list[bytes] = []
    for _ in range(4):
        rest += [each.content for each in await consumer.get_many(2, timeout=10)]
    assert rest == ALL[4:]
    await asyncio.sleep(3)
    assert await committed(cluster) == 358


async def test_the_journal_settles_what_its_producer_does_not_tell(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """It is cut off from the broker once ZooKeeper has decided; two seconds later all is there."""
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    transaction = await transform(producer, consumer, await consumer.get_many(5))
    (path,) = await decisions(cluster)
    async with started(cluster, seed=95, host="watcher") as watcher:
        await watcher.coordinator.get(path, watch=lambda _: cluster.network.cut("client", "b1"))
        places = await transaction.commit()
        assert [each.offset for each in places] == [-1] * 5
    await asyncio.sleep(2)
    async with factory_of(cluster, seed=99, host="reader") as other:
        reader = await other.create_consumer()
        found = [await reader.get("out", number, 0, 8 << 20) for number in range(2)]
        assert sum(map(len, found)) == 10
    cluster.network.heal()


async def test_a_producer_that_vanishes_before_the_decision_leaves_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """The journal takes the decision away, and the next member gets the messages again."""
    producer = await factory.create_producer(ProducerConfig(transaction_timeout_s=5.0))
    consumer = (await member(factory)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    transaction = await transform(producer, consumer, await consumer.get_many(5))
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.disconnect(coordinator)
    ending = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(1)
    journals = cluster.nodes["b1"].parts.journals.readers.all.values()
    assert sum(len(each.ledger.active) for each in journals) == 1
    ending.cancel()
    await asyncio.wait([ending])
    async with factory_of(cluster, seed=5, host="heir") as other:
        heir = (await member(other)).subscribe("t")
        again = await heir.get_many(10)
        assert [each.content for each in again] == ALL[5:]
        assert not any(each.ledger.active for each in journals)
        await told(await transform(await other.create_producer(), heir, again))
    assert await stored(cluster) == [b"x" + each for each in ALL]
    cluster.ensemble.reconnect(coordinator)


async def test_a_late_decision_meets_the_time_out(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    producer = await factory.create_producer(ProducerConfig(transaction_timeout_s=2.0))
    consumer = (await member(factory)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    transaction = await transform(producer, consumer, second := await consumer.get_many(5))
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.disconnect(coordinator)
    ending = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(6)
    cluster.ensemble.reconnect(coordinator)
    with pytest.raises(TransactionRefused, match="time-out of its offsets"):
        await ending
    assert await stored(cluster) == [b"x" + each for each in ALL[:5]]
    assert await consumer.get_many(5) == second
    await told(await transform(producer, consumer, second))
    assert await stored(cluster) == [b"x" + each for each in ALL]


async def test_an_operator_rolls_back_but_does_not_commit_for_zookeeper(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    transaction = await transform(producer, consumer, await consumer.get_many(5))
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.disconnect(coordinator)
    ending = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(1)
    async with factory_of(cluster, seed=95) as operator:
        with pytest.raises(TransactionRefused, match="only its producer"):
            await operator.admin.commit_transaction(transaction.number)
        await operator.admin.roll_back_transaction(transaction.number)
    cluster.ensemble.reconnect(coordinator)
    with pytest.raises(TransactionRefused):
        await ending
    assert len(await stored(cluster)) == 5


async def test_what_crashed_producers_left_is_swept(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a producer that has slept for so long makes another node."""
    monkeypatch.setattr(journal, "SWEEP_S", 5.0)
    monkeypatch.setattr(decision_nodes, "LEFT_AFTER_MS", 20_000)
    monkeypatch.setattr(with_offsets, "REUSED_WITHIN_S", 10.0)
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    await asyncio.sleep(15)
    assert len(await decisions(cluster)) == 1
    await asyncio.sleep(15)
    assert await decisions(cluster) == []
    await told(await transform(producer, consumer, await consumer.get_many(5)))
    assert await stored(cluster) == [b"x" + each for each in ALL]


@pytest.mark.parametrize("mode", ["orderly", "concurrent"])
async def test_a_task_that_outlives_its_listener_finishes_nothing(
    factory: aio.MessageFactory, mode: str
) -> None:
    """Its message is handled by then, and it has no other one."""
    producer = await factory.create_producer()
    told: list[VqError] = []
    tasks: list[asyncio.Task[None]] = []

    async def later() -> None:
        await asyncio.sleep(5)
        async with producer.transaction():
            with pytest.raises(InvalidState, match="had returned") as caught:
                await producer.send_offsets(consumer)
        told.append(caught.value)

    async def listener(_: Message) -> None:
        tasks.append(asyncio.create_task(later()))

    consumer = await member(factory, mode=mode)
    await consumer.subscribe("t", listener=listener).start()
    await until(lambda: len(told) == 10)
    await asyncio.gather(*tasks)


# Bad input ----------------------------------------------------------------------------------------
async def test_what_cannot_be_part_of_a_transaction_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await factory.create_producer()
    consumer = (await member(factory)).subscribe("t")
    with pytest.raises(InvalidState, match="no open transaction"):
        await producer.send_offsets(consumer)
    async with producer.transaction():
        with pytest.raises(InvalidState, match="not started"):
            await producer.send_offsets(consumer)
    everything = await member(factory, group="all", model="broadcasting", start_position="latest")
    everything.subscribe("t")
    await everything.start()
    async with producer.transaction():
        with pytest.raises(InvalidState, match="broadcasting"):
            await producer.send_offsets(everything)
    pushed = await member(factory, group="pushed")
    await pushed.subscribe("t", listener=lambda_of(asyncio.Event())).start()
    async with producer.transaction():
        with pytest.raises(InvalidState, match="by a listener of this consumer"):
            await producer.send_offsets(pushed)
    async with factory_of(cluster, seed=5) as other:
        foreign = await other.create_producer()
        await consumer.get_many(4)
        async with foreign.transaction():
            with pytest.raises(InvalidState, match="same MessageFactory"):
                await foreign.send_offsets(consumer)
    transaction = await producer.begin_transaction()
    assert len(await consumer.get_many(4)) == 4  # again: what send_offsets refuses is not handled
    await producer.send_offsets(consumer)
    await producer.send_offsets(consumer)  # again: it has them
    with pytest.raises(InvalidState, match="cannot be prepared"):
        await transaction.prepare()
    assert transaction.is_open
    monkeypatch.setattr(zookeeper_offsets, "REQUEST_BYTES_MAX", 100)
    with pytest.raises(BatchTooLarge, match="100 are allowed"):
        await transaction.commit()


def lambda_of(waits: asyncio.Event) -> Any:
    async def listener(_: Message) -> None:
        await waits.wait()

    return listener
