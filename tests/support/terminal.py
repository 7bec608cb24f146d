"""A terminal for a command under test: a pseudo-terminal, and what was written to it.

The command's process leads a session of its own whose controlling terminal this is. So a typed
ctrl-C comes as the signal that the kernel makes of it.
"""

import contextlib
import errno
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

CTRL_C = "\x03"
_ROWS, _COLUMNS = 24, 100
#: Sequences that change nothing in the text: colours, and whether the cursor is shown.
_STYLE = re.compile(r"\x1b\[[0-9;?]*[mhl]")
_COMMAND = re.compile(r"\x1b\[(\d*)([A-Z])|\r|\n|[^\x1b\r\n]+")


class OnTerminal:
    """A running command some of whose streams are a terminal, as a context manager.

    Args:
        command: The command line.
        environ: Its environment; TERM is set here.
        stdin: None: the terminal.
        stdout: None: the terminal.
        stderr: None: the terminal.
        columns: The width of the terminal.

    Attributes:
        process: The command's process; its pipes are for the test.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdin: int | None = subprocess.PIPE,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = None,
        columns: int = _COLUMNS,
    ) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        dropped = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"}
        kept = {name: value for name, value in environ.items() if name not in dropped}
        self.process = subprocess.Popen(
            command,
            stdin=theirs if stdin is None else stdin,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs if stderr is None else stderr,
            env={**kept, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=_take_terminal(theirs),
        )
        os.close(theirs)
        self._written: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._ours, 65_536)
            except OSError as error:
                if error.errno == errno.EIO:  # nobody has the other end any more
                    return
                raise
            if not read:
                return
            self._written.append(read)

    @property
    def raw(self) -> str:
        """Everything that was written to the terminal, with its escape sequences."""
        return b"".join(self._written).decode(errors="replace")

    @property
    def screen(self) -> list[str]:
        """The lines that a person sees, without empty ones at the end."""
        return screen_of(self.raw)

    def enter(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._ours, text.encode())

    def until(self, check: Callable[[], object]) -> None:
        """Wait until ``check()`` is true; fail with what was written to the terminal."""
        block_until(check, _Late(self))

    def ended(self) -> int:
        """Wait for the end of the command and of its output; return the exit code."""
        code = self.process.wait(PROCESSES_WAIT_S)
        self._reader.join(PROCESSES_WAIT_S)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)
        pipes: list[IO[Any] | None] = [
            self.process.stdin,
            self.process.stdout,
            self.process.stderr,
        ]
        for pipe in pipes:
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class _Late:
    """Shows a terminal when a wait has failed."""

    def __init__(self, terminal: OnTerminal) -> None:
        self._terminal = terminal

    def __str__(self) -> str:
        return f"code={self._terminal.process.poll()} screen={self._terminal.screen}"


def _take_terminal(descriptor: int) -> Callable[[], None]:
    def take() -> None:
        fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)

    return take


def screen_of(raw: str) -> list[str]:
    """Return the lines that a terminal shows; knows the sequences that progress bars use."""
    lines, row, column = [""], 0, 0
    for found in _COMMAND.finditer(_STYLE.sub("", raw)):
        text, count, letter = found[0], int(found[1] or "1"), found[2]
        if letter == "A":
            row = max(0, row - count)
        elif letter == "K":
            lines[row] = ""
        elif letter is not None:
            raise AssertionError(f"unknown sequence {text!r}")
        elif text == "\r":
            column = 0
        elif text == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            before = lines[row].ljust(column)
            lines[row] = before[:column] + text + before[column + len(text) :]
            column += len(text)
    while lines and not lines[-1].strip():
        del lines[-1]
    return lines
