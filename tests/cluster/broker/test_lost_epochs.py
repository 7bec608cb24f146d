"""T-ROT of the file ``@epoch``: it changes, or is lost, while its broker is stopped.

Whatever becomes of it, nobody acts in an epoch that is lower than one that was stored, or than that
of the group's record in ZooKeeper.
"""

import dataclasses

import pytest
from support.broker import DATA, Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.replication.epoch_file import EpochFile, read_epoch
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import CoordinationError, DirectoryRefused
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

FILE = DATA / "@epoch"
STARTS = 4


async def lead(cluster: MemoryCluster, starts: int) -> bytes:
    """Lead in some epochs and store messages in each; return the file of the first one."""
    first = b""
    for number in range(starts):
        node = await cluster.start()
        if not number:
            await cluster.create_topic("t", partitions=1)
        await until(lambda node=node: ("t", 0) in node.parts.partitions.channels)  # type: ignore[misc]
        client = await Client.connect(cluster.network, node.address)
        await client.put("t", 0, [message(b"x")])
        client.close()
        first = first or cluster.disks["b1"].read_bytes(FILE)
        await node.stop()
    assert read_epoch(DATA, cluster.disks["b1"]) == starts
    return first


async def record(cluster: MemoryCluster) -> GroupState:
    async with cluster.admin() as admin:
        state = await read_state(admin, "b1")
        assert state is not None
        return state


async def set_back(cluster: MemoryCluster, epoch: int) -> None:
    """Have ZooKeeper hold the record that it had in an earlier epoch."""
    async with cluster.admin() as admin:
        state = await read_state(admin, "b1")
        assert state is not None
        await admin.set(GroupState.path("b1"), dataclasses.replace(state, epoch=epoch).encode())


def damage(cluster: MemoryCluster, key: str, fault: str, older: bytes) -> None:
    disk = cluster.disks[key]
    content = disk.read_bytes(FILE)
    changed = {
        "zeroed": bytes(len(content)),
        "emptied": b"",
        "cut": content[:-3],
        "older": older,
    }
    if fault == "removed":
        disk.unlink(FILE)
    else:
        disk.write_atomic(FILE, changed[fault])


@pytest.mark.parametrize("set_record_back", [False, True])
@pytest.mark.parametrize("fault", ["zeroed", "emptied", "cut", "removed"])
async def test_a_node_that_does_not_know_its_epochs_claims_nothing(
    cluster: MemoryCluster, fault: str, set_record_back: bool
) -> None:
    """It does not start, says what to do, and the group's record stays as it was."""
    await lead(cluster, STARTS)
    damage(cluster, "b1", fault, b"")
    if set_record_back:
        await set_back(cluster, 1)
    before = await record(cluster)
    with pytest.raises(DirectoryRefused, match="@epoch"):
        await cluster.start()
    assert await record(cluster) == before


async def test_every_flipped_bit_is_noticed(cluster: MemoryCluster) -> None:
    """Or it says the same: only what ends the line may be another white space."""
    await lead(cluster, 2)
    disk = cluster.disks["b1"]
    content = disk.read_bytes(FILE)
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        disk.write_atomic(FILE, bytes(changed))
        try:
            assert read_epoch(DATA, disk) == 2
        except DirectoryRefused:
            continue
        assert bytes(changed).strip() == content.strip(), bit


async def test_an_older_copy_of_the_file_does_no_harm(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The record in ZooKeeper is newer; the next epoch is above both, and stored."""
    older = await lead(cluster, STARTS)
    damage(cluster, "b1", "older", older)
    node = await cluster.start()
    assert node.epoch == STARTS + 1
    assert read_epoch(DATA, cluster.disks["b1"]) == STARTS + 1
    assert "stored epoch is older than the logs" in caplog.text


async def test_an_older_copy_and_an_older_record_are_noticed(cluster: MemoryCluster) -> None:
    """The messages in the logs tell of the epochs that both have forgotten."""
    older = await lead(cluster, STARTS)
    damage(cluster, "b1", "older", older)
    await set_back(cluster, 1)
    with pytest.raises(CoordinationError, match=f"acted in {STARTS}"):
        await cluster.start()


async def test_a_file_that_was_written_by_hand_is_taken(cluster: MemoryCluster) -> None:
    """As the error says."""
    await lead(cluster, STARTS)
    damage(cluster, "b1", "removed", b"")
    state = await record(cluster)
    cluster.disks["b1"].write_atomic(FILE, f"vq-epoch 1 {state.epoch}\n".encode())
    assert (await cluster.start()).epoch == STARTS + 1


async def test_a_directory_without_messages_needs_no_file(cluster: MemoryCluster) -> None:
    """A start that was interrupted before its first epoch leaves none."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await node.stop()
    damage(cluster, "b1", "removed", b"")
    assert (await cluster.start()).epoch == 2


async def pair(cluster: MemoryCluster) -> tuple[BrokerNode, BrokerNode]:
    master = await cluster.start()
    copy = await cluster.start(node="n2")
    await until(lambda: master.parts.context.role.named == 2)
    return master, copy


@pytest.mark.parametrize("fault", ["zeroed", "emptied", "cut", "removed", "older"])
@pytest.mark.parametrize("victim", ["master", "copy"])
async def test_a_node_of_two_with_a_damaged_file_never_goes_back(
    cluster: MemoryCluster, victim: str, fault: str
) -> None:
    """The other one leads on, or takes over; with an older file, the node follows it."""
    older = await lead(cluster, STARTS)
    master, copy = await pair(cluster)
    client = await Client.connect(cluster.network, master.address)
    await client.put("t", 0, [message(b"y")])
    await until(lambda: copy.parts.partitions.channels["t", 0].log is not None)
    await until(lambda: copy.parts.partitions.channels["t", 0].log.epoch == STARTS + 1)  # type: ignore[union-attr]
    node, other, key = (master, copy, "b1") if victim == "master" else (copy, master, "b1-n2")
    await node.stop()
    damage(cluster, key, fault, older)
    await until(lambda: other.epoch > 0)
    before = other.epoch
    name = "n1" if victim == "master" else "n2"
    if fault == "older":
        again = await cluster.start(node=name)
        await until(lambda: other.parts.context.role.named == 2)
        assert again.epoch == 0
        assert read_epoch(DATA, cluster.disks[key]) == before
    else:
        with pytest.raises(DirectoryRefused, match="@epoch"):
            await cluster.start(node=name)
    assert (other.epoch, (await record(cluster)).epoch) == (before, before)


async def test_an_epoch_of_the_logs_counts_as_stored(cluster: MemoryCluster) -> None:
    """To lead, an epoch must be above it; a master is followed in the same one."""
    await lead(cluster, STARTS)
    disk = cluster.disks["b1"]
    damage(cluster, "b1", "older", b"vq-epoch 1 1\n")
    file = EpochFile(DATA, disk)
    file.check(STARTS)
    for epoch in (1, 2, STARTS):
        with pytest.raises(CoordinationError, match=f"acted in {STARTS}"):
            file.store(epoch)
    with pytest.raises(CoordinationError, match=f"acted in {STARTS}"):
        file.accept(STARTS - 1)
    file.accept(STARTS)
    assert read_epoch(DATA, disk) == STARTS
