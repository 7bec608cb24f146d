"""Files into which messages are exported: lines of JSON, and Parquet.

A file is written beside its name and gets the name when it is whole and durable, so that nobody
takes a part for the whole. pyarrow is imported for Parquet only.
"""

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, Self

from vq.cli.base.text import as_json_line
from vq.errors import Busy, InvalidArgument, VqError
from vq.extras import install_command
from vq.limits import MIB
from vq.model import Message, time_ms_of

#: By the name of the format: the suffixes that mean it.
FORMATS: Final = {"jsonl": (".jsonl", ".ndjson", ".json"), "parquet": (".parquet",)}
#: A group of rows in Parquet ends when it has so many messages, or so many bytes of contents, keys
#: and headers.
GROUP_MESSAGES: Final = 50_000
GROUP_BYTES: Final = 32 * MIB
_TEMPORARY: Final = ".part"


def check_place(path: Path, topic: str) -> None:
    """Refuse a name that no file can have.

    Raises:
        InvalidArgument: It stands for standard output, or its directory is not there.
    """
    if str(path) == "-":
        raise InvalidArgument(
            f"an export is a file: '-' is none. `vq consume {topic} --json` prints the same lines"
        )
    if not path.parent.is_dir():
        raise InvalidArgument(f"{path} cannot be made: there is no directory {path.parent}")


class NotInstalled(VqError):
    """A package that is needed for this is not installed."""

    hint = f"install it: {install_command('parquet')}"


def format_of(path: Path, wanted: str | None) -> str:
    """Return the format of a file: the one that is wanted, else what its suffix means.

    Raises:
        InvalidArgument: Neither says it.
    """
    if wanted is not None:
        return wanted
    for name, suffixes in FORMATS.items():
        if path.suffix in suffixes:
            return name
    raise InvalidArgument(
        f"the name {path.name!r} says no format; let it end in .jsonl or .parquet, or give --format"
    )


class _Writer(Protocol):
    def write(self, messages: Sequence[Message]) -> None: ...

    def end(self) -> None: ...


class ExportFile:
    """One file to be written; use it as a context manager.

    Args:
        path: Its name. A file of that name is replaced when this one is whole.
        form: A key of ``FORMATS``.

    Attributes:
        messages: That were written.
    """

    def __init__(self, path: Path, form: str) -> None:
        self._path = path
        self._beside = path.with_name(path.name + _TEMPORARY)
        self._form = form
        self._file: BinaryIO | None = None
        self._writer: _Writer | None = None
        self.messages = 0

    def __enter__(self) -> Self:
        """Begin the file.

        Raises:
            Busy: Another process is writing it.
            OSError: It cannot be written.
        """
        self._file = _alone(self._beside)
        try:
            self._writer = _Lines(self._file) if self._form == "jsonl" else _Parquet(self._file)
        except BaseException:
            self._drop()
            raise
        return self

    def write(self, messages: Sequence[Message]) -> None:
        """Write some messages."""
        assert self._writer is not None
        self._writer.write(messages)
        self.messages += len(messages)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._drop()
            return
        assert self._file is not None
        assert self._writer is not None
        try:
            self._writer.end()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._beside.replace(self._path)  # before its lock ends
            self._file.close()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        self._beside.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()


def _alone(path: Path) -> BinaryIO:
    """Return a file that this process alone writes, empty; what a killed process left is used.

    Raises:
        Busy: Another process is writing it.
        OSError: It cannot be opened.
    """
    while True:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    file.truncate(0)
                    return file
        except BlockingIOError as error:
            file.close()
            raise Busy(
                f"{path} is being written by another export; wait for it, or give another name",
                hint="try again later",
            ) from error
        except BaseException:
            file.close()
            raise
        file.close()  # whoever wrote it has just given it its name, or removed it


class _Lines:
    """One message a line, as ``vq consume --json`` prints it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, messages: Sequence[Message]) -> None:
        self._file.write(b"".join(map(as_json_line, messages)))

    def end(self) -> None:
        pass


class _Parquet:
    """A table with a row for each message.

    Keys are bytes: those of a text in UTF-8, those of an integer its decimal digits; ``key_type``
    tells which.
    """

    def __init__(self, file: BinaryIO) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise NotInstalled("Parquet needs the package pyarrow") from error
        self._arrow = pyarrow
        time = pyarrow.timestamp("ms", tz="UTC")
        self._schema = pyarrow.schema(
            [
                ("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
                ("partition", pyarrow.int32()),
                ("offset", pyarrow.int64()),
                ("id", pyarrow.int64()),
                ("sent", time),
                ("stored", time),
                ("tag", pyarrow.string()),
                ("key", pyarrow.binary()),
                ("key_type", pyarrow.string()),
                ("headers", pyarrow.map_(pyarrow.string(), pyarrow.string())),
                ("content", pyarrow.binary()),
            ]
        )
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[Message] = []
        self._bytes = 0

    def write(self, messages: Sequence[Message]) -> None:
        for each in messages:
            self._rows.append(each)
            self._bytes += _size_of(each)
            if len(self._rows) >= GROUP_MESSAGES or self._bytes >= GROUP_BYTES:
                self._write_group()

    def end(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        rows, self._rows, self._bytes = self._rows, [], 0
        columns: dict[str, list[Any]] = {
            "topic": [each.topic for each in rows],
            "partition": [each.partition for each in rows],
            "offset": [each.offset for each in rows],
            "id": [each.id for each in rows],
            "sent": [time_ms_of(each.id) for each in rows],
            "stored": [each.append_time_ms for each in rows],
            "tag": [each.tag for each in rows],
            "key": [_key_bytes(each) for each in rows],
            "key_type": [_key_type(each) for each in rows],
            "headers": [list((each.headers or {}).items()) for each in rows],
            "content": [each.content for each in rows],
        }
        self._writer.write_table(self._arrow.table(columns, schema=self._schema))


def _size_of(message: Message) -> int:
    """Return about how many bytes a message takes: headers may be much more than its content."""
    headers = message.headers or {}
    size = len(message.content) + sum(len(name) + len(headers[name]) for name in headers)
    return size + (0 if isinstance(message.key, int | None) else len(message.key))


def _key_bytes(message: Message) -> bytes | None:
    key = message.key
    if key is None or isinstance(key, bytes):
        return key
    return str(key).encode()


def _key_type(message: Message) -> str | None:
    key = message.key
    if key is None:
        return None
    return "bytes" if isinstance(key, bytes) else "int" if isinstance(key, int) else "text"
