"""Transactions that are prepared: they wait at the broker until a decision, whatever happens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of

from vq import aio
from vq.client.config import ProducerConfig
from vq.errors import InvalidState, ProducerFenced, TransactionRefused
from vq.model import Message, TransactionState

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """One node with a topic ``t`` of two partitions, and a client."""
    await cluster.start()
    await cluster.create_topic("t", partitions=2)
    async with factory_of(cluster) as made:
        yield made


async def stored(cluster: MemoryCluster) -> list[bytes]:
    async with factory_of(cluster, seed=99) as factory:
        consumer = await factory.create_consumer()
        found = [await consumer.get("t", number, 0, 8 << 20) for number in range(2)]
        return sorted(each.content for messages in found for each in messages)


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
