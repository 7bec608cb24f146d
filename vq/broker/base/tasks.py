"""Background tasks of a node: started, remembered, logged when they fail, cancelled at the end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from vq.backoff import Backoff
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Pauses before work that goes on for ever, and failed, is begun again.
BACKOFF: Final = Backoff(first_s=0.5, most_s=30.0)
#: Work that went on for so long is well: its next failure is a first one.
WELL_S: Final = 60.0


class Tasks:
    """A set of tasks that ends with its owner. For work of operators and timers, not requests.

    Attributes:
        running: The tasks, in the order in which they were started.
        closed: Nothing can be started any more.
    """

    def __init__(self) -> None:
        self.running: dict[asyncio.Task[Any], None] = {}
        self.closed = False

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run a coroutine beside everything else; an error in it is logged.

        Returns its task; None: nothing can be started any more.
        """
        if self.closed:
            coroutine.close()
            return None
        task = asyncio.get_running_loop().create_task(coroutine)
        self.running[task] = None
        task.add_done_callback(self._done)
        return task

    def keep(
        self, work: Callable[[], Coroutine[Any, Any, None]], what: str
    ) -> asyncio.Task[Any] | None:
        """Do what goes on for ever; after an error that nobody expected, begin it again.

        Args:
            work: Begins it.
            what: Its name, for the log.

        Returns:
            Its task; see ``start``.
        """
        return self.start(self._keep(work, what))

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            begun = loop.time()
            try:
                await work()
                return
            except Exception:
                failures = failures + 1 if loop.time() - begun < WELL_S else 1
                pause_s = BACKOFF.pause_s(failures)
                logger.exception(
                    "background task failed, beginning it again", what=what, retry_s=pause_s
                )
            await asyncio.sleep(pause_s)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task failed", error=error, exc_info=error)

    async def close(self) -> None:
        """Cancel what runs and wait until it ended; nothing can be started afterwards."""
        self.closed = True
        tasks = list(self.running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
