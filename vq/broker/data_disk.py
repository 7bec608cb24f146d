"""The disk with the data directory, looked at again and again: is it there, and how full is it?

In here: what is measured, the reserve that is kept while there is space, and what that means for
PUTs. Not in here: from which share on (``disk_watch``), and what a lost directory means for the
role of the node (``soundness``).
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from vq.broker.config import BrokerConfig
from vq.broker.disk_watch import DiskLevel, DiskWatch
from vq.broker.reserve import Reserve
from vq.broker.runner import Runner
from vq.errors import Busy, DiskFull, VqError
from vq.log_lines import get_logger
from vq.store.directory import is_gone
from vq.store.disk import Disk

logger = get_logger(__name__)


class DataDisk:
    """Watches one data directory and the disk it lies on. Loop-bound.

    Args:
        path: The data directory.
        config: Has the watermarks, and names the node.
        disk: To look at it.
        runner: For what blocks.
        on_change: Called after ``refusal`` has changed.
        on_gone: Called before that, with whether the directory is gone, when that has changed.

    Attributes:
        path: The data directory.
        reserve: Space that is kept there while there is some.
        watch: How full the disk is.
        gone: The directory was removed or unmounted: what is written is kept nowhere.
    """

    def __init__(
        self,
        path: Path,
        config: BrokerConfig,
        disk: Disk,
        runner: Runner,
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
        self._on_change = on_change
        self._on_gone = on_gone
        self.watch = DiskWatch(config.disk_warn, config.disk_refuse, config.disk_resume)
        self.gone = False

    async def run(self) -> None:
        """Look at the disk, for ever."""
        while True:
            if self.watch.level is DiskLevel.OK and not self.gone and not self.reserve.held:
                await self._runner.run(self.reserve.hold)
            await asyncio.sleep(self._interval_s)
            self.look()

    def look(self) -> None:
        """Look whether the directory is there, and how full its disk is."""
        self._look_at_directory()
        self._measure()

    def _look_at_directory(self) -> None:
        gone = is_gone(self.path, self._disk)
        if gone is self.gone:
            return
        self.gone = gone
        self._on_gone(gone)
        if gone:
            logger.error("data directory is gone, messages are refused", path=self.path)
        else:
            logger.warning("data directory is there again", path=self.path)
        self._on_change()

    def _measure(self) -> None:
        watch, path = self.watch, self.path
        was = watch.level
        try:
            level = watch.observe(*self._disk.free_space(path))
        except OSError as error:
            if watch.trouble != str(error):
                logger.warning("disk usage cannot be read", path=path, error=error)
            watch.trouble = str(error)
            return
        watch.trouble = ""
        if level is not was:
            logger.log(
                logging.WARNING if level > was else logging.INFO,
                "disk usage crossed a watermark",
                path=path,
                used=f"{watch.used_share:.1%}",
                warn=f"{watch.warn:.0%}",
                refuse=f"{watch.refuse:.0%}",
            )
            self._on_change()

    # What follows -------------------------------------------------------------------------------
    @property
    def refusal(self) -> VqError | None:
        """Why PUTs are refused; None: they are not."""
        watch = self.watch
        if self.gone:
            return Busy(
                f"the data directory {self.path} of broker {self._node} is gone: mount "
                "it again, or stop the broker and start it with an empty one (docs/operations.md, "
                "Replace a lost disk)"
            )
        if watch.level is DiskLevel.REFUSE:
            return DiskFull(
                f"the disk of broker {self._node} is {watch.used_share:.1%} full; PUTs are refused "
                f"from {watch.refuse:.0%} on"
            )
        return None

    @property
    def not_ready(self) -> list[str]:
        """Why the node does not do its work, for ``/readyz``."""
        if self.gone:
            return ["the data directory is gone, messages are refused"]
        if self.watch.level is DiskLevel.REFUSE:
            return [f"the disk is {self.watch.used_share:.1%} full, messages are refused"]
        return []
