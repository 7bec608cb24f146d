"""Encodes frames and cuts them out of a stream of bytes. No sockets, no clock, no headers.

``FrameParser`` is on the hot path of broker and client. A small frame inside one chunk costs one
``struct`` call and two slices; a large frame is copied exactly once, whatever its number of chunks.
"""

from typing import Final, NamedTuple, TypeAlias

from vq import limits
from vq.errors import FrameTooLarge, InvalidArgument, ProtocolError, UnsupportedVersion, VqError
from vq.remoting.format import (
    LENGTH_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_VERSION,
    PREFIX,
    PREFIX_BYTES,
    VERSION_MAX,
)

#: What a transport can send.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: While a frame is gathered, smaller chunks than this are merged: a peer that sends one byte at a
#: time must not cost one Python object (50 bytes and more) per byte.
_SMALL_CHUNK_BYTES: Final = 4 * limits.KIB
_MERGED_BYTES: Final = 64 * limits.KIB
#: The first two bytes of a TLS alert and of a TLS handshake, where a frame has half of its length.
_TLS_RECORDS: Final = frozenset({0x1503, 0x1603})


class Frame(NamedTuple):
    """One frame of the wire.

    ``body`` is a copy, so keeping it does not keep the rest of its chunk in memory.
    """

    command: int
    status: int
    correlation_id: int
    flags: int
    header: bytes
    body: bytes

    def __repr__(self) -> str:
        """Return sizes instead of contents: short, and safe to log."""
        return (
            f"Frame(command={self.command}, status={self.status}, "
            f"correlation_id={self.correlation_id}, flags={self.flags}, "
            f"header={len(self.header)} bytes, body={len(self.body)} bytes)"
        )


def encode_frame(
    command: int,
    status: int,
    correlation_id: int,
    flags: int,
    header: bytes,
    body_bytes: int = 0,
    *,
    max_bytes: int = limits.FRAME_BYTES_MAX,
) -> bytes:
    """Return the prefix and header of a frame; the caller sends ``body_bytes`` of body after it.

    ``transport.writelines([encode_frame(..., body_bytes=len(body)), body])`` sends a body without
    copying it.

    Raises:
        InvalidArgument: The frame or its header is larger than a peer accepts.
    """
    length = LENGTH_OVERHEAD + len(header) + body_bytes
    if length + LENGTH_BYTES > max_bytes or len(header) > limits.FRAME_HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"frame of {length + LENGTH_BYTES} bytes (header {len(header)}) exceeds "
            f"{max_bytes} (header {limits.FRAME_HEADER_BYTES_MAX}); send less at once"
        )
    return (
        PREFIX.pack(length, MAGIC_VERSION, flags, command, status, correlation_id, len(header))
        + header
    )


class FrameParser:
    """Cuts a stream of bytes into frames.

    Memory: the parser keeps at most one incomplete frame, which grows only as its bytes arrive. It
    checks the length as soon as it has the first 20 bytes.

    Attributes:
        max_bytes: Largest accepted frame, prefix included; may be changed between two calls.
        frames: Number of whole frames so far.
        pending_bytes: Number of kept bytes of an incomplete frame.
        failure: The error of invalid bytes; nothing behind them is parsed. Only the parser sets it.
        suspect: Command and correlation id of the refused frame; (0, 0) if they are not known.
    """

    __slots__ = (
        "_gathered",
        "_gathered_bytes",
        "_head",
        "_small",
        "_total",
        "failure",
        "frames",
        "max_bytes",
        "pending_bytes",
        "suspect",
    )

    def __init__(self, max_bytes: int = limits.FRAME_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.frames = 0
        self.pending_bytes = 0
        self._head = b""  # an incomplete prefix: fewer than 20 bytes, and nothing gathered
        self._total = 0  # size of the frame being gathered; 0: none
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0  # in _gathered and _small
        self._small = bytearray()  # small chunks behind _gathered
        self.failure: VqError | None = None
        self.suspect = (0, 0)

    @property
    def pending_frame(self) -> int | None:
        """The number of the incomplete frame; None if there is none.

        The caller has a clock. It closes the connection if this number stays the same for
        ``limits.FRAME_TIMEOUT_S`` while it reads.
        """
        return self.frames if self._head or self._total else None

    @property
    def missing_bytes(self) -> int:
        """Number of missing bytes of the prefix, or of the frame."""
        if self._total:
            return self._total - self._gathered_bytes
        return PREFIX_BYTES - len(self._head)

    def feed(self, data: bytes) -> list[Frame]:
        """Parse the next bytes of the stream; return the frames that they complete, in order.

        If whole frames precede invalid bytes, the call returns the frames and sets ``failure``;
        every later call raises it.

        Raises:
            ProtocolError: The bytes are not a frame of this protocol.
            UnsupportedVersion: The frame has another protocol version.
            FrameTooLarge: The frame announces more than ``max_bytes``.
        """
        if self.failure is not None:
            raise self.failure
        out: list[Frame] = []
        position = 0
        if self._total:
            position = self._gather(data, 0, out)
        elif self._head:
            data = self._head + data
            self._head = b""
            self.pending_bytes = 0
        try:
            position = self._cut(data, position, out)
        except VqError as error:
            self.failure = error
            if not out:
                raise
        else:
            if position < len(data):
                self._keep(data, position, out)
        self.frames += len(out)
        self.pending_bytes = len(self._head) + self._gathered_bytes
        return out

    def drop(self) -> None:
        """Forget the incomplete frame: nobody will read it."""
        self._head = b""
        self._total = self._gathered_bytes = self.pending_bytes = 0
        self._gathered = []
        self._small = bytearray()

    def _cut(self, data: bytes, position: int, out: list[Frame]) -> int:
        """Append the whole frames in ``data``; return the position of the first incomplete one."""
        size = len(data)
        max_length = self.max_bytes - LENGTH_BYTES
        unpack = PREFIX.unpack_from
        append = out.append
        new = tuple.__new__  # the same as Frame(...), without its Python-level wrapper
        while size - position >= PREFIX_BYTES:
            length, magic, flags, command, status, correlation_id, header_bytes = unpack(
                data, position
            )
            if (
                magic != MAGIC_VERSION
                or length > max_length
                or header_bytes > length - LENGTH_OVERHEAD
                or header_bytes > limits.FRAME_HEADER_BYTES_MAX
            ):
                self._refuse(length, magic, command, correlation_id, header_bytes)
            end = position + LENGTH_BYTES + length
            if end > size:
                return position
            body = position + PREFIX_BYTES + header_bytes
            append(
                new(
                    Frame,
                    (
                        command,
                        status,
                        correlation_id,
                        flags,
                        data[position + PREFIX_BYTES : body],
                        data[body:end],
                    ),
                )
            )
            position = end
        return position

    def _refuse(
        self, length: int, magic: bytes, command: int, correlation_id: int, header_bytes: int
    ) -> None:
        """Raise the error of an invalid prefix."""
        if length >> 16 in _TLS_RECORDS:
            raise ProtocolError(
                "the other end speaks TLS, and this one does not: a client gives tls_ca, a broker "
                "tls_certificate and tls_key, or both do not"
            )
        if magic[:2] != MAGIC:
            raise ProtocolError(f"a frame starts with {magic[:2]!r}, not with {MAGIC!r}")
        self.suspect = (command, correlation_id)
        if magic != MAGIC_VERSION:
            raise UnsupportedVersion(
                f"frame of protocol version {magic[2]}; this peer supports {VERSION_MAX}",
                details={"version_max": VERSION_MAX},
            )
        if length + LENGTH_BYTES > self.max_bytes:
            raise FrameTooLarge(
                f"frame of {length + LENGTH_BYTES} bytes; at most {self.max_bytes} are allowed",
                details={"max_bytes": self.max_bytes},
            )
        raise ProtocolError(
            f"header of {header_bytes} bytes in a frame of length {length} "
            f"(a header has at most {limits.FRAME_HEADER_BYTES_MAX})"
        )

    def _keep(self, data: bytes, position: int, out: list[Frame]) -> None:
        """Keep the incomplete frame at the end of ``data``."""
        rest = len(data) - position
        if rest < PREFIX_BYTES:
            self._head = data[position:]
            return
        (length,) = PREFIX.unpack_from(data, position)[:1]
        self._total = length + LENGTH_BYTES
        self._gather(data, position, out)

    def _gather(self, data: bytes, position: int, out: list[Frame]) -> int:
        """Append the missing bytes of the frame from ``data``; return the position after them."""
        size = len(data)
        end = min(size, position + self._total - self._gathered_bytes)
        if end - position < _SMALL_CHUNK_BYTES:
            self._small += memoryview(data)[position:end]
            if len(self._small) >= _MERGED_BYTES:
                self._merge_small()
        else:
            self._merge_small()
            whole = position == 0 and end == size
            self._gathered.append(data if whole else data[position:end])
        self._gathered_bytes += end - position
        if self._gathered_bytes == self._total:
            out.append(self._finish())
        return end

    def _merge_small(self) -> None:
        if self._small:
            self._gathered.append(self._small)
            self._small = bytearray()

    def _finish(self) -> Frame:
        """Return the gathered frame; its prefix was checked before."""
        self._merge_small()
        parts = self._gathered
        self._gathered = []
        self._gathered_bytes = self._total = 0
        head = bytes(parts[0])
        _, _, flags, command, status, correlation_id, header_bytes = PREFIX.unpack_from(head)
        body = PREFIX_BYTES + header_bytes
        used = 1
        while len(head) < body:
            head += parts[used]
            used += 1
        parts[:used] = [memoryview(head)[body:]]
        return Frame(
            command, status, correlation_id, flags, head[PREFIX_BYTES:body], b"".join(parts)
        )
