"""The programs in ``examples/`` work, and are no longer than the same for Kafka."""

import ast
import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import ProcessCluster

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@contextlib.contextmanager
def running(
    cluster: ProcessCluster, *command: str, end: signal.Signals = signal.SIGTERM
) -> Iterator["subprocess.Popen[str]"]:
    """A program of the examples; it is told to end, and must end well."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env={**cluster.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        try:
            yield program
            program.send_signal(end)
            out, _ = program.communicate(timeout=PROCESSES_WAIT_S)
            assert program.returncode in {0, -end}, out  # uvicorn shuts down, then repeats it
        finally:
            program.kill()


def said(cluster: ProcessCluster, *arguments: str, stdin: bytes = b"") -> str:
    done = cluster.vq(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def post(url: str, body: bytes) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(url, timeout=5).close()
        return True
    return False


@pytest.mark.slow
def test_the_service_stores_an_order_before_it_answers(processes: ProcessCluster) -> None:
    broker = processes.add("b1")
    said(processes, "topic", "create", "orders", "--partitions", "4")
    port = processes.hold_port()
    command = ["-m", "uvicorn", "fastapi_orders:app", "--port", str(port), "--log-level", "error"]
    with running(processes, *command):
        url = f"http://127.0.0.1:{port}"
        block_until(lambda: answers(f"{url}/docs"), timeout_s=PROCESSES_WAIT_S)
        code, text = post(f"{url}/orders/customer-7", b"two teas")
        assert code == 201, text
        place = json.loads(text)
        shown = "{partition} {offset} {key} {content}"
        assert said(processes, "consume", "orders", "--format", shown).split() == [
            str(place["partition"]), str(place["offset"]), "customer-7", "two", "teas",
        ]  # fmt: skip
        assert post(f"{url}/orders/c", b"x" * 5_000_000)[0] == 400, "certainly not stored"
        broker.signal(signal.SIGSTOP)
        try:
            code, text = post(f"{url}/orders/customer-7", b"one more")
        finally:
            broker.signal(signal.SIGCONT)
        assert code == 504, "perhaps stored"


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_pool_handles_all_in_order_of_the_key(
    processes: ProcessCluster, end: signal.Signals
) -> None:
    """And keeps the ones that fail; what it handled is committed at the end."""
    processes.add("b1")
    said(processes, "topic", "create", "resize", "--partitions", "4")
    said(processes, "topic", "create", "resize-failed", "--partitions", "1")
    lines = [f"{key}:picture {number} of {key}" for number in range(8) for key in "abcde"]
    lines[7:7] = ["a:no image"]
    sent = "".join(f"{line}\n" for line in lines).encode()
    said(processes, "produce", "resize", "--key-separator", ":", stdin=sent)
    resized: dict[str, list[int]] = {key: [] for key in "abcde"}
    with running(processes, "worker_pool.py", "4", end=end) as pool:
        assert pool.stdout is not None
        for line in pool.stdout:
            if found := re.fullmatch(r"resized picture (\d) of (\w)\n", line):
                resized[found[2]].append(int(found[1]))
            if sum(map(len, resized.values())) == 40:
                break
    assert resized == {key: list(range(8)) for key in "abcde"}
    failed = said(processes, "consume", "resize-failed", "--format", "{headers[error]}: {content}")
    assert failed == "b'no image' is no picture: no image\n"
    lag = processes.vq_json("group", "describe", "resizers")
    assert [each["lag_bytes"] for each in lag["partitions"]] == [0] * 4


@pytest.mark.slow
def test_the_reader_prints_what_has_the_tag(processes: ProcessCluster) -> None:
    processes.add("b1")
    said(processes, "topic", "create", "events", "--partitions", "2")
    for tag in ("new", "old", "new"):
        said(processes, "produce", "events", "--tag", tag, stdin=f"is {tag}\n".encode())
    command = [sys.executable, str(EXAMPLES / "read_by_time_and_tag.py"), "events", "new", "5"]
    done = subprocess.run(
        command, env=processes.environ, capture_output=True, text=True, timeout=PROCESSES_WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rpartition(" b")[2] for line in done.stdout.splitlines()] == ["'is new'"] * 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_no_longer_than_for_kafka(name: str) -> None:
    assert code_lines(EXAMPLES / name) <= code_lines(EXAMPLES / "confluent_kafka" / name)


def code_lines(path: Path) -> int:
    """Count the lines without comments, documentation and empty lines."""
    module = ast.parse(path.read_text())
    assert ast.get_docstring(module)
    module.body = module.body[1:]
    return len(ast.unparse(module).replace("\n\n", "\n").splitlines())


def test_each_program_is_told_and_has_its_pair() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert [name for name in PROGRAMS if f"[{name}]({name})" not in page] == []
    assert sorted(path.name for path in (EXAMPLES / "confluent_kafka").glob("*.py")) == PROGRAMS
    assert len(PROGRAMS) == 3
