"""A small HTTP server for what machines read of a process: metrics and health. Loop-bound.

It answers GET, one request for each connection, and then closes it. Everything about it is bounded:
connections, the bytes of a request, the time until the request is whole, and the time until the
peer has taken the answer. It is no web server: no bodies, no other methods, no authentication but
that of a TLS client certificate, if its network asks for one. Whoever reaches the port reads all of
it, so it listens on loopback unless told.

    GET /metrics HTTP/1.1          ->  HTTP/1.1 200 OK
    (headers, ignored)                 Content-Type: text/plain; version=0.0.4; charset=utf-8
                                       Content-Length: 4711
                                       Connection: close
"""

import asyncio
import http
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.ports import counted_address, peer_address
from vq.remoting.transport import ACCEPTS_PER_TURN, Listener, Network
from vq.tasks import begin_task

logger = get_logger(__name__)

#: Longest request: its first line and all headers.
REQUEST_BYTES_MAX: Final = 8192
#: Connections at once. For one more, one that waits for its peer ends; if none does, the new one
#: is told to come back. More than come in one turn of the loop, so that a whole request is seen.
CONNECTIONS_MAX: Final = 4 * ACCEPTS_PER_TURN
#: Until the request is whole.
REQUEST_TIMEOUT_S: Final = 5.0
#: Until the answer is made and the peer has taken it.
ANSWER_TIMEOUT_S: Final = 30.0
#: What a peer may send behind its request before it is cut; it has no business to send any.
_IGNORED_BYTES_MAX: Final = 64 * 1024
TEXT: Final = "text/plain; charset=utf-8"
_END_OF_HEADERS: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its status, its type and its bytes."""

    status: int
    body: bytes
    content_type: str = TEXT


#: Makes the answer for a path. What it raises is logged and answered with 500.
Route = Callable[[], Awaitable[Page]]


def text_page(status: int, text: str) -> Page:
    """Return a page for people."""
    return Page(status, f"{text}\n".encode())


class HttpServer:
    """Answers GET for a few paths.

    Args:
        routes: What answers each path; a query behind ``?`` is ignored.

    Attributes:
        connections: The open ones, in order of arrival.
    """

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = dict(routes)
        self.connections: dict[HttpConnection, None] = {}
        self._listener: Listener | None = None

    @property
    def address(self) -> Address | None:
        """Where it listens; None: it does not."""
        return None if self._listener is None else self._listener.address

    async def listen(self, network: Network, address: Address) -> None:
        """Accept connections.

        Raises:
            AddressUnavailable: The port is taken, or the address is not of this machine.
        """
        self._listener = await network.listen(address, lambda: HttpConnection(self))

    def make_room(self, newcomer: "HttpConnection") -> None:
        """End a connection that waits for its peer, or the newcomer if none does.

        That is the oldest one whose request is not whole, else whose answer was not taken, of the
        address that has most of these.
        """
        others = [each for each in self.connections if each is not newcomer]
        waits = [each for each in others if not each.answering] or [
            each for each in others if each.answered
        ]
        if not waits:
            newcomer.refuse()
            return
        ((address, _),) = Counter(each.counted_as for each in waits).most_common(1)
        next(each for each in waits if each.counted_as == address).refuse()

    async def close(self) -> None:
        """Stop listening and cut the open connections."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for connection in list(self.connections):
            connection.abort()
        if listener is not None:
            await listener.wait_closed()


class HttpConnection(asyncio.Protocol):
    """One connection with one request.

    Attributes:
        counted_as: What its peer counts as, see ``counted_address``.
        answering: Its request is whole, or it is being refused.
        answered: Its answer was handed to the transport.
    """

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self.counted_as = ""
        self.answering = self.answered = False
        self._ignored = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._end_handshake: Callable[[], object] | None = None

    # Called by the transport --------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or end it at once if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        if self._end_handshake is None:
            self._admit(transport.get_extra_info("peername"))
        elif self.answering:  # it was refused in its handshake
            self.abort()
        else:
            self._cut_in(REQUEST_TIMEOUT_S)

    def announced(self, peername: object, abort: Callable[[], object]) -> None:
        """See ``transport.Announced``: a handshake counts as a connection."""
        self._end_handshake = abort
        self._admit(peername)

    def _admit(self, peer: object) -> None:
        self.counted_as = counted_address(peer_address(peer))
        connections = self._server.connections
        connections[self] = None
        self._cut_in(REQUEST_TIMEOUT_S)
        if len(connections) > CONNECTIONS_MAX:
            self._server.make_room(self)

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        if self.answering:
            self._ignored += len(data)
            if self._ignored > _IGNORED_BYTES_MAX:
                self.abort()
            return
        self._received += data
        end = self._received.find(_END_OF_HEADERS)
        if end < 0 and len(self._received) <= REQUEST_BYTES_MAX:
            return
        if end < 0 or end > REQUEST_BYTES_MAX:
            self._write(text_page(431, f"a request has at most {REQUEST_BYTES_MAX} bytes"))
            return
        answer = self._route(bytes(self._received[:end]))
        if isinstance(answer, Page):
            self._write(answer)
            return
        self.answering = True
        self._cut_in(ANSWER_TIMEOUT_S)
        self._task = begin_task(self._answer(answer))

    def eof_received(self) -> bool:
        """The peer sends no more; it may still wait for its answer."""
        return self.answering

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and what was to be answered."""
        self._transport = None
        self._server.connections.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    # Own ----------------------------------------------------------------------------------------
    def refuse(self) -> None:
        """End the connection: too many are open."""
        if self._transport is None:
            self.answering = True
        if self.answered or self._transport is None:
            self.abort()
        else:
            self._write(
                text_page(503, f"{CONNECTIONS_MAX} connections are open, no more may be; try again")
            )

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()
        elif self._end_handshake is not None:
            self._end_handshake()

    def _route(self, head: bytes) -> Page | Route:
        """Return what answers a request, or the answer that says what is wrong with it."""
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return text_page(400, "this is not an HTTP/1.1 request")
        if words[0] != "GET":
            return text_page(405, "only GET is answered here")
        routes = self._server.routes
        route = routes.get(words[1].partition("?")[0])
        return route or text_page(404, f"there is no such page; there are {', '.join(routes)}")

    async def _answer(self, route: Route) -> None:
        try:
            page = await route()
        except Exception:
            logger.exception("page cannot be made")
            page = text_page(500, "the page cannot be made; the log of the process says why")
        self._write(page)

    def _write(self, page: Page) -> None:
        """Send the answer and close; what the peer does not take in time is dropped."""
        self.answering = self.answered = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        more = "Allow: GET\r\n" if page.status == 405 else ""
        head = (
            f"HTTP/1.1 {page.status} {http.HTTPStatus(page.status).phrase}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            f"Cache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
        )
        self._cut_in(ANSWER_TIMEOUT_S)
        transport.write(head.encode("latin-1") + page.body)
        transport.close()  # once everything is sent

    def _cut_in(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)
