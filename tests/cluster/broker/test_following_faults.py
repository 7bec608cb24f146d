"""Faults of a master and of its copies: nothing good is cut, nothing counts that is not stored."""

import asyncio
from dataclasses import replace

import pytest
from support.broker import DATA, Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.replication import copying, following
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import InvalidRequest, NotMaster
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.care.divergence import diverged
from vq.store.disk.memory_disk import keep_all
from vq.store.log.log_config import LogBegin
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


def channel(node: BrokerNode, topic: str = "t") -> Channel:
    return node.parts.partitions.channels[topic, 0]


def has_all(copy: BrokerNode, master: BrokerNode) -> bool:
    ours = copy.parts.partitions.channels.get(("t", 0))
    wanted = channel(master).log
    return (
        ours is not None
        and ours.log is not None
        and wanted is not None
        and ours.log.synced_offset == wanted.end_offset
    )


async def start_pair(cluster: MemoryCluster) -> tuple[BrokerNode, BrokerNode, Client]:
    """A master and a copy in sync, topic ``t`` with a message, a client of the master."""
    master = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in master.parts.partitions.channels)
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, master.address)
    await client.put("t", 0, [message(b"a" * 100)])
    await until(lambda: master.parts.context.role.named == 2)
    return master, copy, client


@pytest.mark.parametrize("fault", ["damaged", "gone"])
async def test_a_master_that_lost_bytes_has_no_copy_cut(cluster, fault):
    """The copy may be the only place that has them."""
    master, copy, client = await start_pair(cluster)
    offsets = [(await client.put("t", 0, [message(b"%04d" % n * 50)])).offset for n in range(9)]
    await until(lambda: has_all(copy, master))
    end = channel(copy).log.end_offset
    await copy.stop()
    disk = cluster.disks["b1"].crash(keep_all)
    await master.stop()
    if fault == "damaged":
        [block] = [n for n in disk.listdir(DATA / "t" / "0") if n.endswith(".block")]
        file = disk.open(DATA / "t" / "0" / block)
        file.pwrite([b"damage!!"], offsets[3] + 50)
        file.close()
    else:
        disk.rmtree(DATA / "t" / "0")
    cluster.disks["b1"] = disk
    await cluster.start()
    copy = await cluster.start(node="n2")
    await until(lambda: copy.epoch == 2)
    for _ in range(3):
        await asyncio.sleep(0.5)
        assert channel(copy).log.end_offset == end
    assert diverged(DATA / "t" / "0", cluster.disks["b1-n2"]) == []


async def test_after_a_new_connection_only_what_is_flushed_counts(cluster):
    master, copy, client = await start_pair(cluster)
    cluster.flushers["b1-n2"].held = True
    sent = client.send_put("t", 0, [message(b"b" * 100)])
    durable = channel(copy).log.synced_offset
    await until(lambda: channel(copy).log.end_offset == channel(master).log.end_offset > durable)
    cluster.network.reset_connections("b1-n2")
    for _ in range(3):
        await asyncio.sleep(0.5)
        told = channel(master).copies.positions.get("n2")
        assert told is None or told.offset <= durable
    assert not sent.done() or sent.result().status
    cluster.flushers["b1-n2"].release()
    await until(lambda: has_all(copy, master))


async def test_a_node_that_another_one_follows_now_acknowledges_nothing(cluster):
    """From the moment at which it is told, however slow its disk is."""
    master, copy, client = await start_pair(cluster)
    reader = await Client.connect(cluster.network, master.address)
    end = channel(master).log.end_offset
    item = wire.FetchPartition(handle=1, topic="t", partition=0, offset=end)
    waiting = reader.send_fetch(0, item), reader.send_get("t", 0, end, max_wait_ms=20_000)
    with cluster.runners["b1"].held():
        cluster.ensemble.expire(cluster.coordinators["b1"])
        await until(lambda: copy.epoch == 2)
        await until(lambda: master.parts.context.role.follows == "n2")
        with pytest.raises(NotMaster, match="led by node n2"):
            await client.put("t", 0, [message(b"x")])
    cluster.flushers["b1-n2"].held = True
    other = await Client.connect(cluster.network, copy.address)
    sent = other.send_put("t", 0, [message(b"not committed")])
    for each in waiting:
        frame = await asyncio.wait_for(each, WAIT_S)
        assert b"not committed" not in frame.body
    cluster.flushers["b1-n2"].release()
    decode_reply(await asyncio.wait_for(sent, WAIT_S))


async def test_a_master_follows_when_the_record_names_another(cluster):
    """By hand: it reads the record while it leads, too."""
    master, copy, client = await start_pair(cluster)
    async with cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
        changed = replace(state, master="n2", insync=("n2",), incarnations={}, directories={})
        await coordinator.set(GroupState.path("b1"), changed.encode())
    await until(lambda: copy.epoch == 2)
    await until(lambda: master.parts.context.role.follows == "n2")
    with pytest.raises(NotMaster):
        await client.get("t", 0, 0)
    await until(lambda: copy.parts.context.role.named == 2)


async def test_what_was_cut_stays_when_the_next_range_begins(cluster):
    """An empty log is put aside: its directory has files that an operator may want."""
    _, copy, _ = await start_pair(cluster)
    await copy.parts.partitions.logs.cut_log(channel(copy), 0)
    assert len(diverged(DATA / "t" / "0", cluster.disks["b1-n2"])) == 1
    await copy.parts.partitions.logs.renew_log(channel(copy), LogBegin(10_000))
    disk = cluster.disks["b1-n2"]
    names = [name for name in disk.listdir(DATA / "t") if name.startswith("0")]
    assert any(diverged(DATA / "t" / name, disk) for name in names)


async def test_a_group_without_topics_reports_no_problem(cluster, monkeypatch):
    """Nothing is asked for, so nothing has to be answered."""
    monkeypatch.setattr(copying, "WAIT_S", 0.1)
    monkeypatch.setattr(copying, "ANSWER_TIMEOUT_S", 0.1)
    await cluster.start()
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, copy.address)
    await asyncio.sleep(2 * following.AUDIT_S)
    assert list((await client.status()).problems) == []


@pytest.mark.parametrize("name", ["", "n3", "n" * 300, "\x1b[2J"])
async def test_only_the_proved_name_is_taken(cluster, name):
    """STATUS shows names, and what a node tells counts for acknowledgements."""
    _, _, client = await start_pair(cluster)
    await cluster.prove(client, "b1", "n2")
    request = wire.ReplicateRequest(session=1, node=name, epoch=1)
    with pytest.raises(InvalidRequest, match="is not the node that this connection has proved"):
        await client.call(Command.REPLICATE, request)


async def test_copying_goes_on_after_a_defect_behind_a_flush(cluster, monkeypatch):
    """Nobody would ask for what follows: the copy would be behind for ever."""
    master, copy, client = await start_pair(cluster)
    await until(lambda: has_all(copy, master))
    has, failed = copying.CopySession.has, []

    def fail(self, each):
        if each.asked_at == -1 and not failed:
            failed.append(each)
            raise KeyError("a bug")
        return has(self, each)

    monkeypatch.setattr(copying.CopySession, "has", fail)
    await client.put("t", 0, [message(b"b" * 100)])
    await until(lambda: failed and has_all(copy, master))
    await client.put("t", 0, [message(b"c" * 100)])
    assert master.parts.context.role.named == 2


async def test_a_comparison_that_ends_when_this_node_leads_hides_nothing(cluster, monkeypatch):
    """What the last master told is less than what this one shows by then."""
    master, copy, client = await start_pair(cluster)
    await until(lambda: has_all(copy, master))
    fit, led, ours = following.Follower._fit, list[Channel](), channel(copy)
    end = ours.log.end_offset

    async def fit_and_lead(self, each, whom, connection):
        await fit(self, each, whom, connection)
        role = each.role  # as ``Mastership`` has it
        role.epoch, role.follows, each.copies.told = 9, "", 0
        each.begin_epoch()
        self.follow(None)
        led.append(each)

    monkeypatch.setattr(following.Follower, "_fit", fit_and_lead)
    client.close()
    cluster.network.reset_connections("b1")
    await until(lambda: led)
    await asyncio.sleep(1)
    assert ours.high_watermark == end
    assert ours.copies.epoch == 0


async def test_a_copy_shows_nothing_by_what_an_earlier_master_told(cluster):
    """After an unclean election, the new master has less than that one told to be committed."""
    master, copy, client = await start_pair(cluster)
    slow = await cluster.start(node="n3")
    await until(lambda: master.parts.context.role.named == 3 and has_all(slow, master))
    await until(lambda: has_all(copy, master))
    channel(copy).copies.told = 1_000_000  # by a master that is lost; this log ended before that
    cluster.flushers["b1-n3"].held = True
    cluster.network.reset_connections("b1")
    client = await Client.connect(cluster.network, master.address)
    waiting = client.send_put("t", 0, [message(b"b" * 100)])
    await until(lambda: has_all(copy, master))
    await asyncio.sleep(0.5)
    assert not waiting.done(), "a node in sync does not have it yet"
    assert channel(copy).high_watermark <= channel(master).high_watermark
    cluster.flushers["b1-n3"].release()
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))
