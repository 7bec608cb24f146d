"""Bytes to frames and frames to bytes. No sockets, no clock, no knowledge of what a header means.

``FrameParser`` is on the hot path of broker and client: small frames of one chunk are cut out with
one ``struct`` call and two slices each, and a large frame is copied exactly once, however many
chunks it came in.
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

#: Chunks smaller than this are merged while a frame is gathered: a peer that sends one byte at a
#: time must not make us keep one Python object (50 bytes and more) per byte.
_SMALL_CHUNK_BYTES: Final = 4 * limits.KIB
_MERGED_BYTES: Final = 64 * limits.KIB


class Frame(NamedTuple):
    """One frame as it was on the wire.

    ``body`` is a copy of its own: keeping it does not keep the rest of the chunk it came in.
    """

    command: int
    status: int
    correlation_id: int
    flags: int
    header: bytes
    body: bytes

    def __repr__(self) -> str:
        """Sizes instead of contents: short, and safe to log whatever a peer sent."""
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
    """Return prefix and header of a frame; the caller sends the ``body_bytes`` of body behind it.

    ``transport.writelines([encode_frame(..., body_bytes=len(body)), body])`` sends a body without
    copying it.

    Raises:
        InvalidArgument: The frame or its header is larger than a peer would accept.
    """
    length = LENGTH_OVERHEAD + len(header) + body_bytes
    if length + LENGTH_BYTES > max_bytes or len(header) > limits.FRAME_HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"frame of {length + LENGTH_BYTES} bytes (header {len(header)}) is beyond "
            f"{max_bytes} (header {limits.FRAME_HEADER_BYTES_MAX}); send less at once"
        )
    return (
        PREFIX.pack(length, MAGIC_VERSION, flags, command, status, correlation_id, len(header))
        + header
    )


class FrameParser:
    """Cuts a stream of bytes into frames.

    Memory: at most one incomplete frame is kept, it grows only as its bytes arrive, and its length
    is checked as soon as its first 20 bytes are there.

    Attributes:
        max_bytes: Largest frame accepted, prefix included; may be changed between two calls.
        frames: How many whole frames came out so far.
    """

    __slots__ = (
        "_failure",
        "_gathered",
        "_gathered_bytes",
        "_head",
        "_small",
        "_suspect",
        "_total",
        "frames",
        "max_bytes",
    )

    def __init__(self, max_bytes: int = limits.FRAME_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.frames = 0
        self._head = b""  # an incomplete prefix: fewer than 20 bytes, and nothing gathered
        self._total = 0  # size of the frame being gathered; 0: none
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0  # in _gathered and _small
        self._small = bytearray()  # small chunks behind _gathered
        self._failure: VqError | None = None
        self._suspect = (0, 0)

    @property
    def failure(self) -> VqError | None:
        """The error of the bytes that are no frame; nothing behind them is parsed."""
        return self._failure

    @property
    def suspect(self) -> tuple[int, int]:
        """Command and correlation id of the refused frame, (0, 0) where they cannot be known."""
        return self._suspect

    @property
    def pending_frame(self) -> int | None:
        """The number of the frame that is incomplete, or None when none has begun.

        The caller, which has a clock, closes a connection on which this is the same number for too
        long (``limits.FRAME_TIMEOUT_S``) while it was reading.
        """
        return self.frames if self._head or self._total else None

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an incomplete frame are kept."""
        return len(self._head) + self._gathered_bytes

    @property
    def missing_bytes(self) -> int:
        """How many bytes are missing of the prefix, or of the frame."""
        if self._total:
            return self._total - self._gathered_bytes
        return PREFIX_BYTES - len(self._head)

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes of the stream; return the frames they complete, in order.

        Frames in front of damage are returned first: the call that finds both returns the frames,
        and ``failure`` is set; every later call raises it.

        Raises:
            ProtocolError: The bytes are no frame of this protocol.
            UnsupportedVersion: The frame has another protocol version.
            FrameTooLarge: The frame announces more than ``max_bytes``.
        """
        if self._failure is not None:
            raise self._failure
        out: list[Frame] = []
        position = 0
        if self._total:
            position = self._gather(data, 0, out)
        elif self._head:
            data = self._head + data
            self._head = b""
        try:
            position = self._cut(data, position, out)
        except VqError as error:
            self._failure = error
            if not out:
                raise
        else:
            if position < len(data):
                self._keep(data, position, out)
        self.frames += len(out)
        return out

    def _cut(self, data: bytes, position: int, out: list[Frame]) -> int:
        """Append the frames that are whole in ``data``; return where the first other one starts."""
        size = len(data)
        max_length = self.max_bytes - LENGTH_BYTES
        unpack = PREFIX.unpack_from
        append = out.append
        new = tuple.__new__  # what Frame(...) does, without its Python-level wrapper
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
        if magic[:2] != MAGIC:
            raise ProtocolError(f"a frame starts with {magic[:2]!r} where {MAGIC!r} must be")
        self._suspect = (command, correlation_id)
        if magic != MAGIC_VERSION:
            raise UnsupportedVersion(
                f"frame of protocol version {magic[2]}; this peer speaks {VERSION_MAX}",
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
        """Append what the incomplete frame needs from ``data``; return the position behind it."""
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
        """Return the gathered frame, whose prefix was checked before gathering began."""
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
