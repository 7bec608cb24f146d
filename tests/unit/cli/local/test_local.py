"""``vq local``: a queue that nobody has open, and one that is served."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import cells, refused, run_command

from vq.cli.local.local import local
from vq.errors import Unreachable
from vq.local import LocalQueue, LocalQueueClient, LocalQueueConfig, LocalQueueServer
from vq.model import Message
from vq.testing.waiting import PROCESSES_WAIT_S, block_until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Have a queue with a message in line, one that failed and one that is delayed."""
    path = tmp_path / "jobs"
    with LocalQueue(path, LocalQueueConfig(retries=0, retry_s=3600.0)) as queue:
        queue.put(b"failed")
        item = queue.take(0)
        assert item is not None
        queue.fail(item)
        queue.put(Message("t", b"ready \x1b", key=b"\0k"), priority=1)
        queue.put(b"delayed", delay_s=7200)
    return path


def test_messages_are_listed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(local, ["list", str(directory)], capsys)
    assert code == 0
    rows = cells(out)
    assert [(row["content"], row["state"], row["attempts"]) for row in rows] == [
        ("ready \\x1b", "ready", "0"),
        ("failed", "later", "1"),
        ("delayed", "later", "0"),
    ]
    assert rows[0]["key"] == "0x006b"
    arguments = ["list", str(directory), "--state", "later", "--limit", "1", "--json"]
    _, out, _ = run_command(local, arguments, capsys)
    [found] = json.loads(out)
    assert (found["content"], found["topic"], found["attempts"]) == ("failed", "jobs", 1)
    assert found["due_s"] > found["sent_s"] + 3500


def test_a_message_is_put_into_a_queue_that_is_open_or_not(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["put", str(directory), "r\udce9 1", "--key", "k", "--tag", "t"]
    once = [*arguments, "--priority", "2", "--idempotency-key", "job 1"]
    _, out, _ = run_command(local, once, capsys)
    assert out == "put 1 message\n"
    with LocalQueue(directory) as queue, LocalQueueServer(queue):
        _, out, _ = run_command(local, [*once, "--json"], capsys)
        assert json.loads(out) == {"put": False}
        _, out, _ = run_command(local, [*arguments, "--delay", "2h", "--json"], capsys)
        assert json.loads(out) == {"put": True}
        item = queue.take(0)
        assert item is not None
        assert (item.content, item.priority, item.attempts) == (b"r\xe9 1", 2, 1)
        assert (item.message.key, item.message.tag) == ("k", "t")
        assert queue.metrics().later == 3


def test_standard_input_is_put_as_it_is_and_too_much_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["put", str(directory), "-", "--priority", "2"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bytes(1024 * 1024 + 1))))
    assert "1048577 bytes" in refused(local, arguments, code=1)["message"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\xff")))
    assert run_command(local, arguments, capsys)[0] == 0
    with LocalQueue(directory) as queue:
        item = queue.take(0)
        assert item is not None
        assert item.content == b"a\nb\xff"


def test_messages_are_requeued_and_purged(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_command(local, ["requeue", str(directory)], capsys)
    assert out == "requeued 2 message(s)\n"
    with LocalQueue(directory) as queue:
        block_until(lambda: queue.metrics().ready == 3)
    _, out, err = run_command(local, ["purge", str(directory)], capsys)
    assert (out, "add --yes" in err) == ("plan: drop 3 message(s)\n", True)
    _, out, _ = run_command(local, ["purge", str(directory), "--yes", "--json"], capsys)
    assert json.loads(out) == {"waiting": 3, "purged": 3}
    _, _, err = run_command(local, ["list", str(directory)], capsys)
    assert err.endswith("has no message\n")
    _, _, err = run_command(local, ["list", str(directory), "--state", "later"], capsys)
    assert err.endswith("has no message that is 'later'\n")


def test_a_served_queue_is_asked_and_one_in_use_is_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalQueue(directory) as queue:
        error = refused(local, ["list", str(directory)], code=1)
        assert str(os.getpid()) in error["message"]
        with LocalQueueServer(queue):
            _, out, _ = run_command(local, ["requeue", str(directory)], capsys)
            assert out == "requeued 2 message(s)\n"
            block_until(lambda: queue.metrics().ready == 3)


def test_a_directory_without_a_queue_is_refused_and_left_alone(tmp_path: Path) -> None:
    error = refused(local, ["list", str(tmp_path / "none")], code=2)
    assert "no local queue" in error["message"]
    assert "vq local serve" in error["message"]
    assert not (tmp_path / "none").exists()


def test_what_was_set_aside_is_listed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run_command(local, ["list", str(directory), "--damaged"], capsys)
    assert "nothing" in err
    with LocalQueue(directory) as queue:
        for _ in range(2):  # the end of a log is verified by its open
            queue.put(bytes(300_000), priority=1)
    (block,) = (each for each in (directory / "lane-1").iterdir() if b"ready" in each.read_bytes())
    block.write_bytes(block.read_bytes().replace(b"ready", b"rEady"))
    _, out, err = run_command(local, ["list", str(directory)], capsys)
    assert "x1b" not in out
    assert "1 message(s) could not be read; --damaged lists them" in err
    with LocalQueue(directory) as queue, LocalQueueServer(queue):
        _, out, _ = run_command(local, ["list", str(directory), "--damaged", "--json"], capsys)
    [found] = json.loads(out)
    assert (found["log"], found["number"], found["messages"]) == ("lane-1", 0, 1)
    assert b"rEady" in Path(found["path"]).read_bytes()


def test_serve_serves_until_it_is_told_to_stop(directory: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "vq", "local", "serve", directory])
    try:

        def served() -> LocalQueueClient | None:
            assert process.poll() is None
            try:
                return LocalQueueClient(directory)
            except Unreachable:
                return None

        block_until(lambda: (client := served()) is not None and client.close() is None)
        with LocalQueueClient(directory) as client:
            item = client.take(PROCESSES_WAIT_S)
            assert item is not None
            assert item.content == b"ready \x1b"
        process.send_signal(signal.SIGTERM)
        process.wait(PROCESSES_WAIT_S)
    finally:
        process.kill()
        process.wait()
    with LocalQueue(directory) as queue:
        assert len(queue) == 3


def test_serve_says_that_it_has_made_the_queue(
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A misspelt directory is one without a queue."""

    def interrupted(_: LocalQueue) -> LocalQueueServer:
        raise KeyboardInterrupt

    monkeypatch.setattr("vq.cli.local.local.LocalQueueServer", interrupted)
    for place, is_made in ((directory, False), (tmp_path / "misspelt", True)):
        code, _, err = run_command(local, ["serve", str(place)], capsys)
        assert code == 130
        assert (f"made a new queue in {place}" in err) == is_made
