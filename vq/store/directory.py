"""The data directory of one broker: locked, identified, with one directory per topic.

<data>/@identity               whose it is (``identity``)
<data>/@lock                   held while a broker runs
<data>/@trash/<topic>.<id>     topics of an earlier id, kept until purged
<data>/<topic>/topic.json      {"v": 1, "topic": "orders", "id": "5d2f…"}
<data>/<topic>/<partition>/    a log (``log``); appears with the first append
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vq.errors import DirectoryRefused
from vq.model import check_name
from vq.store.disk import Disk, Lock
from vq.store.identity import LOCK_NAME, Identity, check_identity

__all__ = ["DataDirectory", "LocalTopic", "unusable"]

TRASH_NAME: Final = "@trash"
TOPIC_FILE_NAME: Final = "topic.json"


def unusable(path: Path, error: OSError) -> DirectoryRefused:
    """Return what is said of a data directory that the system does not let us use."""
    where = f" ({error.filename})" if error.filename not in {None, str(path)} else ""
    return DirectoryRefused(
        f"data directory {path} cannot be used: {error.strerror or error}{where}; give one that "
        "can be made and written here"
    )


@dataclass(frozen=True, slots=True)
class LocalTopic:
    """What lies here of one topic: its id (empty if its file is lost) and its partitions."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


class DataDirectory:
    """An open data directory; nobody else has it open. ``close`` it."""

    def __init__(self, path: Path, identity: Identity, disk: Disk, lock: Lock) -> None:
        """Use ``DataDirectory.open``."""
        self.path = path
        self.identity = identity
        self._disk = disk
        self._lock = lock
        self._topic_ids: dict[str, str] = {}

    @classmethod
    def open(cls, path: Path, cluster: str, group: str, node: str, disk: Disk) -> "DataDirectory":
        """Lock ``path``, making it if needed, and check that it belongs to this node.

        Raises:
            DirectoryRefused: Another process uses it, it belongs to something else, or it cannot be
                made, read or written.
        """
        try:
            for parent in [*disk.mkdir(path), path.parent]:
                disk.sync_directory(parent)
            lock = disk.lock(path / LOCK_NAME)
            try:
                identity = check_identity(path, cluster=cluster, group=group, node=node, disk=disk)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise unusable(path, error) from error
        return cls(path, identity, disk, lock)

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        self._lock.release()

    def claim_topic(self, topic: str, topic_id: str) -> None:
        """Make this the directory of the topic with that id; do it before its logs are opened.

        Data of a deleted topic of the same name is moved to the trash first, so that it never
        meets its namesake.

        Raises:
            InvalidArgument: The topic's name may not name a directory.
            DirectoryRefused: The topic's file was written by a newer vq, or a file has its name.
            OSError: The topic's directory cannot be made or moved.
        """
        if self._topic_ids.get(topic) == topic_id:
            return
        directory = self.path / check_name("topic", topic)
        disk = self._disk
        if disk.exists(directory) and not disk.is_directory(directory):
            raise DirectoryRefused(
                f"{directory} is a file: topic {topic!r} cannot have its directory there; move the "
                "file away or give the topic another name"
            )
        if disk.exists(directory) and self._read_topic_id(topic) != topic_id:
            self.trash_topic(topic)
        if not disk.exists(directory):
            for parent in disk.mkdir(directory):
                disk.sync_directory(parent)
            text = json.dumps({"v": 1, "topic": topic, "id": topic_id})
            disk.write_atomic(directory / TOPIC_FILE_NAME, text.encode() + b"\n")
        self._topic_ids[topic] = topic_id

    def log_directory(self, topic: str, partition: int) -> Path:
        """Return the directory for one partition's log, which need not exist.

        Raises:
            InvalidArgument: The topic's name may not name a directory.
        """
        return self.path / check_name("topic", topic) / str(partition)

    def _read_topic_id(self, topic: str) -> str:
        """Return the id of the topic whose data lies here; empty if that cannot be told."""
        path = self.path / topic / TOPIC_FILE_NAME
        if not self._disk.exists(path):
            return ""
        try:
            values = json.loads(self._disk.read_bytes(path))
            version, topic_id = int(values["v"]), str(values["id"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return ""
        if version > 1:
            raise DirectoryRefused(f"{path} has version {version}; this vq knows 1: run a newer vq")
        return topic_id

    def topics(self) -> list[LocalTopic]:
        """Return what lies here, sorted by topic."""
        found = []
        for name in self._disk.listdir(self.path):
            directory = self.path / name
            if name.startswith("@") or name == "lost+found":
                continue
            if self._disk.is_directory(directory):
                numbers = [int(n) for n in self._disk.listdir(directory) if n.isdigit()]
                found.append(LocalTopic(name, self._read_topic_id(name), tuple(sorted(numbers))))
        return found

    def trash_topic(self, topic: str) -> Path | None:
        """Move all data of a topic to the trash; return where it is now, None if there was none.

        The topic's logs must be closed.
        """
        directory = self.path / check_name("topic", topic)
        if not self._disk.exists(directory):
            return None
        trash = self.path / TRASH_NAME
        for parent in self._disk.mkdir(trash):
            self._disk.sync_directory(parent)
        base = f"{topic}.{self._read_topic_id(topic) or 'unknown'}"
        target, number = trash / base, 0
        while self._disk.exists(target):
            number += 1
            target = trash / f"{base}.{number}"
        self._disk.rename(directory, target)
        self._disk.sync_directory(trash)
        self._disk.sync_directory(self.path)
        self._topic_ids.pop(topic, None)
        return target

    def purge_trash(self) -> int:
        """Delete what lies in the trash for good; return how many topics that were."""
        trash = self.path / TRASH_NAME
        if not self._disk.exists(trash):
            return 0
        names = self._disk.listdir(trash)
        for name in names:
            self._disk.rmtree(trash / name)
        return len(names)
