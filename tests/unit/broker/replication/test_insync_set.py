"""What a master decides of the other nodes, when something changes between two steps."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.roles import leading

from vq.broker.replication import insync_set
from vq.broker.replication.insync_set import InSyncSet
from vq.clock import SystemClock
from vq.coordination.tree.coordinator import Node, NoNode, SessionState
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.errors import NotMaster
from vq.model import Address, NodeInfo
from vq.remoting.memory import MemoryNetwork

pytestmark = pytest.mark.virtual_time


class Slow(MemoryCoordinator):
    """Answers nothing before it is allowed to."""

    answers: asyncio.Event
    state = SessionState.CONNECTED  # type: ignore[assignment]

    async def get(self, path: str, *, watch: object = None) -> Node:
        await self.answers.wait()
        raise NoNode(path)


#: The partitions of a node that holds none.
NONE: Any = SimpleNamespace(channels={}, knows_all=lambda: True)


@pytest.mark.parametrize("epoch", [0, 7])
async def test_what_an_earlier_epoch_found_puts_nobody_out(epoch: int) -> None:
    """The node is in sync by the record of the new epoch, and may have come back since."""
    coordinator = Slow(MemoryEnsemble(), "/vq/orders", session_timeout_s=10.0)
    coordinator.answers = asyncio.Event()
    clock = SystemClock()
    role = leading(3, {"n2"})
    insync = InSyncSet(role, coordinator, NONE, MemoryNetwork(), clock, node="n1")
    insync.start(3)
    looking = asyncio.create_task(insync.look())
    await asyncio.sleep(0)
    if epoch:
        role.begins(epoch, {"n2"})
        insync.start(epoch)
    else:
        role.follow("n2", NotMaster("n2 leads"))
        insync.stop()
    coordinator.answers.set()
    await looking
    assert role.leaving == 0
    assert insync._leaves == ""


async def test_no_node_is_asked_whether_it_lives_where_nothing_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has nothing to copy, and would be asked at each look, for as long as it is so."""
    asked = list[object]()

    async def registered(*_: object) -> NodeInfo:
        return NodeInfo("b1", "n2", Address("h", 1))

    async def is_dead(_: object, address: object, **__: object) -> bool:
        asked.append(address)
        return False

    monkeypatch.setattr(insync_set, "read_node", registered)
    monkeypatch.setattr(insync_set, "is_dead", is_dead)
    coordinator = Slow(MemoryEnsemble(), "/vq/orders", session_timeout_s=10.0)
    role = leading(3, {"n2"})
    clock = SystemClock()
    insync = InSyncSet(role, coordinator, NONE, MemoryNetwork(), clock, node="n1")
    insync.start(3)
    await insync.look()
    assert not asked
    assert role.insync == {"n2"}
