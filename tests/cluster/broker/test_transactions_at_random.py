"""Requests about transactions from many at once, in any order: each has one end, and all see it.

No producer sends so; these clients repeat, contradict and fence each other, and say they are
somebody else, while what is noted waits for the disk for some time.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import google_crc32c
import pytest
from support.broker import Client, MemoryCluster, message
from support.cases import case
from support.client import factory_of

from vq.broker.transactions.journal import Journal
from vq.coordination.topics.reserved_topics import INTERNAL_SETTINGS
from vq.coordination.topics.topics import create_topic
from vq.errors import (
    Busy,
    InvalidRequest,
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    VqError,
)
from vq.limits import TRANSACTION_PARTS_MAX
from vq.model import TransactionState, time_ms_of
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import FenceRequest, TransactionPart, TransactRequest
from vq.reserved import TRANSACTIONS_TOPIC
from vq.store.records.record import Record

pytestmark = pytest.mark.virtual_time

ZERO = time_ms_of(0)
SHIFT = next(bits for bits in range(63) if time_ms_of(1 << bits) > ZERO)
STATES = [TransactionState.OPEN, TransactionState.PREPARED, TransactionState.UNKNOWN]
STATES += [TransactionState.COMMITTED, TransactionState.ROLLED_BACK] * 2


async def journal(cluster: MemoryCluster) -> tuple[Client, int]:
    """Start a node with topic ``t`` and a journal; return a connection and a new number."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=3)
    async with cluster.admin() as coordinator:
        await create_topic(coordinator, TRANSACTIONS_TOPIC, INTERNAL_SETTINGS)
    client = await Client.connect(cluster.network, node.address)
    async with asyncio.timeout(30):
        while True:
            try:
                await transact(client, 1 << SHIFT, TransactionState.UNKNOWN)
                break
            except VqError:
                await asyncio.sleep(0.1)
    return client, (cluster.ensemble.clock.wall_ms() - ZERO) << SHIFT


def part(to: int, records: list[bytes], **fields: Any) -> tuple[TransactionPart, bytes]:
    """Return a part of some records, and its bytes."""
    data = b"".join(records)
    crc = google_crc32c.value(data)
    made = {"topic": "t", "partition": to, "crc": crc, "size": len(data), **fields}
    return TransactionPart(**{"record_count": len(records), **made}), data


async def transact(
    client: Client,
    number: int,
    state: TransactionState,
    parts: list[tuple[TransactionPart, bytes]] | None = None,
    /,
    **fields: Any,
) -> TransactionState:
    request = TransactRequest(
        topic=TRANSACTIONS_TOPIC,
        transaction=number,
        state=int(state),
        parts=[each for each, _ in parts or ()],
        **{"max_wait_ms": 1_000, **fields},
    )
    body = b"".join(data for _, data in parts or ())
    header, _ = await client.call(Command.TRANSACT, request, body)
    return TransactionState(header.state)


class Crowd:
    """Clients that ask at random about a few transactions."""

    def __init__(self, cluster: MemoryCluster, client: Client, seed: int, first: int) -> None:
        self.flusher = cluster.flushers["b1"]
        self.client = client
        self.rng = random.Random(seed)
        self.numbers = [first + each for each in range(4)]
        self.owners = dict(zip(self.numbers, ("", "a", "a", "b"), strict=True))
        self.epochs: Counter[str] = Counter()
        self.told: dict[int, set[TransactionState]] = {each: set() for each in self.numbers}

    async def ask(self) -> None:
        rng, number = self.rng, self.rng.choice(self.numbers)
        await asyncio.sleep(rng.choice((0, 0.001, 0.01)) * rng.random())
        state, owner = rng.choice(STATES), self.owners[number]
        is_new = state is not TransactionState.ROLLED_BACK and rng.random() < 0.5
        text = b"%d" % number
        parts = [part(to, [message(text)], index=to) for to in range(3)] if is_new else None
        request = 0 if rng.random() < 0.7 else 1
        by = rng.choice(("", "", "", "operator"))
        state = await transact(
            self.client,
            number,
            state,
            parts,
            number=request,
            by=by,
            client=owner,
            client_epoch=self.epochs[owner],
        )
        if state in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK):
            self.told[number].add(state)

    async def fence(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.01)
        name = self.rng.choice("ab")
        request = FenceRequest(topic=TRANSACTIONS_TOPIC, client=name)
        header, _ = await self.client.call(Command.FENCE, request)
        self.epochs[name] = max(self.epochs[name], header.client_epoch)

    async def disk(self) -> None:
        """Have flushes wait for some time, again and again."""
        while True:
            self.flusher.held = self.rng.random() < 0.7
            await asyncio.sleep(self.rng.random() * 0.01)
            self.flusher.release()

    async def run(self) -> None:
        await self.fence()
        disk = asyncio.create_task(self.disk())
        for _ in range(8):
            work = [self.fence() if self.rng.random() < 0.15 else self.ask() for _ in range(6)]
            async with asyncio.timeout(60):  # whatever it is, it has an answer
                for outcome in await asyncio.gather(*work, return_exceptions=True):
                    if isinstance(outcome, BaseException) and not isinstance(outcome, VqError):
                        raise outcome
        disk.cancel()
        self.flusher.release()


async def test_all_who_ask_see_one_end(cluster: MemoryCluster) -> None:
    """What is committed is in each of its partitions once; of all else there is nothing."""
    client, first = await journal(cluster)
    ends: Counter[TransactionState] = Counter()
    for seed in range(25):
        with case(seed):
            crowd = Crowd(cluster, client, seed, first + seed * 8)
            await crowd.run()
            for number, told in crowd.told.items():
                state = await transact(client, number, TransactionState.UNKNOWN)
                if state not in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK):
                    state = TransactionState.ROLLED_BACK
                    await transact(client, number, state, by="operator")
                assert told <= {state}
                ends[state] += 1
                crowd.told[number] = {state}
            await asyncio.sleep(1)
            async with factory_of(cluster, seed=100 + seed) as factory:
                consumer = await factory.create_consumer()
                found = [await consumer.get("t", to, 0, 4 << 20) for to in range(3)]
            counts = [Counter(int(each.content) for each in messages) for messages in found]
            for number, told in crowd.told.items():
                copies = {count[number] for count in counts}
                assert copies in (({0}, {1}) if TransactionState.COMMITTED in told else ({0},))
    assert min(ends.values()) > 10


async def test_what_no_producer_sends_is_refused(cluster: MemoryCluster) -> None:
    """Nothing is noted of it, it costs no time, and others go on."""
    client, first = await journal(cluster)
    record = [message(b"x")]
    committed = TransactionState.COMMITTED
    many = [part(0, record, index=each) for each in range(TRANSACTION_PARTS_MAX + 1)]
    for parts, says in (
        (many, "parts in one request"),
        ([part(0, record), part(0, record)], "twice"),
        ([part(0, record, index=1)], "part 1"),
        ([part(0, record), part(0, record, index=1)], "another partition"),
        ([part(0, record, topic="t" * 201)], "no name"),
        ([part(0, record, topic_id="t" * 201)], "no name"),
        ([part(0, record, topic=TRANSACTIONS_TOPIC)], "only brokers"),
        ([part(0, record, crc=1)], "CRC"),
        ([part(0, record, size=1)], "cannot hold"),
        ([part(0, record, record_count=2)], "records"),
    ):
        with pytest.raises(VqError, match=says):
            await transact(client, first, committed, parts)
    for by in ("time-out", "another producer with its transactional id", "x" * 201):
        with pytest.raises(InvalidRequest, match="no name"):
            await transact(client, first, committed, by=by)
    for number in (0, 2**63):
        with pytest.raises(InvalidRequest, match="no number"):
            await transact(client, number, committed)
    with pytest.raises(VqError):
        await transact(client, 2**63 - 1, committed)
    with pytest.raises(VqError):
        await transact(client, first, committed, client="never heard of")
    header, _ = await client.call(Command.FENCE, FenceRequest(topic=TRANSACTIONS_TOPIC, client="a"))
    for epoch in (0, header.client_epoch + 1):
        with pytest.raises(ProducerFenced, match="epoch"):
            await transact(client, first, committed, client="a", client_epoch=epoch)
    assert await transact(client, first, TransactionState.UNKNOWN) is TransactionState.UNKNOWN
    assert await transact(client, first, committed, [part(0, record)]) is committed


async def test_a_stale_topic_takes_no_others_with_it(cluster: MemoryCluster) -> None:
    """Parts for a topic that is gone are for nobody; those for the one of its name now come."""
    client, first = await journal(cluster)
    flusher = cluster.flushers["b1"]
    flusher.held = True
    asks = []
    for index, topic_id in enumerate(("", "gone", "", "gone")):
        one = [part(0, [message(b"%d" % index)], topic_id=topic_id)]
        asks.append(transact(client, first + index, TransactionState.COMMITTED, one))
    answers = asyncio.gather(*asks)
    await asyncio.sleep(0.01)
    flusher.release()
    assert await answers == [TransactionState.COMMITTED] * 4
    await asyncio.sleep(5)
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer()
        found = [each.content for each in await consumer.get("t", 0, 0, 1 << 20)]
    assert found == [b"0", b"2"]


async def test_a_message_that_its_topic_does_not_take_holds_up_no_other(
    cluster: MemoryCluster,
) -> None:
    """It is refused before it is committed: its partition would refuse it for ever."""
    client, first = await journal(cluster)
    await cluster.create_topic("small", partitions=1, max_message_bytes=1_024)
    large = part(0, [message(bytes(2_000))], topic="small")
    with pytest.raises(MessageTooLarge, match="1024"):
        await transact(client, first, TransactionState.COMMITTED, [large])
    small = part(0, [message(b"1")], topic="small")
    header, _ = await client.call(
        Command.TRANSACT,
        TransactRequest(
            topic=TRANSACTIONS_TOPIC,
            transaction=first + 1,
            state=int(TransactionState.COMMITTED),
            parts=[small[0]],
            max_wait_ms=5_000,
        ),
        small[1],
    )
    assert header.stored


async def test_a_journal_that_fails_is_read_again_and_answers(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks meanwhile is told so at once; what was noted by then counts."""
    client, first = await journal(cluster)
    taken = Journal.take

    def fails(self: Journal, record: Record) -> None:
        raise ZeroDivisionError

    committed = TransactionState.COMMITTED
    monkeypatch.setattr(Journal, "take", fails)
    with pytest.raises(OutcomeUnknown):
        await transact(client, first, committed, [part(0, [message(b"1")])])
    async with asyncio.timeout(5):
        with pytest.raises(Busy):
            await transact(client, first, committed)
    monkeypatch.setattr(Journal, "take", taken)
    await asyncio.sleep(30)
    assert await transact(client, first, committed) is committed
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer()
        assert [each.content for each in await consumer.get("t", 0, 0, 1 << 20)] == [b"1"]
