"""Runs ``vq`` commands in processes that are forked from one that has imported everything.

    test process ── arguments, environment, streams ──▶ server ── fork ──▶ vq topic list

Most of what a short command takes is its imports, a third of a second each. The forked process has
its own environment, arguments, streams and exit code. Its imports were done before, and at its end
its modules are not taken apart, which takes four times as long as a short command: it waits for
threads, calls what is registered for its end and flushes, as an interpreter does. The long form
starts each command anew, as a shell would, and so does a test that holds a process itself
(``ProcessCluster.command``, ``BrokerChild``).

A program of a test, a module of ``support`` whose ``main`` takes the arguments, runs in the same
way: ``-m support.member_process …``.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import logging
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import vq

LONG: Final = os.environ.get("VQ_LONG") == "1"
#: What commands import.
_PACKAGES: Final = tuple(
    f"vq.{name}" for name in ("broker", "cli", "client", "coordination", "devtools", "operations")
)
#: Variables that only a new interpreter obeys, by how their names begin.
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "TZ")
#: A variable that names intervals of a forked process and shorter ones, so that a test waits less:
#: ``vq.broker.history.key_indexing.LOOK_S=0.2``. A process that is started anew keeps its own.
FASTER: Final = "TEST_FASTER"
#: A variable that has a forked process wait until it is traced, so that none of its own calls is
#: missed.
TRACED: Final = "TEST_TRACED"
_TRACED_IN_S: Final = 60.0
_PR_SET_PTRACER: Final = 0x59616D61
_REQUEST_BYTES_MAX: Final = 1 << 17


class ForkedProcess:
    """One command that runs; has what tests use of ``subprocess.Popen``."""

    def __init__(self, reply: socket.socket) -> None:
        pid, (self._pidfd,), _, _ = socket.recv_fds(reply, 32, 1)
        self.pid = int(pid)
        self.returncode: int | None = None
        self._reply = reply

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None and select.select([self._reply], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            if not select.select([self._reply], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["vq"], timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(self._reply.recv(32)))
            self._reply.close()
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends at this moment
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class CommandServer:
    """The server, as its test process has it; several threads may use it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._at_start = _at_start(os.environ)
        pipe = subprocess.PIPE  # its streams are of the kind that a command's are
        path = (str(Path(vq.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        with theirs:
            self._process = subprocess.Popen(
                # -P: modules beside this one have names of the standard library.
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                # What this process tests: a copy of the checkout, perhaps.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            )

    def fits(self, environ: Mapping[str, str]) -> bool:
        """Whether a forked process can be what a new one would be in this environment."""
        return _at_start(environ) == self._at_start

    def start(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        new_session: bool = False,
    ) -> ForkedProcess:
        """Start ``vq <arguments>``; what shall end with its parent ends with the server.

        The same with ``-m``, the name of a module and its arguments.
        ``support.forked_command`` does the same in a shell.
        """
        told = list(arguments)
        if "--die-with" in told:
            told[told.index("--die-with") + 1] = str(self._process.pid)
        request = json.dumps(
            [os.getcwd(), told, dict(environ), 0 if new_session else None]
        ).encode()
        assert len(request) <= _REQUEST_BYTES_MAX
        reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._control, [request], [theirs.fileno(), *streams])
        return ForkedProcess(reply)

    def run(
        self, arguments: Sequence[str], stdin: bytes, timeout_s: float, environ: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run ``vq <arguments>`` to its end, as ``subprocess.run`` does."""
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = (
            os.pipe() for _ in range(3)
        )
        process = self.start(arguments, environ, (their_in, their_out, their_err))
        for fd in (their_in, their_out, their_err):
            os.close(fd)
        late = threading.Event()
        timer = threading.Timer(timeout_s, lambda: (late.set(), process.kill()))
        timer.start()
        try:
            stdout, stderr = _exchange(our_in, stdin, our_out, our_err)
        finally:
            timer.cancel()
            timer.join()
        code = process.wait()
        command = ["vq", *arguments]
        if late.is_set():
            raise subprocess.TimeoutExpired(command, timeout_s, stdout, stderr)
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    @property
    def pid(self) -> int:
        """The parent of what it starts."""
        return self._process.pid

    @property
    def control(self) -> int:
        """The socket, for processes that ask the server by themselves."""
        return self._control.fileno()

    def close(self) -> None:
        """End the server."""
        self._control.close()
        self._process.communicate()


@functools.cache
def _server() -> CommandServer:
    server = CommandServer()
    atexit.register(server.close)
    return server


def command_server(environ: Mapping[str, str]) -> CommandServer | None:
    """Return the server of this test process; None if a command has to be started anew."""
    if LONG or not hasattr(os, "pidfd_open"):
        return None
    server = _server()
    return server if server.fits(environ) else None


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_START)}


def _exchange(our_in: int, stdin: bytes, our_out: int, our_err: int) -> tuple[bytes, bytes]:
    """Write what a command reads and read what it writes, at the same time."""
    found: dict[int, bytes] = {}

    def read(fd: int) -> None:
        with open(fd, "rb") as stream:
            found[fd] = stream.read()

    readers = [threading.Thread(target=read, args=(fd,)) for fd in (our_out, our_err)]
    for reader in readers:
        reader.start()
    with contextlib.suppress(BrokenPipeError), open(our_in, "wb") as stream:
        stream.write(stdin)  # a command may end before it has read all
    for reader in readers:
        reader.join()
    return found[our_out], found[our_err]


# In the server ---------------------------------------------------------------------------------
def _import_all() -> None:
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            importlib.import_module(module.name)
    assert threading.active_count() == 1, "a process with threads must not fork"
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for each request; return its arguments in the child, None when no more come."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by what tells of the end
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    request, fds, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 4)
                    if not request:
                        return None
                    pid = os.fork()
                    if pid == 0:
                        for ended, (_, reply) in running.items():
                            os.close(ended)
                            reply.close()
                        control.close()
                        return _become(request, fds)
                    for fd in fds[1:]:
                        os.close(fd)
                    ended, reply = os.pidfd_open(pid), socket.socket(fileno=fds[0])
                    running[ended] = pid, reply
                    selector.register(ended, selectors.EVENT_READ)
                    socket.send_fds(reply, [str(pid).encode()], [ended])
                else:
                    selector.unregister(key.fd)
                    pid, reply = running.pop(key.fd)
                    _, status = os.waitpid(pid, 0)
                    with reply, contextlib.suppress(BrokenPipeError):  # nobody asks any more
                        reply.send(str(status).encode())
                    os.close(key.fd)


def _become(request: bytes, fds: list[int]) -> list[str]:
    """Make this process what ``exec`` would make of it; return the command's arguments."""
    for number, fd in enumerate(fds[1:]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    directory, arguments, environ, group = json.loads(request)
    if group == 0:
        os.setsid()
    elif group is not None:
        os.setpgid(0, group)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    for each in environ.get(FASTER, "").split():
        name, _, value = each.partition("=")
        module, _, constant = name.rpartition(".")
        before = getattr(importlib.import_module(module), constant)
        setattr(importlib.import_module(module), constant, type(before)(value))
    if TRACED in environ:
        _wait_for_tracer()
    return list(arguments)


def _wait_for_tracer() -> None:
    """Let anybody trace this process, which a machine may allow to its parents alone, and wait."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_long(-1), 0, 0, 0)
    deadline = time.monotonic() + _TRACED_IN_S
    while "\nTracerPid:\t0\n" in Path("/proc/self/status").read_text():
        if time.monotonic() > deadline:
            sys.exit(f"nobody has traced this process within {_TRACED_IN_S:g} s")
        time.sleep(0.001)


class _End:
    """Ends a command that says how it ends, before the interpreter takes its modules apart.

    What is registered first is called last: when threads have ended and all other work is done.
    """

    def __init__(self) -> None:
        self.code: object = "unknown"
        atexit.register(self._leave)

    def _leave(self) -> None:
        if not isinstance(self.code, int | None):
            return  # a text to print, or an error: the interpreter knows how
        logging.shutdown()  # was registered before this
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):
            return  # closed, or nobody reads: there is an exit code for that
        os._exit((self.code or 0) & 0xFF)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        module = importlib.import_module(arguments[1])
        sys.argv = [str(module.__file__), *arguments[2:]]
        sys.exit(module.main(*arguments[2:]))
    from vq.cli.main import main as run

    sys.argv = ["vq", *arguments]
    run()


def main() -> None:
    """Serve; in each child, run the command."""
    end = _End()
    _import_all()
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        try:
            _run(arguments)
        except SystemExit as error:
            end.code = error.code
            raise


if __name__ == "__main__":
    main()
