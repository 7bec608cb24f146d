"""The logs of a node on disk: opened, put aside, closed. Every method here blocks: call it through
a ``Runner``.

A partition that moved away and came back leaves two ranges with a gap between them. A log has no
gaps, so each range is a log of its own:

    <data>/<topic>/<partition>/               the range that is, or was, open last
    <data>/<topic>/<partition>.from-<start>/  earlier ones
"""

import logging
import threading
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


def _aside_path(usual: Path, start: int) -> Path:
    return usual.with_name(f"{usual.name}{_ASIDE}{start}")


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
        self._aside: dict[str, dict[str, set[int]]] = {}  # topic -> partition -> starts
        self._aside_lock = threading.Lock()

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
        paths = [_aside_path(usual, start) for start in self._starts_aside(partition)]
        return self._disk.exists(usual), [path for path in paths if self._disk.exists(path)]

    def _starts_aside(self, partition: TopicPartition) -> list[int]:
        """Return where the partition's earlier ranges start, in rising order.

        The topic's directory is listed once, not once for each of its partitions.
        """
        topic = partition.topic
        with self._aside_lock:
            aside = self._aside.get(topic)
            if aside is None:
                aside = {}
                parent = self._directory.log_directory(*partition).parent
                for name in self._disk.listdir(parent):
                    number, mark, start = name.partition(_ASIDE)
                    if mark and start.isdecimal():
                        aside.setdefault(number, set()).add(int(start))
                self._aside[topic] = aside
            return sorted(aside.get(str(partition.partition), ()))

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
        aside = _aside_path(usual, log.start_offset)
        self._disk.rename(usual, aside)
        with self._aside_lock:
            known = self._aside.get(partition.topic)
            if known is not None:
                known.setdefault(usual.name, set()).add(log.start_offset)
        self._disk.sync_directory(usual.parent)
        return aside

    def move_topic(self, name: str, topic_id: str, *, keep: bool) -> Path | None:
        """Move all data of a topic out of the way, to stay or to be purged; close its logs before.

        Returns where they are now, None if there were none of the topic with that id.
        """
        path = self._reserve.spend(
            lambda: self._directory.move_topic(name, topic_id, self._clock, keep=keep),
            f"the data of topic {name} cannot be moved out of the way",
        )
        with self._aside_lock:
            self._aside.pop(name, None)
        return path

    def purge_trash(self, keep_s: float) -> int:
        """Remove what was moved out of the way long ago; return how many topics that were."""
        return self._directory.purge_trash(self._clock, keep_s)

    def local_topics(self) -> list[LocalTopic]:
        """Return what topics have data here."""
        return self._directory.topics()

    def stored_topic_id(self, name: str) -> str:
        """Return the id of the topic whose data lie under a name; empty if none or not known."""
        return self._directory.stored_topic_id(name)

    def kept(self) -> list[Path]:
        """Return where data lie that were moved out of the way to stay."""
        return self._directory.kept()
