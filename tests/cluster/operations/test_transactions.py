"""What an operator sees of transactions and decides; and that nobody but vq uses their journal."""

import asyncio

import pytest
from support.broker import Client, MemoryCluster
from support.cases import case
from support.client import factory_of
from support.journals import JOURNAL, ask, transact

import vq
from vq import aio
from vq.broker.transactions.notes import TransactionStep, encode_note
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.errors import BatchFailed, InvalidArgument, InvalidRequest, NotMaster, TransactionRefused
from vq.model import Message, TopicPartition, TopicSettings, TransactionState
from vq.operations.base.who import who
from vq.operations.messages.transactions import look_at_journals
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import FenceRequest
from vq.reserved import TRANSACTIONS_TOPIC

pytestmark = pytest.mark.virtual_time

OPEN, PREPARED, COMMITTED, ROLLED_BACK, _ = list(TransactionState)[1:]


async def test_an_operator_sees_transactions_and_decides_them(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    """One that is prepared either way, one that is open only back; once, and who did it is told."""
    admin = factory.admin
    assert await admin.list_transactions(ended=True) == []
    with pytest.raises(TransactionRefused, match="transaction 7: none of the 0 journals knows it"):
        await admin.describe_transaction(7)
    fenced = await ask(client, Command.FENCE, FenceRequest(client="billing"))
    mine = {"client": "billing", "client_epoch": fenced.client_epoch}
    to = [TopicPartition("t", 0), TopicPartition("t", 1)]
    is_open = await transact(client, OPEN, *to, timeout_ms=900_000, **mine)
    prepared = await transact(client, PREPARED, *to, xid="their name")
    await asyncio.sleep(100)
    other = await transact(client, PREPARED, to[0])
    first, second, third = await admin.list_transactions()
    assert [each.number for each in (first, second, third)] == [is_open, prepared, other]
    assert (first.state, first.owner, first.xid) == (OPEN, "billing", None)
    assert first.owner_epoch == fenced.client_epoch
    assert first.ends_ms == first.begun_ms + 900_000
    assert (second.state, second.owner, second.xid) == (PREPARED, None, "their name")
    assert (second.ends_ms, second.decided_ms, second.by) == (None, None, None)
    assert [(e.topic, e.partition, e.messages, e.stored, e.offset) for e in second.parts] == [
        ("t", 0, 1, False, None),
        ("t", 1, 1, False, None),
    ]
    assert await admin.list_transactions(older_than_s=50) == [first, second]
    assert await admin.describe_transaction(prepared) == second

    with pytest.raises(TransactionRefused, match=r"is open.*can only be rolled back"):
        await admin.commit_transaction(is_open)
    done = await admin.roll_back_transaction(is_open)
    assert (done.state, done.by, done.stored) == (ROLLED_BACK, who(), False)
    for _ in range(2):
        done = await admin.commit_transaction(prepared)
        assert (done.number, done.state, done.by, done.stored) == (prepared, COMMITTED, who(), True)
    with pytest.raises(TransactionRefused, match=r"committed by .*@.*; it cannot be"):
        await admin.roll_back_transaction(prepared)
    await admin.roll_back_transaction(other)
    assert await admin.list_transactions() == []
    ended = {each.number: each for each in await admin.list_transactions(ended=True)}
    assert [e.state for e in ended.values()] == [ROLLED_BACK, COMMITTED, ROLLED_BACK]
    assert {each.by for each in ended.values()} == {who()}
    assert ended[prepared].stored
    assert all(each.offset is not None for each in ended[prepared].parts)
    consumer = await factory.create_consumer()
    for number in (0, 1):
        (message,) = await consumer.get("t", number, 0, 1 << 20)
        assert message.content == b"%d" % prepared
    with pytest.raises(TransactionRefused, match="none of the 8 journals knows it"):
        await admin.describe_transaction(prepared + 1)


async def test_an_operator_reads_the_messages_that_wait(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """With the ids that their producer knows, as long as they wait; nothing is decided by that."""
    await cluster.create_topic("u", partitions=2)
    listener = vq.TransactionListener(lambda *_: vq.UNKNOWN, lambda _: vq.UNKNOWN)
    config = ProducerConfig(producer_group="shop", transaction_listener=listener)
    producer = await factory.create_producer(config)
    sent = [
        Message("t", b"paid", key="order 9", tag="x", headers={"h": "v"}),
        Message("u", b"later", key=1, delay_s=3_600),
    ]
    number = (await producer.send_half(sent)).number
    first, second = await factory.admin.read_transaction(number)
    assert (first.topic, first.content, first.key, first.tag) == ("t", b"paid", "order 9", "x")
    assert (first.headers, first.offset) == ({"h": "v"}, -1)
    assert (second.topic, second.content) == ("u", b"later")
    assert second.deliver_at is not None
    assert first.id < second.id
    assert (await factory.admin.describe_transaction(number)).state is PREPARED
    await factory.admin.commit_transaction(number)
    for known in (number, 7):
        with pytest.raises(TransactionRefused, match=r"no message of it waits|none of the 8"):
            await factory.admin.read_transaction(known)
    consumer = await factory.create_consumer()
    (stored,) = [e for n in range(2) for e in await consumer.get("t", n, 0, 1 << 20)]
    assert (stored.id, stored.content) == (first.id, b"paid")
    many = await producer.begin_transaction()
    for each in range(5):
        await producer.send(Message("tu"[each % 2], bytes(1_000_000), key=each))
    await many.prepare()
    with pytest.raises(TransactionRefused, match="at most 3670016 are told"):
        await factory.admin.read_transaction(many.number)


async def test_a_list_is_read_in_parts_that_answers_have_room_for(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    """However many partitions each transaction has messages for, and however long their names."""
    to = [TopicPartition("n" * 200, number) for number in range(300)]
    numbers = [await transact(client, OPEN, *to) for _ in range(20)]
    found = await factory.admin.list_transactions()
    assert [each.number for each in found] == numbers
    assert {len(each.parts) for each in found} == {300}


async def test_what_the_journals_of_a_group_that_is_up_have_is_shown_and_decided(
    two_groups: MemoryCluster,
) -> None:
    """While the other group is down: an operator acts just then."""
    async with factory_of(two_groups) as factory:
        admin = factory.admin
        core = admin.cluster
        prepared = await transact(core, PREPARED, TopicPartition("t", 1))
        await two_groups.nodes["b1"].stop()
        with pytest.raises(NotMaster):
            await admin.list_transactions()
        found, silent = await look_at_journals(core, ended=False, kept=False, older_than_s=0)
        assert [each.number for each in found] == [prepared]
        assert len(silent) == 4
        assert (await admin.describe_transaction(prepared)).journal == JOURNAL.partition
        with pytest.raises(NotMaster):
            await admin.describe_transaction(prepared + 1)  # nobody knows: it may be there
        assert (await admin.roll_back_transaction(prepared)).state is ROLLED_BACK


async def test_nobody_sends_to_the_journal_or_changes_its_partitions(
    cluster: MemoryCluster, client: ClusterClient, factory: aio.MessageFactory
) -> None:
    """It is in no list that does not ask for it, and settings can be changed as of any topic."""
    await client.track_internal(TRANSACTIONS_TOPIC)
    admin = factory.admin
    assert [each.name for each in await admin.list_topics()] == ["t"]
    known = await admin.list_topics(reserved=True)
    assert TRANSACTIONS_TOPIC in {each.name for each in known}
    with pytest.raises(InvalidArgument, match="reserved"):
        await admin.create_topic(TRANSACTIONS_TOPIC, TopicSettings(), if_not_exists=True)
    producer = await factory.create_producer()

    async def in_transaction() -> None:
        async with producer.transaction():
            await producer.send(Message(TRANSACTIONS_TOPIC, b"x"))

    plain = Message(TRANSACTIONS_TOPIC, b"x")
    for number, send in enumerate(
        (
            lambda: producer.publish(TRANSACTIONS_TOPIC),
            lambda: producer.send(plain),
            lambda: producer.send_batch([plain]),
            lambda: producer.send(Message(TRANSACTIONS_TOPIC, b"x", delay_s=1)),
            in_transaction,
        )
    ):
        with case(number), pytest.raises((InvalidArgument, BatchFailed), match="reserved"):
            await send()
    raw = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    note = encode_note(TransactionStep(1, 1, COMMITTED, "me", 1))
    with pytest.raises(InvalidRequest, match="only brokers"):
        await raw.put(*JOURNAL, [note])
    with pytest.raises(InvalidRequest, match="only brokers"):
        await transact(client, OPEN, JOURNAL)

    with pytest.raises(InvalidArgument, match="gets no more partitions"):
        await admin.add_partitions(TRANSACTIONS_TOPIC, 1)
    with pytest.raises(InvalidArgument, match="gets no more partitions"):
        await admin.alter_topic(TRANSACTIONS_TOPIC, partitions=9, retention_hours=5)
    for now in (False, True):
        with pytest.raises(InvalidArgument, match="nowhere else"):
            await admin.delete_topic(TRANSACTIONS_TOPIC, now=now)
    before = (await admin.get_topic(TRANSACTIONS_TOPIC)).settings
    assert (before.partitions, before.retention_hours) == (8, 1)
    altered = await admin.alter_topic(TRANSACTIONS_TOPIC, partitions=8, retention_hours=5)
    assert altered.settings.retention_hours == 5
