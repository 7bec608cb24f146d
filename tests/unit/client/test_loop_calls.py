"""Calls of the loop from other threads."""

import asyncio

from vq.client.loop_calls import call_soon
from vq.testing.waiting import until


async def test_another_thread_has_the_loop_call_back() -> None:
    seen: list[tuple[int, int]] = []
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(call_soon, loop, lambda *numbers: seen.append(numbers), 1, 2)
    await until(lambda: seen == [(1, 2)])


def test_a_loop_that_was_closed_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    called: list[int] = []
    call_soon(loop, called.append, 1)
    assert called == []
