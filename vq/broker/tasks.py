"""Background tasks of a node: started, remembered, logged when they fail, cancelled at the end."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from vq.log_lines import get_logger

logger = get_logger(__name__)


class Tasks:
    """A set of tasks that ends with its owner. For work of operators and timers, not requests."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set that keeps its order
        self._closed = False

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine beside everything else; an error in it is logged."""
        if self._closed:
            coroutine.close()
            return
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task failed", error=error, exc_info=error)

    async def close(self) -> None:
        """Cancel what runs and wait until it ended; nothing can be started afterwards."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
