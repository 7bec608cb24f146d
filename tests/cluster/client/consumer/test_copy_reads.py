"""A consumer that reads from copies gets every message once, in order, whatever happens to them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.archive_places import URL, Failing
from support.broker import MemoryCluster
from support.client import HOST
from support.columns import rows_of
from support.consumers import consumer_of
from support.node_pair import settled
from support.producers import producer_of

from vq import aio
from vq.broker.health.repairing import Repairer
from vq.broker.replication import insync_set
from vq.client.consumer.fetch import fetch_sessions, fetcher
from vq.client.reading import nodes
from vq.client.reading.nodes import AVOID_S
from vq.model import Message
from vq.store.log.log import Log
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

COUNT = 4


class Group:
    """A master n1 and a copy n2 in rack ``blue``; topic ``many``, a producer and a consumer."""

    def __init__(self, cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
        self.cluster = cluster
        self.factory = factory
        self.sent = 0
        self.got: dict[int, list[int]] = defaultdict(list)
        self.producer: aio.MessageProducer
        self.consumer: aio.MessageConsumer | None = None

    def read_from(self, node: str) -> int:
        """Return how many bytes readers got from a node."""
        return self.cluster.nodes[node].parts.context.counters.bytes_out

    def log(self, node: str, partition: int) -> Log:
        log = self.cluster.nodes[node].parts.partitions.channels["many", partition].log
        assert log is not None
        return log

    def copied_all(self) -> bool:
        return all(
            self.log("b1", number).end_offset == self.log("b1-n2", number).end_offset
            for number in range(COUNT)
        )

    async def consume(self, **settings: object) -> None:
        self.consumer = await consumer_of(self.factory, topic="many", **settings)
        await self.consumer.start()

    async def send(self, count: int = 40) -> None:
        for number in range(self.sent, self.sent + count):
            await self.producer.send(Message("many", b"%0200d" % number), timeout=WAIT_S)
        self.sent += count

    async def receive(self) -> None:
        """Take what was sent until now."""
        assert self.consumer is not None
        async with asyncio.timeout(WAIT_S):
            while sum(map(len, self.got.values())) < self.sent:
                message = await anext(aiter(self.consumer))
                self.got[message.partition].append(int(message.content))

    async def until_read_from(self, node: str) -> None:
        """Send and receive a little until a node has given more than it has until now.

        A consumer chooses a node again with each answer, also while its request goes on.
        """
        before, loop = self.read_from(node), asyncio.get_running_loop()
        ends = loop.time() + AVOID_S + 5.0
        while self.read_from(node) == before:
            assert loop.time() < ends
            await asyncio.sleep(0.5)
            await self.send(4)
            await self.receive()

    def check(self) -> None:
        found = [number for numbers in self.got.values() for number in numbers]
        assert sorted(found) == list(range(self.sent))
        assert all(found == sorted(found) for found in self.got.values())


def damage(group: Group, node: str) -> None:
    """Change the content of a message in each partition, behind the back of the node."""
    for number in range(COUNT):
        log = group.log(node, number)
        (piece,) = log.reader.pieces(0, log.end_offset)
        stored = bytes(log.reader.read(0, log.end_offset, log.end_offset))
        file = group.cluster.disks[node].open(piece.path)
        file.pwrite([b"#"], stored.rindex(b"0" * 150) - piece.block_start)
        file.close()


@pytest.fixture
async def group(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Group]:
    monkeypatch.setattr(insync_set, "TICK_S", 0.02)
    monkeypatch.setattr(nodes, "AVOID_S", 0.5)
    await cluster.create_topic("many", partitions=COUNT)
    await cluster.start(node="n2", rack="blue")
    group = Group(cluster, factory)
    group.producer = await producer_of(factory)
    await group.producer.publish("many")
    await group.send()
    await until(lambda: cluster.nodes["b1"].parts.context.role.named == 2)
    yield group
    if group.consumer is not None:
        await asyncio.wait_for(group.consumer.close(), WAIT_S)
    await asyncio.wait_for(group.producer.close(), WAIT_S)


async def test_any_spreads_partitions_over_master_and_copy(group: Group) -> None:
    await group.consume(read_from="any")
    for _ in range(5):
        await group.send()
        await group.receive()
    group.check()
    assert min(group.read_from("b1"), group.read_from("b1-n2")) > 0


async def test_nearest_reads_from_the_own_rack(group: Group) -> None:
    before = group.read_from("b1")
    await group.consume(read_from="nearest", rack="blue")
    for _ in range(5):
        await group.send()
        await group.receive()
    group.check()
    assert group.read_from("b1-n2") > 0
    copied = group.read_from("b1") - before  # what n2 copies counts, too, and what began there
    assert group.read_from("b1-n2") > copied / 2


async def test_a_rack_without_a_node_reads_from_the_master(group: Group) -> None:
    await group.consume(read_from="nearest", rack="green")
    await group.send()
    await group.receive()
    group.check()
    assert group.read_from("b1-n2") == 0


async def test_a_copy_that_is_lost_is_left_at_once(group: Group) -> None:
    await group.consume(read_from="nearest", rack="blue")
    await group.receive()
    assert group.read_from("b1-n2") > 0
    group.cluster.network.kill("b1-n2")
    group.cluster.ensemble.expire(group.cluster.coordinators["b1-n2"])
    await group.send()
    await group.receive()
    group.check()


async def test_a_copy_that_falls_behind_is_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the in-sync set, and the consumer hears of that."""
    monkeypatch.setattr(insync_set, "LAG_MAX_S", 0.3)
    await group.consume(read_from="nearest", rack="blue")
    await group.receive()
    group.cluster.flushers["b1-n2"].held = True
    await group.send()
    await group.receive()
    group.check()
    group.cluster.flushers["b1-n2"].release()
    await until(lambda: group.cluster.nodes["b1"].parts.context.role.named == 2)
    await group.until_read_from("b1-n2")
    group.check()


async def test_a_consumer_goes_on_when_the_copy_takes_over(group: Group) -> None:
    await group.consume(read_from="any")
    await group.receive()
    await group.cluster.nodes["b1"].stop()
    await group.send()
    await group.receive()
    group.check()


async def test_a_copy_that_starts_again_is_read_from_again(group: Group) -> None:
    await group.consume(read_from="nearest", rack="blue")
    await group.receive()
    await group.cluster.nodes["b1-n2"].stop()
    await group.send()
    await group.receive()
    await group.cluster.start(node="n2", rack="blue")
    await group.until_read_from("b1-n2")
    group.check()


async def test_a_copy_that_the_consumer_cannot_reach_is_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in sync, and alive for all others; nothing it sends arrives."""
    monkeypatch.setattr(fetch_sessions, "GRACE_S", 0.1)
    await group.consume(read_from="nearest", rack="blue")
    await group.receive()
    group.cluster.network.cut_one_way("b1-n2", HOST)
    await group.send()
    await group.receive()
    assert group.cluster.nodes["b1"].parts.context.role.named == 2
    group.cluster.network.heal()
    await group.until_read_from("b1-n2")
    group.check()


@pytest.fixture
def unrepaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node repairs its disk, and readers pause only shortly."""

    async def leave_it(*_: object) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setattr(Repairer, "_try", leave_it)
    monkeypatch.setattr(fetcher, "AGAIN", replace(fetcher.AGAIN, first_s=0.01))


@pytest.mark.usefixtures("unrepaired")
async def test_bytes_that_are_damaged_on_the_master_are_read_from_its_copy(group: Group) -> None:
    """Also by a consumer that reads from masters."""
    await until(group.copied_all)
    damage(group, "b1")
    await group.consume()
    await group.receive()
    group.check()
    assert group.consumer.bad_reads > 0
    assert group.read_from("b1-n2") > 0


@pytest.mark.usefixtures("unrepaired")
async def test_get_reads_bytes_that_are_damaged_on_the_master_from_its_copy(group: Group) -> None:
    await until(group.copied_all)
    damage(group, "b1")
    group.consumer = await consumer_of(group.factory, topic="many")
    offset, got = 0, []
    while messages := await group.consumer.get("many", 0, offset, 1 << 16):
        got += [int(message.content) for message in messages]
        offset = messages[-1].next_offset
    assert offset == group.log("b1", 0).end_offset
    assert got == sorted(got)
    assert group.consumer.bad_reads > 0


@pytest.mark.usefixtures("unrepaired")
async def test_bytes_that_are_damaged_on_a_copy_are_read_from_the_master(group: Group) -> None:
    """The copy hears of it from the reader, at once."""
    await until(group.copied_all)
    damage(group, "b1-n2")
    await group.consume(read_from="nearest", rack="blue")
    await group.receive()
    group.check()
    assert group.consumer.bad_reads > 0
    await until(group.cluster.nodes["b1-n2"].parts.verifier.any_damage)


async def columns_of(group: Group) -> None:
    """Take what was sent until now, as a program does that analyses ranges."""
    group.got.clear()
    for number, ends in (await group.factory.admin.bounds("many")).items():
        assert ends is not None
        found = group.factory.admin.read_columns("many", number, 0, ends.latest, read_from="any")
        async for each in found:
            group.got[number] += [int(row[-1]) for row in rows_of(each.table)]


async def test_ranges_are_read_from_copies_and_from_the_master_if_those_fail(group: Group) -> None:
    """Also when a copy is behind, damaged, or gone."""
    await until(group.copied_all)
    for _ in range(6):  # the first node is drawn for each range
        await columns_of(group)
        group.check()
    assert group.read_from("b1-n2") > 0
    group.cluster.flushers["b1-n2"].held = True
    sending = asyncio.create_task(group.send(4))
    await columns_of(group)
    group.cluster.flushers["b1-n2"].release()
    await sending
    damage(group, "b1-n2")
    await columns_of(group)
    group.check()
    group.cluster.network.kill("b1-n2")
    await columns_of(group)
    group.check()


async def test_archives_of_copies_are_read_directly_like_those_of_the_master(group: Group) -> None:
    """Each node has zips of its own, and tells where they are."""
    await until(group.copied_all)
    Failing.reset()
    both = [group.cluster.nodes[name].parts.partitions for name in ("b1", "b1-n2")]
    channels = [(each, each.channels["many", n]) for each in both for n in range(COUNT)]
    for node, channel in channels:
        await node.logs.roll(channel, channel.log.open_block)
    ends = {n: group.log("b1", n).end_offset for n in range(COUNT)}
    await group.send()  # a copy learns with what comes next what is committed
    for node, channel in channels:
        block = channel.log.closed_blocks[0]
        assert block.end_offset == ends[channel.partition.partition]
        await settled(channel)
        await until(lambda c=channel, b=block: c.high_watermark >= b.end_offset)
        await node.logs.archiving.archive(channel, block, URL)
    before = group.read_from("b1"), group.read_from("b1-n2")
    zips = group.factory.admin.cluster.zips
    for _ in range(20):  # the first node is drawn for each range
        count = 0
        for number, end in ends.items():
            async for each in group.factory.admin.read_columns(
                "many", number, 0, end, read_from="any", archives_directly=True
            ):
                count += each.table.rows
        assert count == 40
        if {each.url.split("/")[-4].partition(".")[0] for each in zips._open} == {"n1", "n2"}:
            break
    else:
        pytest.fail(f"archives of one node alone were read: {list(zips._open)}")
    assert (group.read_from("b1"), group.read_from("b1-n2")) == before
