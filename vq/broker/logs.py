"""The logs of a node on disk: opened, put aside, closed. Every method here blocks: call it through
a ``Runner``.

A partition that moved away and came back leaves two ranges with a gap between them. A log has no
gaps, so each range is a log of its own:

    <data>/<topic>/<partition>/               the range that is, or was, open last
    <data>/<topic>/<partition>.from-<start>/  earlier ones
"""

import logging
from pathlib import Path

from vq.broker.reserve import Reserve
from vq.clock import Clock
from vq.model import TopicPartition
from vq.store.block import BlockCache
from vq.store.directory import DataDirectory, LocalTopic
from vq.store.disk import Disk
from vq.store.log import Log, LogConfig, LogState

logger = logging.getLogger(__name__)

_ASIDE = ".from-"


class Logs:
    """Opens logs in one data directory; they share one cache of open files."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        disk: Disk,
        clock: Clock,
        config: LogConfig,
        reserve: Reserve,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._config = config
        self._reserve = reserve
        self._cache = BlockCache()

    def prepare(self, partition: TopicPartition, topic_id: str) -> tuple[bool, list[Path]]:
        """Make the topic's directory that of the right topic, and look for the partition's logs.

        Returns:
            Whether there is one in the usual place, and the directories of earlier ranges in
            rising order.

        Raises:
            NamesakeFound: Data of another topic of this name lie there.
            DirectoryRefused: Whose data lie there cannot be told.
        """
        self._directory.claim_topic(partition.topic, topic_id)
        usual = self._directory.log_directory(*partition)
        mark = usual.name + _ASIDE
        aside = [
            (int(name.removeprefix(mark)), usual.with_name(name))
            for name in self._disk.listdir(usual.parent)
            if name.startswith(mark) and name.removeprefix(mark).isdigit()
        ]
        return self._disk.exists(usual), [path for _, path in sorted(aside)]

    def open(
        self,
        partition: TopicPartition,
        topic_id: str,
        *,
        path: Path | None = None,
        start_offset: int = 0,
        producers: bytes = b"",
    ) -> Log:
        """Open a log in the usual place, or in ``path``. Raises as ``Log.open``."""
        log = Log.open(
            path or self._directory.log_directory(*partition),
            topic_id=topic_id,
            config=self._config,
            disk=self._disk,
            clock=self._clock,
            start_offset=start_offset,
            producers=producers,
            cache=self._cache,
        )
        for note in log.recovery.notes:
            logger.warning("[partition=%s] %s", partition, note)
        return log

    def put_aside(self, partition: TopicPartition, log: Log) -> Path | None:
        """Close the log and make its place free; return where its data are now, if it has any."""
        # One in quarantine, or one that cannot be read, may be empty and have files all the same.
        is_empty = not log.size_bytes and log.state in (LogState.OK, LogState.SEALED)
        log.close()
        usual = self._directory.log_directory(*partition)
        if not self._disk.exists(usual):
            return None
        if is_empty:
            self._disk.rmtree(usual)
            self._disk.sync_directory(usual.parent)
            return None
        aside = usual.with_name(f"{usual.name}{_ASIDE}{log.start_offset}")
        self._disk.rename(usual, aside)
        self._disk.sync_directory(usual.parent)
        return aside

    def move_topic(self, name: str, *, keep: bool) -> Path | None:
        """Move all data of a topic out of the way, to stay or to be purged; close its logs before.

        Returns where they are now, None if there were none.
        """
        return self._reserve.spend(
            lambda: self._directory.move_topic(name, self._clock, keep=keep),
            f"the data of topic {name} cannot be moved out of the way",
        )

    def purge_trash(self, keep_s: float) -> int:
        """Remove what was moved out of the way long ago; return how many topics that were."""
        return self._directory.purge_trash(self._clock, keep_s)

    def local_topics(self) -> list[LocalTopic]:
        """Return what topics have data here."""
        return self._directory.topics()

    def kept(self) -> list[Path]:
        """Return where data lie that were moved out of the way to stay."""
        return self._directory.kept()
