"""Waiting for a condition, with deadlines that no load misses: only a hang does.

A bound that is a claim is not checked with these. It is counted, compared with something measured
in the same test, or lies far below what its failure would take.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator

from support.simulation.loop import VirtualLoop

#: Within one process, which may lose seconds while others have the processor.
WAIT_S = 20.0
#: For what other processes do: with ten times as many as cores, a broker needs 30 s to start.
PROCESSES_WAIT_S = 120.0


async def until(check: Callable[[], object], *, timeout_s: float = WAIT_S) -> None:
    """Let the loop run until ``check()`` is true."""
    async with asyncio.timeout(timeout_s):
        for pause_s in _pauses_s():
            if check():
                return
            await asyncio.sleep(pause_s)


async def until_true(check: Callable[[], Awaitable[object]], *, timeout_s: float = WAIT_S) -> None:
    """Ask again until ``await check()`` is true."""
    async with asyncio.timeout(timeout_s):
        for pause_s in _pauses_s():
            if await check():
                return
            await asyncio.sleep(pause_s)


def _pauses_s() -> Iterator[float]:
    """Yield how long to wait before each next look.

    In virtual time a look is all that a millisecond costs: after some seconds they become rarer,
    so that the end of a wait is seen a hundredth of it late at most.
    """
    for _ in range(5_000):
        yield 0.001
    is_virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    for looks in itertools.count(1):
        yield min(0.001 * looks, 1.0) if is_virtual else 0.001


def block_until(
    check: Callable[[], object], what: object = "", *, timeout_s: float = PROCESSES_WAIT_S
) -> None:
    """Have this thread wait until ``check()`` is true; fail with ``what``, as it reads then."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.002)
