"""Loads are read seldom, are kept while ZooKeeper is away, and become stale."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.coordination import client_of

from vq import limits
from vq.client.broker_loads import READ_AGAIN_S, BrokerLoads
from vq.clock import ManualClock
from vq.coordination.tree.coordinator import SessionState
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

ONE = {"b1": "n1"}
PATH = BrokerLoad.path("b1", "n1")


@pytest.fixture
async def world() -> AsyncIterator[Any]:
    """A client of ZooKeeper, a clock of its own, and one published load."""
    ensemble, clock = MemoryEnsemble(reconnect_delay_s=0.0), ManualClock()
    async with client_of(ensemble) as client:
        await client.create(PATH, BrokerLoad(partitions=1).encode(), parents=True)
        yield SimpleNamespace(
            ensemble=ensemble, clock=clock, client=client, loads=BrokerLoads(client, clock)
        )


async def test_a_load_is_known_after_a_refresh(world):
    assert world.loads.get("b1", "n1") is None
    await world.loads.refresh(ONE)
    assert world.loads.get("b1", "n1") == BrokerLoad(partitions=1)
    assert world.loads.get("b1", "n2") is None


@pytest.mark.parametrize("groups", [1, 10, 100])
async def test_many_producers_cost_what_one_costs(world, groups):
    """Twenty that refresh in turn: one call for each group, until the loads may be read again."""
    nodes = {f"g{number}": "n1" for number in range(groups)}
    before = world.ensemble.served
    for _ in range(20):
        await world.loads.refresh(nodes)
        world.clock.advance(READ_AGAIN_S / 25)
    assert world.ensemble.served - before == groups
    world.clock.advance(READ_AGAIN_S)
    await world.loads.refresh(nodes)
    assert world.ensemble.served - before == 2 * groups


async def test_a_load_that_is_not_written_again_becomes_stale(world):
    """By the reader's clock: each write of the broker begins a new age."""
    await world.loads.refresh(ONE)
    for written in (False, False, True, False, False):
        world.clock.advance(limits.LOAD_STALE_S / 2 - 1)
        if written:
            await world.client.set(PATH, BrokerLoad(partitions=1).encode())
        await world.loads.refresh(ONE)
        assert world.loads.get("b1", "n1") is not None
    world.clock.advance(3)
    await world.loads.refresh(ONE)
    assert world.loads.get("b1", "n1") is None
    await world.client.set(PATH, BrokerLoad(partitions=2).encode())
    world.clock.advance(READ_AGAIN_S)
    await world.loads.refresh(ONE)
    assert world.loads.get("b1", "n1") == BrokerLoad(partitions=2)


async def test_a_load_whose_broker_left_is_unknown(world):
    await world.loads.refresh(ONE)
    await world.client.delete(PATH)
    world.clock.advance(READ_AGAIN_S)
    await world.loads.refresh(ONE)
    assert world.loads.get("b1", "n1") is None


async def test_while_zookeeper_is_away_the_last_load_counts_until_it_is_stale(world):
    """And a refresh does not wait for the connection."""
    await world.loads.refresh(ONE)
    world.ensemble.disconnect(world.client)
    await until(lambda: world.client.state is not SessionState.CONNECTED)
    before = world.ensemble.served
    world.clock.advance(limits.LOAD_STALE_S)
    await world.loads.refresh(ONE)
    assert world.loads.get("b1", "n1") == BrokerLoad(partitions=1)
    world.clock.advance(1)
    assert world.loads.get("b1", "n1") is None
    assert world.ensemble.served == before


async def test_a_lost_answer_leaves_what_was_known(world):
    await world.loads.refresh(ONE)
    world.clock.advance(READ_AGAIN_S)
    world.ensemble.lose_next_reply(world.client)
    await world.loads.refresh(ONE)
    assert world.loads.get("b1", "n1") == BrokerLoad(partitions=1)


async def test_nodes_that_nobody_asks_for_are_forgotten(world):
    """A producer that lives for a year remembers the masters of today."""
    for number in range(50):
        await world.loads.refresh({f"g{number}": "n1"})
        world.clock.advance(READ_AGAIN_S)
    assert len(world.loads._entries) <= limits.LOAD_STALE_S / READ_AGAIN_S + 1
