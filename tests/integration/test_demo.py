"""``make demo``: a file carried, one that cannot be, and an end by ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow
DEMO = Path(__file__).parents[2] / "tools" / "demo.py"
LINES = 300


def demo(file: Path, scratch: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(DEMO), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
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


@pytest.mark.parametrize("step", ["lines of", "with 5 partitions"])
def test_interrupted_it_stops_everything_and_shows_no_traceback(tmp_path: Path, step: str) -> None:
    """While ZooKeeper starts, and while two producers send."""
    file = tmp_path / "input"
    file.write_bytes(b"a line of text\n" * 1_000_000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with demo(file, scratch) as running:
        assert running.stdout is not None
        while step not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == 130
    assert err == "interrupted; everything is stopped\n"
    assert list(scratch.iterdir()) == []
