"""Faults between two steps of a change: of the in-sync set, of the master, of a log that is cut."""

import asyncio
import errno
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.broker import Client, MemoryCluster, message

from vq.broker.logs.logs import Logs
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.copies import Copies, CopyPosition
from vq.broker.replication.catching_up import LAG_MAX_S
from vq.broker.replication.copying import CopySession
from vq.broker.replication.insync_set import InSyncSet
from vq.coordination.topics.topics import change_settings, delete_topic, describe_topic
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.coordination.tree.values.partitions import Partition
from vq.errors import CoordinationError, NotMaster
from vq.remoting.messages import decode_reply
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log_config import LogBegin
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


class Pair:
    """A master n1, topic ``t`` with one partition and a message, a client; a copy n2 in sync."""

    master: BrokerNode
    copy: BrokerNode
    client: Client

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster

    async def lead(self) -> "Pair":
        self.master = await self.cluster.start()
        await self.cluster.create_topic("t", partitions=1)
        await until(lambda: ("t", 0) in self.master.parts.partitions.channels)
        self.client = await Client.connect(self.cluster.network, self.master.address)
        await self.client.put("t", 0, [message(b"first")])
        return self

    async def follow(self) -> "Pair":
        self.copy = await self.cluster.start(node="n2")
        await until(lambda: self.master.parts.context.role.named == 2)
        await until(self.same)
        return self

    def same(self) -> bool:
        ours, theirs = channel(self.master).log, channel(self.copy).log
        return (
            ours is not None
            and theirs is not None
            and theirs.synced_offset == ours.end_offset == channel(self.master).high_watermark
        )

    @property
    def coordinator(self) -> MemoryCoordinator:
        return self.cluster.coordinators["b1"]


def channel(node: BrokerNode, topic: str = "t") -> Channel:
    return node.parts.partitions.channels[topic, 0]


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    found = await (await Pair(cluster).lead()).follow()
    yield found
    found.client.close()


async def never(_: object) -> bool:
    """See ``InSyncSet``: no process is known to be dead."""
    return False


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no master change its in-sync set any more."""

    async def look(self: InSyncSet) -> None:
        pass

    monkeypatch.setattr(InSyncSet, "look", look)


# What a node had ---------------------------------------------------------------------------------
async def test_a_node_in_sync_with_an_emptied_disk_does_not_lead(pair, monkeypatch):
    """It is named in the record, and what it had is gone: the record knows its directory, too."""
    stand_still(monkeypatch)
    await pair.copy.stop()
    await pair.master.stop()
    state = await pair.cluster.group_state()
    assert (state.master, set(state.insync)) == ("n1", {"n1", "n2"})
    pair.cluster.disks["b1-n2"] = MemoryDisk()
    with pytest.raises(CoordinationError, match="the acknowledged messages of group 'b1' are in"):
        await pair.cluster.start(node="n2")
    assert (await pair.cluster.group_state()).epoch == 1


# Joining -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("broken", ["directory", "record"])
async def test_nobody_joins_while_the_master_cannot_follow_a_topic(cluster, monkeypatch, broken):
    """It has messages of it that nobody can copy: whoever led then would begin it anew."""
    pair = await Pair(cluster).lead()
    await cluster.create_topic("other", partitions=1)
    await until(lambda: ("other", 0) in pair.master.parts.partitions.channels)
    await pair.client.put("other", 0, [message(b"x")])
    end = channel(pair.master).log.end_offset
    pair.client.close()
    await pair.master.stop()
    prepare, is_broken = Logs.prepare, [True]

    def fails(self, partition, *args):
        if is_broken and partition.topic == "t" and self is master.parts.logs:
            raise OSError(errno.EIO, "the disk has a moment's trouble")
        return prepare(self, partition, *args)

    path = Partition.path("t", 0)
    async with cluster.admin() as coordinator:
        record = (await coordinator.get(path)).data
        if broken == "record":
            await coordinator.set(path, b"no partition")
        else:
            monkeypatch.setattr(Logs, "prepare", fails)
        master = await cluster.start()
        copy = await cluster.start(node="n2")
        await until(lambda: "n2" in channel(master, "other").copies.positions)
        await asyncio.sleep(2 * LAG_MAX_S)
        assert (await cluster.group_state()).insync == ("n1",)
        assert master.parts.context.role.insync == frozenset()
        is_broken.clear()
        await coordinator.set(path, record)
    await until(lambda: master.parts.context.role.named == 2)
    assert channel(copy).log.end_offset == end


async def test_what_is_acknowledged_while_a_node_joins_is_on_it(cluster, monkeypatch):
    """Before it counts the master asks ZooKeeper; it must have what was acknowledged meanwhile."""
    pair = await Pair(cluster).lead()
    get, told = pair.coordinator.get, list[bool]()

    async def slow(path, **options):
        found = await get(path, **options)
        if path == Registration.parent("b1") and not told:
            told.append(True)
            cluster.flushers["b1-n2"].held = True
            sent.append(pair.client.send_put("t", 0, [message(b"acknowledged?")]))
            await asyncio.sleep(0.1)
        return found

    change = InSyncSet.change
    behind, sent = list[int](), list[asyncio.Future[object]]()

    async def changed(self, epoch, decide, checks):
        if checks:
            log = channel(pair.copy).log
            behind.append(channel(pair.master).high_watermark - log.synced_offset)
            cluster.flushers["b1-n2"].release()
        return await change(self, epoch, decide, checks)

    monkeypatch.setattr(pair.coordinator, "get", slow)
    monkeypatch.setattr(InSyncSet, "change", changed)
    pair.copy = await cluster.start(node="n2")
    await until(lambda: pair.master.parts.context.role.named == 2)
    assert set(behind) == {0}
    assert all([decode_reply(await each) for each in sent])


@pytest.mark.parametrize("stale", [False, True])
async def test_a_join_whose_answer_was_lost_counts(cluster, monkeypatch, stale):
    """The record names the node, whatever a server that lags behind shows, or a second try says."""
    pair = await Pair(cluster).lead()
    multi, struck = pair.coordinator.multi, list[bool]()

    async def lost(operations):
        path = GroupState.path("b1")
        if not struck and any(getattr(each, "path", "") == path for each in operations):
            struck.append(True)
            if stale:
                cluster.ensemble.lag(pair.coordinator)
                view = pair.coordinator.view
            await multi(operations)
            if stale:
                pair.coordinator.view = view  # the next server is behind, too
            raise ConnectionLost("cut")
        return await multi(operations)

    monkeypatch.setattr(pair.coordinator, "multi", lost)
    pair.copy = await cluster.start(node="n2")
    await until(lambda: struck)
    role = pair.master.parts.context.role
    for _ in range(40):
        named = set((await pair.cluster.group_state()).insync)
        assert "n2" not in named or "n2" in role.insync
        await asyncio.sleep(0.01)


async def test_a_node_that_may_be_named_counts_until_the_tree_was_read_anew(pair, monkeypatch):
    """A server that lags behind shows a record without it: no reason to go on without it."""
    role = pair.master.parts.context.role
    async with pair.cluster.admin() as coordinator:
        found = await coordinator.get(GroupState.path("b1"))
        state = GroupState.decode("", found.data)
        before = GroupState(
            epoch=state.epoch,
            master="n1",
            insync=("n1",),
            incarnations={"n1": state.incarnations["n1"]},
        )
        await coordinator.set(GroupState.path("b1"), before.encode())
        pair.cluster.ensemble.lag(pair.coordinator)
        await coordinator.set(GroupState.path("b1"), found.data)
    pair.cluster.flushers["b1-n2"].held = True
    sent = pair.client.send_put("t", 0, [message(b"x")])
    for _ in range(400):
        named = set((await pair.cluster.group_state()).insync)
        assert "n2" not in named or "n2" in role.insync
        assert not sent.done() or "n2" not in named
        await asyncio.sleep(0.01)
    pair.cluster.flushers["b1-n2"].release()


async def test_a_deleted_topic_puts_nobody_out(pair):
    """What a node has yet to reach there it need not reach any more."""
    await pair.cluster.create_topic("u", partitions=1)
    await until(lambda: ("u", 0) in pair.master.parts.partitions.channels)
    await pair.client.put("u", 0, [message(b"x")])
    await until(lambda: ("u", 0) in pair.copy.parts.partitions.channels)
    await asyncio.sleep(1)
    async with pair.cluster.admin() as coordinator:
        await delete_topic(coordinator, "u")
    for _ in range(round(2 * LAG_MAX_S / 0.05)):
        assert pair.master.parts.context.role.named == 2
        await asyncio.sleep(0.05)


async def test_a_node_joins_while_clients_send_all_the_time(cluster, monkeypatch):
    """At each look, something was acknowledged a moment ago that is on its way to the node."""
    pair = await Pair(cluster).lead()
    look = InSyncSet.look

    async def looks(self: InSyncSet) -> None:
        flusher = cluster.flushers.get("b1-n2")
        if self._epoch and flusher is not None and "n2" not in self._role.insync:
            flusher.held = True
            await pair.client.put("t", 0, [message(b"x")])
            asyncio.get_running_loop().call_later(0.02, flusher.release)
        await look(self)

    monkeypatch.setattr(InSyncSet, "look", looks)
    await pair.follow()


async def test_a_node_that_may_be_named_counts_also_if_the_next_try_is_refused(
    cluster, monkeypatch
):
    """Of the first try it is not known whether the record names it."""
    pair = await Pair(cluster).lead()
    role, tries = pair.master.parts.context.role, list[int]()

    async def unknown(self, epoch, decide, checks):
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionLost("cut")

    monkeypatch.setattr(InSyncSet, "change", unknown)
    pair.copy = await cluster.start(node="n2")
    await until(lambda: len(tries) > 3)
    for _ in range(40):
        assert role.insync == {"n2"}
        await asyncio.sleep(0.05)


async def test_an_exception_does_not_end_the_looks_at_the_copies(pair, monkeypatch):
    """Without them, sends would wait for a lost node for ever."""
    is_well, raised = InSyncSet.is_well, list[int]()

    async def raises(self, *arguments):
        if not raised:
            raised.append(1)
            raise ZeroDivisionError("a bug")
        return await is_well(self, *arguments)

    monkeypatch.setattr(InSyncSet, "is_well", raises)
    await until(lambda: raised)
    await pair.copy.stop()
    await pair.client.put("t", 0, [message(b"x")])


async def test_a_lower_min_insync_acknowledges_what_waits(pair, monkeypatch):
    """Without another send or flush."""
    async with pair.cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, min_insync=2))
        await until(lambda: channel(pair.master).settings.min_insync == 2)
        pair.cluster.flushers["b1-n2"].held = True
        sent = pair.client.send_put("t", 0, [message(b"x")])
        await until(lambda: pair.master.parts.context.role.named == 1)
        stand_still(monkeypatch)
        await asyncio.sleep(2 * LAG_MAX_S)
        assert not sent.done()
        await change_settings(coordinator, "t", replace(settings, min_insync=1))
    decode_reply(await asyncio.wait_for(sent, WAIT_S))
    pair.cluster.flushers["b1-n2"].release()


# A node that copies -------------------------------------------------------------------------------
async def test_an_exception_is_a_failure_of_one_partition_or_one_connection(pair, monkeypatch):
    """Copying goes on, with pauses in between."""
    settle, take = pair.copy.parts.partitions.logs.settle, CopySession.take_answer
    compared, taken = list[int](), list[int]()

    async def raises(channel):
        compared.append(1)
        if len(compared) < 4:
            raise ZeroDivisionError("a bug")
        await settle(channel)

    def takes(self, response, body):
        if not taken:
            taken.append(1)
            raise ZeroDivisionError("a bug")
        take(self, response, body)

    monkeypatch.setattr(pair.copy.parts.partitions.logs, "settle", raises)
    monkeypatch.setattr(CopySession, "take_answer", takes)
    await pair.client.put("t", 0, [message(b"x")])
    await until(lambda: taken)
    await until(lambda: pair.same() and pair.master.parts.context.role.named == 2)
    assert len(compared) == 4


async def test_a_position_of_an_earlier_registration_replaces_no_later_one():
    """It comes late, over a connection that is still open."""
    copies, old, new = Copies(), object(), object()
    copies.note("n2", CopyPosition(100, 6, new))
    copies.note("n2", CopyPosition(500, 5, old))
    assert copies.offsets() == {"n2": 100}
    copies.note("n2", CopyPosition(200, 6, new))
    assert copies.offsets() == {"n2": 200}


# A change of masters -----------------------------------------------------------------------------
@pytest.mark.parametrize("renewed", [False, True])
async def test_a_log_is_not_cut_by_a_node_that_leads_meanwhile(pair, renewed, monkeypatch):
    """A cut that waits for a flush was decided by the log of the last master."""
    monkeypatch.setattr("vq.broker.replication.insync_set.LAG_MAX_S", WAIT_S)
    copy, flusher = pair.copy, pair.cluster.flushers["b1-n2"]
    log = channel(copy).log
    end = log.end_offset
    flusher.held = True
    partitions = copy.parts.partitions
    work = (
        partitions.logs.renew_log(channel(copy), LogBegin(end))
        if renewed
        else partitions.logs.cut_log(channel(copy), 0)
    )
    sent = pair.client.send_put("t", 0, [message(b"unflushed")])
    await until(lambda: log.end_offset > end)
    cutting = asyncio.create_task(work)
    await asyncio.sleep(0)
    await pair.master.stop()
    await until(lambda: copy.epoch == 2)
    client = await Client.connect(pair.cluster.network, copy.address)
    stored = client.send_put("t", 0, [message(b"acknowledged")])
    await asyncio.sleep(0.1)
    flusher.release()
    offset = decode_reply(await asyncio.wait_for(stored, WAIT_S)).offset
    [ended] = await asyncio.wait_for(asyncio.gather(cutting, return_exceptions=True), WAIT_S)
    log = channel(copy).log
    assert log.start_offset <= offset < log.end_offset
    assert (await client.get("t", 0, offset))[1]
    assert isinstance(ended, NotMaster)
    await asyncio.gather(sent, return_exceptions=True)


async def test_a_log_opened_by_a_master_shows_nothing_that_the_others_may_lack(pair, monkeypatch):
    """A node that leads from the middle of a cut: its log comes later than its epoch."""
    copy = pair.copy
    stand_still(monkeypatch)
    ours = channel(copy)
    told, end = ours.copies.told, ours.log.end_offset
    assert told <= end
    pair.cluster.flushers["b1"].held = True
    sent = pair.client.send_put("t", 0, [message(b"not committed")])
    await until(lambda: ours.log.synced_offset > end)
    with pair.cluster.runners["b1-n2"].held():
        cutting = asyncio.create_task(copy.parts.partitions.logs.cut_log(ours, ours.log.end_offset))
        await until(lambda: ours.log is None)
        pair.cluster.flushers["b1"].release()
        copy.parts.context.role.begins(2, {"n1"})
        copy.parts.partitions.stop()
    await cutting
    assert ours.high_watermark <= told
    await asyncio.gather(sent, return_exceptions=True)


async def test_a_node_joins_that_has_all_with_which_its_master_began(pair):
    """The master before may have acknowledged a part of it, and this one does not know it yet."""
    here = channel(pair.master)
    insync = InSyncSet(
        here.role,
        pair.coordinator,
        SimpleNamespace(channels={here.partition: here}, knows_all=lambda: True),
        pair.cluster.network,
        here.context.clock,
        node="n1",
    )
    insync.start(here.role.epoch)
    here.epoch_start = here.log.end_offset  # an epoch begins
    caught_up, shown = here.copies.positions["n2"], here.high_watermark
    here.high_watermark = 0
    here.copies.positions["n2"] = caught_up._replace(offset=caught_up.offset - 1)
    assert insync.ready("n2", [here]) is None
    here.copies.positions["n2"] = caught_up
    assert insync.ready("n2", [here]) == caught_up.incarnation
    here.high_watermark = shown


async def test_a_node_joins_that_has_all_of_a_log_that_was_opened_again(pair):
    """A damaged one seems to end earlier when a node begins to lead, and has all when repaired."""
    here, logs = channel(pair.master), pair.master.parts.partitions.logs
    insync = InSyncSet(
        here.role,
        pair.coordinator,
        SimpleNamespace(channels={here.partition: here}, knows_all=lambda: True),
        pair.cluster.network,
        here.context.clock,
        node="n1",
    )
    insync.start(here.role.epoch)
    await pair.client.put("t", 0, [message(b"more")])
    await until(pair.same)
    had = here.copies.positions["n2"]
    pair.copy.parts.follower.hold(channel(pair.copy))
    await until(lambda: not here.copies.positions)
    await logs.open_again(here, here)
    assert here.high_watermark == 0  # until n2 has told what it has
    for offset in (0, had.offset - 1):  # of what may have been acknowledged
        here.copies.note("n3", had._replace(offset=offset))
        assert insync.ready("n3", [here]) is None
    here.copies.note("n3", had)
    assert insync.ready("n3", [here]) == had.incarnation


async def test_the_end_is_known_of_a_log_that_was_given_up(pair, monkeypatch):
    """It is copied no more and not begun anew, and this node leads: nothing is stored."""
    stand_still(monkeypatch)
    ours, follower = channel(pair.copy), pair.copy.parts.follower
    ours.begin_epoch()  # of another master
    follower.hold(ours)
    await pair.copy.parts.partitions.logs.give_up(ours)
    ours.role.begins(2, {"n1"})
    ours.begin_epoch()
    assert ours.log is None
    assert ours.knows_end


async def test_a_copy_takes_nothing_of_an_epoch_that_it_does_not_follow(pair, monkeypatch):
    """It follows anew, and then has all."""
    take, refused = CopySession.take_answer, list[NotMaster]()

    def takes(self, response, body):
        if body and not refused:
            for result in response.results:
                result.epoch += 1
            with pytest.raises(NotMaster) as caught:
                take(self, response, body)
            refused.append(caught.value)
            raise caught.value
        take(self, response, body)

    monkeypatch.setattr(CopySession, "take_answer", takes)
    await pair.client.put("t", 0, [message(b"x")])
    assert "leads in epoch 2, this node follows 1" in str(refused[0])
    await until(pair.same)


async def test_a_topic_that_is_gone_is_kept_nowhere(cluster):
    """An epoch lasts for months, and topics come and go."""
    master, copy = await cluster.start(), await cluster.start(node="n2")
    names = [f"gone-{number}" for number in range(5)]
    for name in names:
        await cluster.create_topic(name, partitions=1)
        for node in (master, copy):
            await until(lambda n=node, t=name: (t, 0) in n.parts.partitions.channels)
        client = await Client.connect(cluster.network, master.address)
        await client.put(name, 0, [message(b"x")])
        client.close()
    await until(lambda: master.parts.context.role.named == 2)
    async with cluster.admin() as coordinator:
        for name in names:
            await delete_topic(coordinator, name)
    await until(lambda: not master.parts.partitions.channels and not copy.parts.partitions.channels)
    await asyncio.sleep(LAG_MAX_S)
    gc.collect()
    here = [each for each in gc.get_objects() if isinstance(each, Channel)]
    kept = [each for each in here if each.partition.topic in names]
    assert len(kept) <= 2, "one for each node: the last one that a loop looked at"
