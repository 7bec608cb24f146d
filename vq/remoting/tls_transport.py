"""TLS of one connection on the event loop: records between a plain transport and a protocol.

asyncio and uvloop have classes of their own for it. Theirs give each connection a buffer of 256 KiB
and two more that grow to the largest burst, for as long as it is open, and allocate 256 KiB for
each record that is read. Here all connections of a loop share the buffers for what is under way,
and OpenSSL gets small pieces, so an idle connection has little
(docs/decisions/0167-tls-where-programs-meet-it.md).

What is written is encrypted before ``writelines`` returns, so the plain transport's buffer is the
only one, and its limits are those of the protocol. ``close`` sends close_notify behind it and does
not wait for that of the peer.

Not in here: sockets, and which context is used (``transport``).
"""

import asyncio
import contextlib
import enum
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from vq import limits
from vq.remoting.receiving import CLEAR_BYTES, Receiver, shared

#: A TLS handshake must be over in this time, and so must the exchange that ends a connection.
TLS_HANDSHAKE_TIMEOUT_S: Final = 5.0
TLS_SHUTDOWN_TIMEOUT_S: Final = 5.0
#: Bytes that are encrypted, and decrypted, together. OpenSSL's buffers in memory keep the size of
#: the largest piece and a third more while the connection is open. A piece that is received ends in
#: the middle of a record, which costs as much as another one.
_SENT_BYTES: Final = 32 * limits.KIB
_RECORD_BYTES: Final = 16 * limits.KIB


class TlsState(enum.Enum):
    """How far a connection is."""

    HANDSHAKE = "handshake"
    FAILED = "failed"  # the handshake did; the protocol has not heard of the connection
    OPEN = "open"
    CLOSED = "closed"  # by this end, or broken; the plain transport may still send what it has


#: What an end makes of a state; of those that are over it makes nothing.
_ENDED: Final = {TlsState.HANDSHAKE: TlsState.FAILED, TlsState.OPEN: TlsState.CLOSED}


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a plain transport, and the transport of ``protocol``. Loop-bound.

    ``protocol`` gets its ``connection_made`` when the handshake is over.

    Args:
        protocol: Of the application.
        context: Of this connection.
        server_side: This end has accepted the connection.
        server_hostname: Of the other end, which its certificate must have; for clients.

    Attributes:
        opened: Ends with the handshake; its exception is an OSError.
    """

    __slots__ = (
        "_below",
        "_error",
        "_incoming",
        "_loop",
        "_outgoing",
        "_paused",
        "_protocol",
        "_ssl",
        "_state",
        "_timer",
        "opened",
    )

    def __init__(
        self,
        protocol: Receiver,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        self._state = TlsState.HANDSHAKE
        self._below: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    # Called by the plain transport ----------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # A cast, not isinstance: uvloop's transports do not inherit from asyncio's.
        self._below = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(TLS_HANDSHAKE_TIMEOUT_S, self._handshake_is_late)
        self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        return shared.first

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt received bytes, and hand them over."""
        if self._state not in _ENDED:
            return
        self._incoming.write(shared.first[:nbytes])
        if self._state is TlsState.HANDSHAKE:
            self._shake_hands()
        if self._state is TlsState.OPEN:
            self._read()

    def eof_received(self) -> None:
        """End the connection: ``connection_lost`` follows."""

    def pause_writing(self) -> None:
        """The plain transport has more than it may have."""
        if self._state is TlsState.OPEN:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It has less again."""
        if self._state is TlsState.OPEN:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol, or whoever waits for the handshake."""
        self._stop_timer()
        error = self._error or exc
        if self._state in {TlsState.HANDSHAKE, TlsState.FAILED}:
            if not self.opened.done():
                failure = error or ConnectionResetError("the other end closed the connection")
                self.opened.set_exception(failure)
                self.opened.exception()  # mark it as retrieved: whoever waited may be gone
        else:
            self._protocol.connection_lost(error)
        self._state = _ENDED.get(self._state, self._state)
        self._below = None

    # Called by the protocol -----------------------------------------------------------------------
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection, or of the plain one."""
        if name == "sslcontext":
            return self._ssl.context
        if name == "ssl_object":
            return self._ssl
        if name == "peercert":
            return self._ssl.getpeercert()
        if name == "cipher":
            return self._ssl.cipher()
        return default if self._below is None else self._below.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol from now on."""
        self._protocol = cast("Receiver", protocol)

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._state not in _ENDED

    def is_reading(self) -> bool:
        """Whether received bytes are handed over."""
        return self._state is TlsState.OPEN and not self._paused

    def pause_reading(self) -> None:
        """Hand over nothing for now."""
        if self._state is TlsState.OPEN and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Hand over received bytes again, soon."""
        if self._state is TlsState.OPEN and self._paused:
            self._paused = False
            self._transport.resume_reading()
            self._loop.call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._transport.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes are not sent yet."""
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        """Return False: TLS has no half-closed connections here."""
        return False

    def write_eof(self) -> None:
        """Refuse it; see ``can_write_eof``."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send some bytes."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and send some bytes; small ones share records."""
        if self._below is None:
            raise RuntimeError("the connection has ended")
        if self._state is not TlsState.OPEN:
            return
        encrypt, encrypted = self._ssl.write, self._outgoing.read
        records: list[bytes] = []
        small: list[bytes | bytearray | memoryview] = []
        small_bytes = 0
        try:
            for data in list_of_data:
                size = len(data)
                if small_bytes + size <= _RECORD_BYTES:
                    if size:
                        small.append(data)
                        small_bytes += size
                    continue
                if small:
                    encrypt(small[0] if len(small) == 1 else b"".join(small))
                    small, small_bytes = [], 0
                if size <= _RECORD_BYTES:
                    small, small_bytes = [data], size
                    continue
                view, at = memoryview(data), 0
                while at < size:
                    at += encrypt(view[at : at + _SENT_BYTES])
                    records.append(encrypted())
            if small:
                encrypt(small[0] if len(small) == 1 else b"".join(small))
        except ssl.SSLError as error:
            self._fail(error)
            return
        if self._outgoing.pending:
            records.append(encrypted())
        self._below.writelines(records)

    def close(self) -> None:
        """Send what was written, and end the connection."""
        if self._state is TlsState.HANDSHAKE:
            self.abort()
        elif self._state is TlsState.OPEN:
            self._end()

    def abort(self) -> None:
        """End the connection at once."""
        self._state = _ENDED.get(self._state, self._state)
        if self._below is not None:
            self._below.abort()

    # ----------------------------------------------------------------------------------------------
    @property
    def _transport(self) -> asyncio.Transport:
        assert self._below is not None
        return self._below

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()
        self._stop_timer()
        self._state = TlsState.OPEN
        self._protocol.connection_made(self)
        if not self.opened.done():
            self.opened.set_result(None)

    def _handshake_is_late(self) -> None:
        self._timer = None
        self._error = ConnectionAbortedError(
            f"it took more than {TLS_HANDSHAKE_TIMEOUT_S:g} seconds"
        )
        self.abort()

    def _read(self) -> None:
        """Decrypt what has come, and hand it over."""
        decrypt: Callable[[int, memoryview], int] = cast("Any", self._ssl.read)
        more = self._ssl.pending
        incoming, clear = self._incoming, shared.clear
        size, ended = 0, False
        while self._state is TlsState.OPEN and not self._paused:
            try:
                while (incoming.pending or more()) and size + _RECORD_BYTES <= CLEAR_BYTES:
                    got = decrypt(CLEAR_BYTES, clear[size:])
                    if not got:
                        ended = True
                        break
                    size += got
            except ssl.SSLWantReadError:
                pass  # the rest is a part of a record
            except ssl.SSLError as error:
                self._fail(error)
                return
            if not size:
                break
            data, size = bytes(clear[:size]), 0
            self._protocol.data_received(data)
            if ended:
                break
        if self._outgoing.pending:  # such as the answer to a change of keys
            self._flush()
        if ended and self._state is TlsState.OPEN:
            self._protocol.eof_received()
            self.close()

    def _flush(self) -> None:
        if self._below is not None and self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        """End a connection that is broken; the other end is told why, if there is an alert."""
        self._error = error
        self._end()

    def _end(self) -> None:
        """Send what is left to be sent, then close; a peer that does not read is not waited for."""
        if self._state is TlsState.OPEN:
            with contextlib.suppress(ssl.SSLError):  # that of the peer is not here
                self._ssl.unwrap()  # sends close_notify
        self._state = _ENDED.get(self._state, self._state)
        self._stop_timer()
        if self._below is not None:
            self._flush()
            self._below.close()
            self._timer = self._loop.call_later(TLS_SHUTDOWN_TIMEOUT_S, self._below.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
