"""Progress in a local file, for groups whose members all run in one process.

    {"format": 1, "crc32c": "9f1b02ac", "id": "6c0f…", "rows": [
        {"cluster": "default", "group": "billing", "topic": "orders", "partition": 3, "life": 4711,
         "generation": 12, "revision": 57, "progress": {"v": 1, "offset": 81920, …}}, …]}

The file is written anew for each commit: beside the old one, flushed, and put in its place. So a
crash leaves the old one or the new one. The checksum is over ``id`` and ``rows``. A process that
has the file open holds a lock on ``<path>.lock``.
"""

import contextlib
import fcntl
import json
import os
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import google_crc32c

from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import GenerationStale, InvalidArgument, InvalidState, OffsetStoreFailed, VqError
from vq.offset_stores.table import (
    Commit,
    Fence,
    Key,
    OffsetTable,
    Outcome,
    Row,
    RowClaim,
    begun,
    committed,
)
from vq.shown import shown
from vq.store.disk.local_files import write_anew

_FORMAT: Final = 1
#: A file larger than this is none of ours: it would have a million rows.
_FILE_BYTES_MAX: Final = 512 * 1024 * 1024
Rows = dict[Key, Row]


class FileOffsetStore(OffsetTable):
    """Keeps the offsets of groups in one file of this machine.

    All members of such a group are in one process: a second process is refused.

    Args:
        path: Of the file; it is made if it is missing, its directory must exist. The file system
            must have locks; network file systems often have none that count.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given: object = path
        if not isinstance(given, str | os.PathLike) or not os.fspath(given):
            raise InvalidArgument(f"path = {shown(given)}; give the path of a file")
        self._path = Path(path).absolute()
        self._mutex = threading.Lock()
        self._lock_file: int | None = None
        self._id = ""
        self._rows: Rows = {}

    def __repr__(self) -> str:
        return f"FileOffsetStore({str(self._path)!r})"

    @property
    def timeout_s(self) -> float:
        """See ``OffsetTable``: a hanging disk is not waited for any longer."""
        return 30.0

    @property
    def shown(self) -> str:
        """See ``OffsetTable``."""
        return f"file {self._path}"

    def open(self) -> str:
        """See ``OffsetTable``."""
        with self._mutex:
            if self._lock_file is None:
                self._lock()
                try:
                    self._id, self._rows = self._load()
                except BaseException:
                    self._unlock()
                    raise
            return f"file:{self._id}"

    def begin(self, claimed: Mapping[Key, RowClaim]) -> Outcome:
        """See ``OffsetTable``. For vq only."""
        with self._mutex:
            rows = self._opened()
            outcome = {key: begun(key, rows.get(key), each) for key, each in claimed.items()}
            return self._written(outcome)

    def commit(self, commits: Sequence[Commit]) -> Outcome:
        """See ``OffsetTable``. For vq only."""
        with self._mutex:
            rows = self._opened()
            return self._written(
                {each.key: committed(rows.get(each.key), each) for each in commits}
            )

    def read(self, cluster: str, group: str, topics: Collection[str]) -> dict[Key, Row]:
        """See ``OffsetTable``. For vq only."""
        with self._mutex:
            return {
                key: row
                for key, row in self._opened().items()
                if key[:2] == (cluster, group) and key.topic in topics
            }

    def of_group(self, cluster: str, group: str) -> dict[Key, Row]:
        """Return all that a group has. For vq only."""
        with self._mutex:
            return {key: row for key, row in self._opened().items() if key[:2] == (cluster, group)}

    def forget(self, cluster: str, group: str) -> int:
        """See ``OffsetTable``."""
        self.open()
        with self._mutex:
            rest = {key: row for key, row in self._rows.items() if key[:2] != (cluster, group)}
            count = len(self._rows) - len(rest)
            if count:
                self._save(rest)
            return count

    def close(self) -> None:
        """See ``OffsetTable``."""
        with self._mutex:
            self._unlock()

    # Under the mutex ------------------------------------------------------------------------------
    def _opened(self) -> Rows:
        if self._lock_file is None:
            raise OffsetStoreFailed(f"offset store {self.shown} is closed")
        return self._rows

    def _written(self, outcome: Outcome) -> Outcome:
        """Store the rows of an outcome; return it."""
        written = {key: row for key, row in outcome.items() if not isinstance(row, GenerationStale)}
        if any(self._rows.get(key) != row for key, row in written.items()):
            self._save({**self._rows, **written})
        return outcome

    def _lock(self) -> None:
        path = f"{self._path}.lock"
        with self._failing("cannot be locked"):
            found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(found)
            raise InvalidState(
                f"offset store {self.shown} is in use by another process, or another store of this "
                f"one ({error.strerror}): all members of a group with a file are in one process, "
                "and share one FileOffsetStore; use vq.SqlOffsetStore or ZooKeeper for several"
            ) from error
        self._lock_file = found

    def _unlock(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _load(self) -> tuple[str, Rows]:
        with self._failing("cannot be read"):
            try:
                with self._path.open("rb") as file:
                    data = file.read(_FILE_BYTES_MAX + 1)
            except FileNotFoundError:
                self._id = secrets.token_hex(8)
                self._save({})
                return self._id, {}
        return self._decoded(data)

    def _decoded(self, data: bytes) -> tuple[str, Rows]:
        try:
            if len(data) > _FILE_BYTES_MAX:
                raise ValueError(f"it has more than {_FILE_BYTES_MAX} bytes")
            document = json.loads(data)
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']!r}, this vq reads {_FORMAT}")
            found = _checksum(document["id"], document["rows"])
            if document["crc32c"] != found:
                raise ValueError(f"checksum {document['crc32c']!r}, computed {found!r}")
            return str(document["id"]), dict(_row(each) for each in document["rows"])
        except (ValueError, KeyError, TypeError, RecursionError, VqError) as error:
            raise InvalidState(
                f"offset store {self.shown} cannot be used: {error}. Nothing was changed. Put a "
                "backup back, or move the file away and set where its groups go on: `vq group "
                "alter GROUP --offset-store any`, which takes the last copies in ZooKeeper"
            ) from error

    def _save(self, rows: Rows) -> None:
        stored = [_stored(key, row) for key, row in sorted(rows.items())]
        document = {
            "format": _FORMAT,
            "crc32c": _checksum(self._id, stored),
            "id": self._id,
            "rows": stored,
        }
        with self._failing("cannot be written"):
            write_anew(self._path, json.dumps(document).encode(), mode=0o644)
        self._rows = rows

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OffsetStoreFailed(f"offset store {self.shown} {what}: {error}") from error


def _checksum(identity: str, stored: Sequence[Mapping[str, Any]]) -> str:
    data = json.dumps([identity, stored], sort_keys=True).encode()
    return f"{google_crc32c.value(data):08x}"


def _stored(key: Key, row: Row) -> dict[str, Any]:
    offset = row.offset
    return {
        **key._asdict(),
        **row.fence._asdict(),
        "revision": row.revision,
        "progress": None if offset is None else json.loads(offset.encode()),
    }


def _row(stored: Mapping[str, Any]) -> tuple[Key, Row]:
    key = Key(stored["cluster"], stored["group"], stored["topic"], stored["partition"])
    fence = Fence(stored["life"], stored["generation"])
    progress = stored["progress"]
    offset = None
    if progress is not None:
        offset = CommittedOffset.decode(str(key), json.dumps(progress).encode())
    return key, Row(fence, offset, stored["revision"])
