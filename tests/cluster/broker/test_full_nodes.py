"""A node whose disk refuses messages leads only if no other one can, and hands over."""

import asyncio
from dataclasses import replace

import pytest
from support.broker import Client, MemoryCluster
from support.node_pair import NodePair

from vq.broker.replication.insync_set import InSyncSet
from vq.broker.replication.soundness import RETRY_S
from vq.coordination.brokers.registry import change_group, nodes
from vq.errors import DiskFull, HandOverFailed
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

DISK_BYTES = 1 << 30


class Three(NodePair):
    """Nodes n1, which leads, n2 and n3, all in sync; one topic with two partitions."""

    def fill(self, name: str, share: float) -> None:
        """Have another program use so much of the disk of a node."""
        free = round(DISK_BYTES * (1 - share))
        self.disk(name).free_space = lambda _: (free, DISK_BYTES)  # type: ignore[method-assign]

    async def told(self, **expected: bool) -> None:
        """Return once the registrations say of each of these nodes whether it is full."""

        async def told() -> bool:
            async with self.cluster.admin() as coordinator:
                found = {each.node: each.full for each in await nodes(coordinator, "b1")}
            return all(found.get(name) is full for name, full in expected.items())

        await until_true(told)

    async def switch(self, to: str = "") -> str:
        master = self.nodes[self.leader()]
        client = await Client.connect(self.cluster.network, master.address)
        try:
            await self.cluster.prove(client)
            answer, _ = await client.call(Command.HAND_OVER, wire.HandOverRequest(node=to))
        finally:
            client.close()
        return str(answer.node)

    async def leads(self, name: str) -> None:
        await until(lambda: self.nodes[name].epoch > 0, timeout_s=2 * RETRY_S)


@pytest.fixture
async def three(cluster: MemoryCluster) -> Three:
    made = Three(cluster)
    for name in ("n1", "n2", "n3"):
        await made.start(name)
        if name == "n1":
            await cluster.create_topic("t", partitions=1)
    await made.put(2)
    await until(lambda: made.nodes["n1"].parts.context.role.named == 3)
    return made


async def test_a_master_hands_over_to_a_node_with_space(three: Three) -> None:
    three.fill("n2", 0.93)
    await three.told(n1=False, n2=True, n3=False)
    assert await three.switch() == "n3"
    await three.leads("n3")
    await three.put(2)


async def test_nobody_is_handed_the_group_to_refuse_its_messages(three: Three) -> None:
    three.fill("n2", 0.93)
    three.fill("n3", 0.93)
    await three.told(n2=True, n3=True)
    with pytest.raises(HandOverFailed, match="with space on its disk"):
        await three.switch()
    with pytest.raises(HandOverFailed, match="'n2' cannot take over, it refuses messages, its"):
        await three.switch("n2")
    await three.put(2)
    assert three.leader() == "n1"


async def test_a_master_that_fills_up_hands_over_at_once(three: Three) -> None:
    three.fill("n1", 0.91)
    three.fill("n2", 0.93)
    begun = asyncio.get_running_loop().time()
    await three.leads("n3")
    assert asyncio.get_running_loop().time() - begun < 3.0
    await three.put(2)


async def test_full_nodes_do_not_pass_the_group_around(three: Three) -> None:
    for name in ("n2", "n3", "n1"):  # the master last: it hands over to one that it takes for free
        three.fill(name, 0.93)
        if name == "n3":
            await three.told(n2=True, n3=True)
    await three.told(n1=True, n2=True, n3=True)
    await asyncio.sleep(3 * RETRY_S)
    assert three.nodes["n1"].epoch == 1
    with pytest.raises(DiskFull):
        await three.put(1)
    three.fill("n2", 0.5)
    await three.leads("n2")
    assert three.nodes["n2"].epoch == 2


@pytest.mark.parametrize(("full", "elected"), [("n2", "n3"), ("n3", "n2")])
async def test_a_node_with_space_is_elected(three: Three, full: str, elected: str) -> None:
    three.fill(full, 0.93)
    await three.told(**{full: True})
    cluster = three.cluster
    await three.nodes.pop("n1").parts.tasks.close()
    cluster.ensemble.crash(cluster.coordinators["b1"])
    cluster.network.kill("b1")
    await three.leads(elected)
    assert three.nodes[elected].epoch == 2, "at once, not handed over by a node that is full"
    await three.put(2)


async def test_a_master_that_stops_prefers_a_node_with_space(three: Three) -> None:
    three.fill("n2", 0.93)
    await three.told(n2=True)
    await three.stop("n1")
    await three.leads("n3")


async def test_a_master_that_stops_has_a_full_node_lead_if_there_is_no_other(
    three: Three,
) -> None:
    """Readers go on."""
    three.fill("n2", 0.93)
    three.fill("n3", 0.93)
    await three.told(n2=True, n3=True)
    await three.stop("n1")
    await until(lambda: any(node.epoch for node in three.nodes.values()))


async def test_a_drained_master_waits_for_a_node_with_space(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("n2", "n3"):
        three.fill(name, 0.93)
    await three.told(n2=True, n3=True)

    async with three.cluster.admin() as coordinator:
        await change_group(coordinator, "b1", lambda group: replace(group, drained=("n1",)))
    await asyncio.sleep(5.0)
    await three.put(2)
    assert three.leader() == "n1"
    three.fill("n3", 0.5)
    await three.leads("n3")


async def test_a_node_that_starts_with_a_full_disk_says_so_at_once(three: Three) -> None:
    await three.stop("n3")
    three.fill("n3", 0.93)
    await three.start("n3")
    async with three.cluster.admin() as coordinator:
        assert [each.full for each in await nodes(coordinator, "b1")] == [False, False, True]


async def test_a_full_master_that_leads_alone_leads_on(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node copies, and is not in sync."""

    async def look(_: InSyncSet) -> None:
        pass

    monkeypatch.setattr(InSyncSet, "look", look)
    pair = Three(cluster)
    await pair.start("n1")
    await pair.start("n2")
    pair.fill("n1", 0.93)
    await pair.told(n1=True)
    await asyncio.sleep(10.0)
    assert pair.leader() == "n1"
