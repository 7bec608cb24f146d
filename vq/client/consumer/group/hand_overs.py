"""Leads each hold that is given up or lost to its release: one task for each hold.

In here: which holds are led now, and when one that failed is tried again. Not in here: the steps
(``share``) and which holds are to be given up (``membership``). So a listener that does not return
delays its own partition, and neither the other partitions nor the member's next round.

    begin(hold)    its task drains, commits and releases
      fails        the task ends; after a pause ``wake`` is called, and the next round calls
                   ``resume``, which begins all that failed: their calls go together again
    finish(holds)  for the end of the member: waits for every task
    cancel()       ends every task
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from vq.backoff import Backoff, Draws
from vq.client.consumer.group.holds import Hold
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.tasks import begin_task

logger = get_logger(__name__)
#: Pauses before hand-overs that failed are tried again.
AGAIN = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)


class HandOvers:
    """The tasks of one member. Loop-bound.

    Args:
        lead: Leads a hold as far as it gets. It may be called again for the same hold, never twice
            at a time; what it raises is tried again.
        group: For log lines.
        member: For log lines.
        rng: For the jitter of pauses.
        wake: Called when a hold was led to its end, and when it is time to call ``resume``.
    """

    def __init__(
        self,
        lead: Callable[[Hold], Awaitable[None]],
        *,
        group: str,
        member: str,
        rng: Draws,
        wake: Callable[[], None],
    ) -> None:
        self._lead = lead
        self._group = group
        self._member = member
        self._rng = rng
        self._wake = wake
        self._tasks: dict[Hold, asyncio.Task[None]] = {}
        self._failed: dict[Hold, Exception] = {}  # and were not begun again
        self._failures = 0  # pauses since a hold was led to its end
        self._timer: asyncio.TimerHandle | None = None  # while those that failed wait

    def begin(self, hold: Hold) -> None:
        """Lead a hold from now on; if its task runs, that one goes on."""
        present = self._tasks.get(hold)
        if present is None or present.done():
            self._failed.pop(hold, None)
            task = begin_task(self._run(hold))
            self._tasks[hold] = task
            task.add_done_callback(lambda done: self._forget(hold, done))

    def resume(self, holds: Iterable[Hold]) -> None:
        """Begin what is not led now, unless a failure was a moment ago."""
        if self._timer is None:
            for hold in holds:
                self.begin(hold)

    async def finish(self, holds: Iterable[Hold]) -> None:
        """Begin all of ``holds`` at once, and return when no task runs.

        Raises:
            Exception: The first error, after all were tried.
        """
        self._stop_timer()
        for hold in holds:
            self.begin(hold)
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        for error in self._failed.values():
            raise error

    async def cancel(self) -> None:
        """Cancel every task and wait for its end; nothing is begun again."""
        while self._tasks:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.wait(list(self._tasks.values()))
        self._stop_timer()

    async def _run(self, hold: Hold) -> None:
        try:
            await self._lead(hold)
        except Exception as error:  # noqa: BLE001 - a task's outer edge
            self._note_failure(hold, error)
        else:
            self._failures = 0
            self._wake()

    def _forget(self, hold: Hold, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(hold) is task:
            del self._tasks[hold]

    def _note_failure(self, hold: Hold, error: Exception) -> None:
        self._failed[hold] = error
        if not isinstance(error, VqError):
            logger.error(
                "hand-over failed, trying again",
                group=self._group,
                member=self._member,
                partition=hold.partition,
                exc_info=error,
            )
        if self._timer is None:
            self._failures += 1
            loop = asyncio.get_running_loop()
            pause_s = AGAIN.pause_s(self._failures, self._rng)
            self._timer = loop.call_later(pause_s, self._pause_is_over)

    def _pause_is_over(self) -> None:
        self._timer = None
        if self._failed:  # otherwise all of it was begun again meanwhile
            partitions = sorted(hold.partition for hold in self._failed)
            logger.warning(
                "partitions cannot be handed over, trying again",
                group=self._group,
                member=self._member,
                partitions=",".join(map(str, partitions)),
                error=next(iter(self._failed.values())),
            )
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
