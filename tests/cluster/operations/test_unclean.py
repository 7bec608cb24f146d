"""An operator has a node lead that may lack messages; who read them is told, and nothing is hidden.

n1 leads, n2 has all:  common            both in sync
n2 stops               common | ahead    n1 acknowledges alone, and is lost
n2 leads, by decision  common | new      a reader of ``ahead`` is told which offsets are gone
n1 comes back          common | new      ``ahead`` is kept in its side file
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from support.broker import DATA, Client, MemoryCluster, memory_cluster, message
from support.client import factory_of, started

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.coordination.brokers.insync import MastershipRefused
from vq.coordination.brokers.registry import read_state, read_unclean
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import GroupStopped, InvalidArgument, LogTruncated, PartitionQuarantined
from vq.operations.brokers.diverged import list_cut, read_cut
from vq.operations.brokers.unclean import elect_uncleanly, plan_unclean
from vq.operations.cluster.cluster import cluster_status
from vq.operations.groups.resets import Goal, Target, plan_reset, reset
from vq.operations.partitions.placements import carry_out as place
from vq.operations.partitions.placements import plan_moves
from vq.store.care.divergence import diverged
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time


@dataclass
class Lost:
    """Group b1: n1, alone in sync, is lost with 10 messages that n2, which runs, does not have."""

    cluster: MemoryCluster
    operator: ClusterClient
    common: int  # where n2's log ends
    ahead: int  # where that of n1 ended

    async def elect(self, *topics: str, node: str = "n2", do: bool = True) -> None:
        elect = elect_uncleanly if do else plan_unclean
        await elect(self.operator, "b1", node, topics or ("t",))

    async def leads(self) -> None:
        """Return once n2 leads."""
        await until(lambda: self.cluster.nodes["b1-n2"].epoch > 0)

    async def put(self, count: int, name: bytes) -> None:
        address = self.cluster.nodes["b1-n2"].address
        client = await Client.connect(self.cluster.network, address)
        for number in range(count):
            await client.put("t", 0, [message(b"%s %d" % (name, number))])
        client.close()


async def member(factory: aio.MessageFactory) -> aio.MessageConsumer:
    """Return a started member of group ``g``."""
    config = ConsumerConfig(group="g", max_wait_s=0.2, audit_interval_s=0.1)
    consumer = await factory.create_consumer(config)
    consumer.subscribe("t")
    await consumer.start()
    return consumer


async def take(consumer: aio.MessageConsumer, count: int) -> list[bytes]:
    messages = aiter(consumer)
    async with asyncio.timeout(WAIT_S):
        return [(await anext(messages)).content for _ in range(count)]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as found:
        yield found


@pytest.fixture
async def lost(cluster: MemoryCluster) -> AsyncIterator[Lost]:
    first = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: len(first.parts.partitions.channels) == 1)
    second = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, first.address)
    for number in range(3):
        await client.put("t", 0, [message(b"common %d" % number)])
    await cluster.until_in_sync("n1", "n2")
    log = first.parts.partitions.channels["t", 0].log
    assert log is not None
    common = log.end_offset
    await second.stop()
    await cluster.until_in_sync("n1")
    for number in range(10):
        await client.put("t", 0, [message(b"ahead %d" % number)])
    ahead = log.end_offset
    async with factory_of(cluster, host="reader") as factory:
        cluster.reader = await factory.create_consumer()  # type: ignore[attr-defined]
        await cluster.reader.get("t", 0, 0, 1 << 20)  # type: ignore[attr-defined]
        async with await member(factory) as consumer:
            assert len(await take(consumer, 13)) == 13
        cluster.ensemble.crash(cluster.coordinators["b1"])
        await first.stop()
        await cluster.start(node="n2")
        async with started(cluster, host="operator") as operator:
            yield Lost(cluster, operator, common, ahead)


async def test_the_node_leads_and_the_old_master_keeps_what_it_had(
    lost: Lost, caplog: pytest.LogCaptureFixture
) -> None:
    """The lost range that is reported is the real one: at the reader, and in the side file."""
    async with asyncio.timeout(WAIT_S):
        while (await lost.operator.coordinator.exists("brokers/b1/nodes/n1")) is not None:
            await asyncio.sleep(0.1)  # its session has not ended yet
    with caplog.at_level(logging.ERROR):
        await lost.elect()
        await lost.leads()
    assert "unclean election, acknowledged messages may be lost" in caplog.text
    state = await read_state(lost.operator.coordinator, "b1")
    assert state is not None
    assert (state.master, state.insync, state.unclean) == ("n2", ("n2",), False)
    await lost.put(20, b"new")
    reader = lost.cluster.reader  # type: ignore[attr-defined]
    with pytest.raises(LogTruncated) as caught:
        await reader.get("t", 0, lost.ahead, 1 << 20)
    assert (caught.value.details["parts_at"], caught.value.details["offset"]) == (
        lost.common,
        lost.ahead,
    )
    found = await reader.get("t", 0, lost.common, 1 << 20)
    assert [each.content for each in found][:2] == [b"new 0", b"new 1"]
    await lost.cluster.start()
    disk = lost.cluster.disks["b1"]
    await until(lambda: len(diverged(DATA / "t" / "0", disk)) == 1)

    async def is_listed() -> bool:
        files, _ = await list_cut(lost.operator)  # of the nodes that answer, on a busy machine
        return bool(files)

    await until_true(is_listed)
    [file], _ = await list_cut(lost.operator)
    assert (file.start_offset, file.end_offset) == (lost.common, lost.ahead)
    kept = [each.content async for some in read_cut(lost.operator, file) for each in some]
    assert kept == [b"ahead %d" % number for number in range(10)]
    await lost.cluster.until_in_sync("n1", "n2")


async def test_the_decision_is_written_down_and_shown(lost: Lost) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await lost.operator.coordinator.exists("brokers/b1/nodes/n1")) is not None:
            await asyncio.sleep(0.1)
    await lost.elect()
    await lost.leads()
    [election] = (await read_unclean(lost.operator.coordinator, "b1")).elections
    assert (election.node, election.insync, election.topics) == ("n2", ("n1",), ("t",))
    assert "@" in election.who
    away, told = (await cluster_status(lost.operator)).unsafe
    assert away.text.startswith("b1: n1 was in sync and does not run")
    assert (told.kind, told.wrong, told.topics) == ("unclean", False, ("t",))
    assert f"{election.who} had n2 lead after epoch {election.epoch}" in told.text


async def test_it_is_refused_where_it_is_not_the_last_resort(lost: Lost) -> None:
    """And every topic must be named; a plan changes nothing."""
    before = await read_state(lost.operator.coordinator, "b1")
    for topics, error in [(("u",), "missing: t"), (("t", "v"), "has nothing of topic v")]:
        with pytest.raises(InvalidArgument, match=error):
            await lost.elect(*topics)
    with pytest.raises(InvalidArgument, match="'n9' of group 'b1' is not registered"):
        await lost.elect("t", node="n9")
    with pytest.raises(InvalidArgument, match="ever led a broker group 'b9'"):
        await elect_uncleanly(lost.operator, "b9", "n1", ())
    async with asyncio.timeout(WAIT_S):
        while (await lost.operator.coordinator.exists("brokers/b1/nodes/n1")) is not None:
            await asyncio.sleep(0.1)
    await lost.elect("t", do=False)
    assert await read_state(lost.operator.coordinator, "b1") == before
    await lost.cluster.start()  # n1 comes back
    await until(lambda: lost.cluster.nodes["b1"].epoch > 0)
    with pytest.raises(MastershipRefused, match="n1 of group 'b1' is in sync and registered"):
        await lost.elect("t")
    assert (await read_unclean(lost.operator.coordinator, "b1")).elections == ()


async def test_a_group_that_was_ahead_is_stopped_and_goes_on_where_an_operator_says(
    lost: Lost,
) -> None:
    """Its progress is committed; another member finds that what is before it is something else."""
    async with asyncio.timeout(WAIT_S):
        while (await lost.operator.coordinator.exists("brokers/b1/nodes/n1")) is not None:
            await asyncio.sleep(0.1)
    await lost.elect()
    await lost.leads()
    await lost.put(20, b"new")
    path = CommittedOffset.path("g", "t", 0)
    async with factory_of(lost.cluster, host="other") as factory:
        async with await member(factory) as consumer:
            await until(lambda: isinstance(consumer.last_error, GroupStopped))
        found = await lost.operator.coordinator.get(path)
        value = CommittedOffset.decode(path, found.data)
        assert (value.offset, value.stopped != "") == (lost.ahead, True)
        target = Target(goal=Goal.OFFSET, value=lost.common)
        await reset(lost.operator, "g", await plan_reset(lost.operator, "g", target))
        async with await member(factory) as consumer:
            assert await take(consumer, 20) == [b"new %d" % number for number in range(20)]


async def test_a_group_that_was_ahead_is_stopped_also_where_the_same_message_lies(
    lost: Lost,
) -> None:
    """Other messages lie under the same offsets, with the same ids: the epoch tells them apart."""
    async with asyncio.timeout(WAIT_S):
        while (await lost.operator.coordinator.exists("brokers/b1/nodes/n1")) is not None:
            await asyncio.sleep(0.1)
    path = CommittedOffset.path("g", "t", 0)
    before = CommittedOffset.decode(path, (await lost.operator.coordinator.get(path)).data)
    assert (before.offset, before.epoch > 0) == (lost.ahead, True)
    await lost.elect()
    await lost.leads()
    await lost.put(11, b"newer")
    async with factory_of(lost.cluster, host="other") as factory:
        async with await member(factory) as consumer:
            await until(lambda: isinstance(consumer.last_error, GroupStopped))
            gone = f"from offset {lost.common} to {lost.ahead} is gone: it was written in epoch 1"
            assert gone in str(consumer.last_error)
        target = Target(goal=Goal.OFFSET, value=lost.common)
        [planned] = await plan_reset(lost.operator, "g", target)
        assert planned.after.epoch == 0
        await reset(lost.operator, "g", [planned])
        async with await member(factory) as consumer:
            assert await take(consumer, 11) == [b"newer %d" % number for number in range(11)]


async def test_a_group_without_a_message_id_is_told_by_its_first_read(lost: Lost) -> None:
    """Its commit has the epoch alone; no question is asked before the read."""
    async with asyncio.timeout(WAIT_S):
        while (await lost.operator.coordinator.exists("brokers/b1/nodes/n1")) is not None:
            await asyncio.sleep(0.1)
    path = CommittedOffset.path("g", "t", 0)
    found = await lost.operator.coordinator.get(path)
    value = replace(CommittedOffset.decode(path, found.data), message_id=None)
    await lost.operator.coordinator.set(path, value.encode())
    await lost.elect()
    await lost.leads()
    await lost.put(11, b"newer")
    async with (
        factory_of(lost.cluster, host="other") as factory,
        await member(factory) as consumer,
    ):
        await until(lambda: isinstance(consumer.last_error, GroupStopped))
        assert "is gone: it was written in epoch 1" in str(consumer.last_error)


async def test_readers_are_told_what_is_missing_of_a_range_that_was_moved_away(
    cluster: MemoryCluster,
) -> None:
    """The partition goes on in another group, behind a hole: no reader waits before it for ever.

    b1/n1: common | ahead, is lost     b2: moved
    b1/n2: common | –                  leads, by decision
    """
    first = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: len(first.parts.partitions.channels) == 1)
    second = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, first.address)
    await client.put("t", 0, [message(b"common")])
    await cluster.until_in_sync("n1", "n2")
    log = first.parts.partitions.channels["t", 0].log
    assert log is not None
    common = log.end_offset
    await second.stop()
    await cluster.until_in_sync("n1")
    await client.put("t", 0, [message(b"ahead")])
    other = await cluster.start("b2")
    async with started(cluster, host="operator") as operator:
        [move] = await plan_moves(operator, "t", [0], "b2")
        moved = await place(operator, move)
        await until(lambda: ("t", 0) in other.parts.partitions.channels)
        cluster.ensemble.crash(cluster.coordinators["b1"])
        await first.stop()
        await cluster.start(node="n2")
        async with asyncio.timeout(WAIT_S):
            while await operator.coordinator.exists("brokers/b1/nodes/n1") is not None:
                await asyncio.sleep(0.1)
        await elect_uncleanly(operator, "b1", "n2", ("t",))
        await until(lambda: cluster.nodes["b1-n2"].epoch > 0)
        async with factory_of(cluster, host="reader") as factory:
            reader = await factory.create_consumer()
            found = await reader.get("t", 0, 0, 1 << 20)
            assert [each.content for each in found] == [b"common"]
            with pytest.raises(PartitionQuarantined, match=rf"\[{common}, {moved}\) of t-0"):
                await reader.get("t", 0, common, 1 << 20, timeout=0.2)
            assert await reader.get("t", 0, moved, 1 << 20, timeout=0.2) == []
            async with await member(factory) as consumer:
                assert await take(consumer, 1) == [b"common"]
                await until(lambda: isinstance(consumer.last_error, PartitionQuarantined))
