"""Broker groups with copies as real processes: who leads, who is in sync, start and kill."""

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from support.chaos import wall
from support.chaos.network import Network
from support.chaos.proxies import Proxies
from support.cluster import ProcessCluster
from support.faults import broker_settings
from support.zookeeper import admin

from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

SESSION_TIMEOUT_S = 3.0
TOPIC = "t"
PARTITIONS = 4
_ASK_S = 5.0


class Record(NamedTuple):
    """What ZooKeeper has of a group: the master in an epoch, and who is in sync as what."""

    epoch: int = 0
    master: str = ""
    insync: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSpec(BrokerSpec):
    """A broker that runs in a network namespace; ``enter`` is the command that goes there."""

    enter: Sequence[str] = ()

    def command(self) -> list[str]:
        """Return the broker's command line behind that of ``nsenter``, which becomes the broker."""
        return [*self.enter, *BrokerSpec.command(self)]


class Groups:
    """Groups ``b1``, ``b2`` … with nodes ``n1``, ``n2`` … each; nodes are named ``b1/n1``.

    Args:
        cluster: Registers the processes, so that they are stopped at the end.
        zookeeper: The servers.
        client: Connected to them, for what an operator would look at.
        network: None: all nodes are on the loopback address.
        proxies: Between the nodes and all others, if there is no network that can be cut.
        clocks: The wall clock of each node can be set.
    """

    def __init__(
        self,
        cluster: ProcessCluster,
        zookeeper: EmbeddedZooKeeper,
        client: KazooClient,
        network: Network | None,
        *,
        proxies: Proxies | None = None,
        clocks: bool = False,
    ) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.network = network
        self.proxies = proxies
        self._clocks = clocks
        self.nodes: dict[str, BrokerChild] = {}
        self.wanted: set[str] = set()  # nodes that shall run
        self._client = client

    # Processes ------------------------------------------------------------------------------------
    def add(self, name: str, *more: str) -> BrokerChild:
        """Start a new node."""
        group, _, node = name.partition("/")
        data = self.data(name)
        settings = broker_settings(
            data.with_suffix(".toml"), session_timeout_s=SESSION_TIMEOUT_S, load_interval_s=10.0
        )
        address, enter = Address("127.0.0.1", self.cluster.hold_port()), ()
        zookeeper = self.zookeeper.hosts
        if self.network is not None:
            link = self.network.link(name)
            address, enter = Address(link.address, address.port), link.enter
            zookeeper = zookeeper.replace("127.0.0.1", self.network.hub)
        elif self.proxies is not None:
            shown, zookeeper = self.proxies.add(name, address, zookeeper)
            more += ("--advertised", str(shown))
        if self._clocks:
            enter = (*enter, *wall.enter(data))
        broker = BrokerChild(
            PlacedSpec(
                data=data,
                group=group,
                node=node,
                address=address,
                zookeeper=zookeeper,
                cluster=self.cluster.name,
                more=(*settings, *more),
                enter=enter,
            )
        )
        self.nodes[name] = self.cluster.brokers[name] = broker
        self.wanted.add(name)
        broker.start()
        return broker

    def data(self, name: str) -> Path:
        """Return the data directory of a node."""
        return self.cluster.directory / name.replace("/", "-")

    def kill(self, *names: str) -> bool:
        """SIGKILL nodes at once; whether all ran until then and ended of nothing else."""
        children = [self.nodes[name] for name in names]
        ran = all(child.running for child in children)
        for child in children:
            child.signal(signal.SIGKILL)
        codes = [child.wait(PROCESSES_WAIT_S) for child in children]
        return ran and all(code == -signal.SIGKILL for code in codes)

    def start(self, name: str) -> None:
        """Start a node that ended; ``wait_whole`` waits for it."""
        self.nodes[name].start()

    def stopped(self, name: str) -> bool:
        """Whether a node's process is held by SIGSTOP."""
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{self.nodes[name].pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == "T"
        return False

    def heal(self) -> None:
        """Let every link and process go on, and every node run that shall."""
        if self.network is not None:
            for link in self.network.links.values():
                link.heal()
        if self.proxies is not None:
            self.proxies.heal()
        for name in self.wanted:
            self.nodes[name].signal(signal.SIGCONT)
            if not self.nodes[name].running:
                self.start(name)

    def empty(self, name: str) -> None:
        """Delete what a stopped node has, as with a lost disk."""
        assert not self.nodes[name].running
        for path in self.data(name).iterdir():  # the directory may be a mount
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    # What ZooKeeper has ---------------------------------------------------------------------------
    def record(self, group: str = "b1") -> Record:
        """Return the record of a group; an empty one while ZooKeeper cannot be asked."""
        found = self._read(f"brokers/{group}/state")
        if found is None:
            return Record()
        insync = {node: found["incarnations"].get(node, 0) for node in found["insync"]}
        return Record(found["epoch"], found["master"], insync)

    def registered(self, name: str) -> bool:
        """Whether a node is registered; perhaps it is a process that has ended."""
        return self._registration(name) is not None

    def full(self, name: str) -> bool:
        """Whether a registered node tells that it refuses messages for a full disk."""
        group, _, node = name.partition("/")
        found = self._read(f"brokers/{group}/nodes/{node}")
        return found is not None and found.get("full", False)

    def _registration(self, name: str) -> tuple[int, int] | None:
        """Return the incarnation of a node, and its process."""
        group, _, node = name.partition("/")
        found = self._read_node(f"brokers/{group}/nodes/{node}")
        return None if found is None else (found[1], int(found[0]["pid"]))

    def _read(self, path: str) -> Any:
        found = self._read_node(path)
        return None if found is None else found[0]

    def _read_node(self, path: str) -> tuple[Any, int] | None:
        """Return what a node has, and the transaction that made it."""
        try:
            answer = self._client.get_async(f"/vq/{self.cluster.name}/{path}")
            data, stat = answer.get(timeout=_ASK_S)
            return json.loads(data), stat.czxid
        except (KazooException, KazooTimeoutError):
            return None

    def master(self, group: str = "b1") -> str:
        """Return the name of the node that leads a group."""
        record = Record()

        def read() -> bool:
            nonlocal record
            record = self.record(group)
            return bool(record.master)

        block_until(read, f"the record of {group}")
        return f"{group}/{record.master}"

    def slaves(self, group: str = "b1") -> list[str]:
        """Return the names of the other nodes of a group."""
        master = self.master(group)
        return [name for name in self.of(group) if name != master]

    def of(self, group: str) -> list[str]:
        """Return the names of the nodes of a group that shall run."""
        return sorted(name for name in self.wanted if name.startswith(f"{group}/"))

    @property
    def groups(self) -> list[str]:
        """The names of all groups."""
        return sorted({name.partition("/")[0] for name in self.wanted})

    def wait_epoch_after(
        self, epoch: int, group: str = "b1", timeout_s: float = PROCESSES_WAIT_S
    ) -> Record:
        """Wait until a group has a master in a later epoch; return the record then."""
        what = f"{group} has a master in an epoch after {epoch}: {self.record(group)}"
        block_until(lambda: self.record(group).epoch > epoch, what, timeout_s=timeout_s)
        return self.record(group)

    def missing(self) -> list[str]:
        """Return the nodes that shall run and do not, or are not in sync.

        The registration and the place in the record may be those of a process that was killed.
        """
        insync = {
            f"{group}/{node}": incarnation
            for group in self.groups
            for node, incarnation in self.record(group).insync.items()
        }
        return sorted(
            name
            for name in self.wanted
            if not self.nodes[name].running
            or self._registration(name) != (insync.get(name), self.nodes[name].pid)
        )

    def wait_whole(self, timeout_s: float = PROCESSES_WAIT_S) -> float:
        """Wait until all nodes run and are in sync; return how long it took.

        A node that ended is started again: its first start may have come before its old session,
        or an operator's other node, was gone.
        """
        begin = time.monotonic()
        again = dict.fromkeys(self.wanted, begin)

        def whole() -> bool:
            now = time.monotonic()
            for name in self.wanted:
                if not self.nodes[name].running and now > again[name] + 1.0:
                    again[name] = now
                    self.start(name)
            return not self.missing()

        try:
            block_until(whole, "", timeout_s=timeout_s)
        except AssertionError:
            raise AssertionError(
                f"not in sync after {timeout_s} s: {self.missing()}; "
                f"records: { {group: self.record(group) for group in self.groups} }"
            ) from None
        return time.monotonic() - begin


@contextmanager
def make_groups(
    cluster: ProcessCluster,
    zookeeper: EmbeddedZooKeeper,
    network: Network | None,
    sizes: Mapping[str, int],
    *,
    proxies: Proxies | None = None,
    clocks: bool = False,
) -> Iterator[Groups]:
    """Start groups with so many nodes each; they come in sync once there is a topic."""
    with admin(zookeeper.hosts) as client:
        groups = Groups(cluster, zookeeper, client, network, proxies=proxies, clocks=clocks)
        for group in sizes:  # the first node leads: the others join it
            groups.add(f"{group}/n1").wait_ready(PROCESSES_WAIT_S)
        for group, size in sizes.items():
            for number in range(2, size + 1):
                groups.add(f"{group}/n{number}").wait_ready(PROCESSES_WAIT_S)
        try:
            yield groups
        finally:
            for child in groups.nodes.values():  # else a paused one does not stop in order
                child.signal(signal.SIGCONT)
            if network is not None:
                for link in network.links.values():
                    link.heal()
