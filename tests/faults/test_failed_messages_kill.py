"""kill -9 at every step of what becomes of a failed message, and of a delayed one.

    member:  listener fails ── copy ── broker ── answer ── commit        retry topic, dead letter,
    command: note ── batch ── answer ── note                             failed file and its run
    broker:  note ── flush ── batch to the partition ── note             a message that is due
               ✗ the process kills itself where such a step begins or ends

Goal: the next process goes on with what is there: nothing is lost, and a message comes twice only
where a member dies between storing a copy and its commit. The short form dies at one step of each.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from support.cases import case
from support.cluster import ProcessCluster
from support.faults import client_of, make_rng, read_back, times

import vq
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
SENT = ["0", "bad1", "2", "3", "bad4", "5"]
BAD = {"bad1", "bad4"}
COPY = "vq.client.copies:put_batch"
COMMIT = "vq.coordination.groups.zookeeper_offsets:ZooKeeperOffsets.commit"
RECORD = "vq.client.failed_file:write_all"
RECORDED = "vq.client.failed_file:FailedFile.add"
NOTE = "vq.client.failed_file:FailedFile.note"
BATCH = "vq.operations.messages.single_batches:put_batch"
TIMER = "vq.broker.timers.timer:Timer.append"
OUTBOX = "vq.broker.journal.outbox:Outbox.send"


def program(point: str, module: str, *arguments: str) -> list[str]:
    """Return the command line of a program that dies at a point; "": of one that does not."""
    run = ["-m", "support.killed", point, module] if point else ["-m", module]
    return [sys.executable, *run, *arguments]


def chosen(points: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the points of this run: one of them, or all in the long form."""
    return make_rng().sample(points, times(1, len(points)))


@dataclass
class Flow:
    """A group and its topic, and processes that die there."""

    cluster: ProcessCluster
    directory: Path
    number: int
    running: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the topic and the group."""
        return f"t{self.number}"

    @property
    def environ(self) -> dict[str, str]:
        """Of every process: failed files are here."""
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        return {
            **self.cluster.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "VQ_FAILED_DIR": str(self.directory / "failed"),
        }

    def begin(self) -> None:
        """Make the topic, and send the messages."""
        self.cluster.vq_json("topic", "create", self.name, "--partitions", "1")
        lines = "".join(f"{each}\n" for each in SENT).encode()
        assert self.cluster.vq("produce", self.name, stdin=lines).returncode == 0

    def member(self, member: str, point: str = "", **settings: Any) -> "subprocess.Popen[bytes]":
        """Start a member; what it has done is in a file of its name."""
        given = {"group": self.name, "member_id": member, "mode": "concurrent", **settings}
        where = (self.cluster.zookeeper, self.cluster.name, self.name, str(os.getpid()))
        command = program(point, "support.failing_process", *where, json.dumps(given))
        with self.output(member).open("ab") as output, self.output("log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, env=self.environ
            )
        self.running.append(process)
        return process

    def stop(self) -> None:
        """End all members."""
        for process in self.running:
            process.kill()
            process.wait()

    def output(self, member: str) -> Path:
        """Return where a member writes what it has done."""
        return self.directory / f"{self.name}-{member}.txt"

    def done(self, *members: str) -> Counter[str]:
        """Return how often each message was done by some members."""
        paths = [self.output(each) for each in members]
        texts = [path.read_text() for path in paths if path.exists()]
        return Counter(line for text in texts for line in text.split())

    def command(self, *arguments: str, point: str = "") -> "subprocess.CompletedProcess[bytes]":
        """Run a command in a process of its own."""
        return subprocess.run(
            program(point, "vq.cli.main", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environ,
            timeout=PROCESSES_WAIT_S,
            check=False,
        )

    def failed(self) -> list[dict[str, Any]]:
        """Return what the failed files have."""
        ended = self.command("group", "failed", "list", self.name, "--json")
        assert ended.returncode == 0, ended.stderr
        return list(json.loads(ended.stdout))

    def wait_no_lag(self) -> None:
        """Wait until the group has committed everything."""

        def lag() -> int | None:
            found = self.cluster.vq_json("group", "describe", self.name)
            return sum(each["lag_messages"] or 0 for each in found["partitions"])

        block_until(lambda: lag() == 0, f"{self.name} has no lag")


@pytest.fixture
def flows(processes: ProcessCluster, tmp_path: Path) -> Iterator[Iterator[Flow]]:
    """Flows on one broker, as many as are asked for."""
    processes.add("b1")
    made: list[Flow] = []

    def each() -> Iterator[Flow]:
        while True:
            made.append(Flow(processes, tmp_path, len(made)))
            made[-1].begin()
            yield made[-1]

    yield each()
    for flow in made:
        flow.stop()


def died(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process has come to its point."""
    assert process.wait(PROCESSES_WAIT_S) == -signal.SIGKILL, "it never came to its point"


#: Where a member dies that copies, and how often a message may then be copied.
COPIES = [
    (f"{COPY}:before:1", 1),
    (f"{COPY}:after:1", 2),
    (f"{COPY}:after:2", 2),
    (f"{COMMIT}:before:2", 2),
    (f"{COMMIT}:after:2", 2),
]


def test_a_member_dies_at_a_step_of_a_retry(flows: Iterator[Flow]) -> None:
    """The message comes again, once; twice if its copy was stored and not committed."""
    settings = {"max_attempts": 1, "retry_schedule": [0.5, 0.5], "on_failure": "retry-topic"}
    for (point, most), flow in zip(chosen(COPIES), flows, strict=False):
        with case(point):
            died(flow.member("dies", point, tries=1, **settings))
            flow.member("lives", tries=1, **settings)
            block_until(lambda f=flow: f.done("dies", "lives").keys() == {*SENT}, flow.name)
            flow.wait_no_lag()
            done = flow.done("dies", "lives")
            assert max(done[each] for each in BAD) <= most
            flow.stop()


@pytest.mark.long
def test_a_member_dies_at_a_step_of_a_dead_letter(flows: Iterator[Flow]) -> None:
    """A message has a letter; two if the first was stored and not committed."""
    settings = {"max_attempts": 1, "on_failure": "dead-letter"}
    for (point, most), flow in zip(chosen(COPIES), flows, strict=False):
        with case(point), client_of(flow.cluster) as factory:
            died(flow.member("dies", point, tries=99, **settings))
            flow.member("lives", tries=99, **settings)
            block_until(lambda f=flow: f.done("dies", "lives").keys() == {*SENT} - BAD, flow.name)
            flow.wait_no_lag()
            letters: Counter[str] = Counter()
            with contextlib.suppress(vq.errors.UnknownTopic):
                for letter in factory.admin.read_dead_letters(flow.name):
                    letters[letter.message.content.decode()] += 1
            assert letters.keys() == BAD
            assert max(letters.values()) <= most
            flow.stop()


@pytest.mark.long
def test_a_member_dies_between_two_redeliveries(flows: Iterator[Flow]) -> None:
    """At the copy of a message that came from the retry topic; its last failure is a letter."""
    settings = {"max_attempts": 1, "retry_schedule": [0.3], "on_failure": "retry-topic"}
    points = [(f"{COPY}:before:3", 2), (f"{COPY}:after:3", 2), (f"{COPY}:after:4", 2)]
    for (point, most), flow in zip(chosen(points), flows, strict=False):
        with case(point), client_of(flow.cluster) as factory:
            died(flow.member("dies", point, tries=99, **settings))
            flow.member("lives", tries=99, **settings)

            def letters(flow: Flow = flow, factory: vq.MessageFactory = factory) -> Counter[str]:
                with contextlib.suppress(vq.errors.UnknownTopic):
                    found = factory.admin.read_dead_letters(flow.name)
                    return Counter(each.message.content.decode() for each in found)
                return Counter()

            block_until(lambda: letters().keys() == BAD, flow.name)
            flow.wait_no_lag()
            assert max(letters().values()) <= most
            assert flow.done("dies", "lives").keys() == {*SENT} - BAD
            flow.stop()


#: A message is recorded once wherever its member dies: the file knows it again.
SKIPS = [
    (f"{RECORD}:before:1", 1),
    (f"{RECORD}:after:1", 1),
    (f"{RECORDED}:after:1", 1),
    (f"{RECORDED}:after:2", 1),
    (f"{COMMIT}:before:2", 1),
]
#: The note that a batch begins, the batch, the note that it is stored: each is done again.
RUNS = [
    (f"{NOTE}:before:1", 1),
    (f"{NOTE}:after:1", 1),
    (f"{BATCH}:before:1", 1),
    (f"{BATCH}:after:1", 1),
    (f"{NOTE}:before:2", 1),
    (f"{NOTE}:after:2", 1),
    ("vq.client.failed_file:FailedFile.tidy:before:1", 1),
]


def test_a_member_and_a_run_die_at_a_step_of_the_failed_file(flows: Iterator[Flow]) -> None:
    """What was skipped is there once, and a run that is repeated sends each message once."""
    settings = {"max_attempts": 1, "on_failure": "skip"}
    skips, runs = chosen(SKIPS), chosen(RUNS)
    for number in range(max(len(skips), len(runs))):
        skip, run = skips[number % len(skips)][0], runs[number % len(runs)][0]
        flow = next(flows)
        with case(skip, run):
            died(flow.member("dies", skip, tries=99, **settings))
            lives = flow.member("lives", tries=99, **settings)
            block_until(lambda f=flow: f.done("dies", "lives").keys() == {*SENT} - BAD, flow.name)
            flow.wait_no_lag()
            assert sorted(each["content"] for each in flow.failed()) == sorted(BAD)
            lives.send_signal(signal.SIGTERM)
            assert lives.wait(PROCESSES_WAIT_S) == 0
            ended = flow.command("group", "failed", "run", flow.name, "--yes", point=run)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            ended = flow.command("group", "failed", "run", flow.name, "--yes")
            assert ended.returncode == 0, ended.stderr
            assert flow.failed() == []
            flow.member("again", tries=0, **settings)
            block_until(lambda f=flow: f.done("again").keys() == BAD, flow.name)
            flow.wait_no_lag()
            assert flow.done("again") == dict.fromkeys(BAD, 1)
            flow.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class DyingSpec(BrokerSpec):
    """A broker that kills itself at a point."""

    point: str

    def command(self) -> list[str]:
        """Return the broker's command line."""
        _, _, module, *arguments = BrokerSpec.command(self)
        return program(self.point, module, *arguments)


#: From the time on at which messages are due; the short form has the first one.
MOVES = [
    f"{OUTBOX}:after:1",
    f"{OUTBOX}:before:1",
    f"{TIMER}:before:1",
    f"{TIMER}:after:1",
    f"{TIMER}:before:2",
    f"{TIMER}:after:2",
]


@pytest.mark.parametrize(
    "point", [MOVES[0], *(pytest.param(each, marks=pytest.mark.long) for each in MOVES[1:])]
)
def test_a_broker_dies_at_a_step_of_a_delayed_message(
    processes: ProcessCluster, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Each message is in its partition once, and later ones come."""
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    plain = processes.add("b1")
    processes.vq_json("topic", "create", "t", "--partitions", "1")
    assert plain.stop() == 0
    given = {each.name: getattr(plain.spec, each.name) for each in fields(BrokerSpec)}
    dying = processes.run(BrokerChild(DyingSpec(**given, point=point)), name="dying")
    delay_later(processes, "3", "first", "second")
    assert dying.wait(PROCESSES_WAIT_S) == -signal.SIGKILL, "it never came to its point"
    plain.start()
    plain.wait_ready(PROCESSES_WAIT_S)
    delay_later(processes, "0.2", "last")
    wanted = Counter(["first", "second", "last"])
    with client_of(processes) as factory:
        block_until(lambda: not wanted - stored(factory), point)
        assert stored(factory) == wanted


def delay_later(cluster: ProcessCluster, delay_s: str, *contents: str) -> None:
    """Send messages that are delivered later."""
    lines = "".join(f"{each}\n" for each in contents).encode()
    ended = cluster.vq("produce", "t", "--delay", delay_s, stdin=lines)
    assert ended.returncode == 0, ended.stderr


def stored(factory: vq.MessageFactory) -> Counter[str]:
    """Return how often each message is in the partition."""
    return Counter(value for _, value in read_back(factory, "t")[0])
