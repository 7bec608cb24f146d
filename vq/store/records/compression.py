"""Compresses payloads, and decompresses them within a bound.

A compressed payload is one stream of its kind and nothing behind it. Damage is a stream that is cut
off, a second stream, and any other byte behind the stream. docs/formats.md has the rules for other
languages.

| kind | a payload is | level | memory of a reader beside the content |
| --- | --- | --- | --- |
| zlib | one zlib stream (RFC 1950) | 1 | 50 KiB and the content a second time |
| zstd | one frame (RFC 8878) that states its content size, without a dictionary | 1 | 1.3 MiB |
| lz4 | one frame of the LZ4 frame format, with blocks of at most 1 MiB | fast | 3.2 MiB |

The levels follow from figures (decision 0034). Any thread may call these functions. Two threads
must not use one zstd context at a time, and a new context costs 9 µs, several times the work on a
small message. So each thread has its own contexts until it ends: 1.4 MiB if it compresses, 0.1 MiB
if it decompresses. The first message of its kind imports the package of zstd or lz4.

A payload of at most 16 KiB whose content has at most 64 KiB is decompressed by the system's own
library, if it has one, called from compiled code (``_streams.h``): otherwise a third of the time or
more goes into objects. It takes no payload that breaks a rule of the table; which altered bytes are
noticed depends on the version of a library, and a record has a checksum for that. The functions
here do the rest, and say what is wrong. Its states take up to 0.5 MiB of a process.

In here: bytes to bytes. Not in here: which messages are compressed (the producer decides), and the
bits of a record's flag (``format``).
"""

import functools
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from vq import limits
from vq.errors import CorruptData, InvalidArgument
from vq.store.records.format import (
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

try:
    from vq.store.records import _codec
except ImportError:  # nothing compiled it
    _codec = None  # type: ignore[assignment]

_NAMES: Final = {COMPRESSION_ZLIB: "zlib", COMPRESSION_ZSTD: "zstd", COMPRESSION_LZ4: "lz4"}
_ZLIB_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 1
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: An empty frame has only this behind its header: one last block, stored, of 0 bytes; and, if the
#: header announces it, the checksum of no bytes.
_ZSTD_EMPTY_BLOCK: Final = b"\x01\x00\x00"
_ZSTD_EMPTY_CHECKSUM: Final = bytes.fromhex("99e9d851")
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
#: Where a frame's header has its flags, the size of its blocks (bits 4-6) and, if the flags say so,
#: the size of its content (8 bytes, little-endian).
_LZ4_FLAGS_AT: Final = 4
_LZ4_BLOCK_SIZE_AT: Final = 5
_LZ4_SIZE_AT: Final = 6
_LZ4_HEADER_BYTES_MIN: Final = 7
_LZ4_STATES_SIZE: Final = 1 << 3
#: Blocks of 1 MiB. A reader allocates two blocks, so the largest size, 4 MiB, would cost it 8 MiB.
_LZ4_BLOCK_SIZE_MAX: Final = 6 << 4


def compress(payload: bytes, kind: int) -> bytes:
    """Return ``payload`` compressed, which may be larger than it was.

    Args:
        payload: At most 1 MiB, so that readers accept it.
        kind: One of ``format.COMPRESSION_*``.

    Raises:
        InvalidArgument: There is no such kind.
    """
    if kind == COMPRESSION_NONE:
        return payload
    worker = _COMPRESS.get(kind)
    if worker is None:
        raise InvalidArgument(f"compression {kind} is unknown; known: {_known()}")
    return worker(payload)


def decompress(payload: bytes, kind: int, bytes_max: int = limits.MESSAGE_BYTES_MAX) -> bytes:
    """Return a payload as it was before compression.

    Whatever the bytes say of themselves, it allocates at most ``bytes_max`` and the memory in the
    table above.

    Args:
        payload: The bytes of a record.
        kind: One of ``format.COMPRESSION_*``.
        bytes_max: Most bytes to return.

    Raises:
        CorruptData: The payload is no whole stream of this kind, or more than one, its content has
            more than ``bytes_max`` bytes, or the kind is unknown.
    """
    content = None if _codec is None else _codec.decompress(payload, kind)
    if content is not None and len(content) <= bytes_max:
        return content
    return python_decompress(payload, kind, bytes_max)


def python_decompress(
    payload: bytes, kind: int, bytes_max: int = limits.MESSAGE_BYTES_MAX
) -> bytes:
    """Do what ``decompress`` does, with the packages for Python."""
    if kind == COMPRESSION_NONE:
        return payload
    worker = _DECOMPRESS.get(kind)
    if worker is None:
        raise CorruptData(f"compression {kind} is unknown; known: {_known()}")
    return worker(payload, bytes_max)


def _known() -> str:
    return ", ".join(
        f"{kind} ({name})" for kind, name in ((COMPRESSION_NONE, "none"), *_NAMES.items())
    )


def _bad(kind: int, payload: bytes, what: str) -> CorruptData:
    return CorruptData(f"payload of {len(payload)} bytes, {_NAMES[kind]}: {what}")


# zlib -------------------------------------------------------------------------------------------
def _compress_zlib(payload: bytes) -> bytes:
    return zlib.compress(payload, _ZLIB_LEVEL)


def _decompress_zlib(payload: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(payload, bytes_max + 1)
    except zlib.error as error:
        raise _bad(COMPRESSION_ZLIB, payload, f"damaged: {error}") from error
    if stream.eof and not stream.unused_data and len(content) <= bytes_max:
        return content
    raise _bad_end(
        COMPRESSION_ZLIB, payload, content, bytes_max, stream.eof, len(stream.unused_data)
    )


def _bad_end(
    kind: int, payload: bytes, content: bytes, bytes_max: int, eof: bool, behind: int
) -> CorruptData:
    """Say why a stream is too large, cut off, or not the last bytes of its payload."""
    if len(content) > bytes_max:
        return _bad(kind, payload, f"its content has more than {bytes_max} bytes")
    if not eof:
        return _bad(kind, payload, f"cut off after {len(content)} bytes of content")
    return _bad(kind, payload, f"{behind} bytes behind its end")


# zstd -------------------------------------------------------------------------------------------
class _Zstd(threading.local):
    """The zstd functions of one thread, each bound to a context of this thread."""

    def __init__(self) -> None:
        import zstandard

        self.compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress
        # The bound of the window matters for a cut-off frame only: a whole frame with its content
        # size is decompressed into the result, without a window.
        self.decompress = zstandard.ZstdDecompressor(
            max_window_size=limits.MESSAGE_BYTES_MAX
        ).decompress
        self.size_of = zstandard.frame_content_size
        self.header_of = zstandard.get_frame_parameters
        self.header_size = zstandard.frame_header_size
        self.size_unknown = zstandard.CONTENTSIZE_UNKNOWN
        self.error = zstandard.ZstdError


@functools.cache
def _zstd() -> _Zstd:
    return _Zstd()


def _compress_zstd(payload: bytes) -> bytes:
    return _zstd().compress(payload)


def _decompress_zstd(payload: bytes, bytes_max: int) -> bytes:
    zstd = _zstd()
    try:  # for all but damage: a frame that needs a dictionary is an error of the library, too
        if payload.startswith(_ZSTD_MAGIC) and 0 < zstd.size_of(payload) <= bytes_max:
            return zstd.decompress(payload, 0, False, False)  # no further frame, no bytes behind it
    except zstd.error:
        pass
    return _examine_zstd(zstd, payload, bytes_max)


def _examine_zstd(zstd: _Zstd, payload: bytes, bytes_max: int) -> bytes:
    """Return the content of an empty frame; say what is wrong with any other one."""
    if not payload.startswith(_ZSTD_MAGIC):
        raise _bad(COMPRESSION_ZSTD, payload, "it is not a zstd frame")
    try:
        header = zstd.header_of(payload)
        size = header.content_size
        if size == zstd.size_unknown:
            raise _bad(COMPRESSION_ZSTD, payload, "the frame does not state its content size")
        if size > bytes_max:
            raise _bad(
                COMPRESSION_ZSTD, payload, f"its content has {size} bytes, more than {bytes_max}"
            )
        if header.dict_id:
            raise _bad(COMPRESSION_ZSTD, payload, f"it needs dictionary {header.dict_id}")
        # The library returns the empty content without a look at what is behind the header.
        if not size and not _is_empty_frame(
            payload, zstd.header_size(payload), has_checksum=header.has_checksum
        ):
            raise _bad(
                COMPRESSION_ZSTD, payload, "the frame states 0 bytes of content and has more"
            )
        return zstd.decompress(payload, allow_extra_data=False)
    except zstd.error as error:
        raise _bad(COMPRESSION_ZSTD, payload, f"damaged: {error}") from error


def _is_empty_frame(payload: bytes, header_bytes: int, *, has_checksum: bool) -> bool:
    return payload[header_bytes:] == _ZSTD_EMPTY_BLOCK + _ZSTD_EMPTY_CHECKSUM * has_checksum


# lz4 --------------------------------------------------------------------------------------------
class _Lz4:
    """The lz4 functions; each call has a context of its own, which costs 0.1 µs."""

    def __init__(self) -> None:
        import lz4.frame

        self.compress: Callable[[bytes], bytes] = lz4.frame.compress
        self.new_context: Callable[[], object] = lz4.frame.create_decompression_context
        #: From context, bytes and most bytes to the content, the bytes read, and whether it ended.
        self.decompress: Callable[[object, bytes, int], tuple[bytes, int, bool]] = (
            lz4.frame.decompress_chunk
        )


@functools.cache
def _lz4() -> _Lz4:
    return _Lz4()


def _compress_lz4(payload: bytes) -> bytes:
    return _lz4().compress(payload)


def _decompress_lz4(payload: bytes, bytes_max: int) -> bytes:
    lz4 = _lz4()
    if not payload.startswith(_LZ4_MAGIC) or len(payload) < _LZ4_HEADER_BYTES_MIN:
        raise _bad(COMPRESSION_LZ4, payload, "it is not an lz4 frame")
    if payload[_LZ4_BLOCK_SIZE_AT] > _LZ4_BLOCK_SIZE_MAX:
        raise _bad(COMPRESSION_LZ4, payload, "its blocks have 4 MiB, more than 1 MiB")
    size = bytes_max
    if payload[_LZ4_FLAGS_AT] & _LZ4_STATES_SIZE:
        size = int.from_bytes(payload[_LZ4_SIZE_AT : _LZ4_SIZE_AT + 8], "little")
        if size > bytes_max:
            raise _bad(
                COMPRESSION_LZ4, payload, f"its content has {size} bytes, more than {bytes_max}"
            )
    try:
        # The library allocates what it may return, so a stated size saves memory.
        content, end, eof = lz4.decompress(lz4.new_context(), payload, size + 1)
    except RuntimeError as error:  # all that the library raises
        raise _bad(COMPRESSION_LZ4, payload, f"damaged: {error}") from error
    if eof and end == len(payload) and len(content) <= size:
        return content
    raise _bad_end(COMPRESSION_LZ4, payload, content, size, eof, len(payload) - end)


_COMPRESS: Final[Mapping[int, Callable[[bytes], bytes]]] = {
    COMPRESSION_ZLIB: _compress_zlib,
    COMPRESSION_ZSTD: _compress_zstd,
    COMPRESSION_LZ4: _compress_lz4,
}
_DECOMPRESS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {
    COMPRESSION_ZLIB: _decompress_zlib,
    COMPRESSION_ZSTD: _decompress_zstd,
    COMPRESSION_LZ4: _decompress_lz4,
}
assert _COMPRESS.keys() == _DECOMPRESS.keys() == _NAMES.keys()
