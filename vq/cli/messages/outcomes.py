"""What became of the lines of ``vq produce``: counts, the first errors, and files of the rest.

Not in here: what a line means, and how it is sent.
"""

import contextlib
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import BinaryIO

import click

from vq.cli.base.errors import CommandFailed
from vq.cli.base.text import json_text, safe
from vq.cli.messages.lines import LongLine
from vq.errors import OutcomeUnknown, VqError
from vq.model import SendResult

#: So many failed lines are listed on standard error.
SHOWN_FAILURES = 5
#: The name for a line that was sent when the user ended the command; no error of the producer.
INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class Failure:
    """A line that was not acknowledged.

    Attributes:
        line: Its number in the input, from 1.
        outcome: ``refused``: certainly not stored; or ``unknown``.
        error: The class of the error.
        message: The text of the error.
        retriable: Whether the same line may be taken later.
    """

    line: int
    outcome: str
    error: str
    message: str
    retriable: bool

    def as_json(self) -> str:
        """Return it as one JSON object."""
        return json_text(asdict(self), ascii_only=True)


def failure_of(line: int, error: VqError) -> Failure:
    """Return what is told about a line that ended with an error."""
    outcome = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
    return Failure(line, outcome, type(error).__name__, error.message, error.retriable)


class FailureFiles:
    """The files of ``--unacknowledged`` and ``--errors``; without files it keeps nothing.

    Each call is made under the lock of the tally, except ``begin``.

    Args:
        lines: Gets each line that was not acknowledged as it was read; None: not wanted.
        errors: Gets line number, outcome, error and text of each; None: not wanted.
        as_json: Errors are JSON objects instead of tab-separated columns.

    Attributes:
        problem: The first error of writing; nothing more is written after it.
        too_long: Lines that are not in the file because no message can hold them.
    """

    def __init__(
        self,
        lines: BinaryIO | None = None,
        errors: BinaryIO | None = None,
        *,
        as_json: bool = False,
    ) -> None:
        self._lines = lines
        self._errors = errors
        self._as_json = as_json
        self._open: dict[int, bytes | LongLine] = {}
        self.problem: OSError | None = None
        self.too_long = 0
        if errors is not None and not as_json:
            self._write(errors, b"line\toutcome\terror\tmessage\n")

    def __bool__(self) -> bool:
        return self._lines is not None or self._errors is not None

    def begin(self, number: int, line: bytes | LongLine) -> None:
        """Keep a line until its outcome is known."""
        if self:
            self._open[number] = line

    def acknowledged(self, number: int) -> None:
        """Forget a line."""
        self._open.pop(number, None)

    def failed(self, failure: Failure) -> None:
        """Write a line."""
        line = self._open.pop(failure.line, None)
        if isinstance(line, LongLine):
            self.too_long += self._lines is not None
        elif line is not None and self._lines is not None:
            self._write(self._lines, line + b"\n")
        if self._errors is not None:
            self._write(self._errors, self._row(failure).encode() + b"\n")

    def give_up(self) -> None:
        """Write the lines whose outcome nobody waits for."""
        for number in sorted(self._open):
            text = "the command was ended before the outcome was known"
            self.failed(Failure(number, "unknown", INTERRUPTED, text, retriable=False))

    def flush(self) -> None:
        """Give the system everything that was written."""
        for file in (self._lines, self._errors):
            if file is not None:
                self._write(file, b"")

    def _row(self, failure: Failure) -> str:
        if self._as_json:
            return failure.as_json()
        fields = (failure.line, failure.outcome, failure.error, failure.message)
        return "\t".join(safe(str(field)) for field in fields)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        if self.problem is not None:
            return
        try:
            if data:
                file.write(data)
            else:
                file.flush()
        except OSError as error:
            self.problem = error


class Tally:
    """Counts lines and their outcomes; called by the producer's thread and the command's.

    Args:
        files: Where lines that are not acknowledged are written.

    Attributes:
        begun: Lines that were read and are sent, or refused before.
        read: Bytes of these lines, with their newlines.
        size: Bytes of their contents.
        keyless: Those that have no key although others have.
        acknowledged, refused, unknown: Lines by outcome.
        diverted: Of those acknowledged, sent to another partition than that of their key.
        failures: Lines by class of the error.
        all_retriable: Every line that was not acknowledged may be taken later.
        first: The first few failures.
        files: See above.
    """

    def __init__(self, files: FailureFiles | None = None) -> None:
        self.begun = self.read = self.size = self.keyless = 0
        self.acknowledged = self.refused = self.unknown = 0
        self.diverted = 0
        self.failures: Counter[str] = Counter()
        self.all_retriable = True
        self.first: list[Failure] = []
        self.files = files or FailureFiles()
        self._closed = False
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many lines have ended, one way or another."""
        return self.acknowledged + self.refused + self.unknown

    @property
    def failed(self) -> int:
        """How many were not acknowledged."""
        return self.refused + self.unknown

    def begin(self, number: int, line: bytes | LongLine) -> None:
        """Count a line that is sent now."""
        self.begun = number
        self.read += (line.size if isinstance(line, LongLine) else len(line)) + 1
        self.files.begin(number, line)

    def ended(self, line: int, result: SendResult | None, error: VqError | None) -> None:
        """Count the outcome of one line."""
        with self._lock:
            if self._closed:
                return
            if error is None:
                self.acknowledged += 1
                self.diverted += result is not None and result.diverted
                self.files.acknowledged(line)
            else:
                self._failed(failure_of(line, error))

    def give_up(self) -> None:
        """Count the lines without an outcome as unknown; later outcomes do not count."""
        with self._lock:
            waiting = self.begun - self.count
            if waiting:
                self.unknown += waiting
                self.failures[INTERRUPTED] += waiting
                self.all_retriable = False
                self.files.give_up()
            self._closed = True

    def _failed(self, failure: Failure) -> None:
        if failure.outcome == "unknown":
            self.unknown += 1
        else:
            self.refused += 1
        self.failures[failure.error] += 1
        self.all_retriable = self.all_retriable and failure.retriable
        if len(self.first) < SHOWN_FAILURES:
            self.first.append(failure)
        self.files.failed(failure)

    def error(self) -> CommandFailed | None:
        """Return the error with which the command ends; None: every line was acknowledged."""
        if not self.failed:
            return None
        return CommandFailed(
            f"{self.refused} of {self.count} refused (not stored), {self.unknown} unknown",
            outcome="unknown" if self.unknown else "refused",
            retriable=self.all_retriable,
            facts={
                "sent": self.count,
                "acknowledged": self.acknowledged,
                "refused": self.refused,
                "unknown": self.unknown,
                "failures": dict(self.failures),
            },
        )


@contextlib.contextmanager
def failure_files(
    unacknowledged: str | None, errors: str | None, *, as_json: bool
) -> Iterator[FailureFiles]:
    """Open the files of ``--unacknowledged`` and ``--errors`` while the block runs.

    Raises:
        click.UsageError: A file has content, or both are the same one.
        OSError: A file cannot be opened.
    """
    with contextlib.ExitStack() as held:
        lines = _new(held, unacknowledged, "--unacknowledged")
        rows = _new(held, errors, "--errors")
        if lines and rows and os.path.sameopenfile(lines.fileno(), rows.fileno()):
            raise click.UsageError("--unacknowledged and --errors need a file each")
        yield FailureFiles(lines, rows, as_json=as_json)


def _new(held: contextlib.ExitStack, path: str | None, option: str) -> BinaryIO | None:
    """Open a file to write; one with content may hold lines that nobody has sent again yet."""
    if path is None:
        return None
    file = open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb")  # noqa: PTH123, SIM115
    held.callback(_close, file)
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        raise click.UsageError(
            f"{option} {path}: the file has content, which is not overwritten; name another one"
        )
    return file


def _close(file: BinaryIO) -> None:
    """Close a file. What could not be written was noted at the flush before."""
    with contextlib.suppress(OSError):
        file.close()
