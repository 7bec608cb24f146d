"""The tasks that vq runs by itself: for its client, for ZooKeeper, for connections.

Not in here: tasks of the application, and those that live only inside one call (``gather``).
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begin_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Begin a task on the running loop. Its first step runs after the caller's present one.

    The application's task factory is not asked. With ``asyncio.eager_task_factory`` the first step
    would run inside this call, before the caller has noted the task: a task that ends in that step
    would stay noted for good.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop())
