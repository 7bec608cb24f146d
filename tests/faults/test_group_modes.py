"""Groups of every working mode while members join, leave, die, freeze and lose their sessions.

    sender ──▶ 8 partitions ──▶ processes, each a member of: orderly, keyed, concurrent, lists
                                    │          some messages fail; some fail for ever
                                    └ SIGKILL, SIGSTOP, cut off from ZooKeeper, leave, join

Goal: every message is done, or is a dead letter; what is done twice was at hand in a crash, and is
at most the window, in every mode, although commits by time come only once a minute;
ZooKeeper takes no commit of a former owner and no offset goes back. The long form goes on at random
for ten minutes (``SOAK_S``: seconds).
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.chaos_proxy import ChaosProxy
from support.cluster import ProcessCluster, process_cluster
from support.faults import LONG, Sender, StallWatch, Way, client_of, make_rng, read_back
from support.history import read_histories, read_history
from support.judge import Evidence, Fault, judge
from support.modes import (
    COPYING,
    GROUPS,
    Loss,
    Owned,
    Result,
    crashes_of,
    is_poison,
    ownership,
    unowned_s,
    wrong,
)
from support.zookeeper_log import claims_and_commits, read_changes

import vq
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

PARTITIONS = 8
SESSION_S = 3.0 if LONG else 2.0
SOAK_S = float(os.environ.get("SOAK_S", "600"))
RATE = 60.0
MOST, LEAST = 4, 2
LOOK_S = 0.3
TESTS = Path(__file__).parents[1]


class Members:
    """Processes, each with a member in every group, and what strikes them."""

    def __init__(self, cluster: ProcessCluster, histories: Path, stack: ExitStack) -> None:
        self.cluster = cluster
        self.histories = histories
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.links: dict[str, ChaosProxy] = {}
        self.away: dict[str, Callable[[], None]] = {}  # frozen or cut off, and what ends that
        self.losses: list[Loss] = []
        self.done: Counter[str] = Counter()
        self._began: dict[str, list[int]] = {}  # how long the histories were then
        self._stack = stack
        self._made = 0

    def join(self, name: str = "") -> str:
        """Start a process, under a name of its own or of one that is gone."""
        name = name or f"m{self._made}"
        self._made += name not in self.links
        if name not in self.links:
            target = Address.parse(self.cluster.zookeeper)
            self.links[name] = self._stack.enter_context(ChaosProxy(target))
        notes = [self.histories / group / f"{name}.jsonl" for group in GROUPS]
        self._began[name] = [path.stat().st_size if path.exists() else 0 for path in notes]
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        with (self.histories / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "support.mode_process", str(self.histories), name),
                    *(str(self.links[name].address), self.cluster.name, "t"),
                    *(str(SESSION_S), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        self.done["join"] += 1
        return name

    def is_well(self, name: str) -> bool:
        """Whether a process has begun to work in every group, and nothing keeps it away."""
        paths = [self.histories / group / f"{name}.jsonl" for group in GROUPS]
        sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
        began = self._began.get(name, [0] * len(sizes))
        return name not in self.away and all(a > b for a, b in zip(sizes, began, strict=True))

    def leave(self, name: str) -> None:
        """End a process in order."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PROCESSES_WAIT_S)
        # SIGTERM ends a process that has not come to its program yet.
        assert code in {0, -signal.SIGTERM}, f"{name} ended with code {code}, see its log"
        self.done["leave"] += 1

    def kill(self, name: str) -> None:
        """kill -9 a process."""
        process = self.running.pop(name)
        self.losses.append(Loss(time.time(), name))
        process.kill()
        assert process.wait(PROCESSES_WAIT_S) == -signal.SIGKILL
        self.done["kill"] += 1

    def freeze(self, name: str) -> None:
        """Stop a process until ``wake``."""
        process = self.running[name]
        self.losses.append(Loss(time.time(), name))
        process.send_signal(signal.SIGSTOP)
        self.away[name] = lambda: process.send_signal(signal.SIGCONT)
        self.done["freeze"] += 1

    def cut(self, name: str) -> None:
        """Cut a process off from ZooKeeper, not from the broker, until ``wake``."""
        self.losses.append(Loss(time.time(), name))
        self.links[name].swallow()
        self.away[name] = self.links[name].heal
        self.done["cut"] += 1

    def wake(self, name: str) -> None:
        """End what keeps a process away."""
        self.away.pop(name)()

    def close(self) -> None:
        """Kill whoever is left."""
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def shares(cluster: ProcessCluster, server: Path) -> list[Counter[str]]:
    """Return, for each group, how many partitions of the topic each member owns now."""
    time.sleep(LOOK_S)  # to read the log costs as much as the members do
    changes = read_changes(server)
    found: list[Counter[str]] = []
    for group in GROUPS:
        lines = ownership(changes, cluster.name, group)
        found.append(Counter(line[-1].member for (topic, _), line in lines.items() if topic == "t"))
    return found


def wait_shared(members: Members, server: Path) -> None:
    """Wait until the living processes share all partitions of every group evenly."""

    def shared() -> bool:
        return all(
            each.keys() == members.running.keys()
            and each.total() == PARTITIONS
            and max(each.values()) - min(each.values()) <= 1
            for each in shares(members.cluster, server)
        )

    block_until(shared, f"{sorted(members.running)} share everything")


@pytest.fixture
def members(
    make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> Iterator[tuple[Path, Members]]:
    """A broker with the topic on a ZooKeeper of its own, whose directory comes first."""
    zookeeper = make_zookeeper()
    (tmp_path / "h").mkdir()
    with (
        process_cluster(tmp_path / "brokers", zookeeper.hosts) as cluster,
        ExitStack() as stack,
    ):
        cluster.add("b1")
        cluster.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))
        made = Members(cluster, tmp_path / "h", stack)
        try:
            yield zookeeper.directory / "server-1", made
        finally:
            made.close()


def test_in_every_mode_each_message_is_done_whatever_strikes_the_members(
    members: tuple[Path, Members],
) -> None:
    server, group = members
    rng = make_rng()
    keys = [None, *"abcdefghij"]
    ways = [Way(rng.choice(keys)) for _ in range(997)]
    with (
        client_of(group.cluster) as factory,
        StallWatch() as stall,
        Sender(
            factory,
            "t",
            group.histories / "s0.jsonl",
            rate=RATE,
            way=lambda number: ways[number % len(ways)],
        ) as sender,
    ):
        for _ in range(LEAST + LONG):
            group.join()
        wait_shared(group, server)
        begin = time.time()
        if LONG:
            strike_at_random(group, sender, rng, time.monotonic() + SOAK_S)
        else:
            strike_each(group, sender, rng, server)
        for name in list(group.away):
            group.wake(name)
        wait_shared(group, server)
        end = time.time()
        sender.wait_sent(50)
        sender.finish()
        log = read_back(factory, "t")
        stored = {
            (number, message.offset): message
            for number in log
            for message in contents(factory, number)
        }
        wait_done(group, factory, stored)
        for name in list(group.running):
            group.leave(name)
        results = [result_of(group, factory, name, stored, server) for name in GROUPS]
    print(dict(group.done), f"longest stall of this process {stall.longest_s:.2f} s")
    problems = [each for result in results for each in wrong(result, "t")]
    assert not problems, "\n".join(problems[:20])
    check_zookeeper(group, server, log)
    for name in GROUPS:
        lines = ownership(read_changes(server), group.cluster.name, name)
        took = unowned_s(between(lines, begin), group.losses, end)
        print(name, "longest without a living owner:", [f"{each:.2f}" for each in took[-5:]])
        if LONG:
            assert took[-1] <= SESSION_S + 2.0 + stall.longest_s


def between(lines: dict[tuple[str, int], list[Owned]], begin: float) -> list[list[Owned]]:
    """Return who owned the partitions of the topic from a time on."""
    return [
        [each for each in line if each.at >= begin]
        for (topic, _), line in lines.items()
        if topic == "t"
    ]


def strike_each(group: Members, sender: Sender, rng: random.Random, server: Path) -> None:
    """One process is killed and comes again under its name, one loses its session and wakes."""
    first, second = sorted(group.running)
    sender.wait_sent(50)
    group.kill(first)
    group.join(first)
    wait_shared(group, server)
    sender.wait_sent(50)
    rng.choice((group.cut, group.freeze))(second)
    block_until(
        lambda: all(second not in each for each in shares(group.cluster, server)),
        "its partitions go to the other one",
    )
    group.wake(second)


def strike_at_random(group: Members, sender: Sender, rng: random.Random, until: float) -> None:
    """Whatever may happen to members, at any time; one of them is well."""
    wakes: dict[str, float] = {}
    gone: list[str] = []
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.2, 6.0))
        assert sender.failure is None
        for name in [each for each, at in wakes.items() if at <= time.monotonic()]:
            del wakes[name]
            group.wake(name)
        well = sorted(each for each in group.running if group.is_well(each))
        choices = ["join"] * 2 * (len(group.running) < MOST)
        if len(well) > 1:
            choices += ["kill", "leave", "freeze", "cut"]
        if not choices:
            continue
        action = rng.choice(choices)
        if action == "join":
            group.join(gone.pop() if gone and rng.random() < 0.5 else "")
        elif action in {"kill", "leave"}:
            getattr(group, action)(name := rng.choice(well))
            gone.append(name)
        else:
            getattr(group, action)(name := rng.choice(well))
            wakes[name] = time.monotonic() + SESSION_S * rng.choice((0.2, 0.6, 1.5, 3.0))


def contents(factory: vq.MessageFactory, number: int) -> list[vq.Message]:
    """Return all messages of a partition."""
    with factory.create_consumer() as reader:
        offset, end = reader.get_bounds("t", number)
        found: list[vq.Message] = []
        while offset < end:
            found += reader.get("t", number, offset, 4 << 20)
            offset = found[-1].next_offset
    return found


def done_by(group: Members, name: str) -> Counter[tuple[int, int]]:
    """Return how often each message was done in a group."""
    found: Counter[tuple[int, int]] = Counter()
    for path in (group.histories / name).glob("*.jsonl"):
        events = read_history(path)
        found.update((e["partition"], e["offset"]) for e in events if e["kind"] == "done")
    return found


def letters_of(factory: vq.MessageFactory, group: str) -> Counter[tuple[int, int]]:
    """Return how many dead letters each message has."""
    found: Counter[tuple[int, int]] = Counter()
    if group in COPYING:
        with contextlib.suppress(vq.errors.UnknownTopic):
            for letter in factory.admin.read_dead_letters(group):
                assert letter.origin is not None
                found[letter.origin.partition, letter.origin.offset] += 1
    return found


def wait_done(
    group: Members, factory: vq.MessageFactory, stored: dict[tuple[int, int], vq.Message]
) -> None:
    """Wait until every group has done everything, or given it up."""
    left: dict[str, list[tuple[int, int]]] = {}

    def missing() -> bool:
        time.sleep(LOOK_S)
        for name in GROUPS:
            done, letters = done_by(group, name), letters_of(factory, name)
            places = [
                place
                for place, message in stored.items()
                if not (letters if is_poison(name, message.content) else done)[place]
            ]
            left[name] = places[:5]
        return any(left.values())

    try:
        block_until(lambda: not missing(), timeout_s=PROCESSES_WAIT_S * (1 + 4 * LONG))
    except AssertionError:
        raise AssertionError(f"not done: {left}") from None


def result_of(
    group: Members,
    factory: vq.MessageFactory,
    name: str,
    stored: dict[tuple[int, int], vq.Message],
    server: Path,
) -> Result:
    """Return what a group has done."""
    received: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], float] = {}
    for path in (group.histories / name).glob("*.jsonl"):
        for event in read_history(path):
            place = event.get("partition", -1), event.get("offset", -1)
            if event["kind"] == "received":
                received[place] += 1
            elif event["kind"] == "done":
                first[place] = min(event["at"], first.get(place, event["at"]))
    return Result(
        group=name,
        log={place: message.content for place, message in stored.items()},
        keys={place: message.key for place, message in stored.items() if message.key},
        received=received,
        done=done_by(group, name),
        first=first,
        letters=letters_of(factory, name),
        crashes=crashes_of(ownership(read_changes(server), group.cluster.name, name)),
    )


def check_zookeeper(group: Members, server: Path, log: dict[int, list[tuple[int, str]]]) -> None:
    """No commit of a former owner, no offset that goes back; what was sent and read is right."""
    changes = read_changes(server)
    for name in GROUPS:
        histories = defaultdict(list)
        for path in [group.histories / "s0.jsonl", *(group.histories / name).glob("*.jsonl")]:
            histories.update(read_histories([path]))
        for topic in ("t", f"_vq.retry.{name}"):
            claims, commits = claims_and_commits(changes, group.cluster.name, name, topic)
            assert commits or topic != "t"
            verdict = judge(
                Evidence(
                    histories=histories if topic == "t" else {},
                    log=log if topic == "t" else {},
                    group=True,
                    in_turn=False,
                    drained=topic == "t",
                    repeats_allowed=True,
                    claims=claims,
                    commits=commits,
                    faults=[Fault(each, times) for each, times in group.done.items()],
                    acknowledged_min=0,
                )
            )
            print(name, topic, verdict)
            assert not verdict.anomalies, str(verdict)


def test_what_is_lost_doubled_or_unowned_is_told() -> None:
    """The judgement of the runs above is one that finds things."""
    contents = {(0, 10): b"s-7-", (0, 20): b"s-5-", (0, 30): b"s-8-"}  # the second always fails
    good = Result(
        group="concurrent",
        log=contents,
        keys={},
        received={},
        done={(0, 10): 1, (0, 30): 1},
        first={(0, 10): 1.0, (0, 30): 2.0},
        letters={(0, 20): 1},
        crashes={},
    )
    assert list(wrong(good, "t")) == []
    for change, told in (
        ({"done": {(0, 10): 1}}, "(0, 30) was done by nobody"),
        ({"letters": {}}, "(0, 20) always fails, and is no dead letter"),
        ({"done": {(0, 10): 2, (0, 30): 1}}, "1 in partition 0 were done twice, 0 crashes"),
    ):
        assert [f"concurrent: {told}"] == list(wrong(good._replace(**change), "t"))
    swapped = {(0, 10): 2.0, (0, 20): 3.0, (0, 30): 1.0}
    ordered = good._replace(group="orderly", letters={}, done=dict.fromkeys(contents, 1))
    assert list(wrong(ordered._replace(first=swapped), "t")) == [
        "orderly: (0, ''): (0, 30) was done before (0, 20)"
    ]
    line = [Owned(1.0, "a"), Owned(13.0, "", crash=True), Owned(14.0, "b"), Owned(20.0, "")]
    assert unowned_s([line], [Loss(2.0, "a"), Loss(10.0, "a")], 21.5) == [1.5, 4.0]
    assert unowned_s([line], [Loss(10.0, "a"), Loss(12.0, "c")], 21.5) == [1.5, 2.0]
