"""A blocking connection of the network without sockets."""

import asyncio
import contextlib
from collections import deque
from typing import cast

from vq.remoting.frames import Buffer
from vq.remoting.transport import seconds_left
from vq.waits import Latch


class MemoryStream(asyncio.Protocol):
    """A blocking connection; ``MemoryNetwork.open_stream`` makes it."""

    encrypted = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received: deque[bytes] = deque()
        self._came = Latch()  # what the thread that receives waits for
        self._transport: asyncio.Transport | None = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport, on the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the transport, on the loop."""
        self._received.append(data)
        self._came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport, on the loop."""
        self.interrupt()

    def send(self, data: Buffer, deadline: float) -> None:
        """See ``BlockingStream.send``."""
        seconds_left(deadline)
        if self._ended:
            raise BrokenPipeError("the connection has ended")
        assert self._transport is not None
        self._loop.call_soon_threadsafe(self._transport.write, data)

    def receive(self, deadline: float) -> bytes:
        """See ``BlockingStream.receive``."""
        while not self._received:
            self._came = came = Latch()
            if self._ended:
                return b""
            if not self._received and not came.wait(seconds_left(deadline)):
                raise TimeoutError("no answer in time")
        return self._received.popleft()

    def interrupt(self) -> None:
        """See ``BlockingStream.interrupt``."""
        self._ended = True
        self._came.set()

    def close(self) -> None:
        """See ``BlockingStream.close``."""
        assert self._transport is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._transport.abort)
