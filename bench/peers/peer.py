"""A peer: how to find it and start it, and the works of its client processes."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from vq.cli.bench.workload import WorkFailed, contents

FSYNC: Final = "fsync"
PAGE_CACHE: Final = "page cache"
_START_S: Final = 60.0
_STOP_S: Final = 15.0


class Missing(Exception):
    """The peer cannot run here; the message says what is missing."""


Values = dict[str, Any]
"""The address of a started server, as plain values for client works."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One other system.

    Attributes:
        name: For the table.
        durability: ``FSYNC`` or ``PAGE_CACHE``: what its acknowledgement means here.
        client: The Python client's distribution and how it is used, for the table.
        check: Raises ``Missing`` where server or client are not there; returns the version.
        running: Starts a server under a directory; yields the values its works need.
        works: Work functions by name, for the client process.
        one_by_one, pipelined, consume: Names of works; empty where the client has no such way.
        messages: The number of messages that a round sends pipelined and receives.
    """

    name: str
    durability: str
    client: str
    check: Callable[[], str]
    running: Callable[[Path], AbstractContextManager[Values]]
    works: Mapping[str, Callable[..., dict[str, Any]]]
    one_by_one: str = ""
    pipelined: str = ""
    consume: str = ""
    messages: int = 50_000


#: A consumer says how far it is after so many messages, with one acknowledgement for all of them:
#: as vq and Kafka do with their commits. An acknowledgement for each would measure something else.
PROGRESS_EVERY: Final = 1_000


def check_received(received: Sequence[bytes], count: int, size: int) -> None:
    """Check that the received messages are those of ``contents``, in order.

    Raises:
        WorkFailed: They are not.
    """
    if received != contents(0, 0, count, size):
        raise WorkFailed(f"received messages differ from the sent ones: {len(received)} of {count}")


def find_program(name: str, *places: str) -> str:
    """Return the path of a server's program.

    Raises:
        Missing: It is in none of the places and not on PATH.
    """
    for place in places:
        if os.access(place, os.X_OK):
            return place
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Missing(f"{name} is not installed")
    return found


def program_of(variable: str, name: str) -> str:
    """Return the path of a program that an environment variable may name; else see above.

    Raises:
        Missing: It is not there.
    """
    named = os.environ.get(variable)
    if not named:
        return find_program(name)
    if not os.access(named, os.X_OK):
        raise Missing(f"{variable} names {named}, which is no program")
    return named


def need_client(module: str, distribution: str) -> None:
    """Check that a client library is installed.

    Raises:
        Missing: It is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise Missing(f"the Python client {distribution} is not installed")


class Server:
    """A server as a child process in a process group of its own; ended with the group."""

    def __init__(self, command: Sequence[str], log: Path, **environ: str) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        self._log = log

    def wait_port(self, port: int) -> None:
        """Wait until something answers on a port.

        Raises:
            Missing: The server ended or did not answer in time; shows the end of its log.
        """
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
        raise Missing(f"the server did not start; the end of its log:\n{tail}")

    def kill(self) -> None:
        """Kill the process group at once, as kill -9 does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask the process group to end; kill the processes that do not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(_STOP_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
