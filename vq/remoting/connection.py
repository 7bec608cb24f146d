"""The protocol of one connection, for broker and client. No sockets and no clock.

The caller passes received bytes in and sends the returned buffers:

    events = connection.receive_data(data)
    transport.writelines(connection.data_to_send())   # bytes of the connection itself
    for event in events: ...                          # Opened, Request or Reply, Closing

``Closing`` is always the last event: send the waiting bytes, then close the transport. Replies of
the broker and requests of the client are returned as lists of buffers, for one ``writelines``.

    state            event           next state
    AWAITING_HELLO   HELLO_ACCEPTED  OPEN
    AWAITING_HELLO   CHALLENGED      AUTHENTICATING
    AWAITING_HELLO   REFUSED         CLOSED
    AUTHENTICATING   AUTHENTICATED   OPEN
    AUTHENTICATING   REFUSED         CLOSED
    OPEN             REFUSED         CLOSED
    any              ENDED           CLOSED

Until a connection is OPEN, frames are small, and nothing is carried out. While it is AUTHENTICATING
the only requests are the steps of one exchange: AUTHENTICATE after a challenge; PROVE where the
broker takes no anonymous clients.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from vq import limits
from vq.errors import (
    STATUS_OK,
    AuthenticationFailed,
    Busy,
    HelloRequired,
    InvalidRequest,
    InvalidState,
    NotAuthenticated,
    ProtocolError,
    UnsupportedVersion,
    VqError,
)
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import (
    COMMANDS,
    CORRELATION_ID_MAX,
    FLAG_AGAIN,
    FLAG_HESSIAN,
    LENGTH_BYTES,
    PREFIX_BYTES,
    READS,
    VERSION_MAX,
    VERSION_MIN,
    Command,
    Header,
)
from vq.remoting.frames import Buffer, Frame, FrameParser, encode_frame
from vq.remoting.hello import (
    ANONYMOUS,
    Authenticate,
    KnownPeer,
    ServerIdentity,
    UserCheck,
    accept_anonymous,
    negotiate,
)
from vq.remoting.login import ANONYMOUS_LOGIN, Login
from vq.remoting.membership import ANYONE, Principal, ProofCheck, Proving
from vq.remoting.messages import (
    decode_error,
    decode_reply,
    decode_request,
    encode_error,
    encode_header,
)
from vq.security.scram import ClientChallenged, ClientFinal, ClientFirst, ScramKeys
from vq.shown import shown


class ConnectionState(enum.Enum):
    """The state of a connection, the same at both ends."""

    AWAITING_HELLO = "awaiting hello"
    AUTHENTICATING = "authenticating"
    OPEN = "open"
    CLOSED = "closed"


class Step(enum.Enum):
    """An event that changes the state of a connection."""

    HELLO_ACCEPTED = "hello accepted"
    CHALLENGED = "challenged"
    AUTHENTICATED = "authenticated"
    REFUSED = "refused"
    ENDED = "ended"


#: A step without an entry must not happen; taking it is a bug of vq.
TRANSITIONS: Final[dict[ConnectionState, dict[Step, ConnectionState]]] = {
    ConnectionState.AWAITING_HELLO: {
        Step.HELLO_ACCEPTED: ConnectionState.OPEN,
        Step.CHALLENGED: ConnectionState.AUTHENTICATING,
        Step.REFUSED: ConnectionState.CLOSED,
        Step.ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.AUTHENTICATING: {
        Step.AUTHENTICATED: ConnectionState.OPEN,
        Step.REFUSED: ConnectionState.CLOSED,
        Step.ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.OPEN: {
        Step.REFUSED: ConnectionState.CLOSED,
        Step.ENDED: ConnectionState.CLOSED,
    },
    ConnectionState.CLOSED: {Step.ENDED: ConnectionState.CLOSED},
}


class RequestId(NamedTuple):
    """Identifies a request for its answer; it does not keep the request's bytes alive."""

    command: int
    correlation_id: int
    flags: int
    size: int = 0  # of the body, and of a header that is large

    def __str__(self) -> str:
        """Return what it is called in logs."""
        command = COMMANDS.get(self.command)
        return f"{self.command if command is None else command.name} {self.correlation_id}"


class Request(NamedTuple):
    """Event: a request; answer it by ``reply`` or ``reply_error`` with its id."""

    request_id: RequestId
    message: Header
    body: bytes


class Opened(NamedTuple):
    """Event: the connection is open. ``hello``: the request at the broker, the response at the
    client.

    A client that was told that it ``proves`` gets it before it has done so.
    """

    version: int
    hello: Header


class Challenged(NamedTuple):
    """Event at the client: call ``authenticate`` with the keys that the password has with these."""

    salt: bytes
    iterations: int


class Reply(NamedTuple):
    """Event: the answer to the request sent with ``context``; see ``messages.decode_reply``."""

    context: Any
    frame: Frame


def is_again(frame: Frame) -> bool:
    """Whether further replies follow to the request that this one is for."""
    return bool(frame.flags & FLAG_AGAIN) and frame.command == Command.FETCH and not frame.status


class Closing(NamedTuple):
    """The last event: send the waiting bytes, then close. No more bytes are parsed."""

    error: VqError


#: Bytes as they came, or how many of them were written to the room.
Bytes = TypeVar("Bytes", bytes, int)
#: A frame with fewer bytes is small.
SMALL_FRAME_BYTES: Final = 512
_HEADER_FREE_BYTES: Final = limits.REQUEST_HEADER_FREE_BYTES  # looked up for each request
#: Commands that a connection of a broker answers itself.
_OWN: Final = frozenset({int(Command.HELLO), int(Command.PROVE), int(Command.AUTHENTICATE)})
_OPENING: Final = _OWN - {int(Command.PROVE)}
_OPEN: Final = ConnectionState.OPEN  # looked up for each piece of data


class _Connection:
    """Shared by both ends: parser, state, and the bytes to send.

    Attributes:
        parser: Of what is received.
    """

    def __init__(self, frame_bytes_max: int, room_left: Callable[[], int] | None = None) -> None:
        self.parser = FrameParser(frame_bytes_max, room_left)
        self._state = ConnectionState.AWAITING_HELLO
        self._outgoing: list[Buffer] = []

    @property
    def state(self) -> ConnectionState:
        """The state of this connection."""
        return self._state

    @property
    def pending_frame(self) -> int | None:
        """See ``FrameParser.pending_frame``."""
        return self.parser.pending_frame

    @property
    def pending_bytes(self) -> int:
        """See ``FrameParser.pending_bytes``."""
        return self.parser.pending_bytes

    def data_to_send(self) -> list[Buffer]:
        """Return the bytes of the connection itself, and remove them from it."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def ended(self) -> None:
        """Note that the transport is closed, by either end."""
        self.parser.drop()
        self._step(Step.ENDED)

    def _step(self, step: Step) -> None:
        self._state = TRANSITIONS[self._state][step]


class ServerConnection(_Connection):
    """The broker's end. It answers HELLO, AUTHENTICATE and PROVE; the caller answers all others.

    At most ``requests_max`` requests wait for an answer; further ones are refused as ``Busy``. So
    the caller's memory is bounded, whatever a peer sends. No payload is kept.

    Args:
        identity: In the answer to HELLO.
        authenticate: Says who a client is.
        mechanisms: In the answer to HELLO; none: the empty one alone.
        proving: To check the proofs of members.
        room_left: See ``FrameParser``.

    Attributes:
        holds: Nothing is to be read from the peer now; never, but see ``MeteredConnection``.
        keeps: It keeps bytes that are not parsed, or requests; likewise never.
        known: Who the peer has proved to be. It does not change any more once the connection is
            open, but for an anonymous peer that turns out to be a member.
    """

    holds: Final = False
    keeps: Final = False

    def __init__(
        self,
        identity: ServerIdentity,
        *,
        authenticate: Authenticate = accept_anonymous,
        mechanisms: Sequence[str] = (),
        proving: Proving | None = None,
        frame_bytes_max: int = limits.FRAME_BYTES_MAX,
        frame_bytes_max_before_hello: int = limits.FRAME_BYTES_MAX_BEFORE_HELLO,
        requests_max: int = limits.REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX,
        room_left: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(frame_bytes_max_before_hello, room_left)
        self._identity = identity
        self._authenticate = authenticate
        self._mechanisms = mechanisms
        self._hello: Opened | None = None
        self._check: UserCheck | None = None
        self.known = KnownPeer(ANYONE)
        self._proving = proving
        self._proof: ProofCheck | None = None
        self._frame_bytes_max = frame_bytes_max
        self._requests_max = requests_max
        self._waiting: set[int] = set()  # correlation ids of requests without an answer yet
        self._reads = 0  # how many of them are reads

    @property
    def principal(self) -> Principal:
        """Who the peer has proved to be."""
        return self.known.principal

    def ended(self) -> None:
        """See ``_Connection.ended``; whoever was to say who the peer is may be gone, too."""
        super().ended()
        self._authenticate, self._check = accept_anonymous, None

    @property
    def requests_in_flight(self) -> int:
        """Number of requests without an answer. Invariant: 0 <= it <= 2 * ``requests_max``."""
        return len(self._waiting)

    def small_from(self, data: bytes) -> int:
        """Return where the first small frame in ``data`` begins: it may be the first of very many.

        ``len(data)``: there is none.
        """
        parser, size, at = self.parser, len(data), 0
        if parser.pending_frame is not None:
            if parser.pending_bytes < PREFIX_BYTES:
                return 0  # it is not known how large it is
            at = parser.missing_bytes
        while at + LENGTH_BYTES <= size:
            frame_bytes = LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if frame_bytes < SMALL_FRAME_BYTES:
                return at
            at += frame_bytes
        return size

    def receive_data(self, data: bytes) -> list[Opened | Request | Closing]:
        """Parse the next bytes from the peer; return the events, in order.

        Invalid bytes do not raise: they become an error reply and ``Closing``.
        """
        events: list[Opened | Request | Closing] = []
        while data and self._state is not _OPEN and self._state is not ConnectionState.CLOSED:
            # Frame by frame, so that the larger bound holds for the frame right after the last of
            # HELLO and what proves who the client is.
            missing = self.parser.missing_bytes
            piece, data = data[:missing], data[missing:]
            self._take(self.parser.feed, piece, events)
        if data and self._state is _OPEN:
            self._take(self.parser.feed, data, events)
        return events

    def room_filled(self, size: int) -> list[Opened | Request | Closing]:
        """Take so many bytes, which were written to the parser's room; return the event of them."""
        events: list[Opened | Request | Closing] = []
        self._take(self.parser.filled, size, events)
        return events

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> list[Buffer]:
        """Return the buffers of a good reply; the body is not copied.

        Bytes of the connection itself, such as its answer to HELLO, come first. The list is empty
        if the connection has ended.

        Raises:
            InvalidState: The request was answered before.
            InvalidArgument: The reply is larger than a frame may be.
        """
        command, correlation_id, flags, _ = request_id
        header = encode_header(command, message, flags)
        head = encode_frame(command, STATUS_OK, correlation_id, flags, header, len(body))
        if not self._note_answered(request_id):
            return []
        buffers = self.data_to_send() if self._outgoing else []
        buffers.append(head)
        if body:
            buffers.append(body)
        return buffers

    def reply_parts(
        self, request_id: RequestId, message: Header, parts: Sequence[Buffer]
    ) -> list[Buffer]:
        """Return the buffers of a good reply with a body in parts; otherwise like ``reply``."""
        command, correlation_id, flags, _ = request_id
        header = encode_header(command, message, flags)
        size = sum(map(len, parts))
        head = encode_frame(command, STATUS_OK, correlation_id, flags, header, size)
        if not self._note_answered(request_id):
            return []
        return [*self.data_to_send(), head, *parts]

    def reply_again(
        self, request_id: RequestId, message: Header, parts: Sequence[Buffer]
    ) -> list[Buffer]:
        """Return the buffers of a good reply that is not the last one; like ``reply_parts``."""
        if self._state is not _OPEN:
            return []
        command, correlation_id, flags, _ = request_id
        if correlation_id not in self._waiting:
            raise InvalidState(f"{request_id} was answered before")
        header = encode_header(command, message, flags)
        size = sum(map(len, parts))
        flags |= FLAG_AGAIN
        head = encode_frame(command, STATUS_OK, correlation_id, flags, header, size)
        return [*self.data_to_send(), head, *parts]

    def reply_error(self, request_id: RequestId, error: VqError) -> list[Buffer]:
        """Return the buffers of an error reply; otherwise like ``reply``."""
        if not self._note_answered(request_id):
            return []
        return [*self.data_to_send(), _error_frame(request_id, error)]

    def reply_errors(self, request_ids: Sequence[RequestId], error: VqError) -> list[Buffer]:
        """Return the buffers of error replies to several requests: the error is encoded once."""
        buffers = self.data_to_send()
        encoded = dict[int, tuple[int, bytes]]()  # by the bit that says how
        for each in request_ids:
            if self._note_answered(each):
                form = each.flags & FLAG_HESSIAN
                if form not in encoded:
                    encoded[form] = encode_error(error, form)
                status, header = encoded[form]
                buffers.append(
                    encode_frame(each.command, status, each.correlation_id, each.flags, header)
                )
        return buffers

    def refuse(self, error: VqError) -> Closing:
        """End the connection with an error of the caller, such as a time-out.

        ``data_to_send`` then returns an error frame for command 0, correlation id 0.
        """
        return self._close(RequestId(0, 0, 0), error)

    def _note_answered(self, request_id: RequestId) -> bool:
        """Note that a request gets its answer; return False if the connection has ended."""
        if self._state is ConnectionState.CLOSED:
            self._waiting.clear()
            return False
        if request_id.correlation_id not in self._waiting:
            raise InvalidState(f"{request_id} was answered before")
        self._waiting.remove(request_id.correlation_id)
        if request_id.command in READS:
            self._reads -= 1
        return True

    def _take(
        self,
        parse: Callable[[Bytes], list[Frame]],
        data: Bytes,
        events: list[Opened | Request | Closing],
    ) -> None:
        parser = self.parser
        try:
            frames = parse(data)
        except VqError:
            frames = []
        for frame in frames:
            event = self._receive_frame(frame)
            if event is not None:
                events.append(event)
                if self._state is ConnectionState.CLOSED:
                    return
        if parser.failure is not None:
            command, correlation_id = parser.suspect
            events.append(self._close(RequestId(command, correlation_id, 0), parser.failure))

    def _receive_frame(self, frame: Frame) -> Opened | Request | Closing | None:
        command, status, correlation_id, flags, header, body = frame
        new = tuple.__new__  # the same as RequestId(...), without its Python-level wrapper
        size = len(body)
        if len(header) > _HEADER_FREE_BYTES:
            size += len(header)
        request_id = new(RequestId, (command, correlation_id, flags, size))
        waiting = self._waiting
        try:
            if self._state is ConnectionState.AWAITING_HELLO:
                return self._receive_hello(request_id, frame)
            if self._state is ConnectionState.AUTHENTICATING and command not in _OWN:
                raise NotAuthenticated(
                    "this broker takes no anonymous clients"
                    if self._check is None
                    else "the client has not shown yet that it knows the password"
                )
            message = decode_request(command, header, flags)
            if status != STATUS_OK or command in _OWN:
                return self._receive_own(request_id, status, message)
            if correlation_id in waiting:
                raise InvalidRequest(
                    f"correlation id {correlation_id} belongs to a request without an answer yet"
                )
        except VqError as error:
            return self._close(request_id, error)
        is_read = command in READS
        count = self._reads if is_read else len(waiting) - self._reads
        if count >= self._requests_max:
            busy = _too_many(count, is_read, self._requests_max)
            self._outgoing.append(_error_frame(request_id, busy))
            return None
        waiting.add(correlation_id)
        self._reads += is_read
        return new(Request, (request_id, message, body))

    def _receive_own(self, request_id: RequestId, status: int, message: Header) -> Opened | None:
        """Answer PROVE and AUTHENTICATE; return the event if that opens the connection.

        Raises:
            InvalidRequest: It is something else, which no peer may send now.
            AuthenticationFailed: It is no proof.
        """
        command, correlation_id, flags, _ = request_id
        if status == STATUS_OK and command == Command.PROVE:
            assert isinstance(message, wire.ProveRequest)
            answer: Header = self._prove(message)
        elif status == STATUS_OK and command == Command.AUTHENTICATE and self._check is not None:
            assert isinstance(message, wire.AuthenticateRequest)
            check, self._check = self._check, None
            self.known, data = check.finish(message.data)
            answer = wire.AuthenticateResponse(data=data)
        else:
            raise InvalidRequest(
                f"command {command} with status {status}: a request has status 0, HELLO comes "
                "once, and AUTHENTICATE once after a HELLO that was answered with a challenge"
            )
        header = encode_header(command, answer, flags)
        self._outgoing.append(encode_frame(command, STATUS_OK, correlation_id, flags, header))
        if self._state is not ConnectionState.AUTHENTICATING or self.known.principal == ANYONE:
            return None
        self._step(Step.AUTHENTICATED)
        self.parser.max_bytes = self._frame_bytes_max
        return self._hello

    def _prove(self, message: wire.ProveRequest) -> wire.ProveResponse:
        if self._proving is None:
            raise AuthenticationFailed("this broker takes no proofs")
        if self._check is not None or self.known.principal.user:
            raise AuthenticationFailed(
                "a member of the cluster proves that on a connection without a user"
            )
        if self._proof is None:
            identity = self._identity
            self._proof = ProofCheck(
                self._proving,
                cluster=identity.cluster,
                broker=Principal(identity.group, identity.node),
            )
        answer = self._proof.take(message)
        self.known = KnownPeer(self._proof.principal)
        return answer

    def _receive_hello(self, request_id: RequestId, frame: Frame) -> Opened | None:
        if frame.command != Command.HELLO or frame.status != STATUS_OK:
            raise HelloRequired(f"the first command is {frame.command}, not {Command.HELLO.value}")
        hello = decode_request(frame.command, frame.header, frame.flags)
        assert isinstance(hello, wire.HelloRequest)
        version = negotiate(hello)
        if hello.cluster and hello.cluster != self._identity.cluster:
            raise InvalidRequest(
                f"this broker belongs to cluster {self._identity.cluster!r}, "
                f"not {shown(hello.cluster)}",
                details={"cluster": self._identity.cluster},
            )
        if hello.client_id and not limits.is_valid_name(hello.client_id):
            raise InvalidRequest(f"client id {shown(hello.client_id)} is not a valid name")
        found = self._authenticate(hello)
        response = wire.HelloResponse(
            version=version,
            cluster=self._identity.cluster,
            group=self._identity.group,
            node=self._identity.node,
            incarnation=self._identity.incarnation,
            frame_bytes_max=self._frame_bytes_max,
            broker_version=self._identity.broker_version,
            requests_in_flight_max=self._requests_max,
            mechanisms=self._mechanisms,
        )
        if found is not None and not isinstance(found, KnownPeer):
            response.challenge = found.challenge
        encoded = encode_header(request_id.command, response, request_id.flags)
        self._outgoing.append(
            encode_frame(
                request_id.command, STATUS_OK, request_id.correlation_id, request_id.flags, encoded
            )
        )
        opened = Opened(version, hello)
        if not isinstance(found, KnownPeer):
            self._check = found
            self._hello = opened
            self._step(Step.CHALLENGED)
            return None
        self.known = found
        self._step(Step.HELLO_ACCEPTED)
        self.parser.max_bytes = self._frame_bytes_max
        return opened

    def _close(self, request_id: RequestId, error: VqError) -> Closing:
        self._outgoing.append(_error_frame(request_id, error))
        self._waiting.clear()
        self.parser.drop()  # the peer has a while to read why: its 16 MiB are not kept as long
        self._step(Step.REFUSED)
        return Closing(error.with_traceback(None))  # its frames refer to this connection


class ClientConnection(_Connection):
    """The client's end: assigns correlation ids and finds the request of each reply.

    ``context`` is any object, which comes back with the reply. Until ``Opened`` only ``hello`` may
    be sent, and ``authenticate`` after ``Challenged``. The caller encodes headers, so that a hot
    path can reuse one.

    Args:
        login: Who the client is.
        frame_bytes_max: Of the broker's frames.
    """

    def __init__(
        self, login: Login = ANONYMOUS_LOGIN, *, frame_bytes_max: int = limits.FRAME_BYTES_MAX
    ) -> None:
        super().__init__(frame_bytes_max)
        self._login = login
        self._first: ClientFirst | None = None
        self._challenged: ClientChallenged | None = None
        self._final: ClientFinal | None = None
        self._hello: Opened | None = None
        self._waiting: dict[int, tuple[int, Any]] = {}  # correlation id -> command, context
        self._reads = 0  # how many of them are reads
        self._last_id = 0
        self._peer_frame_bytes_max = limits.FRAME_BYTES_MAX_BEFORE_HELLO
        self._requests_max = 1

    @property
    def requests_in_flight(self) -> int:
        """Number of requests without a reply. Invariant: 0 <= it <= 2 * ``requests_max``."""
        return len(self._waiting)

    @property
    def requests_max(self) -> int:
        """The bound of waiting requests, and of waiting reads; 1 before ``Opened``."""
        return self._requests_max

    def hello(
        self,
        *,
        client_id: str = "",
        library: str = "",
        cluster: str = "",
        flags: int = 0,
    ) -> list[Buffer]:
        """Return the buffers of the HELLO that opens this connection.

        Raises:
            InvalidState: It was sent before, or the connection has ended.
        """
        if self._state is not ConnectionState.AWAITING_HELLO or self._waiting:
            raise InvalidState("HELLO was sent before; open another connection")
        login = self._login
        self._first = login.begin()
        message = wire.HelloRequest(
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
            client_id=client_id,
            library=library,
            mechanism=login.mechanism,
            credentials=login.user.encode() if self._first is None else self._first.message,
            cluster=cluster,
        )
        header = encode_header(Command.HELLO, message, flags)
        return self._send(Command.HELLO, header, b"", None, flags)[1]

    def authenticate(self, keys: ScramKeys) -> list[Buffer]:
        """Return the buffers of the request that proves the password.

        Raises:
            InvalidState: Nobody asks for it now.
        """
        if self._challenged is None or self._state is not ConnectionState.AUTHENTICATING:
            raise InvalidState(f"the connection is {self._state.value}, and waits for no proof")
        self._final = self._challenged.final(keys)
        self._challenged = None
        message = wire.AuthenticateRequest(data=self._final.message)
        header = encode_header(Command.AUTHENTICATE, message, 0)
        return self._send(Command.AUTHENTICATE, header, b"", None, 0)[1]

    def proved(self) -> None:
        """Note that both ends have shown that they are members of the cluster."""
        if self._state is ConnectionState.AUTHENTICATING:
            self._step(Step.AUTHENTICATED)

    def request(
        self,
        command: int,
        header: bytes,
        body: Buffer = b"",
        *,
        context: Any = None,
        flags: int = 0,
    ) -> tuple[int, list[Buffer]]:
        """Return the correlation id and the buffers of a request; its body is not copied.

        Raises:
            InvalidState: The connection is not open, or this is HELLO. Nothing was sent.
            Busy: The broker allows no more waiting requests of its kind. Nothing was sent.
            InvalidArgument: The frame is larger than the broker accepts. Nothing was sent.
        """
        if self._state is not ConnectionState.OPEN and not (
            self._state is ConnectionState.AUTHENTICATING and command == Command.PROVE
        ):
            raise InvalidState(f"the connection is {self._state.value}, not open")
        if command in _OPENING:
            raise InvalidState(
                f"{COMMANDS[command].name} opens a connection; it cannot be sent on an open one"
            )
        is_read = command in READS
        count = self._reads if is_read else len(self._waiting) - self._reads
        if count >= self._requests_max:
            raise _too_many(count, is_read, self._requests_max)
        return self._send(command, header, body, context, flags)

    def forget(self, correlation_id: int) -> Any:
        """Return the context of a request that the caller gives up, for example after a time-out.

        The request counts as in flight until its reply arrives (``Reply`` with context None) or the
        connection ends, because the broker still handles it.
        """
        command, context = self._waiting.get(correlation_id, (0, None))
        if command:
            self._waiting[correlation_id] = (command, None)
        return context

    def abandon(self) -> list[Any]:
        """Mark the connection as ended; return the contexts of all requests without a reply.

        Their outcome is unknown (``ConnectionCut``).
        """
        self.ended()
        contexts = [context for _, context in self._waiting.values()]
        self._waiting.clear()
        return contexts

    def receive_data(self, data: bytes) -> list[Opened | Challenged | Reply | Closing]:
        """Parse the next bytes from the broker; return the events, in order.

        Invalid bytes do not raise: they become ``Closing``.
        """
        return self._take(self.parser.feed, data)

    def room_filled(self, size: int) -> list[Opened | Challenged | Reply | Closing]:
        """Take so many bytes, which were written to the parser's room; return the event of them."""
        return self._take(self.parser.filled, size)

    def _take(
        self, parse: Callable[[Bytes], list[Frame]], data: Bytes
    ) -> list[Opened | Challenged | Reply | Closing]:
        events: list[Opened | Challenged | Reply | Closing] = []
        if self._state is ConnectionState.CLOSED:
            return events
        parser = self.parser
        waiting = self._waiting
        try:
            for frame in parse(data):
                known = waiting.get(frame.correlation_id)
                if known is None or known[0] != frame.command:
                    raise _unsolicited(frame)
                if not is_again(frame):
                    del waiting[frame.correlation_id]  # ``abandon`` needs the open requests
                    if frame.command in READS:
                        self._reads -= 1
                if frame.command == Command.HELLO:
                    event: Opened | Challenged | Reply = self._open(decode_reply(frame))
                elif frame.command == Command.AUTHENTICATE:
                    event = self._authenticated(decode_reply(frame))
                else:
                    event = Reply(known[1], frame)
                events.append(event)
            if parser.failure is not None:
                raise parser.failure
        except VqError as error:
            self._step(Step.REFUSED)
            events.append(Closing(error))
        return events

    def _send(
        self, command: int, header: bytes, body: Buffer, context: Any, flags: int
    ) -> tuple[int, list[Buffer]]:
        correlation_id = self._free_id()
        head = encode_frame(
            command,
            STATUS_OK,
            correlation_id,
            flags,
            header,
            len(body),
            max_bytes=self._peer_frame_bytes_max,
        )
        self._waiting[correlation_id] = (command, context)
        if command in READS:
            self._reads += 1
        return correlation_id, [head, body] if body else [head]

    def _free_id(self) -> int:
        """Return the next correlation id that is not 0 and not in use."""
        while True:
            self._last_id = self._last_id % CORRELATION_ID_MAX + 1
            if self._last_id not in self._waiting:
                return self._last_id

    def _open(self, message: Header) -> Opened | Challenged:
        assert isinstance(message, wire.HelloResponse)
        if not VERSION_MIN <= message.version <= VERSION_MAX:
            raise UnsupportedVersion(
                f"the broker chose version {message.version}, "
                f"not one of [{VERSION_MIN}, {VERSION_MAX}]"
            )
        self._peer_frame_bytes_max = min(
            message.frame_bytes_max or limits.FRAME_BYTES_MAX, limits.FRAME_BYTES_MAX
        )
        self._requests_max = max(1, message.requests_in_flight_max)
        opened = Opened(message.version, message)
        if self._first is not None:
            if not message.challenge:
                raise NotAuthenticated(
                    "the broker opens the connection without asking for the password, so it may be "
                    "no broker of this cluster"
                )
            self._challenged = self._first.challenged(message.challenge)
            self._hello = opened
            self._step(Step.CHALLENGED)
            return Challenged(self._challenged.salt, self._challenged.iterations)
        if message.challenge:
            raise ProtocolError("the broker asks for a proof, and the client has begun none")
        if self._login.user or not message.mechanisms or ANONYMOUS in message.mechanisms:
            self._step(Step.HELLO_ACCEPTED)
        elif self._login.member:
            self._step(Step.CHALLENGED)
        else:
            raise NotAuthenticated(
                "the broker takes no anonymous clients, and no user was given; it takes "
                f"{', '.join(message.mechanisms)}"
            )
        return opened

    def _authenticated(self, message: Header) -> Opened:
        assert isinstance(message, wire.AuthenticateResponse)
        assert self._final is not None
        assert self._hello is not None
        self._final.finish(message.data)
        self._step(Step.AUTHENTICATED)
        return self._hello


def _error_frame(request_id: RequestId, error: VqError) -> bytes:
    status, header = encode_error(error, request_id.flags)
    return encode_frame(
        request_id.command, status, request_id.correlation_id, request_id.flags, header
    )


def _too_many(count: int, is_read: bool, bound: int) -> Busy:
    kind = "reads" if is_read else "requests"
    return Busy(f"{count} {kind} of this connection wait for an answer, at most {bound} may")


def _unsolicited(frame: Frame) -> VqError:
    """Return the error of a reply without a request: the broker's, or a protocol error."""
    if frame.status != STATUS_OK and not frame.correlation_id:
        return decode_error(frame.status, frame.header, frame.flags)
    return ProtocolError(
        f"a reply to command {frame.command}, correlation id {frame.correlation_id}, "
        "answers no request"
    )
