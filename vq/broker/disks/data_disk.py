"""The disk with the data directory, looked at again and again: is it there, and how full is it?

In here: what is measured, the reserve that is kept while there is space, and what that means for
PUTs and copies. Not in here: the thread that looks (``disk_looks``), from which share on a disk is
too full (``disk_watch``), when it will be full (``forecast``), what is deleted early (``relief``),
and what a lost directory means for the role of the node (``soundness``).
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from vq.broker.base.config import BrokerConfig
from vq.broker.base.facts import Fact, gauge
from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.notice import Notice
from vq.broker.base.runner import Runner
from vq.broker.disks.disk_looks import FLUSH_SILENT_S, DiskLooks, Seen
from vq.broker.disks.disk_watch import DiskLevel, DiskWatch, Marks
from vq.broker.disks.flush_meter import FlushMeter
from vq.broker.disks.forecast import Growth, full_in_s
from vq.broker.logs.reserve import Reserve
from vq.broker.partition.context import DataPlace
from vq.clock import Clock
from vq.errors import Busy, DiskFull, VqError
from vq.log_lines import get_logger
from vq.store.directory.directory import why_gone
from vq.store.disk.disk import Disk

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
        jobs: Has it looked at.
        clock: For durations.
        flushes: Those there: one that does not get on is a sign of a silent disk.
        place: Is told what follows for the partitions there.
        changed: Told after ``refusal`` or ``gone`` has changed.

    Attributes:
        path: The data directory.
        reserve: Space that is kept there while there is some.
        watch: How full the disk is.
        growth: How fast it fills.
        own_id: The id of the directory, once it is open; before that it is not looked for.
        gone: The directory was removed or unmounted, cannot be read, or does not answer: what is
            written is kept nowhere.
        silent: It does not answer a look, or a flush. Nothing may touch it on the loop.
        file_system: See ``Disk.file_system_id``; "": not known, or the directory is gone.
        refusal: Why PUTs are refused, as of the last change; None: they are not.
        place: What the partitions there see of it.
    """

    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        disk: Disk,
        runner: Runner,
        jobs: Jobs,
        clock: Clock,
        *,
        flushes: FlushMeter,
        place: DataPlace,
        changed: Notice[[]],
    ) -> None:
        self.path = path
        self._node = f"{config.group}/{config.node}"
        self._disk = disk
        self.reserve = Reserve(path, disk)
        self._runner = runner
        self._clock = clock
        self._flush_waits_s = flushes.waits_s
        self._changed = changed
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
        self.silent = False
        self.file_system = ""
        self._why_gone = ""
        self._looks = DiskLooks(self._read, runner, clock)
        self.refusal: VqError | None = None
        self.place = place
        self._told_soon = False
        jobs.add(f"disk {path}", self._look, Every(config.disk_interval_s), While.REGISTERED)

    async def look(self) -> None:
        """Look whether the directory is there, and how full its disk is, on another thread.

        A directory that is silent is not waited for.
        """
        if not self.silent:
            await self._look()

    async def _look(self) -> None:
        seen = await self._looks.next()
        if seen is None or self._flush_waits_s() >= FLUSH_SILENT_S:
            self._note_silence()
        else:
            self._take(seen)

    def look_now(self) -> None:
        """Do so on this thread, before anything is served."""
        self._take(self._read())

    def _read(self) -> Seen:
        """Look, and make the reserve if it is missing; blocks, perhaps for ever."""
        path, why = self.path, None
        with contextlib.suppress(OSError):  # nothing is known of the directory: it is as it was
            why = why_gone(path, self._disk, self.own_id) if self.own_id else ""
        if self.own_id and why == "" and self.watch.level is DiskLevel.OK:
            # Not where a file system was mounted until now.
            self.reserve.hold()
        try:
            space = (*self._disk.free_space(path), *self._disk.free_files(path))
            file_system = self._disk.file_system_id(path)
        except OSError as error:
            return Seen(why, error)
        return Seen(why, space, file_system)

    def _take(self, seen: Seen) -> None:
        """Take what a look has found."""
        was_silent, self.silent = self.silent, False
        why = seen.why_gone
        if why is None:
            why = "" if was_silent else self._why_gone
        self.file_system = "" if why else seen.file_system
        self._note_gone(why)
        self._measure(seen.space)
        self._look_ahead()

    def _note_silence(self) -> None:
        if self.silent:
            return
        self.silent = True
        since_s = self._clock.wall_ms() / 1_000 - self.silent_s
        since = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._note_gone(f"it has not answered since {since}")

    @property
    def condition(self) -> str:
        """How full the disk is, as STATUS tells it, or that the directory cannot be used."""
        if self.silent:
            return "silent"
        return "gone" if self.gone else self.watch.level.name.lower()

    @property
    def silent_s(self) -> float:
        """For how long the directory has not answered; 0: it does."""
        return max(self._looks.waits_s, self._flush_waits_s()) if self.silent else 0.0

    def _note_gone(self, why: str) -> None:
        """Note why the directory is gone; "": it is there."""
        gone = bool(why)
        if why == self._why_gone:
            return
        self._why_gone = why
        if gone is self.gone:
            self._tell()
            return
        self.gone = gone
        if self.silent:
            logger.error(
                "data directory does not answer, messages are refused",
                path=self.path,
                seconds=round(self.silent_s),
            )
        elif gone:
            logger.error("data directory is gone, messages are refused", path=self.path, reason=why)
        else:
            logger.warning("data directory is there again", path=self.path)
        self._tell()

    def _tell(self) -> None:
        """Have those know who ask for each batch, and the node."""
        self.refusal = self._why_refused()
        place = self.place
        place.refusal, place.gone, place.silent = self.refusal, self.gone, self.silent
        place.copy_refusal = self.copy_refusal
        self._changed.tell()

    def _measure(self, space: tuple[int, int, int, int] | OSError) -> None:
        watch, path = self.watch, self.path
        was = watch.level
        if isinstance(space, OSError):
            if watch.trouble != str(space):
                logger.warning("disk usage cannot be read", path=path, error=space)
            watch.trouble = str(space)
            return
        level = watch.observe(*space)
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
        if self.silent:
            return Busy(
                f"the data directory {self.path} of broker {self._node} does not answer "
                f"({self._why_gone}): messages are refused until it does. If it is a mount, look "
                "at its server or device"
            )
        if self.gone:
            return Busy(
                f"the data directory {self.path} of broker {self._node} is gone "
                f"({self._why_gone}): mount it again. If it is lost, "
                "docs/howto/replace-a-lost-disk.md says how to start without it; "
                "docs/howto/use-several-disks.md, if it is one of several"
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
        if self.silent:
            return f"the data directory {self.path} does not answer, messages are refused"
        if self.gone:
            return f"the data directory {self.path} is gone, messages are refused"
        if self.watch.level >= DiskLevel.REFUSE:
            return f"the disk {self.path} is {self.watch.fullness}, messages are refused"
        return ""


def _measured(read: Callable[[DataDisk], float | None]) -> Callable[[DataDisk], float | None]:
    """Return what reads a number of a disk; of one that was never measured, it is not known."""
    return lambda disk: read(disk) if disk.watch.total else None


def _growth_per_hour(disk: DataDisk) -> float | None:
    growth = disk.growth.bytes_per_s
    return None if growth is None else growth * 3_600


#: What a node tells of each of its disks.
FACTS: Final[Sequence[Fact[DataDisk]]] = (
    gauge(
        "vq_disk_free_bytes",
        "Free bytes of the disk with a data directory.",
        _measured(lambda disk: disk.watch.free),
        status="bytes_free",
    ),
    gauge(
        "vq_disk_size_bytes",
        "Size of that disk.",
        _measured(lambda disk: disk.watch.total),
        status="bytes_total",
    ),
    gauge(
        "vq_disk_free_files",
        "Files (inodes) that can still be made there; none if there is no bound.",
        _measured(lambda disk: disk.watch.files_free if disk.watch.files_total else None),
        status="files_free",
    ),
    gauge(
        "vq_disk_files",
        "Files (inodes) that it can have; none if there is no bound.",
        _measured(lambda disk: disk.watch.files_total or None),
        status="files_total",
    ),
    gauge(
        "vq_disk_refuses",
        "1 while messages are refused because the disk is too full, else 0.",
        _measured(lambda disk: disk.watch.level >= DiskLevel.REFUSE),
    ),
    gauge(
        "vq_disk_level",
        "0: enough space, 1: a warning, 2: messages are deleted early where topics allow it, "
        "3: messages are refused, 4: nothing is copied to this node, either.",
        _measured(lambda disk: disk.watch.level),
    ),
    gauge(
        "vq_disk_excess_bytes",
        "Bytes that should be deleted early; 0 below level 2.",
        _measured(lambda disk: disk.pressure_bytes),
        status="excess_bytes",
    ),
    gauge(
        "vq_disk_growth_bytes_per_second",
        "How fast the bytes in use grow, measured over two hours to a day; none until it is "
        "known, 20 minutes after the start.",
        _measured(lambda disk: disk.growth.bytes_per_s),
    ),
    gauge(
        "vq_disk_full_in_seconds",
        "Time until messages are refused, at that growth; none if it is not known or the disk "
        "does not fill up.",
        _measured(lambda disk: disk.full_in_s),
        status="full_in_s",
    ),
    gauge(
        "vq_data_directory_gone",
        "1 while the data directory is removed or unmounted, or does not answer, else 0.",
        _measured(lambda disk: disk.gone),
    ),
    gauge(
        "vq_data_directory_silent_seconds",
        "For how long the data directory has not answered, 0 while it does.",
        _measured(lambda disk: disk.silent_s),
    ),
    Fact(read=lambda disk: disk.condition, status="level"),
    Fact(read=lambda disk: disk.growth.bytes_per_s is not None, status="growth_known"),
    Fact(read=_growth_per_hour, status="growth_bytes_per_hour"),
    Fact(read=lambda disk: disk.full_in_s is not None, status="fills"),
    Fact(read=lambda disk: disk.file_system, status="file_system"),
)
