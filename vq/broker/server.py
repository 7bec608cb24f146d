"""The shell around connections: an asyncio protocol per connection, deadlines, caps, back-pressure.

Parsing is in ``vq.remoting.connection``, handling of requests in ``dispatcher``. No task, future or
timer belongs to a connection or a request: data come in through ``data_received``, answers gather
until the end of the loop iteration and leave with one ``writelines``, and one sweep checks the
deadlines of all connections.

Reading from a peer pauses while too many of its requests wait, too many bytes of its PUTs wait, it
does not read its answers, or the node as a whole is at a bound. TCP then stops the peer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from vq.broker.admission import Admission
from vq.broker.config import ConnectionLimits
from vq.broker.outgoing import Outgoing
from vq.broker.session import Cancellable, Handler
from vq.broker.silence import Silence
from vq.broker.turn import Turn
from vq.clock import Clock
from vq.errors import Busy, InternalError, TimedOut, VqError
from vq.log_lines import get_logger
from vq.remoting.connection import (
    Closing,
    Opened,
    Request,
    RequestId,
    ServerConnection,
    ServerIdentity,
)
from vq.remoting.format import READS
from vq.remoting.frames import Buffer
from vq.remoting.membership import Member, Proving
from vq.remoting.messages import Header
from vq.remoting.transport import tune

logger = get_logger(__name__)

#: How long a peer may go on sending after its connection was refused, before it is cut.
LINGER_S: Final = 2.0
#: How many such connections are kept at once; further ones are closed at once, and their peers may
#: see a reset instead of the reason.
LINGERING_MAX: Final = 64
#: How many silent connections are ended when the process has run out of file descriptors.
SILENT_ENDED: Final = 16


class BrokerSession(asyncio.Protocol):
    """One connection; see ``session.Session`` for what channels use of it."""

    __slots__ = (
        "_closing_since",
        "_gathered",
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
        "put_bytes",
        "reads",
        "waiting",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._outgoing = Outgoing(server.limits.write_buffer_bytes, server.now)
        self._silence = Silence(server.now())
        self._closing_since: float | None = None
        self._gathered = 0
        self._paused = False
        self.address = ""
        self.client_id = ""
        self.connection = server.new_connection()
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
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) and peer else str(peer)
        self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes)
        self._server.admit(self)

    def data_received(self, data: bytes) -> None:
        """Have the requests in ``data`` handled, then see whether to go on reading."""
        if self._closing_since is not None:
            return
        self._silence.active = True
        server = self._server
        handlers = server.handlers
        connection = self.connection
        for event in connection.receive_data(data):
            if type(event) is Request:
                request_id = event.request_id
                if request_id.command in READS:
                    self.reads += 1
                    server.reads_waiting += 1
                    if server.reads_waiting > server.limits.reads_waiting_max:
                        self.refuse(request_id, server.too_many_reads())
                        continue
                else:
                    self.in_flight += 1
                    server.requests_waiting += 1
                try:
                    handlers[request_id.command](self, request_id, event.message, event.body)
                except Exception as error:
                    logger.exception("request failed", peer=self.address, request=request_id)
                    self.refuse(request_id, InternalError(f"{type(error).__name__}: {error}"))
            elif type(event) is Closing:
                self._close(event)
                return
            elif type(event) is Opened:
                self._opened(event)
        own = connection.data_to_send()
        if own:
            self._send(own)
        limits = server.limits
        if (
            self.in_flight >= limits.requests_in_flight_max
            or self.put_bytes >= limits.put_bytes_in_flight_max
            or server.requests_waiting >= limits.requests_waiting_max
            or server.put_bytes >= limits.put_bytes_waiting_max
        ):
            self._pause()
        pending = connection.pending_bytes
        if pending != self._gathered:
            server.gathered_bytes += pending - self._gathered
            self._gathered = pending
            if server.gathered_bytes > limits.gathered_bytes_max:
                self.end(
                    Busy(
                        f"{server.gathered_bytes} bytes of incomplete frames are kept for all "
                        f"connections, at most {limits.gathered_bytes_max} may be"
                    )
                )

    def eof_received(self) -> None:
        """The peer will send no more: close."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything that belongs to the connection."""
        self._transport = None
        self.connection.ended()
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
    def member(self) -> Member | None:
        """See ``session.Session``."""
        return self.connection.member

    @property
    def congested(self) -> bool:
        """See ``session.Session``."""
        return self._outgoing.congested

    def count_put_bytes(self, change: int) -> None:
        """See ``session.Session``; also counted once the connection has ended."""
        self.put_bytes += change
        self._server.put_bytes += change

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> None:
        """See ``session.Session``."""
        if self.open:
            self._answered(request_id, self.connection.reply(request_id, message, body))

    def reply_parts(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> None:
        """See ``session.Session``."""
        if self.open:
            self._answered(request_id, self.connection.reply_parts(request_id, message, parts))

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """See ``session.Session``."""
        if self.open:
            self._server.refusals[type(error)] += 1
            self._answered(request_id, self.connection.reply_error(request_id, error))

    def defer(self, action: Callable[[], None]) -> None:
        """See ``session.Session``; bounded by the requests that may be in flight."""
        if self.open:
            self._outgoing.defer(action)

    def write_out(self) -> None:
        """See ``turn.Writer``."""
        if self._outgoing.write(self._transport):
            self._relieve()

    # Own ----------------------------------------------------------------------------------------
    def end(self, error: VqError, *, linger: bool = True) -> None:
        """Tell the peer why, and close; at once without ``linger``."""
        if self._closing_since is None:
            self._close(self.connection.refuse(error), linger=linger)

    def abort(self) -> None:
        """Close without sending what waits."""
        if self._transport is not None:
            self._transport.abort()

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
                self.end(TimedOut(f"no HELLO within {limits.hello_timeout_s:g} s"))
        elif self.connection.pending_frame is not None and not self._paused:
            if self._silence.frame_for(self.connection.pending_frame, now) > limits.frame_timeout_s:
                self.end(TimedOut(f"a frame is not whole after {limits.frame_timeout_s:g} s"))
        else:
            self._silence.frame = None
            waits = self.in_flight or self.reads
            if not waits and now - self._silence.idle_since > limits.idle_timeout_s:
                self.end(TimedOut(f"no request for {limits.idle_timeout_s:g} s"))

    def _sweep_congested(self, now: float) -> None:
        """Close if the peer has read nothing at all for too long; a slow peer may go on."""
        unread = self._transport.get_write_buffer_size() if self._transport is not None else 0
        timeout_s = self._server.limits.write_timeout_s
        if self._outgoing.unread_for(unread, now) > timeout_s:
            logger.warning(
                "connection ended, the peer reads nothing", peer=self.address, timeout_s=timeout_s
            )
            self.abort()

    def _opened(self, event: Opened) -> None:
        self.open = True
        self.client_id = getattr(event.hello, "client_id", "")
        self._server.opened(self)

    def _close(self, event: Closing, *, linger: bool = True) -> None:
        """Send the reason, drop what the peer sends, and end once it has had time to read.

        Closing at once while the peer still sends would make the kernel drop the reason: a reset
        discards what the peer has not read yet. So its bytes are read and thrown away for a while.
        A peer that has sent nothing reads the reason also without ``linger``.
        """
        transport, server = self._transport, self._server
        self._forget()
        self._closing_since = server.now()
        server.leaves(self, event.error)
        self._outgoing.add(self.connection.data_to_send())
        self.write_out()
        if transport is None or transport.is_closing():
            return
        if self._paused:
            self._paused = False
            server.paused.pop(self, None)
            transport.resume_reading()
        if linger and transport.can_write_eof() and len(server.lingering) < LINGERING_MAX:
            server.lingering[self] = None
            transport.write_eof()
        else:
            transport.close()

    def _forget(self) -> None:
        """Subtract this session from the counts of the node; its requests get no answer."""
        server = self._server
        self.open = False
        server.requests_waiting -= self.in_flight
        server.reads_waiting -= self.reads
        server.gathered_bytes -= self._gathered
        self.in_flight = self.reads = self._gathered = 0
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
            and not self.congested
            and transport is not None
            and not transport.is_closing()
            and self.in_flight <= limits.requests_in_flight_max // 2
            and self.put_bytes <= limits.put_bytes_in_flight_max // 2
            and self._server.requests_waiting < limits.requests_waiting_max
            and self._server.put_bytes < limits.put_bytes_waiting_max
        ):
            self._paused = False
            self._server.paused.pop(self, None)
            transport.resume_reading()


class Server:
    """All connections of a node.

    Attributes:
        limits: Their bounds.
        handlers: What handles each command.
        turn: Where sessions announce that they have something to send.
        sessions: Every connection that is not gone yet, in order of arrival.
        requests_waiting: Requests of all sessions without an answer, reads not counted.
        reads_waiting: Reads (GET, FETCH) of all sessions without an answer. They may wait for data,
            and so never make a connection pause.
        put_bytes: Bytes of PUTs of all sessions, ended ones too, that wait; see
            ``session.Session``.
        gathered_bytes: Bytes of incomplete frames kept for all sessions.
        lingering: Ended connections whose peers still have time to read the reason.
        refused: Connections ended because of a bound, or because of what their peer did.
        refusals: How many requests were answered with which error.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        handlers: Mapping[int, Handler],
        turn: Turn,
        clock: Clock,
        identity: ServerIdentity,
        proving: Proving | None = None,
    ) -> None:
        self.limits = limits
        self.handlers = handlers
        self.turn = turn
        self.identity = identity
        self.proving = proving
        self.now = clock.monotonic
        self.sessions: dict[BrokerSession, None] = {}
        self.paused: dict[BrokerSession, None] = {}
        self.requests_waiting = 0
        self.reads_waiting = 0
        self.put_bytes = 0
        self.gathered_bytes = 0
        self.lingering: dict[BrokerSession, None] = {}
        self.refused = 0
        self.refusals: Counter[type[VqError]] = Counter()
        self._admission = Admission(limits)
        self._bad_peers: Counter[str] = Counter()
        self._last_bad: VqError | None = None

    def new_session(self) -> BrokerSession:
        """Return the protocol of a new connection; what a listener is given."""
        return BrokerSession(self)

    def new_connection(self) -> ServerConnection:
        """Return the state of a new connection."""
        return ServerConnection(
            self.identity, proving=self.proving, requests_max=self.limits.requests_in_flight_max
        )

    def admit(self, session: BrokerSession) -> None:
        """Count a new connection; end the connections that exceed a bound, perhaps itself."""
        self.sessions[session] = None
        for peer, error in self._admission.admit(session, self.now()):
            # A newcomer's HELLO may be under way; one that was silent for long has sent nothing.
            cast("BrokerSession", peer).end(error, linger=peer is session)

    def too_many_reads(self) -> Busy:
        """Return the error for a read beyond the node's bound."""
        return Busy(
            f"{self.reads_waiting - 1} reads wait for data on this node, at most "
            f"{self.limits.reads_waiting_max} may; read many partitions with one FETCH"
        )

    def opened(self, session: BrokerSession) -> None:
        """Note that a session said HELLO."""
        self._admission.spoke(session, self.now())

    def leaves(self, session: BrokerSession, error: VqError) -> None:
        """Note that a connection is being ended: it does not count any more.

        Each sweep writes one log line for all of them.
        """
        self._admission.forget(session, self.now())
        self.refused += 1
        self._bad_peers[session.address] += 1
        self._last_bad = error

    def remove(self, session: BrokerSession) -> None:
        """Forget a connection that is gone."""
        if session not in self.sessions:
            return
        del self.sessions[session]
        self.paused.pop(session, None)
        self.lingering.pop(session, None)
        self._admission.forget(session, self.now())

    def end_silent(self) -> None:
        """End some silent connections: the process has no file descriptor for new ones."""
        for _ in range(SILENT_ENDED):
            peer = self._admission.oldest_silent()
            if peer is None:
                return
            error = Busy("the broker has run out of file descriptors, and this one sent no HELLO")
            cast("BrokerSession", peer).end(error, linger=False)

    def sweep(self) -> None:
        """Check deadlines, resume reading where no bound is reached, and log ended connections."""
        now = self.now()
        for session in list(self.sessions):
            session.sweep(now)
        for session in list(self.paused):
            session.maybe_resume()
        if self._bad_peers:
            (address, count), *others = self._bad_peers.most_common()
            logger.warning(
                "connections ended for breaking a rule",
                address=address,
                connections=count,
                other_addresses=len(others),
                last_error=self._last_bad,
            )
            self._bad_peers.clear()

    def end_all(self, error: VqError) -> None:
        """End every connection, telling the peers why."""
        for session in list(self.sessions):
            session.end(error)
