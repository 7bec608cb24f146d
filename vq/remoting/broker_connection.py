"""One connection to one broker, on the event loop: requests out, replies matched to them.

Requests are pipelined and answered out of order. The hot path hands over ready header bytes and a
callback; ``request`` is the same for everything that is not hot. Requests of one loop iteration
leave in one ``writelines``. A large body leaves at once: the broker works on one batch while the
client makes the next.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from vq.errors import ConnectionCut, TimedOut, Unreachable, VqError
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting import messages
from vq.remoting.connection import ClientConnection, Closing, Opened, Reply
from vq.remoting.format import Command
from vq.remoting.frames import Buffer, Frame
from vq.remoting.messages import Header
from vq.remoting.transport import Network, tune
from vq.version import __version__

logger = get_logger(__name__)
LIBRARY = f"vq-python {__version__}"
#: A body of at least this size leaves at once, with a system call of its own.
_AT_ONCE_BYTES = 64 << 10

OnReply = Callable[[Frame | None], None]
"""Called once per request: with the reply, or with None when the connection ended before it."""


Report = Callable[[str, BaseException], None]
"""Called with the name of a callback, and the exception it raised."""


def log_raised(what: str, error: BaseException) -> None:
    """Log what was raised; see ``Report``."""
    logger.error("callback raised", callback=what, exc_info=error)


class BrokerConnection(asyncio.Protocol):
    """A connection after HELLO. Loop-bound; made by ``connect``."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        cluster: str,
        on_close: "Callable[[BrokerConnection], None]",
        report: Report,
    ) -> None:
        self.address = address
        self._report = report
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Header] = self._loop.create_future()
        self._client_id = client_id
        self._cluster = cluster
        self._on_close = on_close
        self._state = ClientConnection()
        self._out: list[Buffer] = []
        self._transport: asyncio.Transport | None = None

    # asyncio.Protocol -------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say HELLO; called by the transport."""
        self._transport = cast("asyncio.Transport", transport)
        tune(transport)
        self._transport.writelines(
            self._state.hello(client_id=self._client_id, library=LIBRARY, cluster=self._cluster)
        )

    def data_received(self, data: bytes) -> None:
        """Hand each whole reply to the callback of its request."""
        for event in self._state.receive_data(data):
            if isinstance(event, Reply):
                if event.context is not None:
                    self._tell(event.context, event.frame)
            elif isinstance(event, Opened):
                self._open(event.hello)
            elif isinstance(event, Closing):
                self._open(event.error)
                self.close()

    def _tell(self, on_reply: OnReply, frame: Frame | None) -> None:
        """Call the callback of one request; whatever it raises, the others are called, too.

        A signal handler, or the application's logging, may raise there. Each reply is handed over
        once, so a callback left out here would wait for ever.
        """
        try:
            on_reply(frame)
        except BaseException as error:  # noqa: BLE001 - what ends the program is raised later
            with contextlib.suppress(Exception):  # of the application's logging
                self._report(f"{self.address}: taking an answer", error)

    def _open(self, outcome: Header | VqError) -> None:
        if self.opened.done():
            return
        if isinstance(outcome, VqError):
            self.opened.set_exception(outcome)
            self.opened.exception()  # ``connect`` raises it; it is no defect if nobody waits
        else:
            self.opened.set_result(outcome)

    def connection_lost(self, exc: Exception | None) -> None:
        """Call the callbacks of all open requests: there will be no reply."""
        self.closed = True
        self._open(
            ConnectionCut(f"{self.address} closed the connection: {exc or 'no reason given'}")
        )
        contexts = self._state.abandon()
        try:
            self._on_close(self)
        finally:
            for on_reply in contexts:
                if on_reply is not None:
                    self._tell(on_reply, None)

    # Requests ---------------------------------------------------------------------------------
    def send(self, command: int, header: bytes, body: Buffer, on_reply: OnReply) -> int:
        """Send a request, at the end of this loop iteration at the latest; return its id.

        ``body`` must not change before the reply.

        Raises:
            ConnectionCut: The connection has ended; nothing was sent.
            Busy: As many requests wait here as the broker allows; nothing was sent.
        """
        if self.closed:
            raise ConnectionCut(f"the connection to {self.address} has ended")
        request_id, buffers = self._state.request(command, header, body, context=on_reply)
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out += buffers
        if len(body) >= _AT_ONCE_BYTES:
            self.flush()
        return request_id

    def flush(self) -> None:
        """Hand what was sent to the network now, not at the end of this loop iteration."""
        out, self._out = self._out, []
        if out and self._transport is not None and not self.closed:
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
            self._state.forget(request_id)
            raise TimedOut(
                f"{self.address} did not answer {Command(command).name} within {timeout:g} s"
            ) from None
        if frame is None:
            raise ConnectionCut(f"the connection to {self.address} ended before the answer")
        return messages.decode_reply(frame), frame.body

    def close(self) -> None:
        """End the connection; the callbacks of open requests are called soon."""
        self.closed = True  # nothing can be sent any more
        if self._transport is not None:
            self._transport.abort()


async def connect(
    network: Network,
    address: Address,
    *,
    client_id: str,
    cluster: str,
    timeout: float,
    on_close: Callable[[BrokerConnection], None],
    report: Report = log_raised,
) -> BrokerConnection:
    """Connect and say HELLO, all within ``timeout`` seconds.

    ``report`` is called with the exception if the callback of a request raises.

    Raises:
        Unreachable: Nobody listens there, or nobody answers in time.
        ConnectionCut: The connection ended.
        VqError: The broker refused.
    """
    connection: BrokerConnection | None = None
    try:
        async with asyncio.timeout(timeout):
            _, connection = await network.connect(
                address,
                lambda: BrokerConnection(
                    address,
                    client_id=client_id,
                    cluster=cluster,
                    on_close=on_close,
                    report=report,
                ),
            )
            await connection.opened
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, TimeoutError):
            raise Unreachable(f"{address} did not answer HELLO within {timeout:g} s") from None
        raise
    return connection
