"""``make demo``: a file carried, one that cannot be, and an end by ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow
DEMO = Path(__file__).parents[2] / "tools" / "demo.py"
LINES = 300


def demo(file: Path, scratch: Path, *flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(DEMO), *flags, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "TMPDIR": str(scratch),
            "PYTHONUNBUFFERED": "1",
            "VQ_BROKER_SESSION_TIMEOUT_S": "2",  # of a broker that is killed
        },
        text=True,
    )


@pytest.mark.usefixtures("zookeeper")  # where there is none, the demo has none either
def test_every_line_is_accounted_for(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number % 7}\n\n" for number in range(LINES // 2)))
    with demo(file, tmp_path) as running:
        out, err = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == 0, out + err
    assert out.splitlines()[-1] == "every line arrived exactly once"
    assert f"{LINES} lines of" in out
    assert "consumer-2 has its partitions" in out


@pytest.mark.usefixtures("zookeeper")
def test_with_copies_a_master_is_killed_and_every_line_is_accounted_for(tmp_path: Path) -> None:
    """The lines wait for the other node, and the killed one comes back."""
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number}\n" for number in range(LINES)))
    with demo(file, tmp_path, "--replicas", "2") as running:
        out, err = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == 0, out + err
    assert out.splitlines()[-1] == "every line arrived exactly once"
    steps = ("b1/n1 is killed (kill -9)", "b1/n2 leads in epoch 2", "b1/n1 follows b1/n2")
    at = [out.find(step) for step in steps]
    assert -1 < at[0] < at[1] < at[2], out


def test_it_says_how_many_copies_there_may_be(tmp_path: Path) -> None:
    with demo(DEMO, tmp_path, "--replicas", "0") as running:
        out, err = running.communicate(timeout=PROCESSES_WAIT_S)
    assert (running.returncode, out, err) == (2, "", "replicas = 0 is outside [1, 7]\n")


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"", "has no lines")])
def test_a_file_without_lines_is_refused_by_name(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "input"
    if content is not None:
        file.write_bytes(content)
    with demo(file, tmp_path) as running:
        out, err = running.communicate(timeout=PROCESSES_WAIT_S)
    assert (running.returncode, out) == (2, "")
    assert said in err
    assert str(file) in err


@pytest.mark.parametrize(
    ("step", "number", "code"),
    [
        pytest.param("lines of", signal.SIGINT, 130, marks=pytest.mark.long),
        ("lines of", signal.SIGTERM, 143),
        ("with 5 partitions", signal.SIGINT, 130),
    ],
)
def test_interrupted_it_stops_everything_and_shows_no_traceback(
    tmp_path: Path, step: str, number: signal.Signals, code: int
) -> None:
    """While ZooKeeper starts, and while two producers send; nothing stays behind."""
    file = tmp_path / "input"
    file.write_bytes(b"a line of text\n" * 500_000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with demo(file, scratch) as running:
        assert running.stdout is not None
        while step not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(0.5)
        running.send_signal(number)
        _, err = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == code
    assert err == "interrupted; everything is stopped\n"
    assert list(scratch.iterdir()) == []
