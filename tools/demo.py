"""Sends a file through a real cluster and accounts for every line.

    python tools/demo.py [--replicas N] [FILE]        or: make demo [REPLICAS=N] [INPUT=FILE]

The demo starts a real ZooKeeper and two brokers (two broker groups) in a temporary directory and
creates a topic of five partitions over both. Two producers send every line of the file while a
group of two consumers reads. Half-way it stops one consumer, so that its partitions move to the
other one. At the end it accounts for every line. The exit code is 0 only if no line is missing,
none came twice, and the group's committed offsets are at the ends. It stops all processes and
deletes all files.

With more than one replica each group has so many brokers: one leads, the others copy it. Then the
demo also kills the leading broker of the first group (kill -9) while the second half is sent, and
starts it again when another one leads.
"""

import argparse
import asyncio
import itertools
import pydoc_data.topics
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

import vq
from vq.cli.base import signals
from vq.coordination.brokers import registry
from vq.coordination.topics import topics
from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper, free_port
from vq.errors import TimedOut

TOPIC = "lines"
GROUP = "readers"
PARTITIONS = 5
PRODUCERS = 2
BROKER_GROUPS = ("b1", "b2")
DRAIN_S = 60.0
REPLICAS_MAX = 7
#: The default file: the longest text that every Python has.
DEFAULT_INPUT = Path(pydoc_data.topics.__file__)


@dataclass
class Ledger:
    """The acknowledged and the received lines. Threads only append to lists, without a lock.

    ``strike`` is called once, with the next acknowledgement.
    """

    sent: list[tuple[vq.SendResult, bytes]] = field(default_factory=list)
    failed: list[vq.VqError] = field(default_factory=list)
    received: dict[str, list[vq.Message]] = field(default_factory=dict)
    strike: Callable[[], None] | None = None

    @property
    def received_count(self) -> int:
        """Number of messages that all members received."""
        return sum(len(messages) for messages in self.received.values())

    def account(self) -> "Account":
        """Compare the received with the sent lines, position by position."""
        sent = {(result.partition, result.offset): line for result, line in self.sent}
        arrived: Counter[tuple[int, int]] = Counter()
        altered = 0
        for message in itertools.chain.from_iterable(self.received.values()):
            position = message.partition, message.offset
            arrived[position] += 1
            altered += sent.get(position, message.content) != message.content
        return Account(
            missing=len(sent.keys() - arrived.keys()),
            # Deliveries after the first one, and stored lines that no producer knows of.
            duplicated=arrived.total() - len(arrived) + len(arrived.keys() - sent.keys()),
            altered=altered,
        )


@dataclass(frozen=True)
class Text:
    """A file to be carried.

    Attributes:
        lines: How many lines it has.
        messages: Each line without its end; a line too long for a message is several.
    """

    lines: int
    messages: list[bytes]


@dataclass(frozen=True)
class Account:
    """The numbers of wrong lines; all zero if the demo succeeded."""

    missing: int
    duplicated: int
    altered: int


@dataclass(frozen=True)
class PartitionRow:
    """The group of one partition and the consumers' progress; ``committed`` None: unknown."""

    partition: int
    group: str
    end: int
    committed: int | None

    @property
    def lag(self) -> int | None:
        """Bytes between the committed offset and the end."""
        return None if self.committed is None else self.end - self.committed


class Steps:
    """Prints the steps, with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Print one step."""
        print(f"[{time.monotonic() - self._start:6.2f} s] {text}", flush=True)


@dataclass
class DemoCluster:
    """The running processes: ZooKeeper's address, and the brokers by group and node."""

    hosts: str
    brokers: dict[tuple[str, str], BrokerChild] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Number of brokers of each group."""
        return len(self.brokers) // len(BROKER_GROUPS)

    def nodes(self, group: str) -> set[str]:
        """Return the nodes of a group."""
        return {node for found, node in self.brokers if found == group}


def config_of(hosts: str) -> vq.MessageFactoryConfig:
    """Return the settings of every client."""
    return vq.MessageFactoryConfig(zookeeper=hosts, cluster="demo")


@contextmanager
def running_cluster(directory: Path, replicas: int, steps: Steps) -> Iterator[DemoCluster]:
    """Start ZooKeeper and the brokers, yield them, stop all of them."""
    with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper:
        steps.say(f"ZooKeeper serves at {zookeeper.hosts}")
        names = [(group, f"n{n + 1}") for n in range(replicas) for group in BROKER_GROUPS]
        brokers = {
            (group, node): BrokerChild(
                BrokerSpec(
                    data=directory / f"{group}-{node}",
                    group=group,
                    node=node,
                    address=vq.Address("127.0.0.1", free_port()),
                    zookeeper=zookeeper.hosts,
                    cluster="demo",
                )
            )
            for group, node in names
        }
        first = [brokers[name] for name in names if name[1] == "n1"]  # they lead their groups
        try:
            for together in (first, [each for each in brokers.values() if each not in first]):
                for broker in together:
                    broker.start()
                for broker in together:
                    broker.wait_ready()
                    steps.say(f"{told(broker, replicas)} serves at {broker.spec.address}")
            yield DemoCluster(zookeeper.hosts, brokers)
        finally:
            for broker in brokers.values():
                broker.stop()


def told(broker: BrokerChild, replicas: int) -> str:
    """Return the name of a broker, for people."""
    return f"broker group {broker.spec.group}" if replicas == 1 else f"broker {broker.spec.name}"


def wait_for_copies(cluster: DemoCluster, steps: Steps) -> None:
    """Wait until every broker may take over."""
    if cluster.replicas > 1:
        for group in BROKER_GROUPS:
            asyncio.run(wait_in_sync(cluster, group))
        steps.say("all brokers are in sync: a line is acknowledged when all of its group have it")


async def make_topic(hosts: str) -> None:
    """Create the topic; its partitions are spread over the broker groups."""
    coordinator = ZooKeeperCoordinator(hosts, "demo")
    await coordinator.start()
    try:
        await topics.create_topic(coordinator, TOPIC, vq.TopicSettings(partitions=PARTITIONS))
    finally:
        await coordinator.close()


def produce(factory: vq.MessageFactory, lines: Sequence[bytes], ledger: Ledger) -> None:
    """Send ``lines`` as one producer; store the place of each one."""

    def outcome(line: bytes, result: vq.SendResult | None, error: vq.VqError | None) -> None:
        if result is not None:
            ledger.sent.append((result, line))
            if ledger.strike is not None:
                strike, ledger.strike = ledger.strike, None
                strike()
        elif error is not None:
            ledger.failed.append(error)

    try:
        with factory.create_producer() as producer:
            for line in lines:
                producer.send_async(
                    vq.Message(TOPIC, line),
                    lambda result, error, line=line: outcome(line, result, error),
                )
            producer.flush()
    except vq.VqError as error:  # ctrl-C closes the factory under it: the other lines stay unsent
        ledger.failed.append(error)


def consume(config: vq.MessageFactoryConfig, ledger: Ledger, name: str) -> vq.MessageFactory:
    """Start one consumer with a session of its own."""
    factory = vq.MessageFactory(config).open()
    consumer = factory.create_consumer(vq.ConsumerConfig(group=GROUP, member_id=name))
    messages = ledger.received.setdefault(name, [])
    consumer.subscribe(TOPIC, 256 * 1024, messages.append).start()
    return factory


def wait_until(condition: Callable[[], bool], deadline_s: float = DRAIN_S) -> bool:
    """Wait until ``condition`` holds or the time is up; return whether it holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def carry(cluster: DemoCluster, lines: list[bytes], ledger: Ledger, steps: Steps) -> float:
    """Send and receive every line, with a hand-over half-way; return the seconds it took."""
    config = config_of(cluster.hosts)
    with ExitStack() as stack:
        leaver = consume(config, ledger, "consumer-1")
        stack.callback(leaver.shutdown)
        stayer = consume(config, ledger, "consumer-2")
        stack.callback(stayer.shutdown)
        factory = stack.enter_context(vq.MessageFactory(config))
        start = time.monotonic()
        half = len(lines) // 2
        send(factory, lines[:half], ledger)
        wait_until(lambda: ledger.received_count >= half // 2)
        steps.say(f"{ledger.received_count:,} messages received; consumer-1 is stopped now")
        leaving = threading.Thread(target=leaver.shutdown)
        leaving.start()
        if cluster.replicas > 1:
            send_through_a_kill(cluster, factory, lines[half:], ledger, steps)
        else:
            send(factory, lines[half:], ledger)
        leaving.join()
        steps.say("consumer-1 has left; consumer-2 has its partitions")
        wait_until(lambda: ledger.received_count >= len(ledger.sent))
        return time.monotonic() - start


def send_through_a_kill(
    cluster: DemoCluster,
    factory: vq.MessageFactory,
    lines: Sequence[bytes],
    ledger: Ledger,
    steps: Steps,
) -> None:
    """Send ``lines``; kill the first group's master meanwhile, and start it again afterwards."""
    group = BROKER_GROUPS[0]
    state = asyncio.run(group_state(cluster.hosts, group, lambda _: True))
    master = state.master
    killed = cluster.brokers[group, master]
    acknowledged: list[int] = []

    def strike() -> None:
        killed.signal(signal.SIGKILL)
        acknowledged.append(len(ledger.sent))

    ledger.strike = strike
    sending = threading.Thread(target=send, args=(factory, lines, ledger))
    sending.start()
    wait_until(lambda: bool(acknowledged) and not killed.running)
    begin = time.monotonic()
    steps.say(
        f"{sum(acknowledged):,} messages acknowledged; {killed.spec.name} is killed (kill -9)"
    )
    state = asyncio.run(group_state(cluster.hosts, group, lambda now: now.master != master))
    steps.say(
        f"{group}/{state.master} leads in epoch {state.epoch}, {time.monotonic() - begin:.1f} s "
        "later: ZooKeeper had to end the session of the killed one first"
    )
    sending.join()
    steps.say(f"{len(ledger.sent):,} messages acknowledged; {killed.spec.name} is started again")
    killed.start()
    asyncio.run(wait_in_sync(cluster, group))
    steps.say(f"{killed.spec.name} follows {group}/{state.master} and has what it lacked")


async def wait_in_sync(cluster: DemoCluster, group: str) -> None:
    """Wait until every node of a group is in sync: it has all acknowledged messages."""
    nodes = cluster.nodes(group)
    await group_state(cluster.hosts, group, lambda now: set(now.insync) == nodes)


async def group_state(
    hosts: str, group: str, condition: Callable[[GroupState], bool]
) -> GroupState:
    """Wait until ``condition`` holds for the record of a group, and return it.

    Raises:
        TimedOut: It does not in time.
    """
    coordinator = ZooKeeperCoordinator(hosts, "demo")
    await coordinator.start()
    deadline = time.monotonic() + DRAIN_S
    try:
        while time.monotonic() < deadline:
            state = await registry.read_state(coordinator, group)
            if state is not None and condition(state):
                return state
            await asyncio.sleep(0.02)
        raise TimedOut(f"broker group {group} is not as it should be after {DRAIN_S:g} s: {state}")
    finally:
        await coordinator.close()


def send(factory: vq.MessageFactory, lines: Sequence[bytes], ledger: Ledger) -> None:
    """Send ``lines`` from several producers at once, every n-th line from each."""
    threads = [
        threading.Thread(target=produce, args=(factory, lines[number::PRODUCERS], ledger))
        for number in range(PRODUCERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def partition_rows(hosts: str) -> list[PartitionRow]:
    """Ask the cluster for the placements of the partitions and the group's committed offsets."""
    from vq import aio  # the coroutine API reads well here, and nowhere else in this program

    async with aio.MessageFactory(config_of(hosts)) as factory:
        consumer = await factory.create_consumer(vq.ConsumerConfig(group=GROUP))
        committed = await consumer.get_offset(TOPIC)
        rows = []
        for placement in await factory.get_partitions_for_topic(TOPIC):
            partition = vq.TopicPartition(TOPIC, placement.partition)
            latest = (await consumer.get_bounds(TOPIC, placement.partition)).latest
            group = placement.writer_group or "-"
            rows.append(PartitionRow(placement.partition, group, latest, committed.get(partition)))
        return rows


def is_whole(ledger: Ledger, account: Account, rows: Sequence[PartitionRow], messages: int) -> bool:
    """Return whether every message arrived exactly once and the group's progress is at the ends.

    A partition without a message has no progress.
    """
    carried = len(ledger.sent) == messages and account == Account(0, 0, 0)
    return carried and all(row.end == 0 or row.lag == 0 for row in rows)


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def report(
    console: Console,
    ledger: Ledger,
    account: Account,
    rows: Sequence[PartitionRow],
    text: Text,
    took_s: float,
) -> None:
    """Print the numbers of lines and messages, and the place of each partition."""
    partitions = Table(title="partitions", title_justify="left")
    for name in ("partition", "broker group", "log end", "committed", "lag"):
        partitions.add_column(name, justify="left" if name == "broker group" else "right")
    for row in rows:
        numbers = (_number(row.end), _number(row.committed), _number(row.lag))
        partitions.add_row(str(row.partition), row.group, *numbers)
    console.print(partitions)
    totals = Table(title="lines and messages", title_justify="left", show_header=False)
    totals.add_column()
    totals.add_column(justify="right")
    shares = ", ".join(f"{name} {len(got):,}" for name, got in sorted(ledger.received.items()))
    for name, value in (
        ("lines in the file", f"{text.lines:,}"),
        ("messages (a long line is several)", f"{len(text.messages):,}"),
        ("sent and acknowledged", f"{len(ledger.sent):,}"),
        ("received", f"{ledger.received_count:,}"),
        ("by consumer", shares),
        ("missing", f"{account.missing:,}"),
        ("duplicated", f"{account.duplicated:,}"),
        ("altered", f"{account.altered:,}"),
        ("refused or unknown", f"{len(ledger.failed):,}"),
        ("messages per second, sent and received", f"{len(ledger.sent) / took_s:,.0f}"),
    ):
        totals.add_row(name, value)
    console.print(totals)


def read_text(path: Path) -> Text:
    """Return the lines of a file, and the messages that carry them."""
    bound = vq.TopicSettings().max_message_bytes
    lines, messages = 0, []
    with path.open("rb") as file:
        for raw in file:
            line = raw.rstrip(b"\r\n")
            lines += 1
            messages += [line[at : at + bound] for at in range(0, len(line), bound)] or [b""]
    return Text(lines, messages)


def main() -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(description="A real cluster carries a real file.")
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_INPUT)
    parser.add_argument("--replicas", type=int, default=1, help="brokers of each group")
    arguments = parser.parse_args()
    path: Path = arguments.file
    if not 1 <= arguments.replicas <= REPLICAS_MAX:
        print(f"replicas = {arguments.replicas} is outside [1, {REPLICAS_MAX}]", file=sys.stderr)
        return 2
    steps = Steps()
    try:
        text = read_text(path)
    except OSError as error:
        print(f"cannot read {path}: {error.strerror}", file=sys.stderr)
        return 2
    if not text.lines:
        print(f"{path} has no lines; name a file with text: make demo INPUT=FILE", file=sys.stderr)
        return 2
    split = f", {len(text.messages):,} messages" if text.lines < len(text.messages) else ""
    steps.say(f"{text.lines:,} lines of {path}{split}")
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="vq-demo-") as scratch:
        with running_cluster(Path(scratch), arguments.replicas, steps) as cluster:
            asyncio.run(make_topic(cluster.hosts))
            steps.say(
                f"topic {TOPIC!r} with {PARTITIONS} partitions over {len(BROKER_GROUPS)} groups"
            )
            wait_for_copies(cluster, steps)
            took_s = carry(cluster, text.messages, ledger, steps)
            rows = asyncio.run(partition_rows(cluster.hosts))
        steps.say("everything is stopped")
    account = ledger.account()
    report(Console(), ledger, account, rows, text, took_s)
    if is_whole(ledger, account, rows, len(text.messages)):
        print("every line arrived exactly once")
        return 0
    print("NOT every line arrived exactly once, or the group's offsets do not say so")
    return 1


def run() -> int:
    """Run the demo; report an early end in one line, after all processes are stopped.

    SIGTERM ends it as ctrl-C does: a killed Python would leave processes and files.
    """
    signals.install()
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted; everything is stopped", file=sys.stderr)
        return signals.exit_code()
    except vq.VqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(run())
