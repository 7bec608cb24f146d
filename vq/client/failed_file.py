"""The messages that a member has skipped, in a file of its machine, and what became of them.

    <directory>/<cluster>/<group>/<member>.failed         messages and notes, in order
    <directory>/<cluster>/<group>/<member>.failed.cut-N   what could not be read behind them
    <directory>/<cluster>/<group>/lock                    held while one of them is read or written
    <directory>/<cluster>/<group>/commands.lock           held by `vq group failed run` and `forget`

A file is only appended to, and flushed. So a kill leaves a torn end at most, of a message that does
not count as handled: the next one who writes cuts it off and keeps it aside. A command that leaves
little in a file writes it anew, one that leaves nothing removes it. docs/formats.md has the bytes.

Calls wait for a disk: no loop should make them.
"""

import contextlib
import fcntl
import json
import os
import secrets
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import google_crc32c

from vq import limits
from vq.client import environment
from vq.client.reading.decode import to_message
from vq.errors import InvalidState, VqError
from vq.log_lines import get_logger
from vq.model import Message, ProducerStamp, TopicPartition
from vq.reserved import DeliveryFailure, MessageOrigin, own_headers
from vq.store.disk.local_files import flush_directory, write_anew
from vq.store.records.record import decode_records

logger = get_logger(__name__)
MAGIC: Final = b"VQFAIL1\n"
#: Length of the body, CRC-32C of what follows it, number, time in ms since 1970, kind.
HEAD: Final = struct.Struct(">IIQQB")
_COVERED_FROM: Final = 8
#: A member at this bound holds what it would skip.
FILE_BYTES_MAX: Final = 256 * limits.MIB
#: Notes may go beyond it, so that a full file can be emptied.
_NOTES_BYTES_MAX: Final = 16 * limits.MIB
_SUFFIX: Final = ".failed"
_LOCK_S: Final = 5.0
_LOCK_PAUSE_S: Final = 0.01
_VERSION: Final = 1


class _Kind(IntEnum):
    """What a frame has."""

    MESSAGE = 1
    NOTE = 2


class _Frame(NamedTuple):
    kind: int
    number: int
    time_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that a member has skipped.

    Attributes:
        number: Of its record in the file.
        member: Who skipped it.
        message: As it was delivered; topic, partition and offset are those of the first delivery.
        origin: The same place, with the message's number where that is known.
        failure: How often it was tried, since when, and why the last try failed.
        time_ms: When it was skipped, in milliseconds since 1970.
        is_sending: `vq group failed run` has begun to send it, and not ended.
    """

    number: int
    member: str
    message: Message
    origin: MessageOrigin
    failure: DeliveryFailure
    time_ms: int
    is_sending: bool = False


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """Messages that are sent as one batch, or were when that was interrupted."""

    number: int
    messages: tuple[FailedMessage, ...]
    target: TopicPartition
    topic_id: str
    stamp: ProducerStamp


@dataclass(slots=True)
class FailedContents:
    """What a file has that is not settled.

    Attributes:
        messages: By number, in the order in which they were skipped.
        batches: Those that are not ended, by number; their messages are among ``messages``.
        unread_bytes: So many at the end are no whole frame.
    """

    messages: dict[int, FailedMessage] = field(default_factory=dict)
    batches: dict[int, FailedBatch] = field(default_factory=dict)
    unread_bytes: int = 0


def directory_of(cluster: str, group: str) -> Path:
    """Return where the failed files of a group's members on this machine are.

    Raises:
        InvalidState: No variable names a directory, and the user has no home.
    """
    try:
        return Path(environment.failed_directory()).absolute() / cluster / group
    except RuntimeError as error:
        raise InvalidState(
            f"there is no directory for failed files: {error}",
            hint="set VQ_FAILED_DIR; until then a member holds the message",
        ) from error


def file_of(cluster: str, group: str, member: str) -> "FailedFile":
    """Return the file of a member, which need not be there."""
    return FailedFile(directory_of(cluster, group) / f"{member}{_SUFFIX}")


def files_of(cluster: str, group: str) -> list["FailedFile"]:
    """Return the files of all members of a group on this machine, sorted by member."""
    directory = directory_of(cluster, group)
    with _failing(directory, "read"):
        if not directory.exists():
            return []
        return [FailedFile(each) for each in sorted(directory.glob(f"*{_SUFFIX}"))]


@contextlib.contextmanager
def commands_lock(cluster: str, group: str) -> Iterator[None]:
    """Be the only command that changes what a group has on this machine.

    Raises:
        InvalidState: Another one is at it.
    """
    with _locked(directory_of(cluster, group) / "commands.lock", wait_s=0.0):
        yield


class FailedFile:
    """One file. Threads and processes may use it at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.member = path.name.removesuffix(_SUFFIX)
        self._end = (0, 0, 0)  # device, inode and size of the file as this object left it

    def add(self, record: bytes, time_ms: int) -> None:
        """Return once a skipped message is stored.

        Args:
            record: A copy with the headers that tell of its message and why it failed.
            time_ms: Now.

        Raises:
            InvalidState: It is not stored: the disk is full or fails, or the file is at its bound.
        """
        with self._lock():
            self._append(_Kind.MESSAGE, record, time_ms, FILE_BYTES_MAX)

    def note(self, says: str, time_ms: int, **values: Any) -> int:
        """Return the number of a note once that is stored; ``says``: see docs/formats.md.

        Raises:
            InvalidState: It is not stored.
        """
        body = json.dumps({"v": _VERSION, "says": says, **values}, sort_keys=True).encode()
        with self._lock():
            return self._append(_Kind.NOTE, body, time_ms, FILE_BYTES_MAX + _NOTES_BYTES_MAX)

    def read(self) -> FailedContents:
        """Return what is not settled.

        Raises:
            InvalidState: It cannot be read.
        """
        with self._lock():
            return self._read()[0]

    def tidy(self) -> None:
        """Remove the file if all is settled; write it anew if most of it is.

        Raises:
            InvalidState: The disk is full or fails; the file is as it was.
        """
        with self._lock(), _failing(self.path, "written anew"):
            contents, frames = self._read(keeps=True)
            if not contents.messages and not contents.unread_bytes:
                self.path.unlink(missing_ok=True)
                return
            left = MAGIC + b"".join(_encoded(each) for each in frames)
            if contents.unread_bytes or 2 * len(left) > self.path.stat().st_size:
                return
            write_anew(self.path, left, mode=0o600)

    # Under the lock -------------------------------------------------------------------------------
    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return _locked(self.path.parent / "lock", wait_s=_LOCK_S)

    def _append(self, kind: _Kind, body: bytes, time_ms: int, bytes_max: int) -> int:
        number = secrets.randbits(63)
        data = _encoded(_Frame(kind, number, time_ms, body))
        with _failing(self.path, "written"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                end = self._whole_end(file)
                if end + len(data) > bytes_max:
                    raise InvalidState(
                        f"failed file {self.path} has {end} bytes, and {len(data)} more go beyond "
                        f"its bound of {bytes_max}",
                        hint=f"`vq group failed run {self.path.parent.name}` or `forget` empties "
                        "it; until then the message is held",
                    )
                file.seek(end)
                try:
                    write_all(file, data if end else MAGIC + data)
                    os.fsync(descriptor)
                except BaseException:
                    with contextlib.suppress(OSError):
                        file.truncate(end)
                    raise
                if not end:
                    flush_directory(self.path.parent)
                    flush_directory(self.path.parent.parent)
                self._end = _standing(file)
        return number

    def _whole_end(self, file: IO[bytes]) -> int:
        """Return where the last whole frame ends; what is behind it is kept aside, and cut off."""
        standing = _standing(file)
        if standing == self._end:
            return standing[2]
        size = standing[2]
        if size < len(MAGIC) and MAGIC.startswith(file.read(size)):
            file.truncate(0)
            return 0
        file.seek(0)
        end = sum((HEAD.size + len(each.body) for each in self._frames(file)), len(MAGIC))
        if end < size:
            self._keep_aside(file, end, size)
            file.truncate(end)
        return end

    def _keep_aside(self, file: IO[bytes], end: int, size: int) -> None:
        aside = self.path.with_name(f"{self.path.name}.cut-{secrets.token_hex(4)}")
        file.seek(end)
        try:
            with aside.open("xb") as out:
                while piece := file.read(limits.MIB):
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
            flush_directory(aside.parent)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        logger.error(
            "failed file has an end that cannot be read, kept aside",
            path=self.path,
            start=end,
            end=size,
            aside=aside,
        )

    def _frames(self, file: IO[bytes]) -> Iterator[_Frame]:
        """Yield the whole frames from the start of the file on.

        Raises:
            InvalidState: It is none of ours.
        """
        magic = file.read(len(MAGIC))
        if magic != MAGIC and not MAGIC.startswith(magic):
            raise InvalidState(
                f"failed file {self.path} begins with {magic!r}, not with {MAGIC!r}: another "
                "version of vq wrote it, or it is damaged. Nothing was changed; move it away"
            )
        while len(head := file.read(HEAD.size)) == HEAD.size:
            length, checksum, number, time_ms, kind = HEAD.unpack(head)
            if length > FILE_BYTES_MAX:
                return
            body = file.read(length)
            if len(body) < length or checksum != _checksum(head, body):
                return
            yield _Frame(kind, number, time_ms, body)

    def _read(self, *, keeps: bool = False) -> tuple[FailedContents, list[_Frame]]:
        """Return what is not settled; with ``keeps`` its frames, too."""
        ledger, end = _Ledger(self.member), len(MAGIC)
        kept: dict[int, _Frame] = {}
        try:
            with _failing(self.path, "read"), self.path.open("rb") as file:
                size = _standing(file)[2]
                for frame in self._frames(file):
                    end += HEAD.size + len(frame.body)
                    ledger.take(frame)
                    if keeps:
                        kept[frame.number] = frame
        except FileNotFoundError:
            return FailedContents(), []
        except (VqError, ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, InvalidState):
                raise
            raise InvalidState(
                f"failed file {self.path} has a frame before byte {end} that is whole and cannot "
                f"be understood: {error}; a later vq wrote it. Nothing was changed"
            ) from error
        contents = ledger.contents
        contents.unread_bytes = max(0, size - end) if size >= len(MAGIC) else 0
        live = contents.messages.keys() | contents.batches.keys()
        return contents, [frame for number, frame in kept.items() if number in live]


class _Ledger:
    """What frames mean together."""

    def __init__(self, member: str) -> None:
        self.contents = FailedContents()
        self._member = member
        self._open: set[tuple[MessageOrigin, int]] = set()  # of messages that nobody sends

    def take(self, frame: _Frame) -> None:
        """Take the next frame.

        Raises:
            CorruptData, ValueError, TypeError, KeyError: It cannot be understood.
        """
        if frame.kind == _Kind.MESSAGE:
            self._add(_message_of(frame, self._member))
            return
        if frame.kind != _Kind.NOTE:
            raise ValueError(f"kind {frame.kind}")
        note = json.loads(frame.body)
        if note["v"] != _VERSION:
            raise ValueError(f"version {note['v']!r}")
        says = note["says"]
        if says == "begun":
            self._begin(frame.number, note)
        elif says in {"sent", "open"}:
            batch = self.contents.batches.pop(note["batch"])
            if says == "open":
                self._open_again(batch)
            else:
                for each in batch.messages:
                    del self.contents.messages[each.number]
        elif says == "forgotten":
            self._forget(set(note["of"]))
        else:
            raise ValueError(f"a note that says {says!r}")

    def _add(self, failed: FailedMessage) -> None:
        """A message is open. One that was delivered again after a kill counts once: the first."""
        place = failed.origin, failed.message.id
        if place not in self._open:
            self._open.add(place)
            self.contents.messages[failed.number] = failed

    def _begin(self, number: int, note: dict[str, Any]) -> None:
        messages = []
        for of in note["of"]:
            failed = replace(self.contents.messages[of], is_sending=True)
            self.contents.messages[of] = failed
            # Skipped once more before the batch is noted as sent, it is another failure.
            self._open.discard((failed.origin, failed.message.id))
            messages.append(failed)
        target, stamp = TopicPartition(*note["to"]), ProducerStamp(*note["stamp"])
        batch = FailedBatch(number, tuple(messages), target, note["topic_id"], stamp)
        self.contents.batches[number] = batch

    def _forget(self, numbers: set[int]) -> None:
        for number in numbers:
            failed = self.contents.messages.pop(number, None)
            if failed is not None and not failed.is_sending:
                self._open.discard((failed.origin, failed.message.id))
        for number, batch in list(self.contents.batches.items()):
            if any(each.number in numbers for each in batch.messages):
                del self.contents.batches[number]  # nobody can send it again: the others are open
                self._open_again(batch)

    def _open_again(self, batch: FailedBatch) -> None:
        for each in batch.messages:
            if self.contents.messages.pop(each.number, None) is not None:
                self._add(replace(each, is_sending=False))


def _message_of(frame: _Frame, member: str) -> FailedMessage:
    [record] = decode_records(frame.body, 0)
    copy = to_message(TopicPartition("", 0), record)
    origin, failure = copy.origin, copy.failure
    if origin is None or failure is None:
        raise ValueError("a message that does not tell where it comes from")
    message = copy._replace(
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offset,
        next_offset=-1,
        headers=own_headers(copy.headers) or None,
    )
    return FailedMessage(frame.number, member, message, origin, failure, frame.time_ms)


def _encoded(frame: _Frame) -> bytes:
    head = HEAD.pack(len(frame.body), 0, frame.number, frame.time_ms, frame.kind)
    checksum = _checksum(head, frame.body)
    return HEAD.pack(len(frame.body), checksum, *frame[1:3], frame.kind) + frame.body


def _checksum(head: bytes, body: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(head[_COVERED_FROM:]), body))


def _standing(file: IO[bytes]) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size


def write_all(file: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


@contextlib.contextmanager
def _locked(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold a lock of the directory that a file is in; make the directory if there is none."""
    with _failing(path, "opened"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise InvalidState(
                        f"{path} is locked by another process, and was for {wait_s:g} s "
                        f"({error.strerror}); try again when that has ended"
                    ) from error
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _failing(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if what != "read":
            raise InvalidState(f"failed file {path} cannot be {what}: it is gone") from None
        raise
    except OSError as error:
        raise InvalidState(
            f"failed file {path} cannot be {what}: {error}",
            hint="make room on that disk, or let VQ_FAILED_DIR name another directory; until then "
            "a member holds the message",
        ) from error
