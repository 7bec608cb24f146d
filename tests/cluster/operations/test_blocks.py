"""Nodes tell which blocks they hold, and give their stored bytes as they are."""

from typing import Any

import pytest
from support.archives import done
from support.broker import Client as Connection
from support.broker import MemoryCluster, memory_cluster, message
from support.client import factory_of
from support.node_pair import NodePair, settled

from vq.broker.serving import held_blocks
from vq.errors import CorruptData, InvalidArgument, InvalidRequest, OffsetOutOfRange
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import BlocksRequest
from vq.store.records.format import INDEX_SUFFIX
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

SIZE = 88 + 20 + 100  # of a batch with one message of 100 bytes


@pytest.fixture
async def cluster():
    async with memory_cluster() as found:
        yield found


@pytest.fixture
async def node(cluster: MemoryCluster):
    """Topic ``t`` with two partitions of three blocks, two of them archived; ``u`` without any."""
    made = await cluster.start()
    await cluster.create_topic("t", partitions=2, retention_policy="archive")
    await cluster.create_topic("u", partitions=1)
    await until(lambda: len(made.parts.partitions.channels) == 3)
    client = await Connection.connect(cluster.network, made.address)
    channels = [made.parts.partitions.channels["t", number] for number in range(2)]
    for channel in channels:
        for number in range(2):
            await client.put(*channel.partition, [message(b"%d" % number * 100)])
            channel.log.roll()
            await settled(channel)
    async with cluster.admin() as coordinator:
        assert (await done(coordinator, made, 25)).total.blocks == 4
    for channel in channels:
        await client.put(*channel.partition, [message(b"2" * 100)])
    return made


async def test_every_block_is_told_with_its_times_and_messages(cluster, node) -> None:
    """Archived ones with the size of the zip; a partition without messages has no block."""
    async with factory_of(cluster) as factory:
        found, silent = await factory.admin.list_blocks()
        assert silent == []
        assert [(each.topic, each.partition, len(each.blocks)) for each in found] == [
            ("t", 0, 3),
            ("t", 1, 3),
            ("u", 0, 0),
        ]
        first = found[0]
        assert (first.group, first.node, first.leads, first.state) == ("b1", "n1", True, "rw")
        assert (first.is_whole, first.reason) == (True, "")
        status = await factory.admin.broker_status(node.address)
        assert first.directory == status.raw["disks"][0]["directory"]
        assert [(each.start, each.end) for each in first.blocks] == [
            (0, SIZE),
            (SIZE, 2 * SIZE),
            (2 * SIZE, 3 * SIZE),
        ]
        archived = [each.archive_bytes is not None for each in first.blocks]
        assert archived == [True, True, False]
        assert [each.is_open for each in first.blocks] == [False, False, True]
        assert [each.messages for each in first.blocks] == [1, 1, 1]
        listed, _ = await factory.admin.list_archives("t", partitions=[0])
        told = [(each.first_ms, each.last_ms, each.zip_bytes) for each in listed]
        assert [(b.first_ms, b.last_ms, b.archive_bytes) for b in first.blocks[:2]] == told
        assert first.blocks[0].disk_bytes == listed[0].zip_bytes
        assert first.blocks[2].disk_bytes == SIZE
        assert [each.topic for each in await factory.admin.blocks_of(node.address, "u")] == ["u"]


async def test_a_long_list_takes_several_answers(
    cluster, node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with factory_of(cluster) as factory:
        whole, _ = await factory.admin.list_blocks()
        for name, value in (("ANSWER_BYTES", 1), ("ANSWER_BYTES", 900), ("LOGS_MAX", 1)):
            with monkeypatch.context() as patch:
                patch.setattr(held_blocks, name, value)
                assert (await factory.admin.list_blocks())[0] == whole


async def test_a_restarted_node_reads_small_indexes_and_no_more_than_its_bound(
    cluster, node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed blocks of which nothing is in memory: their facts are those of before."""
    channel = node.parts.partitions.channels["u", 0]
    client = await Connection.connect(cluster.network, node.address)
    for _ in range(3):
        await client.put(*channel.partition, [message(b"x" * 100)] * 2)
        channel.log.roll()
        await settled(channel)
    async with factory_of(cluster) as factory:
        before = (await factory.admin.blocks_of(node.address, "u"))[0]
        assert [each.messages for each in before.blocks] == [2, 2, 2]
        for block in channel.log.closed_blocks:
            block.index = block.facts = None
        monkeypatch.setattr(held_blocks, "READS_MAX", 1)
        assert (await factory.admin.blocks_of(node.address, "u"))[0] == before


async def test_facts_that_damage_hides_are_not_known(cluster, node) -> None:
    """They are None, not 0, and the other blocks are told."""
    channel = node.parts.partitions.channels["u", 0]
    client = await Connection.connect(cluster.network, node.address)
    for _ in range(2):
        await client.put(*channel.partition, [message(b"x" * 100)])
        channel.log.roll()
        await settled(channel)
    first = channel.log.closed_blocks[0]
    first.index = first.facts = None
    disk = node.parts.disk
    disk.unlink(first.path.with_suffix(INDEX_SUFFIX))
    file = disk.open(first.path)
    file.pwrite([b"\xff" * 88], 0)
    file.close()
    async with factory_of(cluster) as factory:
        blocks = (await factory.admin.blocks_of(node.address, "u"))[0].blocks
    assert (blocks[0].first_ms, blocks[0].last_ms, blocks[0].messages) == (None, None, None)
    assert blocks[0].size_bytes == blocks[1].size_bytes
    assert blocks[1].messages == 1


async def test_a_silent_node_is_told(cluster, node) -> None:
    async with factory_of(cluster) as factory:
        address = node.address
        await node.stop()
        with pytest.MonkeyPatch.context() as patch:

            async def nodes(_: object) -> list[Any]:
                from vq.model import NodeInfo

                return [NodeInfo("b1", "n1", address)]

            patch.setattr("vq.coordination.brokers.registry.all_nodes", nodes)
            found, silent = await factory.admin.list_blocks()
    assert found == []
    assert [(each.group, each.node, each.address) for each in silent] == [("b1", "n1", address)]
    assert "Unreachable" in silent[0].error


async def test_a_place_without_a_topic_is_refused(cluster, node) -> None:
    async with factory_of(cluster) as factory:
        client = factory.admin.cluster
        with pytest.raises(InvalidRequest):
            await client.request(node.address, Command.BLOCKS, BlocksRequest(from_offset=7))


async def test_a_list_that_does_not_go_on_ends(
    cluster, node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a broker that names the same place again and again."""
    async with factory_of(cluster) as factory:
        client = factory.admin.cluster
        real = client.request

        async def request(*args: Any, **named: Any) -> Any:
            answer, body = await real(*args, **named)
            answer.more, answer.next_topic = True, "t"
            return answer, body

        monkeypatch.setattr(client, "request", request)
        with pytest.raises(CorruptData, match="does not get behind"):
            await factory.admin.blocks_of(node.address)


async def test_bytes_come_as_they_are_from_a_node_or_the_master(cluster, node) -> None:
    """From any offset, not cut at records, up to the end of a block."""
    async with factory_of(cluster) as factory:
        read = factory.admin.read_bytes
        whole = await factory.admin.read_range("t", 0, 2 * SIZE)
        found = await read("t", 0, 2 * SIZE)
        assert (found.data, found.next_offset, found.latest) == (whole.data, 3 * SIZE, 3 * SIZE)
        for given in (None, node.address, str(node.address)):
            some = await read("t", 0, 2 * SIZE + 5, max_bytes=11, node=given)
            assert (some.offset, some.data) == (2 * SIZE + 5, whole.data[5:16])
        assert (await read("t", 0, 3 * SIZE)).data == b""
        with pytest.raises(OffsetOutOfRange):
            await read("t", 0, 4 * SIZE)
        for bad in ({"max_bytes": 0}, {"max_bytes": 1 << 30}):
            with pytest.raises(InvalidArgument):
                await read("t", 0, 0, **bad)
        with pytest.raises(InvalidArgument):
            await read("t", 0, -1)


async def test_an_idle_copy_gives_its_own_bytes_up_to_the_end(cluster) -> None:
    """It learns with the next request what is committed; reading from it has it ask."""
    pair = NodePair(cluster)
    await pair.start("n1")
    await cluster.create_topic("t", partitions=1)
    await pair.put()
    copy = await pair.start("n2")
    await pair.in_sync()
    await pair.put(3)
    await until(pair.same)
    async with factory_of(cluster) as factory:
        read = factory.admin.read_bytes
        whole = (await read("t", 0, 0)).data
        found = b""
        while len(found) < len(whole):
            some = await read("t", 0, len(found), node=copy.address)
            assert some.data
            found += some.data
        assert found == whole
        [held] = await factory.admin.blocks_of(copy.address)
        assert (held.node, held.leads, held.blocks[-1].end) == ("n2", False, len(whole))
        listed, _ = await factory.admin.list_blocks("t")
        assert [(each.node, each.leads) for each in listed] == [("n1", True), ("n2", False)]
