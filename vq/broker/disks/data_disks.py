"""The disks of a node's data directories, the main one first, and what they are for the node.

In here: what one of them means for the others. With one directory the node is as its disk. With
several, what one refuses, its partitions do; but without the main one nothing of the node as a
whole can be stored. Not in here: one disk (``data_disk``), and which partition lies where
(``store.directory.directories``).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vq.broker.base.config import BrokerConfig
from vq.broker.base.facts import Fact, Facts, histogram
from vq.broker.base.jobs import Jobs
from vq.broker.base.notice import Notice
from vq.broker.base.runner import Runner
from vq.broker.disks.data_disk import FACTS, DataDisk
from vq.broker.disks.disk_looks import SILENT_S
from vq.broker.disks.disk_watch import DiskLevel
from vq.broker.disks.flush_meter import FlushMeter
from vq.broker.logs.reserve import Reserve
from vq.broker.partition.context import DataPlace
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.store.commit.storer import Storer
from vq.store.directory.directories import DataDirectories
from vq.store.disk.disk import Disk
from vq.turn import Turn

logger = get_logger(__name__)


class DataDisks:
    """Loop-bound. Arguments are those of ``DataDisk``.

    Args:
        config: Names the directories.
        disk, runner, jobs, clock: See ``DataDisk``.
        flushes: Of each directory, the main one first; all note how long they take in one place.
        turn: Of the loop, for the storers.
        gate: Is told why no disk takes messages.

    Attributes:
        all: Of all directories, the main one first.
        places: What channels see of them.
        changed: Told after something has changed that is asked here.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        runner: Runner,
        jobs: Jobs,
        clock: Clock,
        *,
        flushes: Sequence[FlushMeter],
        turn: Turn,
        gate: Gate,
    ) -> None:
        self._config = config
        self._disk = disk
        self._runner = runner
        self._flush_times = flushes[0].times
        self.changed = Notice[[]]()
        self.changed.listen(lambda: gate.note_disks(self.refusal))
        self.places = {
            path: DataPlace(Storer(each, turn))
            for path, each in zip(config.directories, flushes, strict=True)
        }
        self.all = tuple(
            DataDisk(
                path,
                config,
                disk,
                runner,
                jobs,
                clock,
                flushes=each,
                place=self.places[path],
                changed=self.changed,
            )
            for path, each in zip(config.directories, flushes, strict=True)
        )

    @property
    def main(self) -> DataDisk:
        """That of the main directory."""
        return self.all[0]

    @property
    def reserves(self) -> Mapping[Path, Reserve]:
        """Their reserves, by directory."""
        return {each.path: each.reserve for each in self.all}

    async def open(self) -> DataDirectories:
        """Lock the directories, making them if needed; tell that a start waits for one.

        Raises:
            DirectoryRefused, DiskFull: See ``DataDirectories.open``.
        """
        config = self._config
        work = asyncio.ensure_future(
            self._runner.run(
                lambda: DataDirectories.open(
                    config.directories,
                    config.cluster,
                    config.group,
                    config.node,
                    self._disk,
                    without=config.without_data,
                    adopt=config.adopt_archives,
                    spend=self.main.reserve.spend,
                    conditions=self.places,
                )
            )
        )
        try:
            await asyncio.wait([work], timeout=SILENT_S)
            if not work.done():
                logger.warning(
                    "data directories do not answer, the start waits",
                    paths=", ".join(str(each.path) for each in self.all),
                    seconds=SILENT_S,
                )
            directories = await work
        finally:
            work.cancel()
        for each in self.all:  # another one is not in its place
            each.own_id = directories.ids[each.path]
        return directories

    async def release_reserves(self) -> None:
        """Free reserves where there is no space, at a start."""
        for each in self.all:
            await self._runner.run(each.reserve.release_if_short)

    def look_now(self) -> None:
        """Look at all of them on this thread, before anything is served."""
        for each in self.all:
            each.look_now()

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what they tell."""
        yield Facts[DataDisks].of(
            self,
            histogram("vq_flush_seconds", "Time of a flush.", lambda _: self._flush_times),
            Fact(
                read=lambda disks: disks.free_bytes,
                status="disk_bytes_free",
                load="disk_bytes_free",
            ),
            Fact(
                read=lambda disks: disks.total_bytes,
                status="disk_bytes_total",
                load="disk_bytes_total",
            ),
            Fact(read=lambda disks: disks.pressure_bytes, load="disk_excess_bytes"),
        )
        yield Facts[DataDisk](
            labels=("directory",),
            things=lambda: {(str(each.path),): each for each in self.all},
            status="disks",
            facts=FACTS,
        )

    # What follows -------------------------------------------------------------------------------
    @property
    def refusal(self) -> VqError | None:
        """Why the whole node takes no PUTs; None: at least some of its partitions do."""
        refusals = [each.refusal for each in self.all]
        return self.main.refusal if self.main.gone or None not in refusals else None

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
    def any_gone(self) -> bool:
        """Whether one of them is gone."""
        return any(each.gone for each in self.all)

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
