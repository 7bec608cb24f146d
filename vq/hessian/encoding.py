"""Plain values as Hessian bytes. Not in here: reading them (``plain``), objects (``objects``)."""

import struct
from collections.abc import Mapping, Sequence

from vq.errors import InvalidArgument
from vq.hessian.plain import (
    _BINARY_CHUNK,
    _F64,
    _I32,
    _I64,
    _INT_MAX,
    _INT_MIN,
    _LONG_MAX,
    _LONG_MIN,
    _STRING_CHUNK,
    _U16,
    DEPTH_MAX,
    Long,
    Value,
)
from vq.shown import shown


# Encoding -------------------------------------------------------------------------------------
def encode(value: Value) -> bytes:
    """Return ``value`` as one Hessian 2 value.

    Raises:
        InvalidArgument: The value has an unsupported type, an integer beyond 64 bits, a lone
            surrogate, a key that is not a string, or nesting deeper than ``DEPTH_MAX``.
    """
    out = bytearray()
    try:
        _encode(value, out, 0)
    except UnicodeError as error:
        raise InvalidArgument(f"a string holds a lone surrogate: {error}") from error
    return bytes(out)


def _encode(value: Value, out: bytearray, depth: int) -> None:
    if encode_scalar(value, out):
        return
    if depth >= DEPTH_MAX:
        raise InvalidArgument(f"value is nested deeper than {DEPTH_MAX}")
    if isinstance(value, Mapping):
        _encode_map(value, out, depth)
    elif isinstance(value, list | tuple):
        _encode_list(value, out, depth)
    else:
        raise InvalidArgument(f"Hessian headers hold no {type(value).__name__}")


def encode_scalar(value: object, out: bytearray) -> bool:
    """Append ``value`` to ``out`` if it is None, a boolean, number, string or bytes.

    Returns:
        Whether it is; otherwise ``out`` is as it was.

    Raises:
        InvalidArgument: An integer has more than 64 bits.
        UnicodeError: A string holds a lone surrogate.
    """
    if value is None:
        out.append(0x4E)
    elif isinstance(value, bool):
        out.append(0x54 if value else 0x46)
    elif isinstance(value, int):
        encode_integer(value, out)
    elif isinstance(value, float):
        out.append(0x44)
        out += _F64.pack(value)
    elif isinstance(value, str):
        encode_string(value, out)
    elif isinstance(value, bytes):
        _encode_binary(value, out)
    else:
        return False
    return True


def encode_integer(value: int, out: bytearray) -> None:
    """Append an int, or a long if ``value`` needs one or is a ``Long``."""
    if isinstance(value, Long) or not _INT_MIN <= value <= _INT_MAX:
        _encode_long(int(value), out)
    elif -16 <= value <= 47:
        out.append(0x90 + value)
    elif -2048 <= value <= 2047:
        out += bytes((0xC8 + (value >> 8), value & 0xFF))
    elif -262_144 <= value <= 262_143:
        out.append(0xD4 + (value >> 16))
        out += _U16.pack(value & 0xFFFF)
    else:
        out.append(0x49)
        out += _I32.pack(value)


def _encode_long(value: int, out: bytearray) -> None:
    if -8 <= value <= 15:
        out.append(0xE0 + value)
    elif -2048 <= value <= 2047:
        out += bytes((0xF8 + (value >> 8), value & 0xFF))
    elif -262_144 <= value <= 262_143:
        out.append(0x3C + (value >> 16))
        out += _U16.pack(value & 0xFFFF)
    elif _INT_MIN <= value <= _INT_MAX:
        out.append(0x59)
        out += _I32.pack(value)
    elif _LONG_MIN <= value <= _LONG_MAX:
        out.append(0x4C)
        out += _I64.pack(value)
    else:
        raise InvalidArgument(f"{shown(value)} does not fit into a Hessian long of 64 bits")


def encode_string(value: str, out: bytearray) -> None:
    """Append a string, long ones in chunks."""
    if value.isascii():
        units = len(value)
        raw = value.encode("ascii")
        while units > _STRING_CHUNK:
            out.append(0x52)
            out += _U16.pack(_STRING_CHUNK)
            out += raw[:_STRING_CHUNK]
            raw = raw[_STRING_CHUNK:]
            units -= _STRING_CHUNK
    else:
        utf16 = value.encode("utf-16-be")
        start, end = 0, len(utf16)
        while end - start > 2 * _STRING_CHUNK:
            stop = start + 2 * _STRING_CHUNK
            if 0xD8 <= utf16[stop - 2] <= 0xDB:  # a pair stays together
                stop -= 2
            out.append(0x52)
            out += _U16.pack((stop - start) // 2)
            out += _cesu8(utf16[start:stop])
            start = stop
        units = (end - start) // 2
        raw = _cesu8(utf16[start:end])
    if units < 0x20:
        out.append(units)
    elif units < 0x400:
        out += bytes((0x30 + (units >> 8), units & 0xFF))
    else:
        out.append(0x53)
        out += _U16.pack(units)
    out += raw


def _cesu8(utf16: bytes) -> bytes:
    """Return UTF-16 units as bytes, three for each half of a pair."""
    if not any(0xD8 <= high <= 0xDF for high in utf16[::2]):
        return utf16.decode("utf-16-be").encode("utf-8")
    units = struct.unpack(f">{len(utf16) // 2}H", utf16)
    return "".join(map(chr, units)).encode("utf-8", "surrogatepass")


def _encode_binary(value: bytes, out: bytearray) -> None:
    while len(value) > _BINARY_CHUNK:
        out.append(0x41)
        out += _U16.pack(_BINARY_CHUNK)
        out += value[:_BINARY_CHUNK]
        value = value[_BINARY_CHUNK:]
    size = len(value)
    if size < 0x10:
        out.append(0x20 + size)
    elif size < 0x400:
        out += bytes((0x34 + (size >> 8), size & 0xFF))
    else:
        out.append(0x42)
        out += _U16.pack(size)
    out += value


def _encode_map(value: Mapping[str, Value], out: bytearray, depth: int) -> None:
    out.append(0x48)
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidArgument(f"key {key!r} of a map is not a string")
        encode_string(key, out)
        _encode(item, out, depth + 1)
    out.append(0x5A)


def _encode_list(value: Sequence[Value], out: bytearray, depth: int) -> None:
    if len(value) < 8:
        out.append(0x78 + len(value))
    else:
        out.append(0x58)
        encode_integer(len(value), out)
    for item in value:
        _encode(item, out, depth + 1)
