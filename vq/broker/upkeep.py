"""What a node does to the data that it keeps, beside its requests: made and kept running here.

    scrub      verifies all that is stored                 (``scrubbing``)
    retention  deletes what topics do not keep             (``retaining``, ``relief``)
    archive    makes zip files of old blocks, in runs      (``archive_runs``, ``daily_runs``),
               and early where a disk is too full          (``early_archives``)
    keys       makes key indexes of closed blocks          (``key_indexing``)
    removal    ends the grace of deleted topics            (``topic_remover``)
    tidy       notes which logs were begun, empties trash  (here)

Each is slow on purpose, and goes on after any error. Not in here: what each decides.
"""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vq.broker.base.config import BrokerConfig
from vq.broker.base.daily import DailyTime
from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.disks.data_disk import DataDisk
from vq.broker.health.scrubbing import Scrubber
from vq.broker.health.verifying import Verifier
from vq.broker.history.archive_runs import Archiver
from vq.broker.history.daily_runs import Alarm, DailyRuns
from vq.broker.history.early_archives import EarlyArchiver
from vq.broker.history.key_indexing import KeyIndexer
from vq.broker.history.relief import Relief
from vq.broker.history.retaining import Retainer
from vq.broker.history.topic_remover import TopicRemover
from vq.broker.partition.context import Context
from vq.broker.partition.gate import Gate
from vq.broker.partition.partitions import Partitions
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.store.directory.directory import Trashed
from vq.store.disk.disk import Disk

logger = get_logger(__name__)

#: How often the trash, and the record of begun logs, are looked at, at least …
TIDY_INTERVAL_S: Final = 60.0
#: … and at most, also where data of removed topics go at once.
TIDY_LEAST_S: Final = 1.0


class Upkeep:
    """The background work of one node on its data. Loop-bound.

    Args:
        config: Of the node.
        context: Of its channels.
        partitions: Its channels, and the topics it knows.
        verifier: Verifies pieces of blocks.
        coordinator: A started coordinator, by the time of ``run_with_cluster``.
        disks: Its data directories, the main one first.
        disk, runner, clock, rng: To act with.
        data: The main data directory.
        alarm: Rings when the daily run of the archive is due.
        gate: Knows whether the node stops.

    Attributes:
        scrubber, retainer, archiver, early_archiver, indexer: Parts that others ask.
    """

    def __init__(
        self,
        config: BrokerConfig,
        context: Context,
        partitions: Partitions,
        verifier: Verifier,
        coordinator: Coordinator,
        disks: Sequence[DataDisk],
        *,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        rng: random.Random,
        data: Path,
        alarm: Alarm,
        gate: Gate,
    ) -> None:
        channels = partitions.channels
        self._partitions = partitions
        self._trash_keep_s = config.trash_keep_s
        self._tidy_interval_s = max(TIDY_LEAST_S, min(config.trash_keep_s, TIDY_INTERVAL_S))
        self._purging: set[str] = set()  # places of which archives of removed topics are removed
        self.scrubber = Scrubber(
            channels,
            verifier,
            disk=disk,
            runner=runner,
            clock=clock,
            data=data,
            bytes_per_s=config.scrub_bytes_per_s,
            interval_s=config.scrub_interval_s,
        )
        self.retainer = Retainer(
            channels,
            partitions.logs,
            coordinator,
            disk=disk,
            runner=runner,
            clock=clock,
            interval_s=config.retention_interval_s,
            relief=Relief(disks, coordinator, clock, group=config.group, node=config.node),
        )
        self.archiver = Archiver(
            channels,
            partitions.logs,
            coordinator,
            group=config.group,
            node=config.node,
            disk=disk,
            runner=runner,
            clock=clock,
            counters=context.counters,
            rng=rng,
            gate=gate,
        )
        self.early_archiver = EarlyArchiver(
            channels,
            partitions.logs,
            disks,
            disk=disk,
            runner=runner,
            clock=clock,
            counters=context.counters,
            gate=gate,
        )
        self.indexer = KeyIndexer(
            channels,
            disk=disk,
            runner=runner,
            clock=clock,
            bytes_per_s=config.key_index_bytes_per_s,
        )
        self._remover = TopicRemover(
            coordinator, partitions.view, clock, rng=rng, interval_s=config.grace_interval_s
        )
        self._daily_runs = DailyRuns(
            coordinator,
            clock,
            at=DailyTime.parse(config.archive_at),
            by=f"{config.group}/{config.node}",
            view=partitions.view,
            alarm=alarm,
            rng=rng,
        )

    def run(self, tasks: Tasks) -> None:
        """Begin what needs no registration."""
        logs, channels = self._partitions.logs, self._partitions.channels
        tasks.keep(self.scrubber.run, "scrub")
        tasks.keep(self.retainer.run, "retention")
        tasks.keep(lambda: logs.discard_archives(channels), "remove archives elsewhere")
        tasks.keep(self.indexer.run, "make key indexes")
        tasks.keep(self._remover.run, "remove deleted topics")

    def run_registered(self, tasks: Tasks) -> None:
        """Begin what a registered node does."""
        tasks.keep(self._tidy, "tidy up")
        tasks.keep(lambda: self._empty_trash(tasks), "empty the trash")
        tasks.keep(self.archiver.run, "archive")
        tasks.keep(self.early_archiver.run, "archive early")
        tasks.keep(self._daily_runs.run, "make daily runs")

    async def _tidy(self) -> None:
        """Save which logs were begun here, those found at the start, too."""
        while True:
            await self._partitions.save_begun()
            await self._partitions.look_at_losses()
            await asyncio.sleep(self._tidy_interval_s)

    async def _empty_trash(self, tasks: Tasks) -> None:
        """Remove data of removed topics after a while, in which an operator may take them back.

        A place of archives that does not answer holds up what has archives there, and nothing else.
        """
        while True:
            try:
                due = await self._partitions.due_trash(self._trash_keep_s)
            except OSError as error:
                _tell_full_trash(error)
                due = []
            for places in sorted({each.places for each in due} - self._purging - {""}):
                self._purging.add(places)
                tasks.start(self._purge(places, [each for each in due if each.places == places]))
            await self._purge("", [each for each in due if not each.places])
            await asyncio.sleep(self._tidy_interval_s)

    async def _purge(self, places: str, due: Sequence[Trashed]) -> None:
        """Purge what has archives in the same places; what stays is due again at the next look."""
        try:
            await self._partitions.purge_trash(due)
        except (OSError, VqError) as error:
            _tell_full_trash(error)
        finally:
            self._purging.discard(places)


def _tell_full_trash(error: Exception) -> None:
    logger.warning("trash cannot be emptied, trying again later", error=error)
