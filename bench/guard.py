"""Two states of vq in turns: whether one is slower than the other, by how much, and how surely.

    python -m bench.run --only guard [--base REVISION]

The working tree stands against a revision, HEAD by default. Both are installed, compiled, into
directories of their own; both clusters are up at the same time, and both have the same work in
turns, a quarter of a second each, so that what else the machine does is the same for both. Which of
them goes first changes each round. Which cluster starts first changes half-way, with new data: the
second one to start was up to 6 % better off. A ratio is new to base: of a time below 1.00 the new
one is faster. Many short turns say more than few long ones: what else the machine does lasts longer
than a turn, so it meets both sides of a pair or spoils few pairs.
"""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.context import Context
from vq.cli.bench.workload import WorkFailed
from vq.remoting.ports import free_port

ROOT: Final = Path(__file__).resolve().parent.parent
#: Messages of a turn, about a quarter of a second's.
COUNTS: Final[Mapping[str, int]] = {
    "pipelined": 80_000,
    "key and header": 40_000,
    "1 KiB": 40_000,
    "one way": 80_000,
    "batches": 20_000,
    "one by one": 300,
    "consumed": 100_000,
    "headers read": 40_000,  # which are there since the first "key and header"
    "get_many(100)": 100_000,
}
QUICK: Final = 40  # of a quick run: so many times less
ROUNDS: Final = 130
COLUMNS: Final = (
    "way",
    "µs, base",
    "µs, new",
    "new : base",
    "95 %",
    "processor, new : base",
    "95 %",
)
_NORMAL_95: Final = 1.96  # so many standard deviations on both sides have 95 %
_START_S: Final = 120.0
_STARTED: Final = "ctrl-C stops everything"
_TOPICS: Final = ("plain", "keyed", "large")


class Turn(NamedTuple):
    """What one message took in one turn of both sides, in seconds.

    Attributes:
        base, new: By the clock.
        base_cpu, new_cpu: Of the client's processor.
    """

    base: float
    new: float
    base_cpu: float
    new_cpu: float


class Ratio(NamedTuple):
    """The middle of ratios, and an interval that has it in 95 of 100 such runs."""

    value: float
    least: float
    most: float


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return new to base of pairs of base and new, at least one.

    The middle is that of Hodges and Lehmann: the median of the means of each two ratios, of each
    with itself, too. Single turns that something else has spoilt hardly move it, and its scatter is
    less than that of a median. The interval is the one that belongs to it, from Wilcoxon's test of
    signed ranks (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3.2 and 3.3).
    """
    ratios = sorted(new / base for base, new in pairs)
    count = len(ratios)
    means = sorted((ratios[i] + ratios[j]) / 2 for i in range(count) for j in range(i, count))
    spread = _NORMAL_95 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    outside = max(math.floor(count * (count + 1) / 4 - spread), 0)
    return Ratio(statistics.median(means), means[outside], means[-1 - outside])


@dataclass(slots=True)
class Comparison:
    """What was measured.

    Attributes:
        base: The revision.
        turns: By way.
    """

    base: str
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def lines(self) -> list[tuple[str, ...]]:
        """Return the rows of the table."""
        found = []
        for way, turns in self.turns.items():
            clock = ratio_of([(each.base, each.new) for each in turns])
            cpu = ratio_of([(each.base_cpu, each.new_cpu) for each in turns])
            cells = [way]
            cells += [
                f"{statistics.median(getattr(each, side) for each in turns) * 1e6:.2f}"
                for side in ("base", "new")
            ]
            for ratio in (clock, cpu):
                cells += [f"{ratio.value:.3f}", f"{ratio.least:.3f} – {ratio.most:.3f}"]
            found.append(tuple(cells))
        return found


class Side:
    """One state of vq: its cluster and its client."""

    def __init__(self, library: Path, directory: Path) -> None:
        self._environ = {**os.environ, "PYTHONPATH": str(library)}
        zookeeper = f"127.0.0.1:{free_port()}"
        broker, ensemble = free_port(), zookeeper.partition(":")[2]
        command = [sys.executable, "-m", "vq.cli.main", "standalone", "--data", str(directory)]
        command += ["--port", str(broker), "--zookeeper-port", ensemble, "--no-console"]
        self._log_path = directory.with_suffix(".log")
        self._log = self._log_path.open("w")
        self._cluster = subprocess.Popen(
            command, env=self._environ, cwd=library, stdout=self._log, stderr=self._log
        )
        self._client: subprocess.Popen[str] | None = None
        self._zookeeper = zookeeper
        self._library = library

    def start(self) -> None:
        """Wait for the cluster, make the topics, and start the client.

        Raises:
            WorkFailed: The cluster or the client does not start.
        """
        deadline = time.monotonic() + _START_S
        while _STARTED not in (log := self._log_path.read_text()):
            if time.monotonic() > deadline or self._cluster.poll() is not None:
                raise WorkFailed(f"the cluster of {self._library} does not start: {log[-500:]}")
            time.sleep(0.1)
        for name in _TOPICS:
            command = [sys.executable, "-m", "vq.cli.main", "topic", "create", name]
            command += ["--partitions", "1", "--zookeeper", self._zookeeper]
            done = subprocess.run(
                command, env=self._environ, cwd=self._library, capture_output=True, text=True
            )
            if done.returncode:
                raise WorkFailed(f"{self._library}: {done.stderr.strip()}")
        self._client = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "guarded.py"), self._zookeeper],
            env=self._environ,
            cwd=self._library,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = Path(self._answer()["vq"])
        if self._library not in found.parents:
            raise WorkFailed(f"the client has vq of {found}, not of {self._library}")

    def work(self, way: str, count: int) -> tuple[float, float]:
        """Do a work; return the seconds and the processor time of one message."""
        assert self._client is not None
        assert self._client.stdin is not None
        self._client.stdin.write(json.dumps((way, count)) + "\n")
        self._client.stdin.flush()
        answer = self._answer()
        return answer["seconds"], answer["processor_s"]

    def _answer(self) -> Any:
        assert self._client is not None
        assert self._client.stdout is not None
        line = self._client.stdout.readline()
        if not line:
            raise WorkFailed(f"the client of {self._library} has ended: {self._client.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End all of it."""
        if self._client is not None:
            assert self._client.stdin is not None
            self._client.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._client.wait(10)
            self._client.kill()
        self._cluster.terminate()
        self._cluster.wait(60)
        self._log.close()


def install(revision: str | None, directory: Path) -> Path:
    """Install a revision, or with None the working tree, compiled; return where it is.

    Raises:
        WorkFailed: There is no such revision, or it cannot be built.
    """
    source = ROOT
    if revision is not None:
        archived = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True)
        if archived.returncode:
            raise WorkFailed(f"revision {revision}: {archived.stderr.decode().strip()}")
        source = directory / "source"
        with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
            archive.extractall(source, filter="data")
    library = directory / "library"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    built = subprocess.run([*command, "--target", library, source], capture_output=True, text=True)
    if built.returncode:
        raise WorkFailed(f"{revision or 'the working tree'}: {built.stderr.strip()[-500:]}")
    return library


def compare(context: Context, found: Comparison) -> Iterator[None]:
    """Run the rounds and note what they find; yield behind each.

    Raises:
        WorkFailed: A side cannot be installed or started, or a work failed.
    """
    with contextlib.ExitStack() as stack:
        libraries = []
        for name, revision in (("base", found.base), ("new", None)):
            directory = context.directory / f"guard-{os.getpid()}-{name}"
            directory.mkdir()
            stack.callback(subprocess.run, ["rm", "-rf", str(directory)])
            libraries.append(install(revision, directory))
        rounds = context.rounds
        for first, count in enumerate((rounds - rounds // 2, rounds // 2)):
            if not count:
                break
            with _started(libraries, first) as sides:
                yield from _rounds(context, found, sides, count)


@contextlib.contextmanager
def _started(libraries: Sequence[Path], first: int) -> Iterator[list[Side]]:
    """Have the clusters and clients of both sides up; ``first``: which of them starts first."""
    with contextlib.ExitStack() as stack:
        sides = {}
        for number in (first, 1 - first):
            library = libraries[number]
            directory = library.with_name(f"data-{first}")
            sides[number] = side = Side(library, directory)
            stack.callback(subprocess.run, ["rm", "-rf", str(directory)])
            stack.callback(side.close)
            side.start()
        yield [sides[0], sides[1]]


def _rounds(context: Context, found: Comparison, sides: list[Side], rounds: int) -> Iterator[None]:
    for way, count in COUNTS.items():  # what is slow the first time is no part of it
        for side in sides:
            side.work(way, context.pick(count, count // QUICK))
    for number in range(rounds):
        for way, count in COUNTS.items():
            few = context.pick(count, count // QUICK)
            order = sides if number % 2 == 0 else sides[::-1]
            took = {id(side): side.work(way, few) for side in order}
            (base_s, base_cpu), (new_s, new_cpu) = (took[id(side)] for side in sides)
            turns = found.turns.setdefault(way, [])
            turns.append(Turn(base_s, new_s, base_cpu, new_cpu))
        yield
