"""Whose a transaction is: others who may write to the same topics do not touch it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import google_crc32c
import pytest
from support.access import allow, believe_names, connect_as
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.client import factory_of

import vq
from vq import aio
from vq.broker.base.config import Authorization
from vq.client.ids import EPOCH_MS
from vq.errors import InvalidRequest, NotAuthorized, TransactionRefused, VqError
from vq.limits import ID_SEQUENCE_BITS, ID_SLOT_BITS
from vq.model import Message, TransactionState
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_error
from vq.reserved import TRANSACTIONS_TOPIC
from vq.testing.waiting import WAIT_S, until_true

pytestmark = pytest.mark.virtual_time

OPEN, PREPARED, COMMITTED = (
    TransactionState.OPEN,
    TransactionState.PREPARED,
    TransactionState.COMMITTED,
)
ROLLED_BACK, FORGOTTEN = TransactionState.ROLLED_BACK, TransactionState.FORGOTTEN
#: Alice and bob have the same rights; mallory has none.
RULES = ("allow user:alice write topic:t", "allow user:bob write topic:t")


@pytest.fixture
async def guarded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryCluster]:
    """A node that enforces rules, with topic ``t`` of two partitions."""
    believe_names(monkeypatch)
    async with memory_cluster() as made:
        await start(made)
        await made.create_topic("t", partitions=2)
        await allow(made, *RULES)
        yield made


async def start(cluster: MemoryCluster) -> None:
    await cluster.start(authorization=Authorization.ENFORCED)


async def connect(cluster: MemoryCluster, name: str) -> Client:
    return await connect_as(cluster, cluster.nodes["b1"], name)


async def error_of(
    asker: Client, place: int, number: int, state: int, **fields: Any
) -> VqError | None:
    """Return why a TRANSACT is refused."""
    header = wire.TransactRequest(
        topic=TRANSACTIONS_TOPIC, partition=place, transaction=number, state=int(state), **fields
    )
    frame = await asyncio.wait_for(asker.send(Command.TRANSACT, header), WAIT_S)
    return decode_error(frame.status, frame.header, 0) if frame.status else None


def journaled(cluster: MemoryCluster) -> tuple[int, int]:
    """Return where the only transaction is, and its number."""
    journals = cluster.nodes["b1"].parts.journals.readers.all
    ((place, number),) = (
        (channel.partition.partition, number)
        for channel, journal in journals.items()
        for number in journal.ledger.active
    )
    return place, number


async def producer_of(factory: aio.MessageFactory, **options: Any) -> aio.MessageProducer:
    config = vq.ProducerConfig(partitioner=lambda each, _: each.partition or 0, **options)
    return await factory.create_producer(config)


async def begin(producer: aio.MessageProducer) -> aio.Transaction:
    """Begin a transaction with messages for two partitions."""
    transaction = await producer.begin_transaction()
    for partition in range(2):
        await producer.send(Message("t", b"x", partition=partition))
    return transaction


@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart"])
async def test_who_may_write_to_the_same_topics_does_not_decide(
    guarded: MemoryCluster, restarted: bool
) -> None:
    """The journal has the user who began it, so another node knows that, too."""
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await producer_of(factory)
        transaction = await begin(producer)
        await transaction.prepare()
        place, number = journaled(guarded)
        if restarted:
            await guarded.nodes["b1"].stop()
            await start(guarded)
            await until_true(lambda: _knows(guarded, number))
            await allow(guarded, *RULES)
        for name in ("bob", "mallory", ""):
            client = await connect(guarded, name)
            for state in (OPEN, PREPARED, COMMITTED, ROLLED_BACK, FORGOTTEN):
                error = await error_of(client, place, number, state)
                assert isinstance(error, NotAuthorized), (name, state)
                assert name != "bob" or error.details["number"] == number
        assert len(await transaction.commit()) == 2


async def _knows(cluster: MemoryCluster, number: int) -> bool:
    journals = cluster.nodes["b1"].parts.journals.readers.all.values()
    return any(each.is_live and number in each.ledger.active for each in journals)


async def test_who_manages_the_cluster_decides_and_its_producer_is_told(
    guarded: MemoryCluster,
) -> None:
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await producer_of(factory)
        transaction = await begin(producer)
        await transaction.prepare()
        place, number = journaled(guarded)
        await allow(guarded, *RULES, "allow user:bob manage cluster")
        assert await error_of(await connect(guarded, "bob"), place, number, ROLLED_BACK) is None
        with pytest.raises(TransactionRefused):
            await transaction.commit()


async def test_a_transactional_id_is_for_all_who_may_write_it(guarded: MemoryCluster) -> None:
    """So a program may go on as another user; its epoch keeps the one before away."""
    shop = [f"allow user:{name} write transactional-id:shop" for name in ("alice", "bob")]
    await allow(guarded, *RULES, *shop)
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await producer_of(factory, transactional_id="shop")
        transaction = await begin(producer)
        await transaction.prepare()
        place, number = journaled(guarded)
        bob = await connect(guarded, "bob")
        assert isinstance(await error_of(bob, place, number, ROLLED_BACK), NotAuthorized)
        own = {"client": "shop", "client_epoch": producer._core.transactions.id.epoch}
        assert await error_of(bob, place, number, ROLLED_BACK, **own) is None


async def test_a_producer_group_decides_for_its_half_messages_alone(
    guarded: MemoryCluster,
) -> None:
    """Whoever may write to a group names it; that is no way to others' transactions."""
    await allow(guarded, *RULES, "allow user:mallory write group:g")
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await producer_of(factory)
        transaction = await begin(producer)
        await transaction.prepare()
        place, number = journaled(guarded)
        mallory = await connect(guarded, "mallory")
        checks: dict[str, Any] = {"by": "g", "checks": wire.TransactionChecks(group="g")}
        for state in (COMMITTED, ROLLED_BACK):
            error = await error_of(mallory, place, number, state, **checks)
            assert isinstance(error, TransactionRefused)
        error = await error_of(mallory, place, number, FORGOTTEN, **checks)
        assert isinstance(error, InvalidRequest)
        (foreseen,) = foreseen_numbers(guarded, number, [now_ms(guarded)], 1)
        error = await error_of(mallory, place, foreseen, ROLLED_BACK, **checks)
        assert isinstance(error, TransactionRefused)
        await transaction.commit()


async def test_who_may_write_nowhere_has_nothing_noted(guarded: MemoryCluster) -> None:
    """An end of a transaction that is not known is noted: its messages may be on their way."""
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await producer_of(factory)
        async with producer.transaction():  # the topic of transactions is made
            await begin_in(producer, 2)
        (number,) = foreseen_numbers(guarded, 0, [now_ms(guarded)], 1)
        for name in ("mallory", ""):
            error = await error_of(await connect(guarded, name), 0, number, ROLLED_BACK)
            assert isinstance(error, NotAuthorized)
            assert error.details["resource"] == "topic:*"
        assert await error_of(await connect(guarded, "bob"), 0, number, ROLLED_BACK) is None


# Numbers that are used before their owner uses them ----------------------------------------------
def now_ms(cluster: MemoryCluster) -> int:
    return cluster.ensemble.clock.wall_ms()


def foreseen_numbers(
    cluster: MemoryCluster, known: int, times_ms: Iterable[int], count: int
) -> list[int]:
    """Return the first numbers that a process has in some milliseconds, of which one is known."""
    slot = known & ((1 << ID_SLOT_BITS) - 1) << ID_SEQUENCE_BITS
    shift = ID_SLOT_BITS + ID_SEQUENCE_BITS
    return [(ms - EPOCH_MS) << shift | slot | n for ms in times_ms for n in range(count)]


@pytest.mark.parametrize("partitions", [1, 2], ids=["a batch", "the journal"])
async def test_numbers_that_others_have_used_first_keep_nobody_out(
    guarded: MemoryCluster, partitions: int
) -> None:
    """Whose number another user has taken begins its transaction with another one."""
    async with factory_of(guarded, client_id="user.alice") as factory:
        producer = await producer_of(factory)
        async with producer.transaction():  # the topic of transactions is made
            await begin_in(producer, 2)
        known = (await producer.send(Message("t", b"first", partition=0))).id
        at_ms = now_ms(guarded) + 2_000
        taken = foreseen_numbers(guarded, known, range(at_ms - 1, at_ms + 2), 8)
        bob = await connect(guarded, "bob")
        places = len(guarded.nodes["b1"].parts.journals.readers.all)
        for number in taken:
            if partitions == 1:
                body = message(b"x")
                put = wire.PutRequest(
                    topic="t", record_count=1, crc=google_crc32c.value(body), transaction_id=number
                )
                assert not (await bob.send(Command.PUT, put, body)).status
            for place in range(places):
                await error_of(bob, place, number, ROLLED_BACK)
        await asyncio.sleep((at_ms - now_ms(guarded)) / 1_000)
        async with producer.transaction() as transaction:
            await begin_in(producer, partitions)
        assert transaction._core.number not in taken
        assert now_ms(guarded) <= at_ms + 1_000


async def begin_in(producer: aio.MessageProducer, partitions: int) -> None:
    for partition in range(partitions):
        await producer.send(Message("t", b"x", partition=partition))
