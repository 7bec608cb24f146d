"""What kazoo runs on its threads, made cheaper: waiting for sockets, reading, handing answers on.

In here: the handler that ``zk`` gives to kazoo. Not in here: what an answer or an event means
(``zk``), and the rules of a session (``session``).

kazoo makes an epoll object for every wait, waits three times and reads twice for every answer, and
wakes another thread for it. Whoever reads thousands of nodes, as a broker does when it starts, pays
for that more than for all else. So:

- a socket is read ahead: kazoo asks it for ``pending`` bytes before it waits, as of a TLS socket;
- ``poll`` waits, which needs no object in the kernel;
- the thread that reads an answer or an event calls back, in the order in which these came.
"""

import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from kazoo.exceptions import AuthFailedError, ConnectionLoss, SessionExpiredError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

#: Bytes read from a connection at once.
READ_AHEAD_BYTES: Final = 64 * 1024
#: What a call fails with when its connection or session ends.
_NO_ANSWER: Final = (ConnectionLoss, SessionExpiredError, AuthFailedError)


class ReadAhead:
    """A connected socket, as far as kazoo uses one; reads what is there, not what was asked for."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._read = memoryview(b"")
        self.fileno = sock.fileno
        self.send = sock.send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def pending(self) -> int:
        """Return how many bytes were read ahead."""
        return len(self._read)

    def recv(self, size: int) -> bytes:
        """Return up to ``size`` bytes; none at the end of the connection."""
        if not self._read:
            self._read = memoryview(self._sock.recv(max(size, READ_AHEAD_BYTES)))
        chunk, self._read = self._read[:size], self._read[size:]
        return bytes(chunk)


class Wakes:
    """Both ends of what tells kazoo's thread of requests, one byte for each.

    Only the first byte of many goes through a socket: each one is a system call, and hands the
    interpreter from the loop to kazoo's thread and back.
    """

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._bytes: deque[bytes] = deque()
        self._is_told = False
        self.fileno = reader.fileno

    def send(self, data: bytes) -> int:
        """Tell of one more request; any thread."""
        self._bytes.append(data)
        if not self._is_told:
            self._is_told = True
            self._writer.send(data)
        return len(data)

    def hear(self) -> None:
        """Take what came through the socket, which can be read; ``pending`` says the rest."""
        self._reader.recv(4096)
        self._is_told = False  # and only then ``pending`` is asked: what comes later tells again

    def pending(self) -> int:
        """Return how many requests were told of."""
        return len(self._bytes)

    def recv(self, size: int) -> bytes:
        """Take one."""
        return self._bytes.popleft() if self._bytes else b""

    def close(self) -> None:
        """Close both ends; kazoo closes each."""
        self._reader.close()
        self._writer.close()


class Result(AsyncResult):  # type: ignore[misc]
    """kazoo's result; the thread that has the answer calls back.

    Where there is no answer, the news of the connection is on its way to the loop and should be
    there first: as usual, kazoo's other thread calls back.
    """

    def _do_callbacks(self) -> None:
        if isinstance(self.exception, _NO_ANSWER):
            super()._do_callbacks()
        else:
            for callback in self._callbacks:
                callback(self)


#: What may be readable before its descriptor is.
_AHEAD: Final = (ReadAhead, Wakes)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's thread handler with a bound on connecting, and cheap waits and answers.

    kazoo waits a whole session time-out for one unreachable server; with three servers, of which
    one drops packets, that would cost the session.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *args: Any, **kwargs: Any) -> ReadAhead:
        """Connect to a server."""
        kwargs["timeout"] = self._connect_timeout_s
        return ReadAhead(super().create_connection(*args, **kwargs))

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
            told = [each for each in rlist if isinstance(each, Wakes) and each.fileno() in ready]
            for each in told:
                each.hear()
            readable = [each for each in rlist if each in ahead or each.fileno() in ready]
            readable = [each for each in readable if each not in told or each.pending()]
            writable = [each for each in wlist if each.fileno() in ready]
            if readable or writable or not told:
                return readable, writable, []

    def create_socket_pair(self) -> tuple[Wakes, Wakes]:
        """Return what tells kazoo's thread of requests."""
        wakes = Wakes(*super().create_socket_pair())
        return wakes, wakes

    def async_result(self) -> Result:
        """Return a result that is not there yet."""
        return Result(self)

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch: it only hands the event to the loop."""
        callback.func(*callback.args)
