"""The registration of a dead master is removed by a copy in sync, and by nobody else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from vq.coordination.brokers.dead_masters import DeadMasters
from vq.coordination.brokers.fitness import Fitness
from vq.coordination.brokers.leadership import Following
from vq.coordination.tree.coordinator import Node, NoNode
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError

pytestmark = pytest.mark.virtual_time

MASTER = Registration.path("b1", "n1")


async def followed(client: MemoryCoordinator) -> Following:
    """Register ``n1``, which leads in epoch 3, and ``n2``, in sync; return what ``n2`` follows."""
    value = Registration(host="127.0.0.1", port=8123, nonce="first")
    found: dict[str, Node] = {}
    for name in ("n1", "n2"):
        await client.create(
            Registration.path("b1", name), value.encode(), ephemeral=True, parents=True
        )
        found[name] = await client.get(Registration.path("b1", name))
    incarnations = {name: each.stat.czxid for name, each in found.items()}
    state = GroupState(epoch=3, master="n1", insync=("n1", "n2"), incarnations=incarnations)
    await client.create(GroupState.path("b1"), state.encode(), parents=True)
    return Following(incarnations["n2"], 3, "n1", incarnations["n1"])


class Damaged(Fitness):
    has_damage = True


def remover(client: MemoryCoordinator, fitness: Fitness | None = None) -> DeadMasters:
    return DeadMasters(client, group="b1", node="n2", fitness=fitness or Fitness())


async def is_registered(client: MemoryCoordinator) -> bool:
    try:
        await client.get(MASTER)
    except NoNode:
        return False
    return True


async def test_a_copy_in_sync_removes_it(client: MemoryCoordinator) -> None:
    following = await followed(client)
    await remover(client).remove(following)
    assert not await is_registered(client)
    await remover(client).remove(following)  # it is gone, whoever did it


@pytest.mark.parametrize(
    "change",
    [
        lambda state: replace(state, insync=("n1",)),
        lambda state: replace(state, incarnations={**state.incarnations, "n2": 1}),
        lambda state: replace(state, epoch=4),
        lambda state: replace(state, epoch=4, master="n3"),
    ],
    ids=["not in sync", "in sync before", "a newer epoch", "another master"],
)
async def test_it_stays_if_this_node_could_not_lead_instead(
    client: MemoryCoordinator, change: Callable[[GroupState], GroupState]
) -> None:
    following = await followed(client)
    path = GroupState.path("b1")
    state = GroupState.decode(path, (await client.get(path)).data)
    await client.set(path, change(state).encode())
    await remover(client).remove(following)
    assert await is_registered(client)


async def test_a_master_that_is_registered_anew_stays(client: MemoryCoordinator) -> None:
    """It was started again; what this node knows is about the process before."""
    following = await followed(client)
    value = (await client.get(MASTER)).data
    await client.delete(MASTER)
    await client.create(MASTER, value, ephemeral=True)
    await remover(client).remove(following)
    assert await is_registered(client)


async def test_a_node_that_may_not_lead_removes_nobody(client: MemoryCoordinator) -> None:
    await remover(client, Damaged()).remove(await followed(client))
    assert await is_registered(client)


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
@pytest.mark.parametrize("nonce", ["first", "second"])
async def test_a_process_that_came_back_is_not_removed_again(
    client: MemoryCoordinator, ensemble: MemoryEnsemble, nonce: str, lost: bool
) -> None:
    """It lives. A new process of that node may be dead."""
    following, dead = await followed(client), remover(client)
    value = Registration.decode(MASTER, (await client.get(MASTER)).data)
    if lost:
        ensemble.lose_next_reply(client, skip=1)  # that of the write
    await dead.remove(following)
    assert not await is_registered(client)
    await client.create(MASTER, replace(value, nonce=nonce).encode(), ephemeral=True)
    following = replace(following, master_incarnation=(await client.get(MASTER)).stat.czxid)
    if nonce == "first":
        with pytest.raises(CoordinationError, match="registered again"):
            await dead.remove(following)
    else:
        await dead.remove(following)
    assert await is_registered(client) == (nonce == "first")
