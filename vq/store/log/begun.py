"""Which logs were begun in a data directory, written down outside of their own directories.

A log's manifest tells a missing block; it cannot tell that the log's directory is gone as a whole.
This record does. One text file, appended to, each line with the CRC-32C of its words before:

    vq-logs 1 de7c14d2
    begun 5d2f8c0e91a74b36 0 0 7da80ad2          topic id, directory in the topic's, first offset
    moved 5d2f8c0e91a74b36 0 0.from-0 8accceda   the directory has another name
    gone 5d2f8c0e91a74b36 0.from-0 e0c66cf0      the directory was removed on purpose

A log is named once its first batch, its blocks and their names are durable, and before that batch
is acknowledged: what a crash leaves in between is a log without a line, never a line without a log.
All logs of one flush share one write and one sync. A log that was not named in time (a full disk, a
data directory of an earlier vq) is named after a start has found it.

Threads: any; a lock is held during a write. ``Log`` and the event loop do not call in here.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from vq.errors import DirectoryRefused
from vq.log_lines import get_logger
from vq.store.disk.disk import Disk
from vq.store.log.block import PASSING_ERRNOS
from vq.store.records.checked_text import checksum

logger = get_logger(__name__)

BEGUN_NAME: Final = "@logs"
_VERSION: Final = "1"


class BegunLog(NamedTuple):
    """A log that holds, or held, a message.

    Attributes:
        topic_id: Id of its topic.
        name: Its directory inside the directory of the topic: ``0``, or ``0.from-5000``.
        start: The first offset it ever had.
    """

    topic_id: str
    name: str
    start: int


class BegunLogs:
    """The record of one data directory."""

    def __init__(self, data: Path, disk: Disk, check: Callable[[], None] = lambda: None) -> None:
        """Use ``BegunLogs.load``."""
        self._path = data / BEGUN_NAME
        self._disk = disk
        self._check = check
        self._lock = threading.Lock()
        # (topic id, partition) → name of a directory → first offset
        self._logs: dict[tuple[str, str], dict[str, int]] = {}
        self._lines: list[bytes] = []  # not in the file yet
        self._end = 0  # of the lines in the file; 0: the next save writes the file anew
        self._saved = True

    @classmethod
    def load(cls, data: Path, disk: Disk, check: Callable[[], None] = lambda: None) -> "BegunLogs":
        """Return the record of the data directory ``data``; empty if there is none yet.

        ``check`` raises ``OSError`` while the directory is gone.

        Raises:
            DirectoryRefused: A newer vq wrote it.
            OSError: It cannot be read.
        """
        begun = cls(data, disk, check)
        if disk.exists(begun._path):
            begun._read(disk.read_bytes(begun._path))
        return begun

    def _read(self, data: bytes) -> None:
        lines = data.split(b"\n")
        damaged, intact_after_damage = 0, False
        for line in lines[:-1]:
            words = _words(line)
            if not words or not self._take(words):
                damaged += 1
            elif damaged:
                intact_after_damage = True
        if not damaged and not lines[-1]:
            self._end = len(data)
        elif intact_after_damage:
            logger.warning(
                "damaged lines skipped, their logs are not known to exist",
                path=self._path,
                lines=damaged,
            )
        else:  # a power cut interrupted a save; nothing was acknowledged by then
            logger.info("torn lines at the end skipped", path=self._path)

    def _take(self, words: list[str]) -> bool:
        """Take one intact line; whether it is one."""
        match words:
            case ["vq-logs", version]:
                if version != _VERSION:
                    raise DirectoryRefused(
                        f"{self._path} has version {version}; this vq knows {_VERSION}: run a "
                        "newer vq"
                    )
            case ["begun", topic_id, name, start] if start.isdecimal():
                self._of(topic_id, name)[name] = int(start)
            case ["moved", topic_id, name, new_name]:
                names = self._of(topic_id, name)
                if name in names:
                    names[new_name] = names.pop(name)
            case ["gone", topic_id, name]:
                self._of(topic_id, name).pop(name, None)
            case _:
                return False
        return True

    def _of(self, topic_id: str, name: str) -> dict[str, int]:
        return self._logs.setdefault((topic_id, name.partition(".")[0]), {})

    # What was begun -----------------------------------------------------------------------------
    def of_partition(self, topic_id: str, partition: int) -> dict[str, int]:
        """Return the directories that logs of a partition were begun in, with their first offsets.

        In rising order of these offsets.
        """
        with self._lock:
            names = self._logs.get((topic_id, str(partition)), {})
            return dict(sorted(names.items(), key=lambda item: item[1]))

    def topic_ids(self) -> set[str]:
        """Return the ids of the topics that have logs here, or had some."""
        with self._lock:
            return {topic_id for topic_id, _ in self._logs}

    # What is to be written ----------------------------------------------------------------------
    def note(self, log: BegunLog) -> None:
        """Have the next ``save`` name a log, which is durable."""
        with self._lock:
            names = self._of(log.topic_id, log.name)
            if names.get(log.name) != log.start:
                names[log.name] = log.start
                self._add("begun", log.topic_id, log.name, str(log.start))

    def note_moved(self, topic_id: str, name: str, new_name: str) -> None:
        """Have the next ``save`` say that a log's directory has another name now."""
        with self._lock:
            names = self._of(topic_id, name)
            if name in names:
                names[new_name] = names.pop(name)
                self._add("moved", topic_id, name, new_name)

    def note_gone(self, topic_id: str, name: str) -> None:
        """Have the next ``save`` say that a log's directory is removed, for it holds nothing."""
        with self._lock:
            if self._of(topic_id, name).pop(name, None) is not None:
                self._add("gone", topic_id, name)

    def forget_topics(self, topic_ids: Iterable[str]) -> None:
        """Have the next ``save`` leave out all logs of some topics."""
        gone = set(topic_ids)
        with self._lock:
            kept = {key: names for key, names in self._logs.items() if key[0] not in gone}
            if len(kept) < len(self._logs):
                self._logs, self._end, self._saved = kept, 0, False

    def _add(self, *words: str) -> None:
        self._lines.append(_line(*words))
        self._saved = False

    def save(self) -> None:
        """Make noted lines durable; without space or file descriptors, leave it to the next save.

        Raises:
            OSError: It is unknown which lines are durable; the next save writes another file. Also
                if the data directory is gone: a list in its place would not be found again.
        """
        with self._lock:
            if self._saved:
                return
            self._check()
            end, self._end = self._end, 0
            try:
                self._end = self._append(end) if end else self._write_anew()
            except OSError as error:
                if error.errno not in PASSING_ERRNOS:
                    raise
                logger.warning(
                    "list of begun logs cannot be written, trying again",
                    path=self._path,
                    error=error,
                )
                return
            self._lines.clear()
            self._saved = True

    def _append(self, end: int) -> int:
        data = b"".join(self._lines)
        file = self._disk.open(self._path)
        try:
            file.pwrite([data], end)
            file.datasync()
        finally:
            file.close()
        return end + len(data)

    def _write_anew(self) -> int:
        lines = [_line("vq-logs", _VERSION)]
        for (topic_id, _), names in self._logs.items():
            lines += [_line("begun", topic_id, name, str(at)) for name, at in names.items()]
        data = b"".join(lines)
        self._disk.write_atomic(self._path, data)
        return len(data)


class Beginning(NamedTuple):
    """A new log, and the record that names it once its first batch is flushed."""

    logs: BegunLogs
    log: BegunLog

    def note(self) -> None:
        """See ``BegunLogs.note``."""
        self.logs.note(self.log)


def _line(*words: str) -> bytes:
    text = " ".join(words)
    return f"{text} {checksum(text)}\n".encode()


def _words(line: bytes) -> list[str]:
    """Return the words of a line without its checksum; none if that is wrong."""
    text, _, found = line.decode(errors="replace").rpartition(" ")
    return text.split(" ") if found == checksum(text) else []
