"""Published loads are read with one call for each group."""

import pytest

from vq.coordination.brokers.loads import read_loads
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import CoordinationError

pytestmark = pytest.mark.virtual_time


async def publish(client: MemoryCoordinator, group: str, data: bytes) -> None:
    path = BrokerLoad.path(group, "n1")
    await client.create(path, data, ephemeral=True, parents=True)


@pytest.mark.parametrize("count", [1, 10, 100])
async def test_a_reading_costs_one_call_for_each_group(
    client: MemoryCoordinator, ensemble: MemoryEnsemble, count: int
) -> None:
    """Not one for each node: the master's load is that of the group."""
    for number in range(count):
        await publish(client, f"b{number}", BrokerLoad(partitions=number).encode())
        await client.create(BrokerLoad.path(f"b{number}", "n2"), BrokerLoad().encode())
    before = ensemble.served
    found = await read_loads(client, {f"b{number}": "n1" for number in range(count)})
    assert ensemble.served - before == count
    assert [found[f"b{number}"].load.partitions for number in range(count)] == list(range(count))


async def test_what_is_missing_or_damaged_is_left_out(client: MemoryCoordinator) -> None:
    """One bad value says nothing about the others."""
    await publish(client, "b1", BrokerLoad().encode())
    await publish(client, "b2", b"{")
    await publish(client, "b3", b'{"v": 9}')
    found = await read_loads(client, {"b1": "n1", "b2": "n1", "b3": "n1", "b4": "n1"})
    assert list(found) == ["b1"]


async def test_each_write_of_a_load_is_told_from_the_one_before(client: MemoryCoordinator) -> None:
    """Also when the value is the same, and when the node is made anew."""
    path, data = BrokerLoad.path("b1", "n1"), BrokerLoad().encode()
    await publish(client, "b1", data)
    seen = [(await read_loads(client, {"b1": "n1"}))["b1"].written]
    await client.set(path, data)
    seen.append((await read_loads(client, {"b1": "n1"}))["b1"].written)
    await client.delete(path)
    await publish(client, "b1", data)
    seen.append((await read_loads(client, {"b1": "n1"}))["b1"].written)
    assert len(set(seen)) == 3
    assert (await read_loads(client, {"b1": "n1"}))["b1"].written == seen[-1]


async def test_without_zookeeper_nothing_is_said(
    client: MemoryCoordinator, ensemble: MemoryEnsemble
) -> None:
    await publish(client, "b1", BrokerLoad().encode())
    ensemble.lose_next_reply(client)
    with pytest.raises(CoordinationError):
        await read_loads(client, {"b1": "n1"})
