"""The disks of a node's data directories, the main one first, and what they are for the node.

In here: what one of them means for the others. With one directory the node is as its disk. With
several, what one refuses, its partitions do; but without the main one nothing of the node as a
whole can be stored. Not in here: one disk (``data_disk``), and which partition lies where
(``store.directory.directories``).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from vq.broker.base.config import BrokerConfig
from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.base.turn import Turn
from vq.broker.disks.data_disk import DataDisk
from vq.broker.disks.disk_looks import SILENT_S
from vq.broker.disks.disk_watch import DiskLevel
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Place
from vq.broker.partition.flush_meter import FlushMeter
from vq.broker.partition.reserve import Reserve
from vq.broker.partition.storer import Storer
from vq.clock import Clock
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.store.disk.disk import Disk

__all__ = ["DataDisks"]

logger = get_logger(__name__)

T = TypeVar("T")


class DataDisks:
    """Loop-bound. Arguments are those of ``DataDisk``.

    Args:
        config: Names the directories.
        disk, runner, clock: See ``DataDisk``.
        on_change: Called after something has changed that is asked here.
        on_gone: Called when a directory is gone, or there again: with whether any is gone, and
            whether the main one is.

    Attributes:
        all: Of all directories, the main one first.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        *,
        on_change: Callable[[], None],
        on_gone: Callable[[bool, bool], None],
    ) -> None:
        self._runner = runner
        self._on_gone = on_gone
        self.all = tuple(
            DataDisk(
                path,
                config,
                disk,
                runner,
                clock,
                on_change=on_change,
                on_gone=lambda _: self._tell_gone(),
            )
            for path in config.directories
        )

    @property
    def main(self) -> DataDisk:
        """That of the main directory."""
        return self.all[0]

    @property
    def reserves(self) -> Mapping[Path, Reserve]:
        """Their reserves, by directory."""
        return {each.path: each.reserve for each in self.all}

    def make_places(self, flushers: Sequence[FlushMeter], turn: Turn) -> dict[Path, Place]:
        """Return what channels see of them; each is flushed by a flusher of its own."""
        places = {}
        for disk, flusher in zip(self.all, flushers, strict=True):
            disk.place = places[disk.path] = Place(Storer(flusher, turn))
            disk.flush_waits_s = flusher.waits_s
        return places

    def know(self, ids: Mapping[Path, str]) -> None:
        """Take the ids of the directories, which are open: another one is not in its place."""
        for each in self.all:
            each.own_id = ids[each.path]

    async def open(self, call: Callable[[], T]) -> T:
        """Return what opening the directories returns; tell that a start waits for one."""
        work = asyncio.ensure_future(self._runner.run(call))
        try:
            await asyncio.wait([work], timeout=SILENT_S)
            if not work.done():
                logger.warning(
                    "data directories do not answer, the start waits",
                    paths=", ".join(str(each.path) for each in self.all),
                    seconds=SILENT_S,
                )
            return await work
        finally:
            work.cancel()

    async def release_reserves(self) -> None:
        """Free reserves where there is no space, at a start."""
        for each in self.all:
            await self._runner.run(each.reserve.release_if_short)

    def look_now(self) -> None:
        """Look at all of them on this thread, before anything is served."""
        for each in self.all:
            each.look_now()

    def keep_looking(self, tasks: Tasks) -> None:
        """Look at each of them again and again, beside everything else."""
        for each in self.all:
            tasks.keep(each.run, "watch the disk")

    def _tell_gone(self) -> None:
        self._on_gone(any(each.gone for each in self.all), self.main.gone)

    # What follows -------------------------------------------------------------------------------
    @property
    def refusal(self) -> VqError | None:
        """Why the whole node takes no PUTs; None: at least some of its partitions do."""
        refusals = [each.refusal for each in self.all]
        return self.main.refusal if self.main.gone or None not in refusals else None

    def takes(self, path: Path) -> bool:
        """Whether a directory takes new logs now."""
        return all(each.refusal is None for each in self.all if each.path == path)

    def silent(self, path: Path) -> bool:
        """Whether a directory does not answer."""
        return any(each.silent for each in self.all if each.path == path)

    def copy_refusal(self, channel: Channel) -> VqError | None:
        """Return why nothing is copied to the disk of a partition; None: it is."""
        place = channel.place
        return next((each.copy_refusal for each in self.all if each.place is place), None)

    def problems(self, *, follows: bool) -> list[str]:
        """Return what is wrong with them, for STATUS; a node that copies refuses no PUTs for it."""
        found = [
            each.copy_refusal if follows and not each.gone else each.refusal for each in self.all
        ]
        return [str(each) for each in found if each is not None]

    @property
    def not_ready(self) -> list[str]:
        """Why the node does not do its work: a directory is gone, or all disks are full."""
        gone = [each.not_ready for each in self.all if each.gone]
        if gone:
            return gone
        full = [each.not_ready for each in self.all if each.not_ready]
        return full[:1] if len(full) == len(self.all) else []

    @property
    def full(self) -> bool:
        """Whether one of them refuses messages, as it is full."""
        return any(each.watch.level >= DiskLevel.REFUSE for each in self.all)

    @property
    def free_bytes(self) -> int:
        """Free on all of them."""
        return sum(each.watch.free for each in self.all)

    @property
    def total_bytes(self) -> int:
        """The size of all of them."""
        return sum(each.watch.total for each in self.all)

    @property
    def pressure_bytes(self) -> int:
        """What should go early from all of them."""
        return sum(each.pressure_bytes for each in self.all)
