"""The disk with the data directory, looked at again and again: is it there, and how full is it?

In here: what is measured, the reserve that is kept while there is space, and what that means for
PUTs and copies. Not in here: from which share on (``disk_watch``), when it will be full
(``forecast``), what is deleted early (``relief``), and what a lost directory means for the role of
the node (``soundness``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vq.broker.config import BrokerConfig
from vq.broker.context import Place
from vq.broker.disk_watch import DiskLevel, DiskWatch, Marks
from vq.broker.forecast import Growth, full_in_s
from vq.broker.reserve import Reserve
from vq.broker.runner import Runner
from vq.clock import Clock
from vq.errors import Busy, DiskFull, VqError
from vq.log_lines import get_logger
from vq.store.directory import why_gone
from vq.store.disk import Disk

logger = get_logger(__name__)

#: A disk that will be full within this time is told …
SOON_S: Final = 24 * 3_600.0
#: … until it has so much again.
_NOT_SOON_S: Final = 1.5 * SOON_S


class DataDisk:
    """Watches one data directory and the disk it lies on. Loop-bound.

    Args:
        path: The data directory.
        config: Has the watermarks, and names the node.
        disk: To look at it.
        runner: For what blocks.
        clock: For durations.
        on_change: Called after ``refusal`` has changed.
        on_gone: Called before that, with whether the directory is gone, when that has changed.

    Attributes:
        path: The data directory.
        reserve: Space that is kept there while there is some.
        watch: How full the disk is.
        growth: How fast it fills.
        own_id: The id of the directory, once it is open; before that it is not looked for.
        gone: The directory was removed or unmounted, or cannot be read: what is written is kept
            nowhere.
        refusal: Why PUTs are refused, as of the last change; None: they are not.
        place: Is told what follows for the partitions there; set it before the first look.
    """

    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        *,
        on_change: Callable[[], None],
        on_gone: Callable[[bool], None],
    ) -> None:
        self.path = path
        self._node = f"{config.group}/{config.node}"
        self._interval_s = config.disk_interval_s
        self._disk = disk
        self.reserve = Reserve(path, disk)
        self._runner = runner
        self._clock = clock
        self._on_change = on_change
        self._on_gone = on_gone
        marks = Marks(
            warn=config.disk_warn,
            relieve=config.disk_relieve,
            refuse=config.disk_refuse,
            resume=config.disk_resume,
            stop=config.disk_stop,
        )
        self.watch = DiskWatch(marks)
        self.growth = Growth()
        self.own_id = ""
        self.gone = False
        self._why_gone = ""
        self.refusal: VqError | None = None
        self.place: Place | None = None
        self._told_soon = False

    async def run(self) -> None:
        """Look at the disk, for ever."""
        while True:
            if self.watch.level is DiskLevel.OK and not self.gone and not self.reserve.held:
                await self._runner.run(self._hold_reserve)
            await asyncio.sleep(self._interval_s)
            self.look()

    def _hold_reserve(self) -> None:
        """Make the reserve, but not where a file system was mounted until now; blocks."""
        with contextlib.suppress(OSError):
            if not why_gone(self.path, self._disk, self.own_id):
                self.reserve.hold()

    def look(self) -> None:
        """Look whether the directory is there, and how full its disk is."""
        self._look_at_directory()
        self._measure()
        self._look_ahead()

    def _look_at_directory(self) -> None:
        if not self.own_id:
            return
        try:
            why = why_gone(self.path, self._disk, self.own_id)
        except OSError:  # nothing is known of the directory: it is as it was
            return
        gone = bool(why)
        if why == self._why_gone:
            return
        self._why_gone = why
        if gone is self.gone:
            self._tell()
            return
        self.gone = gone
        self._on_gone(gone)
        if gone:
            logger.error("data directory is gone, messages are refused", path=self.path, reason=why)
        else:
            logger.warning("data directory is there again", path=self.path)
        self._tell()

    def _tell(self) -> None:
        """Have those know who ask for each batch, and the node."""
        self.refusal = self._why_refused()
        if self.place is not None:
            self.place.refusal, self.place.gone = self.refusal, self.gone
        self._on_change()

    def _measure(self) -> None:
        watch, path = self.watch, self.path
        was = watch.level
        try:
            level = watch.observe(*self._disk.free_space(path), *self._disk.free_files(path))
        except OSError as error:
            if watch.trouble != str(error):
                logger.warning("disk usage cannot be read", path=path, error=error)
            watch.trouble = str(error)
            return
        watch.trouble = ""
        if not self.gone:
            self.growth.note(self._clock.monotonic(), watch.total - watch.free)
        if level is not was:
            logger.log(
                logging.WARNING if level > was else logging.INFO,
                "disk usage crossed a watermark",
                path=path,
                used=f"{watch.used_share:.1%}",
                files_used=f"{watch.files_share:.1%}" if watch.files_total else None,
                step=level.name.lower(),
                before=was.name.lower(),
                warn=f"{watch.marks.warn:.0%}",
                refuse=f"{watch.marks.refuse:.0%}",
            )
            self._tell()

    def _look_ahead(self) -> None:
        """Tell once that the disk will be full soon."""
        seconds = self.full_in_s
        if seconds and seconds <= SOON_S and not self._told_soon:
            self._told_soon = True
            logger.warning(
                "disk fills up, messages are refused when it is full",
                path=self.path,
                used=f"{self.watch.used_share:.1%}",
                full_in_hours=round(seconds / 3_600, 1),
            )
        elif self._told_soon and (seconds is None or seconds > _NOT_SOON_S):
            self._told_soon = False
            logger.info("disk does not fill up soon any more", path=self.path)

    @property
    def full_in_s(self) -> float | None:
        """After how many seconds messages are refused, at the growth of now; 0: they are.

        None: that is not known, or the disk does not fill up.
        """
        watch = self.watch
        if watch.level >= DiskLevel.REFUSE:
            return 0.0
        left = int(watch.marks.refuse * watch.total) - (watch.total - watch.free)
        return full_in_s(self.growth.bytes_per_s, left) if watch.total else None

    # What follows -------------------------------------------------------------------------------
    @property
    def pressure_bytes(self) -> int:
        """How many bytes should go early; 0: none.

        Whoever can free space on this disk, by deleting or by archiving early, asks this.
        """
        return 0 if self.gone else self.watch.excess_bytes

    def _why_refused(self) -> VqError | None:
        watch = self.watch
        if self.gone:
            return Busy(
                f"the data directory {self.path} of broker {self._node} is gone "
                f"({self._why_gone}): mount it again. If it is lost, docs/operations.md says how "
                "to start without it (Replace a lost disk; one of several: Several data "
                "directories)"
            )
        if watch.level >= DiskLevel.REFUSE:
            return DiskFull(
                f"the disk {self.path} of broker {self._node} is {watch.fullness}; messages are "
                f"refused from {watch.marks.refuse:.0%} on"
            )
        return None

    @property
    def copy_refusal(self) -> VqError | None:
        """Why nothing is copied to it; None: it is. Constant while that lasts: it is logged."""
        if self.watch.level < DiskLevel.STOP:
            return None
        marks = self.watch.marks
        return DiskFull(
            f"the disk {self.path} of broker {self._node} is full: nothing is copied from "
            f"{marks.of(DiskLevel.STOP):.0%} on, down to {marks.until(DiskLevel.STOP):.0%}"
        )

    @property
    def not_ready(self) -> str:
        """Why PUTs are refused, in short, for ``/readyz``; "": they are not."""
        if self.gone:
            return f"the data directory {self.path} is gone, messages are refused"
        if self.watch.level >= DiskLevel.REFUSE:
            return f"the disk {self.path} is {self.watch.fullness}, messages are refused"
        return ""
