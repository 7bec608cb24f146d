"""Makes kazoo's threads cheaper: how they wait for sockets, read, and hand on answers.

This module has the handler that ``zk`` gives to kazoo. ``zk`` interprets answers and events;
``session`` has the rules of a session.

kazoo makes an epoll object for every wait. For every answer it waits three times, reads twice and
wakes another thread. A broker that starts reads thousands of nodes, and these steps are most of the
cost. So:

- a socket is read ahead: kazoo asks it for ``pending`` bytes before it waits, as of a TLS socket;
- ``poll`` waits, which needs no object in the kernel;
- the thread that reads an answer or an event runs the callbacks, in the order of arrival.
"""

import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.exceptions import AuthFailedError, ConnectionLoss, SessionExpiredError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

from vq.log_lines import never_wait

#: Bytes read from a connection at once.
READ_AHEAD_BYTES: Final = 64 * 1024
#: The errors of a call whose connection or session ends.
_NO_ANSWER: Final = (ConnectionLoss, SessionExpiredError, AuthFailedError)


class ReadAhead:
    """A connected socket, as far as kazoo uses one; it reads all that is available at once."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        # Under TLS, bytes that were decrypted wait where ``poll`` does not see them.
        self._decrypted = sock.pending if isinstance(sock, ssl.SSLSocket) else None
        self._read = memoryview(b"")
        self.fileno = sock.fileno
        self.send = sock.send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def pending(self) -> int:
        """Return the number of bytes that were read ahead."""
        if self._decrypted is not None:
            return len(self._read) or int(self._decrypted())
        return len(self._read)

    def recv(self, size: int) -> bytes:
        """Return up to ``size`` bytes; none at the end of the connection."""
        if not self._read:
            self._read = memoryview(self._sock.recv(max(size, READ_AHEAD_BYTES)))
        chunk, self._read = self._read[:size], self._read[size:]
        return bytes(chunk)


class Wakes:
    """Both ends of the socket pair that wakes kazoo's thread, one byte per request.

    Only the first byte of several goes through the socket: each write is a system call and passes
    the interpreter lock from the loop to kazoo's thread and back.
    """

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._bytes: deque[bytes] = deque()
        self._is_signalled = False
        self.fileno = reader.fileno

    def send(self, data: bytes) -> int:
        """Announce one more request; any thread."""
        self._bytes.append(data)
        if not self._is_signalled:
            self._is_signalled = True
            self._writer.send(data)
        return len(data)

    def drain(self) -> None:
        """Read the byte from the socket, which is readable; ``pending`` has the number."""
        self._reader.recv(4096)
        self._is_signalled = False  # before ``pending`` is read, so that no later byte is missed

    def pending(self) -> int:
        """Return the number of announced requests."""
        return len(self._bytes)

    def recv(self, size: int) -> bytes:
        """Take the byte of one request."""
        return self._bytes.popleft() if self._bytes else b""

    def close(self) -> None:
        """Close both ends; kazoo closes each."""
        self._reader.close()
        self._writer.close()


class Result(AsyncResult):  # type: ignore[misc]
    """kazoo's result; the thread that reads the answer runs the callbacks.

    If the connection ended without an answer, kazoo's other thread runs them, as usual: the event
    of the connection must reach the loop first.
    """

    def _do_callbacks(self) -> None:
        if isinstance(self.exception, _NO_ANSWER):
            super()._do_callbacks()
        else:
            for callback in self._callbacks:
                callback(self)


#: Objects that may have data although their descriptor is not readable.
_AHEAD: Final = (ReadAhead, Wakes)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's thread handler with a bound on connecting, and cheap waits and answers.

    kazoo waits a whole session time-out for one unreachable server. If one of three servers drops
    packets, the session would end during this wait.

    Args:
        connect_timeout_s: The bound, for a TLS handshake once more.
        client_ssl: Returns the context of a new connection; None: plain TCP. kazoo would make one
            that trusts the authorities of the machine, too, and takes TLS 1.0.
    """

    def __init__(
        self, connect_timeout_s: float, client_ssl: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._client_ssl = client_ssl

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """Start a thread of kazoo, which logs at every step, mostly below the level."""

        def run() -> None:
            never_wait()
            func(*args, **kwargs)

        return super().spawn(run)

    def create_connection(self, *args: Any, **kwargs: Any) -> ReadAhead:
        """Connect to a server."""
        kwargs["timeout"] = self._connect_timeout_s
        if self._client_ssl is None:
            return ReadAhead(super().create_connection(*args, **kwargs))
        sock = super().create_connection(*args, **{**kwargs, "use_ssl": False})
        try:
            sock.settimeout(self._connect_timeout_s)
            return ReadAhead(
                self._client_ssl().wrap_socket(sock, server_hostname=kwargs["hostname"])
            )
        except BaseException:
            sock.close()
            raise

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return what can be read and written, as ``select.select`` does; ``xlist`` is empty."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ahead = [each for each in rlist if isinstance(each, _AHEAD) and each.pending()]
            poll = select.poll()
            for each in rlist:
                if each not in ahead:
                    poll.register(each, select.POLLIN)
            for each in wlist:
                poll.register(each, select.POLLOUT)
            left_s = 0.0 if ahead else deadline and max(0.0, deadline - time.monotonic())
            ready = {descriptor for descriptor, _ in poll.poll(left_s and left_s * 1000)}
            woken = [each for each in rlist if isinstance(each, Wakes) and each.fileno() in ready]
            for each in woken:
                each.drain()
            readable = [each for each in rlist if each in ahead or each.fileno() in ready]
            readable = [each for each in readable if each not in woken or each.pending()]
            writable = [each for each in wlist if each.fileno() in ready]
            if readable or writable or not woken:
                return readable, writable, []

    def create_socket_pair(self) -> tuple[Wakes, Wakes]:
        """Return the pair that wakes kazoo's thread for requests."""
        wakes = Wakes(*super().create_socket_pair())
        return wakes, wakes

    def async_result(self) -> Result:
        """Return a result without an answer yet."""
        return Result(self)

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch on this thread; it only hands the event to the loop."""
        callback.func(*callback.args)
