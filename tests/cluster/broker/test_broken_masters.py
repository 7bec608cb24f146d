"""A master whose own log is broken: nobody joins it; it hands over, or waits for another node."""

import asyncio
from collections.abc import Callable

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.damaged_group import Group
from support.store import SMALL

from vq.broker.replication.catching_up import LAG_MAX_S
from vq.broker.replication.soundness import HAND_OVER_AFTER_S, RETRY_S
from vq.errors import (
    PartitionFailed,
    PartitionQuarantined,
    StorageFailed,
)
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def group(cluster: MemoryCluster) -> Group:
    return Group(cluster)


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
