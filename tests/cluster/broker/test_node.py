"""A node's life: start and its refusals, mastership, ZooKeeper away, load, disk, stop."""

import asyncio
import contextlib
import json
import logging
import threading
from pathlib import Path

import pytest
from support.broker import DATA, Client, message
from support.cases import case

from vq.broker.base.runner import Lane, ThreadRunner
from vq.broker.node import Stage
from vq.broker.replication.epoch_file import read_epoch
from vq.coordination.brokers.group_views import groups
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.coordinator import ConnectionLost, NoNode, SessionState
from vq.coordination.tree.values.brokers import BrokerLoad, GroupState, Registration
from vq.errors import (
    AddressUnavailable,
    CoordinationError,
    DirectoryRefused,
    DiskFull,
    InvalidState,
    NotMaster,
    PartitionQuarantined,
    ShuttingDown,
)
from vq.remoting.messages import decode_reply
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S, until


# Start --------------------------------------------------------------------------------------------
async def test_a_started_node_is_registered_and_leads_its_group(cluster):
    """It has a node with its address, an incarnation and epoch 1, and publishes its load."""
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    async with cluster.admin() as admin:
        found = await admin.get(Registration.path("b1", "n1"))
        assert client.hello.incarnation == found.stat.czxid
        value = Registration.decode("", found.data)
        assert (value.host, value.port) == node.address
        state = await read_state(admin, "b1")
        assert (state.epoch, state.master, state.insync) == (1, "n1", ("n1",))
        await until(lambda: node.parts.disks.main.watch.total)
        async with asyncio.timeout(WAIT_S):
            while await admin.exists(BrokerLoad.path("b1", "n1")) is None:
                await asyncio.sleep(0.001)


async def test_pool_and_labels_are_told_to_the_cluster(cluster):
    """Settings of the process become facts of its group, for allocation and for operators."""
    await cluster.start(pool="fast", labels={"rack": "r1"})
    async with cluster.admin() as admin:
        [view] = await groups(admin)
    assert (view.pool, view.labels) == ("fast", {"rack": "r1"})


async def test_every_start_raises_the_epoch_and_stores_it_first(cluster):
    """The epoch is on disk, and in every batch and answer."""
    for epoch in (1, 2, 3):
        node = await cluster.start()
        assert node.epoch == epoch
        assert read_epoch(DATA, cluster.disks["b1"]) == epoch
        await node.stop()


async def test_an_address_that_is_taken_is_named(cluster):
    """The error says which port, and the failed start leaves nothing behind."""
    first = await cluster.start()
    cluster.nodes["kept"] = first
    second = cluster.node("b2", host="b1", port=first.address.port)
    with pytest.raises(AddressUnavailable, match=str(first.address.port)):
        await second.start()
    async with cluster.admin() as admin:
        assert await admin.exists(Registration.path("b2", "n1")) is None
    with pytest.raises(InvalidState):
        _ = second.address
    await cluster.start("b2")


async def test_two_brokers_cannot_share_a_data_directory(cluster):
    """The second one is refused, and the first is not disturbed."""
    first = await cluster.start()
    await cluster.create_topic()
    cluster.nodes["kept"] = first
    with pytest.raises(DirectoryRefused):
        await cluster.start()
    client = await Client.connect(cluster.network, first.address)
    await client.put("t", 0, [message(b"x")])


@pytest.mark.parametrize("change", [{"cluster": "other"}, {"node": "n2"}, {"group": "b9"}])
async def test_a_foreign_data_directory_is_refused(cluster, change):
    """A directory of another cluster, group or node is not touched."""
    await (await cluster.start()).stop()
    disk = cluster.disks["b1"]
    cluster.disks["b9"] = cluster.disks["b1-n2"] = disk
    node = cluster.node(**change)
    files = {name: disk.read_bytes(DATA / name) for name in ("@identity", "@epoch")}
    with pytest.raises(DirectoryRefused, match="belongs to"):
        await node.start()
    assert {name: disk.read_bytes(DATA / name) for name in files} == files


async def test_a_data_directory_of_a_newer_format_is_refused(cluster):
    """An older vq does not guess what a newer one wrote."""
    await (await cluster.start()).stop()
    disk = cluster.disks["b1"]
    identity = json.loads(disk.read_bytes(DATA / "@identity"))
    disk.write_atomic(DATA / "@identity", json.dumps({**identity, "v": 99}).encode())
    with pytest.raises(DirectoryRefused, match="newer"):
        await cluster.start()


async def test_a_tree_that_forgot_the_group_is_noticed(cluster):
    """An emptied ZooKeeper would hand out epoch 1 again; the broker has acted in it already."""
    await (await cluster.start()).stop()
    async with cluster.admin() as admin:
        await admin.delete(GroupState.path("b1"))
    with pytest.raises(CoordinationError, match="Restore ZooKeeper"):
        await cluster.start()


async def test_a_start_without_zookeeper_ends_with_an_error(cluster):
    """It does not wait for ever, and gives the directory back."""
    cluster.ensemble.stop()
    with pytest.raises(CoordinationError):
        await cluster.start(start_timeout_s=0.05)
    cluster.ensemble.start()
    await cluster.start()


async def test_a_start_that_may_not_lead_gives_its_port_back(cluster):
    """It listens by then; the next try, with the right directory, listens there."""
    await (await cluster.start(port=7_001)).stop()
    right = cluster.disks.pop("b1")
    with pytest.raises(CoordinationError, match="accept-data-loss"):
        await cluster.start(port=7_001)
    cluster.disks["b1"] = right
    assert (await cluster.start(port=7_001)).address.port == 7_001


# Restart ------------------------------------------------------------------------------------------
async def test_everything_is_there_after_a_restart(served):
    """Messages, offsets and counts come back from disk."""
    for n in range(10):
        await served.client.put("t", n % 2, [message(b"m%d" % n, n)])
    await served.node.stop()
    served.node = await served.cluster.start()
    client = await served.connect()
    _, body = await client.get("t", 1, 0)
    assert [r.payload for r in decode_records(body, 0)] == [b"m%d" % n for n in range(1, 10, 2)]
    answer = await client.offsets("t", 1, count=True, to_offset=1 << 40)
    assert answer.count == 5


async def test_a_dead_process_of_the_same_directory_does_not_block_the_next(served):
    """After a kill the next process registers at once, without waiting for the old session."""
    await served.client.put("t", 0, [message(b"kept")])
    ensemble, coordinator = served.cluster.ensemble, served.cluster.coordinators["b1"]
    session = coordinator.session_id
    ensemble.crash(coordinator)
    ensemble.sessions[session].timer.cancel()  # it never ends: whoever waits for that, hangs
    served.cluster.network.kill("b1")
    served.disk.release_locks()  # the kernel does this for a real process
    async with asyncio.timeout(WAIT_S):
        node = await served.cluster.start()
    client = await Client.connect(served.cluster.network, node.address)
    assert [r.payload for r in decode_records((await client.get("t", 0, 0))[1], 0)] == [b"kept"]


async def _killed_with_three_messages(served) -> Path:
    """Acknowledge three batches, end the process without a stop; return the partition's block."""
    for number in range(3):
        await served.client.put("t", 0, [message(b"m%d" % number, number)])
    served.cluster.ensemble.crash(served.cluster.coordinators["b1"])
    served.cluster.network.kill("b1")
    served.disk.release_locks()
    return DATA / "t" / "0" / f"{0:016d}.block"


def _cut(disk: MemoryDisk, path: Path, length: int) -> None:
    file = disk.open(path)
    file.truncate(length)
    file.datasync()
    file.close()


async def test_what_a_start_cuts_is_told(served, caplog):
    """At WARNING: which partition and file, how many bytes and messages, from where on."""
    block = await _killed_with_three_messages(served)
    size = CONTROL_BYTES + 20 + 2
    _cut(served.disk, block, 2 * size + CONTROL_BYTES + 5)
    caplog.set_level(logging.WARNING, "vq.broker.logs.logs")
    node = await served.cluster.start()
    (record,) = [r for r in caplog.records if r.name == "vq.broker.logs.logs"]
    assert record.levelno == logging.WARNING
    said = record.getMessage()
    for part in ("partition=t-0", f"from offset {2 * size} on", "at least 1 messages", ".cut-"):
        assert part in said
    client = await Client.connect(served.cluster.network, node.address)
    assert (await client.put("t", 0, [message(b"next")])).offset == 2 * size + CONTROL_BYTES


async def test_a_block_that_vanishes_after_a_kill_is_quarantined(served):
    """The partition is not taken for a new one: no offset is given out again."""
    block = await _killed_with_three_messages(served)
    served.disk.unlink(block)
    node = await served.cluster.start()
    client = await Client.connect(served.cluster.network, node.address)
    (partition,) = [
        p for p in (await client.status(with_partitions=True)).partitions if not p.partition
    ]
    assert partition.state == "quarantined"
    assert block.name in partition.reason
    with pytest.raises(PartitionQuarantined):
        await client.put("t", 0, [message(b"x")])


# ZooKeeper away -----------------------------------------------------------------------------------
async def test_messages_flow_while_zookeeper_is_away(served):
    """A group that is alone in its in-sync set needs no lease."""
    served.cluster.ensemble.stop()
    await until(lambda: served.cluster.coordinators["b1"].state is SessionState.SUSPENDED)
    await served.client.put("t", 0, [message(b"x")])
    header, _ = await served.client.get("t", 0, 0)
    assert header.next_offset > 0
    served.cluster.ensemble.start()


async def test_after_a_lost_session_the_node_registers_anew(served):
    """A new incarnation and epoch follow; messages flow all the time."""
    incarnation = served.client.hello.incarnation
    served.cluster.ensemble.expire(served.cluster.coordinators["b1"])
    await served.client.put("t", 0, [message(b"x")])
    await until(lambda: served.node.epoch == 2)
    again = await served.connect()
    assert again.hello.incarnation > incarnation
    assert (await again.put("t", 0, [message(b"x")])).epoch == 2
    assert read_epoch(DATA, served.disk) == 2


async def test_a_node_that_lost_its_group_to_another_stops_acting(cluster):
    """The group's record names another master: appends are refused, not acknowledged."""
    node = await cluster.start(load_interval_s=0.02)
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    async with cluster.admin() as admin:
        path = GroupState.path("b1")
        other = GroupState(epoch=9, master="n2", insync=("n2",), incarnations={"n2": 1})
        await admin.set(path, other.encode())
    await until(lambda: node.parts.context.role.refusal)
    with pytest.raises(NotMaster, match="n2"):
        await client.put("t", 0, [message(b"x")])


async def test_the_load_has_what_the_node_measures(cluster):
    """Rates, flushes, bytes and disk, while messages come.

    The first load that is published has no rates, and a flush may end after the time in which its
    message was counted.
    """
    node = await cluster.start(load_interval_s=0.02)
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)

    async def send() -> None:
        while True:
            await client.put("t", 0, [message(b"x")])
            await asyncio.sleep(0.005)

    sending = asyncio.create_task(send())
    async with cluster.admin() as admin:
        load = await load_when(admin, lambda load: load.messages_per_s > 0 and load.flush_ms > 0)
    sending.cancel()
    assert load.bytes_per_s > 0
    assert load.stored_bytes > 0
    assert load.partitions == 1
    assert load.disk_bytes_total > 0


async def test_the_load_is_written_anew_after_a_session_ended(cluster):
    """It ended with the session; the same process writes it in the next one."""
    node = await cluster.start(load_interval_s=0.02)
    async with cluster.admin() as admin:
        path = BrokerLoad.path("b1", "n1")
        await load_when(admin, lambda load: True)
        created = (await admin.get(path)).stat.czxid
        cluster.ensemble.expire(cluster.coordinators["b1"])
        await until(lambda: node.parts.presence.registration.incarnation is None)
        assert await admin.exists(path) is None
        await load_when(admin, lambda load: True)
        assert (await admin.get(path)).stat.czxid > created


async def test_a_load_that_cannot_be_written_is_logged_once_and_harms_nothing(cluster, caplog):
    """The broker serves, and looks whether it still leads its group."""
    caplog.set_level("INFO")
    node = await cluster.start(load_interval_s=0.01)
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    tries = 0

    async def fail(load):
        nonlocal tries
        tries += 1
        node.parts.presence.registration._held += 1  # as a new one: it must be written
        raise ConnectionLost("the connection ended before the answer")

    node.parts.presence.registration.publish_load = fail
    node.parts.presence.registration._held += 1
    await until(lambda: tries > 3)
    await client.put("t", 0, [message(b"x")])
    assert caplog.text.count("job failed, trying again job=load") == 1


async def load_when(admin, is_it):
    """Wait for a published load."""
    path = BrokerLoad.path("b1", "n1")
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(NoNode):
                load = BrokerLoad.decode(path, (await admin.get(path)).data)
                if is_it(load):
                    return load
            await asyncio.sleep(0.001)


@pytest.mark.slow
async def test_a_connection_to_zookeeper_that_ends_during_a_start_does_not_end_it(cluster):
    """Whichever answer is lost, as on a machine that stalls for longer than the session lasts."""
    ensemble = cluster.ensemble
    await cluster.start()

    async def start_without(call: int) -> None:
        group = f"without-{call}"
        with case(group):
            node = cluster.node(group)
            ensemble.lose_next_reply(cluster.coordinators[group], skip=call)
            await node.start()
            assert node.epoch == 1

    await asyncio.gather(*map(start_without, range(ensemble.served)))


async def test_topics_made_while_zookeeper_was_cut_off_are_found_later(cluster):
    """Watches are gone after a disconnect; everything is read again, at once."""
    node = await cluster.start(refresh_interval_s=60.0)
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    cluster.ensemble.hold_events(cluster.coordinators["b1"])
    await cluster.create_topic("later")
    cluster.ensemble.release_events(cluster.coordinators["b1"], drop=True)
    assert not node.parts.partitions.channels
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    await until(lambda: ("later", 0) in node.parts.partitions.channels)


async def test_a_node_whose_coordinator_gave_up_says_that_it_cannot_go_on(served):
    """It is not left running, unregistered and deaf; a stop still makes everything durable."""
    failed = asyncio.ensure_future(served.node.failed())
    await served.client.put("t", 0, [message(b"kept")])
    assert not failed.done()
    served.cluster.coordinators["b1"].give_up("five clients died")
    error = await asyncio.wait_for(failed, WAIT_S)
    assert isinstance(error, CoordinationError)
    assert "b1/n1" in str(error)
    assert "five clients died" in str(error)
    assert await served.node.stop()
    await served.cluster.start()
    client = await served.connect()
    assert (await client.offsets("t", 0)).log_end_offset > 0


async def test_a_stop_is_no_failure(served):
    """The coordinator is closed by the node itself then."""
    failed = asyncio.ensure_future(served.node.failed())
    await served.node.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    assert served.cluster.coordinators["b1"].state is SessionState.CLOSED
    assert not failed.done()
    failed.cancel()


# Disk ---------------------------------------------------------------------------------------------
async def test_a_full_disk_refuses_puts_and_resumes_by_itself(cluster):
    """Above the watermark PUTs are refused; reads go on; below it, PUTs are taken again."""
    node = await cluster.start(disk_interval_s=0.01)
    disk = cluster.disks["b1"]
    await cluster.create_topic()
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    free = disk.free_space
    disk.free_space = lambda path: (5, 100)
    await until(lambda: node.parts.gate.put_refusal is not None)
    with pytest.raises(DiskFull, match=r"95\.0% full"):
        await client.put("t", 0, [message(b"x")])
    assert (await client.get("t", 0, 0))[1]
    disk.free_space = free
    await until(lambda: node.parts.gate.put_refusal is None)
    await client.put("t", 0, [message(b"x")])


# Stop ---------------------------------------------------------------------------------------------
async def test_a_stop_finishes_flushes_and_refuses_new_puts(served):
    """What was taken is acknowledged; what comes later is refused as retriable."""
    await served.client.put("t", 0, [message(b"x")])
    served.flusher.held = True
    waiting = served.client.send_put("t", 0, [message(b"last")])
    await until(lambda: served.node.parts.server.requests_waiting == 1)
    stopping = asyncio.ensure_future(served.node.stop())
    await until(lambda: served.node.parts.gate.stage is Stage.STOPPING)
    with pytest.raises(ShuttingDown):
        await served.client.put("t", 0, [message(b"x")])
    served.flusher.release()
    decode_reply(await waiting)
    await stopping
    await asyncio.wait_for(served.client.closed.wait(), WAIT_S)
    assert isinstance(served.client.closing, ShuttingDown)
    async with served.cluster.admin() as admin:
        assert await admin.exists(Registration.path("b1", "n1")) is None


async def test_a_stop_ends_within_its_bound_whatever_hangs(served, caplog):
    """A flush that never ends does not keep the process; no task goes on without a session."""
    node = await served.cluster.start("b2", stop_timeout_s=0.1)
    await served.cluster.create_topic("u", partitions=2)
    client = await Client.connect(served.cluster.network, node.address)
    channels = node.parts.partitions.channels
    await until(lambda: any(topic == "u" for topic, _ in channels))
    number = next(number for topic, number in channels if topic == "u")
    served.cluster.flushers["b2"].held = True
    submitted = served.cluster.flushers["b2"].submissions
    client.send_put("u", number, [message(b"x")])
    await until(lambda: served.cluster.flushers["b2"].submissions > submitted)
    begin = asyncio.get_running_loop().time()
    assert await asyncio.wait_for(node.stop(), WAIT_S) is False
    assert asyncio.get_running_loop().time() - begin >= 0.1, "what hangs has its time"
    assert not node.parts.tasks.running
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_stopping_twice_or_before_a_start_is_fine(cluster):
    """``stop`` may be called from more than one place."""
    await cluster.node().stop()
    node = await cluster.start()
    await node.stop()
    await node.stop()


async def test_waiting_gets_end_at_a_stop(served):
    """A long poll is told that the broker stops, so that its client looks elsewhere."""
    waiting = served.client.send_get("t", 0, 0, max_wait_ms=20_000)
    await until(lambda: served.node.parts.server.reads_waiting == 1)
    await served.node.stop()
    with pytest.raises(ShuttingDown):
        decode_reply(await asyncio.wait_for(waiting, WAIT_S))


# STATUS -------------------------------------------------------------------------------------------
async def test_every_number_in_status_is_counted(served):
    """What STATUS says is what happened."""
    await served.client.put("t", 0, [message(b"x"), message(b"y")])
    _, body = await served.client.get("t", 0, 0)
    served.client.send_get("t", 1, 0, max_wait_ms=20_000)
    status = await served.client.status(with_partitions=True)
    assert (status.cluster, status.group, status.node) == ("test", "b1", "n1")
    assert (status.epoch, status.master, status.connections) == (1, True, 1)
    assert (status.messages_in, status.partition_count, status.flushes) == (2, 2, 1)
    assert status.bytes_in == 2 * len(message(b"x"))
    assert status.bytes_out == len(body)
    assert status.requests_waiting == 1
    assert status.disk_bytes_total == 1 << 40
    assert [p.high_watermark for p in status.partitions] == [len(body), 0]
    assert [p.size_bytes for p in status.partitions] == [len(body), 0]


async def test_a_lane_that_hangs_holds_up_neither_the_loop_nor_the_stop(cluster):
    """The trash of a large topic being deleted, or a read from a disk that does not answer."""
    runner = ThreadRunner()
    node = cluster.node("b1", stop_timeout_s=0.2, runner=runner)
    await node.start()
    entered, gate = threading.Event(), threading.Event()

    def hang() -> bool:
        entered.set()
        return gate.wait(2 * WAIT_S)

    hanging = asyncio.ensure_future(runner.run(hang, Lane.PURGE))
    try:
        await until(entered.is_set)
        assert await node.stop() is False
        assert node.hangs
    finally:
        gate.set()
        assert await hanging, "the stop waited for it"
        await runner.close()
