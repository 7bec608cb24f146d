"""Calls that several callers wait for together, until their owner is shut down."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from vq.errors import InvalidState
from vq.tasks import begin_task

T = TypeVar("T")
SHUT_DOWN: Final = "the factory is shut down"


class SharedCalls:
    """Calls under way: callers with the same function and arguments share one.

    Args:
        context: They run in a copy of it, since they belong to none of the callers.
    """

    def __init__(self, context: contextvars.Context | None = None) -> None:
        self._context = context
        self._tasks: dict[tuple[object, ...], asyncio.Task[Any]] = {}

    async def share(self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
        """Return the result of ``call(*arguments)``; see ``shared``."""
        key = (call, *arguments)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = begin_task(self._run(key, call, arguments), self._context)
        return await shared(task)

    async def _run(
        self,
        key: tuple[object, ...],
        call: Callable[..., Coroutine[Any, Any, T]],
        arguments: tuple[object, ...],
    ) -> T:
        try:
            return await call(*arguments)
        finally:
            del self._tasks[key]

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks of all calls under way."""
        return list(self._tasks.values())


async def shared(task: "asyncio.Task[T]") -> T:
    """Return the result of a task that several callers may wait for and that ``close`` cancels.

    Raises:
        InvalidState: The task was cancelled; the caller was not.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise InvalidState(SHUT_DOWN) from None
        # The caller was cancelled: retrieve the task's error, which no other caller may do.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
