"""``vq consume`` and ``vq produce`` as processes: signals, pipes that close, other encodings."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.cluster import ProcessCluster, consumed, drained
from support.zookeeper import forbidden

from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow
INPUT = b"".join(b"line %d\n" % number for number in range(500))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_consumer_that_is_interrupted_commits_what_it_printed(
    cluster: ProcessCluster, number: signal.Signals, code: int
) -> None:
    """A signal after some lines: its exit code, and the next member goes on behind them."""
    topic = f"interrupted-{code}"
    cluster.vq_json("topic", "create", topic)
    cluster.vq_json("produce", topic, stdin=b"1\n2\n")
    with subprocess.Popen(
        cluster.command("consume", topic, "--group", topic),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environ,
    ) as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        running.send_signal(number)
        assert running.wait(PROCESSES_WAIT_S) == code
    cluster.vq_json("produce", topic, stdin=b"3\n")
    assert drained(cluster, topic, topic, 1) == ["3"]


@pytest.mark.root
def test_a_consumer_with_process_id_1_commits_when_it_is_told_to_end(
    cluster: ProcessCluster,
) -> None:
    """As in a container: the kernel gives process 1 no signal that it does not handle."""
    cluster.vq_json("topic", "create", "contained")
    cluster.vq_json("produce", "contained", stdin=b"1\n2\n")
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", *cluster.command("consume", "contained", "--group", "c")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environ,
    ) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(2)]
        if lines[0] == b"" and running.stderr is not None:
            forbidden(running.stderr.read().decode())
        assert lines == [b"1\n", b"2\n"]
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert running.wait(PROCESSES_WAIT_S) == 143
    cluster.vq_json("produce", "contained", stdin=b"3\n")
    assert drained(cluster, "contained", "c", 1) == ["3"]


def test_a_producer_that_is_interrupted_says_what_became_of_the_lines(
    cluster: ProcessCluster,
) -> None:
    """ctrl-C while standard input is open: exit 130, and every line sent is accounted for."""
    cluster.vq_json("topic", "create", "stopped")
    with subprocess.Popen(
        cluster.command("produce", "stopped", "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environ,
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"1\n2\n")
        running.stdin.flush()
        assert consumed(cluster, "stopped", "s", 2) == ["1", "2"]
        running.send_signal(signal.SIGINT)
        told = json.loads(running.stdout.read())
        assert running.wait(PROCESSES_WAIT_S) == 130
    assert (told["sent"], told["acknowledged"], told["unknown"]) == (2, 2, 0)


def test_a_reader_that_goes_away_ends_the_consumer(cluster: ProcessCluster) -> None:
    """``vq consume | head -1`` ends by itself."""
    cluster.vq_json("topic", "create", "pipe")
    cluster.vq_json("produce", "pipe", stdin=INPUT)
    with subprocess.Popen(
        cluster.command("consume", "pipe", "--group", "p"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environ,
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.close()
        cluster.vq_json("produce", "pipe", stdin=INPUT)
        assert running.wait(PROCESSES_WAIT_S) == 141


def test_messages_are_printed_as_they_come(cluster: ProcessCluster) -> None:
    """A count larger than memory is no reason to wait for the last one: the first come first."""
    cluster.vq_json("topic", "create", "unbounded")
    cluster.vq_json("produce", "unbounded", stdin=b"".join(b"%d\n" % n for n in range(3_000)))
    with subprocess.Popen(
        cluster.command("message", "get", "unbounded", "0", "0", "--count", "1000000000", "--json"),
        stdout=subprocess.PIPE,
        env=cluster.environ,
    ) as running:
        assert running.stdout is not None
        contents = [json.loads(line)["content"] for line in running.stdout]
        assert running.wait(PROCESSES_WAIT_S) == 0
    assert contents == [str(n) for n in range(3_000)]


def test_a_stream_in_ascii_gets_escapes_instead_of_an_error(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "ascii")
    cluster.vq_json("produce", "ascii", stdin="zwölf\n".encode())
    environ = {**cluster.environ, "PYTHONIOENCODING": "ascii"}
    for more, expected in (([], b"zw\\xf6lf"), (["--json"], "zwölf".encode())):
        ended = subprocess.run(
            cluster.command("message", "get", "ascii", "0", "0", *more),
            env=environ,
            capture_output=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert expected in ended.stdout
