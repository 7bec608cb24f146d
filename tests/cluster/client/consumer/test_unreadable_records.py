"""A record that its producer stored so that nobody can read it: shown, and skipped on command."""

import asyncio

import pytest
from support.broker import Client, MemoryCluster
from support.consumers import consumer_of, take

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.reading.damage import report_damage
from vq.client.reading.partition_reader import PartitionReader
from vq.errors import CorruptData
from vq.model import TopicPartition
from vq.operations.cluster.cluster import cluster_status
from vq.operations.groups.resets import Goal, Target, plan_reset, reset
from vq.operations.topics import topics
from vq.store.records.format import COMPRESSION_ZLIB
from vq.store.records.record import encode_record
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)
PAST_DAMAGE = Target(goal=Goal.PAST_DAMAGE)
_WRONG = encode_record(2, b"wrong", tag=b"a")
BAD = {
    "checksum": _WRONG[:4] + bytes([_WRONG[4] ^ 1]) + _WRONG[5:],
    "compression": encode_record(2, b"no zlib", tag=b"a", compression=COMPRESSION_ZLIB),
    "properties": encode_record(2, b"bad", tag=b"a", properties=b"\xff\xff\xff"),
}


@pytest.fixture
async def wire(cluster: MemoryCluster) -> Client:
    return await Client.connect(cluster.network, cluster.nodes["b1"].address)


def record(number: int) -> bytes:
    return encode_record(number, b"%d" % number, tag=b"a")


async def put(wire: Client, bad: bytes) -> tuple[int, int]:
    """Store batches of which the second has a bad record; return where that begins and ends."""
    await wire.put("t", 0, [record(10)])
    result = await wire.put("t", 0, [record(11), bad, record(12)])
    await wire.put("t", 0, [record(13)])
    start = result.offset + len(record(11))
    return start, start + len(bad)


async def two_more(consumer: aio.MessageConsumer) -> list[bytes]:
    messages = aiter(consumer)
    async with asyncio.timeout(300.0):
        return [(await anext(messages)).content for _ in range(2)]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("tag", [None, "a"])
async def test_a_record_that_was_stored_wrong_is_shown_and_a_group_skips_it_on_command(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    client: ClusterClient,
    wire: Client,
    caplog: pytest.LogCaptureFixture,
    bad: bytes,
    tag: str | None,
) -> None:
    start, end = await put(wire, bad)
    consumer = await factory.create_consumer(
        ConsumerConfig(group="g", max_wait_s=0.5, commit_interval_s=0.2)
    )
    consumer.subscribe("t", message_filter=tag)
    async with consumer:
        assert await take(consumer, 2) == [b"10", b"11"]
        waiting = asyncio.create_task(two_more(consumer))

        async def is_shown() -> bool:
            return bool((await cluster_status(client)).damage)

        await until_true(is_shown)
        (damage,) = (await cluster_status(client)).damage
        assert (damage.topic, damage.start, damage.end) == ("t", start, end)
        assert "stored so" in damage.reason
        (described,) = (await topics.describe_topic(client, "t")).partitions
        assert (described.damaged, described.damage) == (1, (damage,))
        await until(lambda: T0 in consumer.troubles())
        await asyncio.sleep(60.0)
        assert "is not on the disk" not in caplog.text
        assert caplog.text.count("a record cannot be read") == 1
        damaged = cluster.nodes["b1"].parts.verifier.any_damage()
        assert not damaged, "all nodes have the same"

        (planned,) = await plan_reset(client, "g", PAST_DAMAGE)
        assert (planned.skips, planned.repeats) == (1, 0)
        assert planned.after.offset == end
        await reset(client, "g", [planned], fence=True)
        assert await waiting == [b"12", b"13"]
    assert not await plan_reset(client, "g", PAST_DAMAGE)


async def test_a_group_before_the_damage_is_not_moved(
    factory: aio.MessageFactory, client: ClusterClient, wire: Client
) -> None:
    """It has messages to handle before that."""
    await put(wire, BAD["checksum"])
    async with await consumer_of(factory) as consumer:
        assert await take(consumer, 1) == [b"10"]
    assert not await plan_reset(client, "g", PAST_DAMAGE)


async def test_several_unreadable_records_are_passed_at_once(
    client: ClusterClient, wire: Client
) -> None:
    result = await wire.put("t", 0, [*BAD.values(), record(9)])
    reader = PartitionReader(client, T0)
    end = result.offset + sum(map(len, BAD.values()))
    assert await reader.past_damage(result.offset) == end
    assert await reader.past_damage(0) == end, "the control record is no message"
    assert await reader.past_damage(end) == end


async def test_a_report_of_any_offset_invents_no_damage(
    client: ClusterClient, wire: Client
) -> None:
    """Only a record that begins there, or behind it in its batch, is looked at."""
    result = await wire.put("t", 0, [record(1), record(2)])
    end = result.offset + len(record(1)) + len(record(2))
    await client.track("t")
    address, _ = client.master_at(T0, 0)
    for offset in range(end):
        assert await report_damage(client, address, T0, offset) is None
        await asyncio.sleep(1.0)
    assert not (await cluster_status(client)).damage


async def test_get_says_what_to_do(factory: aio.MessageFactory, wire: Client) -> None:
    start, _ = await put(wire, BAD["checksum"])
    consumer = await factory.create_consumer()
    with pytest.raises(CorruptData, match=str(start)) as raised:
        await consumer.get("t", 0, start, 100)
    assert "vq topic describe" in raised.value.hint
