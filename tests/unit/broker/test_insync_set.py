"""What a master decides of the other nodes, when something changes between two steps."""

import asyncio

import pytest

from vq.broker.context import Role
from vq.broker.insync_set import InSyncSet
from vq.broker.lease import Lease
from vq.clock import SystemClock
from vq.coordination.coordinator import Node, NoNode, SessionState
from vq.coordination.memory import MemoryCoordinator, MemoryEnsemble


class Slow(MemoryCoordinator):
    """Answers nothing before it is allowed to."""

    answers: asyncio.Event
    state = SessionState.CONNECTED  # type: ignore[assignment]

    async def get(self, path: str, *, watch: object = None) -> Node:
        await self.answers.wait()
        raise NoNode(path)


async def never(_: object) -> bool:
    return False


@pytest.mark.parametrize("epoch", [0, 7])
async def test_what_an_earlier_epoch_found_puts_nobody_out(epoch: int) -> None:
    """The node is in sync by the record of the new epoch, and may have come back since."""
    coordinator = Slow(MemoryEnsemble(), "/vq/orders", session_timeout_s=10.0)
    coordinator.answers = asyncio.Event()
    clock = SystemClock()
    role = Role(group="b1", holds=lambda: True, epoch=3, insync=frozenset({"n2"}), named=2)
    insync = InSyncSet(
        role, Lease(coordinator, clock), coordinator, list, clock, node="n1", is_dead=never
    )
    insync.begin()
    looking = asyncio.create_task(insync.look())
    await asyncio.sleep(0)
    role.epoch = epoch  # as ``Mastership`` has it
    role.insync, role.leaving = frozenset({"n2"} if epoch else ()), 0
    insync.begin()
    coordinator.answers.set()
    await looking
    assert role.leaving == 0
    assert insync._leaves == ""
