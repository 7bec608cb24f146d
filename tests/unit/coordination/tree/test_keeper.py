"""A keeper looks on hints, at audits, and again after failures; it ends with its coordinator."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from vq.backoff import Backoff
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import CoordinationError
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

NEVER_S = 1_000.0
QUICK = Backoff(first_s=0.001, most_s=0.002)


class Owner:
    """Notes its looks; each fails with the next of ``failures``."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.looks: list[bool] = []

    async def look(self, everything: bool) -> None:
        self.looks.append(everything)
        if self.failures:
            raise self.failures.pop(0)


@asynccontextmanager
async def kept(
    client: MemoryCoordinator,
    owner: Owner,
    *,
    audit_s: float = NEVER_S,
    backoff: Backoff = QUICK,
) -> AsyncIterator[Keeper]:
    keeper = Keeper(client, owner.look, what="a thing", audit_s=audit_s, backoff=backoff)
    keeper.start()
    try:
        yield keeper
    finally:
        await keeper.stop()


async def test_it_looks_when_hinted_and_not_before(client) -> None:
    """Several hints at once are one look."""
    owner = Owner()
    async with kept(client, owner) as keeper:
        await asyncio.sleep(0)
        assert owner.looks == []
        for count in (1, 2):
            keeper.wake()
            keeper.wake()
            await until(lambda count=count: len(owner.looks) == count)
    assert owner.looks == [False, False]


async def test_an_audit_looks_at_everything_without_a_hint(client) -> None:
    """Again and again."""
    owner = Owner()
    async with kept(client, owner, audit_s=0.001):
        await until(lambda: len(owner.looks) >= 3)
    assert set(owner.looks) == {True}


async def test_hints_do_not_put_an_audit_off(client) -> None:
    """One busy topic must not keep the lost watch of another one from being noticed."""
    owner = Owner()
    async with kept(client, owner, audit_s=0.02) as keeper:
        async with asyncio.timeout(WAIT_S):
            while owner.looks.count(True) < 2:
                keeper.wake()
                await asyncio.sleep(0.001)
    assert False in owner.looks


async def test_a_look_that_failed_is_made_again_and_at_everything(
    client, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a hint; the first failure of a row is a warning. Afterwards it waits for hints."""
    caplog.set_level(logging.INFO)
    owner = Owner(CoordinationError("away"), ValueError("a bug"), CoordinationError("away again"))
    async with kept(client, owner) as keeper:
        keeper.wake()
        await until(lambda: len(owner.looks) == 4)
        keeper.wake()
        await until(lambda: len(owner.looks) == 5)
    assert owner.looks == [False, True, True, True, False]
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "INFO"]
    for cause in ("away", "a bug", "away again"):
        assert cause in caplog.text


async def test_a_hint_shortens_the_pause_after_a_failure(client) -> None:
    """A session that comes back is used at once, however long the pause had become."""
    owner = Owner(ValueError("a bug"))
    backoff = Backoff(first_s=0.001, most_s=NEVER_S)
    async with kept(client, owner, backoff=backoff) as keeper:
        keeper.wake()
        await until(lambda: len(owner.looks) == 1)
        keeper.wake()
        await until(lambda: len(owner.looks) == 2)
    assert owner.looks == [False, True]


async def test_hints_do_not_take_the_first_pause_away(client) -> None:
    """Else whatever fails and hints at once would never let go of the loop."""
    owner = Owner(ValueError("a bug"))
    backoff = Backoff(first_s=NEVER_S, most_s=NEVER_S)
    async with kept(client, owner, backoff=backoff) as keeper:
        keeper.wake()
        await until(lambda: len(owner.looks) == 1)
        keeper.wake()
        for _ in range(20):
            await asyncio.sleep(0)
    assert owner.looks == [False]


async def test_a_hint_during_a_look_is_seen_and_followed_by_another(client) -> None:
    """The owner can tell that what it found may be over already."""
    seen: list[bool] = []

    async def look(_: bool) -> None:
        seen.append(keeper.hinted)
        if len(seen) == 1:
            keeper.wake()
            seen.append(keeper.hinted)

    keeper = Keeper(client, look, what="a thing", audit_s=NEVER_S, backoff=QUICK)
    assert not keeper.started
    keeper.start()
    assert keeper.started
    keeper.wake()
    await until(lambda: len(seen) == 3)
    assert seen == [False, True, False]
    await keeper.stop()
    await keeper.stop()
    assert not keeper.started


async def test_it_ends_with_its_coordinator(client) -> None:
    """Nothing can be kept any more; the owner hears of it from the coordinator."""
    owner = Owner()
    async with kept(client, owner) as keeper:
        before = asyncio.all_tasks()
        await client.close()
        keeper.wake()
        await until(lambda: before - asyncio.all_tasks())
    assert owner.looks == []
