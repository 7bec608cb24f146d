"""``vq standalone``: a real ZooKeeper and brokers as children of one process, for development.

<data>/zookeeper/       the server's directory
<data>/b1/ <data>/b2/   one data directory per broker, <data>/b1.log beside it
<data>/b1-n2/           that of the second node of group b1
<data>/standalone.lock  held while it runs: two must not share the directory
"""

import contextlib
import fcntl
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

import click

from vq.backoff import Backoff
from vq.broker.base.config import is_every_address
from vq.cli.base.console import missing_package
from vq.cli.base.json_schema import maybe, record, shows, some
from vq.cli.base.options import (
    Invocation,
    WholeNumber,
    command_options,
    directory,
    flag,
    option,
    plaintext_option,
)
from vq.devtools.processes import BrokerChild, BrokerSpec, ConsoleChild
from vq.devtools.zookeeper import EmbeddedZooKeeper, find_parts, full_text
from vq.errors import DirectoryRefused, InvalidArgument, VqError
from vq.model import Address, check_host
from vq.remoting.ports import LOOPBACK, free_port, is_loopback, port_error
from vq.store.directory.directory import unusable
from vq.store.disk.real_disk import RealDisk
from vq.waits import Latch

CONSOLE_PORT = 8120
_TICK_S = 0.2
_LOCK = "standalone.lock"
BROKERS_MAX = 64
_METRICS_ABOVE = 100
REPLICAS_MAX = 7
#: Pauses before a child that ended is started again.
_BACKOFF = Backoff(first_s=0.5, most_s=30.0)
#: A child that ran so long had started well: its next end is a first one.
_RAN_WELL_S = 60.0
#: A child that ended so often in a row is not started again: something is wrong with it.
STARTS_MAX = 8


class ChildrenEnd(VqError):
    """Children end again and again, and are not started any more."""

    hint = "the reasons are at the ends of these logs; the data stay for the next time"


class PortTaken(VqError):
    """A port that was asked for is in use by another process."""

    hint = "stop what listens there, or name other ports; 0 takes free ones"


class Child(Protocol):
    """A process that this one runs."""

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        ...

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs."""
        ...

    def start(self) -> object:
        """Start it.

        Raises:
            VqError: It does not start.
        """
        ...


class Supervised:
    """A child that is started again when it ends.

    Args:
        child: The broker, or ZooKeeper. It runs.
        name: What it is, for people.
        log: Where its output is.

    Attributes:
        name: See the argument.
        log: See the argument.
        given_up: It ended too often in a row, and is not started again.
    """

    def __init__(self, child: Child, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.given_up = False
        self._child = child
        self._ends = 0
        self._started = 0.0
        self._start_at: float | None = None  # it ended, and is started again then

    def look(self, now: float) -> str:
        """Start it again if that is due; return what is to be said, "" for nothing."""
        if self.given_up or self._child.running:
            return ""
        if self._start_at is None:
            return self._ended(now, _end_text(self._child.exit_code))
        if now < self._start_at:
            return ""
        self._start_at = None
        self._started = now
        try:
            self._child.start()
        except VqError as error:
            return self._ended(now, f"was not started again ({error})")
        return ""

    def _ended(self, now: float, how: str) -> str:
        self._ends = 1 if now - self._started >= _RAN_WELL_S else self._ends + 1
        said = f"{self.name} {how}; its log is {self.log}"
        if self._ends >= STARTS_MAX:
            self.given_up = True
            return f"{said}. It ended {self._ends} times in a row and is not started again"
        pause_s = _BACKOFF.pause_s(self._ends)
        self._start_at = now + pause_s
        return f"{said}. It is started again in {pause_s:g} s"


def _end_text(code: int | None) -> str:
    """Say how a child ended by itself."""
    if code is None or code >= 0:
        return f"ended by itself with exit code {'unknown' if code is None else code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed ({name})"


class StandaloneCluster:
    """ZooKeeper, brokers and the console on this machine. Use from the main thread.

    Args:
        zookeeper: A server that runs.
        brokers: Not started; the first nodes of all groups come first.
        console: Not started; None: there is none.
    """

    def __init__(
        self,
        zookeeper: EmbeddedZooKeeper,
        brokers: list[BrokerChild],
        console: ConsoleChild | None = None,
    ) -> None:
        self.zookeeper = zookeeper
        self.brokers = brokers
        self.console = console

    def start(self, stop: Latch) -> None:
        """Start the brokers and wait until each one leads or follows, or ``stop`` is set.

        The first node of a group leads it, so the others are started after it.

        Raises:
            ChildEnded, ChildSilent: One does not; shows its log.
        """
        if self.console is not None:
            self.console.start()
        first = [each for each in self.brokers if each.spec.node == _node(1)]
        for brokers in (first, [each for each in self.brokers if each not in first]):
            for each in brokers:
                each.start()
            for each in brokers:
                if not stop.is_set:
                    each.wait_ready()
        if self.console is not None and not stop.is_set:
            self.console.wait_ready()

    def stop(self) -> None:
        """Stop brokers gracefully, all at once, then ZooKeeper."""
        children = [*self.brokers, *([] if self.console is None else [self.console])]
        for each in children:
            each.signal(signal.SIGTERM)
        for each in children:
            each.stop()
        self.zookeeper.stop()


@click.command()
@option(
    "--brokers N",
    "Broker groups, b1 to bN; one broker process uses one core.",
    WholeNumber(1, BROKERS_MAX),
    default=1,
)
@option(
    "--replicas N",
    "Nodes of each group, n1 to nN: one leads, the others copy its logs and take over.",
    WholeNumber(1, REPLICAS_MAX),
    default=1,
)
@option(
    "--data", "Where everything is kept; used again next time.", directory, default=Path("vq-data")
)
@option(
    "--host ADDRESS",
    "Address of this machine where all of it listens, and which clients are told.",
    default=LOOPBACK,
)
@option(
    "--port N",
    "Port of the first broker, the others follow; 0 takes free ones.",
    WholeNumber(0, 65535),
    default=8123,
)
@option(
    "--zookeeper-port N",
    "Port of ZooKeeper; 0 takes a free one.",
    WholeNumber(0, 65535),
    default=2181,
)
@option(
    "--console-port N",
    "Port of the web console; 0 takes a free one.",
    WholeNumber(0, 65535),
    default=CONSOLE_PORT,
)
@plaintext_option
@flag("--no-console", "Run no web console.")
@shows(
    record(
        zookeeper=str,
        data=str,
        console=maybe(str),
        brokers=some(record(group=str, node=str, address=str, pid=int, log=str, metrics=str)),
    )
)
@command_options
def standalone(
    invocation: Invocation,
    brokers: int,
    replicas: int,
    data: Path,
    host: str,
    port: int,
    zookeeper_port: int,
    console_port: int,
    plaintext: bool | None,
    no_console: bool,
) -> None:
    """Run ZooKeeper, brokers and a web console here, for development.

    Runs until ctrl-C and takes everything down with it. A broker that ends by itself, or
    ZooKeeper, is started again. Everything listens on 127.0.0.1, unless --host names another
    address, with --plaintext: whoever reaches that one can read, send and delete everything, and
    whoever is on the way can read it. Not for production:
    there, ZooKeeper is an ensemble of its own and `vq broker` runs on each machine.
    """
    if "zookeeper" in invocation.sources.flags:
        raise InvalidArgument("standalone starts its own ZooKeeper: give --zookeeper-port instead")
    cluster_name = invocation.client_config().cluster
    names = [(f"b{b + 1}", _node(n + 1)) for n in range(replicas) for b in range(brokers)]
    check_told_host(host)
    if not is_loopback(host) and not plaintext:
        raise InvalidArgument(
            f"--host {host} is reached by other machines, and standalone has neither TLS nor "
            "passwords: add --plaintext if the network is yours alone"
        )
    java, jars = find_parts()
    _check_not_running(data)
    ports = _broker_ports(len(names), Address(host, port))
    if zookeeper_port in ports:
        raise InvalidArgument(
            f"--zookeeper-port {zookeeper_port} is also the port of broker "
            f"{'/'.join(names[ports.index(zookeeper_port)])}: the brokers take {ports[0]} to "
            f"{ports[-1]}, choose another for one of them with --zookeeper-port or --port"
        )
    for each in ports if port else ():
        _check_free(Address(host, each), "a broker", "--port")
    if zookeeper_port:
        _check_free(Address(host, zookeeper_port), "ZooKeeper", "--zookeeper-port")
    console_at = None if no_console else _console_address(invocation, host, console_port, ports)
    with _stop_signals() as stop, exclusive(data):
        invocation.output.remark(f"starting ZooKeeper and {len(names)} broker(s) in {data} ...")
        zookeeper = EmbeddedZooKeeper(
            data / "zookeeper", port=zookeeper_port, host=host, java=java, jars=jars
        )
        zookeeper.start()
        cluster = StandaloneCluster(
            zookeeper,
            [
                BrokerChild(
                    _spec(data, *name, Address(host, each), metrics, zookeeper.hosts, cluster_name)
                )
                for name, each, metrics in zip(
                    names, ports, _metrics_ports(host, ports), strict=True
                )
            ],
            None
            if console_at is None
            else ConsoleChild(data, console_at, zookeeper.hosts, cluster_name),
        )
        try:
            cluster.start(stop)
            if stop.is_set:
                return
            _announce(invocation, cluster, data)
            watch_over(invocation, cluster, stop)
        finally:
            invocation.output.remark("stopping ...")
            cluster.stop()


def _console_address(
    invocation: Invocation, host: str, port: int, taken: list[int]
) -> Address | None:
    """Return where the console listens; None, with a remark: there can be none.

    It is a help, and no reason for the cluster not to run.
    """
    missing = missing_package()
    if missing:
        invocation.output.remark(f"no web console: {missing}")
        return None
    if is_loopback(host):
        if port and port not in taken and _is_free(Address(host, port)):
            return Address(host, port)
        if not port or port == CONSOLE_PORT:
            return Address(host, free_port(host))
        _check_free(Address(host, port), "the console", "--console-port")
        raise InvalidArgument(f"--console-port {port} is also the port of a broker")
    invocation.output.remark(
        f"no web console: {host} is reached by others; start `vq console` with an account"
    )
    return None


def _node(number: int) -> str:
    return f"n{number}"


def _spec(
    data: Path,
    group: str,
    node: str,
    address: Address,
    metrics_port: int,
    zookeeper: str,
    cluster: str,
) -> BrokerSpec:
    directory = group if node == _node(1) else f"{group}-{node}"
    return BrokerSpec(
        data=(data / directory).absolute(),
        group=group,
        node=node,
        address=address,
        zookeeper=zookeeper,
        cluster=cluster,
        metrics_port=metrics_port,
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
            "metrics": f"http://{child.spec.metrics}/metrics",
        }
        for child in cluster.brokers
    ]
    has_copies = any(child["node"] != _node(1) for child in children)
    hosts = cluster.zookeeper.hosts
    console = None if cluster.console is None else f"http://{cluster.console.address}/"
    if output.document(
        {
            "zookeeper": hosts,
            "data": str(data.absolute()),
            "console": console,
            "brokers": children,
        }
    ):
        return
    output.line(f"ZooKeeper  {hosts}")
    for child in children:
        name = f"{child['group']}/{child['node']}" if has_copies else child["group"]
        output.line(f"broker {name}  {child['address']}  (log {child['log']})")
    for child in children:
        output.line(f"metrics {child['group']}/{child['node']}  {child['metrics']}")
    if console is not None:
        assert cluster.console is not None
        told = f"log {cluster.console.log}, database {cluster.console.database}"
        output.line(f"console  {console}  ({told})")
    flag = "" if hosts == "127.0.0.1:2181" else f" --zookeeper {hosts}"
    name = invocation.client_config().cluster
    flag += "" if name == "default" else f" --cluster {name}"
    output.line("")
    output.line("Try, in another terminal:")
    output.line(f"  vq topic create hello --partitions 2{flag}")
    output.line(f"  echo world | vq produce hello{flag}")
    output.line(f"  vq consume hello --group me --max 1{flag}")
    output.line("")
    output.line("ctrl-C stops everything; the data stay for the next time.")


def watch_over(invocation: Invocation, cluster: StandaloneCluster, stop: Latch) -> None:
    """Wait for the signal to stop; start children again that end by themselves, and say so.

    Raises:
        ChildrenEnd: ZooKeeper or all brokers are given up, or some are when the signal comes.
    """
    log = cluster.zookeeper.directory / "server-1" / "server.log"
    zookeeper = Supervised(cluster.zookeeper, "ZooKeeper", log)
    brokers = [
        Supervised(each, f"broker {each.spec.name}", each.spec.log) for each in cluster.brokers
    ]
    console = [
        Supervised(each, "the console", each.log) for each in (cluster.console,) if each is not None
    ]
    while not (zookeeper.given_up or all(each.given_up for each in brokers)):
        if stop.wait(_TICK_S):
            break
        for each in (zookeeper, *brokers, *console):
            told = each.look(time.monotonic())
            if told:
                invocation.output.remark(told)
    given_up = [each for each in (zookeeper, *brokers) if each.given_up]
    if given_up:
        listed = ", ".join(f"{each.name} ({each.log})" for each in given_up)
        raise ChildrenEnd(
            f"ended {STARTS_MAX} times in a row: {listed}{full_text(given_up[0].log.parent)}"
        )


@contextlib.contextmanager
def _stop_signals() -> Iterator[Latch]:
    """Turn SIGINT, SIGTERM and SIGHUP into an event; a second one interrupts at once."""
    stop = Latch()

    def asked(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set:
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
def exclusive(data: Path) -> Iterator[None]:
    try:
        RealDisk().mkdir(data)
        lock_file = (data / _LOCK).open("a")
    except OSError as error:
        raise unusable(data, error) from error
    with lock_file as lock:
        _lock(lock, data)
        yield


def _check_not_running(data: Path) -> None:
    """Return if no other one runs in a directory, whose ports are taken then; makes no directory.

    Raises:
        DirectoryRefused: One does.
    """
    try:
        lock_file = (data / _LOCK).open("r")
    except OSError:
        return  # none ran there yet, or ``exclusive`` says what is wrong
    with lock_file as lock:
        _lock(lock, data)


def _lock(lock: IO[str], data: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DirectoryRefused(
            f"another `vq standalone` runs in {data.absolute()}: stop it, or give --data"
        ) from None


def check_told_host(host: str) -> None:
    """Return if clients can be told this address.

    Raises:
        InvalidArgument: It is no name of a host, or means every address of a machine.
        PortTaken: It is not an address of this machine.
    """
    if is_every_address(check_host(host)):
        raise InvalidArgument(
            f"--host {host} is every address of this machine, and clients are told one: name it"
        )
    error = port_error(Address(host, 0))
    if error is not None:
        raise PortTaken(
            f"nothing can listen on --host {host} ({error}); give an address of this machine"
        )


def _broker_ports(count: int, first: Address) -> list[int]:
    if first.port == 0:
        return [free_port(first.host) for _ in range(count)]
    if first.port + count - 1 > 65535:
        raise InvalidArgument(f"--port {first.port} leaves no room for {count} brokers below 65536")
    return list(range(first.port, first.port + count))


def _metrics_ports(host: str, ports: list[int]) -> list[int]:
    """Return a port for the metrics of each broker: a hundred above its own, or any free one.

    The usual 8124 is that of the second broker here.
    """
    wanted = [port + _METRICS_ABOVE for port in ports]
    return [
        port if port not in ports and _is_free(Address(host, port)) else free_port(host)
        for port in wanted
    ]


def _is_free(address: Address) -> bool:
    return address.port <= 65535 and port_error(address) is None


def _check_free(address: Address, who: str, flag: str) -> None:
    error = port_error(address)
    if error is not None:
        raise PortTaken(
            f"port {address.port} for {who} cannot be used on {address.host} ({error}); "
            f"choose another with {flag}, 0 takes a free one"
        )
