"""How far a report is: a bar on a terminal, plain lines elsewhere, nothing when told to be quiet.

A step is a part of a report. While it runs, Spark is asked how many of its tasks have ended.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from pyspark import SparkContext

_EVERY_S: Final = 0.25
_WIDTH: Final = 24


class Progress:
    """Shows the steps of one report.

    Args:
        stream: Where to, such as standard error; None: show nothing.
        clock: Seconds that only rise.
    """

    def __init__(
        self, stream: TextIO | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._clock = clock

    @contextlib.contextmanager
    def step(self, what: str, context: SparkContext | None = None) -> Iterator[None]:
        """Show a step while the block runs; with ``context``, also the tasks of its Spark jobs."""
        stream = self._stream
        if stream is None:
            yield
            return
        begun = self._clock()
        group = f"vq-report-{what}-{begun}"
        if context is not None:
            context.setJobGroup(group, what)
        done = threading.Event()
        watcher = None
        if stream.isatty():
            watcher = threading.Thread(
                target=self._draw, args=(stream, what, group, context, done, begun), daemon=True
            )
            watcher.start()
        try:
            yield
        finally:
            done.set()
            if watcher is not None:
                watcher.join()
                print("\r\x1b[K", end="", file=stream, flush=True)
            if context is not None:
                context.setJobGroup("", "")
        print(f"{what}: {self._clock() - begun:.1f} s", file=stream, flush=True)

    def _draw(
        self,
        stream: TextIO,
        what: str,
        group: str,
        context: SparkContext | None,
        done: threading.Event,
        begun: float,
    ) -> None:
        while not done.wait(_EVERY_S):
            ended, total = (0, 0) if context is None else tasks_of(context, group)
            line = bar_text(what, ended, total, self._clock() - begun)
            line = line[: shutil.get_terminal_size().columns - 1]  # two lines are not taken back
            print(f"\r\x1b[K{line}", end="", file=stream, flush=True)


def tasks_of(context: SparkContext, group: str) -> tuple[int, int]:
    """Return how many tasks of a group of jobs have ended, and how many there are so far."""
    tracker = context.statusTracker()
    ended = total = 0
    for job in tracker.getJobIdsForGroup(group):
        found = tracker.getJobInfo(job)
        for stage in () if found is None else found.stageIds:
            info = tracker.getStageInfo(stage)
            if info is not None:
                ended, total = ended + info.numCompletedTasks, total + info.numTasks
    return ended, total


def bar_text(what: str, ended: int, total: int, seconds: float) -> str:
    """Return a line with a bar: ``reading offsets ████░░░░ 12/64 3 s``."""
    full = 0 if not total else min(_WIDTH, _WIDTH * ended // total)
    bar = "█" * full + "░" * (_WIDTH - full)
    return f"{what} {bar} {ended}/{total or '?'} {seconds:.0f} s"
