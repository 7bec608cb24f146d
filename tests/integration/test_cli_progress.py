"""``vq produce`` on a real terminal: its progress, and what ctrl-C tells.

keyboard ─▶ pseudo-terminal ─▶ vq produce ─▶ b1 (a process)        progress ─▶ the same terminal
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import click
import pytest
from support.cluster import ProcessCluster, process_cluster
from support.terminal import CTRL_C, OnTerminal
from support.zookeeper import ZooKeeperService

from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow
DRAWN = "sending to"


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """One broker for the whole module; each test has a topic of its own."""
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts) as made:
        made.add("b1")
        yield made


def produce(
    cluster: ProcessCluster,
    topic: str,
    *options: str,
    stdin: int | None = subprocess.PIPE,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = None,
) -> OnTerminal:
    """Start ``vq produce`` to a new topic; by default only its standard error is the terminal."""
    cluster.vq_json("topic", "create", topic)
    command = cluster.command("produce", topic, *options)
    # What is not sent when the command ends is not waited for, whatever a producer does by default.
    environ = {**cluster.environ, "VQ_PRODUCER_EXIT_FLUSH_S": "600"}
    return OnTerminal(command, environ, stdin=stdin, stdout=stdout, stderr=stderr)


def write(running: OnTerminal, lines: int) -> None:
    """Give the command some more lines."""
    assert running.process.stdin is not None
    running.process.stdin.write(b"x\n" * lines)
    running.process.stdin.flush()


def summary(running: OnTerminal) -> dict[str, str]:
    """Close the input, read standard output to its end; return the fields of the summary."""
    assert running.process.stdin is not None
    assert running.process.stdout is not None
    running.process.stdin.close()
    text = running.process.stdout.read().decode()
    assert "\x1b" not in text
    return dict(line.split("\t") for line in text.splitlines())


def test_progress_is_drawn_follows_the_lines_and_goes_away(cluster: ProcessCluster) -> None:
    with produce(cluster, "drawn", "--max", "12") as running:
        write(running, 5)
        running.until(lambda: any("5/12" in line for line in running.screen))
        write(running, 7)
        running.until(lambda: "12/12" in running.raw)
        told = summary(running)
        assert running.ended() == 0
    assert (told["sent"], told["acknowledged"]) == ("12", "12")
    assert running.screen == [], "the line is erased; nothing else was written"
    assert running.raw.rstrip().endswith("\x1b[2K"), "and the cursor stands where it stood"
    assert running.raw.rindex("\x1b[?25h") > running.raw.rindex("\x1b[?25l"), "and is shown"


def test_progress_needs_no_number_of_lines(cluster: ProcessCluster) -> None:
    with produce(cluster, "endless") as running:
        write(running, 3)
        running.until(lambda: any("3/?" in line for line in running.screen))
        assert summary(running)["acknowledged"] == "3"
        assert running.ended() == 0
    assert running.screen == []


def test_progress_of_a_file_has_a_total_and_fits_into_80_columns(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """Also with a long name of a topic, and with place for the ^C that a terminal adds."""
    topic, lines = "n" * 72, tmp_path / "lines"
    lines.write_bytes(b"x\n" * 20)
    cluster.vq_json("topic", "create", topic)
    command = cluster.command("produce", topic, str(lines), "--rate", "20")
    with OnTerminal(command, cluster.environ, columns=80) as running:
        running.until(lambda: "100%" in running.raw)
        assert running.ended() == 0
    pictures = click.unstyle(running.raw).replace("\r", "\n").splitlines()
    drawn = [line for line in pictures if DRAWN in line]
    assert all("%" in line and "..." in line for line in drawn)
    assert max(map(len, drawn)) <= 76


@pytest.mark.parametrize(
    ("name", "options", "streams"),
    [
        ("json", ("--json",), {}),
        ("stderr-is-a-pipe", (), {"stdout": None, "stderr": subprocess.PIPE}),
        ("lines-are-typed", (), {"stdin": None}),
    ],
)
def test_no_progress_where_it_would_disturb(
    cluster: ProcessCluster, name: str, options: tuple[str, ...], streams: dict[str, int | None]
) -> None:
    """A pipe gets results only; a document is a document; typed lines stay readable."""
    with produce(cluster, name, *options, **streams) as running:
        if running.process.stdin is None:
            running.enter("typed\n\x04")  # ctrl-D ends the input
        else:
            write(running, 1)
            running.process.stdin.close()
        assert running.ended() == 0
        if running.process.stderr is not None:
            assert running.process.stderr.read() == b""
    assert DRAWN not in running.raw
    assert "\x1b" not in running.raw


def test_ctrl_c_tells_what_became_of_the_lines(cluster: ProcessCluster) -> None:
    with produce(cluster, "interrupted") as running:
        write(running, 4)
        running.until(lambda: any("4/?" in line for line in running.screen))
        running.enter(CTRL_C)
        assert running.ended() == 130
        told = summary(running)
    assert (told["sent"], told["acknowledged"], told["unknown"]) == ("4", "4", "0")
    lines = [line for line in running.screen if line]
    assert lines[0] == "interrupted after 4 lines"
    assert lines[1].startswith("waiting for the outcome of those sent")
    assert lines[2:] == ["interrupted"]
    assert max(map(len, lines)) < 80


def test_a_second_ctrl_c_ends_at_once_and_tells_what_is_unknown(cluster: ProcessCluster) -> None:
    """The broker does not answer: the first ctrl-C waits for the outcome of what was sent."""
    broker = cluster.brokers["b1"]
    with produce(cluster, "given-up", "--timeout", "600") as running:
        write(running, 2)
        running.until(lambda: any("2/?" in line for line in running.screen))
        broker.signal(signal.SIGSTOP)
        try:
            write(running, 3)
            assert running.process.stdin is not None
            pipe = running.process.stdin
            running.until(lambda: not _unread(pipe))
            running.enter(CTRL_C)
            running.until(lambda: "ctrl-C again ends at once" in "".join(running.screen))
            running.enter(CTRL_C)
            assert running.ended() == 130
            told = summary(running)
        finally:
            broker.signal(signal.SIGCONT)
    assert told["acknowledged"] == "2"
    assert 2 <= int(told["sent"]) <= 5, "those that it read from the pipe and sent"
    assert f"interrupted after {told['sent']} lines" in "".join(running.screen)
    assert int(told["unknown"]) == int(told["sent"]) - 2


def test_a_second_ctrl_c_may_come_while_the_command_still_says_so(cluster: ProcessCluster) -> None:
    """Its standard error is full, so it is still writing about the first one."""
    broker = cluster.brokers["b1"]
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(theirs, bytes(1 << 12))
    os.set_blocking(theirs, True)
    with (
        open(ours, "rb") as errors,
        ThreadPoolExecutor(1) as reader,
        produce(cluster, "said", "--timeout", "600", stderr=theirs) as running,
    ):
        os.close(theirs)
        write(running, 2)
        assert running.process.stdin is not None
        pipe = running.process.stdin
        block_until(lambda: not _unread(pipe), "it has read the lines")
        broker.signal(signal.SIGSTOP)
        try:
            write(running, 3)
            block_until(lambda: not _unread(pipe), "it has read more lines")
            running.process.send_signal(signal.SIGINT)
            block_until(lambda: _waits_for(2, running.process.pid), "it writes to standard error")
            running.process.send_signal(signal.SIGINT)
            told = reader.submit(errors.read)
            assert running.ended() == 130
        finally:
            broker.signal(signal.SIGCONT)
    assert b"line(s) without an outcome" in told.result(), "it tells what is unknown"


def _waits_for(descriptor: int, pid: int) -> bool:
    """Say whether the main thread of a process is in a system call about a descriptor."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == [hex(descriptor)]


def _unread(pipe: IO[bytes]) -> int:
    """Return how many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_the_status_of_a_broker_that_is_down_stays_a_table_at_80_columns(
    cluster: ProcessCluster,
) -> None:
    """Why it does not answer is a line below."""
    broker = cluster.brokers["b1"]
    environ = {**cluster.environ, "VQ_CLIENT_CONNECT_TIMEOUT_S": "0.2"}
    broker.signal(signal.SIGSTOP)
    try:
        with OnTerminal(
            cluster.command("cluster", "status"), environ, stdout=None, columns=80
        ) as running:
            assert running.ended() == 1
    finally:
        broker.signal(signal.SIGCONT)
    head = next(line for line in running.screen if line.startswith("group"))
    assert head.split()[-2:] == ["lag", "answers"]
    assert any(
        line.startswith("b1") and line.endswith("no") for line in map(str.rstrip, running.screen)
    )
    assert any("b1/n1 does not answer: Unreachable" in line for line in running.screen)
