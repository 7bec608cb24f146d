"""A partition whose log is lost begins anew at an offset that was never used."""

from typing import Any

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started

from vq.coordination.groups import groups
from vq.coordination.topics import topics
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.errors import InvalidArgument, InvalidState, UnknownPartition
from vq.message_filter import ALL
from vq.model import Span
from vq.operations.topics.begins import BEGIN_MAX, begin_anew
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def commit(cluster: MemoryCluster, offset: int) -> None:
    async with cluster.admin() as coordinator:
        await groups.ensure_group(coordinator, "g", ConsumerGroup(topics={"t": ALL}))
        data = CommittedOffset(offset=offset).encode()
        await coordinator.create(CommittedOffset.path("g", "t", 0), data, parents=True)


async def test_messages_go_on_at_the_new_begin_and_nothing_is_read_before_it(
    cluster: MemoryCluster,
) -> None:
    node = cluster.nodes["b1"]
    await until(lambda: len(node.parts.partitions.channels) == 2)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"lost")])
    client.close()
    await commit(cluster, 110)
    async with started(cluster, host="operator") as operator:
        with pytest.raises(InvalidState, match="b1/n1 must not run"):
            await begin_anew(operator, "t", 0, 5_000, do=True)
        await node.stop()
        cluster.disks["b1"].rename(DATA / "t" / "0", DATA / "lost")
        for used in (0, 110, BEGIN_MAX + 1):
            with pytest.raises(InvalidArgument, match="offsets up to 110 were used"):
                await begin_anew(operator, "t", 0, used, do=True)
        with pytest.raises(UnknownPartition, match="0 to 1, not 2"):
            await begin_anew(operator, "t", 2, 5_000, do=True)
        planned = await begin_anew(operator, "t", 0, 5_000, do=False)
        assert (planned.committed, planned.given_up) == (110, (Span("b1", 0),))
        assert await begin_anew(operator, "t", 0, 5_000, do=True) == planned
    node = await cluster.start("b1")
    await until(lambda: len(node.parts.partitions.channels) == 2)
    client = await Client.connect(cluster.network, node.address)
    assert (await client.put("t", 0, [message(b"new")])).offset >= 5_000
    assert (await client.put("t", 1, [message(b"other")])).offset < 5_000
    client.close()


async def test_a_node_that_comes_meanwhile_keeps_its_partition(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the log after all, and serves it when the new begin is written."""
    await cluster.nodes["b1"].stop()
    real = topics.change_placement

    async def late(*given: Any, **fields: Any) -> Any:
        await cluster.start("b1")
        return await real(*given, **fields)

    monkeypatch.setattr(topics, "change_placement", late)
    async with started(cluster, host="operator") as operator:
        with pytest.raises(InvalidState, match="came meanwhile"):
            await begin_anew(operator, "t", 0, 5_000, do=True)
        view = await topics.describe_topic(operator.coordinator, "t")
        assert view.partitions[0].spans == (Span("b1", 0),)


async def test_a_commit_that_cannot_be_read_may_lie_behind_any_offset(
    cluster: MemoryCluster,
) -> None:
    await commit(cluster, 110)
    await cluster.nodes["b1"].stop()
    async with started(cluster, host="operator") as operator:
        await operator.coordinator.set(CommittedOffset.path("g", "t", 0), b"nonsense")
        with pytest.raises(InvalidState, match="cannot be read, and the new begin must lie"):
            await begin_anew(operator, "t", 0, 5_000, do=True)
