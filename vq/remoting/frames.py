"""Encodes frames and cuts them out of a stream of bytes. No sockets, no clock, no headers.

``FrameParser`` is on the hot path of broker and client. A small frame inside one chunk costs one
``struct`` call and two slices. A large body gets a room that grows as its bytes come; they are
copied there, or the caller has them received there.
"""

from collections.abc import Callable
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
from vq.remoting.room import contents, new_room

#: What a transport can send.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: A frame of which so much has come, and its header, and which misses as much has a room, and these
#: bytes are received there. Below that one copy costs less than another system call.
_LARGE_BYTES: Final = 32 * limits.KIB
#: So many times what has come is the most that a room has: 64 KiB, 256, 1 MiB. Each time it grows,
#: what has come is copied. A peer cannot have memory taken by what it only announces.
_GROWTH: Final = 4
#: Behind a frame with such a body the next one is likely to be large, too.
_MORE_LARGE_BYTES: Final = 256 * limits.KIB
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

    Memory: the parser keeps at most one incomplete frame, which grows only as its bytes arrive: a
    small one takes what has come, a large one at most four times as much. It checks the length as
    soon as it has the first 20 bytes.

    Args:
        max_bytes: See below.
        room_left: Says for how many bytes there may be room before they come; None: for any number.
            Bytes that there is no room for are kept as they come.

    Attributes:
        max_bytes: Largest accepted frame, prefix included; may be changed between two calls.
        frames: Number of whole frames so far.
        pending_bytes: Number of bytes that an incomplete frame takes, with those it has room for.
        room: Where the next bytes of the stream may be written, for ``filled``; None: nowhere.
        expects_large: The next frame is likely to be large: the last one was.
        failure: The error of invalid bytes; nothing behind them is parsed. Only the parser sets it.
        suspect: Command and correlation id of the refused frame; (0, 0) if they are not known.
    """

    __slots__ = (
        "_begun",
        "_body_at",
        "_came",
        "_head",
        "_room",
        "_room_left",
        "_total",
        "expects_large",
        "failure",
        "frames",
        "max_bytes",
        "pending_bytes",
        "room",
        "suspect",
    )

    def __init__(
        self,
        max_bytes: int = limits.FRAME_BYTES_MAX,
        room_left: Callable[[], int] | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self._room_left = room_left
        self.frames = 0
        self.pending_bytes = 0
        self.room: memoryview | None = None
        self.expects_large = False
        self._head = b""  # an incomplete prefix: fewer than 20 bytes, and no frame that has begun
        self._total = 0  # size of the frame that has begun; 0: none
        self._came = 0  # bytes of it so far
        self._body_at = 0  # where in it the body begins
        self._begun = bytearray()  # its bytes; what is in front of the body, once there is a room
        self._room: memoryview | None = None  # for the body, or for as much as may have room
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
            return self._total - self._came
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
        if out:
            self.frames += len(out)
            self.expects_large = len(out[-1].body) >= _MORE_LARGE_BYTES
        self._note_pending()
        return out

    def filled(self, size: int) -> list[Frame]:
        """Take so many bytes, which were written to ``room``; return the frame, if it is whole."""
        self._came += size
        out = []
        if self._came == self._total:
            self.frames += 1
            self.expects_large = self._total >= _MORE_LARGE_BYTES
            out.append(self._finish())
        elif self.room is not None and size == len(self.room):
            self._grow(self._came)
        self._note_pending()
        return out

    def drop(self) -> None:
        """Forget the incomplete frame: nobody will read it."""
        self._head = b""
        self._total = self._came = self.pending_bytes = 0
        self._begun = bytearray()
        self._room = self.room = None

    def _note_pending(self) -> None:
        """Note what an incomplete frame takes, and where the next bytes of it may go."""
        self.pending_bytes = len(self._head) + len(self._begun)
        self.room = None
        room = self._room
        if room is not None:
            self.pending_bytes += len(room)
            rest = room[self._came - self._body_at :]
            if len(rest) >= _LARGE_BYTES:
                self.room = rest

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
        length, _, _, _, _, _, header_bytes = PREFIX.unpack_from(data, position)
        self._total = length + LENGTH_BYTES
        self._body_at = PREFIX_BYTES + header_bytes
        self._gather(data, position, out)

    def _gather(self, data: bytes, position: int, out: list[Frame]) -> int:
        """Take the missing bytes of the frame from ``data``; return the position after them."""
        before, at = self._came, self._body_at
        end = min(len(data), position + self._total - before)
        piece = memoryview(data)[position:end]
        came = self._came = before + len(piece)
        room = self._room
        if room is not None and came - at > len(room):
            room = self._grow(before)
        if room is None:
            self._begun += piece
        else:
            room[before - at : came - at] = piece
        if came == self._total:
            out.append(self._finish())
        elif room is None and _LARGE_BYTES <= came <= self._total - _LARGE_BYTES and came > at:
            self._grow(came)
        return end

    def _grow(self, written: int) -> memoryview | None:
        """Have a room for what has come, and for more, if there may be one, and return it.

        The first so many bytes of the frame move there, or back to those that are in no room.
        """
        at, begun, old = self._body_at, self._begun, self._room
        size = min(self._total - at, _GROWTH * self._came)
        if self._room_left is not None and size + at - self._came > self._room_left():
            if old is not None:
                begun += old[: written - at]
            self._room = None
            return None
        self._room = room = new_room(size)
        room[: written - at] = memoryview(begun)[at:] if old is None else old[: written - at]
        self._begun = begun[:at]
        return room

    def _finish(self) -> Frame:
        """Return the frame, which is whole; its prefix was checked before."""
        begun, at, room = memoryview(self._begun), self._body_at, self._room
        _, _, flags, command, status, correlation_id, _ = PREFIX.unpack_from(begun)
        self._begun, self._room = bytearray(), None
        self._total = self._came = 0
        body = bytes(begun[at:]) if room is None else contents(room)
        return Frame(command, status, correlation_id, flags, bytes(begun[PREFIX_BYTES:at]), body)
