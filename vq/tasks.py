"""The tasks that vq runs by itself: for its client, for ZooKeeper, for connections.

Not in here: tasks of the application, and those that live only inside one call (``gather``).
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def begin_task(
    work: Coroutine[Any, Any, T], context: contextvars.Context | None = None
) -> "asyncio.Task[T]":
    """Begin a task on the running loop. Its first step runs after the caller's present one.

    The application's task factory is not asked. With ``asyncio.eager_task_factory`` the first step
    would run inside this call, before the caller has noted the task: a task that ends in that step
    would stay noted for good.

    Args:
        work: What the task does.
        context: It gets a copy of this context; None: of the caller's. Give one to what outlives
            the call and is shared: otherwise it logs in the name of whoever came first, and keeps
            the objects of that context alive.
    """
    copied = None if context is None else context.copy()
    return asyncio.Task(work, loop=asyncio.get_running_loop(), context=copied)


async def in_turns(items: Iterable[T], size: int) -> AsyncIterator[T]:
    """Yield items one by one; the loop runs other things after each ``size`` of them.

    For work of thousands of steps that wait for nothing: without it, whoever else uses the loop
    waits until the last step is done.
    """
    for number, each in enumerate(items, 1):
        yield each
        if not number % size:
            await asyncio.sleep(0)


def cancellation_of(error: object) -> asyncio.CancelledError | None:
    """Return the error if somebody cancels the present task; code may raise it by itself."""
    if not isinstance(error, asyncio.CancelledError):
        return None
    task = asyncio.current_task()
    return error if task is not None and task.cancelling() > 0 else None
