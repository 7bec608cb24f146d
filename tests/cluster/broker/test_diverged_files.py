"""What a node had to cut from its logs is listed, read and deleted through the broker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started

from vq.client.cluster import ClusterClient
from vq.errors import InvalidArgument, InvalidRequest
from vq.operations.brokers import diverged as admin
from vq.operations.cluster.cluster import cluster_status
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.care.divergence import diverged
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

PARTITION = DATA / "t" / "0"


@dataclass
class Returned:
    """Node n1 of group b1, which came back and had to cut ten messages; an operator's client."""

    cluster: MemoryCluster
    operator: ClusterClient

    @property
    def files(self) -> list[str]:
        """The names of what it keeps, by what is on its disk."""
        return [each.path.name for each in diverged(PARTITION, self.cluster.disks["b1"])]


async def come_back(cluster: MemoryCluster, *, without_index: bool = False) -> MemoryDisk:
    """``n1`` led and took 10 messages alone; ``n2`` has led since, without them.

    ``without_index``: the messages lie in two blocks, and the first one's index is gone.
    """
    first = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: len(first.parts.partitions.channels) == 1)
    client = await Client.connect(cluster.network, first.address)
    await client.put("t", 0, [message(b"common")])
    await first.stop()
    common = cluster.disks["b1"].crash(keep_all)
    again = await cluster.start()
    client = await Client.connect(cluster.network, again.address)
    for number in range(10):
        await client.put("t", 0, [message(b"cut %d" % number)])
        if without_index and not number:
            again.parts.partitions.channels["t", 0].log.roll()
    await again.stop()
    ahead, cluster.disks["b1"] = cluster.disks["b1"], common
    for name in ahead.listdir(PARTITION) if without_index else ():
        if name.endswith(".index"):
            ahead.unlink(PARTITION / name)
    other = await cluster.start()  # leads in epoch 3, from the older state of the disk
    client = await Client.connect(cluster.network, other.address)
    await client.put("t", 0, [message(b"new")])
    second = await cluster.start(node="n2")
    await until(lambda: other.parts.context.role.named == 2)
    await other.stop()
    await until(lambda: second.epoch == 4)
    cluster.disks["b1"] = ahead
    await cluster.start()
    await until(lambda: len(diverged(PARTITION, ahead)) == 1 + without_index)
    return ahead


async def test_a_copy_builds_a_missing_index_to_find_where_it_parts(cluster: MemoryCluster) -> None:
    """It lies in the block where the common epoch ends."""
    disk = await come_back(cluster, without_index=True)
    assert sum(each.messages for each in diverged(PARTITION, disk)) == 10


@pytest.fixture
async def returned(cluster: MemoryCluster) -> AsyncIterator[Returned]:
    await come_back(cluster)
    async with started(cluster, host="operator") as operator:
        yield Returned(cluster, operator)


async def test_what_was_cut_is_listed_with_all_that_is_known_of_it(returned: Returned) -> None:
    [file], silent = await admin.list_cut(returned.operator)
    assert silent == []
    assert file.name == f"b1/n1/t/0/{returned.files[0]}"
    assert (file.topic, file.partition, file.messages) == ("t", 0, 10)
    assert (file.first_epoch, file.last_epoch) == (2, 2)
    assert 0 < file.start_offset < file.end_offset
    assert file.written[0] <= file.written[1]


async def test_its_messages_can_be_read(returned: Returned) -> None:
    [file], _ = await admin.list_cut(returned.operator)
    found = [each async for some in admin.read_cut(returned.operator, file) for each in some]
    assert [each.content for each in found] == [b"cut %d" % number for number in range(10)]
    assert (found[0].topic, found[0].partition) == ("t", 0)
    assert file.start_offset < found[0].offset < found[-1].next_offset == file.end_offset


async def test_it_is_deleted_on_request(returned: Returned) -> None:
    [file], _ = await admin.list_cut(returned.operator)
    assert await admin.find_cut(returned.operator, file.name) == file
    await admin.delete_cut(returned.operator, file)
    assert returned.files == []
    assert await admin.list_cut(returned.operator) == ([], [])
    with pytest.raises(InvalidArgument, match="has no file"):
        await admin.find_cut(returned.operator, file.name)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("b1/n9/t/0/f", "'n9' of group 'b1' is not registered"),
        ("b1", "names no file"),
        ("b1/n1/t/0/0000000000000000.block", "has no file"),
    ],
)
async def test_a_name_that_is_none_is_refused(returned: Returned, name: str, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        await admin.find_cut(returned.operator, name)


@pytest.mark.parametrize("file", ["../@identity", "@identity", "t/0/0000000000000000.block"])
async def test_no_other_file_can_be_read_or_deleted(returned: Returned, file: str) -> None:
    address = returned.cluster.nodes["b1"].address
    for delete in (False, True):
        with pytest.raises(InvalidRequest, match="there is no file"):
            await returned.operator.request(
                address,
                Command.DIVERGED,
                wire.DivergedRequest(file=file, max_bytes=10, delete=delete),
            )


async def test_the_status_of_the_cluster_tells_of_it(returned: Returned) -> None:
    """It is for the operator to know, and nothing is wrong."""
    async with asyncio.timeout(WAIT_S):
        while len(found := (await cluster_status(returned.operator)).unsafe) != 1:
            await asyncio.sleep(0.1)  # n1 joins
    [told] = found
    assert (told.kind, told.node, told.wrong) == ("diverged", "n1", False)
    assert "keeps 1 file(s) of messages that it had to cut" in told.text
