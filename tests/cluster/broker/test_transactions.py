"""Transactions: all messages or none, in order, whoever leads, fails or comes too late."""

import asyncio
import contextvars
import gc
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.broker import Client, MemoryCluster
from support.client import factory_of
from support.producers import core_of

from vq import aio
from vq.broker.transactions import transactional_ids
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.coordination.topics.topics import change_settings, delete_topic, describe_topic
from vq.errors import (
    BatchTooLarge,
    InvalidArgument,
    InvalidState,
    NotSent,
    ProducerFenced,
    TransactionInDoubt,
    TransactionRefused,
)
from vq.model import Message, SendResult, TransactionState
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import TransactRequest
from vq.reserved import TRANSACTIONS_TOPIC
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """One node with topics ``t`` and ``u`` of two partitions, and a client."""
    await cluster.start()
    for topic in ("t", "u"):
        await cluster.create_topic(topic, partitions=2)
    async with factory_of(cluster) as made:
        yield made


async def stored(cluster: MemoryCluster, *topics: str, partitions: int = 2) -> list[list[bytes]]:
    """Return the contents of each partition of some topics, read by a client of its own."""
    async with factory_of(cluster, seed=99) as factory:
        consumer = await factory.create_consumer()
        return [
            [each.content for each in await consumer.get(topic, number, 0, 8 << 20)]
            for topic in topics
            for number in range(partitions)
        ]


async def all_stored(cluster: MemoryCluster, *topics: str) -> list[bytes]:
    return sorted(itertools.chain.from_iterable(await stored(cluster, *topics)))


async def test_messages_of_a_transaction_are_stored_together(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """In any topics and partitions, in the order of the sends; the results say where each is."""
    producer = await factory.create_producer()
    async with producer.transaction() as transaction:
        placeholder = await producer.send(Message("t", b"1", key="a"))
        future = await producer.send_async(Message("u", b"2", tag="x", headers={"h": "v"}))
        assert [e.offset for e in await producer.send_batch([Message("t", b"3", key="a")])] == [-1]
        await producer.send_oneway(Message("u", b"4"))
        assert await all_stored(cluster, "t", "u") == []
        assert not future.done()
    results = await transaction.commit()  # again: the same
    assert (placeholder.offset, placeholder.id) == (-1, results[0].id)
    assert await future == results[1]
    assert await transaction.outcome() is TransactionState.COMMITTED
    found = await stored(cluster, "t", "u")
    assert sorted(map(tuple, found)) == [(), (), (b"1", b"3"), (b"2", b"4")]
    consumer = await factory.create_consumer()
    for topic, result, content in zip("tutu", results, (b"1", b"2", b"3", b"4"), strict=True):
        (message,) = (await consumer.get(topic, result.partition, result.offset, 1 << 20))[:1]
        assert (message.content, message.id, message.offset) == (content, result.id, result.offset)


async def test_a_transaction_that_is_rolled_back_stores_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """By its block that raises, or by a call; what is sent beside it goes on."""
    producer = await factory.create_producer()
    futures = []

    async def fails() -> None:
        async with producer.transaction():
            futures.append(await producer.send_async(Message("t", b"1")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    await producer.begin_transaction()
    futures.append(await producer.send_async(Message("t", b"2")))
    await producer.rollback()
    for future in futures:
        with pytest.raises(NotSent, match="rolled back"):
            await future
    await producer.send(Message("t", b"3"))
    assert await all_stored(cluster, "t") == [b"3"]
    with pytest.raises(InvalidState, match="no open transaction"):
        await producer.commit()


async def test_a_batch_belongs_to_the_transaction_as_single_sends_do(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Of topics that are published or not; one message that is refused adds none of the call."""
    producer = await factory.create_producer()
    async with producer.transaction() as transaction:
        messages = [Message("tu"[number % 2], b"%d" % number, key="a") for number in range(6)]
        placed = await producer.send_batch(messages)
        again = await producer.send_batch(messages[:2])
        with pytest.raises(InvalidArgument):
            await producer.send_batch([*messages, Message("t", "text")])  # type: ignore[arg-type]
        assert [each.offset for each in (*placed, *again)] == [-1] * 8
    results = await transaction.commit()
    assert [(e.partition, e.id) for e in results] == [
        (e.partition, e.id) for e in (*placed, *again)
    ]
    assert sorted(await all_stored(cluster, "t", "u")) == sorted(
        [b"0", b"1", *b"0 1 2 3 4 5".split()]
    )


async def test_an_open_transaction_holds_back_nobody(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Other tasks of the same producer send and read beside it; it has one transaction a task."""
    producer = await factory.create_producer()
    await producer.publish("t")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def in_transaction() -> None:
        async with producer.transaction():
            await producer.send(Message("t", b"in", key="k"))
            with pytest.raises(InvalidState, match="already"):
                await producer.begin_transaction()
            begun.set()
            await go_on.wait()

    task = asyncio.create_task(in_transaction())
    await begun.wait()
    await producer.send(Message("t", b"beside", key="k"))
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("t")
    assert [e.content for e in await consumer.get_many(10)] == [b"beside"]
    go_on.set()
    await task
    assert [e.content for e in await consumer.get_many(10)] == [b"in"]


async def test_a_large_transaction_takes_several_requests(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Each partition gets its messages as one batch; what would be too much is refused at once."""
    producer = await factory.create_producer()
    content = bytes(900_000)
    async with producer.transaction():
        for number in range(8):
            await producer.send(Message("t" if number % 2 else "u", content))
        with pytest.raises(BatchTooLarge, match="4194304"):
            await producer.send(Message("t", content))
    assert sorted(map(len, await stored(cluster, "t", "u"))) == [0, 0, 4, 4]


async def test_a_take_over_at_any_moment_leaves_no_half(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The next master finds in the journal what is decided, and delivers it once."""
    second = await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    producer = await factory.create_producer()
    done: list[list[SendResult]] = []

    async def transact(number: int) -> None:
        async with producer.transaction() as transaction:
            for topic in ("t", "u"):
                for key in ("a", "b", "c"):
                    await producer.send(Message(topic, b"%03d" % number, key=key))
        done.append(await transaction.commit())

    nodes = {"n1": cluster.nodes["b1"], "n2": second}
    for kill in ("n1", "n2", "n1"):
        tasks = [asyncio.create_task(transact(len(done) + number)) for number in range(20)]
        await until(lambda: bool(done))
        other = "n2" if kill == "n1" else "n1"
        await nodes[kill].stop()
        await asyncio.gather(*tasks)
        nodes[kill] = await cluster.start(node=kill)
        await cluster.until_in_sync(kill, other)
    found = await all_stored(cluster, "t", "u")
    numbers = set(found)
    assert len(done) == 60
    assert all(found.count(number) % 6 == 0 for number in numbers)
    assert len(found) == 360


async def test_a_transactional_id_fences_its_predecessor(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """What that has open is rolled back, and it can commit nothing any more."""
    config = ProducerConfig(transactional_id="billing")
    first = await factory.create_producer(config)
    async with first.transaction():
        await first.send(Message("t", b"1"))
    zombie = await first.begin_transaction()
    await first.send(Message("t", b"zombie"))
    second = await factory.create_producer(config)

    async def takes_over() -> None:
        async with second.transaction():
            await second.send(Message("t", b"2"))

    await asyncio.create_task(takes_over())
    with pytest.raises(ProducerFenced, match="billing"):
        await zombie.commit()
    with pytest.raises(ProducerFenced):
        await first.begin_transaction()
    assert await all_stored(cluster, "t") == [b"1", b"2"]


async def test_an_id_that_was_forgotten_fences_its_last_owner(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes back after all that time is told, whether it is known now who has the id or not."""
    monkeypatch.setattr(transactional_ids, "CLIENT_KEPT_MS", 600_000)
    config = ProducerConfig(transactional_id="billing")
    sleeper = await factory.create_producer(config)

    async def transact(producer: aio.MessageProducer, content: bytes) -> None:
        async with producer.transaction():
            await producer.send(Message("t", content))

    await transact(sleeper, b"1")
    await asyncio.sleep(900)  # of virtual time
    second = await factory.create_producer(config)
    await asyncio.create_task(transact(second, b"2"))
    with pytest.raises(ProducerFenced, match="billing"):
        await asyncio.create_task(transact(sleeper, b"zombie"))
    await asyncio.create_task(transact(second, b"3"))
    await asyncio.sleep(900)
    with pytest.raises(TransactionRefused, match="nobody has used it"):
        await asyncio.create_task(transact(second, b"zombie"))
    assert await all_stored(cluster, "t") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("topics", ["t", "tu"], ids=["one partition", "several"])
async def test_an_outcome_that_is_lost_is_settled(
    cluster: MemoryCluster, factory: aio.MessageFactory, topics: str
) -> None:
    """The error names the transaction; to ask, or to commit again, tells what became of it."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=3))
    async with producer.transaction():
        for topic in topics:
            await producer.send(Message(topic, b"0"))
    transaction = await producer.begin_transaction()
    for topic in topics:
        future = await producer.send_async(Message(topic, b"1"))
    cluster.network.cut("b1", "client")
    with pytest.raises(TransactionInDoubt) as caught:
        await transaction.commit()
    assert caught.value.details["transaction"] == transaction.number > 0
    with pytest.raises(TransactionInDoubt):
        await future
    cluster.network.heal("b1", "client")
    assert await transaction.outcome() is TransactionState.COMMITTED
    results = await transaction.commit()
    assert all(each.offset >= 0 for each in results)
    assert await all_stored(cluster, *topics) == sorted([b"0", b"1"] * len(topics))
    with pytest.raises(TransactionRefused, match="committed"):
        await transaction.rollback()


async def test_an_outcome_is_told_by_a_topic_that_takes_less_by_now(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A batch that is stored is recognised, also if it would be refused as a new one."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=3))
    large = bytes(5_000)
    async with producer.transaction():
        await producer.send(Message("t", large, key=1))
    transaction = await producer.begin_transaction()
    await producer.send(Message("t", large, key=1))
    cluster.network.cut_one_way("b1", "client")
    with pytest.raises(TransactionInDoubt):
        await transaction.commit()
    async with cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        await change_settings(admin, "t", replace(view.settings, max_message_bytes=1_000))
    await asyncio.sleep(5)
    cluster.network.heal()
    (place,) = await transaction.commit()
    assert place.offset > 0
    assert await all_stored(cluster, "t") == [large, large]


async def test_a_commit_that_is_in_doubt_stays_so_until_somebody_knows(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """That a later try reaches nobody, or that nobody remembers it, does not roll it back."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=3))
    async with producer.transaction():
        for topic in ("t", "u"):
            await producer.send(Message(topic, b"0"))
    transaction = await producer.begin_transaction()
    for topic in ("t", "u"):
        await producer.send(Message(topic, b"1"))
    cluster.network.cut("b1", "client")
    with pytest.raises(TransactionInDoubt):
        await transaction.commit()
    await cluster.nodes["b1"].stop()
    cluster.network.heal("b1", "client")
    for end in (transaction.commit, transaction.rollback):
        with pytest.raises(TransactionInDoubt):
            await end()
    await cluster.start()
    await transaction.commit(30)
    assert await all_stored(cluster, "t", "u") == [b"0", b"0", b"1", b"1"]


async def test_a_producer_that_closes_rolls_back_what_is_open(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for ever: not for a message, nor for one whose commit was cancelled."""
    producer = await factory.create_producer()
    async with producer.transaction():
        for topic in ("t", "u"):
            await producer.send(Message(topic, b"0"))
    transaction = await producer.begin_transaction()
    futures = [await producer.send_async(Message(topic, b"1")) for topic in ("t", "u")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await transaction.commit()
    still_open = await producer.begin_transaction()
    last = await producer.send_async(Message("t", b"2"))
    caplog.clear()
    await producer.close()
    (said,) = [each.getMessage() for each in caplog.records if "rolled back" in each.getMessage()]
    assert "transactions=1 messages=1" in said
    with pytest.raises(NotSent, match="rolled back"):
        await last
    for future in futures:
        with pytest.raises(TransactionInDoubt):
            await future
    with pytest.raises(NotSent, match="closed"):
        await still_open.commit()
    with pytest.raises(InvalidState):
        await producer.begin_transaction()
    total = producer.metrics().total
    assert (total.messages_unknown, total.messages_refused) == (2, 1)
    assert await all_stored(cluster, "t", "u") in ([b"0", b"0"], [b"0", b"0", b"1", b"1"])


async def test_a_commit_is_known_although_a_partition_takes_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It is decided, and stored later: it is no doubt, whatever time the application gives."""
    await cluster.start(group="b2")
    await cluster.create_topic("w", partitions=2)
    producer = await factory.create_producer()

    async def transact(content: bytes) -> list[SendResult]:
        transaction = await producer.begin_transaction()
        for topic, key in itertools.product(("t", "w"), "abcd"):
            await producer.send(Message(topic, content, key=key))
        return await transaction.commit(1.5)

    assert all(each.offset >= 0 for each in await transact(b"0"))
    await cluster.nodes["b2"].stop()
    offsets = [each.offset for each in await transact(b"1")]
    assert -1 in offsets
    assert max(offsets) > 0
    await cluster.start(group="b2")
    await asyncio.sleep(15)
    assert (await all_stored(cluster, "t", "w")).count(b"1") == 8


async def test_tasks_that_begin_at_once_share_a_transactional_id(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It is taken once: none of them fences another one."""
    producer = await factory.create_producer(ProducerConfig(transactional_id="billing"))

    async def transact() -> list[SendResult]:
        transaction = await producer.begin_transaction()
        for topic in ("t", "u"):
            await producer.send(Message(topic, b"1"))
        return await transaction.commit()

    results = await asyncio.gather(*[asyncio.create_task(transact()) for _ in range(5)])
    assert all(each.offset >= 0 for found in results for each in found)
    journals = cluster.nodes["b1"].parts.journals.readers.all.values()
    taken_s = cluster.ensemble.clock.wall_ms() // 1_000
    assert sum(each.ledger.ids.epoch_of("billing") for each in journals) == taken_s


async def test_a_late_request_of_an_ended_transaction_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It is never taken for a new one: the first decision holds."""
    producer = await factory.create_producer()
    async with producer.transaction() as transaction:
        await producer.send(Message("t", b"1"))
        await producer.send(Message("u", b"1"))
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    number = transaction.number
    (partition,) = [
        int(each.partition.partition)
        for each, journal in cluster.nodes["b1"].parts.journals.readers.all.items()
        if number in [e.number for e in journal.ledger.listed(ended=True)]
    ]

    async def ask(state: TransactionState, **fields: int) -> int:
        request = TransactRequest(
            topic=TRANSACTIONS_TOPIC,
            partition=partition,
            state=int(state),
            **{"transaction": number, **fields},
        )
        header, _ = await client.call(Command.TRANSACT, request)
        return int(header.state)

    assert await ask(TransactionState.COMMITTED) == TransactionState.COMMITTED
    assert await ask(TransactionState.UNKNOWN) == TransactionState.COMMITTED
    for state in (TransactionState.ROLLED_BACK, TransactionState.OPEN, TransactionState.PREPARED):
        with pytest.raises(TransactionRefused, match="committed"):
            await ask(state)
    assert await ask(TransactionState.ROLLED_BACK, transaction=number + 1) == 4
    with pytest.raises(TransactionRefused, match="rolled back"):
        await ask(TransactionState.COMMITTED, transaction=number + 1)
    assert await all_stored(cluster, "t") == [b"1"]


async def test_parts_of_a_topic_that_is_deleted_are_for_nobody(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The others are stored; a topic of that name that is made later does not get them."""
    producer = await factory.create_producer()
    transaction = await producer.begin_transaction()
    await producer.send(Message("t", b"1"))
    await producer.send(Message("u", b"2"))
    async with cluster.admin() as coordinator:
        await delete_topic(coordinator, "u")
    await until(lambda: "u" not in {e.topic for e in cluster.nodes["b1"].parts.partitions.channels})
    await cluster.create_topic("v", partitions=2)
    results = await transaction.commit()
    assert [each.offset >= 0 for each in results] == [True, False]
    assert await all_stored(cluster, "t") == [b"1"]
    assert cluster.nodes["b1"].parts.journals.counts.undeliverable == 1


async def test_time_ends_a_transaction(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    """It is rolled back, and the error says which setting bounds it."""
    producer = await factory.create_producer(ProducerConfig(transaction_timeout_s=5))
    transaction = await producer.begin_transaction()
    await producer.send(Message("t", b"1"))
    await asyncio.sleep(6)
    with pytest.raises(TransactionRefused, match="transaction_timeout_s"):
        await transaction.commit()
    assert await all_stored(cluster, "t") == []


async def test_a_commit_that_is_cancelled_ends_the_messages(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """They are in doubt, at once; who keeps the transaction may commit it again."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=3))
    async with producer.transaction():
        for topic in ("t", "u"):
            await producer.send(Message(topic, b"0"))
    transaction = await producer.begin_transaction()
    futures = [await producer.send_async(Message(topic, b"1")) for topic in ("t", "u")]
    cluster.network.cut("b1", "client")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await transaction.commit()
    for future in futures:
        with pytest.raises(TransactionInDoubt, match="interrupted"):
            await asyncio.wait_for(future, 1)
    cluster.network.heal("b1", "client")
    assert len(await transaction.commit(30)) == 2
    assert (await all_stored(cluster, "t", "u")).count(b"1") == 2
    assert producer.metrics().total.messages_unknown == 2


async def test_what_is_in_doubt_is_kept_by_nobody_but_the_application(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The producer of a service that goes on trying while its broker is away does not grow."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=1))
    async with producer.transaction():
        for topic in ("t", "u"):
            await producer.send(Message(topic, b"0"))
    cluster.network.cut("b1", "client")

    async def transact() -> None:
        async with producer.transaction():
            for topic in ("t", "u"):
                await producer.send_oneway(Message(topic, bytes(100_000)))

    for _ in range(5):
        with pytest.raises(TransactionInDoubt):
            await asyncio.create_task(transact())
    cluster.network.heal("b1", "client")
    assert not core_of(producer).transactions._unended
    assert not core_of(producer).transactions.open


@pytest.mark.parametrize("ends", ["commits", "rolls back", "begins another one", "block"])
async def test_time_ends_a_transaction_in_its_producer(
    factory: aio.MessageFactory, cluster: MemoryCluster, ends: str
) -> None:
    """Its messages have their outcome then; what its task sends is refused until that ends it."""
    producer = await factory.create_producer(ProducerConfig(transaction_timeout_s=5))
    transaction = await producer.begin_transaction()
    late = await producer.send_async(Message("t", b"1"))
    await asyncio.sleep(4)
    in_time = await asyncio.create_task(_begun(producer), context=contextvars.Context())
    await asyncio.sleep(1.5)
    assert not transaction.is_open
    assert transaction.decision is TransactionState.ROLLED_BACK
    with pytest.raises(TransactionRefused, match="longer than transaction_timeout_s"):
        await asyncio.wait_for(late, 1)
    with pytest.raises(TransactionRefused, match="longer than transaction_timeout_s"):
        await producer.send(Message("t", b"not outside of it"))
    if ends == "commits":
        with pytest.raises(TransactionRefused, match="longer than transaction_timeout_s"):
            await producer.commit()
    elif ends == "rolls back":
        await producer.rollback()
    elif ends == "block":
        with pytest.raises(TransactionRefused, match="longer than transaction_timeout_s"):
            async with transaction:
                pass
    else:
        await (await producer.begin_transaction()).rollback()
    await producer.send(Message("t", b"plain"))
    assert in_time.is_open
    assert len(await in_time.commit()) == 1
    assert await all_stored(cluster, "t") == [b"in time", b"plain"]
    assert bool(core_of(producer).transactions.open) is (ends == "begins another one")  # kept above


async def _begun(producer: aio.MessageProducer) -> aio.Transaction:
    transaction = await producer.begin_transaction()
    await producer.send(Message("t", b"in time"))
    return transaction


async def test_transactions_that_nobody_ends_are_not_kept(factory: aio.MessageFactory) -> None:
    """As of handlers of requests that have failed: their time ends them, and nothing is left."""
    producer = await factory.create_producer(ProducerConfig(transaction_timeout_s=5))
    transactions = core_of(producer).transactions
    for _ in range(2):
        for _ in range(10):
            contextvars.Context().run(transactions.begin)
        assert len(transactions.open) == len(transactions._unended) == 10
        await asyncio.sleep(6)
        gc.collect()
        assert not transactions._unended
        assert not transactions.open


async def test_a_block_whose_producer_was_closed_does_not_end_in_silence(
    factory: aio.MessageFactory, cluster: MemoryCluster
) -> None:
    """Nobody believes that it is committed."""
    producer = await factory.create_producer()

    async def transact() -> None:
        async with producer.transaction():
            await producer.send_oneway(Message("t", b"1"))
            await asyncio.create_task(producer.close())

    with pytest.raises(NotSent, match="rolled back"):
        await transact()
    assert await all_stored(cluster, "t") == []
