"""A cluster of real broker processes for tests, and the real ``vq`` command against it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError
from support.command_server import TRACED, command_server
from support.json_schema import schema_of, wrong
from support.zookeeper import admin

from vq.devtools.processes import BrokerChild, BrokerSpec, open_log
from vq.model import Address
from vq.store.disk.real_disk import RealDisk
from vq.testing.waiting import PROCESSES_WAIT_S

VQ = (sys.executable, "-m", "vq.cli.main")

T = TypeVar("T")
C = TypeVar("C", bound="ProcessCluster")


class ForkedBroker(BrokerChild):
    """A broker as ``support.command_server`` starts it, if it can.

    Attributes:
        traced: It begins when it is traced.
    """

    traced = False

    def start(self) -> None:
        """Start the process; ``wait_ready`` tells when it serves."""
        server = command_server(os.environ)
        if server is None:
            super().start()
            return
        arguments = self.spec.command()[len(VQ) :]
        RealDisk().mkdir(self.spec.data.parent)
        with open_log(self.spec.log) as log, open(os.devnull) as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            environ = {**os.environ, TRACED: "1"} if self.traced else os.environ
            process: Any = server.start(arguments, environ, streams, new_session=True)
        self.process = process


class ProcessCluster:
    """Brokers as processes under one cluster name of its own. Use from the main thread.

    Attributes:
        zookeeper_auth: Who ``vq`` and new brokers are to ZooKeeper.
    """

    zookeeper_auth = ""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        self.brokers: dict[str, BrokerChild] = {}
        self._held = contextlib.ExitStack()
        self._looks = contextlib.ExitStack()  # closes the client that looks, if there is one
        self._looker: KazooClient | None = None

    def look(self, read: Callable[[KazooClient], T]) -> T:
        """Return what ``read`` reads in ZooKeeper, over a connection that the next look uses too.

        A test looks again and again while it waits: a connection and a session for each look cost
        ten times as much as the look. If the connection is lost, it reads again over another one.
        """
        while True:
            if self._looker is None or not self._looker.connected:
                self._looks.close()
                self._looker = self._looks.enter_context(admin(self.zookeeper))
            with contextlib.suppress(ConnectionClosedError, ConnectionLoss, SessionExpiredError):
                return read(self._looker)

    def hold_port(self) -> int:
        """Return a free TCP port that stays reserved while this cluster exists.

        A bound socket that does not listen keeps the kernel from choosing the port. A server sets
        SO_REUSEADDR, so it can listen there nevertheless.
        """
        holder = self._held.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port

    def spec(
        self, group: str, *more: str, node: str = "n1", zookeeper: str | None = None
    ) -> BrokerSpec:
        """Return the flags of a broker of this cluster; ``more`` are further flags."""
        return BrokerSpec(
            data=self.directory / group,
            group=group,
            node=node,
            address=Address("127.0.0.1", self.hold_port()),
            zookeeper=zookeeper or self.zookeeper,
            cluster=self.name,
            more=more,
        )

    def add(
        self, group: str, *more: str, node: str = "n1", zookeeper: str | None = None
    ) -> BrokerChild:
        """Start the broker of a group and wait until it serves; ``more`` are flags of its own."""
        return self.run(ForkedBroker(self.spec(group, *more, node=node, zookeeper=zookeeper)))

    def add_all(self, *groups: str, more: Sequence[str] = ()) -> None:
        """Start a broker of each group at the same time, and wait until all serve."""
        for group in groups:
            self.brokers[group] = ForkedBroker(self.spec(group, *more))
            self.brokers[group].start()
        for group in groups:
            self.brokers[group].wait_ready(PROCESSES_WAIT_S)

    def run(self, broker: BrokerChild, *, name: str = "") -> BrokerChild:
        """Start a broker and wait until it serves; it is known here by its group or ``name``."""
        self.brokers[name or broker.spec.group] = broker
        broker.start()
        broker.wait_ready(PROCESSES_WAIT_S)
        return broker

    def restart(self, group: str) -> None:
        """Start a broker that ended (or was killed) again: same data, same address."""
        self.brokers[group].start()
        self.brokers[group].wait_ready(PROCESSES_WAIT_S)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``vq <arguments>``."""
        return [*VQ, *arguments]

    @property
    def environ(self) -> dict[str, str]:
        """The environment that points the command at this cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VQ_")}
        return {
            **kept,
            "VQ_ZOOKEEPER": self.zookeeper,
            "VQ_CLUSTER": self.name,
            "VQ_ZOOKEEPER_AUTH": self.zookeeper_auth,
        }

    def vq(
        self, *arguments: str, stdin: bytes = b"", timeout_s: float = PROCESSES_WAIT_S
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run ``vq`` to its end; see ``support.command_server`` for how."""
        environ = self.environ
        server = command_server(environ)
        if server is not None:
            return server.run(arguments, stdin, timeout_s, environ)
        return subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            env=environ,
            check=False,
        )

    def vq_json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Run ``vq … --json``, expect success and what its schema says, return the document."""
        ended = self.vq(*arguments, "--json", stdin=stdin)
        assert ended.returncode == 0, ended.stderr.decode()
        document = json.loads(ended.stdout)
        found = list(wrong(document, schema_of(arguments)))
        assert not found, found
        return document

    def stop(self) -> None:
        """Stop every broker gracefully."""
        for broker in self.brokers.values():
            broker.stop()
        self._looks.close()
        self._held.close()


@contextlib.contextmanager
def process_cluster(
    directory: Path,
    zookeeper: str,
    kind: type[C] = ProcessCluster,  # type: ignore[assignment]
) -> Iterator[C]:
    """Provide a cluster without brokers; stop what was added and delete its tree afterwards."""
    cluster = kind(directory, zookeeper)
    try:
        yield cluster
    finally:
        cluster.stop()
        with admin(zookeeper) as client:
            client.delete(f"/vq/{cluster.name}", recursive=True)


def consumed(cluster: ProcessCluster, topic: str, group: str, count: int, *more: str) -> list[str]:
    """Return the next ``count`` lines that a group gets."""
    bounds = ("--max", str(count), "--timeout", "30")
    ended = cluster.vq("consume", topic, "--group", group, *bounds, *more)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode().splitlines()


def drained(cluster: ProcessCluster, topic: str, group: str, count: int, *more: str) -> list[str]:
    """Return the next ``count`` lines that a group gets, which are all there are."""
    lines = consumed(cluster, topic, group, count, *more) if count else []
    ended = cluster.vq("consume", topic, "--group", group, "--timeout", "0.5", *more)
    assert (ended.returncode, ended.stdout) == (0, b"")
    return lines
