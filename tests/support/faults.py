"""Shared by fault runs: short and long forms, seeds, a workload, and the judgement at the end."""

import contextlib
import json
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from support.block_files import read_partition
from support.cluster import ProcessCluster
from support.history import History, name_of, read_histories, read_history
from support.judge import Evidence, Fault, Verdict, judge

import vq
from vq.devtools.processes import BrokerChild
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

LONG = os.environ.get("VQ_LONG") == "1"
_TICK_S = 0.005
_LETTERS = bytes(range(97, 123))

T = TypeVar("T")


def times(short: int, long: int) -> int:
    """Return how often to do it: ``long`` with VQ_LONG=1."""
    return long if LONG else short


def make_rng() -> random.Random:
    """Return a generator whose seed is printed; VQ_SEED replays one."""
    seed = int(os.environ.get("VQ_SEED", "0")) or secrets.randbits(32)
    print(f"seed {seed} (VQ_SEED={seed} replays it)")
    return random.Random(seed)


def sighted(look: Callable[[], T | None], what: object, timeout_s: float = PROCESSES_WAIT_S) -> T:
    """Wait until ``look`` returns something, not None; return that. Another look may see less."""
    found: T | None = None

    def there() -> bool:
        nonlocal found
        found = look()
        return found is not None

    block_until(there, what, timeout_s=timeout_s)
    assert found is not None
    return found


def broker_settings(path: Path, **settings: object) -> tuple[str, str]:
    """Write a file with settings of a broker; return the flags that name it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["[broker]", *(f"{name} = {value!r}" for name, value in settings.items())]
    path.write_text("\n".join(lines) + "\n")
    return "--config", str(path)


def kill(broker: BrokerChild) -> bool:
    """End a broker with kill -9; whether it ran until then, and ended of nothing else."""
    ran = broker.running
    broker.kill()
    return ran and broker.process is not None and broker.process.returncode == -signal.SIGKILL


class Way(NamedTuple):
    """How one message is sent: with which key, and whether its thread waits for the outcome."""

    key: str | None = None
    waits: bool = False


class Sender(threading.Thread):
    """One client that sends numbered messages at a steady rate until stopped.

    Args:
        factory: Its producer is made from it.
        topic: The topic to send to.
        history: The file for all events; its name makes the values unique.
        rate: Messages per second, about.
        size: Bytes of a payload.
        tick_s: How long it waits until it sends together what is due.
        config: The configuration of the producer.
        producer: Send with this one, which others use as well; ``finish`` does not close it.
        way: Returns how to send the message of a number.
        timeout: The time-out of each send, in seconds; None: as configured.
    """

    def __init__(
        self,
        factory: vq.MessageFactory,
        topic: str,
        path: Path,
        *,
        rate: float = 400.0,
        size: int = 100,
        tick_s: float = _TICK_S,
        config: vq.ProducerConfig | None = None,
        producer: vq.MessageProducer | None = None,
        way: Callable[[int], Way] = lambda _: Way(),
        timeout: float | None = None,
    ) -> None:
        super().__init__(name=f"sender-{path.stem}")
        self.begun = 0
        self.sent = 0
        self.refused = 0
        self.unknown = 0
        self.reasons: Counter[str] = Counter()  # of what was refused
        self.last_sent = time.monotonic()
        self.longest_gap_s = 0.0
        self._topic = topic
        self._client = path.stem
        self._history = _Counting(path, self)
        self._shared = producer is not None
        self._producer = producer or factory.create_producer(config)
        self._way = way
        self._timeout = timeout
        self._rate = rate
        self._size = size
        self._tick_s = tick_s
        self._stop_asked = threading.Event()
        self.failure: BaseException | None = None

    def payload(self, number: int) -> bytes:
        """Return the unique content of a message."""
        head = f"{self._client}-{number:07d}-".encode()
        length, begin = self._size - len(head), number % len(_LETTERS)
        return head + (_LETTERS * (length // len(_LETTERS) + 2))[begin : begin + length]

    def run(self) -> None:
        """Send until ``finish``."""
        number = 0
        begin = time.monotonic()
        try:
            while not self._stop_asked.wait(self._tick_s):
                due = int((time.monotonic() - begin) * self._rate)
                while number < due and not self._stop_asked.is_set():
                    key, waits = self._way(number)
                    message = vq.Message(self._topic, self.payload(number), key=key)
                    if waits:
                        bound = self._timeout or self._producer.config.send_timeout_s
                        self._history.send_sync(self._producer, message, bound)
                    else:
                        self._history.send(self._producer, message, self._timeout)
                    number += 1
        except BaseException as error:  # ``finish`` raises it
            self.failure = error

    @property
    def open(self) -> int:
        """How many sends have no outcome yet."""
        return self.begun - self.sent - self.refused - self.unknown

    def wait_sent(self, more: int, timeout_s: float = PROCESSES_WAIT_S) -> None:
        """Wait until so many more messages were acknowledged."""
        goal = self.sent + more
        block_until(lambda: self.sent >= goal or self.failure, self, timeout_s=timeout_s)

    def finish(self) -> None:
        """Stop sending, wait until every send has its outcome, end the history."""
        self._stop_asked.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        if self._shared:
            self._producer.flush()
        else:
            self._producer.close()
        self._history.close()

    def __str__(self) -> str:
        return (
            f"{self.name} gets on: sent {self.sent}, refused {self.refused}, "
            f"unknown {self.unknown}, open {self.open}"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_asked.set()
        self.join()


class _Counting(History):
    """A history that keeps its sender's counts."""

    def __init__(self, path: Path, sender: Sender) -> None:
        super().__init__(path)
        self._sender = sender
        self._lock = threading.Lock()  # the sender's thread and the factory's note outcomes

    def note(self, kind: str, **fields: Any) -> None:
        """Write, then count."""
        super().note(kind, **fields)
        with self._lock:
            self._count(kind, fields)

    def _count(self, kind: str, fields: dict[str, Any]) -> None:
        sender = self._sender
        if kind == "send":
            sender.begun += 1
        elif kind == "sent":
            now = time.monotonic()
            sender.longest_gap_s = max(sender.longest_gap_s, now - sender.last_sent)
            sender.last_sent = now
            sender.sent += 1
        elif kind == "refused":
            sender.refused += 1
            sender.reasons[fields["error"]] += 1
        elif kind == "unknown":
            sender.unknown += 1


@contextmanager
def client_of(
    cluster: ProcessCluster, *, zookeeper: str | None = None, session_timeout_s: float = 10.0
) -> Iterator[vq.MessageFactory]:
    """Open a factory on a cluster, with a session of its own."""
    config = vq.MessageFactoryConfig(
        zookeeper=zookeeper or cluster.zookeeper,
        cluster=cluster.name,
        session_timeout_s=session_timeout_s,
        start_timeout_s=PROCESSES_WAIT_S,
    )
    with vq.MessageFactory(config) as factory:
        yield factory


class StallWatch(threading.Thread):
    """Notes for how long at most this process was kept from running: the machine, not a fault."""

    def __init__(self) -> None:
        super().__init__(name="stall-watch", daemon=True)
        self.longest_s = 0.0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Measure how late every wait ends."""
        while not self._stop_asked.is_set():
            begin = time.monotonic()
            self._stop_asked.wait(_TICK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - begin - _TICK_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join()


Places = set[tuple[int, int]]


@contextmanager
def member_of(
    cluster: ProcessCluster,
    histories: Path,
    name: str,
    *,
    zookeeper: str | None = None,
    session_timeout_s: float = 10.0,
    group: str = "g",
    topic: str = "t",
) -> Iterator[Places]:
    """Run a member of a group with a session of its own; yield where its messages are stored."""
    seen: Places = set()
    with (
        History(histories / f"{name}.jsonl") as history,
        client_of(cluster, zookeeper=zookeeper, session_timeout_s=session_timeout_s) as factory,
    ):

        def take(message: vq.Message) -> None:
            history.received(message)
            seen.add((message.partition, message.offset))

        consumer = factory.create_consumer(
            vq.ConsumerConfig(group=group, member_id=name, commit_interval_s=0.2, max_wait_s=1.0)
        )
        consumer.subscribe(topic, 64 * 1024, take).start()
        yield seen


def wait_drained(log: Mapping[int, Sequence[tuple[int, str]]], *seen: Places) -> None:
    """Wait until a group has received everything."""
    every = {(p, offset) for p, messages in log.items() for offset, _ in messages}
    block_until(lambda: not every - set().union(*seen), "the group receives everything")


def owners(cluster: ProcessCluster, group: str, topic: str) -> dict[int, tuple[str, int]]:
    """Return member and session of every partition that a group owns now, as ZooKeeper has it."""
    root = f"/vq/{cluster.name}/consumers/{group}/owners/{topic}"

    def read(client: KazooClient) -> dict[int, tuple[str, int]]:
        names = client.get_children(root) if client.exists(root) else ()
        asked = {int(name): client.get_async(f"{root}/{name}") for name in names}
        found = {}
        for number, answer in asked.items():
            with contextlib.suppress(NoNodeError):  # given up meanwhile
                data, stat = answer.get()
                found[number] = (json.loads(data)["member"], stat.ephemeralOwner)
        return found

    return cluster.look(read)


def wait_shared(
    cluster: ProcessCluster,
    members: Collection[str],
    partitions: int,
    *,
    group: str = "g",
    topic: str = "t",
) -> dict[int, tuple[str, int]]:
    """Wait until the members share all partitions evenly: no hand-over is under way any more.

    Returns who owned what then, as ``owners`` does.
    """

    def shared() -> dict[int, tuple[str, int]] | None:
        found = owners(cluster, group, topic)
        count = Counter(member for member, _ in found.values())
        whole = count.keys() == set(members) and count.total() == partitions
        return found if whole and max(count.values()) - min(count.values()) <= 1 else None

    return sighted(shared, f"{sorted(members)} share {partitions} partitions evenly")


def wait_leader(zookeeper: EmbeddedZooKeeper) -> int:
    """Wait until a server of an ensemble leads; return its index."""
    return sighted(zookeeper.leader, "a server leads")


def ephemerals(cluster: ProcessCluster) -> dict[str, int]:
    """Return the session behind every ephemeral node, by its path below the cluster's root."""
    root = f"/vq/{cluster.name}"

    def read(client: KazooClient) -> dict[str, int]:
        found: dict[str, int] = {}
        level = [root]
        while level:
            asked = {path: client.get_children_async(path, include_data=True) for path in level}
            level = []
            for path, answer in asked.items():
                with contextlib.suppress(NoNodeError):  # gone meanwhile
                    children, stat = answer.get()
                    level += [f"{path}/{child}" for child in children]
                    if stat.ephemeralOwner:
                        found[path.removeprefix(f"{root}/")] = stat.ephemeralOwner
        return found

    return cluster.look(read)


def strays(cluster: ProcessCluster, *members: str, group: str = "g", senders: int = 1) -> list[str]:
    """Return what is wrong with the ephemeral nodes: orphans, doubles, missing ones.

    There live: the broker of group b1, ``senders`` clients that send, ``members`` of ``group``.
    """
    found = ephemerals(cluster)
    broker, head = "brokers/b1/nodes/n1", f"consumers/{group}/members/"
    slots = {path for path in found if path.startswith("slots/")}
    named = {path for path in found if "/nodes/" in path or "/members/" in path} | slots
    expected = {broker, *(head + name for name in members)}
    wrong = [f"{path} is missing" for path in expected - named]
    wrong += [f"{path} has no live owner" for path in named - expected - slots]
    living = {found[path] for path in named & (expected | slots)}
    if not len(slots) == len({found[path] for path in slots}) == senders:
        wrong.append(f"{senders} clients send, and have { {p: hex(found[p]) for p in slots} }")
    if len(living) != 1 + senders + len(members):
        wrong.append(f"{1 + senders + len(members)} processes live, with {len(living)} sessions")
    return wrong + [f"{path} is an orphan" for path, owner in found.items() if owner not in living]


def wait_tidy(cluster: ProcessCluster, *members: str, senders: int = 1) -> None:
    """Wait until no dead process has a node; its nodes stay until its session ends."""
    wrong: list[str] = []

    def tidy() -> bool:
        wrong[:] = strays(cluster, *members, senders=senders)
        return not wrong

    block_until(tidy, wrong)


# The end of a run -----------------------------------------------------------------------------
def read_back(factory: vq.MessageFactory, topic: str) -> dict[int, list[tuple[int, str]]]:
    """Return what the public API reads from every partition, from the first byte on.

    Retention may delete blocks meanwhile; the reader then goes on where the partition now starts.
    """
    consumer = factory.create_consumer()
    log: dict[int, list[tuple[int, str]]] = {}
    for placement in factory.get_partitions_for_topic(topic):
        number = placement.partition
        messages = log[number] = []
        offset, end = consumer.get_bounds(topic, number)
        while offset < end:
            try:
                found = consumer.get(topic, number, offset, 4 << 20)
            except vq.errors.OffsetOutOfRange:
                before, offset = offset, consumer.get_bounds(topic, number).earliest
                assert offset > before, f"{before} of {topic}-{number} is not there"
                continue
            assert found, f"nothing at {offset} of {topic}-{number}, which ends at {end}"
            messages += [(each.offset, name_of(each.content)) for each in found]
            offset = found[-1].next_offset
    consumer.close()
    return log


def read_files(
    cluster: ProcessCluster, topic: str, partitions: Mapping[int, str] | int
) -> dict[int, list[tuple[int, str]]]:
    """Return what the block files of every partition hold, read without vq's code.

    ``partitions`` maps them to their groups; a number means so many, all in group ``b1``.
    """
    groups = dict.fromkeys(range(partitions), "b1") if isinstance(partitions, int) else partitions
    log = {}
    for number, group in groups.items():
        files = read_partition(cluster.directory / group / topic / str(number))
        assert not files.damage, f"{topic}-{number}: {files.damage}"
        log[number] = [(offset, name_of(payload)) for offset, payload in files.messages]
    return log


def everything(
    member: Path, log: Mapping[int, Sequence[tuple[int, str]]]
) -> dict[int, list[tuple[int, str]]]:
    """What a group received, and what is still stored."""
    found = {number: dict(messages) for number, messages in log.items()}
    for event in read_history(member):
        if event["kind"] == "received":
            found[event["partition"]][event["offset"]] = event["value"]
    return {number: sorted(messages.items()) for number, messages in found.items()}


def judge_run(
    directory: Path,
    log: Mapping[int, Sequence[tuple[int, str]]],
    *faults: Fault,
    acknowledged_min: int = 0,
    **more: Any,
) -> Verdict:
    """Judge the histories in ``directory``; print the counts, fail on any anomaly."""
    histories = read_histories(directory.glob("*.jsonl"))
    verdict = judge(
        Evidence(
            histories=histories,
            log=log,
            faults=faults,
            acknowledged_min=acknowledged_min,
            **more,
        )
    )
    print(verdict, "; ".join(f"{fault.name}: {fault.effects}" for fault in faults))
    assert not verdict.anomalies, str(verdict)
    return verdict
