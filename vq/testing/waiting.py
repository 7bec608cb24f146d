"""Waiting for a condition, with deadlines that no load misses: only a hang does.

A bound that is a claim is not checked with these. It is counted, compared with something measured
in the same test, or lies far below what its failure would take.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

from vq.errors import InvalidArgument
from vq.shown import shown

#: Within one process, which may lose seconds while others have the processor.
WAIT_S = 20.0
#: For what other processes do: with ten times as many as cores, a broker needs 30 s to start.
PROCESSES_WAIT_S = 120.0


async def until(
    check: Callable[[], object], what: object = "", *, timeout_s: float = WAIT_S
) -> None:
    """Let the loop run until ``check()`` is true.

    Args:
        check: A plain function, called again and again.
        what: What is waited for; the error has it, as it reads then.
        timeout_s: How long, by the clock of the loop.

    Raises:
        TimeoutError: It was not true in that time.
        InvalidArgument: ``check`` returns a coroutine; that is for ``until_true``.
    """

    async def look() -> object:
        found = check()
        if inspect.iscoroutine(found):
            found.close()  # Python would warn that nobody has awaited it
            raise InvalidArgument(
                f"check = {shown(check)} returns a coroutine, which is always true; take until_true"
            )
        return found

    await _wait(look, check, what, timeout_s)


async def until_true(
    check: Callable[[], Awaitable[object]], what: object = "", *, timeout_s: float = WAIT_S
) -> None:
    """Ask again until ``await check()`` is true; see ``until``.

    Raises:
        TimeoutError: It was not true in that time.
        InvalidArgument: ``check`` returns what cannot be awaited; that is for ``until``.
    """

    async def look() -> object:
        found = check()
        if not inspect.isawaitable(found):
            raise InvalidArgument(
                f"check = {shown(check)} returns {shown(found)}, which cannot be awaited; take "
                "until"
            )
        return await found

    await _wait(look, check, what, timeout_s)


async def _wait(
    look: Callable[[], Awaitable[object]], check: object, what: object, timeout_s: float
) -> None:
    try:
        async with asyncio.timeout(timeout_s) as bound:
            for pause_s in _pauses_s():
                if await look():
                    return
                await asyncio.sleep(pause_s)
    except TimeoutError as error:
        if not bound.expired():
            raise  # of the check
        raise TimeoutError(f"not within {timeout_s:g} s: {what or shown(check, 200)}") from error


def _pauses_s(first_s: float = 0.001) -> Iterator[float]:
    """Yield how long to wait before each next look.

    A look costs processor time, in virtual time nothing else. So they become rarer: the end of a
    wait is seen a twenty-fifth of it late at most.
    """
    waited_s = 0.0
    while True:
        pause_s = max(first_s, waited_s / 25)
        waited_s += pause_s
        yield pause_s


def block_until(
    check: Callable[[], object], what: object = "", *, timeout_s: float = PROCESSES_WAIT_S
) -> None:
    """Have this thread wait until ``check()`` is true; fail with ``what``, as it reads then.

    A look that is a command takes longer than those pauses: the next pause takes as long, up to a
    tenth of a second.
    """
    begin = time.monotonic()
    deadline = begin + timeout_s
    for pause_s in _pauses_s(0.002):
        if check():
            return
        end = time.monotonic()
        assert end < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(max(pause_s, min(end - begin, 0.1)))
        begin = time.monotonic()
