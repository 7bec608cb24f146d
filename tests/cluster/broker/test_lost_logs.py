"""A broker whose logs vanished while it was down: who is told, and what a start costs."""

import dataclasses
import logging

import pytest
from support.broker import DATA, Client, MemoryCluster, message

from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import change_placement, delete_topic, describe_topic
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import PartitionFailed, PartitionQuarantined
from vq.model import Span
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.begun import BEGUN_NAME
from vq.store.log.checkpoint import Checkpoint
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_readers_and_senders_of_a_lost_log_are_told(cluster, caplog):
    """Wherever they are: no offset of it is said to lie outside of what there is."""
    node = await cluster.start()
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    end = (await client.put("t", 0, [message(b"x")])).offset + 21
    await node.stop()
    cluster.disks["b1"].rmtree(DATA / "t" / "0")
    caplog.clear()
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    for offset in (0, end, end + 1000):
        with pytest.raises(PartitionQuarantined, match="is gone or empty"):
            await client.get("t", 0, offset)
    with pytest.raises(PartitionQuarantined):
        await client.put("t", 0, [message(b"y")])
    (told,) = (await client.status(with_partitions=True)).partitions
    assert (told.state, told.log_end_offset) == ("quarantined", 0)
    assert str(DATA / "t" / "0") in told.reason
    (record,) = [each for each in caplog.records if "is gone or empty" in each.getMessage()]
    assert record.levelno == logging.ERROR


async def test_an_earlier_range_that_is_lost_is_told(cluster):
    """The partition moved away and came back: it takes appends, and a part of it is missing."""
    node = await cluster.start()
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    end = node.parts.partitions.channels["t", 0].log.end_offset
    await node.stop()
    disk = cluster.disks["b1"]
    disk.rename(DATA / "t" / "0", DATA / "t" / "0.from-0")  # as if put aside by an ADOPT
    async with cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        away = move(view.partitions[0], end, "b2")
        back = move(away, 9_000, "b1")
        await change_placement(admin, view, back)
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    assert (await client.put("t", 0, [message(b"y")])).offset == 9_000 + 88
    assert (await client.status()).problems == []
    await node.stop()
    disk.rmtree(DATA / "t" / "0.from-0")

    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    (problem,) = (await client.status()).problems
    assert problem.startswith("an earlier range of partition t-0 is quarantined")
    assert str(DATA / "t" / "0.from-0") in problem
    for offset in (0, 100, end - 1):
        with pytest.raises(PartitionQuarantined, match="is gone or empty"):
            await client.get("t", 0, offset)
    assert (await client.put("t", 0, [message(b"z")])).offset > 9_000 + 88
    header, _ = await client.get("t", 0, 9_000)
    assert header.next_offset == header.high_watermark


@pytest.mark.parametrize("fault", ["unreadable", "foreign"])
async def test_an_earlier_range_that_cannot_be_opened_is_told(cluster, fault):
    """Nobody is told that the partition begins behind it, and would leave its messages out."""
    node = await cluster.start()
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    await node.stop()
    disk, aside = cluster.disks["b1"], DATA / "t" / "0.from-0"
    disk.rename(DATA / "t" / "0", aside)  # as if put aside by an ADOPT
    async with cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        back = move(move(view.partitions[0], 4_000, "b2"), 9_000, "b1")
        await change_placement(admin, view, back)
    if fault == "unreadable":
        disk.fail("read_bytes", name=f"{aside.name}/{CHECKPOINT_NAME}")
    else:
        checkpoint = Checkpoint(topic_id="another", start_offset=0, offset=0)
        disk.write_atomic(aside / CHECKPOINT_NAME, checkpoint.to_bytes())

    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    (problem,) = (await client.status()).problems
    assert problem.startswith("an earlier range of partition t-0 is unreadable: ")
    for offset in (0, 100, 3_999):
        with pytest.raises(PartitionFailed):
            await client.get("t", 0, offset)
    told = await client.offsets("t", 0, count=True, from_offset=0, to_offset=9_000)
    assert (told.earliest, told.latest, told.count_exact) == (0, 9_000, False)
    for unknown in ({"by_time": True, "time_ms": 1}, {"place": True, "place_offset": 100}):
        with pytest.raises(PartitionFailed):
            await client.offsets("t", 0, **unknown)
    assert (await client.put("t", 0, [message(b"z")])).offset == 9_000 + 88
    assert (await client.get("t", 0, 9_000))[1]
    async with cluster.admin() as admin:
        await delete_topic(admin, "t")
    await until(lambda: not node.parts.partitions.channels)


async def lose_the_log(cluster: MemoryCluster) -> None:
    """Store a message, stop the broker, and remove the topic's directory."""
    node = await cluster.start()
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    await node.stop()
    cluster.disks["b1"].rmtree(DATA / "t")


async def test_a_partition_that_is_given_another_begin_goes_on_there(cluster):
    """The loss is accepted by the placement; no offset is given out twice."""
    await lose_the_log(cluster)
    async with cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        moved = dataclasses.replace(view.partitions[0], spans=(Span("b1", 5_000),))
        await change_placement(admin, view, moved)
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    assert (await client.put("t", 0, [message(b"y")])).offset == 5_000 + 88


async def test_the_record_keeps_the_logs_of_a_topic_that_cannot_be_read(cluster):
    """The topic is not gone. While its directory is missing, the record alone tells of its logs."""
    await lose_the_log(cluster)
    async with cluster.admin() as admin:
        good = (await admin.get(TopicNode.path("t"))).data
        await admin.set(TopicNode.path("t"), b"{damaged")
        node = await cluster.start()
        assert "t" in node.parts.partitions.view.problems
        await node.stop()
        await admin.set(TopicNode.path("t"), good)
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    with pytest.raises(PartitionQuarantined, match="is gone or empty"):
        await client.put("t", 0, [message(b"y")])


async def test_a_topic_made_anew_misses_nothing(cluster):
    """The record speaks of topic ids."""
    node = await cluster.start()
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    async with cluster.admin() as admin:
        await delete_topic(admin, "t")
    await until(lambda: not node.parts.partitions.channels)
    await cluster.create_topic()
    assert (await client.put("t", 0, [message(b"y")])).offset == 88
    await node.stop()
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    assert (await client.put("t", 0, [message(b"z")])).offset > 88


class CountingDisk(MemoryDisk):
    """Counts what is done to the record of begun logs."""

    def __init__(self) -> None:
        super().__init__(record=False)
        self.opened = self.replaced = 0

    def open(self, path, *, create=False):
        """See ``Disk.open``."""
        self.opened += path.name == BEGUN_NAME
        return super().open(path, create=create)

    def write_atomic(self, path, data):
        """See ``Disk.write_atomic``."""
        self.replaced += path.name == BEGUN_NAME
        super().write_atomic(path, data)


async def test_the_record_costs_a_start_nothing_and_an_upgrade_one_write(cluster):
    """However many partitions there are: it is read once, and written once if it is missing."""
    disk = cluster.disks["b1"] = CountingDisk()
    count = 100
    node = await cluster.start()
    await cluster.create_topic(partitions=count)
    assert (disk.opened, disk.replaced) == (0, 0), "nothing is begun before the first message"
    client = await Client.connect(cluster.network, node.address)
    for number in range(count):
        await client.put("t", number, [message(b"x")])
    assert disk.opened + disk.replaced <= count
    for again in ("as it was", "as an earlier vq left it"):
        await node.stop()
        if again != "as it was":
            disk.unlink(DATA / BEGUN_NAME)
        disk.opened = disk.replaced = 0
        node = await cluster.start()
        client = await Client.connect(cluster.network, node.address)
        await until(lambda: disk.exists(DATA / BEGUN_NAME))
        await client.put("t", 0, [message(b"y")])
        assert (disk.opened, disk.replaced) == (0, again != "as it was")
    await node.stop()
    for number in range(count):
        disk.rmtree(DATA / "t" / str(number))
    node = await cluster.start()
    channels = node.parts.partitions.channels.values()
    assert {channel.told[0] for channel in channels} == {"quarantined"}
