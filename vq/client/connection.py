"""One connection to one broker, on the event loop: requests out, replies matched to them.

Requests are pipelined and answered out of order. The hot path hands over ready header bytes and a
callback; ``request`` is the same for everything that is not hot. What is sent in one turn of the
loop leaves in one ``writelines``.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from vq import limits
from vq.errors import ConnectionCut, TimedOut, VqError
from vq.model import Address
from vq.remoting import messages
from vq.remoting.format import VERSION_MAX, VERSION_MIN, Command
from vq.remoting.frames import Buffer, Frame, FrameParser, encode_frame
from vq.remoting.transport import Network
from vq.remoting.wire_pb2 import HelloRequest, HelloResponse
from vq.version import __version__

OnReply = Callable[[Frame | None], None]
"""Called once per request: with the reply, or with None when the connection ended before it."""


class BrokerConnection(asyncio.Protocol):
    """A connection after HELLO. Loop-bound; made by ``connect``."""

    def __init__(self, address: Address, *, on_close: "Callable[[BrokerConnection], None]") -> None:
        self.address = address
        self.hello: HelloResponse = HelloResponse()
        self.closed = False
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(limits.FRAME_BYTES_MAX)
        self._waiting: dict[int, OnReply] = {}
        self._last_id = 0
        self._out: list[Buffer] = []
        self._transport: asyncio.Transport | None = None

    # asyncio.Protocol -------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand every whole reply to whoever waits for it."""
        try:
            frames = self._parser.feed(data)
        except VqError:
            self.close()
            return
        pop = self._waiting.pop
        for frame in frames:
            on_reply = pop(frame.correlation_id, None)
            if on_reply is not None:
                on_reply(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits that there will be no answer."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        self._on_close(self)
        for on_reply in waiting.values():
            on_reply(None)

    # Requests ---------------------------------------------------------------------------------
    @property
    def waiting(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    def send(self, command: int, header: bytes, body: Buffer, on_reply: OnReply) -> int:
        """Put a request on the wire at the end of this turn of the loop; return its id.

        ``body`` must not change before the reply.

        Raises:
            ConnectionCut: The connection has ended; nothing was sent.
        """
        if self.closed:
            raise ConnectionCut(f"the connection to {self.address} has ended")
        self._last_id = request_id = (self._last_id + 1) & 0xFFFF_FFFF
        self._waiting[request_id] = on_reply
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(encode_frame(command, 0, request_id, 0, header, len(body)))
        if len(body):
            self._out.append(body)
        return request_id

    def forget(self, request_id: int) -> None:
        """Ignore the answer to a request, when it comes."""
        if request_id in self._waiting:
            self._waiting[request_id] = _ignore

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self.closed:
            self._transport.writelines(out)

    async def request(
        self, command: int, message: Any, body: Buffer = b"", *, timeout: float
    ) -> tuple[Any, bytes]:
        """Send a request and return ``(response header, body)``.

        Raises:
            VqError: What the broker answered.
            TimedOut: No answer within ``timeout`` seconds.
            ConnectionCut: The connection ended first.
        """
        reply: asyncio.Future[Frame | None] = self._loop.create_future()

        def on_reply(frame: Frame | None) -> None:
            if not reply.done():
                reply.set_result(frame)

        request_id = self.send(command, messages.encode_header(command, message, 0), body, on_reply)
        try:
            async with asyncio.timeout(timeout):
                frame = await reply
        except TimeoutError:
            self.forget(request_id)
            raise TimedOut(
                f"{self.address} did not answer {Command(command).name} within {timeout:g} s"
            ) from None
        if frame is None:
            raise ConnectionCut(f"the connection to {self.address} ended before the answer")
        if frame.status:
            raise messages.decode_error(frame.status, frame.header, frame.flags)
        return messages.decode_response(command, frame.header, frame.flags), frame.body

    def close(self) -> None:
        """End the connection; whoever waits learns of it."""
        if self._transport is not None:
            self._transport.abort()


def _ignore(_frame: Frame | None) -> None:
    return None


def hello_request(client_id: str, cluster: str) -> HelloRequest:
    """Return the first header of every connection."""
    return HelloRequest(
        version_min=VERSION_MIN,
        version_max=VERSION_MAX,
        client_id=client_id,
        library=f"vq-python {__version__}",
        cluster=cluster,
    )


async def connect(
    network: Network,
    address: Address,
    *,
    client_id: str,
    cluster: str,
    timeout: float,
    on_close: Callable[[BrokerConnection], None],
) -> BrokerConnection:
    """Connect and say HELLO, all within ``timeout`` seconds.

    Raises:
        Unreachable: Nobody listens there.
        ConnectionCut: The connection ended.
        TimedOut: No answer in time.
        VqError: The broker refused.
    """
    try:
        async with asyncio.timeout(timeout):
            _, connection = await network.connect(
                address, lambda: BrokerConnection(address, on_close=on_close)
            )
            try:
                connection.hello, _ = await connection.request(
                    Command.HELLO, hello_request(client_id, cluster), timeout=timeout
                )
            except BaseException:
                connection.close()
                raise
            return connection
    except TimeoutError:
        raise TimedOut(f"{address} did not answer HELLO within {timeout:g} s") from None
