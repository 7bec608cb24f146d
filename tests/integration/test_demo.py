"""``make demo``: what it says of a file it cannot carry, and how it ends when interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
DEMO = Path(__file__).parents[2] / "tools" / "demo.py"


def demo(file: Path, scratch: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(DEMO), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
        text=True,
    )


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"", "has no lines")])
def test_a_file_without_lines_is_refused_by_name(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "input"
    if content is not None:
        file.write_bytes(content)
    with demo(file, tmp_path) as running:
        out, err = running.communicate(timeout=60)
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
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err == "interrupted; everything is stopped\n"
    assert list(scratch.iterdir()) == []
