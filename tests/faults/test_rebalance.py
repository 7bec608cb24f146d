"""Members of a consumer group die, freeze, come and go while messages flow.

    sender ──▶ 12 partitions ──▶ m0 m1 m2 m3 …      SIGKILL, SIGSTOP, cut off, join, leave

Goal: every message is handled, none is skipped; ZooKeeper takes no commit of a former owner, and no
offset goes back. Who had what is read from ZooKeeper's transaction log.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.chaos_proxy import ChaosProxy
from support.cluster import ProcessCluster, process_cluster
from support.command_server import ForkedProcess, command_server
from support.faults import (
    LONG,
    Sender,
    client_of,
    judge_run,
    make_rng,
    owners,
    read_back,
    times,
    wait_shared,
)
from support.history import read_history
from support.judge import Fault
from support.zookeeper_log import group_evidence

import vq
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

PARTITIONS = 12
MEMBERS = 4
GROUP = "g"
SESSION_S = 1.5
#: Messages per second. A change takes seconds, mostly of waiting: what flows meanwhile costs more.
RATE = 400.0 if LONG else 120.0
#: Until the partitions of a lost member are shared out again: its session has to end first. Members
#: are processes, and there are five of them: only the long form has a machine for itself.
REBALANCE_S = 2 * (SESSION_S + 2.0) if LONG else PROCESSES_WAIT_S
TESTS = Path(__file__).parents[1]


def shares_of(owned: dict[int, tuple[str, int]]) -> dict[str, set[int]]:
    """Return the partitions of each member."""
    found: dict[str, set[int]] = defaultdict(set)
    for partition, (member, _) in owned.items():
        found[member].add(partition)
    return found


class Members:
    """The processes of one group, by name."""

    def __init__(self, cluster: ProcessCluster, histories: Path) -> None:
        self.cluster = cluster
        self.histories = histories
        self.session_s = SESSION_S  # of the members that are added
        self.strategy = "sticky"  # of the group
        self.running: dict[str, subprocess.Popen[bytes] | ForkedProcess] = {}
        self._made = 0

    def add(self, zookeeper: str | None = None, name: str = "") -> str:
        """Start a member, with a name of its own or a given one; returns the name."""
        if not name:
            name = f"m{self._made}"
            self._made += 1
        server = command_server(os.environ)
        parent = os.getpid() if server is None else server.pid
        program = [
            *("-m", "support.member_process", str(self.histories / f"{name}.jsonl")),
            *(zookeeper or self.cluster.zookeeper, self.cluster.name, GROUP, "t"),
            *(str(self.session_s), str(parent), self.strategy),
        ]
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        with (self.histories / f"{name}.log").open("ab") as log, open(os.devnull) as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            if server is not None:
                self.running[name] = server.start(program, os.environ, streams)
                return name
            self.running[name] = subprocess.Popen(
                [sys.executable, *program],
                stdin=nothing,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
        return name

    def shares(self) -> dict[str, set[int]]:
        """Return which partitions each member owns now, as ZooKeeper has it."""
        return shares_of(owners(self.cluster, GROUP, "t"))

    def sessions(self, name: str) -> set[int]:
        """Return the sessions in which a member owns partitions now."""
        found = owners(self.cluster, GROUP, "t").values()
        return {session for member, session in found if member == name}

    def end(self, name: str, number: int) -> int:
        """Send a signal that ends a member, wait for its end and return its exit code."""
        process = self.running.pop(name)
        process.send_signal(number)
        code = process.wait(PROCESSES_WAIT_S)
        if number == signal.SIGTERM:
            log = (self.histories / f"{name}.log").read_text()
            assert code == 0, f"{name} ended with code {code}:\n{log}"
        return code

    def wait_shared(self) -> dict[str, set[int]]:
        """Wait until the living members share all partitions evenly; return who has what then."""
        return shares_of(wait_shared(self.cluster, self.running, PARTITIONS))

    def close(self) -> None:
        """Kill whoever is left."""
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def group(
    make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> Iterator[tuple[EmbeddedZooKeeper, Members]]:
    """A broker with the topic, and a group that shares it, on a ZooKeeper of their own."""
    zookeeper = make_zookeeper()
    (tmp_path / "h").mkdir()
    with process_cluster(tmp_path / "brokers", zookeeper.hosts) as cluster:
        cluster.add("b1")
        cluster.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))
        members = Members(cluster, tmp_path / "h")
        try:
            yield zookeeper, members
        finally:
            members.close()


def finish(
    zookeeper: EmbeddedZooKeeper, members: Members, log: dict, *faults: Fault, repeats: bool
) -> None:
    """Wait until the group has handled everything, end it, judge."""
    every = {(p, offset) for p, messages in log.items() for offset, _ in messages}

    def missing() -> set[tuple[int, int]]:
        seen: set[tuple[int, int]] = set()
        for path in members.histories.glob("m*.jsonl"):
            seen |= {
                (event["partition"], event["offset"])
                for event in read_history(path)
                if event["kind"] == "received"
            }
        return every - seen

    block_until(lambda: not missing(), "the group receives everything")
    for name in list(members.running):
        members.end(name, signal.SIGTERM)
    claims, commits = group_evidence(
        zookeeper.directory / "server-1", members.cluster.name, GROUP, "t"
    )
    assert commits
    judge_run(
        members.histories,
        log,
        *faults,
        acknowledged_min=50,
        group=True,
        drained=True,
        repeats_allowed=repeats,
        claims=claims,
        commits=commits,
    )


def test_nothing_is_skipped_when_members_die_freeze_and_are_cut_off(
    group: tuple[EmbeddedZooKeeper, Members],
) -> None:
    """A frozen member wakes after its partitions went to others: its commits must not count."""
    zookeeper, members = group
    rng = make_rng()
    rebalances = times(3, 200)  # who leaves in order has a test of its own
    members.strategy = rng.choice(["sticky", "average", "circle"])
    print("strategy", members.strategy)
    with (
        ChaosProxy(Address.parse(zookeeper.hosts)) as link,
        client_of(members.cluster) as factory,
        Sender(factory, "t", members.histories / "s0.jsonl", rate=RATE) as sender,
    ):
        cut_off = members.add(str(link.address))
        for _ in range(MEMBERS - 1):
            members.add()
        members.wait_shared()
        actions = [kill, freeze, leave, kill, freeze]
        done: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        took_s = []
        for number in range(rebalances):
            sender.wait_sent(50)
            if number % 3 == 2:
                action, name = cut, cut_off
            else:
                action, name = actions[number % 5], victim(members, rng, keep=cut_off)
            had = members.wait_shared()[name]
            lost = action(members, name, link)
            took_s.append(lost.took_s)
            members.wait_shared()
            done[action.__name__] += 1
            seen[action.__name__] += had <= lost.taken_over
        sender.wait_sent(50)
        sender.finish()
        print("rebalances took", ", ".join(f"{each:.1f}" for each in sorted(took_s)), "s")
        assert max(took_s) <= REBALANCE_S
        log = read_back(factory, "t")
        faults = [Fault(name, seen[name], strikes=count) for name, count in done.items()]
        finish(zookeeper, members, log, *faults, repeats=True)


def victim(members: Members, rng: random.Random, keep: str) -> str:
    """Choose a member, not the one whose link is the cut one."""
    return rng.choice(sorted(set(members.running) - {keep}))


class Lost(NamedTuple):
    """How long it took until the others shared everything, and what they have now."""

    took_s: float
    taken_over: set[int]


def lose(members: Members, begin: float) -> Lost:
    """Wait until those who are left share everything."""
    shares = members.wait_shared()
    return Lost(time.monotonic() - begin, set().union(*shares.values()))


def kill(members: Members, name: str, _: ChaosProxy) -> Lost:
    """kill -9 a member; when its partitions are taken over, start another one."""
    begin = time.monotonic()
    assert members.end(name, signal.SIGKILL) == -signal.SIGKILL
    lost = lose(members, begin)
    members.add()
    return lost


def leave(members: Members, name: str, _: ChaosProxy) -> Lost:
    """Close a member in order; when its partitions are taken over, start another one."""
    begin = time.monotonic()
    members.end(name, signal.SIGTERM)
    lost = lose(members, begin)
    members.add()
    return lost


def freeze(members: Members, name: str, _: ChaosProxy) -> Lost:
    """Stop a member until all it had is owned by others, and twice its session at least."""
    begin = time.monotonic()
    process = members.running.pop(name)
    process.send_signal(signal.SIGSTOP)
    try:
        lost = lose(members, begin)
        time.sleep(max(0.0, begin + 2 * SESSION_S - time.monotonic()))
        assert not members.shares()[name], "it owns something while it is stopped"
    finally:
        process.send_signal(signal.SIGCONT)
        members.running[name] = process
    return lost


def cut(members: Members, name: str, link: ChaosProxy) -> Lost:
    """Cut a member off from ZooKeeper, not from the broker, until others have what it had."""
    begin = time.monotonic()
    process = members.running.pop(name)
    link.swallow()
    try:
        return lose(members, begin)
    finally:
        link.heal()
        members.running[name] = process


def test_planned_changes_repeat_nothing(group: tuple[EmbeddedZooKeeper, Members]) -> None:
    """Members join and leave in order: every message is handled exactly once."""
    zookeeper, members = group
    members.session_s = 20.0  # none may end, however busy the machine is
    rng = make_rng()
    changes = times(4, 60)
    with (
        client_of(members.cluster) as factory,
        Sender(factory, "t", members.histories / "s0.jsonl", rate=RATE) as sender,
    ):
        for _ in range(2):
            members.add()
        shares = members.wait_shared()
        moved = 0
        for number in range(changes):
            sender.wait_sent(50)
            before = shares
            if len(members.running) < 2 or (number % 2 == 0 and len(members.running) < MEMBERS):
                members.add()
            else:
                members.end(rng.choice(sorted(members.running)), signal.SIGTERM)
            shares = members.wait_shared()
            moved += shares != before
        sender.wait_sent(50)
        sender.finish()
        log = read_back(factory, "t")
        fault = Fault("join or leave", moved, strikes=changes)
        finish(zookeeper, members, log, fault, repeats=False)


def test_a_member_that_was_frozen_or_killed_and_has_its_name_does_no_work_twice(
    group: tuple[EmbeddedZooKeeper, Members],
) -> None:
    """Frozen with a backlog in memory, it asks before it goes on; killed and started again under
    its name, it waits for its old session."""
    _, members = group
    members.session_s = 4.0
    count = 30_000
    with client_of(members.cluster) as factory, factory.create_producer() as producer:
        for number in range(count):
            producer.send_async(vq.Message("t", b"%d" % number))
        producer.flush(60)
        ends = ends_of(factory)
        first = members.add()
        path = members.histories / f"{first}.jsonl"
        block_until(lambda: path.exists() and path.stat().st_size > 100_000, "it is in its backlog")
        members.running[first].send_signal(signal.SIGSTOP)
        block_until(lambda: is_stopped(members.running[first].pid), "it to stop")
        handled = path.read_bytes().count(b"received")
        second = members.add()
        with factory.create_consumer(vq.ConsumerConfig(group=GROUP)) as reader:

            def all_done() -> bool:
                done = {each.partition: at for each, at in reader.get_offset("t").items()}
                return done == ends

            block_until(all_done, "its successor has done the rest")
        assert members.shares() == {second: set(range(PARTITIONS))}
        assert (members.histories / f"{second}.jsonl").stat().st_size > 100_000, "or it is void"
        members.running[first].send_signal(signal.SIGCONT)
        members.wait_shared()
        again = path.read_bytes().count(b"received") - handled
        assert again <= 1, "only its listener may have been at a message"
        old = members.sessions(first)
        members.end(first, signal.SIGKILL)
        members.add(name=first)
        log = members.histories / f"{first}.log"

        def waits() -> bool:
            return "member name is in use" in log.read_text()

        # On a very busy machine a process takes longer to start than the session to end.
        block_until(lambda: waits() or not members.shares()[first], "it waits")
        block_until(lambda: members.sessions(first) - old, "it owns in a new session")
        members.wait_shared()
    assert members.end(first, signal.SIGTERM) == 0
    assert path.read_bytes().count(b"received") == handled + again


def test_a_killed_member_that_starts_again_has_what_it_had_and_nothing_moves(
    group: tuple[EmbeddedZooKeeper, Members],
) -> None:
    """The others count it in while it waits for its old session."""
    zookeeper, members = group
    members.session_s = 4.0
    with (
        client_of(members.cluster) as factory,
        Sender(factory, "t", members.histories / "s0.jsonl", rate=RATE) as sender,
    ):
        for _ in range(3):
            members.add()
        before = members.wait_shared()
        for _ in range(times(1, 20)):
            sender.wait_sent(50)
            name = sorted(members.running)[0]
            old = members.sessions(name)
            killed = members.running[name]
            # Before the kill: on a busy machine a start takes longer than a session lasts.
            members.add(name=name)
            log = members.histories / f"{name}.log"
            block_until(lambda log=log: "member name is in use" in log.read_text(), "it waits")
            killed.kill()
            assert killed.wait(PROCESSES_WAIT_S) == -signal.SIGKILL
            block_until(
                lambda name=name, old=old: members.sessions(name) - old, "it owns in a new session"
            )
            assert members.wait_shared() == before
        sender.wait_sent(50)
        sender.finish()
        log = read_back(factory, "t")
        history = factory.admin.group_history(GROUP)
        moves = [each for each in history if each.before not in {None, each.member}]
        joined = [each for each in moves if each.reason == "balance"]
        assert moves == joined, "what moved, moved when the first three came"
        assert {each.reason for each in history if each.member == name} >= {"again"}
        finish(zookeeper, members, log, Fault("kill and start", 1, strikes=1), repeats=True)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still: a signal takes a moment."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def ends_of(factory: vq.MessageFactory) -> dict[int, int]:
    """Return where each partition ends now."""
    with factory.create_consumer() as reader:
        return {number: reader.get_bounds("t", number).latest for number in range(PARTITIONS)}
