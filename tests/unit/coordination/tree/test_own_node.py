"""An own node: nothing is held after its session ended, what is gone is taken again, once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.coordination import expire

from vq.backoff import Backoff
from vq.coordination.tree.coordinator import NodeExists, NoNode
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.own_node import OwnNode, delete_own
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

PATH = "here"


class Flag(OwnNode[int]):
    """A node without a value; what is held is its czxid.

    Attributes:
        told: What it was told to hold, in order.
        late: Awaited after the node was taken.
    """

    def __init__(self, client: MemoryCoordinator) -> None:
        super().__init__(
            client, what="a flag", audit_s=1_000.0, backoff=Backoff(first_s=0.001, most_s=0.002)
        )
        self.client = client
        self.told: list[int | None] = []
        self.late: Callable[[], Awaitable[None]] | None = None

    def start(self) -> None:
        self._begin()

    async def _take(self) -> int | None:
        try:
            await self.client.create(PATH, ephemeral=True)
        except NodeExists:
            pass
        stat = await self.client.exists(PATH, watch=self._hint)
        taken = stat is not None and stat.ephemeral_owner == self.client.session_id
        if self.late is not None:
            await self.late()
        return stat.czxid if stat is not None and taken else None

    async def _is_held(self, held: int) -> bool:
        try:
            node = await self.client.get(PATH, watch=self._hint)
        except NoNode:
            return False
        return node.stat.czxid == held

    async def _give_back(self, held: int | None) -> None:
        if held is not None:
            await delete_own(self.client, PATH, lambda node: node.stat.czxid == held)

    def _changed(self, held: int | None) -> None:
        self.told.append(held)


async def test_it_is_lost_with_its_session_and_taken_again(ensemble, client, other) -> None:
    flag = Flag(client)
    flag.start()
    await until(lambda: len(flag.told) == 1)
    await expire(ensemble, client)
    await until(lambda: len(flag.told) == 3)
    assert flag.told[1] is None
    stat = await other.exists(PATH)
    assert stat is not None
    assert stat.czxid == flag.told[2]
    await client.close()
    assert flag.told[3:] == [None]
    await flag.stop()


async def test_what_somebody_deletes_is_lost_and_taken_again(client, other) -> None:
    flag = Flag(client)
    flag.start()
    await until(lambda: len(flag.told) == 1)
    await other.delete(PATH)
    await until(lambda: len(flag.told) == 3)
    assert flag.told[1] is None
    await flag.stop()
    assert await other.exists(PATH) is None


async def test_what_another_has_is_taken_when_it_goes(client, other) -> None:
    await other.create(PATH, ephemeral=True)
    flag = Flag(client)
    flag.start()
    await asyncio.sleep(0.02)
    assert flag.told == []
    await other.close()
    await until(lambda: len(flag.told) == 1)
    await flag.stop()


async def test_what_was_taken_while_its_session_ended_does_not_count(
    ensemble, client, other
) -> None:
    flag = Flag(client)

    async def end_session() -> None:
        flag.late = None
        await expire(ensemble, client)

    flag.late = end_session
    flag.start()
    await until(lambda: len(flag.told) == 1)
    stat = await other.exists(PATH)
    assert stat is not None
    assert flag.told == [stat.czxid]
    await flag.stop()


async def test_a_short_loss_of_the_connection_is_one_look(ensemble, client) -> None:
    """What is held stays; the tree is compared once, on the new connection."""
    flag = Flag(client)
    flag.start()
    await until(lambda: len(flag.told) == 1)
    before = ensemble.served
    ensemble.blink(client)
    await client.sync()
    await until(lambda: not ensemble.is_busy)
    assert ensemble.served - before == 2  # the look, and the sync above
    assert len(flag.told) == 1
    await flag.stop()


async def test_one_that_stops_without_a_connection_leaves_it_to_the_session(
    ensemble, client, other
) -> None:
    flag = Flag(client)
    flag.start()
    await until(lambda: len(flag.told) == 1)
    ensemble.disconnect(client)
    await asyncio.wait_for(flag.stop(), 1.0)
    assert await other.exists(PATH) is not None
