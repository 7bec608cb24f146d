"""The two-phase methods of PEP 249: whoever has the xid ends what any producer has prepared."""

from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import factory_of

from vq import aio
from vq.client.config import ProducerConfig
from vq.errors import InvalidArgument, InvalidState, TransactionInDoubt, TransactionRefused
from vq.model import Message, TransactionState, Xid

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def producer(cluster: MemoryCluster) -> AsyncIterator[aio.MessageProducer]:
    async with factory_of(cluster) as factory:
        yield await factory.create_producer()


@pytest.fixture
async def other(cluster: MemoryCluster) -> AsyncIterator[aio.MessageProducer]:
    """Of another process, after the first one has crashed."""
    async with factory_of(cluster, seed=7) as factory:
        yield await factory.create_producer()


async def stored(cluster: MemoryCluster) -> list[bytes]:
    async with factory_of(cluster, seed=99) as factory:
        consumer = await factory.create_consumer()
        found = [await consumer.get("t", number, 0, 1 << 20) for number in range(2)]
        return sorted(each.content for messages in found for each in messages)


async def begun(producer: aio.MessageProducer, gtrid: str = "order 7/ä") -> Xid:
    xid = producer.xid(7, gtrid, "vq")
    await producer.tpc_begin(xid)
    for key in (0, 1):
        await producer.send(Message("t", b"%d" % key, key=key))
    return xid


async def test_what_is_prepared_is_recovered_and_ended_by_another_process(
    cluster: MemoryCluster, producer: aio.MessageProducer, other: aio.MessageProducer
) -> None:
    """As often as it likes; what was decided otherwise is told. Brokers may end in between."""
    first = await begun(producer)
    await producer.tpc_prepare()
    second = await begun(producer, "order 8")
    await producer.tpc_prepare()
    assert await stored(cluster) == []
    await cluster.stop()
    await cluster.start()
    assert sorted(await other.tpc_recover()) == sorted([first, second])
    assert isinstance(first, Xid)
    for _ in range(2):
        await other.tpc_commit(first)
        await other.tpc_rollback(tuple(second))  # type: ignore[arg-type]
    assert await other.tpc_recover() == []
    assert await stored(cluster) == [b"0", b"1"]
    with pytest.raises(TransactionRefused, match="is committed; it cannot be rolled back"):
        await other.tpc_rollback(first)
    with pytest.raises(TransactionRefused, match="is rolled back; it cannot be committed"):
        await producer.tpc_commit(second)
    await producer.tpc_commit(first)  # its own one, which it did not know to be committed
    with pytest.raises(TransactionRefused, match="xid 7/never/ is not known"):
        await other.tpc_commit(other.xid(7, "never", ""))


@pytest.mark.parametrize("prepares", [True, False])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_task_ends_its_own_without_a_name(
    cluster: MemoryCluster, producer: aio.MessageProducer, prepares: bool, commits: bool
) -> None:
    await begun(producer)
    if prepares:
        await producer.tpc_prepare()
    await (producer.tpc_commit() if commits else producer.tpc_rollback())
    assert await stored(cluster) == ([b"0", b"1"] if commits else [])
    with pytest.raises(InvalidState, match="no two-phase transaction"):
        await producer.tpc_prepare()
    await begun(producer)  # its name is free again
    await producer.tpc_rollback()


async def test_a_name_is_for_one_transaction_at_a_time(
    cluster: MemoryCluster, producer: aio.MessageProducer, other: aio.MessageProducer
) -> None:
    """The journal says so, also of two that began before either was prepared."""
    xid = await begun(producer)
    with pytest.raises(TransactionRefused, match="this producer has begun it"):
        await producer.tpc_begin(xid)
    await other.tpc_begin(xid)
    await other.tpc_prepare()
    with pytest.raises(TransactionRefused, match=r"is in use: transaction \d+ has it"):
        await producer.tpc_prepare()
    with pytest.raises(TransactionRefused, match="is in use"):
        await begun(producer)
    await other.tpc_commit()
    await begun(producer)
    await producer.tpc_commit()
    assert await stored(cluster) == [b"0", b"1"]


async def test_what_an_operator_decided_is_told_and_kept(
    cluster: MemoryCluster, producer: aio.MessageProducer, other: aio.MessageProducer
) -> None:
    """However much later the program asks; the same decision is accepted."""
    xid = await begun(producer)
    await producer.tpc_prepare()
    async with factory_of(cluster, seed=3) as factory:
        admin = factory.admin
        (found,) = await admin.list_transactions()
        assert (found.xid, found.next, found.kept) == (xid.text, "decision", False)
        with pytest.raises(TransactionRefused, match="only a decision can be forgotten"):
            await admin.forget_transaction(found.number)
        await admin.roll_back_transaction(found.number)
        await cluster.stop()
        await cluster.start()
        (kept,) = await admin.list_transactions(kept=True)
        assert (kept.state, kept.next, kept.xid) == (
            TransactionState.ROLLED_BACK,
            "forget",
            xid.text,
        )
        assert [each.messages for each in kept.parts] == [1, 1]
        with pytest.raises(TransactionRefused, match=r"is rolled back by .*@.*; it cannot be"):
            await other.tpc_commit(xid)
        with pytest.raises(TransactionRefused, match="is in use"):
            await other.tpc_begin(xid)
        await other.tpc_rollback(xid)
        for _ in range(2):
            await admin.forget_transaction(found.number)
        assert await admin.list_transactions(kept=True) == []
    await begun(other, xid.gtrid)


async def test_an_unknown_outcome_names_the_transaction(
    cluster: MemoryCluster, producer: aio.MessageProducer
) -> None:
    """And to ask again settles it."""
    xid = await begun(producer)
    await producer.tpc_prepare()
    cluster.flushers["b1"].held = True
    with pytest.raises(TransactionInDoubt, match="xid 7/order%207%2F%C3%A4/vq") as caught:
        await producer.tpc_commit(timeout=2)
    assert caught.value.details["xid"] == xid.text
    cluster.flushers["b1"].release()
    await producer.tpc_commit()
    assert await stored(cluster) == [b"0", b"1"]


async def test_names_have_bounds(cluster: MemoryCluster, producer: aio.MessageProducer) -> None:
    names = [(-1, "a", ""), (2**31, "a", ""), (True, "a", ""), (1, "", ""), (1, "ä" * 33, "")]
    for number, xid in enumerate([*names, (1, "\ud800", ""), (1, "a", "\ud800")]):
        with case(number), pytest.raises(InvalidArgument):
            producer.xid(*xid)
    with pytest.raises(InvalidArgument, match="xid = 'a' is none"):
        await producer.tpc_begin("a")  # type: ignore[arg-type]
    longest = producer.xid(2**31 - 1, "/" * 64, "ä" * 32)
    assert Xid.of(longest.text) == longest
    assert Xid.of("theirs") == Xid(None, "theirs", "")
    await producer.tpc_begin(longest)
    await producer.tpc_prepare()  # also without messages
    assert await producer.tpc_recover() == [longest]
    await producer.tpc_rollback()
    async with factory_of(cluster, seed=8) as factory:
        named = await factory.create_producer(ProducerConfig(transactional_id="billing"))
        with pytest.raises(InvalidState, match="transactional_id"):
            await named.tpc_begin(longest)
