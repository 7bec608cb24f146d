"""The epoch of a broker group is raised after ZooKeeper came back from an older backup."""

import dataclasses

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import started

from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.limits import EPOCH_MAX
from vq.operations.brokers.epochs import raise_epoch

pytestmark = pytest.mark.virtual_time

STARTS = 6


async def epoch(cluster: MemoryCluster, *, becomes: int = 0) -> int:
    """Return the epoch of the record; first write another one, as an old backup has it."""
    async with cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
        assert state is not None
        if becomes:
            data = dataclasses.replace(state, epoch=becomes).encode()
            await coordinator.set(GroupState.path("b1"), data)
        return becomes or state.epoch


async def test_a_broker_leads_again_when_the_epoch_is_raised_to_what_its_directory_knows() -> None:
    async with memory_cluster() as cluster:
        for _ in range(STARTS):
            node = await cluster.start()
            await node.stop()
        await epoch(cluster, becomes=1)
        with pytest.raises(CoordinationError, match=f"has acted in {STARTS}"):
            await cluster.start()
        async with started(cluster, host="operator") as operator:
            planned = await raise_epoch(operator, "b1", STARTS, do=False)
            assert await epoch(cluster) == planned.before < STARTS
            assert await raise_epoch(operator, "b1", STARTS, do=True) == planned
        node = await cluster.start()
        assert node.epoch == STARTS + 1


async def test_an_epoch_only_rises_and_only_while_no_node_runs() -> None:
    async with memory_cluster() as cluster:
        node = await cluster.start()
        async with started(cluster, host="operator") as operator:
            with pytest.raises(InvalidState, match="b1/n1 must not run"):
                await raise_epoch(operator, "b1", 9, do=True)
            await node.stop()
            for wrong in (1, EPOCH_MAX):
                with pytest.raises(InvalidArgument, match="an epoch only rises"):
                    await raise_epoch(operator, "b1", wrong, do=True)
            with pytest.raises(InvalidArgument, match="no node has ever led"):
                await raise_epoch(operator, "b2", 9, do=True)
        assert await epoch(cluster) == 1
