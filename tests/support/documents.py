"""Documents as programs: their fenced blocks, and a place where these run as a reader runs them.

A block is run when it is ``sh`` or ``python``. What it prints is compared with a ``text`` block
that comes next: it prints these lines, in that order, and no others. ``…`` stands for anything
within a line, and a line ``…`` for any lines. White space, empty lines, underscores and the rules
of tables do not count. An HTML comment right before a block
says what a reader sees from the text around it:

    <!-- not run: why -->                         it is shown only
    <!-- a terminal of its own, until: TEXT -->   it keeps running; the next block waits for TEXT
    <!-- exit code: N -->                         it is expected to fail

All blocks of a document share a directory; its python blocks share one interpreter, too. A program
that waits for Enter gets it when what it should print is there. Ports named in the text are
replaced by free ones. ``vq`` is forked from a process that has imported it, but in the long form.
"""

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from support import forked_command
from support.command_server import command_server
from support.java import SHORT_LIVED

from vq.testing.waiting import PROCESSES_WAIT_S

ROOT = Path(__file__).parents[2]
BLOCK_S = PROCESSES_WAIT_S
STOP_S = 20.0
_PORTS = ("2181", "8119", "8123", "8124", "8125", "8126", "8127")
_PORT_RANGE = (15_000, 30_000)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--\s*((?:(?!-->).)*?)\s*-->\s*\Z", re.DOTALL)
_NOT_RUN = "not run:"
_OWN_TERMINAL = "a terminal of its own, until:"
_EXIT_CODE = "exit code:"
_ANY_LINES = "…"

#: Spark is told by a file what no page is about: to compile little, as its tests have it.
_SPARK_DEFAULTS = f"""
spark.driver.extraJavaOptions {SHORT_LIVED}
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.adaptive.enabled false
spark.python.sql.dataFrameDebugging.enabled false
"""

#: Reads file names from one descriptor and runs the files in one namespace; writes 0 or 1 for each.
#: An empty name begins a new namespace.
_PYTHON = """
import sys, traceback
orders, results = open(int(sys.argv[1])), open(int(sys.argv[2]), "w", buffering=1)
names = {"__name__": "__main__"}
for path in map(str.strip, orders):
    if not path:
        names = {"__name__": "__main__"}
        continue
    try:
        exec(compile(open(path).read(), path, "exec"), names)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    print(code, file=results)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block; ``expected`` is the text block behind it, "" if there is none."""

    name: str
    language: str
    code: str
    comment: str
    expected: str = ""

    @property
    def runs(self) -> bool:
        """Whether the document's test runs it."""
        return self.language in {"sh", "python"} and not self.comment.startswith(_NOT_RUN)

    @property
    def until(self) -> str:
        """The text to wait for when it keeps running, else ""."""
        return _after(_OWN_TERMINAL, self.comment)

    @property
    def exit_code(self) -> int:
        """The exit code it must have."""
        return int(_after(_EXIT_CODE, self.comment) or 0)


def _after(mark: str, comment: str) -> str:
    return comment.removeprefix(mark).strip() if comment.startswith(mark) else ""


def blocks_of(document: Path) -> list[Block]:
    """Return the blocks of a Markdown file, in order; text blocks are part of those before them."""
    text = document.read_text()
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        comment = _COMMENT.search(before)
        line = before.count("\n") + 1
        language, code = match.groups()
        if language == "text" and found and not comment:
            last = found[-1]
            found[-1] = Block(last.name, last.language, last.code, last.comment, code)
        else:
            name = f"{document.name}:{line}"
            found.append(Block(name, language, code, comment[1] if comment else ""))
    return found


class Terminal:
    """A directory, ports and processes for the blocks of one document."""

    def __init__(
        self,
        directory: Path,
        ports: Mapping[str, int],
        group: "subprocess.Popen[bytes]",
        server: Sequence[int],
    ) -> None:
        self.directory = directory
        self._ports = ports
        self._group = group
        self._server = server
        self._count = 0
        self._python: _Python | None = None
        self.started: list[subprocess.Popen[bytes]] = []  # they end with the group at the latest

    def run(self, block: Block) -> None:
        """Run one block and check what it printed and how it ended."""
        self._count += 1
        code, expected = self._here(block.code), self._here(block.expected)
        path = self.directory / f".block-{self._count}.{block.language}"
        path.write_text(code)
        output = path.with_suffix(".out")
        if block.language == "python":
            if self._python is None:
                self._python = _Python(self.directory, self.environ, self._group.pid)
            ended = self._python.run(path, output, expected)
        else:
            ended = self._run_shell(path, output, self._here(block.until))
        said = output.read_text()
        assert ended is not None, f"{block.name} did not end within {BLOCK_S:g} s:\n{said}"
        assert ended == block.exit_code, f"{block.name} ended with {ended}:\n{said}"
        missing = missing_line(expected, said)
        assert missing is None, f"{block.name} did not print {missing!r}:\n{said}"
        more = unexpected_line(expected, said) if expected and not block.until else None
        assert more is None, f"{block.name} printed {more!r} without a line of the page:\n{said}"

    def begin_page(self) -> None:
        """Have the Python blocks from here on begin without names of those before."""
        if self._python is not None:
            self._python.forget()

    def _here(self, text: str) -> str:
        return re.sub(
            rf"\b({'|'.join(self._ports)})\b", lambda match: str(self._ports[match[1]]), text
        )

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a reader who has installed vq and set nothing."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith("VQ_") or "JARS" in n}
        return {
            **kept,
            "PATH": f"{self.directory / '.bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(self.directory / ".bin"),
            "VQ_ZOOKEEPER": f"127.0.0.1:{self._ports['2181']}",
        }

    def _run_shell(self, path: Path, output: Path, until: str) -> int | None:
        with output.open("wb") as out:
            running = subprocess.Popen(
                ["/bin/sh", "-e", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environ,
                process_group=self._group.pid,
                pass_fds=self._server,
            )
        self.started.append(running)
        deadline = time.monotonic() + BLOCK_S
        while time.monotonic() < deadline:
            if until and missing_line(until, output.read_text()) is None:
                return 0
            ended = running.poll()  # once a turn: it may end at any moment
            if ended is not None:
                said = output.read_text()
                assert not until, f"{path} ended with {ended} before it said {until!r}:\n{said}"
                return ended
            time.sleep(0.02)
        return None

    def close(self) -> None:
        """End the interpreter; what runs in the background ends with the group."""
        python, self._python = self._python, None
        if python is not None:
            python.close()


class _Python:
    """One interpreter that runs blocks one after the other in one namespace."""

    def __init__(self, directory: Path, environ: Mapping[str, str], group: int) -> None:
        orders_in, orders_out = os.pipe()
        results_in, results_out = os.pipe()
        self._output = directory / ".python.out"
        with self._output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PYTHON, str(orders_in), str(results_out)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environ,
                pass_fds=(orders_in, results_out),
                process_group=group,
            )
        os.close(orders_in)
        os.close(results_out)
        self._orders = os.fdopen(orders_out, "w", buffering=1)
        self._results = os.fdopen(results_in)

    def run(self, path: Path, output: Path, expected: str) -> int | None:
        begin = self._output.stat().st_size
        self._orders.write(f"{path}\n")
        deadline = time.monotonic() + BLOCK_S
        entered = "input(" not in path.read_text()
        ended: int | None = None
        while ended is None and time.monotonic() < deadline:
            if select.select([self._results], [], [], 0.02)[0]:
                line = self._results.readline()
                ended = int(line) if line else -1
            output.write_bytes(self._output.read_bytes()[begin:])
            if not entered and missing_line(expected, output.read_text()) is None:
                entered = True
                assert self.process.stdin is not None
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()
        output.write_bytes(self._output.read_bytes()[begin:])
        return ended

    def forget(self) -> None:
        self._orders.write("\n")

    def close(self) -> None:
        self._orders.close()
        self._results.close()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.process.kill()
        self.process.wait()


class Machine:
    """A reader's machine: ports of its own, and a process group that ends with it."""

    def __init__(self) -> None:
        self._ports = dict(zip(_PORTS, _free_ports(), strict=True))
        self._group = subprocess.Popen(["sleep", "3600"], process_group=0)
        server = command_server(os.environ)
        self._server = [server.control] if server is not None else []
        self._terminals: list[Terminal] = []

    def terminal(self, directory: Path) -> Terminal:
        """Return a place for one document below ``directory``."""
        shim = directory / ".bin" / "vq"
        shim.parent.mkdir(parents=True)
        ports = f"--port {self._ports['8123']} --zookeeper-port {self._ports['2181']} --no-console"
        vq = (
            f"-IS {forked_command.__file__} {self._server[0]}" if self._server else "-m vq.cli.main"
        )
        shim.write_text(
            textwrap.dedent(f"""\
                #!/bin/sh
                if [ "$1" = standalone ]; then shift; set -- standalone {ports} "$@"; fi
                exec {sys.executable} {vq} "$@"
                """)
        )
        shim.chmod(0o755)
        (shim.parent / "spark-defaults.conf").write_text(_SPARK_DEFAULTS)
        self._terminals.append(Terminal(directory, self._ports, self._group, self._server))
        return self._terminals[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:  # the group also ends if a test's time is up here
            stack.callback(self._end_group)
            for terminal in self._terminals:
                stack.callback(terminal.close)

    def _end_group(self) -> None:
        group = self._group.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
        self._group.wait()
        deadline = time.monotonic() + STOP_S
        while _runs(group) and time.monotonic() < deadline:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        for process in [each for terminal in self._terminals for each in terminal.started]:
            process.wait()


def _runs(group: int) -> bool:
    """Return whether a process of the group is alive; zombies do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, found = stat.read_text().rsplit(")", 1)[1].split()[:3]
            if int(found) == group and state != "Z":
                return True
    return False


def _free_ports() -> list[int]:
    """Return free ports in a row.

    They stay free until the brokers listen: the kernel gives none of them to a connection or to a
    test that asks for any port, because those come from 32768 on.
    """
    while True:
        first = random.SystemRandom().randrange(*_PORT_RANGE)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            ports = list(range(first, first + len(_PORTS)))
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


def missing_line(expected: str, said: str) -> str | None:
    """Return the first line of ``expected`` that ``said`` lacks, None if it has all in order."""
    lines = iter([_plain(line) for line in said.splitlines()])
    for wanted in filter(_plain, expected.splitlines()):
        if _plain(wanted) != _ANY_LINES and not any(_matches(wanted, line) for line in lines):
            return wanted
    return None


def unexpected_line(expected: str, said: str) -> str | None:
    """Return the first line of ``said`` that is not in ``expected``, None if all are."""
    wanted = list(filter(_plain, expected.splitlines()))
    may_skip = False
    for line in filter(_plain, said.splitlines()):
        while wanted and _plain(wanted[0]) == _ANY_LINES:
            may_skip = bool(wanted.pop(0))
        if wanted and _matches(wanted[0], _plain(line)):
            may_skip = not wanted.pop(0)
        elif not may_skip:
            return line
    return None


def _matches(wanted: str, plain: str) -> bool:
    pattern = re.escape(_plain(wanted)).replace(_ANY_LINES, ".*")
    return re.fullmatch(pattern, plain) is not None


def _plain(line: str) -> str:
    return re.sub(r"[\s_─]+", " ", line).strip()
