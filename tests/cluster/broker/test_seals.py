"""SEAL: a log ends while its partition moves, and takes messages again if the move does not end."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.broker import Client, message
from support.client import started
from support.group_pair import GroupPair

from vq.broker.partition.partition_state import ChannelState
from vq.broker.serving import moving
from vq.coordination.topics.topics import (
    change_settings,
    describe_topic,
)
from vq.coordination.tree.coordinator import BadVersion
from vq.errors import (
    DiskFull,
    NotMaster,
    OutcomeUnknown,
    PartitionFailed,
    PartitionReadOnly,
    StorageFailed,
)
from vq.operations.partitions import placements
from vq.remoting.messages import decode_reply
from vq.store.log.log_config import LogState
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def pair(cluster):
    """See ``GroupPair``."""
    return await GroupPair(cluster).start()


async def test_seal_flushes_what_waits_and_refuses_what_comes(pair):
    """Sends before the seal are acknowledged, sends after it are refused; the end is durable."""
    await pair.put(pair.old)
    flusher = pair.cluster.flushers[pair.old]
    flusher.held = True
    waiting = pair.clients[pair.old].send_put("t", 0, [message(b"y")])
    await until(lambda: flusher.submissions >= 2)
    sealing = asyncio.ensure_future(pair.seal())
    await until(lambda: pair.channel(pair.old).state is ChannelState.SEALED)
    with pytest.raises(PartitionReadOnly):
        await pair.put(pair.old)
    assert not sealing.done()
    flusher.release()
    offset = decode_reply(await waiting).offset
    assert (await sealing).end_offset > offset
    assert await pair.seal() == await pair.seal()


async def test_a_node_that_does_not_lead_seals_nothing(pair):
    """It does not know what is committed: a span that ends behind that has a hole for ever."""
    await pair.put(pair.old)
    role = pair.channel(pair.old).role
    role.is_deposed(NotMaster("another node leads"))
    with pytest.raises(NotMaster, match="another node leads"):
        await pair.seal()
    assert pair.channel(pair.old).state is ChannelState.WRITES


async def test_a_node_that_leads_no_more_tells_no_end(pair):
    """Also if it was asked while it did."""
    flusher = pair.cluster.flushers[pair.old]
    await pair.put(pair.old)
    flusher.held = True
    waiting = pair.clients[pair.old].send_put("t", 0, [message(b"y")])
    await until(lambda: flusher.submissions >= 2)
    sealing = asyncio.ensure_future(pair.seal())
    await until(lambda: pair.channel(pair.old).state is ChannelState.SEALED)
    pair.channel(pair.old).role.is_deposed(NotMaster("another node leads"))
    flusher.release()
    with pytest.raises(OutcomeUnknown, match="mastership"):
        await sealing
    await asyncio.wait([waiting])


async def test_copies_compare_their_logs_while_a_seal_waits(pair):
    """It waits for them: whoever holds them up while it does waits for nothing."""
    await pair.put(pair.old)
    flusher = pair.cluster.flushers[pair.old]
    flusher.held = True
    waiting = pair.clients[pair.old].send_put("t", 0, [message(b"y")])
    await until(lambda: flusher.submissions >= 2)
    sealing = asyncio.ensure_future(pair.seal())
    await until(lambda: pair.channel(pair.old).state is ChannelState.SEALED)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not pair.files(pair.old).locked()
    assert not sealing.done()
    flusher.release()
    decode_reply(await waiting)
    await sealing


async def test_a_move_that_fails_gives_the_partition_back_at_once(pair):
    """The new place refuses what it is asked; the old one does not wait for its timer."""
    await pair.put(pair.old)
    async with started(pair.cluster) as client:
        (planned,) = await placements.plan_moves(client, "t", [0], pair.new)
        pair.cluster.nodes[pair.new].parts.gate.note_disks(DiskFull("no space"))
        begun = asyncio.get_running_loop().time()
        with pytest.raises(DiskFull):
            await placements.carry_out(client, planned)
    await pair.until_writable(pair.old)
    assert asyncio.get_running_loop().time() - begun < 5
    await pair.put(pair.old)


async def test_an_unfinished_move_ends_by_itself_and_cannot_be_finished_later(cluster):
    """After its time the old place takes appends again, and the sleeping mover's write fails."""
    pair = await GroupPair(cluster).start(seal_timeout_s=0.05)
    await pair.put(pair.old)
    view = await pair.view()
    begin = asyncio.get_running_loop().time()
    sealed = await pair.seal()
    await pair.until_writable(pair.old)
    assert asyncio.get_running_loop().time() - begin >= 0.05
    offset = (await pair.put(pair.old)).offset
    assert offset > sealed.end_offset
    with pytest.raises(BadVersion):
        await pair.place(view, sealed.end_offset)


@pytest.mark.parametrize("after", [0, 1])
async def test_a_seal_that_meets_an_io_error_ends_the_partition(pair, after):
    """The checkpoint with the seal is written with a flush, then once more; either may fail."""
    await pair.put(pair.old)
    node = pair.cluster.nodes[pair.old]
    pair.cluster.disks[pair.old].fail("rename", name="checkpoint.tmp", after=after)
    with pytest.raises((PartitionFailed, StorageFailed)):
        await pair.seal()
    assert node.parts.partitions.channels["t", 0].state is ChannelState.FAILED
    with pytest.raises(PartitionFailed):
        await pair.put(pair.old)


async def test_a_seal_outlives_a_restart_until_the_mover_is_fenced(pair):
    """A broker that restarts in the middle of a move does not append below the mover's feet."""
    await pair.put(pair.old)
    view = await pair.view()
    sealed = await pair.seal()
    await pair.cluster.nodes[pair.old].stop()
    node = await pair.cluster.start(pair.old)
    pair.clients[pair.old] = await Client.connect(pair.cluster.network, node.address)
    await pair.cluster.prove(pair.clients[pair.old])
    await pair.until_writable(pair.old)
    await pair.put(pair.old)
    with pytest.raises(BadVersion):
        await pair.place(view, sealed.end_offset)


async def test_the_timer_of_a_seal_that_is_over_does_not_end_the_next_one(pair, monkeypatch):
    """A mover that comes second has as much time as the first."""
    timers: list[tuple[float, Any]] = []
    await pair.put(pair.old)
    node = pair.cluster.nodes[pair.old]
    monkeypatch.setattr(node.parts.context, "call_later", lambda *timer: timers.append(timer))
    await pair.seal()
    await pair.touch()
    await pair.until_writable(pair.old)
    await pair.seal()
    seals = [then for delay_s, then in timers if delay_s == node.config.seal_timeout_s]
    first, second = seals
    first()
    assert pair.channel(pair.old).state is ChannelState.SEALED
    second()
    assert pair.channel(pair.old).state is not ChannelState.SEALED


async def test_a_change_of_settings_does_not_end_a_seal(pair):
    """Only the end of the move does: the mover still counts on the end of the log."""
    await pair.put(pair.old)
    sealed = await pair.seal()
    channel = pair.channel(pair.old)
    for writable in (False, True):
        async with pair.cluster.admin() as admin:
            view = await describe_topic(admin, "t")
            await change_settings(admin, "t", replace(view.settings, writable=writable))
        await until(lambda w=writable: channel.settings.writable is w)
        assert channel.state is ChannelState.SEALED
        with pytest.raises(PartitionReadOnly, match="being moved"):
            await pair.put(pair.old)
    assert (await pair.seal()).end_offset == sealed.end_offset


# Seals that end ---------------------------------------------------------------------------------
async def test_a_seal_that_ends_after_the_move_does_not_reopen_the_old_place(cluster):
    """The old group has not heard of the move; what it took now would be acknowledged and lost."""
    pair = await GroupPair(cluster).start(refresh_interval_s=60.0, seal_timeout_s=60.0)
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    cluster.ensemble.hold_events(cluster.coordinators[pair.old])
    end = await pair.move()
    mover, channel = pair.mover(pair.old), pair.channel(pair.old)
    assert channel.placement.writer_group == pair.old, "it has heard of the move"
    mover.expire(channel, version)
    assert channel in mover.being_unsealed
    await until(lambda: channel not in mover.being_unsealed)
    with pytest.raises(PartitionReadOnly):
        await pair.put(pair.old)
    assert channel.log is not None
    assert channel.log.end_offset == end
    cluster.ensemble.release_events(cluster.coordinators[pair.old])


async def test_a_seal_whose_time_is_up_before_it_is_saved_ends_afterwards(pair):
    """The SEAL waits for its turn at the disk, and the placement has not changed."""
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    channel = pair.channel(pair.old)
    async with pair.files(pair.old):
        sealing = asyncio.ensure_future(pair.seal(version))
        await until(lambda: channel.state is ChannelState.SEALED)
        pair.mover(pair.old).expire(channel, version)
    await sealing
    await pair.until_writable(pair.old)
    await pair.put(pair.old)
    assert (await pair.view()).partition_versions[0] > version, "the mover comes too late"


async def test_a_version_raised_before_the_seal_is_saved_leaves_no_seal_behind(pair):
    """The placement changes while the SEAL waits for its turn at the disk."""
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    async with pair.files(pair.old):
        sealing = asyncio.ensure_future(pair.seal(version))
        await until(lambda: pair.channel(pair.old).state is ChannelState.SEALED)
        await pair.touch()
        await until(lambda: pair.channel(pair.old).placement_version != version)
    with pytest.raises(PartitionReadOnly):
        await sealing
    await pair.until_writable(pair.old)
    await pair.put(pair.old)


async def test_a_version_raised_while_a_seal_is_saved_ends_it_afterwards(pair):
    """Nothing is appended while the seal is being written; then the log takes appends again."""
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    channel, runner = pair.channel(pair.old), pair.cluster.runners[pair.old]
    with runner.held():
        sealing = asyncio.ensure_future(pair.seal(version))
        await until(lambda: runner.waiting)
        assert channel.log.state is LogState.SEALED
        await pair.touch()
        await until(lambda: channel.placement_version != version)
        await until(lambda: pair.files(pair.old)._waiters)
        with pytest.raises(PartitionReadOnly):
            await pair.put(pair.old)
    with pytest.raises(PartitionReadOnly):
        await sealing
    await pair.until_writable(pair.old)
    await pair.put(pair.old)


async def test_a_version_raised_while_a_seal_waits_ends_it_at_once(pair):
    """The disk is slow; who moves the partition is refused, who sends is not."""
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    flusher = pair.cluster.flushers[pair.old]
    flusher.held = True
    waiting = pair.clients[pair.old].send_put("t", 0, [message(b"y")])
    await until(lambda: flusher.submissions >= 2)
    sealing = asyncio.ensure_future(pair.seal(version))
    await until(lambda: pair.channel(pair.old).log.state is LogState.SEALED)
    await pair.touch()
    await pair.until_writable(pair.old)
    later = pair.clients[pair.old].send_put("t", 0, [message(b"z")])
    assert not sealing.done()
    flusher.release()
    decode_reply(await waiting)
    decode_reply(await later)
    with pytest.raises(PartitionReadOnly):
        await sealing


async def test_a_lost_call_does_not_leave_a_partition_sealed(cluster, monkeypatch):
    """Raising the version is tried again when ZooKeeper did not get, or not answer, the call."""
    monkeypatch.setattr(moving, "RETRY_S", 0.01)
    pair = await GroupPair(cluster).start(refresh_interval_s=60.0)
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    channel = pair.channel(pair.old)
    for lose in (cluster.ensemble.lose_next_request, cluster.ensemble.lose_next_reply):
        version = channel.placement_version
        await pair.seal(version)
        assert not channel.takes_puts
        lose(cluster.coordinators[pair.old], skip=2)  # the write comes after two reads
        pair.mover(pair.old).expire(channel, version)
        await pair.until_writable(pair.old)
        await until(lambda v=version: channel.placement_version > v)
        assert not cluster.coordinators[pair.old].faults.lose_request
        assert not cluster.coordinators[pair.old].faults.lose_reply
