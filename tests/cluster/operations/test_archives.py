"""Operators list archives, have them verified, and get blocks back; exports read across both."""

from dataclasses import replace

import pytest
from support.archives import done
from support.broker import DATA, MemoryCluster, memory_cluster, message
from support.broker import Client as Connection
from support.client import factory_of
from support.node_pair import settled

from vq.broker.serving import archives as broker_archives
from vq.errors import (
    Busy,
    InvalidArgument,
    InvalidRequest,
    MemberRequired,
    UnknownTopic,
    Unreachable,
)
from vq.model import Address
from vq.operations.archives import archives as admin_archives
from vq.operations.archives.archives import ArchivedBlock
from vq.operations.messages.streams import Begin, End, messages
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import ArchiveRequest, ArchiveResponse
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster():
    async with memory_cluster() as found:
        yield found


@pytest.fixture
async def node(cluster: MemoryCluster):
    """Topic ``t`` with two partitions of three blocks, two of which are archived, and ``u``."""
    made = await cluster.start()
    for name in ("t", "u"):
        await cluster.create_topic(name, partitions=2, retention_policy="archive")
    await until(lambda: len(made.parts.partitions.channels) == 4)
    client = await Connection.connect(cluster.network, made.address)
    for channel in made.parts.partitions.channels.values():
        for number in range(2):
            await client.put(*channel.partition, [message(b"%d" % number * 100)])
            channel.log.roll()
            await settled(channel)
    async with cluster.admin() as coordinator:
        assert (await done(coordinator, made, 25)).total.blocks == 8
    for channel in made.parts.partitions.channels.values():
        await client.put(*channel.partition, [message(b"2" * 100)])
    return made


async def test_archives_are_listed_by_topic_partition_and_time(cluster, node) -> None:
    async with factory_of(cluster) as factory:
        found, silent = await factory.admin.list_archives()
        assert silent == []
        assert [(each.topic, each.partition) for each in found] == [
            (topic, partition) for topic in "tu" for partition in (0, 0, 1, 1)
        ]
        first, second = found[:2]
        assert (first.group, first.node, first.start) == ("b1", "n1", 0)
        assert (first.end, first.url, first.messages) == (second.start, "", 1)
        assert first.zip_bytes > 0
        assert first.size_bytes == first.end
        assert 0 <= node.parts.context.clock.wall_ms() - first.last_ms < 60_000
        assert first.first_ms <= first.last_ms <= second.first_ms
        only, _ = await factory.admin.list_archives("t", partitions=[1])
        assert only == [each for each in found if (each.topic, each.partition) == ("t", 1)]
        with pytest.raises(UnknownTopic):
            await factory.admin.list_archives("nothing")
        late = found[-1].last_ms + 1
        assert (await factory.admin.list_archives(since_ms=late))[0] == []
        assert (await factory.admin.list_archives(until_ms=first.first_ms))[0] == []
        whole, _ = await factory.admin.list_archives(since_ms=first.first_ms, until_ms=late)
        assert whole == found


async def test_a_long_list_takes_several_answers(
    cluster, node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with factory_of(cluster) as factory:
        whole, _ = await factory.admin.list_archives()
        for size in (1, 700):
            monkeypatch.setattr(broker_archives, "LIST_BYTES", size)
            assert (await factory.admin.list_archives())[0] == whole
            assert (await factory.admin.list_archives("t"))[0] == whole[:4]


async def test_a_node_that_does_not_answer_is_told(cluster, node) -> None:
    cluster.node("b2")
    async with factory_of(cluster) as factory:
        await cluster.nodes["b2"].start()
        address = cluster.nodes["b2"].address
        await cluster.nodes["b2"].stop()

        async def nodes(*_: object) -> list[object]:
            [real] = await real_nodes(factory.admin.cluster.coordinator)
            return [real, replace(real, group="b2", address=address)]

        real_nodes = admin_archives.registry.all_nodes
        admin_archives.registry.all_nodes = nodes
        try:
            found, silent = await factory.admin.list_archives()
        finally:
            admin_archives.registry.all_nodes = real_nodes
    assert len(found) == 8
    assert len(silent) == 1
    assert silent[0].startswith("b2/n1 at ")


async def test_a_node_that_does_not_run_is_told_because_it_may_have_archives(cluster, node) -> None:
    await cluster.start("b2")
    await cluster.nodes["b2"].stop()
    async with factory_of(cluster) as factory:
        found, silent = await factory.admin.list_archives()
        assert (len(found), silent) == (8, ["b2/n1 is not registered"])
        # It has nothing of this topic.
        assert (await factory.admin.list_archives("t"))[1] == []


async def test_damage_of_a_zip_is_found_by_verifying(cluster, node) -> None:
    async with factory_of(cluster) as factory:
        blocks, _ = await factory.admin.list_archives("t")
        seen: list[tuple[int, int]] = []
        found = await factory.admin.verify_archives(
            blocks, on_progress=lambda *numbers: seen.append(numbers)
        )
        assert [each.block for each in found] == blocks
        assert {(each.batches, each.problem, each.error) for each in found} == {(1, "", "")}
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
        path = DATA / "t" / "0" / "0000000000000000.zip"
        disk = cluster.disks["b1"]
        data = bytearray(disk.read_bytes(path))
        data[len(data) // 3] ^= 1
        disk.write_atomic(path, bytes(data))
        bad, *good = await factory.admin.verify_archives(blocks)
        assert bad.problem
        assert bad.error == ""
        assert {each.problem for each in good} == {""}


async def test_an_archive_that_is_gone_is_unknown_and_not_damaged(cluster, node) -> None:
    async with factory_of(cluster) as factory:
        blocks, _ = await factory.admin.list_archives("t")
        odd = replace(blocks[0], start=7)
        [found] = await factory.admin.verify_archives([odd])
        assert (found.batches, found.problem) == (None, "")
        assert "there is no archive at offset 7" in found.error
        other = replace(blocks[0], topic_id="0" * 16)
        with pytest.raises(InvalidRequest, match="another topic of that name"):
            await factory.admin.restore_archive(other)


@pytest.mark.parametrize("act", ["verify_archives", "restore_archives"])
async def test_a_place_that_does_not_answer_is_not_asked_for_thousands(
    cluster, node, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Each may take a minute. What lies elsewhere, or beside the log, is done."""
    asked: list[str] = []

    async def ask(_: object, block: ArchivedBlock, *__: object) -> ArchiveResponse:
        asked.append(block.url)
        if block.url.startswith("s3://away/"):
            raise Busy("away")
        return ArchiveResponse(batches=1)

    monkeypatch.setattr(admin_archives, "_ask", ask)
    async with factory_of(cluster) as factory:
        (one, *_), _ = await factory.admin.list_archives()
        blocks = [
            replace(
                one, start=number, url=f"s3://{place}/c/g/n/t.1/0/{number}.zip" if place else ""
            )
            for number in range(10)
            for place in ("away", "there", "")
        ]
        found = await getattr(factory.admin, act)(blocks)
    assert [each.block for each in found] == blocks
    assert sum(url.startswith("s3://away/") for url in asked) == 3
    assert len(asked) == 3 + 20
    assert sum(bool(each.error) for each in found) == 10


async def test_a_restored_block_is_a_block_file_again(cluster, node) -> None:
    async with factory_of(cluster) as factory:
        blocks, _ = await factory.admin.list_archives("t", partitions=[0])
        await factory.admin.restore_archive(blocks[0])
        left, _ = await factory.admin.list_archives("t", partitions=[0])
        assert left == blocks[1:]
        names = cluster.disks["b1"].listdir(DATA / "t" / "0")
        assert "0000000000000000.block" in names
        assert "0000000000000000.archive" not in names
        with pytest.raises(InvalidRequest):
            await factory.admin.restore_archive(blocks[0])
        async with cluster.admin() as coordinator:
            await done(coordinator, node, 25)
        again, _ = await factory.admin.list_archives("t", partitions=[0])
        assert [each.start for each in again[:2]] == [each.start for each in blocks]


async def test_blocks_are_restored_one_after_the_other_and_what_fails_is_told(
    cluster, node
) -> None:
    """The others are done all the same; nobody is asked at an address that came with a block."""
    async with factory_of(cluster) as factory:
        blocks, _ = await factory.admin.list_archives("t")
        elsewhere = [replace(each, address=Address("nowhere", 1)) for each in blocks]
        gone = replace(blocks[0], node="n9")
        odd = replace(blocks[0], start=7)
        seen: list[tuple[int, int]] = []
        found = await factory.admin.restore_archives(
            [gone, odd, *elsewhere], on_progress=lambda *numbers: seen.append(numbers)
        )
        assert [each.block for each in found] == [gone, odd, *elsewhere]
        assert "b1/n9 is not registered" in found[0].error
        assert "there is no archive at offset 7" in found[1].error
        assert {each.error for each in found[2:]} == {""}
        assert seen == [(done, 6) for done in range(1, 7)]
        assert await factory.admin.list_archives("t") == ([], [])
        with pytest.raises(Unreachable, match="b1/n9 is not registered"):
            await factory.admin.restore_archive(gone)


async def test_only_members_of_the_cluster_ask_for_archives(cluster, node) -> None:
    client = await Connection.connect(cluster.network, node.address)
    with pytest.raises(MemberRequired):
        await client.call(Command.ARCHIVE, ArchiveRequest())
    await cluster.prove(client)
    answer, _ = await client.call(Command.ARCHIVE, ArchiveRequest())
    assert len(answer.blocks) == 8
    with pytest.raises(InvalidRequest, match="action 9"):
        await client.call(
            Command.ARCHIVE, ArchiveRequest(action=9, topic="t", partition=0, start_offset=0)
        )


async def test_messages_are_read_across_archives_and_blocks_up_to_an_end(cluster, node) -> None:
    """By offset or by time; as an export reads them."""

    async def read(begin: Begin = Begin(), end: End | None = None, **options: object):  # noqa: B008
        client = factory.admin.cluster
        found = [
            each async for some in messages(client, "t", begin, end=end, **options) for each in some
        ]
        return sorted((each.partition, each.content[:1]) for each in found)

    everything = [(partition, b"%d" % n) for partition in (0, 1) for n in range(3)]
    async with factory_of(cluster) as factory:
        assert await read() == everything
        blocks, _ = await factory.admin.list_archives("t", partitions=[0])
        cut = End(offset=blocks[0].end)
        assert await read(end=cut, partitions=[0]) == everything[:1]
        assert await read(Begin(offset=blocks[1].start), partitions=[0]) == everything[1:3]
        assert await read(end=End(offset=10**9), partitions=[0]) == everything[:3]
        later = node.parts.context.clock.wall_ms() + 60_000
        assert await read(end=End(until_ms=later)) == everything
        assert await read(end=End(until_ms=blocks[0].first_ms)) == []
        with pytest.raises(InvalidArgument, match="an offset means one partition"):
            await read(end=cut)
        with pytest.raises(InvalidArgument, match="give one of"):
            End(until_ms=1, offset=1)
