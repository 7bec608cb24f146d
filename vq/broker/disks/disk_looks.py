"""Looks at a data directory, on a thread: a mount that hangs answers none of them, perhaps ever.

In here: what one look reads, and that no second one begins before it has ended. Not in here: what
follows (``data_disk``).
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from vq.broker.base.runner import Lane, Runner
from vq.clock import Clock

#: A directory that has not answered for so long is silent. A look asks for what the kernel has in
#: memory; where a disk is only slow, it takes microseconds all the same.
SILENT_S: Final = 5.0
#: A flush may have to wait for what other programs write; then the directory is silent, too.
FLUSH_SILENT_S: Final = 15.0
#: The wait for a look is cut into so many.
STEPS: Final = 5


class Seen(NamedTuple):
    """What a look has found.

    Attributes:
        why_gone: See ``store.directory.directory.why_gone``; None: that could not be told.
        space: Bytes free and in all, files free and in all; or why they cannot be read.
        file_system: See ``Disk.file_system_id``.
    """

    why_gone: str | None
    space: tuple[int, int, int, int] | OSError
    file_system: str = ""


class DiskLooks:
    """Looks at one directory, one after the other. Loop-bound.

    Args:
        look: Looks; blocks.
        runner: Has the thread.
        clock: For durations.
    """

    def __init__(self, look: Callable[[], Seen], runner: Runner, clock: Clock) -> None:
        self._look = look
        self._runner = runner
        self._clock = clock
        self._under_way: asyncio.Future[Seen] | None = None
        self._since_s = 0.0

    @property
    def waits_s(self) -> float:
        """For how long the look under way has had no answer; 0: none is under way."""
        return 0.0 if self._under_way is None else self._clock.monotonic() - self._since_s

    async def next(self) -> Seen | None:
        """Return what a look finds; None: there is no answer yet, after ``SILENT_S``.

        One that is under way counts; so nothing piles up behind a directory that hangs. The wait is
        cut into steps, each of which counts once: a loop that comes late, or a process that was
        stopped, finds the answer that came meanwhile before it has counted them all.
        """
        work = self._under_way
        if work is None or work.done():
            self._since_s = self._clock.monotonic()
            work = asyncio.ensure_future(self._runner.run(self._look, Lane.LOOK))
            self._under_way = work
        for _ in range(STEPS):
            await asyncio.wait([work], timeout=SILENT_S / STEPS)
            if work.done():
                break
        else:
            return None
        if self._under_way is work:
            self._under_way = None
        return work.result()
