"""``vq worker`` with a real cluster: tasks, and processes that die, hang, throw and stop."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.blocking import NAMES, config_of
from support.cluster import ProcessCluster
from support.topics import create_topic

import vq
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

CODE = """
import json, os, time
import vq

def note(*words):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(json.dumps([os.getpid(), *words]) + "\\n")

@vq.task(topic=os.environ["TOPIC"])
def work(number: int, how: str = "") -> None:
    note("begin", number)
    if how == "die":
        os.kill(os.getpid(), 9)
    if how == "hang":
        time.sleep(600)
    if how == "wait":
        while not os.path.exists(os.environ["NOTES"] + ".go"):
            time.sleep(0.02)
    if how == "slow":
        time.sleep(1.3)
    if how == "throw" :
        raise ValueError(number)
    note("done", number)

@vq.task(topic=os.environ["TOPIC"], every_s=1.0)
async def tick() -> None:
    note("tick")
"""


class Worker:
    """A command that runs, and what its tasks note."""

    def __init__(
        self,
        cluster: ProcessCluster,
        directory: Path,
        topic: str,
        *options: str,
        **settings: str,
    ) -> None:
        self.notes_path = directory / "notes"
        self.log = directory / f"log-{len(list(directory.glob('log-*')))}"
        command = cluster.command("worker", "own_tasks", "--group", topic, *options)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={
                    **cluster.environ,
                    "NOTES": str(self.notes_path),
                    "TOPIC": topic,
                    **settings,
                },
                stdout=log,
                stderr=log,
            )

    def notes(self, *words: object) -> list[list[Any]]:
        """Return what the tasks noted that begins so: process id, words."""
        try:
            lines = self.notes_path.read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(each) for each in lines]
        return [each for each in found if each[1 : 1 + len(words)] == list(words)]

    def wait(self, check: Any) -> None:
        block_until(check, self)

    def until_ready(self) -> None:
        self.wait(lambda: "processes handle own_tasks" in self.log.read_text())

    def __repr__(self) -> str:
        return f"{self.notes()}\n{self.log.read_text()}"

    def stop(self, *signals: int) -> int:
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(PROCESSES_WAIT_S)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "own_tasks.py").write_text(CODE)
    return tmp_path


@pytest.fixture
def topic(cluster: ProcessCluster) -> str:
    """It has the name of the group, too."""
    name = f"jobs-{next(NAMES)}"
    create_topic(cluster, name, partitions=2)
    return name


@contextlib.contextmanager
def worker(
    cluster: ProcessCluster, directory: Path, topic: str, *options: str, **settings: str
) -> Iterator[Worker]:
    made = Worker(cluster, directory, topic, *options, **settings)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.stop(signal.SIGTERM, signal.SIGTERM)


@pytest.fixture
def work(cluster: ProcessCluster, topic: str) -> Iterator[Any]:
    """The task as who sends it has it."""

    @vq.task(topic=topic)
    def work(number: int, how: str = "") -> None: ...

    with vq.MessageFactory(config_of(cluster)) as factory, factory.create_producer() as producer:
        vq.Task.use(producer)
        yield work
        vq.Task.use(None)


def letters(cluster: ProcessCluster, group: str) -> int:
    """Return how many dead letters a group has."""
    found = cluster.vq_json("dlq", "list")
    return sum(each["open"] for each in found if each["group"] == group)


def left(cluster: ProcessCluster, group: str) -> tuple[int, int]:
    """Return how many messages of a shared group are open, and how many of them members hold."""
    told = cluster.vq_json("group", "shared", group)["partitions"]
    return sum(each["open"] for each in told), sum(each["held"] for each in told)


def holder_of(cluster: ProcessCluster, group: str) -> int:
    """Return the process that sends the periodic tasks of a group; 0: none does."""
    path = f"/vq/{cluster.name}/leases/worker.{group}/holder"
    found = cluster.look(lambda client: client.get(path) if client.exists(path) else None)
    return 0 if found is None else int(json.loads(found[0])["holder"].rpartition("-")[2])


def test_tasks_are_handled_whatever_happens_to_their_processes(
    cluster: ProcessCluster, directory: Path, topic: str, work: Any
) -> None:
    """One kills its process each time, one hangs, one throws: all three become dead letters, all
    others are done. A periodic task is sent once for each period, also after its sender was killed.
    """
    options = ("--processes", "2", "--workers", "2", "--time-limit", "1.5", "--max-attempts", "2")
    options += ("--on-failure", "dead-letter")
    begun_s = time.monotonic()
    # What a killed process had comes again when its session has ended.
    with worker(cluster, directory, topic, *options, VQ_CLIENT_SESSION_TIMEOUT_S="3") as run:
        run.until_ready()
        for number in range(20):
            work.send(number, {5: "die", 11: "hang", 17: "throw"}.get(number, ""))
        good = set(range(20)) - {5, 11, 17}
        run.wait(lambda: {each[2] for each in run.notes("done")} == good)
        run.wait(lambda: letters(cluster, topic) == 3)
        for number in (5, 11, 17):
            assert len(run.notes("begin", number)) >= 2
        assert len(run.notes("begin", 5)) <= 3
        holder = holder_of(cluster, topic)
        os.kill(holder, signal.SIGKILL)
        run.wait(lambda: holder_of(cluster, topic) not in {0, holder})
        before = len(run.notes("tick"))
        run.wait(lambda: len(run.notes("tick")) > before + 1)
        assert len(run.notes("tick")) <= time.monotonic() - begun_s + 1
        assert run.stop(signal.SIGTERM) == 0, run


def test_a_stop_finishes_and_a_second_one_leaves_at_once(
    cluster: ProcessCluster, directory: Path, topic: str, work: Any
) -> None:
    """Nothing that was handled comes again, and what was in hand does."""
    with worker(cluster, directory, topic, "--workers", "2") as run:
        run.until_ready()
        for number in range(4):
            work.send(number)
        run.wait(lambda: len(run.notes("done")) == 4)
        work.send(10, "wait")
        run.wait(lambda: run.notes("begin", 10))
        run.process.send_signal(signal.SIGTERM)
        run.wait(lambda: "handlers finish" in run.log.read_text())
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PROCESSES_WAIT_S) == 1
        assert not run.notes("done", 10)
    with worker(cluster, directory, topic, "--workers", "2") as run:
        run.wait(lambda: len(run.notes("begin", 10)) == 2)
        run.process.send_signal(signal.SIGTERM)
        (directory / "notes.go").touch()
        assert run.process.wait(PROCESSES_WAIT_S) == 0, run
        assert [each[2] for each in run.notes("done")].count(10) == 1
        for number in range(4):
            assert len(run.notes("begin", number)) == 1


def test_a_shared_group_has_all_that_a_worker_does(
    cluster: ProcessCluster, directory: Path, topic: str, work: Any
) -> None:
    """One message kills its process each time, one throws, one takes longer than its lease, and is
    with one handler all the same. A stop finishes, a second one gives leases back at once.
    """
    options = ("--model", "shared", "--processes", "2", "--workers", "2", "--max-attempts", "2")
    with worker(cluster, directory, topic, *options, VQ_CONSUMER_LEASE_S="0.5") as run:
        run.until_ready()
        for number in range(12):
            work.send(number, "die" if number == 5 else "")
        good = set(range(12)) - {5}
        run.wait(lambda: {each[2] for each in run.notes("done")} == good)
        run.wait(lambda: letters(cluster, topic) == 1)
        assert 2 <= len(run.notes("begin", 5)) <= 3
        # Only now: a process that dies between a dead letter and what it says of that leaves the
        # message held for 20 s.
        work.send(19, "throw")
        run.wait(lambda: letters(cluster, topic) == 2)
        work.send(20, "slow")
        run.wait(lambda: run.notes("done", 20))
        run.wait(lambda: left(cluster, topic) == (0, 0))
        assert run.stop(signal.SIGTERM) == 0, run
        assert len(run.notes("begin", 20)) == 1
    options = ("--model", "shared", "--workers", "2", "--time-limit", "60")
    with worker(cluster, directory, topic, *options, VQ_CONSUMER_LEASE_S="600") as run:
        run.until_ready()
        work.send(30, "wait")
        run.wait(lambda: run.notes("begin", 30))
        run.process.send_signal(signal.SIGTERM)
        run.wait(lambda: "handlers finish" in run.log.read_text())
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(PROCESSES_WAIT_S) == 1
        assert not run.notes("done", 30)
    assert left(cluster, topic) == (1, 0)


def test_handlers_that_are_not_there_are_a_wrong_usage(
    cluster: ProcessCluster, directory: Path
) -> None:
    command = cluster.command("worker", "own_tasks:nothing", "--group", "g", "--processes", "2")
    ended = subprocess.run(
        command,
        cwd=directory,
        env={**cluster.environ, "TOPIC": "t"},
        capture_output=True,
        timeout=PROCESSES_WAIT_S,
        check=False,
    )
    assert ended.returncode == 2
    assert b"has no attribute 'nothing'" in ended.stderr.splitlines()[-1]
