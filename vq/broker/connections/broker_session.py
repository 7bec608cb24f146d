"""One connection of the broker: an asyncio protocol that hands requests on and sends answers.

Parsing is in ``vq.remoting.connection``, handling of requests behind the door (``dispatcher``),
what all connections share in ``server``. No task, future or timer belongs to a connection or a
request: data come in through ``data_received``, answers gather until the end of the loop iteration
and leave with one ``writelines``, and one sweep checks the deadlines of all connections.

Reading from a peer pauses while too many of its requests wait, too many bytes of its PUTs wait, it
does not read its answers, it owes much for requests that were refused, it uses much of what is
used up for all (``shares``), or the quota of its user is used up (``metered_connection``). TCP then
stops the peer. So many requests are handled in one turn of the loop; what came beside them waits,
unread if it can, for the next turns, and connections take turns at that. What came beside answers
that the peer does not take waits until it does, and costs next to nothing meanwhile.

A request for which the node has no room waits, unhandled, until there is some:

    request                          takes                    beyond the bound of the node
    GET, FETCH, REPLICATE            a read                   is refused
    others, above all PUT            a request, its bytes     waits for room
    any of a member of the cluster   the same                 is handled
    HELLO, AUTHENTICATE, PROVE       nothing                  is handled

So what nodes and operators need never waits behind PUTs, which may wait for just that.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from vq.broker.base.session import Cancellable, is_own_fault
from vq.broker.connections.metered_connection import MeteredConnection
from vq.broker.connections.outgoing import Outgoing
from vq.broker.connections.owing import FREE_BYTES, REFUSED_BYTES, UNTAKEN_S, Owing
from vq.broker.connections.shares import (
    CUT_PER_REQUEST,
    HASTENED_LEFT,
    PIECE_BYTES,
    SMALL_PIECE_BYTES,
    TurnLine,
    WaitingInput,
    is_full,
    is_much,
)
from vq.broker.connections.silence import Silence
from vq.errors import TimedOut, VqError
from vq.log_lines import get_logger
from vq.remoting.connection import (
    Bytes,
    Closing,
    ConnectionState,
    Opened,
    Request,
    RequestId,
    ServerConnection,
)
from vq.remoting.format import READS, Header
from vq.remoting.frames import Buffer
from vq.remoting.hello import KnownPeer
from vq.remoting.membership import Principal
from vq.remoting.ports import counted_address, peer_address
from vq.remoting.receiving import FrameProtocol
from vq.remoting.transport import tune

if TYPE_CHECKING:
    from vq.broker.connections.server import Server

logger = get_logger(__name__)

#: How long a peer may go on sending after its connection was refused, before it is cut.
LINGER_S: Final = 2.0
#: How many such connections are kept at once; further ones are closed at once, and their peers may
#: see a reset instead of the reason.
LINGERING_MAX: Final = 64


class BrokerSession(FrameProtocol):
    """One connection; see ``session.Session`` for what channels use of it."""

    __slots__ = (
        "_closing_since",
        "_end_handshake",
        "_gathered",
        "_later",
        "_outgoing",
        "_paused",
        "_server",
        "_silence",
        "_transport",
        "address",
        "client_id",
        "connection",
        "in_flight",
        "open",
        "owing",
        "parser",
        "put_bytes",
        "reads",
        "waiting",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._outgoing = Outgoing(server.limits.write_buffer_bytes, server.clock)
        self._silence = Silence(server.now())
        self._closing_since: float | None = None
        self._gathered = 0
        self._later: WaitingInput | None = None
        self._end_handshake: Callable[[], object] | None = None
        self.owing = Owing(server)
        self._paused = False
        self.address = ""
        self.client_id = ""
        self.connection: ServerConnection | MeteredConnection = server.new_connection(self)
        self.parser = self.connection.parser
        self.open = False
        self.put_bytes = 0
        self.in_flight = 0  # requests without an answer, but for
        self.reads = 0  # those that may wait for data
        self.waiting: dict[Cancellable, None] = {}

    # Called by the transport --------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or end it at once if there are too many."""
        # A cast, not isinstance: uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        tune(transport)
        self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes)
        self._outgoing.encrypted = transport.get_extra_info("sslcontext") is not None
        if self._end_handshake is None:
            self._admit(transport.get_extra_info("peername"))
        elif self._closing_since is not None:
            self._transport.abort()

    def announced(self, peername: object, abort: Callable[[], object]) -> None:
        """See ``transport.Announced``: a connection in its TLS handshake is a silent one."""
        self._end_handshake = abort
        self._admit(peername)

    def _admit(self, peername: object) -> None:
        self.address = peer_address(peername)
        self._server.admit(self)

    def data_received(self, data: bytes) -> None:
        """Have the requests in ``data`` handled, in this turn if there is room in it.

        Many small ones are cut out of it piece by piece: once they wait, no more are.
        """
        if len(data) > SMALL_PIECE_BYTES:
            end = self.connection.small_from(data) + SMALL_PIECE_BYTES
            if end < len(data):
                self.data_received(data[:end])
                for at in range(end, len(data), SMALL_PIECE_BYTES):
                    self.data_received(data[at : at + SMALL_PIECE_BYTES])
                return
        if self._closing_since is not None:
            self._waste(len(data))
            return
        server = self._server
        self._heard()
        if server.requests_left <= 0 or self._later is not None or self._outgoing.congested:
            self._wait(server.line, (), len(data), data)
        else:
            self._take(self.connection.receive_data, data, len(data))

    @property
    def takes_room(self) -> bool:
        """See ``FrameProtocol``: not while ``data_received`` does more than to parse."""
        return (
            self._later is None
            and self._closing_since is None
            and not self._outgoing.congested
            and self._server.requests_left > 0
            and not self.connection.keeps
        )

    def room_filled(self, size: int) -> None:
        """See ``FrameProtocol``."""
        self._heard()
        self._take(self.connection.room_filled, size, size)

    def _heard(self) -> None:
        self._silence.active = True
        if self._server.spin is not None:
            self._server.spin.heard(self)

    def _take(
        self, receive: Callable[[Bytes], list[Opened | Request | Closing]], data: Bytes, size: int
    ) -> None:
        """Have the requests handled that so many bytes complete."""
        server = self._server
        left = server.requests_left
        turn, hastened = server.turn, False
        begins = turn.begin()
        try:
            events = receive(data)
            server.requests_left = left - len(events)
            handled = self._handle(events if len(events) <= left else events[:left])
            if handled < len(events) and self._closing_since is None:
                line = server.held if handled < left and not self.congested else server.line
                self._wait(line, events[handled:], size)
            elif handled == 1:
                hastened = self._hasten()
            if handled != 1 or server.gathered_bytes or server.requests_left <= HASTENED_LEFT:
                turn.schedule()  # its end begins the next one
                hastened = False
        finally:
            if begins:
                turn.leave(hastened=hastened)

    def _hasten(self) -> bool:
        """Do now what otherwise is done at the end of the turn: the peer sent one request.

        It waits for its answer, most likely, and what it began or completed is shared by nothing.

        Returns:
            Whether nothing of it is left to do.
        """
        server = self._server
        waiting = server.requests_waiting
        # Nobody else's message could share a flush with this one, or an answer to a copy; or a
        # copy told what it has, by which a PUT is stored, perhaps.
        if waiting <= 1 and (waiting == self.in_flight or self.connection.principal.proved):
            server.turn.hasten()
            return True
        if self._outgoing.waits:
            self.write_out()
        return False

    def _handle(self, events: Sequence[Opened | Request | Closing]) -> int:
        """Have requests handled while the node has room, then see whether to go on reading.

        Returns:
            How many were handled; there is no room for the next one, or the peer must take answers.
        """
        server = self._server
        door = server.door
        connection = self.connection
        outgoing = self._outgoing
        handled = len(events)
        for event in events:
            if type(event) is Request:
                request_id, message, body = event
                if outgoing.congested:
                    handled = next(at for at, each in enumerate(events) if each is event)
                    break
                if request_id.command in READS:
                    full = server.reads_waiting >= server.reads_shared and self._has_no_read()
                    self.reads += 1
                    server.reads_waiting += 1
                    if full:
                        self.refuse(request_id, server.too_many_reads())
                        continue
                elif not self._charge(request_id.size):
                    handled = next(at for at, each in enumerate(events) if each is event)
                    break
                door(self, request_id, message, body)
            elif type(event) is Closing:
                self._close(event)
                return len(events)
            elif type(event) is Opened:
                self._opened(event)
        own = connection.data_to_send()
        if own:
            self._send(own)
        limits = server.limits
        if (
            self.in_flight >= limits.requests_in_flight_max
            or self.put_bytes >= limits.put_bytes_in_flight_max
            or (
                (
                    server.requests_waiting >= server.requests_shared
                    or server.put_bytes >= server.put_bytes_shared
                )
                and self._uses_much()
            )
        ):
            self._pause()
        pending = connection.pending_bytes
        if pending != self._gathered:
            self._count_gathered()
        return handled

    def _charge(self, size: int) -> bool:
        """Charge a request of ``RequestId.size`` to its connection and the node, until it is
        answered.

        Returns:
            False: the node has no room for it, so nothing was charged.
        """
        server = self._server
        if (
            server.requests_waiting >= server.requests_shared
            or server.put_bytes >= server.put_bytes_shared
        ) and not self._has_room(size):
            return False
        self.in_flight += 1
        server.requests_waiting += 1
        self.put_bytes += size
        server.put_bytes += size
        return True

    def _has_room(self, size: int) -> bool:
        """Whether the node has room for what a request takes; see the module's text."""
        server, limits = self._server, self._server.limits
        if self.connection.principal.proved:
            return True
        if is_full(server.requests_waiting, limits.requests_waiting_max, self.in_flight):
            return False
        return not size or not is_full(
            server.put_bytes, limits.put_bytes_waiting_max, self.put_bytes + size
        )

    def _has_no_read(self) -> bool:
        """Whether the node has no room for one more read of this connection."""
        waiting, most = self._server.reads_waiting, self._server.limits.reads_waiting_max
        return not self.connection.principal.proved and is_full(waiting, most, self.reads)

    def _uses_much(self) -> bool:
        """Whether this connection uses much of what is used up, and would only bring more."""
        server, limits = self._server, self._server.limits
        return not self.connection.principal.proved and (
            (
                server.requests_waiting >= server.requests_shared
                and is_much(self.in_flight, limits.requests_waiting_max)
            )
            or (
                server.put_bytes >= server.put_bytes_shared
                and is_much(self.put_bytes, limits.put_bytes_waiting_max)
            )
        )

    def _count_gathered(self) -> None:
        """Count what is kept of requests that are not whole, or wait for a turn or for room."""
        server = self._server
        later = self._later
        kept = self.connection.pending_bytes
        if later is not None:
            kept += later.size + later.begun
        grown = kept - self._gathered
        server.gathered_bytes += grown
        self._gathered = kept
        self.owing.keep(self, kept)
        if self.owing.is_much(self):
            self._pause()
        while server.gathered_bytes > server.limits.gathered_bytes_max:
            server.end_largest()
        if grown > 0:
            server.gathered_left -= grown
            if server.gathered_left < 0 and kept > FREE_BYTES:
                self.read_later()

    def read_later(self) -> None:
        """Read on when it is its turn: those that send large requests, or owed much, take turns."""
        if self._later is None and self._closing_since is None:
            self._later = WaitingInput(self._server.line)
            self._server.line.add(self)
            frame = self._silence.frame
            self._pause()
            self._silence.frame = frame  # a turn is no excuse for a frame that is not whole

    def _wait(
        self,
        line: TurnLine,
        events: Sequence[Opened | Request | Closing],
        size: int,
        data: bytes = b"",
    ) -> None:
        """Keep requests that so many bytes have completed, or ``data``; it joins a line.

        If it is in a line already, it stays there.
        """
        later = self._later
        if later is None:
            later = self._later = WaitingInput(line)
            line.add(self)
        if events:
            later.cut(events, size)
        else:
            later.pieces.append(data)
        later.size += size
        self._count_gathered()
        self._pause()

    def take_turn(self, count: int) -> tuple[int, bool]:
        """See ``shares.WaitingPeer``."""
        later = self._later
        if later is None or self._closing_since is not None or self._outgoing.congested:
            return 0, False  # a congested one is added again in ``_relieve``
        cost = 0
        if not later.events and later.pieces:
            piece = later.pieces.popleft()
            if len(piece) > PIECE_BYTES:
                later.pieces.appendleft(piece[PIECE_BYTES:])
                piece = piece[:PIECE_BYTES]
            later.cut(self.connection.receive_data(piece), len(piece))
            cost = max(1, len(later.events) // CUT_PER_REQUEST)
        events = list(islice(later.events, count))
        handled = self._handle(events)
        cost += handled
        if self._later is not later:  # it was ended
            return cost, False
        for _ in range(handled):
            later.events.popleft()
        if handled:
            later.begun = 0
        if not later.events:
            later.size = sum(map(len, later.pieces))  # all of the piece of the events is handled
        self._count_gathered()
        if self._later is not later or (handled < len(events) and self._outgoing.congested):
            return cost, False
        if handled < len(events) and later.line is not self._server.held:
            later.line = self._server.held
            later.line.add(self)
            return cost, False
        if later.events or later.pieces:
            return cost, True
        self._later = None
        self.maybe_resume()
        return cost, False

    def eof_received(self) -> None:
        """The peer will send no more: close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything that belongs to the connection."""
        if self._transport is None:
            self._server.handshake_failed(self, exc)
        elif self.connection.state is ConnectionState.AUTHENTICATING:
            self._server.login_cut(self, self._server.now() - self._silence.made)
        self._transport = None
        self.connection.ended()
        if isinstance(self.connection, MeteredConnection):
            self.connection = self.connection.inner  # the other one refers to this session
        self._forget()
        self._server.remove(self)

    def pause_writing(self) -> None:
        """The peer does not read its answers: stop reading from it."""
        self._outgoing.pause()
        self._pause()

    def resume_writing(self) -> None:
        """The peer has read enough: send the answers that waited."""
        self._outgoing.resume()
        self._relieve()

    # Called by channels -------------------------------------------------------------------------
    @property
    def counted_as(self) -> str:
        """See ``session.Session``."""
        return counted_address(self.address)

    @property
    def principal(self) -> Principal:
        """See ``session.Session``."""
        return self.connection.principal

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """See ``authentication.AuthenticatedPeer``."""
        transport = self._transport
        return None if transport is None else transport.get_extra_info("peercert")

    @property
    def known(self) -> KnownPeer:
        """See ``authentication.AuthenticatedPeer``."""
        return self.connection.known

    @property
    def encrypted(self) -> bool:
        """Whether it is under TLS."""
        return self._outgoing.encrypted

    @property
    def congested(self) -> bool:
        """See ``session.Session``."""
        return self._outgoing.congested

    @property
    def gathered(self) -> int:
        """Bytes kept for this session of requests that are not whole, or not handled."""
        return self._gathered

    def stalled_s(self, now: float) -> float:
        """For how many seconds the frame has been incomplete that is so now."""
        pending = self.connection.pending_frame
        if pending is None or pending != self._silence.frame:
            return 0.0  # since the last sweep
        return self._silence.frame_for(pending, now)

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> None:
        """See ``session.Session``."""
        if self.open:
            self._answered(request_id, self.connection.reply(request_id, message, body))

    def reply_parts(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> None:
        """See ``session.Session``."""
        if self.open:
            self._answered(request_id, self.connection.reply_parts(request_id, message, parts))

    def reply_again(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> bool:
        """See ``session.Session``."""
        connection = self.connection
        if not self.open or isinstance(connection, MeteredConnection):
            return False
        self._send(connection.reply_again(request_id, message, parts))
        return True

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """See ``session.Session``."""
        if self.open:
            self._server.refusals[type(error)] += 1
            self._answered(request_id, self.connection.reply_error(request_id, error))
            if is_own_fault(error):
                self.owe(1 + request_id.size / REFUSED_BYTES)

    def owe(self, amount: float) -> None:
        """See ``session.Session``."""
        self.owing.owe(self, amount)
        if self.owing.is_much(self):
            self._pause()

    def defer(self, action: Callable[[], None]) -> None:
        """See ``session.Session``; bounded by the requests that may be in flight."""
        if self.open:
            self._outgoing.defer(action)

    def write_out(self) -> None:
        """See ``turn.Writer``."""
        outgoing, server = self._outgoing, self._server
        if outgoing.write(self._transport):
            self._relieve()
        elif outgoing.encrypted and outgoing.waits:
            asyncio.get_running_loop().call_soon(server.turn.add, self)
        if server.spin is not None and not server.requests_waiting:
            server.spin.answered(self)

    # Called by a metered connection -------------------------------------------------------------
    def hold(self) -> None:
        """Read no more from the peer, until ``go_on``."""
        self._pause()

    def go_on(self) -> None:
        """Take what has waited in the connection, and read again if nothing else stops that."""
        if self._transport is not None and self._closing_since is None:
            self.data_received(b"")
            self.maybe_resume()

    # Own ----------------------------------------------------------------------------------------
    def end(self, error: VqError, *, linger: bool = True) -> None:
        """Tell the peer why, and close; at once without ``linger``."""
        if self._closing_since is None:
            self._close(self.connection.refuse(error), linger=linger)

    def abort(self) -> None:
        """Close without sending what waits."""
        if self._transport is not None:
            self._transport.abort()
        elif self._end_handshake is not None:
            self._end_handshake()

    def sweep(self, now: float) -> None:
        """Close the connection if one of its deadlines passed; called every so often."""
        limits = self._server.limits
        if self._closing_since is not None:
            if now - self._closing_since > LINGER_S:
                self.abort()
            return
        self._silence.look(now)
        if self.congested:
            self._sweep_congested(now)
        elif not self.open:
            if now - self._silence.made > limits.hello_timeout_s:
                begun = self.connection.state is ConnectionState.AUTHENTICATING
                what = "proof of who the client is" if begun else "HELLO"
                self.end(TimedOut(f"no {what} within {limits.hello_timeout_s:g} s"))
        elif self.connection.pending_frame is not None and (
            not self._paused or (self._later is not None and not self._later.size)
        ):
            if self._silence.frame_for(self.connection.pending_frame, now) > limits.frame_timeout_s:
                self.end(TimedOut(f"a frame is not whole after {limits.frame_timeout_s:g} s"))
        else:
            self._silence.frame = None
            waits = self.in_flight or self.reads or self._later is not None
            if not waits and now - self._silence.idle_since > limits.idle_timeout_s:
                self.end(TimedOut(f"no request for {limits.idle_timeout_s:g} s"))

    def _sweep_congested(self, now: float) -> None:
        """Close if the peer has read nothing at all for too long; a slow peer may go on."""
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        timeout_s = self._server.limits.write_timeout_s
        unread_s = self._outgoing.unread_for(unread, now)
        if unread_s >= UNTAKEN_S:
            self.owing.untaken(self)
        if unread_s > timeout_s:
            logger.warning(
                "connection ended, the peer reads nothing", peer=self.address, timeout_s=timeout_s
            )
            self.abort()

    def _opened(self, event: Opened) -> None:
        self.open = True
        self.client_id = getattr(event.hello, "client_id", "")
        self._server.opened(self)
        self.owing.begin(self)

    def _close(self, event: Closing, *, linger: bool = True) -> None:
        """Send the reason, drop what the peer sends, and end once it has had time to read.

        Closing at once while the peer still sends would make the kernel drop the reason: a reset
        discards what the peer has not read yet. So its bytes are read and thrown away for a while,
        unless it owes much: then they wait, unread, as long. A peer that has sent nothing reads the
        reason also without ``linger``.
        """
        transport, server = self._transport, self._server
        self._forget()
        self._closing_since = server.now()
        server.leaves(self, event.error)
        self._outgoing.add(self.connection.data_to_send())
        self._outgoing.write(transport, whole=True)
        if transport is None:
            self.abort()
            return
        if transport.is_closing():
            return
        if self._paused and not self.owing.is_much(self):
            self._paused = False
            server.paused.pop(self, None)
            transport.resume_reading()
        if linger and transport.can_write_eof() and len(server.lingering) < LINGERING_MAX:
            server.lingering[self] = None
            transport.write_eof()
        else:
            transport.close()

    def _waste(self, size: int) -> None:
        """Take bytes that came behind the end: they are thrown away."""
        self.owing.owe(self, size / REFUSED_BYTES)
        transport = self._transport
        if self.owing.is_much(self) and not self._paused and transport is not None:
            self._paused = True
            transport.pause_reading()

    def _forget(self) -> None:
        """Subtract this session from the counts of the node; its requests get no answer."""
        server = self._server
        self.open = False
        if self._gathered:
            self.owing.leave(self, self._gathered)
        server.requests_waiting -= self.in_flight
        server.reads_waiting -= self.reads
        server.gathered_bytes -= self._gathered
        server.put_bytes -= self.put_bytes
        self.in_flight = self.reads = self._gathered = self.put_bytes = 0
        if self._later is not None:
            self._later.line.discard(self)
            self._later = None
        self._outgoing.forget()
        for waiting in list(self.waiting):
            waiting.cancel()

    def _answered(self, request_id: RequestId, buffers: list[Buffer]) -> None:
        server = self._server
        if request_id.command in READS:
            self.reads -= 1
            server.reads_waiting -= 1
        else:
            self.in_flight -= 1
            server.requests_waiting -= 1
            self.put_bytes -= request_id.size
            server.put_bytes -= request_id.size
        self._send(buffers)
        if self._paused:
            self.maybe_resume()

    def _send(self, buffers: list[Buffer]) -> None:
        """Have ``buffers`` written at the end of this loop iteration."""
        if self._outgoing.add(buffers):
            self._server.turn.add(self)

    def _relieve(self) -> None:
        """Send the answers that waited, until the peer is congested again."""
        if self._outgoing.relieve():
            self.owing.taken()
            if self._later is not None:
                self._later.line.add(self)
                self._server.turn.schedule()
            self.maybe_resume()

    def _pause(self) -> None:
        transport = self._transport
        if self._paused or self._closing_since is not None:
            return
        if transport is not None and not transport.is_closing():
            self._paused = True
            self._silence.frame = None
            transport.pause_reading()
            self._server.paused[self] = None

    def maybe_resume(self) -> None:
        """Read again if no bound is reached any more."""
        limits, transport = self._server.limits, self._transport
        if (
            self._paused
            and self._later is None
            and not self.congested
            and not self.connection.holds
            and transport is not None
            and not transport.is_closing()
            and self.in_flight <= limits.requests_in_flight_max // 2
            and self.put_bytes <= limits.put_bytes_in_flight_max // 2
            and not self._uses_much()
            and not self.owing.is_much(self)
        ):
            self._paused = False
            self._server.paused.pop(self, None)
            transport.resume_reading()
