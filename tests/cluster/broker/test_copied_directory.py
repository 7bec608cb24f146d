"""A copy of a data directory runs beside the original, as a backup that is tried out does."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.archive_places import URL, Failing
from support.broker import DATA, Client, MemoryCluster, memory_cluster, message
from support.node_pair import settled

from vq.broker.logs import archiving
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.coordination.topics.topics import delete_topic
from vq.coordination.tree.coordinator import Delete
from vq.coordination.tree.memory import MemoryEnsemble
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.records.checked_text import encode_text
from vq.testing.loop import clock_of_loop
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

LOG = DATA / "t" / "0"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(archiving, "DISCARD_S", 0.05)
    Failing.reset()
    yield
    Failing.reset()


def copy_into(target: MemoryDisk, source: MemoryDisk, path: Path) -> None:
    """Copy a directory with all below it: the same bytes, other files."""
    target.mkdir(path)
    for name in source.listdir(path):
        if source.is_directory(path / name):
            copy_into(target, source, path / name)
        else:
            target.write_atomic(path / name, source.read_bytes(path / name))


def copy_of(ensemble: MemoryEnsemble) -> MemoryEnsemble:
    """A ZooKeeper that was restored from a backup, when the sessions of then are over."""
    found = MemoryEnsemble(clock=clock_of_loop())
    found.tree = ensemble.tree.copy()
    for session in ensemble.sessions:
        for path in found.tree.ephemerals(session):
            found.apply([Delete(path)], 0)
    return found


@asynccontextmanager
async def running(
    disk: MemoryDisk, ensemble: MemoryEnsemble | None = None, **settings: object
) -> AsyncIterator[tuple[MemoryCluster, Client]]:
    """A cluster of one node on this disk, with topic ``t``."""
    async with memory_cluster() as cluster:
        cluster.disks["b1"] = disk
        if ensemble is not None:
            cluster.ensemble = ensemble
        node = await cluster.start(trash_keep_s=0.05, **settings)
        if ensemble is None:
            await cluster.create_topic(partitions=1)
        await until(lambda: ("t", 0) in node.parts.partitions.channels)
        yield cluster, await Client.connect(cluster.network, node.address)


def node_of(cluster: MemoryCluster) -> BrokerNode:
    return cluster.nodes["b1"]


def channel_of(cluster: MemoryCluster) -> Channel:
    return node_of(cluster).parts.partitions.channels["t", 0]


async def fill(cluster: MemoryCluster, client: Client, blocks: int) -> None:
    """Write closed blocks."""
    for number in range(blocks):
        for each in range(5):
            await client.put("t", 0, [message(b"%02d-%02d " % (number, each) * 60)])
        channel_of(cluster).log.roll()
    await settled(channel_of(cluster))


async def archive(cluster: MemoryCluster, *numbers: int) -> None:
    blocks = list(channel_of(cluster).log.closed_blocks)
    for number in numbers:
        await node_of(cluster).parts.partitions.logs.archiving.archive(
            channel_of(cluster), blocks[number], URL
        )


async def read_all(client: Client) -> bytes:
    found, offset = b"", 0
    while True:
        answer, body = await client.get("t", 0, offset)
        found += body
        if not body:
            return found
        offset = answer.next_offset


async def do_archive(cluster: MemoryCluster) -> None:
    """The run of the copy makes an archive of a block that has become one in the original, too."""
    await archive(cluster, 2)


async def do_delete_by_retention(cluster: MemoryCluster) -> None:
    channel = channel_of(cluster)
    await node_of(cluster).parts.partitions.logs.drop_before(channel, channel.log.end_offset)
    await settled(channel)


async def do_restore(cluster: MemoryCluster) -> None:
    channel = channel_of(cluster)
    await node_of(cluster).parts.partitions.logs.archiving.restore(
        channel, next(iter(channel.log.closed_blocks))
    )
    await settled(channel)


async def do_delete_the_topic(cluster: MemoryCluster) -> None:
    async with cluster.admin() as admin:
        await delete_topic(admin, "t")
    disk = cluster.disks["b1"]
    trash = DATA / "@trash"
    await until(lambda: disk.exists(trash) and not disk.exists(DATA / "t"))
    await until(lambda: not disk.listdir(trash))


async def do_start(cluster: MemoryCluster) -> None:
    """The copy was made while a zip was written, and while another one was removed."""


@pytest.mark.parametrize(
    "do", [do_start, do_archive, do_delete_by_retention, do_restore, do_delete_the_topic]
)
async def test_a_copy_changes_no_archive_of_the_original(do):
    """Whatever it does. It reads them, and what it writes has names of its own."""
    disk, copied = MemoryDisk(), MemoryDisk()
    async with running(disk) as (cluster, client):
        await fill(cluster, client, 4)
        await archive(cluster, 0, 1)
        before = await read_all(client)
        ensemble = copy_of(cluster.ensemble)
        copy_into(copied, disk, DATA)
        await archive(cluster, 2, 3)
        zips = dict(Failing.store)
        # The copy of a zip that was being written, and of one that was being removed.
        blocks = list(channel_of(cluster).log.closed_blocks)
        for block, suffix in ((blocks[2], ".upload"), (blocks[3], ".discard")):
            note = (LOG / block.path.name).with_suffix(suffix)
            copied.write_atomic(note, encode_text(2, {"zip": block.archive.url}))
        async with running(copied, ensemble) as (other, there):
            assert await read_all(there) == before
            await until(lambda: not channel_of(other).log.flushing.discards)
            await do(other)
            if do is not do_delete_the_topic:
                await until(lambda: not channel_of(other).log.flushing.discards)
        assert {path: each.getvalue() for path, each in zips.items()} == {
            path: Failing.store[path].getvalue() for path in zips
        }
        assert await read_all(client) == before


async def test_a_copy_that_takes_over_removes_what_it_no_longer_needs():
    """The original is gone, and an operator has said so."""
    disk, copied = MemoryDisk(), MemoryDisk()
    async with running(disk) as (cluster, client):
        await fill(cluster, client, 4)
        await archive(cluster, 0, 1)
        ensemble = copy_of(cluster.ensemble)
        copy_into(copied, disk, DATA)
    async with running(copied, ensemble, adopt_archives=True) as (cluster, client):
        await archive(cluster, 2)
        assert len({path.split("/")[-4] for path in Failing.store}) == 1, "it goes on as before"
        await do_delete_by_retention(cluster)
        await until(lambda: not Failing.store)
