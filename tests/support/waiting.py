"""Waiting for a condition, with deadlines that no load misses: only a hang does.

A bound that is a claim is not checked with these. It is counted, compared with something measured
in the same test, or lies far below what its failure would take.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

#: Within one process, which may lose seconds while others have the processor.
WAIT_S = 20.0
#: For what other processes do: with ten times as many as cores, a broker needs 30 s to start.
PROCESSES_WAIT_S = 120.0


async def until(check: Callable[[], object], *, timeout_s: float = WAIT_S) -> None:
    """Let the loop run until ``check()`` is true."""
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.001)


async def until_true(check: Callable[[], Awaitable[object]], *, timeout_s: float = WAIT_S) -> None:
    """Ask again until ``await check()`` is true."""
    async with asyncio.timeout(timeout_s):
        while not await check():
            await asyncio.sleep(0.001)


def block_until(
    check: Callable[[], object], what: object = "", *, timeout_s: float = PROCESSES_WAIT_S
) -> None:
    """Have this thread wait until ``check()`` is true; fail with ``what``, as it reads then."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.002)
