"""The data directory of one broker: locked, identified, with one directory per topic.

<data>/@identity               whose it is (``identity``)
<data>/@lock                   held while a broker runs
<data>/@logs                   which logs were begun here (``begun``)
<data>/@archives               which archives at URLs it owns (``archive_owner``)
<data>/@unflushed              something may have been counted that was not flushed (``unflushed``)
<data>/@trash/<topic>.<id>.<time>   data of removed topics, for a while
<data>/@kept/<topic>.<id>.<time>    data of topics of which nothing says that they were deleted
<data>/<topic>/topic.json      {"v": 2, "topic": "orders", "id": "5d2f…", "crc": "0a1b2c3d"}
<data>/<topic>/<partition>/    a log (``log``); appears with the first append

A directory with a file that cannot be read is refused: nothing is moved or removed on a guess.
``time`` is when the data were moved, as ``20261122T095600Z``.
"""

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from vq.clock import Clock
from vq.errors import CorruptData, DirectoryRefused, InvalidArgument, VqError
from vq.limits import is_topic_id, is_valid_name
from vq.log_lines import get_logger
from vq.model import check_name
from vq.shown import shown
from vq.store.archive.archive_owner import ArchiveOwner
from vq.store.archive.archive_place import (
    ZipUnreachable,
    discard_all,
    places_below,
)
from vq.store.directory.identity import (
    IDENTITY_NAME,
    LOCK_NAME,
    Identity,
    check_identity,
    check_there,
)
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk, Lock
from vq.store.log.begun import BegunLogs
from vq.store.log.block import PASSING_ERRNOS
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.unflushed import Unflushed
from vq.store.records.checked_text import decode_text, encode_text
from vq.store.records.format import CHECKPOINT_NAME

logger = get_logger(__name__)

TRASH_NAME: Final = "@trash"
KEPT_NAME: Final = "@kept"
TOPIC_FILE_NAME: Final = "topic.json"
TOPIC_VERSION: Final = 2
_NO_DIRECTORY_ERRNOS: Final = frozenset({errno.ENOTDIR, errno.EEXIST})
_TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_MOVED = re.compile(r"(?P<base>.+)\.(?P<time>\d{8}T\d{6}Z)(-\d+)?")


def unusable(path: Path, error: OSError) -> VqError:
    """Return the error for a data directory that the system does not let us use.

    A path that names a file, or goes through one, is an unusable setting: another start meets it,
    too.
    """
    if error.errno in _NO_DIRECTORY_ERRNOS:
        return InvalidArgument(
            f"data directory {path} cannot be used: it, or what it should lie in, is a file; give "
            "one that can be made and written here"
        )
    where = f" ({error.filename})" if error.filename not in {None, str(path)} else ""
    return DirectoryRefused(
        f"data directory {path} cannot be used: {error.strerror or error}{where}; give one that "
        "can be made and written here"
    )


def why_gone(path: Path, disk: Disk, own_id: str) -> str:
    """Return why a data directory, which is open, is not there any more; "": it is.

    It was removed, moved or unmounted; another one is in its place; or its file system fails. Files
    that are open may go on taking bytes then, which nobody finds again.

    Raises:
        OSError: That cannot be told now, for want of file descriptors.
    """
    file = path / IDENTITY_NAME
    try:
        if not disk.exists(file):
            return "it was removed or unmounted"
        found = Identity.from_bytes(disk.read_bytes(file), file).id
    except DirectoryRefused:  # a damaged identity is no other one
        return ""
    except OSError as error:
        if error.errno in PASSING_ERRNOS:
            raise
        return f"it cannot be read: {error.strerror or error}"
    return "" if found == own_id else f"another one, with the id {found}, is in its place"


class NamesakeFound(DirectoryRefused):
    """Data of another topic of this name lie here; ``topic_id`` is its id.

    They must be moved (``DataDirectory.move_topic``) before the topic can have its directory.
    """

    def __init__(self, message: str, topic_id: str) -> None:
        super().__init__(message)
        self.topic_id = topic_id


@dataclass(frozen=True, slots=True)
class LocalTopic:
    """Data of one topic in this directory: its id (empty if unknown) and its partitions."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trashed:
    """Data of a removed topic in the trash.

    Attributes:
        path: Where they lie.
        topic_id: Of the topic; "" if the name does not tell it.
        places: Where it has archives elsewhere, which may take long to answer; see ``joined``.
    """

    path: Path
    topic_id: str
    places: str = ""


class DataDirectory:
    """An open data directory; nobody else has it open. ``close`` it.

    Attributes:
        begun: Which logs were begun here.
        unflushed: Whether a loss of power may have taken something.
        archives: Which archives at URLs it owns; a further directory has that of the main one.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        begun: BegunLogs,
        unflushed: Unflushed,
        archives: ArchiveOwner,
        disk: Disk,
        lock: Lock,
    ) -> None:
        """Use ``DataDirectory.open``."""
        self.path = path
        self.identity = identity
        self.begun = begun
        self.unflushed = unflushed
        self.archives = archives
        self._disk = disk
        self._lock = lock
        self._topic_ids: dict[str, str] = {}
        self._trashed: dict[str, float] = {}  # name in the trash -> when it was first seen there

    @classmethod
    def open(
        cls,
        path: Path,
        cluster: str,
        group: str,
        node: str,
        disk: Disk,
        *,
        main: "DataDirectory | None" = None,
        adopt: bool = False,
    ) -> "DataDirectory":
        """Lock ``path``, making it if needed, and check that it belongs to this node.

        Args:
            path: The directory.
            cluster, group, node: Whose it should be.
            disk: Where it is.
            main: The main directory, for a further one; see ``directories``.
            adopt: See ``ArchiveOwner.load``.

        Raises:
            DirectoryRefused: Another process uses it, it belongs to something else, or it cannot be
                made, read or written.
            InvalidArgument: It cannot be a directory: a file is there.
        """
        try:
            for parent in [*disk.mkdir(path), path.parent]:
                disk.sync_directory(parent)
            lock = disk.lock(path / LOCK_NAME)
            try:
                of = "" if main is None else main.identity.id
                identity = check_identity(
                    path, cluster=cluster, group=group, node=node, disk=disk, of=of
                )
                archives = (
                    ArchiveOwner.load(path, disk, adopt=adopt) if main is None else main.archives
                )
                check = partial(check_there, path, disk)
                begun = BegunLogs.load(path, disk, check)
                unflushed = Unflushed.load(path, disk, check)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise unusable(path, error) from error
        return cls(path, identity, begun, unflushed, archives, disk, lock)

    def name_further(self, further: Mapping[str, str]) -> None:
        """Have the identity of this main directory name the further ones, by id, with their places.

        Raises:
            OSError: It may name these, or those of before.
        """
        if dict(self.identity.further) != further:
            identity = replace(self.identity, further=dict(further))
            self._disk.write_atomic(self.path / IDENTITY_NAME, identity.to_bytes())
            self.identity = identity

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        self._lock.release()

    def claim_topic(self, topic: str, topic_id: str) -> None:
        """Make this the directory of the topic with that id. Call it before its logs are opened.

        Raises:
            InvalidArgument: The topic's name may not name a directory.
            NamesakeFound: Data of a topic of the same name and another id lie here.
            DirectoryRefused: It is unknown whose data lie here, a file has the topic's name, or the
                data directory is gone.
            OSError: The topic's directory cannot be made or read.
        """
        if self._topic_ids.get(topic) == topic_id:
            return
        directory = self.path / check_name("topic", topic)
        disk = self._disk
        try:
            check_there(self.path, disk)
        except FileNotFoundError as error:
            raise DirectoryRefused(
                f"data directory {self.path} is gone: topic {topic!r} gets no directory there "
                "before it is back"
            ) from error
        file = directory / TOPIC_FILE_NAME
        if disk.exists(directory) and not disk.is_directory(directory):
            raise DirectoryRefused(
                f"{directory} is a file: topic {topic!r} cannot have its directory there; move the "
                "file away or give the topic another name"
            )
        for parent in disk.mkdir(directory):
            disk.sync_directory(parent)
        if not disk.exists(file):
            if set(disk.listdir(directory)) - {file.name + TEMPORARY_SUFFIX}:
                raise self._unreadable(topic, "is missing, but there are data beside it", topic_id)
            values = {"topic": topic, "id": topic_id}
            disk.write_atomic(file, encode_text(TOPIC_VERSION, values))
        found = self._read_topic_id(topic, wanted=topic_id)
        if found != topic_id:
            self._check_checkpoints(topic, found)
            raise NamesakeFound(
                f"{directory} has data of topic id {found}; topic {topic!r} has the id {topic_id}",
                found,
            )
        self._topic_ids[topic] = topic_id

    def _check_checkpoints(self, topic: str, topic_id: str) -> None:
        """Check that each checkpoint of the topic's logs names the same id as its file."""
        directory = self.path / topic
        for name in self._disk.listdir(directory):
            path = directory / name / CHECKPOINT_NAME
            if not self._disk.exists(path):
                continue
            try:
                found = Checkpoint.from_bytes(self._disk.read_bytes(path)).topic_id
            except CorruptData:
                continue
            if found != topic_id:
                raise DirectoryRefused(
                    f"{directory / TOPIC_FILE_NAME} names topic id {topic_id}, but {path} names "
                    f"{found}: this broker cannot tell whose data these are. Restore the file "
                    f"from a copy, or move {directory} away"
                )

    def log_directory(self, topic: str, partition: int) -> Path:
        """Return the directory for one partition's log, which need not exist.

        Raises:
            InvalidArgument: The topic's name may not name a directory.
        """
        return self.path / check_name("topic", topic) / str(partition)

    def _read_topic_id(self, topic: str, *, wanted: str = "<id>") -> str:
        """Return the id of the topic whose data lie here.

        Raises:
            DirectoryRefused: The id cannot be read.
        """
        path = self.path / topic / TOPIC_FILE_NAME
        if not self._disk.exists(path):
            raise self._unreadable(topic, "is missing", wanted)
        try:
            data = self._disk.read_bytes(path)
            version, values = decode_text(data, version_max=TOPIC_VERSION)
            if version <= TOPIC_VERSION and values["topic"] != topic:
                raise CorruptData(f"it names topic {values['topic']!r}")
            topic_id = values["id"]
            if version <= TOPIC_VERSION and not is_topic_id(topic_id):
                raise CorruptData(f"id = {shown(topic_id)} is not the id of a topic")
        except (CorruptData, KeyError) as error:
            raise self._unreadable(topic, f"cannot be read ({error})", wanted) from error
        if version > TOPIC_VERSION:
            raise DirectoryRefused(
                f"{path} has version {version}; this vq knows up to {TOPIC_VERSION}: run a newer vq"
            )
        return str(topic_id)

    def _unreadable(self, topic: str, what: str, topic_id: str) -> DirectoryRefused:
        directory = self.path / topic
        return DirectoryRefused(
            f"{directory / TOPIC_FILE_NAME} {what}: this broker cannot tell whose data lie "
            f"in {directory}. Nothing was changed. If they are those of the present topic, "
            f'write this line to the file: {{"v": 1, "topic": "{topic}", "id": "{topic_id}"}} '
            "(`vq topic describe` shows the id). If not, move the directory away"
        )

    def stored_topic_id(self, topic: str) -> str:
        """Return the id of the topic whose data lie under a name; empty if none or not known."""
        if not is_valid_name(topic):
            return ""
        try:
            return self._read_topic_id(topic)
        except DirectoryRefused:
            return ""

    def topics(self) -> list[LocalTopic]:
        """Return what lies here, sorted by topic."""
        found = []
        for name in self._disk.listdir(self.path):
            directory = self.path / name
            if name.startswith("@") or name == "lost+found":
                continue
            if self._disk.is_directory(directory):
                numbers = [int(n) for n in self._disk.listdir(directory) if n.isdecimal()]
                try:
                    topic_id = self._read_topic_id(name)
                except DirectoryRefused:
                    topic_id = ""
                found.append(LocalTopic(name, topic_id, tuple(sorted(numbers))))
        return found

    def topic_ids(self) -> set[str]:
        """Return the ids of all topics that have data here, those out of the way included."""
        found = {local.topic_id for local in self.topics()}
        for place in (self.path / TRASH_NAME, self.path / KEPT_NAME):
            names = self._disk.listdir(place) if self._disk.exists(place) else []
            found |= {_topic_id_of(name) for name in names}
        return found

    # Moved out of the way -----------------------------------------------------------------------
    def move_topic(self, topic: str, topic_id: str, clock: Clock, *, keep: bool) -> Path | None:
        """Move all data of a topic out of the way; return where they are, None if there were none.

        The topic's logs must be closed. Data of another topic of that name stay where they are.

        Args:
            topic: Its name.
            topic_id: Its id.
            clock: Says when that was.
            keep: To ``@kept``, where they stay; otherwise to ``@trash``, which is purged.

        Raises:
            DirectoryRefused: It is unknown whose data they are.
        """
        directory = self.path / check_name("topic", topic)
        if not self._disk.exists(directory):
            return None
        if topic_id != (self._topic_ids.get(topic) or self._read_topic_id(topic)):
            return None
        place = self.path / (KEPT_NAME if keep else TRASH_NAME)
        for parent in self._disk.mkdir(place):
            self._disk.sync_directory(parent)
        target = self._free_name(place, f"{topic}.{topic_id}", clock)
        self._disk.rename(directory, target)
        self._disk.sync_directory(place)
        self._disk.sync_directory(self.path)
        self._topic_ids.pop(topic, None)
        return target

    def _free_name(self, place: Path, base: str, clock: Clock) -> Path:
        now = datetime.fromtimestamp(-(-clock.wall_ms() // 1000), UTC)  # rounded up: never early
        base = f"{base}.{now.strftime(_TIME_FORMAT)}"
        target, number = place / base, 0
        while self._disk.exists(target):
            number += 1
            target = place / f"{base}-{number}"
        return target

    def kept(self) -> list[Path]:
        """Return what was moved to ``@kept`` and is still there."""
        place = self.path / KEPT_NAME
        if not self._disk.exists(place):
            return []
        return [place / name for name in self._disk.listdir(place)]

    def due_trash(self, clock: Clock, keep_s: float) -> list[Trashed]:
        """Return what has lain in the trash for ``keep_s`` since this process first saw it there.

        That is measured with the monotonic clock: a clock that is set says nothing of an age. So
        what lay there before a restart stays a while longer.
        """
        trash = self.path / TRASH_NAME
        names = self._disk.listdir(trash) if self._disk.exists(trash) else []
        now_s = clock.monotonic()
        self._trashed = {name: self._trashed.get(name, now_s) for name in names}
        return [
            Trashed(trash / name, _topic_id_of(name), places_below(self._disk, trash / name))
            for name, since_s in sorted(self._trashed.items())
            if now_s - since_s >= keep_s
        ]

    def remove_trash(self, trashed: Trashed) -> bool:
        """Remove for good what lies in the trash, and archives elsewhere; whether that was done.

        While the place of an archive cannot be reached, the topic stays.
        """
        try:
            discard_all(self._disk, trashed.path, self.archives.owns)
        except ZipUnreachable as error:
            logger.warning("trash is not purged, trying again", path=trashed.path, error=error)
            return False
        self._disk.rmtree(trashed.path)
        self._trashed.pop(trashed.path.name, None)
        return True


def _topic_id_of(name: str) -> str:
    """Return the id in the name of a directory that was moved; "": it has none."""
    found = _MOVED.fullmatch(name)
    return "" if found is None else found["base"].rpartition(".")[2]
