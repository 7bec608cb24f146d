"""``vq standalone``: a real ZooKeeper and brokers as children of one process, for development.

<data>/zookeeper/       the server's directory
<data>/b1/ <data>/b2/   one data directory per broker, <data>/b1.log beside it
<data>/standalone.lock  held while it runs: two must not share the directory
"""

import contextlib
import fcntl
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

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


class PortTaken(VqError):
    """A port that was asked for is in use by another process."""

    hint = "stop what listens there, or name other ports; 0 takes free ones"


class StandaloneCluster:
    """ZooKeeper and brokers on this machine. Use from the main thread."""

    def __init__(self, zookeeper: EmbeddedZooKeeper, brokers: list[BrokerChild]) -> None:
        self.zookeeper = zookeeper
        self.brokers = brokers

    def start(self, stop: threading.Event) -> None:
        """Start the brokers and wait until each one leads its group, or ``stop`` is set.

        Raises:
            ChildEnded, ChildSilent: One does not; shows its log.
        """
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            if not stop.is_set():
                broker.wait_ready()

    def stop(self) -> None:
        """Stop brokers gracefully, all at once, then ZooKeeper."""
        for broker in self.brokers:
            broker.signal(signal.SIGTERM)
        for broker in self.brokers:
            broker.stop()
        self.zookeeper.stop()


@click.command()
@click.option(
    "--brokers",
    type=WholeNumber(1, BROKERS_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Broker processes, groups b1 to bN; one uses one core.",
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
    invocation: Invocation, brokers: int, data: Path, port: int, zookeeper_port: int
) -> None:
    """Run ZooKeeper and brokers here, for development.

    Runs until ctrl-C and takes everything down with it. Everything listens on 127.0.0.1 only. Not
    for production: there, ZooKeeper is an ensemble of its own and `vq broker` runs on each machine.
    """
    if "zookeeper" in invocation.sources.flags:
        raise InvalidArgument("standalone starts its own ZooKeeper: give --zookeeper-port instead")
    cluster_name = invocation.client_config().cluster
    ports = _broker_ports(brokers, port)
    if zookeeper_port in ports:
        raise InvalidArgument(
            f"--zookeeper-port {zookeeper_port} is also the port of broker "
            f"b{ports.index(zookeeper_port) + 1}: the brokers take {ports[0]} to {ports[-1]}, "
            "choose another for one of them with --zookeeper-port or --port"
        )
    if zookeeper_port:
        _check_free(zookeeper_port, "ZooKeeper", "--zookeeper-port")
    with _stop_signals() as stop, _exclusive(data):
        invocation.output.remark(f"starting ZooKeeper and {brokers} broker(s) in {data} ...")
        zookeeper = EmbeddedZooKeeper(data / "zookeeper", port=zookeeper_port)
        zookeeper.start()
        cluster = StandaloneCluster(
            zookeeper,
            [
                BrokerChild(_spec(data, number, broker_port, zookeeper.hosts, cluster_name))
                for number, broker_port in enumerate(ports, start=1)
            ],
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


def _spec(data: Path, number: int, port: int, zookeeper: str, cluster: str) -> BrokerSpec:
    name = f"b{number}"
    return BrokerSpec(
        data=(data / name).absolute(),
        group=name,
        node="n1",
        address=Address(_HOST, port),
        zookeeper=zookeeper,
        cluster=cluster,
    )


def _announce(invocation: Invocation, cluster: StandaloneCluster, data: Path) -> None:
    output = invocation.output
    children = [
        {
            "group": child.spec.group,
            "address": str(child.spec.address),
            "pid": child.pid,
            "log": str(child.spec.log),
        }
        for child in cluster.brokers
    ]
    hosts = cluster.zookeeper.hosts
    if output.as_json:
        output.document({"zookeeper": hosts, "data": str(data.absolute()), "brokers": children})
        return
    output.line(f"ZooKeeper  {hosts}")
    for child in children:
        output.line(f"broker {child['group']}  {child['address']}  (log {child['log']})")
    flag = "" if hosts == "127.0.0.1:2181" else f" --zookeeper {hosts}"
    output.line("")
    output.line("Try, in another terminal:")
    output.line(f"  vq topic create hello --partitions 2{flag}")
    output.line(f"  echo world | vq produce hello{flag}")
    output.line(f"  vq consume hello --group me --max 1{flag}")
    output.line("")
    output.line("ctrl-C stops everything; the data stay for the next time.")


def _watch(invocation: Invocation, cluster: StandaloneCluster, stop: threading.Event) -> None:
    """Wait for the signal to stop; tell of children that end by themselves."""
    living = list(cluster.brokers)
    while not stop.wait(_TICK_S):
        for child in [each for each in living if not each.running]:
            living.remove(child)
            invocation.output.remark(
                f"broker {child.spec.group} ended unexpectedly (code "
                f"{child.process.returncode if child.process else None}); its log is "
                f"{child.spec.log}. The others go on; stop this command and start it again to "
                "have it back."
            )
        if not living:
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
