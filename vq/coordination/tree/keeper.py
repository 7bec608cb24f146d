"""A task that keeps a local state and ZooKeeper equal: it compares and repairs repeatedly.

This module decides when to compare. The owner's ``look`` compares and repairs.

    hint       a watch fired, a session began, or the owner called ``wake``: look now
    audit      ``audit_s`` after the last one: look at everything, because a watch may be lost;
               hints do not put it off
    failure    look again after a back-off; a hint shortens the pause to the first back-off
    CLOSED     the coordinator gave up: the task ends

A hint says only that something may have changed, so ``look`` always compares with the tree. The
topics of a broker have a task of their own (``broker.logs.topics_view``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from vq.backoff import Backoff, Draws
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.coordination.tree.session import end_task
from vq.errors import CoordinationError
from vq.log_lines import get_logger
from vq.tasks import begin_task

logger = get_logger(__name__)


class Keeper:
    """The task of one owner. Loop-bound.

    Args:
        coordinator: When it is CLOSED, the task ends.
        look: Compares with the tree and repairs. Its argument says whether to compare everything:
            at an audit, and after a failure. If it raises, the error is logged and it is called
            again.
        what: The subject of log lines: "routes".
        audit_s: From one successful look at everything to the next.
        backoff: Pauses after failures.
        rng: For the jitter of ``backoff``.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        look: Callable[[bool], Awaitable[None]],
        *,
        what: str,
        audit_s: float,
        backoff: Backoff,
        rng: Draws | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._look = look
        self._what = what
        self._audit_s = audit_s
        self._backoff = backoff
        self._rng = rng
        self._hint = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether the task was started and not stopped since."""
        return self._task is not None

    @property
    def hinted(self) -> bool:
        """Whether a hint came since the last look began."""
        return self._hint.is_set()

    def start(self) -> None:
        """Begin to wait for hints and audits; the owner does the first look itself."""
        self._task = begin_task(self._run())

    def wake(self) -> None:
        """Look soon; never blocks."""
        self._hint.set()

    async def stop(self) -> None:
        """End the task, also during a look. Stopping twice is a no-op."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures, pause_s = 0, self._audit_s
        look_at = loop.time() + pause_s
        while True:
            if failures:
                await asyncio.sleep(self._backoff.first_s)  # also if hints come
            hinted = await self._is_hinted_before(look_at)
            self._hint.clear()
            if self._coordinator.state is SessionState.CLOSED:
                return
            everything = failures > 0 or not hinted or loop.time() >= look_at
            try:
                await self._look(everything)
            except CoordinationError as error:
                failures += 1
                pause_s = self._backoff.pause_s(failures, self._rng)
                logger.log(
                    logging.WARNING if failures == 1 else logging.INFO,
                    "ZooKeeper cannot be read, trying again",
                    what=self._what,
                    retry_s=round(pause_s, 2),
                    error=error,
                )
            except Exception:
                failures += 1
                pause_s = self._backoff.longest_s(self._rng)
                logger.exception(
                    "reading ZooKeeper failed, trying again",
                    what=self._what,
                    retry_s=round(pause_s, 2),
                )
            else:
                failures, pause_s = 0, self._audit_s
                if not everything:
                    continue
            look_at = loop.time() + pause_s

    async def _is_hinted_before(self, time_s: float) -> bool:
        try:
            async with asyncio.timeout_at(time_s):
                await self._hint.wait()
        except TimeoutError:
            return False
        return True
