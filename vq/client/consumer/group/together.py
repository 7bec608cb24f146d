"""Calls made one by one and carried out many at a time, as group commit does for flushes.

In here: which calls wait, their order, and which call carries out the others. Not in here: what is
done (``work``), and how it is tried again.

    do([a])                begins work([a])
    do([b]), do([c, d])    wait, since one call of ``work`` runs at a time
    work([a]) ends         work([b, c, d]) begins

There is no task behind it: one of the calls that wait does the work for all of them. When it is
cancelled, the next one does what is left. So a call that is cancelled sends nothing afterwards.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[T, R]):
    """One item, and what came of it."""

    __slots__ = ("error", "is_over", "item", "result")

    def __init__(self, item: T) -> None:
        self.item = item
        self.is_over = False  # done, or its caller was cancelled
        self.result: R | None = None
        self.error: Exception | None = None


class Together(Generic[T, R]):
    """Gathers calls of one kind. Loop-bound.

    Args:
        work: Does many items and returns their results in the same order. What it raises, all of
            them raise. An item may be given to it again where it was cancelled.
        most: Items of one call of it.
    """

    def __init__(self, work: Callable[[Sequence[T]], Awaitable[Sequence[R]]], *, most: int) -> None:
        self._work = work
        self._most = most
        self._waiting: deque[_Call[T, R]] = deque()
        self._lock = asyncio.Lock()

    async def do(self, items: Sequence[T]) -> list[R]:
        """Do items, together with those of other calls; return the results in the same order.

        Raises:
            Exception: What ``work`` raised of one of them, after all were tried.
        """
        calls: list[_Call[T, R]] = [_Call(item) for item in items]
        self._waiting.extend(calls)
        try:
            while not all(call.is_over for call in calls):
                async with self._lock:
                    if not all(call.is_over for call in calls):
                        await asyncio.sleep(
                            0
                        )  # what comes in this iteration of the loop goes along
                        await self._do_some()
        finally:
            for call in calls:
                call.is_over = True
        for call in calls:
            if call.error is not None:
                raise call.error
        return [cast("R", call.result) for call in calls]

    async def _do_some(self) -> None:
        """Do the first items that wait, of any call."""
        calls: list[_Call[T, R]] = []
        while self._waiting and len(calls) < self._most:
            call = self._waiting.popleft()
            if not call.is_over:
                calls.append(call)
        try:
            results = await self._work([call.item for call in calls])
        except Exception as error:  # noqa: BLE001 - each call raises it
            for call in calls:
                call.error, call.is_over = error, True
        except BaseException:
            self._waiting.extendleft(reversed(calls))
            raise
        else:
            for call, result in zip(calls, results, strict=True):
                call.result, call.is_over = result, True
