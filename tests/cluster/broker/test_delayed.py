"""Delayed messages: kept, delivered in time, once, and cancelled; through producer and consumer."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import factory_of
from support.late_clock import later

from vq import aio, limits
from vq.broker.journal import deliveries
from vq.broker.journal.items import Item
from vq.broker.journal.notes import NOTE_TAG, Sent
from vq.broker.node import BrokerNode
from vq.broker.timers import timer, timers
from vq.broker.timers.notes import encode_note
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.coordination.topics.topics import change_settings, delete_topic, describe_topic
from vq.errors import (
    BatchFailed,
    InvalidArgument,
    InvalidRequest,
    MessageTooLarge,
    Unreachable,
    VqError,
)
from vq.limits import DELAY_S_MAX, MIB
from vq.model import (
    Cancellation,
    Message,
    ProducerIdentity,
    ProducerStamp,
    SendResult,
    TopicPartition,
)
from vq.reserved import DELAYED_TOPIC
from vq.store.disk.memory_disk import keep_all, keep_none
from vq.store.log.log_config import LogConfig
from vq.store.records.record import Properties, encode_properties, encode_record
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: So many messages wait at a fail-over.
MANY = 100_000 if os.environ.get("VQ_LONG") == "1" else 4_000


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """One node with topic ``t`` of one partition, and a client."""
    await cluster.start()
    await cluster.create_topic("t", partitions=1)
    async with factory_of(cluster) as made:
        yield made


async def stored(cluster: MemoryCluster, topic: str = "t") -> list[bytes]:
    """Return all that is in partition 0 of a topic, read by a client of its own."""
    async with factory_of(cluster, seed=99) as factory:
        consumer = await factory.create_consumer()
        return [each.content for each in await consumer.get(topic, 0, 0, 1 << 20)]


async def got(consumer: aio.MessageConsumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        messages += await consumer.get_many(count - len(messages))
    return messages


async def delayed(factory: aio.MessageFactory, *delays: float) -> list[SendResult]:
    """Send a message to ``t`` for each delay; its content says it."""
    producer = await factory.create_producer()
    return [await producer.send(Message("t", b"%g" % each, delay_s=each)) for each in delays]


async def test_a_topic_that_takes_less_gets_what_was_accepted_before(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It would hold up all that is due behind it; what is sent from then on meets the bound."""
    producer = await factory.create_producer()
    large = b"l" * 5_000
    await producer.send(Message("t", large, delay_s=10))
    await producer.send(Message("t", b"behind", delay_s=11))
    transaction = await producer.begin_transaction()
    await producer.send(Message("t", large))
    await producer.send(Message("t", large, delay_s=12))
    await transaction.prepare()
    async with cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        await change_settings(admin, "t", replace(view.settings, max_message_bytes=1_000))
    await asyncio.sleep(5)
    with pytest.raises(MessageTooLarge):
        await producer.send(Message("t", large))
    await transaction.commit()
    await asyncio.sleep(15)
    assert sorted(await stored(cluster)) == [b"behind", large, large, large]


async def test_a_message_comes_when_it_is_due_and_not_before(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """With all that it has; by its time, not by the time of its send."""
    clock = cluster.ensemble.clock
    producer = await factory.create_producer()
    began = clock.wall_ms()
    for delay in (30.0, 10.0, 20.0):
        message = Message("t", b"%d" % delay, tag="x", key="k", headers={"a": "b"}, delay_s=delay)
        await producer.send(message)
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("t")
    for delay in (10, 20, 30):
        (message,) = await got(consumer, 1)
        late_ms = clock.wall_ms() - began - delay * 1_000
        assert message.content == b"%d" % delay
        assert (message.tag, message.key, message.headers) == ("x", "k", {"a": "b"})
        assert 0 <= late_ms < 1_000


async def test_a_cancelled_message_is_never_delivered(factory: aio.MessageFactory) -> None:
    """Asked again it answers the same; one that was delivered stays."""
    producer = await factory.create_producer()
    first = await producer.send(Message("t", b"1", delay_s=5))
    second = await producer.send(Message("t", b"2", delay_s=6))
    assert await producer.cancel(first) is Cancellation.CANCELLED
    assert await producer.cancel(first) is Cancellation.CANCELLED
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("t")
    (message,) = await got(consumer, 1)
    assert message.content == b"2"
    assert await producer.cancel(second) is Cancellation.DELIVERED


async def test_one_that_is_due_and_waits_for_the_batch_before_it_can_be_cancelled(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It was alone there: nothing is sent in its place, and what comes later is delivered."""
    first, second, _ = await delayed(factory, 1, 1.5, 10)
    flusher = cluster.flushers["b1"]
    flusher.held = True
    await until(lambda: bool(flusher._submitted))
    flusher.release_one()  # the note of the first one; its batch is not stored
    await asyncio.sleep(1)
    producer = await factory.create_producer()
    cancelling = asyncio.ensure_future(producer.cancel(second))
    await asyncio.sleep(0.1)
    flusher.held = False
    flusher.release()
    assert await cancelling is Cancellation.CANCELLED
    assert await producer.cancel(first) is Cancellation.DELIVERED
    await asyncio.sleep(15)
    assert await stored(cluster) == [b"1", b"10"]
    assert cluster.nodes["b1"].parts.timers.readers.problems() == []


async def test_a_cancellation_that_the_next_master_may_carry_out_is_unknown(
    cluster: MemoryCluster,
) -> None:
    """Its note is on both nodes and not committed when the first one leads no more."""
    await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    async with factory_of(cluster) as factory:
        (waits,) = await delayed(factory, 60)
        client = factory.admin.cluster
        plain, first = client.request, cluster.nodes["b1"].address

        async def request(address: Any, *rest: Any, **named: Any) -> Any:
            if address != first:
                raise Unreachable("it is not reached in time")
            return await plain(address, *rest, **named)

        client.request = request  # type: ignore[method-assign]
        producer = await factory.create_producer()
        cluster.flushers["b1"].held = True
        cancelling = asyncio.ensure_future(producer.cancel(waits, 3.0))
        await asyncio.sleep(0.5)
        cluster.ensemble.expire(cluster.coordinators["b1"])
        assert await cancelling is Cancellation.UNKNOWN
        cluster.flushers["b1"].release()
        client.request = plain  # type: ignore[method-assign]
        assert await producer.cancel(waits) is Cancellation.CANCELLED
        await asyncio.sleep(60)
    assert await stored(cluster) == []


async def test_what_cannot_be_delayed_is_refused(factory: aio.MessageFactory) -> None:
    """With the value, the bound, and what to give instead; nothing is stored."""
    producer = await factory.create_producer()
    now = datetime.now(UTC)
    for wrong, says in (
        ({"delay_s": -1}, "outside"),
        ({"delay_s": DELAY_S_MAX + 1}, "40 days"),
        ({"delay_s": float("nan")}, "finite"),
        ({"delay_s": "5"}, "finite"),
        ({"deliver_at": 1e300}, "40 days"),
        ({"deliver_at": now.replace(tzinfo=None)}, "time zone"),
        ({"deliver_at": now + timedelta(days=36_500)}, "40 days"),
        ({"deliver_at": now, "delay_s": 1}, "exclude"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            await producer.send(Message("t", b"x", **wrong))  # type: ignore[arg-type]
    identity = ProducerConfig(ordered=True, identity=ProducerIdentity(1, 0))
    with pytest.raises(InvalidArgument, match="identity"):
        await (await factory.create_producer(identity)).send(Message("t", b"x", delay_s=1))


async def test_nobody_sends_to_the_topic_of_what_waits_by_hand(
    factory: aio.MessageFactory,
) -> None:
    """Also not once the producer uses it: what has no time would wait for ever."""
    producer = await factory.create_producer()
    await producer.send(Message("t", b"x", delay_s=100))
    wrong = Message(DELAYED_TOPIC, b"x")
    for each in (wrong, wrong._replace(key="k"), wrong._replace(delay_s=5)):
        with pytest.raises(InvalidArgument, match="reserved"):
            await producer.send(each)
        with pytest.raises(BatchFailed, match="reserved"):
            await producer.send_batch([each])


async def test_a_time_that_has_come_already_delays_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The message goes straight to its partition; in a batch, too."""
    producer = await factory.create_producer()
    past = cluster.ensemble.clock.wall_ms() / 1_000 - 5
    await producer.send(Message("t", b"1", deliver_at=past))
    await producer.send(Message("t", b"2", delay_s=0))
    results = await producer.send_batch(
        [Message("t", b"3"), Message("t", b"4", delay_s=1), Message("t", b"5")]
    )
    assert await stored(cluster) == [b"1", b"2", b"3", b"5"]
    await asyncio.sleep(2)
    assert await stored(cluster) == [b"1", b"2", b"3", b"5", b"4"]
    assert await producer.cancel(results[1]) is Cancellation.DELIVERED


async def test_only_the_result_of_a_delayed_message_can_be_cancelled(
    factory: aio.MessageFactory,
) -> None:
    """Not the place of another message, and nothing else."""
    producer = await factory.create_producer()
    (waits,) = await delayed(factory, 50)
    plain = await producer.send(Message("t", b"x"))
    for wrong in (plain, waits._replace(id=waits.id + 1), waits._replace(offset=waits.offset + 1)):
        with pytest.raises(InvalidArgument, match="delayed message"):
            await producer.cancel(wrong._replace(partition=waits.partition))
    with pytest.raises(InvalidArgument, match="result"):
        await producer.cancel(5)  # type: ignore[arg-type]
    for name, value in (("partition", -1), ("partition", 2**40), ("offset", 2**64), ("id", "x")):
        with pytest.raises(InvalidArgument, match=name):
            await producer.cancel(waits._replace(**{name: value}))  # type: ignore[arg-type]
    async with producer.transaction() as transaction:
        place = await producer.send(Message("t", b"y", delay_s=50))
        with pytest.raises(InvalidArgument, match=r"sent in a transaction.*commit\(\)"):
            await producer.cancel(place)
    (place,) = await transaction.commit()
    assert await producer.cancel(place) is Cancellation.CANCELLED


async def test_the_result_of_another_cluster_cancels_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Whatever offset it has: behind the end, at the end, inside of a record, at a note."""
    producer = await factory.create_producer()
    (waits,) = await delayed(factory, 50)
    log = cluster.nodes["b1"].parts.partitions.channels[DELAYED_TOPIC, waits.partition].log
    assert log is not None
    offsets = (*range(waits.offset + 30), log.end_offset, log.end_offset + 1, 10**15)
    for offset in offsets:
        if offset != waits.offset:
            with pytest.raises(InvalidArgument, match="delayed message"):
                await producer.cancel(waits._replace(offset=offset))
    with pytest.raises(VqError):
        await producer.cancel(waits._replace(partition=99))
    assert await producer.cancel(waits) is Cancellation.CANCELLED


def waiting(node: BrokerNode) -> int:
    """Return how many delayed messages wait on a node, as its metrics say."""
    facts, _ = node.parts.timers.facts()
    (fact,) = [each for each in facts.facts if each.metric == "vq_delayed_messages"]
    return int(fact.read(node.parts.timers))


async def crash(cluster: MemoryCluster, keep: object, key: str = "b1") -> None:
    """End a node as kill -9 does, or as a loss of power does."""
    cluster.network.kill(key)
    disk = cluster.disks[key].crash(keep)  # type: ignore[arg-type]
    cluster.ensemble.crash(cluster.coordinators[key])
    cluster.flushers[key].release()
    await cluster.nodes[key].stop()
    cluster.disks[key] = disk


@pytest.mark.parametrize("keep", [keep_all, keep_none])
@pytest.mark.parametrize("flushes", range(5))
async def test_each_message_is_delivered_once_whenever_its_broker_dies(
    cluster: MemoryCluster, flushes: int, keep: object
) -> None:
    """After so many flushes from the time on at which it is due: its note, its batch, the end."""
    await cluster.start()
    await cluster.create_topic("t", partitions=1)
    async with factory_of(cluster) as factory:
        await delayed(factory, 2, 3, 2)
        flusher = cluster.flushers["b1"]
        flusher.held = True
        for _ in range(flushes):
            await until(lambda: bool(flusher._submitted))
            flusher.release_one()
        await asyncio.sleep(2.5)
        await crash(cluster, keep)
    await cluster.start()
    await asyncio.sleep(20)
    assert await stored(cluster) == [b"2", b"2", b"3"]


@pytest.mark.parametrize("at_s", [0.5, 1.0, 1.001, 1.05, 4.0])
async def test_another_node_goes_on_with_what_waits(cluster: MemoryCluster, at_s: float) -> None:
    """Whatever the first one had done of it, nothing is lost, doubled or early."""
    await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    async with factory_of(cluster) as factory:
        await delayed(factory, 60, 1, 2, 3)
        begun = cluster.ensemble.clock.wall_ms()
        await asyncio.sleep(at_s)
        await crash(cluster, keep_all)
        await cluster.until_in_sync("n2")
        await asyncio.sleep(10)
        assert await stored(cluster) == [b"1", b"2", b"3"]
        assert cluster.ensemble.clock.wall_ms() - begun < 60_000
        await asyncio.sleep(55)
        assert await stored(cluster) == [b"1", b"2", b"3", b"60"]


async def test_another_node_goes_on_with_many_that_wait(cluster: MemoryCluster) -> None:
    """The first one dies while it delivers: each message comes once, and in the order of times."""
    await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    async with factory_of(cluster) as factory:
        producer = await factory.create_producer()
        at_s = cluster.ensemble.clock.wall_ms() / 1_000 + 60
        for first in range(0, MANY, 1_000):
            batch = [
                Message("t", b"%06d" % number, deliver_at=at_s + number * 50 // MANY / 5)
                for number in range(first, first + 1_000)
            ]
            await producer.send_batch(batch)
        (node,) = [each for each in cluster.nodes.values() if waiting(each)]
        assert waiting(node) == MANY
        ahead_s = at_s - cluster.ensemble.clock.wall_ms() / 1_000
        await asyncio.sleep(ahead_s - 1)
        assert await stored(cluster) == []
        await asyncio.sleep(5)
        await crash(cluster, keep_all)
        await cluster.until_in_sync("n2")
        await asyncio.sleep(30)
        consumer = await factory.create_consumer()
        offset, found = 0, list[bytes]()
        while messages := await consumer.get("t", 0, offset, 4 * MIB):
            found += [each.content for each in messages]
            offset = messages[-1].next_offset
        assert found == [b"%06d" % number for number in range(MANY)]


async def test_delays_of_ten_milliseconds_to_forty_days_are_kept(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Not a moment less, and at most a second more; whatever the topic's retention is."""
    clock = cluster.ensemble.clock
    delays = (0.01, 0.1, 1, 59, 600, 601, 14_400, 14_401, 86_400, 345_601, 30 * 86_400, DELAY_S_MAX)
    producer = await factory.create_producer()
    await producer.cancel(await producer.send(Message("t", b"first of all", delay_s=99)))
    due = []
    for delay in delays:
        due.append(clock.wall_ms() + round(delay * 1_000))
        await producer.send(Message("t", b"%g" % delay, delay_s=delay))
    for count, due_ms in enumerate(due):
        if due_ms - clock.wall_ms() > 5_000:
            clock.wall_offset_ms += due_ms - clock.wall_ms() - 3_000  # type: ignore[attr-defined]
            await asyncio.sleep(2.9)
            assert len(await stored(cluster)) == count
        await asyncio.sleep(max(0, due_ms - clock.wall_ms()) / 1_000 + 0.5)
        found = await stored(cluster)
        assert found == [b"%g" % each for each in delays[: len(found)]]
        assert len(found) > count
        assert due[len(found) - 1] <= clock.wall_ms()


async def test_a_clock_that_is_set_back_delivers_nothing_early(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """And nothing twice."""
    await delayed(factory, 10, 100)
    await asyncio.sleep(15)
    cluster.ensemble.clock.wall_offset_ms = -60_000  # type: ignore[attr-defined]
    await asyncio.sleep(100)
    assert await stored(cluster) == [b"10"]
    await asyncio.sleep(60)
    assert await stored(cluster) == [b"10", b"100"]


async def test_messages_for_a_deleted_topic_go_nowhere(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """They hold up no other ones, and the node counts them."""
    await cluster.create_topic("u", partitions=1)
    producer = await factory.create_producer()
    await producer.send(Message("u", b"x", delay_s=5))
    await delayed(factory, 6)
    async with cluster.admin() as coordinator:
        await delete_topic(coordinator, "u")
    await asyncio.sleep(10)
    assert await stored(cluster) == [b"6"]
    assert cluster.nodes["b1"].parts.timers.counts.undeliverable == 1


async def test_what_waits_follows_its_partition_to_another_group(cluster: MemoryCluster) -> None:
    """Its bytes stay where they are, and the group that writes now delivers them, and cancels."""
    for group in ("b1", "b2"):
        await cluster.start(group)
    await cluster.create_topic("t", partitions=1)
    async with factory_of(cluster) as factory:
        results = await delayed(factory, 20, 30, 40)
        (number,) = {each.partition for each in results}
        async with cluster.admin() as coordinator:
            view = await describe_topic(coordinator, DELAYED_TOPIC)
        new = "b2" if view.partitions[number].writer_group == "b1" else "b1"
        await factory.admin.move(await factory.admin.plan_moves(DELAYED_TOPIC, [number], new))
        await asyncio.sleep(5)
        producer = await factory.create_producer()
        assert await producer.cancel(results[1]) is Cancellation.CANCELLED
        await producer.send(Message("t", b"35", delay_s=30))
        await asyncio.sleep(50)
        assert await stored(cluster) == [b"20", b"35", b"40"]
        await cluster.nodes[new].stop()
        await cluster.start(new)
        await asyncio.sleep(50)
        assert await stored(cluster) == [b"20", b"35", b"40"]


async def test_a_range_that_was_moved_away_is_needed_no_longer_than_anything_waits(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then retention takes it by age, without a restart or another move."""
    monkeypatch.setattr(timers, "KEPT_MS", 60_000)
    for group in ("b1", "b2"):
        await cluster.start(group)
    await cluster.create_topic("t", partitions=1)
    async with factory_of(cluster) as factory:
        (waits,) = await delayed(factory, 20)
        number = waits.partition
        async with cluster.admin() as coordinator:
            view = await describe_topic(coordinator, DELAYED_TOPIC)
        old = view.partitions[number].writer_group
        assert old is not None
        new = "b2" if old == "b1" else "b1"
        await factory.admin.move(await factory.admin.plan_moves(DELAYED_TOPIC, [number], new))
        await asyncio.sleep(30)
        channel = cluster.nodes[old].parts.partitions.channels[DELAYED_TOPIC, number]
        assert channel.needed == 0
        await asyncio.sleep(60)
        assert channel.needed is None


async def test_the_log_is_kept_from_the_oldest_message_on_that_waits(
    cluster: MemoryCluster,
) -> None:
    """What was delivered before it goes by age; what waits outlives every age."""
    node = await cluster.start(log_config=LogConfig(block_bytes=MIB))
    await cluster.create_topic("t", partitions=1)
    async with factory_of(cluster) as factory:
        producer = await factory.create_producer()
        for _ in range(30):
            await producer.send(Message("t", bytes(100_000), delay_s=1))
        (waits,) = await delayed(factory, 500)
        for _ in range(30):
            await producer.send(Message("t", bytes(100_000), delay_s=1))
        await asyncio.sleep(20)
        channel = node.parts.partitions.channels[DELAYED_TOPIC, waits.partition]
        log = channel.log
        assert log is not None
        await later(node, 5).look()
        assert waits.offset - 3 * MIB < channel.start_offset <= waits.offset
        await asyncio.sleep(500)
        (last,) = await (await factory.create_consumer()).get_last("t", 1)
        assert last.content == b"500"
        await producer.send(Message("t", b"x", delay_s=1))
        await asyncio.sleep(20)
        await later(node, 5).look()
        assert channel.start_offset > waits.offset


async def test_a_record_that_nobody_can_read_holds_up_no_other_one(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A faulty client can store one, but no note; it is told, and passed by."""
    (waits,) = await delayed(factory, 30)
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    bad = bytearray(message(b"x", tag="t"))
    bad[-1] ^= 1
    note = encode_note(Sent(TopicPartition("t", 0), ProducerStamp(1, 0, 0), [Item(1, 2, 3)]))
    for record in (bytes(bad), message(b"plain _vq.note")):
        await client.put(DELAYED_TOPIC, waits.partition, [record])
    for record in (encode_record(0, b"{", NOTE_TAG), note):
        with pytest.raises(InvalidRequest, match="only brokers"):
            await client.put(DELAYED_TOPIC, waits.partition, [message(b"x"), record])
    await delayed(factory, 1)
    await asyncio.sleep(60)
    assert await stored(cluster) == [b"1", b"30"]
    assert any("cannot be read" in why for why in (await client.status()).problems)


async def test_a_topic_that_was_made_again_takes_what_is_due(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its broker does not know who sent to the topic of that name before."""
    await delayed(factory, 1, 2, 30)
    await asyncio.sleep(5)
    async with cluster.admin() as coordinator:
        await delete_topic(coordinator, "t")
    await asyncio.sleep(2)
    await cluster.create_topic("t", partitions=1)
    await asyncio.sleep(40)
    assert await stored(cluster) == [b"30"]


async def test_what_was_noted_twice_is_counted_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The broker of a topic that was made again forgot the stamp: a second note has the messages.

    Who reads both notes later still knows what waits, and keeps its bytes.
    """
    clock = cluster.ensemble.clock
    await asyncio.sleep(61 - clock.wall_ms() / 1_000 % 60)  # all of it is due in one minute
    await delayed(factory, 1, 2)
    await asyncio.sleep(5)
    async with cluster.admin() as coordinator:
        await delete_topic(coordinator, "t")
    await asyncio.sleep(2)
    await cluster.create_topic("t", partitions=1)
    results = await delayed(factory, *[10] * 10, 45)
    await asyncio.sleep(20)
    await crash(cluster, keep_all)
    node = await cluster.start()
    await asyncio.sleep(5)
    assert waiting(node) == 1
    channel = node.parts.partitions.channels[DELAYED_TOPIC, results[-1].partition]
    assert channel.needed <= results[-1].offset
    await asyncio.sleep(30)
    assert await stored(cluster) == [b"10"] * 10 + [b"45"]


def change(cluster: MemoryCluster, number: int, at: int, new: bytes, key: str = "b1") -> bytes:
    """Change bytes of a node's log of delayed messages, while it runs; return what was there."""
    disk, directory = cluster.disks[key], DATA / DELAYED_TOPIC / str(number)
    (name,) = [each for each in disk.listdir(directory) if each.endswith(".block")]
    file = disk.open(directory / name)
    before = bytes(file.pread(at, len(new)))
    file.pwrite([new], at)
    file.close()
    return before


def read_anew(cluster: MemoryCluster) -> None:
    """Have the node forget what waits, as one that begins to lead, and read its log."""
    node = cluster.nodes["b1"]
    node.parts.timers.readers.start(node.epoch)


async def test_damaged_bytes_are_not_delivered(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """They wait until they are repaired, and are told; what is due beside them does not wait."""
    bad, _ = await delayed(factory, 2, 2)
    before = change(cluster, bad.partition, bad.offset + 21, b"\xff")
    await asyncio.sleep(20)
    assert await stored(cluster) == [b"2"]
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    assert any("cannot be read" in why for why in (await client.status()).problems)
    change(cluster, bad.partition, bad.offset + 21, before)
    await asyncio.sleep(60)
    assert await stored(cluster) == [b"2", b"2"]
    assert waiting(cluster.nodes["b1"]) == 0


@pytest.mark.parametrize("field", [b"\x7f\xff\xff\xff", b"\0\0\x01\0", b"\0\0\0\x05"])
async def test_a_damaged_length_holds_up_no_other_batch(
    cluster: MemoryCluster, factory: aio.MessageFactory, field: bytes
) -> None:
    """Where the record ends is not known then; the next batch is found by its own header."""
    producer = await factory.create_producer()
    first, *_ = await producer.send_batch(
        [Message("t", b"%d" % each, key="k", delay_s=60) for each in range(3)]
    )
    await producer.send(Message("t", b"3", key="k", delay_s=60))
    before = change(cluster, first.partition, first.offset, field)
    read_anew(cluster)
    await asyncio.sleep(80)
    assert await stored(cluster) == [b"3"]
    change(cluster, first.partition, first.offset, before)
    await asyncio.sleep(60)
    assert sorted(await stored(cluster)) == [b"0", b"1", b"2", b"3"]


async def test_what_was_settled_while_its_record_was_damaged_stays_so(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A node that cannot read a message reads that it was delivered, or cancelled; then it can."""
    done, recalled, _ = await delayed(factory, 1, 200, 201)
    await (await factory.create_producer()).cancel(recalled)
    await asyncio.sleep(10)
    before = [
        change(cluster, each.partition, each.offset + 21, b"\xff") for each in (done, recalled)
    ]
    read_anew(cluster)
    await asyncio.sleep(10)
    for each, byte in zip((done, recalled), before, strict=True):
        change(cluster, each.partition, each.offset + 21, byte)
    await asyncio.sleep(60)
    assert waiting(cluster.nodes["b1"]) == 1
    await asyncio.sleep(200)
    assert await stored(cluster) == [b"1", b"201"]


@pytest.mark.slow
async def test_what_became_due_while_nothing_could_be_noted_is_delivered(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much that is: the notes of all of it would be larger than a batch may be."""
    monkeypatch.setattr(deliveries, "NOTED_MAX", 2_000)
    targets, each = 8, timer.Timer.batch_items
    await cluster.start()
    await cluster.create_topic("t", partitions=targets)
    node = await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    async with factory_of(cluster) as factory:
        (waits,) = await delayed(factory, 30)
        due_ms = cluster.ensemble.clock.wall_ms() + 30_000
        client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
        for number in range(targets):
            to = Properties(delivery_time_ms=due_ms, destination=TopicPartition("t", number))
            record = encode_record(1, b"", None, encode_properties(to))
            await client.put(DELAYED_TOPIC, waits.partition, [record] * (each // 2))
            await client.put(DELAYED_TOPIC, waits.partition, [record] * (each // 2))
        async with cluster.admin() as coordinator:
            settings = (await describe_topic(coordinator, DELAYED_TOPIC)).settings
            await change_settings(coordinator, DELAYED_TOPIC, replace(settings, min_insync=2))
        # 4 MiB would take 210,000 messages.
        monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 100_000)
        await node.stop()
        await cluster.until_in_sync("n1")
        await asyncio.sleep(33)
        assert waiting(cluster.nodes["b1"]) == targets * each + 1
        await cluster.start(node="n2")
        await cluster.until_in_sync("n1", "n2")
        await asyncio.sleep(10)
        assert waiting(cluster.nodes["b1"]) == 0


@pytest.mark.parametrize("kind", ["zlib", "zstd", "lz4"])
async def test_a_compressed_message_is_delivered_as_any_other(
    cluster: MemoryCluster, factory: aio.MessageFactory, kind: Any
) -> None:
    """Alone, and in one batch with others; no node takes what it does not decompress for damage."""
    large = b"text " * 1_000
    config = ProducerConfig(compression=kind, compression_threshold=1_000)
    async with await factory.create_producer(config) as producer:
        for content in (b"1", large, b"2", large):
            await producer.send(Message("t", content, key="k", delay_s=5.0))
        await asyncio.sleep(8.0)
        assert await stored(cluster) == [b"1", large, b"2", large]
        await producer.send(Message("t", large, key="k", delay_s=5.0))
        await asyncio.sleep(8.0)
    assert (await stored(cluster))[4:] == [large]
    assert cluster.nodes["b1"].parts.timers.readers.problems() == []
