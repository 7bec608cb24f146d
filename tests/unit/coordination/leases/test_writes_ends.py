"""Ends and begins of a repeatable write that overlap: what a new write has noted stays noted.

Each test stops one of them before each of its calls in turn, lets another one run to its end, and
then lets the first one go on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vq.coordination.leases import writes
from vq.coordination.leases.writes import WriteOvertaken, WriteTask, WriteTopic
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble

Act = Callable[[Any, str], Awaitable[None]]
#: More than any of them has.
CALLS = 20


class Stopping:
    """A coordinator that stops before one of its calls until ``go_on``.

    Attributes:
        stopped: Is set when it has stopped.
    """

    def __init__(self, real: Coordinator, calls: int) -> None:
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()
        self._real = real
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)

        async def counted(*given: Any, **more: Any) -> Any:
            if self._left == 0:
                self.stopped.set()
                await self.go_on.wait()
            self._left -= 1
            return await call(*given, **more)

        return counted


async def overlapping(
    first: Act, client: Coordinator, calls: int, second: Callable[[], Awaitable[Any]]
) -> bool:
    """Run ``second`` while ``first`` stands before a call; return False if it has no such call."""
    stopping = Stopping(client, calls)
    running = asyncio.ensure_future(first(stopping, "w"))
    waiting = asyncio.ensure_future(stopping.stopped.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    had_it = stopping.stopped.is_set()
    await second()
    stopping.go_on.set()
    await running
    return had_it


async def written(client: Coordinator) -> WriteTask:
    """Begin the write, and an attempt of its first task, which notes a topic."""
    await writes.begin(client, "w")
    found = await writes.attempt(client, "w", 0, 0, iter(range(100, 200)).__next__)
    await writes.note_ends(client, "w", "t", WriteTopic(batch=0, topic_id="i", ends=(5,)))
    return found


async def half_ended(client: MemoryCoordinator) -> None:
    """Leave what an ``end`` leaves that was interrupted after it had marked the write."""
    await written(client)
    await client.set(writes.path_of("w"), b"")


@pytest.mark.parametrize("first", [writes.end, writes.begin])
@pytest.mark.parametrize("state", ["open", "half ended", "none"])
async def test_an_attempt_is_known_to_the_next_one_or_the_write_has_ended(
    ensemble: MemoryEnsemble, first: Act, state: str
) -> None:
    """Else the next one would store again what the first one has stored."""
    calls, more = 0, True
    while more:
        assert calls < CALLS
        client, other = (ensemble.coordinator(f"c{calls}") for _ in range(2))
        await client.start()
        await other.start()
        if state == "open":
            await written(client)
        elif state == "half ended":
            await half_ended(client)
        found: list[WriteTask] = []

        async def second(other: Any = other, found: Any = found) -> None:
            found.append(await written(other))

        more = await overlapping(first, client, calls, second)
        try:
            again = await writes.attempt(other, "w", 0, 0, lambda: 999)
        except WriteOvertaken:
            assert first is writes.end, "nobody has ended it"
            assert await writes.names(other) == []
        else:
            assert again.is_repeated
            assert again.producer_id == found[0].producer_id
            assert await writes.topics_written(other, "w", 0) == ["t"]
        await client.close()
        await other.close()
        calls += 1


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_an_end_and_a_begin_survive_a_lost_answer(
    ensemble: MemoryEnsemble, client: MemoryCoordinator, lost: str
) -> None:
    lose = ensemble.lose_next_reply if lost == "reply" else ensemble.lose_next_request
    for skip in range(10):
        await written(client)
        lose(client, skip=skip)
        await writes.end(client, "w")
        assert await writes.names(client) == []
        await half_ended(client)
        lose(client, skip=skip)
        await writes.begin(client, "w")
        assert await client.children(writes.path_of("w")) == ["tasks", "topics"]
        assert await writes.tasks_begun(client, "w", 0) == []
        await writes.end(client, "w")


async def test_a_write_of_many_tasks_is_forgotten_in_steps(
    client: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "MULTI_OPERATIONS_MAX", 4)
    await writes.begin(client, "w")
    for task in range(10):
        await writes.attempt(client, "w", 0, task, lambda: 1)
    await writes.end(client, "w")
    assert await writes.names(client) == []
