"""Taking epochs: stored before acted in, tried again when a disk refuses, and said."""

import asyncio
import errno
from dataclasses import replace

import pytest
from support.broker import DATA, Client, message

from vq.broker.replication import mastership
from vq.broker.replication.epoch_file import EpochFile, read_epoch
from vq.broker.standing.node_state import NodeState
from vq.coordination.brokers.leadership import Following, Leading
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import CoordinationError, DirectoryRefused, DiskFull, NotMaster, StaleEpoch
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(mastership, "RETRY_S", 0.01)


def refuse_epochs(disk, error):
    """Have every write of the epoch fail until the faults are forgotten."""
    for _ in range(1_000):
        disk.fail("pwrite", error=error, name="@epoch.tmp")


async def test_an_epoch_is_acted_in_only_after_it_is_stored(served):
    """While it is being stored, answers carry the old one and requests of the new one wait."""
    ensemble, runner = served.cluster.ensemble, served.cluster.runners["b1"]
    incarnation = served.client.hello.incarnation
    with runner.held():
        ensemble.expire(served.cluster.coordinators["b1"])
        async with served.cluster.admin() as admin:
            await until(lambda: runner.waiting)
            state = GroupState.decode("", (await admin.get(GroupState.path("b1"))).data)
        assert state.epoch == 2
        assert read_epoch(DATA, served.disk) == 1
        assert served.node.epoch == 1
        assert (await served.client.status()).epoch == 1
        assert (await served.connect()).hello.incarnation == incarnation
        header, _ = await served.client.get("t", 0, 0)
        assert header.epoch == 1
        with pytest.raises(StaleEpoch, match="has 1"):
            await served.client.get("t", 0, 0, epoch=2)
    await until(lambda: served.node.epoch == 2)
    assert read_epoch(DATA, served.disk) == 2
    await served.client.get("t", 0, 0, epoch=2)


async def test_a_claim_that_comes_while_an_epoch_is_stored_is_stored_in_its_turn(served):
    """What is acted in is what was written, not what is newest by then."""
    ensemble, runner = served.cluster.ensemble, served.cluster.runners["b1"]
    mastership_of_node = served.node.parts.mastership
    with runner.held():
        for epoch in (2, 3):
            ensemble.expire(served.cluster.coordinators["b1"])
            await until(lambda epoch=epoch: mastership_of_node.newest_epoch == epoch)
            await until(lambda: runner.waiting)
    await until(lambda: served.node.epoch == 3)
    assert read_epoch(DATA, served.disk) == 3


@pytest.mark.parametrize(("code", "refusal"), [(errno.ENOSPC, DiskFull), (errno.EIO, NotMaster)])
async def test_an_epoch_that_cannot_be_stored_after_a_lost_session_is_tried_again(
    served, code, refusal
):
    """Meanwhile the reason is told; nobody has to start the broker again."""
    await until(lambda: served.node.parts.disks.main.reserve.held)
    refuse_epochs(served.disk, code)
    served.cluster.ensemble.expire(served.cluster.coordinators["b1"])
    await until(lambda: served.node.parts.context.role.problem)
    with pytest.raises(refusal, match="epoch 2 of group b1 cannot be stored"):
        await served.client.put("t", 0, [message(b"x")])
    with pytest.raises(StaleEpoch, match="cannot be stored"):
        await served.client.get("t", 0, 0, epoch=2)
    assert served.node.epoch == 1
    served.disk.forget_faults()
    await until(lambda: served.node.epoch == 2)
    assert (await served.client.put("t", 0, [message(b"x")])).epoch == 2


@pytest.mark.parametrize("kind", ["rename", "sync_directory"])
async def test_an_epoch_that_was_nearly_stored_is_stored_once_more(served, kind):
    """It may be in the file already: that is no epoch of somebody else."""
    name = "@epoch.tmp" if kind == "rename" else "data"
    served.disk.fail(kind, name=name)
    served.cluster.ensemble.expire(served.cluster.coordinators["b1"])
    await until(lambda: served.node.epoch == 2)
    assert not served.disk.faults, "the first attempt did not fail"
    assert read_epoch(DATA, served.disk) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
async def test_a_broker_starts_although_its_epoch_cannot_be_stored(cluster, code):
    """It takes nothing and says why; once the disk takes the epoch, it serves."""
    node = await cluster.start()
    await cluster.create_topic("t")
    await node.stop()
    refuse_epochs(cluster.disks["b1"], code)
    node = await cluster.start()
    assert node.epoch == 0
    client = await Client.connect(cluster.network, node.address)
    with pytest.raises((DiskFull, NotMaster), match="epoch 2 of group b1 cannot be stored"):
        await client.put("t", 0, [message(b"x")])
    cluster.disks["b1"].forget_faults()
    await until(lambda: node.epoch == 2)
    await client.put("t", 0, [message(b"x")])


async def test_a_stored_epoch_that_cannot_be_read_ends_a_start(cluster):
    """Nobody can tell then in which epochs this directory has acted."""
    await (await cluster.start()).stop()
    cluster.disks["b1"].write_atomic(DATA / "@epoch", b"vq-epoch 1 damaged")
    with pytest.raises(DirectoryRefused):
        await cluster.start()


async def test_a_lost_connection_while_an_epoch_is_taken_does_no_harm(cluster, monkeypatch):
    """The epoch is stored and acted in; the group's record is read again later.

    Once at the start, and once when the broker had lost its group and has it back.
    """
    read_state, failures = mastership.read_state, 0

    async def fail_once(coordinator, group):
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionLost("the connection ended before the answer")
        return await read_state(coordinator, group)

    monkeypatch.setattr(mastership, "read_state", fail_once)
    failures = 1
    node = await cluster.start(load_interval_s=0.01)
    assert not failures
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    async with cluster.admin() as admin:
        path = GroupState.path("b1")
        mine = (await admin.get(path)).data
        other = GroupState(epoch=1, master="n2", insync=("n2",), incarnations={"n2": 1})
        await admin.set(path, other.encode())
        await until(lambda: node.parts.context.role.refusal)
        with pytest.raises(NotMaster, match="n2"):
            await client.put("t", 0, [message(b"x")])
        await admin.set(path, mine)
    await until(lambda: node.parts.context.role.alone)
    failures = 1
    cluster.ensemble.expire(cluster.coordinators["b1"])
    await until(lambda: node.epoch == 2 and not failures)
    await client.put("t", 0, [message(b"x")])


async def test_an_epoch_that_was_overtaken_while_it_was_stored_takes_no_messages(served):
    """Another process leads in a newer one by then; a slow disk does not bring the old one back."""
    node, runner = served.node, served.cluster.runners["b1"]
    with runner.held():
        served.cluster.ensemble.expire(served.cluster.coordinators["b1"])
        await until(lambda: runner.waiting)
        async with served.cluster.admin() as admin:
            path = GroupState.path("b1")
            state = GroupState.decode("", (await admin.get(path)).data)
            newer = replace(state, epoch=state.epoch + 1, directories={"n1": "another"})
            await admin.set(path, newer.encode())
        await node.parts.mastership.look_at_group()
        assert node.parts.context.role.deposed
        # What reads the record once more comes late, as when ZooKeeper is away.
        served.cluster.ensemble.disconnect(served.cluster.coordinators["b1"])
    await until(lambda: node.parts.mastership.acting.epoch == 2)
    assert node.parts.context.role.deposed
    with pytest.raises(NotMaster, match="in epoch 3"):
        await served.client.put("t", 0, [message(b"x")])


async def test_a_look_at_the_group_that_ends_behind_a_change_of_it_says_nothing_new(
    served, monkeypatch
):
    """The record was read twice at the same time, and whom to follow is known already."""
    node, read_state = served.node, mastership.read_state
    of_node, goes_on = node.parts.mastership, asyncio.Event()

    async def read_slowly(coordinator, group):
        found = await read_state(coordinator, group)
        await goes_on.wait()
        return replace(found, epoch=2, master="n2")

    monkeypatch.setattr(mastership, "read_state", read_slowly)
    looking = asyncio.ensure_future(of_node.look_at_group())
    await asyncio.sleep(0.01)
    of_node.stands(Following(of_node.acting.incarnation, 2, "n2"))
    goes_on.set()
    await looking
    assert node.parts.context.role.state is NodeState.FOLLOWS


async def test_an_epoch_that_does_not_rise_ends_a_start(cluster):
    """ZooKeeper lost the group's record: an epoch that was used before is no fence."""
    await (await cluster.start()).stop()
    async with cluster.admin() as admin:
        await admin.delete(GroupState.path("b1"))
    with pytest.raises(CoordinationError, match="Restore ZooKeeper"):
        await cluster.start()


@pytest.mark.parametrize("own", [False, True])
async def test_an_epoch_that_zookeeper_gives_again_is_refused_for_good(served, own, monkeypatch):
    """Its tree was restored under a running broker; trying again does not go round the fence.

    Also when this very process acted in the epoch: others may have acted in it since.
    """
    if not own:
        EpochFile(DATA, served.disk).store(7)
    acted_in = read_epoch(DATA, served.disk)
    async with served.cluster.admin() as admin:
        node = await admin.get(GroupState.path("b1"))
        state = GroupState.decode("", node.data)
        restored = replace(state, epoch=acted_in - 1)
        await admin.set(GroupState.path("b1"), restored.encode())
    tries, store = 0, EpochFile.store

    def count(file, epoch):
        nonlocal tries
        tries += 1
        store(file, epoch)

    monkeypatch.setattr(EpochFile, "store", count)
    served.cluster.ensemble.expire(served.cluster.coordinators["b1"])
    await until(lambda: tries >= 4)
    with pytest.raises(NotMaster, match=f"directory has acted in {acted_in}"):
        await served.client.put("t", 0, [message(b"x")])


async def test_a_process_of_the_same_name_with_a_later_epoch_ends_the_mastership(cluster):
    """Of two data directories under one node name, the one with the later epoch leads."""
    node = await cluster.start(load_interval_s=0.01)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    path = GroupState.path("b1")
    async with cluster.admin() as admin:
        state = GroupState.decode(path, (await admin.get(path)).data)
        await admin.set(path, replace(state, epoch=state.epoch + 1).encode())
        await until(lambda: node.parts.context.role.refusal is not None)
    with pytest.raises(NotMaster, match="in epoch 2, this process has epoch 1"):
        await client.put("t", 0, [message(b"x")])
    assert node.parts.context.role.deposed


async def test_an_epoch_is_not_acted_in_when_another_master_is_known_by_then(served, monkeypatch):
    """The disk took its time, and another node claimed the group meanwhile."""
    node, runner = served.node, served.cluster.runners["b1"]
    of_node, role, acted = node.parts.mastership, node.parts.context.role, list[int]()
    insync = node.parts.insync
    start, stop = insync.start, insync.stop

    def starts(epoch):
        acted.append(epoch)
        start(epoch)

    def stops():
        acted.append(role.epoch)
        stop()

    monkeypatch.setattr(insync, "start", starts)
    monkeypatch.setattr(insync, "stop", stops)
    incarnation = of_node.acting.incarnation
    with runner.held():
        of_node.stands(Leading(incarnation, 2, ("n1", "n2")))
        await until(lambda: runner.waiting)
        of_node.stands(Following(incarnation, 3, "n2"))
    await until(lambda: isinstance(of_node.acting, Following))
    assert set(acted) == {0}
    assert (role.epoch, role.follows) == (0, "n2")
    assert read_epoch(DATA, served.disk) == 3
