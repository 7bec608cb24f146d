"""Transactions that are prepared: they wait at the broker until a decision, whatever happens."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of, started
from support.late_clock import later

from vq import aio
from vq.broker.transactions import journal as journals
from vq.broker.transactions import journals as all_journals
from vq.broker.transactions import requests
from vq.broker.transactions.journal import Journal
from vq.broker.transactions.notes import Carried, PartPiece
from vq.client.config import ProducerConfig
from vq.coordination.topics.topics import describe_topic
from vq.errors import (
    InvalidState,
    ProducerFenced,
    TransactionInDoubt,
    TransactionRefused,
    VqError,
)
from vq.limits import KIB
from vq.model import Message, TopicPartition, TransactionState
from vq.operations.partitions import placements
from vq.reserved import TRANSACTIONS_TOPIC
from vq.store.log.log_config import LogConfig
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """One node with a topic ``t`` of two partitions, and a client."""
    await cluster.start()
    await cluster.create_topic("t", partitions=2)
    async with factory_of(cluster) as made:
        yield made


async def stored(cluster: MemoryCluster, *topics: str) -> list[bytes]:
    """Return the contents of all messages of topics of two partitions, in whatever range."""
    found = []
    async with factory_of(cluster, seed=99) as factory:
        consumer = await factory.create_consumer()
        for topic, number in itertools.product(topics or ("t",), range(2)):
            offset = 0
            while messages := await consumer.get(topic, number, offset, 8 << 20):
                found += [each.content for each in messages]
                offset = messages[-1].next_offset
    return sorted(found)


async def prepared(
    factory: aio.MessageFactory, **config: Any
) -> tuple[aio.MessageProducer, aio.Transaction]:
    producer = await factory.create_producer(ProducerConfig(**config))
    transaction = await producer.begin_transaction()
    for key in (0, 1):
        await producer.send(Message("t", b"%d" % key, key=key))
    await transaction.prepare()
    assert not transaction.is_open
    return producer, transaction


@pytest.mark.parametrize("commits", [True, False])
async def test_what_is_prepared_waits_for_its_decision_alone(
    cluster: MemoryCluster, factory: aio.MessageFactory, commits: bool
) -> None:
    """Not for its time-out; meanwhile its task has other transactions, and nothing is visible."""
    producer, transaction = await prepared(factory, transaction_timeout_s=1.0)
    await transaction.prepare()  # again: it is
    async with producer.transaction():
        await producer.send(Message("t", b"beside"))
    await asyncio.sleep(30)  # of virtual time
    assert await transaction.outcome() is TransactionState.PREPARED
    assert await stored(cluster) == [b"beside"]
    if commits:
        assert [each.offset >= 0 for each in await transaction.commit()] == [True, True]
        assert await stored(cluster) == [b"0", b"1", b"beside"]
        with pytest.raises(TransactionRefused, match="committed"):
            await transaction.rollback()
    else:
        await transaction.rollback()
        assert await stored(cluster) == [b"beside"]
        with pytest.raises(InvalidState, match="rolled back"):
            await transaction.commit()


async def test_a_take_over_keeps_what_is_prepared(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The node ends and comes back; the producer then decides as if nothing had been."""
    _, transaction = await prepared(factory)
    await cluster.stop()
    await cluster.start()
    assert await stored(cluster) == []
    await transaction.commit()
    assert await stored(cluster) == [b"0", b"1"]


async def test_whoever_takes_the_id_leaves_what_is_prepared(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its first owner cannot decide it any more, and does not say that it is rolled back."""
    _, transaction = await prepared(factory, transactional_id="billing")
    successor = await factory.create_producer(ProducerConfig(transactional_id="billing"))
    async with successor.transaction():
        await successor.send(Message("t", b"next"))
    for decide in (transaction.commit, transaction.rollback):
        with pytest.raises(ProducerFenced, match="is prepared"):
            await decide()
    assert await transaction.outcome() is TransactionState.PREPARED
    await factory.admin.commit_transaction(transaction.number)
    assert await stored(cluster) == [b"0", b"1", b"next"]


async def test_a_topic_that_is_deleted_meanwhile_takes_its_part_alone(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The commit holds: the other topics get theirs, and nothing waits for the one that is gone."""
    await cluster.create_topic("u", partitions=1)
    producer = await factory.create_producer()
    transaction = await producer.begin_transaction()
    for topic in ("t", "u"):
        await producer.send(Message(topic, b"0", key=0))
    await transaction.prepare()
    await factory.admin.delete_topic("u", now=True)
    await until(lambda: ("u", 0) not in cluster.nodes["b1"].parts.partitions.channels)
    assert [each.offset >= 0 for each in await transaction.commit()] == [True, False]
    assert await stored(cluster) == [b"0"]
    assert await factory.admin.list_transactions() == []


async def test_full_disks_delay_a_decision_or_what_follows_from_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A journal without space refuses the decision, and all stays prepared; a partition without
    space gets its part when there is some again."""
    await cluster.start(group="b2", disk_interval_s=0.5)
    await cluster.create_topic("w", partitions=2)
    producer = await factory.create_producer()
    transaction = await producer.begin_transaction()
    for topic in ("t", "w"):
        for key in range(4):
            await producer.send(Message(topic, b"%d" % key, key=key))
    await transaction.prepare()
    (found,) = await factory.admin.list_transactions()
    journal = TopicPartition(TRANSACTIONS_TOPIC, found.journal)
    async with cluster.admin() as coordinator:
        group = (await describe_topic(coordinator, journal.topic)).partitions[journal.partition]
    own = str(group.writer_group)
    set_free(cluster, own, 0.005)
    with pytest.raises(VqError) as refused:
        await transaction.commit(5.0)
    assert not isinstance(refused.value, TransactionInDoubt)
    assert await transaction.outcome() is TransactionState.PREPARED
    set_free(cluster, own, 0.9)
    set_free(cluster, "b2" if own == "b1" else "b1", 0.005)
    results = await transaction.commit(5.0)
    assert {each.offset >= 0 for each in results} == {True, False}
    assert await transaction.outcome() is TransactionState.COMMITTED
    for name in ("b1", "b2"):
        set_free(cluster, name, 0.9)
    await asyncio.sleep(10)
    assert await stored(cluster, "t", "w") == sorted([b"0", b"1", b"2", b"3"] * 2)


async def test_journal_and_partitions_move_between_groups_meanwhile(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Whoever has the journal then decides; the parts go where their partitions are then."""
    await cluster.start(group="b2")
    _, transaction = await prepared(factory)
    (found,) = await factory.admin.list_transactions()
    for topic, numbers in ((TRANSACTIONS_TOPIC, [found.journal]), ("t", [0, 1])):
        async with cluster.admin() as coordinator:
            view = await describe_topic(coordinator, topic)
        for number in numbers:
            to = "b2" if view.partitions[number].writer_group == "b1" else "b1"
            await factory.admin.move(await factory.admin.plan_moves(topic, [number], to))
    assert await transaction.outcome() is TransactionState.PREPARED
    await transaction.commit()
    assert await stored(cluster) == [b"0", b"1"]


async def test_what_is_prepared_outlives_the_range_of_a_journal_that_moved(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former group of brokers keeps its range for a while; a decision may take longer."""
    monkeypatch.setattr(all_journals, "KEPT_MS", 60_000)
    await cluster.start()
    await cluster.start(group="b2")
    await cluster.create_topic("t", partitions=2)
    async with factory_of(cluster) as factory:
        producer, transaction = await prepared(factory, transactional_id="billing")
        (found,) = await factory.admin.list_transactions()
        async with cluster.admin() as coordinator:
            view = await describe_topic(coordinator, TRANSACTIONS_TOPIC)
        old = view.partitions[found.journal].writer_group
        assert old is not None
        new = "b2" if old == "b1" else "b1"
        planned = await factory.admin.plan_moves(TRANSACTIONS_TOPIC, [found.journal], new)
        await factory.admin.move(planned)
        channel = cluster.nodes[old].parts.partitions.channels[TRANSACTIONS_TOPIC, found.journal]
        await until(lambda: channel.needed is None, timeout_s=600.0)
        begin = channel.start_offset
        await later(cluster.nodes[old], 2).look()
        assert channel.start_offset > begin, "retention has taken it"
        await cluster.nodes[new].stop()
        await cluster.start(new)
        assert await transaction.outcome() is TransactionState.PREPARED
        await transaction.commit()
        async with producer.transaction():  # its id is known, too
            await producer.send(Message("t", b"2", key=0))
        assert await stored(cluster) == [b"0", b"1", b"2"]


async def test_a_part_that_was_stored_before_a_move_is_not_stored_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its journal sends it again after a take-over. The group that has the partition now was not
    told who had sent what before the move, so the former group is asked."""
    await cluster.start(group="b2")
    producer = await factory.create_producer()
    async with producer.transaction():
        for key in range(8):
            await producer.send(Message("t", b"%d" % key, key=key))
    before = await stored(cluster)
    async with started(cluster, seed=98) as operator:
        for planned in await placements.plan_moves(operator, "t", [0, 1], "b2"):
            sealed = await placements.seal(operator, planned)
            await placements.place(operator, planned, sealed)  # an adopt that was lost
    await cluster.nodes["b1"].stop()
    await cluster.start()
    await asyncio.sleep(30)
    assert await factory.admin.list_transactions() == []
    assert await stored(cluster) == before


async def test_a_take_over_keeps_the_order_of_the_commits(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Also of what no broker was sent yet: not the order in which the transactions began."""
    producer = await factory.create_producer(ProducerConfig(transactional_id="billing"))
    async with producer.transaction():
        await producer.send(Message("t", b"the journal is there"))
    await cluster.start(group="b2")
    await cluster.create_topic("w", partitions=2)
    waiting = {}
    for number in (1, 2, 3):
        waiting[number] = await producer.begin_transaction()
        for key in range(8):
            await producer.send(Message("w", b"%d" % number, key=key))
        await waiting[number].prepare()
    await cluster.nodes["b2"].stop()
    for number in (2, 3, 1):
        offsets = [each.offset for each in await waiting[number].commit(1.5)]
        assert -1 in offsets
    await cluster.nodes["b1"].stop()
    await cluster.start()
    await cluster.start(group="b2")
    await asyncio.sleep(30)
    consumer = await factory.create_consumer()
    for partition in range(2):
        found = [each.content for each in await consumer.get("w", partition, 0, 8 << 20)]
        assert [each for each, _ in itertools.groupby(found)] == [b"2", b"3", b"1"]


def set_free(cluster: MemoryCluster, group: str, share: float) -> None:
    """Have the disk of a group's node show so much free space."""
    free = int(share * 1_000)
    cluster.disks[group].free_space = lambda path: (free, 1_000)  # type: ignore[method-assign]
    cluster.nodes[group].parts.disks.look_now()


# What lives long ----------------------------------------------------------------------------------
SMALL = LogConfig(block_bytes=64 * KIB)


async def fill(cluster: MemoryCluster, journal: int, up_to: int) -> None:
    """Make transactions, some of them in one journal, until its log begins behind an offset."""
    async with factory_of(cluster, seed=5) as factory:
        producer = await factory.create_producer()
        channel = cluster.nodes["b1"].parts.partitions.channels[TRANSACTIONS_TOPIC, journal]
        for _ in range(200):
            async with producer.transaction():
                for key in (0, 1):
                    await producer.send(Message("u", bytes(50_000), key=key))
            await later(cluster.nodes["b1"], 5).look()
            if channel.start_offset > up_to:
                return
    raise AssertionError(f"the log begins at {channel.start_offset}, needs {channel.needed}")


@pytest.mark.parametrize("ends_after", range(8))
async def test_what_is_prepared_does_not_keep_the_log_behind_it(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, ends_after: int
) -> None:
    """It is noted again in some batches; after each of them the node may end: it is begun anew.

    Who then reads the log from its new beginning has all of it, and delivers it.
    """
    monkeypatch.setattr(journals, "CARRY_BYTES", 64 * KIB)
    monkeypatch.setattr(journals, "CARRIED_BYTES", 16 * KIB)
    monkeypatch.setattr(requests, "PIECE_BYTES", 8 * KIB)
    appended, ended = 0, asyncio.Event()
    append = Journal._append

    def counted(self: Journal, notes: Sequence[Any], *args: Any) -> Any:
        nonlocal appended
        carries = [e for e in notes if isinstance(e, Carried) or getattr(e, "copy", 0)]
        if not carries:
            return append(self, notes, *args)
        if ended.is_set():
            return InvalidState("the node ends")
        appended += 1
        assert sum(len(e.data) for e in carries if isinstance(e, PartPiece)) <= 16 * KIB
        if appended == ends_after:
            ended.set()
        return append(self, notes, *args)

    monkeypatch.setattr(Journal, "_append", counted)
    await cluster.start(log_config=SMALL)
    for topic in ("t", "u"):
        await cluster.create_topic(topic, partitions=2)
    async with factory_of(cluster) as factory:
        producer = await factory.create_producer()
        transaction = await producer.begin_transaction()
        sizes = [50_000, 1_000, 50_000]
        for index, size in enumerate(sizes):
            await producer.send(Message("t", b"%d" % index + bytes(size), key=index % 2))
        await transaction.prepare()
        (found,) = await factory.admin.list_transactions()
        channel = cluster.nodes["b1"].parts.partitions.channels[TRANSACTIONS_TOPIC, found.journal]
        (first,) = [e.offset for e in journal_of(cluster, found.journal).ledger.active.values()]
        filling = asyncio.create_task(fill(cluster, found.journal, max(first, 0)))
        if ends_after:
            async with asyncio.timeout(600):
                await ended.wait()
            filling.cancel()
            await asyncio.sleep(0.001)
            await cluster.stop()
            ended.clear()
            await cluster.start(log_config=SMALL)
            await fill(cluster, found.journal, first)
        else:
            await filling
            assert appended >= 7, appended
        channel = cluster.nodes["b1"].parts.partitions.channels[TRANSACTIONS_TOPIC, found.journal]
        assert first < channel.start_offset
        await cluster.stop()
        await cluster.start(log_config=SMALL)
        (again,) = [e for e in await factory.admin.list_transactions() if e.number == found.number]
        assert again == found
        await transaction.commit()
        assert [(each[:1], len(each) - 1) for each in await stored(cluster)] == [
            (b"%d" % index, size) for index, size in enumerate(sizes)
        ]


def journal_of(cluster: MemoryCluster, number: int) -> Journal:
    readers = cluster.nodes["b1"].parts.journals.readers.all
    (found,) = [e for channel, e in readers.items() if channel.partition.partition == number]
    return found
