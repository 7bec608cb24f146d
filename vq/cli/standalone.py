"""``vq standalone``: a real ZooKeeper and brokers as children of one process, for development.

<data>/zookeeper/       the server's directory
<data>/b1/ <data>/b2/   one data directory per broker, <data>/b1.log beside it
<data>/b1-n2/           that of the second node of group b1
<data>/standalone.lock  held while it runs: two must not share the directory
"""

import contextlib
import fcntl
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from vq.backoff import Backoff
from vq.cli.options import Invocation, WholeNumber, command_options
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper, free_port
from vq.errors import DirectoryRefused, InvalidArgument, VqError
from vq.model import Address
from vq.store.directory import unusable
from vq.store.disk import RealDisk

_HOST = "127.0.0.1"
_TICK_S = 0.2
BROKERS_MAX = 64
REPLICAS_MAX = 7
#: Pauses before a broker that ended is started again.
_BACKOFF = Backoff(first_s=0.5, most_s=30.0)
#: A broker that ran so long had started well: its next end is a first one.
_RAN_WELL_S = 60.0
#: A broker that ended so often in a row is not started again: something is wrong with it.
STARTS_MAX = 8


class PortTaken(VqError):
    """A port that was asked for is in use by another process."""

    hint = "stop what listens there, or name other ports; 0 takes free ones"


class Supervised:
    """A broker that is started again when it ends.

    Args:
        child: The broker.
        restarts: Whether it is; otherwise its end is told once.

    Attributes:
        child: The broker.
        given_up: It is not started again.
    """

    def __init__(self, child: BrokerChild, *, restarts: bool = True) -> None:
        self.child = child
        self.given_up = False
        self._restarts = restarts
        self._ends = 0
        self._started = 0.0
        self._start_at: float | None = None  # it ended, and is started again then

    def start(self, now: float) -> None:
        """Start it."""
        self._start_at = None
        self._started = now
        self.child.start()

    def look(self, now: float) -> str:
        """Start it again if that is due; return what is to be said, "" for nothing."""
        if self.given_up or self.child.running:
            return ""
        if self._start_at is not None:
            if now >= self._start_at:
                self.start(now)
            return ""
        self._ends = 1 if now - self._started >= _RAN_WELL_S else self._ends + 1
        process = self.child.process
        ended = (
            f"broker {self.child.spec.name} ended unexpectedly (code "
            f"{process.returncode if process else None}); its log is {self.child.spec.log}"
        )
        if not self._restarts:
            self.given_up = True
            return (
                f"{ended}. The others go on; stop this command and start it again to have it back."
            )
        if self._ends >= STARTS_MAX:
            self.given_up = True
            return f"{ended}. It ended {self._ends} times in a row and is not started again"
        pause_s = _BACKOFF.pause_s(self._ends)
        self._start_at = now + pause_s
        return f"{ended}. It is started again in {pause_s:g} s"


class StandaloneCluster:
    """ZooKeeper and brokers on this machine. Use from the main thread.

    Args:
        zookeeper: A server that runs.
        brokers: Not started; the first nodes of all groups come first.
        restarts: Whether brokers that end are started again.
    """

    def __init__(
        self, zookeeper: EmbeddedZooKeeper, brokers: list[BrokerChild], *, restarts: bool
    ) -> None:
        self.zookeeper = zookeeper
        self.brokers = [Supervised(child, restarts=restarts) for child in brokers]

    def start(self, stop: threading.Event) -> None:
        """Start the brokers and wait until each one leads or follows, or ``stop`` is set.

        The first node of a group leads it, so the others are started after it.

        Raises:
            ChildEnded, ChildSilent: One does not; shows its log.
        """
        first = [each for each in self.brokers if each.child.spec.node == _node(1)]
        for brokers in (first, [each for each in self.brokers if each not in first]):
            for each in brokers:
                each.start(time.monotonic())
            for each in brokers:
                if not stop.is_set():
                    each.child.wait_ready()

    def stop(self) -> None:
        """Stop brokers gracefully, all at once, then ZooKeeper."""
        for each in self.brokers:
            each.child.signal(signal.SIGTERM)
        for each in self.brokers:
            each.child.stop()
        self.zookeeper.stop()


@click.command()
@click.option(
    "--brokers",
    type=WholeNumber(1, BROKERS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Broker groups, b1 to bN; one broker process uses one core.",
)
@click.option(
    "--replicas",
    type=WholeNumber(1, REPLICAS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Nodes of each group, n1 to nN: one leads, the others copy its logs and take over.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("vq-data"),
    show_default=True,
    help="Where everything is kept; used again next time.",
)
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    metavar="N",
    default=8123,
    show_default=True,
    help="Port of the first broker, the others follow; 0 takes free ones.",
)
@click.option(
    "--zookeeper-port",
    type=WholeNumber(0, 65535),
    metavar="N",
    default=2181,
    show_default=True,
    help="Port of ZooKeeper; 0 takes a free one.",
)
@command_options
def standalone(
    invocation: Invocation,
    brokers: int,
    replicas: int,
    data: Path,
    port: int,
    zookeeper_port: int,
) -> None:
    """Run ZooKeeper and brokers here, for development.

    Runs until ctrl-C and takes everything down with it. With --replicas above 1, a broker that ends
    by itself is started again. Everything listens on 127.0.0.1 only. Not for production: there,
    ZooKeeper is an ensemble of its own and `vq broker` runs on each machine.
    """
    if "zookeeper" in invocation.sources.flags:
        raise InvalidArgument("standalone starts its own ZooKeeper: give --zookeeper-port instead")
    cluster_name = invocation.client_config().cluster
    names = [(f"b{b + 1}", _node(n + 1)) for n in range(replicas) for b in range(brokers)]
    ports = _broker_ports(len(names), port)
    if zookeeper_port in ports:
        raise InvalidArgument(
            f"--zookeeper-port {zookeeper_port} is also the port of broker "
            f"{'/'.join(names[ports.index(zookeeper_port)])}: the brokers take {ports[0]} to "
            f"{ports[-1]}, choose another for one of them with --zookeeper-port or --port"
        )
    if zookeeper_port:
        _check_free(zookeeper_port, "ZooKeeper", "--zookeeper-port")
    with _stop_signals() as stop, _exclusive(data):
        invocation.output.remark(f"starting ZooKeeper and {len(names)} broker(s) in {data} ...")
        zookeeper = EmbeddedZooKeeper(data / "zookeeper", port=zookeeper_port)
        zookeeper.start()
        cluster = StandaloneCluster(
            zookeeper,
            [
                BrokerChild(_spec(data, *name, broker_port, zookeeper.hosts, cluster_name))
                for name, broker_port in zip(names, ports, strict=True)
            ],
            restarts=replicas > 1,
        )
        try:
            cluster.start(stop)
            if stop.is_set():
                return
            _announce(invocation, cluster, data)
            _watch(invocation, cluster, stop)
        finally:
            invocation.output.remark("stopping ...")
            cluster.stop()


def _node(number: int) -> str:
    return f"n{number}"


def _spec(data: Path, group: str, node: str, port: int, zookeeper: str, cluster: str) -> BrokerSpec:
    directory = group if node == _node(1) else f"{group}-{node}"
    return BrokerSpec(
        data=(data / directory).absolute(),
        group=group,
        node=node,
        address=Address(_HOST, port),
        zookeeper=zookeeper,
        cluster=cluster,
    )


def _announce(invocation: Invocation, cluster: StandaloneCluster, data: Path) -> None:
    output = invocation.output
    children = [
        {
            "group": child.spec.group,
            "node": child.spec.node,
            "address": str(child.spec.address),
            "pid": child.pid,
            "log": str(child.spec.log),
        }
        for child in (each.child for each in cluster.brokers)
    ]
    has_copies = any(child["node"] != _node(1) for child in children)
    hosts = cluster.zookeeper.hosts
    if output.as_json:
        output.document({"zookeeper": hosts, "data": str(data.absolute()), "brokers": children})
        return
    output.line(f"ZooKeeper  {hosts}")
    for child in children:
        name = f"{child['group']}/{child['node']}" if has_copies else child["group"]
        output.line(f"broker {name}  {child['address']}  (log {child['log']})")
    flag = "" if hosts == "127.0.0.1:2181" else f" --zookeeper {hosts}"
    output.line("")
    output.line("Try, in another terminal:")
    output.line(f"  vq topic create hello --partitions 2{flag}")
    output.line(f"  echo world | vq produce hello{flag}")
    output.line(f"  vq consume hello --group me --max 1{flag}")
    output.line("")
    output.line("ctrl-C stops everything; the data stay for the next time.")


def _watch(invocation: Invocation, cluster: StandaloneCluster, stop: threading.Event) -> None:
    """Wait for the signal to stop; start brokers again that end by themselves, and say so."""
    while not stop.wait(_TICK_S):
        for each in cluster.brokers:
            told = each.look(time.monotonic())
            if told:
                invocation.output.remark(told)
        if all(each.given_up for each in cluster.brokers):
            raise VqError("every broker has ended; the reasons are in their logs, named above")
        if not cluster.zookeeper.pids:
            raise VqError(f"ZooKeeper has ended; its log is in {cluster.zookeeper.directory}")


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Turn SIGINT, SIGTERM and SIGHUP into an event; a second one interrupts at once."""
    stop = threading.Event()

    def asked(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, asked) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _exclusive(data: Path) -> Iterator[None]:
    try:
        RealDisk().mkdir(data)
        lock_file = (data / "standalone.lock").open("a")
    except OSError as error:
        raise unusable(data, error) from error
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DirectoryRefused(
                f"another `vq standalone` runs in {data.absolute()}: stop it, or give --data"
            ) from None
        yield


def _broker_ports(count: int, first: int) -> list[int]:
    if first == 0:
        return [free_port() for _ in range(count)]
    if first + count - 1 > 65535:
        raise InvalidArgument(f"--port {first} leaves no room for {count} brokers below 65536")
    ports = list(range(first, first + count))
    for port in ports:
        _check_free(port, "a broker", "--port")
    return ports


def _check_free(port: int, who: str, flag: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise PortTaken(
                f"port {port} for {who} cannot be used on {_HOST} ({error.strerror}); "
                f"choose another with {flag}, 0 takes a free one"
            ) from error
