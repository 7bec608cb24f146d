"""What a node does to the data that it keeps, beside its requests: the jobs of it are made here.

    scrub      verifies all that is stored                 (``scrubbing``)
    retention  deletes what topics do not keep             (``retaining``, ``relief``)
    archive    makes zip files of old blocks, in runs      (``archive_runs``, ``daily_runs``),
               and early where a disk is too full          (``early_archives``)
    keys       makes key indexes of closed blocks          (``key_indexing``)
    removal    ends the grace of deleted topics            (``topic_remover``)
    tidy       notes which logs were begun, empties trash  (here)

Each is slow on purpose. Not in here: what each decides, and when jobs run (``base.jobs``).
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from vq.broker.base.config import BrokerConfig
from vq.broker.base.daily import DailyTime
from vq.broker.base.facts import Facts
from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.disks.data_disk import DataDisk
from vq.broker.health.scrubbing import Scrubber
from vq.broker.health.verifying import Verifier
from vq.broker.history.acts import ActKeeper
from vq.broker.history.archive_runs import Archiver
from vq.broker.history.daily_runs import DailyRuns
from vq.broker.history.early_archives import EarlyArchiver
from vq.broker.history.key_indexing import KeyIndexer
from vq.broker.history.relief import Relief
from vq.broker.history.retaining import Retainer
from vq.broker.history.topic_remover import TopicRemover
from vq.broker.logs import archiving
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.context import Context
from vq.broker.standing.gate import Gate
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
        jobs: Have this done.
        context: Of its channels.
        partitions: Its channels, and the topics it knows.
        verifier: Verifies pieces of blocks.
        coordinator: A started coordinator, by the time of ``start``.
        disks: Its data directories, the main one first.
        disk, runner, clock, rng: To act with.
        data: The main data directory.
        tasks: What runs beside jobs.
        gate: Knows whether the node stops.

    Attributes:
        scrubber, retainer, archiver, early_archiver, indexer: Parts that others ask.
    """

    def __init__(
        self,
        config: BrokerConfig,
        jobs: Jobs,
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
        tasks: Tasks,
        gate: Gate,
    ) -> None:
        channels = partitions.channels
        self._partitions = partitions
        self._trash_keep_s = config.trash_keep_s
        self._tasks = tasks
        self._purging: set[str] = set()  # places of which archives of removed topics are removed
        self.scrubber = Scrubber(
            jobs,
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
            jobs,
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
            jobs,
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
            jobs,
            channels,
            disk=disk,
            runner=runner,
            clock=clock,
            bytes_per_s=config.key_index_bytes_per_s,
        )
        TopicRemover(jobs, coordinator, partitions.view, clock, interval_s=config.grace_interval_s)
        self._daily_runs = DailyRuns(
            jobs,
            coordinator,
            clock,
            at=DailyTime.parse(config.archive_at),
            by=f"{config.group}/{config.node}",
            view=partitions.view,
            rng=rng,
        )
        ActKeeper(jobs, coordinator, clock, lambda: self._daily_runs.lease.fence is not None)
        tidy = Every(max(TIDY_LEAST_S, min(config.trash_keep_s, TIDY_INTERVAL_S)))
        jobs.add("tidying", self._tidy, tidy, While.REGISTERED, at_once=True)
        jobs.add("trash", self._empty_trash, tidy, While.REGISTERED, at_once=True)
        jobs.add(
            "archives elsewhere",
            lambda: partitions.logs.archiving.discard_all(channels),
            Every(archiving.DISCARD_S),
        )

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        for each in (self.scrubber, self.retainer, self.archiver, self.indexer):
            yield from each.facts()

    def start(self) -> None:
        """Begin what follows ZooKeeper, on a registered node."""
        self.archiver.start()
        self._daily_runs.start()

    async def stop(self) -> None:
        """End that."""
        await self.archiver.stop()
        await self._daily_runs.stop()

    async def _tidy(self) -> None:
        """Save which logs were begun here, those found at the start, too."""
        await self._partitions.save_begun()
        await self._partitions.look_at_losses()

    async def _empty_trash(self) -> None:
        """Remove data of removed topics after a while, in which an operator may take them back.

        A place of archives that does not answer holds up what has archives there, and nothing else.
        """
        due = await self._partitions.leftovers.due(self._trash_keep_s)
        for places in sorted({each.places for each in due} - self._purging - {""}):
            self._purging.add(places)
            self._tasks.start(self._purge(places, [each for each in due if each.places == places]))
        await self._purge("", [each for each in due if not each.places])

    async def _purge(self, places: str, due: Sequence[Trashed]) -> None:
        """Purge what has archives in the same places; what stays is due again at the next look."""
        try:
            await self._partitions.leftovers.purge(due)
        except (OSError, VqError) as error:
            logger.warning("trash cannot be emptied, trying again later", error=error)
        finally:
            self._purging.discard(places)
