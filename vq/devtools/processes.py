"""Processes of vq as children of this one, for ``vq standalone`` and the tests.

A child is the real ``vq broker`` or ``vq console`` command with its own log file. It ends when its
parent ends, even when that is killed: the kernel sends it SIGTERM (Linux).
"""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from vq.client.config import MessageFactoryConfig
from vq.devtools.errors import ChildFailed
from vq.errors import CoordinationError, NotAuthenticated, VqError
from vq.model import Address
from vq.operations.base.connect import cluster_client
from vq.remoting.broker_connection import connect
from vq.remoting.format import Command
from vq.remoting.ports import is_loopback
from vq.remoting.transport import TcpNetwork
from vq.remoting.wire_pb2 import StatusRequest, StatusResponse
from vq.security.tls import Tls, TlsContexts
from vq.store.disk.real_disk import FILE_MODE, RealDisk

STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_TLS = ("VQ_TLS_", "VQ_ZOOKEEPER_TLS_")
_LOG_LINES = 15
_PR_SET_PDEATHSIG = 1


class ChildSilent(ChildFailed):
    """A process that was started does not serve in time."""


class ChildEnded(ChildFailed):
    """A child process ended although it should run; shows the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    """What one broker child is told; ``data`` also names its log, ``<data>.log``.

    ``metrics_port`` is 0 for none; metrics are served where the broker listens. ``tls`` None is
    plain TCP.
    """

    data: Path
    group: str
    node: str
    address: Address
    zookeeper: str
    cluster: str
    metrics_port: int = 0
    more: Sequence[str] = ()
    tls: Tls | None = None

    @property
    def name(self) -> str:
        """Group and node, for people."""
        return f"{self.group}/{self.node}"

    @property
    def metrics(self) -> Address:
        """Where metrics are served."""
        return Address(self.address.host, self.metrics_port)

    @property
    def log(self) -> Path:
        """Where the child's output goes."""
        return self.data.with_name(self.data.name + ".log")

    def command(self) -> list[str]:
        """Return the child's command line."""
        values: dict[str, object] = {
            "data": self.data,
            "group": self.group,
            "node": self.node,
            "host": self.address.host,
            "port": self.address.port,
            "metrics-host": self.metrics.host,
            "metrics-port": self.metrics.port,
            "zookeeper": self.zookeeper,
            "cluster": self.cluster,
            "die-with": os.getpid(),
        }
        if self.tls is not None:
            for name in ("ca", "certificate", "key"):
                values[f"tls-{name}"] = getattr(self.tls, name)
        flags = [
            part
            for name, value in values.items()
            if value is not None
            for part in (f"--{name}", str(value))
        ]
        if not is_loopback(self.address.host):  # whoever names such an address has said so
            flags += ["--authentication", "off"]
            if self.tls is None:
                flags.append("--plaintext")
        return [sys.executable, "-m", "vq.cli.main", "broker", *flags, *self.more]


class ChildProcess:
    """A process that this one runs. Start it from the main thread: the kernel watches that thread.

    Args:
        command: Its command line.
        log: Where its output goes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs and before ``start``."""
        return None if self.process is None else self.process.poll()

    @property
    def pid(self) -> int:
        """The process id, 0 before ``start``."""
        return self.process.pid if self.process is not None else 0

    def start(self) -> None:
        """Start the process; ``wait_ready`` tells when it serves."""
        RealDisk().mkdir(self.log.parent)
        with open_log(self.log) as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_plain_environment(),
                start_new_session=True,  # ctrl-C reaches the parent only, which stops us in order
            )

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Ask the process to end, kill it when it does not, return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self.signal(signal.SIGKILL)
        self.wait(STOP_TIMEOUT_S)

    def signal(self, number: int) -> None:
        """Send a signal, if the process is there."""
        if self.process is not None and self.running:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; past ``timeout_s`` kill. Returns the exit code."""
        if self.process is None:
            return None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError as error:
            return f"(cannot be read: {error})"
        return "\n".join(f"  | {line}" for line in lines[-_LOG_LINES:]) or "  | (empty)"


class BrokerChild(ChildProcess):
    """One broker process."""

    def __init__(self, spec: BrokerSpec) -> None:
        super().__init__(spec.command(), spec.log)
        self.spec = spec

    def wait_ready(self, timeout_s: float = 30.0) -> StatusResponse:
        """Wait until the broker leads its group, or follows its master; return its status.

        Raises:
            ChildEnded: It ended instead.
            ChildSilent: It did not in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            spec = self.spec
            status = asyncio.run(
                ask_status(
                    spec.address, cluster=spec.cluster, tls=spec.tls, zookeeper=spec.zookeeper
                )
            )
            stands = status is not None and (status.master or status.follows)
            if status is not None and stands and status.group == self.spec.group:
                return status
            if not self.running:
                raise ChildEnded(
                    f"broker {self.spec.group}/{self.spec.node} ended with code "
                    f"{self.exit_code}; the end of "
                    f"{self.spec.log}:\n{self.log_tail()}"
                )
            if time.monotonic() >= deadline:
                raise ChildSilent(
                    f"broker {self.spec.group}/{self.spec.node} does not serve at "
                    f"{self.spec.address} after {timeout_s:g} s; the end of {self.spec.log}:\n"
                    f"{self.log_tail()}"
                )
            time.sleep(_POLL_S)


class ConsoleChild(ChildProcess):
    """The console, open to everybody who reaches an address of this machine.

    Args:
        data: Directory for its database and its log.
        address: Where it listens.
        zookeeper, cluster: What it shows.
    """

    def __init__(self, data: Path, address: Address, zookeeper: str, cluster: str) -> None:
        values = {
            "host": address.host,
            "port": address.port,
            "database": f"sqlite:///{data.absolute() / 'console.db'}",
            "zookeeper": zookeeper,
            "cluster": cluster,
            "die-with": os.getpid(),
        }
        flags = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "vq.cli.main", "console", *flags, "--open"]
        super().__init__(command, data.absolute() / "console.log")
        self.address = address
        self.database = str(values["database"])

    def wait_ready(self, timeout_s: float = 30.0) -> bool:
        """Wait until it answers; return whether it does."""
        deadline = time.monotonic() + timeout_s
        while self.running and time.monotonic() < deadline:
            try:
                socket.create_connection((self.address.host, self.address.port), 1.0).close()
                return True
            except OSError:
                time.sleep(_POLL_S)
        return False


def _plain_environment() -> dict[str, str]:
    """Return the environment of a child: files of TLS in it are for clients of other clusters."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_TLS)}


def open_log(path: Path) -> BinaryIO:
    """Open a child's log to append to; a new one gets the mode of the data beside it."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    if os.fstat(fd).st_size == 0:
        os.fchmod(fd, FILE_MODE)
    return os.fdopen(fd, "ab")


async def ask_status(
    address: Address,
    *,
    cluster: str = "",
    timeout_s: float = 2.0,
    tls: Tls | None = None,
    zookeeper: str = "",
    operator: MessageFactoryConfig | None = None,
) -> StatusResponse | None:
    """Ask whoever listens at ``address`` for its status; None when no broker answers.

    A broker that takes no anonymous clients is asked as by an operator, who reads the cluster's
    secret, if ``zookeeper`` or ``operator`` says where that is.

    Raises:
        InvalidArgument: A file of ``tls`` cannot be used.
    """
    contexts = None if tls is None else TlsContexts(tls)
    try:
        connection = await connect(
            TcpNetwork(client_ssl=None if contexts is None else contexts.client),
            address,
            client_id="vq-cli",
            cluster=cluster,
            timeout=timeout_s,
            on_close=lambda _: None,
        )
    except NotAuthenticated:
        if operator is None and zookeeper:
            operator = MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, tls=tls)
        return None if operator is None else await _ask_as_operator(address, operator)
    except VqError:
        return None
    try:
        response, _ = await connection.request(Command.STATUS, StatusRequest(), timeout=timeout_s)
    except VqError:
        return None
    finally:
        connection.close()
    assert isinstance(response, StatusResponse)
    return response


async def _ask_as_operator(address: Address, config: MessageFactoryConfig) -> StatusResponse | None:
    config = replace(config, user="", password="")
    try:
        async with cluster_client(config, must_exist=False) as client:
            response, _ = await client.request(address, Command.STATUS, StatusRequest())
    except VqError:
        return None
    assert isinstance(response, StatusResponse)
    return response


def die_with(parent: int) -> None:
    """Have this process get SIGTERM when process ``parent``, which started it, ends.

    Raises:
        CoordinationError: The parent has ended already.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not Linux: the parent's own tidying up has to do
    if os.getppid() != parent:
        raise CoordinationError(f"the process {parent} that started this one has ended")
