"""A blocking connection of the network without sockets."""

import asyncio
import contextlib
import queue
from typing import cast

from vq.remoting.frames import Buffer
from vq.remoting.transport import seconds_left

__all__ = ["MemoryStream"]


class MemoryStream(asyncio.Protocol):
    """A blocking connection; ``MemoryNetwork.open_stream`` makes it."""

    encrypted = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received: queue.Queue[bytes] = queue.Queue()
        self._transport: asyncio.Transport | None = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport, on the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the transport, on the loop."""
        self._received.put(data)

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
        if self._ended and self._received.empty():
            return b""
        try:
            return self._received.get(timeout=seconds_left(deadline))
        except queue.Empty:
            raise TimeoutError("no answer in time") from None

    def interrupt(self) -> None:
        """See ``BlockingStream.interrupt``."""
        self._ended = True
        self._received.put(b"")

    def close(self) -> None:
        """See ``BlockingStream.close``."""
        assert self._transport is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._transport.abort)
