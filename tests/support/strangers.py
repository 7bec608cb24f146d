"""Connections that send nothing, and connect again at once when they are closed.

    python -m support.strangers HOST PORT COUNT SOURCE

Runs until it is killed; writes one line when all of them have been tried once.
"""

import errno
import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_PROGRESS = {0, errno.EINPROGRESS}


def _connect(address: tuple[str, int], source: str) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT
    sock.bind((source, 0))
    if sock.connect_ex(address) not in _IN_PROGRESS:
        sock.close()
        raise ConnectionError
    return sock


def flood(address: tuple[str, int], count: int, source: str) -> None:
    """Keep ``count`` silent connections to ``address``; never returns."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    poll = select.poll()
    sockets: dict[int, socket.socket] = {}

    def add() -> None:
        sock = _connect(address, source)
        sockets[sock.fileno()] = sock
        poll.register(sock, select.POLLIN | select.POLLHUP | select.POLLERR)

    for _ in range(count):
        add()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    while True:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            sockets.pop(descriptor).close()
            add()


@contextmanager
def strangers(address: tuple[str, int], count: int, *, source: str = "127.0.0.1") -> Iterator[None]:
    """Have another process keep ``count`` silent connections to ``address``."""
    command = [sys.executable, "-m", "support.strangers", address[0], str(address[1]), str(count)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([*command, source], stdout=subprocess.PIPE, env=environ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    flood((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), sys.argv[4])
