"""A node with damage in its logs does not lead while another one in sync may have everything.

Goal: damage is found while nodes run, and cannot be repaired for a while.

    n1 leads, damaged  ──▶ hands over to n2, without a failed send
    n2 copies, damaged ──▶ n1 is lost ──▶ n2 waits for n1, or n3 leads
    both are damaged   ──▶ nobody hands over, one of them leads
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started
from support.store import SMALL
from support.waiting import WAIT_S, until

from vq.broker.disks.disk_looks import FLUSH_SILENT_S
from vq.broker.health.repairing import Repairer
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.replication.catching_up import LAG_MAX_S
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.soundness import HAND_OVER_AFTER_S, RETRY_S, Soundness
from vq.coordination.tree.values.brokers import Registration
from vq.errors import (
    Busy,
    HandOverFailed,
    NotMaster,
    PartitionFailed,
    PartitionQuarantined,
    StorageFailed,
    VqError,
)
from vq.operations.topics.verification import verify
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.care.walk import BadRange
from vq.store.directory.identity import IDENTITY_NAME
from vq.store.disk.memory_disk import keep_all
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig
from vq.store.records.format import CHECKPOINT_NAME

pytestmark = pytest.mark.virtual_time


class Group:
    """Nodes in sync by name, and where the batches of topic ``t`` begin."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, BrokerNode] = {}
        self.starts: list[int] = []

    async def begin(self, *names: str) -> None:
        """Start nodes, the first one leads; put some messages."""
        for name in names:
            await self.start(name)
            if len(self.nodes) == 1:
                await self.cluster.create_topic("t", partitions=1)
                channels = self.nodes[name].parts.partitions.channels
                await until(lambda channels=channels: ("t", 0) in channels)  # type: ignore[misc]
        await self.cluster.until_in_sync(*names)
        await self.put(names[0], 5)
        await until(lambda: len({self.end(each) for each in names}) == 1)

    def channel(self, name: str) -> Channel:
        return self.nodes[name].parts.partitions.channels["t", 0]

    def end(self, name: str) -> int:
        log = self.channel(name).log
        return 0 if log is None else log.end_offset

    async def put(self, name: str, count: int = 1) -> None:
        client = await Client.connect(self.cluster.network, self.nodes[name].address)
        await until(lambda: self.channel(name).takes_puts)
        for number in range(count):
            put = await client.put("t", 0, [message(b"%04d" % number * 50)])
            self.starts.append(put.offset - 88)
        client.close()

    def damage(self, name: str, batch: int = 1) -> None:
        """Change stored bytes of a running node, and have it find that."""
        channel = self.channel(name)
        assert channel.log is not None
        pieces = channel.log.reader.pieces(0, channel.log.end_offset)
        at = self.starts[batch] + 120
        piece = next(each for each in pieces if each.start <= at < each.end)
        file = self.nodes[name].parts.disk.open(piece.path)
        file.pwrite([b"damage"], at - piece.block_start)
        file.close()
        self.nodes[name].parts.context.suspect(channel, self.starts[batch])

    async def until_told(self, name: str, damaged: bool) -> None:
        """Return once a node's registration says whether it has damage."""
        path = Registration.path("b1", name)
        async with self.cluster.admin() as coordinator, asyncio.timeout(WAIT_S):
            while True:
                data = (await coordinator.get(path)).data
                if Registration.decode(path, data).damaged is damaged:
                    return
                await asyncio.sleep(0.02)

    async def kill(self, name: str) -> None:
        key = "b1" if name == "n1" else f"b1-{name}"
        await self.nodes[name].parts.tasks.close()
        self.cluster.ensemble.crash(self.cluster.coordinators[key])
        self.cluster.network.kill(key)
        self.cluster.disks[key] = self.cluster.disks[key].crash(keep_all)

    async def start(self, name: str, log_config: LogConfig | None = None) -> None:
        node = self.nodes[name] = self.cluster.node(
            node=name, scrub_bytes_per_s=0, log_config=log_config
        )
        await node.start()

    def repairer(self, name: str) -> Repairer:
        found = self.nodes[name].parts.repairer
        assert isinstance(found, Repairer)
        return found

    async def status(self, name: str) -> wire.StatusResponse:
        client = await Client.connect(self.cluster.network, self.nodes[name].address)
        found = await client.status()
        client.close()
        return found


@pytest.fixture
def group(cluster: MemoryCluster) -> Group:
    return Group(cluster)


async def test_a_master_whose_directory_is_gone_keeps_no_message_and_hands_over(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Its open files would go on taking bytes, which nobody finds again."""
    await group.begin("n1", "n2")
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    group.cluster.disks["b1"].unlink(DATA / IDENTITY_NAME)
    await until(lambda: "data directory is gone" in caplog.text)
    with pytest.raises(Busy, match=r"data directory .* of broker b1/n1 is gone"):
        await client.put("t", 0, [message(b"x")])
    assert [each for each in (await group.status("n1")).problems if "is gone" in each]
    await group.until_told("n1", True)
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    client.close()


async def test_a_master_whose_flush_hangs_hands_over_without_an_answer_to_its_puts(
    group: Group,
) -> None:
    """They are with the successor, and nobody can tell when their flush ends here."""
    await group.begin("n1", "n2")
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    flusher = group.cluster.flushers["b1"]
    flusher.held = True
    waiting = asyncio.ensure_future(client.put("t", 0, [message(b"y")]))
    most_s = FLUSH_SILENT_S + HAND_OVER_AFTER_S + WAIT_S
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=most_s)
    with pytest.raises((VqError, TimeoutError)):
        await waiting
    ends = [each.parts.partitions.channels["t", 0].log.end_offset for each in group.nodes.values()]
    assert ends[0] == ends[1]
    other = await Client.connect(group.cluster.network, group.nodes["n2"].address)
    await other.put("t", 0, [message(b"z")])
    flusher.release()
    client.close()
    other.close()


async def test_a_copy_whose_directory_is_gone_is_in_sync_no_more(group: Group) -> None:
    """It would acknowledge what it does not keep; it copies again when the directory is back."""
    await group.begin("n1", "n2")
    disk = group.cluster.disks["b1-n2"]
    disk.rename(DATA / IDENTITY_NAME, DATA / "@away")
    await group.cluster.until_in_sync("n1")
    assert [each for each in (await group.status("n2")).problems if "is gone" in each]
    disk.rename(DATA / "@away", DATA / IDENTITY_NAME)
    await group.cluster.until_in_sync("n1", "n2")
    assert not (await group.status("n2")).problems


@pytest.fixture
def no_repair(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have every repair fail; the function that is returned ends that."""
    repair = Repairer._replace
    fails = [True]

    async def replace(
        self: Repairer, channel: Channel, damage: BadRange, log: Log | None = None
    ) -> None:
        if fails:
            raise PartitionQuarantined("no other node has it")
        await repair(self, channel, damage, log)

    monkeypatch.setattr(Repairer, "_replace", replace)
    return fails.clear


async def test_a_master_that_cannot_repair_its_damage_hands_over(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """After a while; it goes on copying, and is repaired later."""
    await group.begin("n1", "n2")
    group.damage("n1")
    await group.until_told("n1", True)
    assert (await group.cluster.group_state()).master == "n1"
    await group.put("n1")
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    await group.cluster.until_in_sync("n1", "n2")
    await group.put("n2")
    no_repair()
    await group.until_told("n1", False)
    assert group.repairer("n1").count == 1
    assert (await group.cluster.group_state()).epoch == 2, "nothing is gained by going back"


async def test_damage_that_is_repaired_at_once_changes_nothing(group: Group) -> None:
    await group.begin("n1", "n2")
    group.damage("n1")
    await until(lambda: group.repairer("n1").count == 1)
    await asyncio.sleep(2 * HAND_OVER_AFTER_S)
    state = await group.cluster.group_state()
    assert (state.master, state.epoch) == ("n1", 1)


async def test_nodes_that_are_both_damaged_do_not_hand_over_to_each_other(
    group: Group, no_repair: Callable[[], None]
) -> None:
    await group.begin("n1", "n2")
    group.damage("n1", 1)
    group.damage("n2", 2)
    await group.until_told("n1", True)
    await group.until_told("n2", True)
    await asyncio.sleep(HAND_OVER_AFTER_S + 2 * RETRY_S)
    state = await group.cluster.group_state()
    assert (state.master, state.epoch) == ("n1", 1)
    await group.put("n1")


async def test_a_damaged_copy_does_not_take_over_from_a_lost_master(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """It says for whom it waits. The other one leads when it is back, and has what is missing."""
    await group.begin("n1", "n2")
    group.damage("n2")
    await group.until_told("n2", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].parts.context.role.waits != "")
    [problem] = (await group.status("n2")).problems
    assert "has damage in its logs that it has not repaired" in problem
    assert "it waits for n1" in problem
    client = await Client.connect(group.cluster.network, group.nodes["n2"].address)
    with pytest.raises(NotMaster, match="it waits for n1"):
        await client.put("t", 0, [message(b"x")])
    assert not group.nodes["n2"].epoch
    await group.start("n1")
    await until(lambda: group.nodes["n1"].epoch > 1)
    no_repair()
    await group.until_told("n2", False)


async def test_a_third_node_leads_instead_of_a_damaged_one(
    group: Group, no_repair: Callable[[], None]
) -> None:
    await group.begin("n1", "n2", "n3")
    group.damage("n2")
    await group.until_told("n2", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n3"].epoch == 2)
    assert not group.nodes["n2"].epoch
    await group.put("n3")


async def test_damaged_copies_repair_each_other_when_their_master_is_lost(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """One of them leads then, though the old master is not back."""
    await group.begin("n1", "n2", "n3")
    group.damage("n2")
    group.damage("n3", 2)
    await group.until_told("n2", True)
    await group.until_told("n3", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].parts.context.role.waits != "")
    no_repair()
    await until(lambda: any(group.nodes[each].epoch == 2 for each in ("n2", "n3")))
    for name in ("n2", "n3"):
        await group.until_told(name, False)
        assert group.repairer(name).count == 1


async def test_of_damaged_nodes_one_leads_when_all_are_there(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """Nobody has everything: the group is not down for that."""
    await group.begin("n1", "n2")
    group.damage("n1", 1)
    group.damage("n2", 2)
    await group.until_told("n1", True)
    await group.until_told("n2", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].parts.context.role.waits != "")
    disk = group.cluster.disks["b1"]
    disk.unlink(DATA / "t" / "0" / CHECKPOINT_NAME)  # its next start reads everything
    await group.start("n1")
    await until(lambda: any(node.epoch > 1 for node in group.nodes.values()))


async def test_a_damaged_node_that_is_in_sync_alone_leads(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """Also with a new registration."""
    await group.begin("n1", "n2")
    await group.kill("n2")
    await group.cluster.until_in_sync("n1")
    group.damage("n1")
    await group.until_told("n1", True)
    group.cluster.ensemble.expire(group.cluster.coordinators["b1"])
    await until(lambda: group.nodes["n1"].epoch == 2)
    await group.until_told("n1", True)
    await group.put("n1")


async def test_a_damaged_master_whose_session_ends_leaves_the_lead_to_another_node(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """A new registration has to claim the group, as any other node."""
    await group.begin("n1", "n2")
    group.damage("n1")
    await group.until_told("n1", True)
    group.cluster.ensemble.expire(group.cluster.coordinators["b1"])
    await until(lambda: group.nodes["n2"].epoch == 2)
    await group.cluster.until_in_sync("n1", "n2")


async def test_an_operator_switches_to_no_damaged_node(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """Unless the master has damage, too."""
    await group.begin("n1", "n2")
    group.damage("n2")
    await group.until_told("n2", True)
    client = await group.cluster.prove(
        await Client.connect(group.cluster.network, group.nodes["n1"].address)
    )
    with pytest.raises(HandOverFailed, match="n2' cannot take over, it has damage in its logs"):
        await client.call(Command.HAND_OVER, wire.HandOverRequest(node="n2"))
    group.damage("n1", 2)
    await group.until_told("n1", True)
    answer, _ = await client.call(Command.HAND_OVER, wire.HandOverRequest(node="n2"))
    assert answer.node == "n2"


async def test_all_replicas_are_verified(group: Group, no_repair: Callable[[], None]) -> None:
    """Each node says what it found; one in sync that is down is named."""
    await group.begin("n1", "n2")
    group.damage("n2", 2)
    await group.until_told("n2", True)
    async with started(group.cluster) as client:
        one, two = await verify(client, ["t"])
        assert (one.node, one.damaged, one.error) == ("n1", 0, "")
        assert (two.node, two.damaged, two.error) == ("n2", 1, "")
        assert two.damage is not None
        assert "t-0 on b1/n2: " in str(two.damage[0])
        await group.kill("n2")
        _, two = await verify(client, ["t"])
    assert two.damaged is None
    assert "n2" in two.error or "b1-n2" in two.error


# A master whose own log is broken ----------------------------------------------------------------
async def alone_with_more(group: Group) -> int:
    """Have n1 acknowledge more while n2 is down, and stop; return where its log ends.

    Another topic, which is whole on both, is copied all the same.
    """
    await group.begin("n1", "n2")
    await group.cluster.create_topic("u", partitions=1)
    await until(lambda: ("u", 0) in group.nodes["n1"].parts.partitions.channels)
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    await client.put("u", 0, [message(b"whole")])
    client.close()
    await group.cluster.until_in_sync("n1", "n2")
    await group.nodes["n2"].stop()
    await group.cluster.until_in_sync("n1")
    await group.put("n1", 3)
    end = group.end("n1")
    await group.nodes["n1"].stop()
    return end


def copies(group: Group, name: str, topic: str) -> bool:
    """Whether a node follows and has what n1 has of a topic."""
    ours, theirs = (
        group.nodes[each].parts.partitions.channels.get((topic, 0)) for each in ("n1", name)
    )
    logs = (each.log for each in (ours, theirs) if each is not None)
    return len({log.end_offset for log in logs if log is not None and log.end_offset}) == 1


@pytest.mark.parametrize("fault", ["gone", "first batch", "unreadable"])
async def test_nobody_joins_a_master_whose_log_is_broken(
    group: Group, no_repair: Callable[[], None], fault: str
) -> None:
    """Its end is not known: a node that lacks messages would lead, and use their offsets again."""
    end = await alone_with_more(group)
    disk, path = group.cluster.disks["b1"], DATA / "t" / "0"
    if fault == "gone":
        disk.rename(path, DATA / "elsewhere")
    elif fault == "first batch":
        disk.unlink(path / CHECKPOINT_NAME)
        file = disk.open(path / next(each for each in disk.listdir(path) if "block" in each))
        first = file.pread(100, 8)
        file.pwrite([b"########"], 100)
    else:
        disk.fail("read_bytes", name=f"0/{CHECKPOINT_NAME}")
    await group.start("n1")
    assert group.channel("n1").told[0] in {"quarantined", "failed"}
    await group.start("n2")
    await until(lambda: copies(group, "n2", "u"))
    await asyncio.sleep(HAND_OVER_AFTER_S + RETRY_S)
    assert (await group.cluster.group_state()).insync == ("n1",)
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    with pytest.raises((PartitionQuarantined, PartitionFailed)):
        await client.put("t", 0, [message(b"refused")])
    with pytest.raises((PartitionQuarantined, PartitionFailed)):
        await client.get("t", 0, group.starts[-1])
    await group.kill("n1")
    await asyncio.sleep(HAND_OVER_AFTER_S)
    assert not group.nodes["n2"].epoch
    disk = group.cluster.disks["b1"]  # as the operator repairs it
    if fault == "gone":
        disk.rename(DATA / "elsewhere", path)
    elif fault == "first batch":
        file = disk.open(path / next(each for each in disk.listdir(path) if "block" in each))
        file.pwrite([first], 100)
    await group.start("n1")
    await group.cluster.until_in_sync("n1", "n2")
    assert group.end("n1") == group.end("n2") == end


@pytest.mark.parametrize("others", [0, 1])
async def test_a_log_that_failed_on_the_master_puts_no_node_out(group: Group, others: int) -> None:
    """A copy that connects again cannot be compared with it. It has all that counts, and stays."""
    await group.begin("n1", "n2")
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    if others:
        await group.cluster.create_topic("u", partitions=1)
        await until(lambda: ("u", 0) in group.nodes["n1"].parts.partitions.channels)
        await client.put("u", 0, [message(b"whole")])
    group.cluster.disks["b1"].fail("datasync", name=f"t/0/{0:016d}.block")
    with pytest.raises(StorageFailed):
        await client.put("t", 0, [message(b"not stored")])
    client.close()
    group.cluster.network.reset_connections("b1")
    await asyncio.sleep(LAG_MAX_S)
    await group.cluster.until_in_sync("n1", "n2")
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].epoch > 1)
    await group.put("n2")


async def test_a_master_one_of_whose_logs_failed_hands_over(group: Group) -> None:
    """It would refuse the messages of that partition until its next start."""
    await group.begin("n1", "n2")
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    group.cluster.disks["b1"].fail("datasync", name=f"t/0/{0:016d}.block")
    with pytest.raises(StorageFailed):
        await client.put("t", 0, [message(b"not stored")])
    client.close()
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    await group.put("n2")
    await group.until_told("n1", True)
    await until(lambda: not group.nodes["n2"].parts.context.role.insync)  # n1 stores nothing
    await group.put("n2", 3)
    await group.kill("n1")
    await group.start("n1")
    await group.cluster.until_in_sync("n1", "n2")
    await group.until_told("n1", False)
    assert group.end("n1") == group.end("n2")
    assert (await group.cluster.group_state()).epoch == 2


@pytest.mark.parametrize("min_insync", [2, 3])
async def test_a_log_that_failed_ends_no_sends_to_other_topics(
    group: Group, min_insync: int
) -> None:
    """This node would leave the set, and the other one alone is too few for some of them.

    A topic that has too few nodes in sync already loses nothing.
    """
    await group.begin("n1", "n2")
    await group.cluster.create_topic("u", partitions=1, min_insync=min_insync)
    await until(lambda: ("u", 0) in group.nodes["n1"].parts.partitions.channels)
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    group.cluster.disks["b1"].fail("datasync", name=f"t/0/{0:016d}.block")
    with pytest.raises(StorageFailed):
        await client.put("t", 0, [message(b"not stored")])
    await asyncio.sleep(HAND_OVER_AFTER_S + RETRY_S)
    state = await group.cluster.group_state()
    if min_insync == 2:
        await client.put("u", 0, [message(b"stored")])
        assert (state.master, state.insync) == ("n1", ("n1", "n2"))
    else:
        assert state.master == "n2"
    client.close()


async def test_a_master_alone_leads_on_when_a_log_failed(group: Group) -> None:
    """Its other partitions are served."""
    await group.begin("n1")
    await group.cluster.create_topic("u", partitions=1)
    await until(lambda: ("u", 0) in group.nodes["n1"].parts.partitions.channels)
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    group.cluster.disks["b1"].fail("datasync", name=f"t/0/{0:016d}.block")
    with pytest.raises(StorageFailed):
        await client.put("t", 0, [message(b"not stored")])
    await asyncio.sleep(HAND_OVER_AFTER_S + RETRY_S)
    await client.put("u", 0, [message(b"stored")])
    client.close()
    assert (await group.cluster.group_state()).epoch == 1


async def test_a_copy_with_damage_removes_no_master_that_seems_dead(group: Group) -> None:
    """It could not lead instead, and the master may live: a firewall answered in its place."""
    await group.begin("n1", "n2")
    master = group.nodes["n1"]
    group.cluster.disks["b1-n2"].fail("datasync", name=f"t/0/{0:016d}.block")
    put = asyncio.ensure_future(group.put("n1"))
    await until(lambda: group.channel("n2").failed)
    group.cluster.network.refuse(master.address)
    group.cluster.network.reset_connections("b1-n2")
    await asyncio.sleep(0.5)
    group.cluster.network.accept(master.address)
    await group.cluster.until_in_sync("n1")  # n2 stores nothing
    await put
    assert (await group.cluster.group_state()).epoch == 1


async def test_a_node_whose_log_cannot_be_opened_waits_for_another_one(group: Group) -> None:
    """What it has is not known, so it does not lead while another one may have everything."""
    await group.begin("n1", "n2")
    for name in ("n2", "n1"):
        await group.kill(name)
    group.cluster.disks["b1"].fail("read_bytes", name=f"0/{CHECKPOINT_NAME}")
    await group.start("n1")
    assert group.channel("n1").told[0] == "failed"
    assert "it waits for n2" in group.nodes["n1"].parts.context.role.waits
    await group.until_told("n1", True)
    await group.start("n2")
    await group.put("n2")
    assert group.nodes["n2"].epoch > 1


async def test_a_node_that_started_damaged_waits_also_when_that_is_repaired(group: Group) -> None:
    """A part of what it had may be gone without a trace; another one in sync knows."""
    await group.begin("n1", "n2", "n3")
    await group.nodes["n3"].stop()
    await group.cluster.until_in_sync("n1", "n2")
    await group.put("n1", 3)
    end = group.end("n1")
    for name in ("n2", "n1"):
        await group.kill(name)
    disk, path = group.cluster.disks["b1"], DATA / "t" / "0"
    disk.unlink(path / CHECKPOINT_NAME)  # its next start reads everything
    file = disk.open(path / next(each for each in disk.listdir(path) if "block" in each))
    file.pwrite([b"damage"], group.starts[1] + 120)
    file.close()
    await group.start("n3")
    await group.start("n1")
    await until(
        lambda: (
            group.repairer("n1").count == 1 and not group.nodes["n1"].parts.verifier.any_damage()
        )
    )
    await asyncio.sleep(HAND_OVER_AFTER_S)
    assert "it waits for n2" in group.nodes["n1"].parts.context.role.waits
    await group.start("n2")
    await group.cluster.until_in_sync("n1", "n2", "n3")
    assert group.nodes["n2"].epoch > 1
    assert group.end("n1") == group.end("n2") == end


@pytest.mark.parametrize("repaired", [False, True])
async def test_a_node_killed_with_damage_does_not_lead_after_its_next_start(
    group: Group, no_repair: Callable[[], None], repaired: bool
) -> None:
    """It reads no more than what follows its checkpoint, so it does not find the damage again."""
    await group.begin("n1", "n2")
    for _ in range(2):  # with blocks and checkpoints, and then with a clean stop behind them
        await group.nodes["n2"].stop()
        await group.start("n2", SMALL)
        await group.cluster.until_in_sync("n1", "n2")
        await group.put("n1", 50)
        await until(lambda: group.end("n1") == group.end("n2"))
    group.damage("n2", 10)
    await group.until_told("n2", True)
    if repaired:
        no_repair()
        await group.until_told("n2", False)
        await asyncio.sleep(1)
    for name in ("n1", "n2"):
        await group.kill(name)
    await group.start("n2", SMALL)
    assert not group.nodes["n2"].parts.verifier.any_damage()
    if repaired:
        await until(lambda: group.nodes["n2"].epoch > 1)
        return
    await until(lambda: group.nodes["n2"].epoch or group.nodes["n2"].parts.context.role.waits)
    assert "it waits for n1" in group.nodes["n2"].parts.context.role.waits
    await group.start("n1")
    await until(lambda: group.nodes["n1"].epoch > 1)
    await group.cluster.until_in_sync("n1", "n2")


async def test_a_master_that_repaired_its_damage_leads_after_its_next_start(
    group: Group, no_repair: Callable[[], None]
) -> None:
    await group.begin("n1", "n2")
    group.damage("n1")
    await group.until_told("n1", True)
    no_repair()
    await group.until_told("n1", False)
    await asyncio.sleep(1)
    for name in ("n2", "n1"):
        await group.kill(name)
    await group.start("n1")
    await until(lambda: group.nodes["n1"].epoch > 1)


# Defects -----------------------------------------------------------------------------------------
def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """Have the next call of an asynchronous method fail as no call should; return what failed."""
    method, failed = getattr(owner, name), list[str]()

    async def fail(self: object, *args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(name)
            raise KeyError("a bug")
        return await method(self, *args, **options)

    monkeypatch.setattr(owner, name, fail)
    return failed


async def test_a_damaged_master_hands_over_after_a_defect_in_that(
    group: Group, no_repair: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin("n1", "n2")
    failed = fail_once(monkeypatch, Soundness, "_maybe_hand_over")
    group.damage("n1")
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    assert failed


async def test_damage_is_repaired_after_a_defect_in_that(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin("n1", "n2")
    failed = fail_once(monkeypatch, Repairer, "_sources")
    group.damage("n1")
    await until(lambda: group.repairer("n1").count == 1)
    assert failed


async def test_a_node_takes_over_after_a_defect_in_that(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin("n1", "n2")
    failed = fail_once(monkeypatch, Mastership, "_take")
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].epoch == 2)
    assert failed
    await group.put("n2")
