"""The logs of a node on disk: opened, put aside, closed. Methods block: use a ``Runner``.

A partition that moved away and came back leaves two ranges with a gap between them. A log has no
gaps, so each range is a log of its own:

    <data>/<topic>/<partition>/               the range that is, or was, open last
    <data>/<topic>/<partition>.from-<start>/  earlier ones

A log that was begun (``vq.store.log.begun``) and has no files any more is opened in quarantine,
where this group still holds the offset that it began at.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path

from vq.broker.logs.reserve import Reserve
from vq.broker.standing.role import Role
from vq.clock import Clock
from vq.errors import Busy, InvalidState, PartitionFailed
from vq.log_lines import get_logger
from vq.model import ARCHIVE_PLACES, TopicPartition, check_archive_place
from vq.store.archive.archive import ArchiveFiles, Stub, node_url, place_of, url_of
from vq.store.archive.archive_place import (
    ZipUnreachable,
    discard,
    drop_archive,
    end_upload,
    has_archives_elsewhere,
    local_path,
    url_in,
)
from vq.store.archive.archive_writer import ArchiveCheck, ArchiveWriter, BlockWriter
from vq.store.care.divergence import Diverged, cut_back, diverged
from vq.store.directory.directories import DataDirectories
from vq.store.directory.directory import LocalTopic, Trashed
from vq.store.directory.identity import check_there
from vq.store.disk.disk import Disk
from vq.store.log.begun import Beginning, BegunLog
from vq.store.log.block import Block, BlockCache
from vq.store.log.holdings import put_aside
from vq.store.log.log import Log
from vq.store.log.log_config import FROM_THE_FIRST, LogBegin, LogConfig, LogState
from vq.store.records.format import CHECKPOINT_NAME

logger = get_logger(__name__)

#: Whether this group holds an offset of a partition, by the partition's placement.
Holds = Callable[[int], bool]

_ASIDE = ".from-"
_GONE = ".gone"


def _everything(offset: int) -> bool:
    return True


def _aside_path(usual: Path, start: int) -> Path:
    return usual.with_name(f"{usual.name}{_ASIDE}{start}")


def start_of(aside: Path) -> int:
    """Return where the log in the directory of an earlier range starts."""
    return int(aside.name.partition(_ASIDE)[2])


def _is_empty(log: Log) -> bool:
    """Whether nothing is stored; one in quarantine, or unreadable, may have files all the same."""
    return not log.size_bytes and log.state in (LogState.OK, LogState.SEALED)


class Logs:
    """Opens logs in the data directories of a node; they share one cache of open files.

    Args:
        directory: The data directories.
        disk, clock, config: For the logs.
        reserves: Of each of them.
        archive_places: See ``BrokerConfig.archive_places``.
        role: Whether this node leads while others are in sync; any thread asks.
    """

    def __init__(
        self,
        directory: DataDirectories,
        *,
        disk: Disk,
        clock: Clock,
        config: LogConfig,
        reserves: Mapping[Path, Reserve],
        archive_places: Sequence[str] = ARCHIVE_PLACES,
        role: Role | None = None,
    ) -> None:
        self._role = role
        self._directory = directory
        self._begun = directory.begun
        self._disk = disk
        self._clock = clock
        self._config = config
        self._reserves = reserves
        self._archive_places = archive_places
        self._cache = BlockCache()
        self._aside: dict[str, dict[str, set[int]]] = {}  # topic -> partition -> starts
        self._aside_lock = threading.Lock()
        # Places that have archives of this node, and its directories there.
        self._places: dict[str, set[str]] = {}

    def prepare(
        self, partition: TopicPartition, topic_id: str, holds: Holds = _everything
    ) -> tuple[bool, list[Path]]:
        """Make the topic's directory that of the right topic, and look for the partition's logs.

        Returns:
            Whether there is one in the usual place, and the directories of earlier ranges in
            rising order. One that was begun and is gone counts as there.

        Raises:
            NamesakeFound: Data of another topic of this name lie there.
            DirectoryRefused: It is unknown whose data lie there.
        """
        self._directory.claim(*partition, topic_id)
        usual = self._directory.log_directory(*partition)
        paths = [_aside_path(usual, start) for start in self._starts_aside(partition)]
        there, aside = self._disk.exists(usual), [p for p in paths if self._disk.exists(p)]
        begun = self._begun.of_partition(topic_id, partition.partition)
        if usual.name in begun:
            # A process had put it aside and was killed before that was noted; perhaps when it had
            # made the directory of the next log. An earlier range begins before the usual log.
            at_least = begun[usual.name]
            renamed = [p.name for p in aside if p.name not in begun and start_of(p) >= at_least]
            if renamed:
                self._begun.note_moved(topic_id, usual.name, renamed[-1])
                begun[renamed[-1]] = begun.pop(usual.name)
        expected = [usual.with_name(name) for name, start in begun.items() if holds(start)]
        there = there or usual in expected
        aside += [path for path in expected if path != usual and path not in aside]
        return there, sorted(aside, key=start_of)

    def _starts_aside(self, partition: TopicPartition) -> list[int]:
        """Return where the partition's earlier ranges start, in rising order.

        The topic's directory is listed once, not once for each of its partitions.
        """
        topic = partition.topic
        with self._aside_lock:
            aside = self._aside.get(topic)
            if aside is None:
                aside = {}
                for parent in self._directory.topic_directories(topic):
                    for name in self._disk.listdir(parent):
                        if name.endswith(_GONE):  # ``remove_aside`` was interrupted
                            self._disk.rmtree(parent / name)
                            continue
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
        begin: LogBegin = FROM_THE_FIRST,
        holds: Holds = _everything,
    ) -> Log:
        """Open a log in the usual place, or in ``path``. Raises as ``Log.open``.

        Also as ``DataDirectories.choose_again``: one that is not there yet may get another place.

        Raises:
            Busy: The data directory is gone, and that may not have been noticed yet: a log that
                began now would begin in its place, and be hidden when it is back. Or it does not
                answer. Or the end of the log would be cut, and this node leads others.
        """
        if path is None:
            self._directory.choose_again(*partition, topic_id)
            path = self._directory.log_directory(*partition)
            home = self._directory.home(*partition)
            try:
                check_there(home, self._disk)
            except FileNotFoundError as error:
                raise Busy(f"the data directory {home} is gone") from error
        begun_at = self._begun.of_partition(topic_id, partition.partition).get(path.name)
        if begun_at is not None and not holds(begun_at):
            begun_at = None  # the partition was given another begin: what was here is given up
        log = Log.open(
            path,
            topic_id=topic_id,
            config=self._config,
            disk=self._disk,
            clock=self._clock,
            begin=begin,
            begun_at=begun_at,
            cache=self._cache,
            before_cut=self._doubt,
        )
        self._note_places(log.closed_blocks)
        level = logging.ERROR if log.state is LogState.QUARANTINED else logging.WARNING
        for note in log.recovery.notes:
            logger.log(level, "recovery finding", partition=partition, finding=note)
        if begun_at is None and log.state is not LogState.FAILED:
            beginning = Beginning(self._begun, BegunLog(topic_id, path.name, log.start_offset))
            if _is_empty(log) and not log.messages_appended:
                log.flushing.beginning = beginning
            else:
                beginning.note()
        return log

    def put_aside(self, partition: TopicPartition, log: Log) -> Path | None:
        """Close the log and make its place free; return where its data are now, if it has any."""
        is_empty = _is_empty(log)
        log.close()
        usual = self._directory.log_directory(*partition)
        aside = _aside_path(usual, log.start_offset)
        if not self._disk.exists(usual):
            begun = self._begun.of_partition(log.topic_id, partition.partition)
            if is_empty or usual.name not in begun:
                return None
            self._note_aside(log, usual, aside)
            return aside
        # A mark of a zip elsewhere is all that names it.
        is_bare = not diverged(usual, self._disk) and not has_archives_elsewhere(self._disk, usual)
        if is_empty and is_bare:
            self._begun.note_gone(log.topic_id, usual.name)
            self._begun.save()
            self._disk.rmtree(usual)
            self._disk.sync_directory(usual.parent)
            return None
        self._disk.rename(usual, aside)
        with self._aside_lock:
            known = self._aside.get(partition.topic)
            if known is not None:
                known.setdefault(usual.name, set()).add(log.start_offset)
        self._disk.sync_directory(usual.parent)
        self._note_aside(log, usual, aside)
        return aside

    def cut_back(self, partition: TopicPartition, log: Log, offset: int) -> list[Diverged]:
        """Close the log and cut it back; see ``divergence.cut_back``.

        Raises:
            PartitionFailed: An I/O error has ended the log: what is on disk of it is not known.
        """
        if log.state not in (LogState.OK, LogState.SEALED):
            raise PartitionFailed(f"the log in {log.directory} is {log.state}: {log.reason}")
        log.close()
        directory = self._directory.log_directory(*partition)
        return cut_back(directory, offset, topic_id=log.topic_id, disk=self._disk)

    def cut_before(self, log: Log) -> list[Diverged]:
        """Return what is kept beside a log of what was cut from it; what cannot be read is told."""
        try:
            return diverged(log.directory, self._disk)
        except OSError as error:
            logger.warning("files of cut bytes cannot be read", path=log.directory, error=error)
            return []

    def remove_aside(self, partition: TopicPartition, log: Log) -> None:
        """Close the log of an earlier range of which retention has left nothing; remove its place.

        Unless there are bytes beside it that were cut from it, or damaged: they are an operator's.
        """
        path = log.directory
        log.close()
        if not self._disk.exists(path) or set(self._disk.listdir(path)) - {CHECKPOINT_NAME}:
            return
        self._begun.note_gone(log.topic_id, path.name)
        self._begun.save()
        # Renamed first: without its checkpoint it would be an earlier range that is lost.
        gone = path.with_name(path.name + _GONE)
        self._disk.rename(path, gone)
        self._disk.sync_directory(path.parent)
        self._disk.rmtree(gone)
        with self._aside_lock:
            starts = self._aside.get(partition.topic, {}).get(str(partition.partition))
            if starts is not None:
                starts.discard(start_of(path))

    def give_up(self, partition: TopicPartition, topic_id: str) -> list[Path]:
        """Put all directories of a partition out of the way; return where they are now.

        Its logs are closed. The names end in ``.damaged``, perhaps with a number.
        """
        usual = self._directory.log_directory(*partition)
        paths = [*(_aside_path(usual, at) for at in self._starts_aside(partition)), usual]
        moved = [put_aside(self._disk, path) for path in paths if self._disk.exists(path)]
        if self._disk.exists(usual.parent):
            self._disk.sync_directory(usual.parent)
        for name in self._begun.of_partition(topic_id, partition.partition):
            self._begun.note_gone(topic_id, name)
        self._begun.save()
        with self._aside_lock:
            self._aside.get(partition.topic, {}).pop(usual.name, None)
        return moved

    # Archives -----------------------------------------------------------------------------------
    def new_archive(
        self,
        partition: TopicPartition,
        topic_id: str,
        path: Path,
        start_offset: int,
        end_offset: int,
        *,
        place: str | None,
    ) -> ArchiveWriter:
        """Begin to archive the block in the file at ``path``; ``place``: a URL, None: beside it.

        Raises:
            InvalidArgument: ``place`` is none of those where archives may lie.
            InvalidState: ``place`` is one of the data directories, or below.
            ZipUnreachable: It cannot be reached, or is not mounted.
            OSError: It cannot be begun, or what another archive of this block left elsewhere cannot
                be removed.
        """
        identity = self._directory.identity
        owner = (identity.cluster, identity.group, identity.node)
        topic = f"{partition.topic}.{topic_id}"
        url = ""
        if place is not None:
            check_archive_place(place, self._archive_places)
            node = f"{identity.node}.{self._directory.archives.own()}"
            parts = (identity.cluster, identity.group, node, topic, str(partition.partition))
            url = url_of(place, parts, start_offset)
            self._check_outside(place, url)
            self._check_mounted(place)
        mark = ArchiveFiles.of(path).discard
        is_written_over = False
        if self._disk.exists(mark):
            is_written_over = url_in(self._disk, mark) == url
            if not is_written_over:
                self.discard(mark)
        about = {
            **dict(zip(("cluster", "group", "node"), owner, strict=True)),
            "topic": partition.topic,
            "topic_id": topic_id,
            "partition": partition.partition,
        }
        writer = ArchiveWriter(self._disk, path, start_offset, end_offset, url=url, about=about)
        if is_written_over:  # behind its note
            try:
                self._disk.unlink(mark)
                self._disk.sync_directory(mark.parent)
            except OSError:
                writer.close()
                raise
        return writer

    def _check_outside(self, place: str, url: str) -> None:
        """Return if a zip does not lie among the data of this node.

        It would be in the way of a topic that has the cluster's name, and be deleted with it.

        Raises:
            InvalidState: It does.
        """
        path = local_path(url)
        for directory in self._directory.paths if path is not None else ():
            if path is not None and path.is_relative_to(directory.resolve()):
                raise InvalidState(
                    f"archive_to = {place} lies in the data directory {directory}; alter the topic "
                    "to another place, or without one: archives lie beside the log then"
                )

    def _check_mounted(self, place: str) -> None:
        """Return unless a place on this machine had archives of this node, and has none.

        Then it is not mounted, most likely: what is written there now would be hidden by the mount.

        Raises:
            ZipUnreachable: It is so.
        """
        place = place.rstrip("/")
        paths = [local_path(each) for each in sorted(self._places.get(place, ()))]
        local = [path for path in paths if path is not None]
        if local and not any(path.is_dir() for path in local):
            raise ZipUnreachable(
                place,
                f"{local[0]}, where this node has archives, is gone; mount it. If it is to be "
                "empty, make it",
            )

    def _note_places(self, blocks: Iterable[Block]) -> None:
        """Note where archives of this node lie."""
        for block in blocks:
            if block.archive is not None:
                self._note_place(block.archive.url)

    def _note_place(self, url: str) -> None:
        if url:
            self._places.setdefault(place_of(url), set()).add(node_url(url))

    def save_stub(self, path: Path, stub: Stub) -> None:
        """Make durable that an archive has the block in the file at ``path``."""
        self._disk.write_atomic(ArchiveFiles.of(path).stub, stub.to_bytes())
        end_upload(self._disk, path)
        self._note_place(stub.archive.url)

    def restore(self, stub_path: Path) -> BlockWriter:
        """Begin to write the block file of an archive again."""
        return BlockWriter(self._disk, stub_path)

    def check_archive(self, stub_path: Path) -> ArchiveCheck:
        """Begin to read an archive as a whole."""
        return ArchiveCheck.of(self._disk, stub_path)

    def drop_archive(self, path: Path) -> list[Path]:
        """Remove an archive that no log has; return the mark of a zip elsewhere, if there is one.

        ``path`` is its stub, or the block's file.
        """
        files = ArchiveFiles.of(path)
        return [files.discard] if drop_archive(self._disk, files.stub) else []

    def places_of_marks(self, marks: Sequence[Path]) -> list[str]:
        """Return the places of the zips that marks name; "" where there is none."""
        return [
            place_of(url_in(self._disk, each)) if self._disk.exists(each) else "" for each in marks
        ]

    def discard(self, mark: Path) -> None:
        """Remove the zip elsewhere that a mark names, and the mark; see ``archive_place``."""
        discard(self._disk, mark, self._directory.archives.owns)

    def _note_aside(self, log: Log, usual: Path, aside: Path) -> None:
        self._begun.note_moved(log.topic_id, usual.name, aside.name)
        self._begun.save()

    def move_topic(self, name: str, topic_id: str, *, keep: bool) -> Path | None:
        """Move all data of a topic out of the way, to stay or to be purged; close its logs before.

        Returns where they are now, the first part of them; None if there were none of the topic
        with that id.
        """
        moved = [
            reserve.spend(
                lambda at=at: self._directory.move_topic(  # type: ignore[misc]
                    name, topic_id, self._clock, keep=keep, at=at
                ),
                f"the data of topic {name} cannot be moved out of the way",
            )
            for at, reserve in self._reserves.items()
        ]
        path = next((each for each in moved if each is not None), None)
        with self._aside_lock:
            self._aside.pop(name, None)
        return path

    def home(self, partition: TopicPartition) -> Path:
        """Return the data directory that the logs of a partition lie in, or will.

        Raises:
            DirectoryRefused: It lies in several.
        """
        return self._directory.home(*partition)

    def mark_unflushed(self) -> None:
        """Make durable that messages may be counted here before they are flushed.

        Raises:
            DiskFull, OSError: It is not durable, so none must be.
        """
        self._reserves[self._directory.path].spend(
            self._directory.unflushed.mark,
            "not even that messages may be unflushed can be stored",
        )

    def _doubt(self) -> None:
        """Make durable that something is about to be cut here that another node may have.

        Raises:
            DiskFull, OSError: It is not durable, so nothing must be cut.
            Busy: This node leads others: they would cut what it cuts.
        """
        # The mark comes first: from then on this node does not begin to lead.
        self._reserves[self._directory.path].spend(
            self._directory.unflushed.doubt, "not even that messages may be missing can be stored"
        )
        if self._role is not None and self._role.leads_others:
            raise Busy(
                "the end of this log is damaged. This node does not cut it while it leads and "
                "other nodes are in sync: they may have it whole. The log opens when another node "
                "leads; if this node does not hand over within a minute, restart it"
            )

    def save_begun(self) -> None:
        """Make durable which logs were begun here.

        Raises:
            OSError: It is unknown what is durable; the next save writes another file.
        """
        self._begun.save()

    def forget_begun(self, known: Set[str]) -> None:
        """Forget logs of topics without data here whose ids are not among the ``known`` ones.

        None, while that cannot be looked up in a directory that does not answer.
        """
        others = self._begun.topic_ids() - known
        if others and self._directory.all_answer:
            self._begun.forget_topics(others - self._directory.topic_ids())

    def due_trash(self, keep_s: float) -> list[Trashed]:
        """Return what has lain in the trash for long; see ``DataDirectory.due_trash``."""
        return self._directory.due_trash(self._clock, keep_s)

    def remove_trash(self, trashed: Trashed) -> bool:
        """See ``DataDirectory.remove_trash``."""
        return self._directory.remove_trash(trashed)

    def local_topics(self) -> list[LocalTopic]:
        """Return what topics have data here."""
        return self._directory.topics()

    def stored_topic_id(self, name: str) -> str:
        """Return the id of the topic whose data lie under a name; empty if none or not known."""
        return self._directory.stored_topic_id(name)

    def kept(self) -> list[Path]:
        """Return where data lie that were moved out of the way to stay."""
        return self._directory.kept()
