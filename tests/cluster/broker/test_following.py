"""A node that does not lead its group has, byte by byte, what its master has."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.following import Pair, followed, whole
from support.store import blocks_of

from vq.broker.partition.channel import Channel
from vq.broker.replication.copying import CopySession
from vq.broker.replication.following import AUDIT_S
from vq.broker.replication.insync_set import InSyncSet
from vq.coordination.brokers.registry import read_state
from vq.coordination.topics.topics import delete_topic
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import NotMaster
from vq.model import ProducerStamp
from vq.store.care.divergence import diverged
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.log.log import Log
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def files(disk: MemoryDisk) -> dict[PurePath, bytes]:
    """The blocks of topic ``t``, without the space taken ahead."""
    found = {}
    for number in (0, 1):
        directory = DATA / "t" / str(number)
        for name in disk.listdir(directory) if disk.exists(directory) else ():
            if name.endswith(".block"):
                found[directory / name] = disk.read_bytes(directory / name).rstrip(b"\0")
    return found


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    async with followed(cluster) as found:
        yield found


async def restart(pair: Pair, *, disk: MemoryDisk | None = None) -> None:
    """Start the master again, perhaps with another disk."""
    await pair.master.stop()
    if disk is not None:
        pair.cluster.disks["b1"] = disk
    pair.master = await pair.cluster.start()
    pair.client = await Client.connect(pair.cluster.network, pair.master.address)


# Copying ------------------------------------------------------------------------------------------
async def test_all_partitions_are_copied_byte_by_byte(pair):
    """What was there before the node came, and what comes afterwards."""
    await pair.put(20)
    await pair.put(3, partition=1)
    await until(pair.same)
    await pair.put(20)
    await until(pair.same)
    disks = pair.cluster.disks
    assert files(disks["b1"]) == files(disks["b1-n2"])


async def test_a_node_with_a_limit_catches_up(pair):
    """Its answers are smaller, and none of a batch of any size is too small."""
    await pair.copy.stop()
    for _ in range(3):
        await pair.client.put("t", 0, [message(b"x" * 200_000)])
    pair.copy = await pair.cluster.start(node="n2", catch_up_bytes_per_s=1 << 20)
    await until(pair.same)


async def test_many_partitions_that_lack_little_each_are_slowed_too(cluster: MemoryCluster):
    """Each of them fits into one answer, and all of them together count."""
    master = await cluster.start()
    await cluster.create_topic("t", partitions=16)
    await until(lambda: len(master.parts.partitions.channels) == 16)
    client = await Client.connect(cluster.network, master.address)
    for number in range(16):
        await client.put("t", number, [message(b"x" * 200_000)])
    client.close()
    begin = asyncio.get_running_loop().time()
    await cluster.start(node="n2", catch_up_bytes_per_s=1 << 20)
    await until(lambda: master.parts.context.role.named == 2)
    # The last answer is paid for when nothing more is asked for.
    assert asyncio.get_running_loop().time() - begin > 12 * 200_000 / (1 << 20)


@pytest.mark.parametrize("partitions", [(0,) * 5, (0, 1, 0, 1, 0)])
async def test_each_message_of_a_lone_sender_costs_one_request(pair, monkeypatch, partitions):
    """It leaves behind the flush and asks for the next one: none waits at the master meanwhile."""
    requests: list[CopySession] = []
    send = CopySession.write_out
    monkeypatch.setattr(
        CopySession, "write_out", lambda session: [requests.append(session), send(session)]
    )
    await pair.cluster.until_in_sync("n1", "n2")
    counts = []
    for partition in partitions:
        await pair.put(partition=partition)
        counts.append(len(requests))
    assert [after - before for before, after in pairwise(counts)] == [1] * 4


async def test_a_copy_whose_disk_hangs_still_asks_for_other_partitions(pair):
    """After the follower's next look: the first message has not come back from the disk."""
    await pair.cluster.until_in_sync("n1", "n2")
    held = pair.cluster.flushers["b1-n2"]
    held.held = True
    puts = [pair.client.send_put("t", 0, [message(b"first")])]
    await until(lambda: pair.log(pair.copy).end_offset > 0)
    begun = asyncio.get_running_loop().time()
    puts.append(pair.client.send_put("t", 1, [message(b"of another partition")]))
    await until(lambda: pair.log(pair.copy, 1).end_offset > 0)
    assert asyncio.get_running_loop().time() - begun < 2 * AUDIT_S
    assert not any(each.done() for each in puts)
    held.release()
    await asyncio.gather(*puts)


async def test_who_wrote_is_known_to_the_copy(pair):
    """So a resend is recognised by whoever leads next."""
    for sequence in range(3):
        await pair.put(producer_id=7, sequence=sequence)
    await until(pair.same)
    ours, theirs = pair.log(pair.master), pair.log(pair.copy)
    stamp = ProducerStamp(7, 0, 2)
    assert theirs.producers.check(stamp) == ours.producers.check(stamp) is not None


async def test_the_master_knows_what_is_stored_in_the_copy(pair):
    """Not what is on its way there, nor what is written and not flushed."""
    await pair.put()
    await until(pair.same)
    channel: Channel = pair.master.parts.partitions.channels["t", 0]
    end = pair.log(pair.master).end_offset
    await until(lambda: channel.copies.positions["n2"].offset == end)
    pair.cluster.flushers["b1-n2"].held = True
    await pair.put()
    await until(lambda: whole(pair.log(pair.copy)) == whole(pair.log(pair.master)))
    assert channel.copies.positions["n2"].offset == end
    pair.cluster.flushers["b1-n2"].release()
    await until(lambda: channel.copies.positions["n2"].offset == pair.log(pair.master).end_offset)
    assert (
        channel.copies.positions["n2"].incarnation
        == pair.copy.parts.presence.registration.incarnation
    )


async def test_topics_made_and_deleted_later_are_followed(pair):
    await pair.cluster.create_topic("u", partitions=1)
    channels = pair.copy.parts.partitions.channels
    await until(lambda: ("u", 0) in pair.master.parts.partitions.channels)
    await pair.client.put("u", 0, [message(b"x")])
    await until(lambda: ("u", 0) in channels and channels["u", 0].log is not None)
    await until(lambda: channels["u", 0].log.synced_offset > 0)
    async with pair.cluster.admin() as coordinator:
        await delete_topic(coordinator, "u")
    await until(lambda: ("u", 0) not in channels)
    await pair.put()
    await until(pair.same)


async def test_a_batch_is_written_once_what_it_calls_durable_is_durable_here(pair):
    """After a loss of power, recovery of the copy finds no damage, whatever was kept."""
    await pair.put()
    await until(pair.same)
    pair.cluster.flushers["b1-n2"].held = True
    await pair.put(3)  # each says that the ones before it are durable
    log = pair.log(pair.copy)
    await until(lambda: log.end_offset > log.synced_offset)
    batches = [batch for batch in batches_of(log) if batch.start_offset >= log.synced_offset]
    assert [batch.synced_offset <= log.synced_offset for batch in batches] == [True]
    pair.cluster.flushers["b1-n2"].release()
    await until(pair.same)


def batches_of(log: Log):
    return [header for block in blocks_of(log) for header in block.headers(block.start_offset)]


# Serving ------------------------------------------------------------------------------------------
async def test_a_copy_serves_nobody_and_says_who_does(pair):
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    calls = [
        lambda: client.put("t", 0, [message(b"x")]),
        lambda: client.get("t", 0, 0),
        lambda: client.fetch(0),
        lambda: client.offsets("t", 0),
    ]
    for call in calls:
        with pytest.raises(NotMaster, match="led by node n1 at b1:") as caught:
            await call()
        address = pair.master.address
        assert caught.value.details["master"] == "n1"
        assert caught.value.details["port"] == address.port
    assert not (await client.status()).master


# Faults -------------------------------------------------------------------------------------------
async def test_copying_goes_on_after_the_connection_was_cut(pair):
    await pair.put(3)
    await until(pair.same)
    pair.cluster.network.reset_connections("b1")
    pair.client = await Client.connect(pair.cluster.network, pair.master.address)
    await pair.put(3)
    await until(pair.same)


async def test_copying_goes_on_with_a_master_that_was_restarted(pair):
    """It leads in a new epoch then."""
    await pair.put(3)
    await until(pair.same)
    await restart(pair)
    await pair.put(3)
    await until(pair.same)
    assert pair.log(pair.copy).epoch == 2


async def test_a_copy_that_was_restarted_goes_on_where_it_was(pair):
    await pair.put(3)
    await until(pair.same)
    await pair.copy.stop()
    await pair.put(3)
    pair.copy = await pair.cluster.start(node="n2")
    await until(pair.same)


async def test_what_the_master_lost_is_cut_and_kept(pair, monkeypatch):
    """With flush async, a loss of power takes what the copy has already."""

    async def look(self: InSyncSet) -> None:
        """Change nothing: a copy in sync would lead while the master restarts."""

    monkeypatch.setattr(InSyncSet, "look", look)
    await pair.cluster.create_topic("a", partitions=1, flush="async")
    await until(lambda: ("a", 0) in pair.master.parts.partitions.channels)
    await pair.client.put("a", 0, [message(b"kept")])
    channel = pair.master.parts.partitions.channels["a", 0]
    channel.flush_now()
    await until(lambda: channel.settled)
    end = channel.log.end_offset
    copies = pair.copy.parts.partitions.channels
    pair.cluster.flushers["b1"].held = True
    await pair.client.put("a", 0, [message(b"lost")])
    await until(lambda: ("a", 0) in copies and copies["a", 0].log is not None)
    await until(lambda: copies["a", 0].log.end_offset > end)
    before = whole(copies["a", 0].log)
    disk = pair.cluster.disks["b1"].crash(keep_none)
    pair.cluster.flushers["b1"].release()
    await restart(pair, disk=disk)
    await pair.client.put("a", 0, [message(b"new")])
    theirs = pair.master.parts.partitions.channels["a", 0]

    def same() -> bool:
        log = copies["a", 0].log  # None while it is cut
        return log is not None and whole(log) == whole(theirs.log)

    await until(same)
    [saved] = diverged(DATA / "a" / "0", pair.cluster.disks["b1-n2"])
    assert (saved.start_offset, saved.messages) == (end, 1)
    assert pair.cluster.disks["b1-n2"].read_bytes(saved.path) == before[end:]


async def test_a_copy_that_cannot_be_made_delays_no_other(pair):
    """Its log begins elsewhere; the reason is in the log, and other partitions are copied."""
    await pair.put(2)
    await until(pair.same)
    await pair.copy.stop()
    disk = pair.cluster.disks["b1-n2"].crash(keep_all)
    disk.rename(DATA / "t" / "0", DATA / "t" / "gone")
    pair.cluster.disks["b1-n2"] = disk
    pair.copy = await pair.cluster.start(node="n2")
    await pair.put(2, partition=1)
    await until(lambda: pair.same(1))


async def test_an_operator_can_have_the_copy_lead(pair):
    """The old master follows when it comes back, and cuts what it alone had."""
    await pair.put(3)
    await until(pair.same)
    await pair.copy.stop()
    await pair.put()  # the copy lacks it
    lost = pair.log(pair.master).end_offset
    await pair.master.stop()
    pair.copy = await pair.cluster.start(node="n2")
    async with pair.cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
        changed = replace(state, master="n2", insync=("n2",), incarnations={}, directories={})
        await coordinator.set(GroupState.path("b1"), changed.encode())
    await until(lambda: pair.copy.epoch == 2)
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    await client.put("t", 0, [message(b"new")])
    log = pair.log(pair.copy)
    old = await pair.cluster.start()
    await until(lambda: pair.log(old) is not None and whole(pair.log(old)) == whole(log))
    [saved] = diverged(DATA / "t" / "0", pair.cluster.disks["b1"])
    assert (saved.messages, saved.end_offset) == (1, lost)
    pair.master = old
