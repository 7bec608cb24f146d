"""Hessian 2 for maps, lists and scalars: the part of the format that headers need.

The decoder is safe for untrusted input. It never looks up or builds a class: it refuses class
definitions, objects, references and dates (references would allow cycles, and small inputs that
expand into large values), and it skips the type names of maps and lists. Depth and number of
elements are bounded, keys are strings, a key may occur once, and no bytes may follow the value.

    value        Hessian 2                              Python
    null         N                                      None
    boolean      T F                                    bool
    int          I, 0x80-0xd7                           int
    long         L, 0x59, 0x38-0x3f, 0xd8-0xff          int (``Long`` asks the encoder for it)
    double       D, 0x5b-0x5f                           float
    string       S, R, 0x00-0x1f, 0x30-0x33             str
    binary       B, A, 0x20-0x2f, 0x34-0x37             bytes
    list         U V, 0x57, 0x58, 0x70-0x7f             list (encoder: tuple, too)
    map          M H                                    dict

Double 0x5f counts thousandths, as in the libraries of Caucho and hessian.js (the specification
calls it a float). The length of a string counts UTF-16 units, and a character beyond U+FFFF is
written as two surrogates of three bytes each, as Java does; the decoder also reads plain UTF-8 of
four bytes.

Specification: http://hessian.caucho.com/doc/hessian-serialization.html
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from vq import limits
from vq.errors import ProtocolError

Value: TypeAlias = (
    bool | int | float | str | bytes | Sequence["Value"] | Mapping[str, "Value"] | None
)

#: Largest document; the slowest ones take about 0.2 µs per byte.
DOCUMENT_BYTES_MAX: Final = 64 * limits.KIB
DEPTH_MAX: Final = 16
#: Values in one document, keys and chunks included. Bounds time and memory for any input.
ELEMENTS_MAX: Final = 8_192

_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1
#: UTF-16 units in a chunk of a long string, as in Caucho's library.
_STRING_CHUNK: Final = 0x8000
_BINARY_CHUNK: Final = 0xFFFF
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0xC0))
_BELOW_FOUR_BYTE_LEADS: Final = bytes(range(0xF0))
#: A surrogate pair, each half encoded like a character. The UTF-8 decoder refuses a lone half.
_PAIR: Final = re.compile(rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]")
_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")


class Long(int):
    """An integer that is written as a Hessian long, also if it fits into an int.

    A reader in Java then gets a ``Long`` for a field whatever its value.
    """

    __slots__ = ()


# Decoding -------------------------------------------------------------------------------------
def decode(
    data: bytes,
    *,
    bytes_max: int = DOCUMENT_BYTES_MAX,
    depth_max: int = DEPTH_MAX,
    elements_max: int = ELEMENTS_MAX,
) -> Value:
    """Return the one value in ``data``.

    Raises:
        ProtocolError: The bytes are not one value, have a refused kind, or exceed a bound.
    """
    if len(data) > bytes_max:
        raise ProtocolError(f"Hessian document of {len(data)} bytes; at most {bytes_max} are read")
    value: Value = PlainDecoder(data, depth_max, elements_max).document()
    return value


class PlainDecoder:
    """One pass over one document.

    Attributes:
        position: Of the next byte to read.
        depth_max: Containers inside one another.
        elements_left: Values that may still be read.
    """

    __slots__ = ("_data", "_elements_max", "_types", "depth_max", "elements_left", "position")

    #: The method that reads a value, by its first byte.
    readers: "ClassVar[tuple[Reader, ...]]"

    def __init__(self, data: bytes, depth_max: int, elements_max: int) -> None:
        self._data = data
        self.depth_max = depth_max
        self._elements_max = elements_max
        self.elements_left = elements_max
        self._types = 0  # names of types seen so far; a later one may be a number below this
        self.position = 0

    def document(self) -> Any:
        """Read the value that is the whole document.

        Raises:
            ProtocolError: See ``decode``.
        """
        size = len(self._data)
        try:
            value = self.value(0)
        except (IndexError, struct.error) as error:
            raise ProtocolError(f"Hessian value ends early, after {size} bytes") from error
        except UnicodeError as error:
            raise ProtocolError(f"Hessian string before byte {self.position}: {error}") from error
        if self.position != size:
            raise ProtocolError(
                f"{size - self.position} bytes follow the Hessian value of {self.position} bytes"
            )
        return value

    def value(self, depth: int) -> Any:
        """Read one value inside ``depth`` containers."""
        self.count()
        code = self._data[self.position]
        self.position += 1
        return self.readers[code](self, code, depth)

    # Scalars
    def null(self, code: int, depth: int) -> None:
        return None

    def true(self, code: int, depth: int) -> bool:
        return True

    def false(self, code: int, depth: int) -> bool:
        return False

    def int_1(self, code: int, depth: int) -> int:
        return code - 0x90

    def int_2(self, code: int, depth: int) -> int:
        return ((code - 0xC8) << 8) + self.byte()

    def int_3(self, code: int, depth: int) -> int:
        return ((code - 0xD4) << 16) + self._u16()

    def int_4(self, code: int, depth: int) -> int:
        (value,) = _I32.unpack(self.raw(4))
        return int(value)

    def long_1(self, code: int, depth: int) -> int:
        return code - 0xE0

    def long_2(self, code: int, depth: int) -> int:
        return ((code - 0xF8) << 8) + self.byte()

    def long_3(self, code: int, depth: int) -> int:
        return ((code - 0x3C) << 16) + self._u16()

    def long_8(self, code: int, depth: int) -> int:
        (value,) = _I64.unpack(self.raw(8))
        return int(value)

    def double_0(self, code: int, depth: int) -> float:
        return float(code - 0x5B)

    def double_1(self, code: int, depth: int) -> float:
        return float(int.from_bytes(self.raw(1), "big", signed=True))

    def double_2(self, code: int, depth: int) -> float:
        return float(int.from_bytes(self.raw(2), "big", signed=True))

    def double_thousandths(self, code: int, depth: int) -> float:
        return self.int_4(code, depth) * 0.001

    def double_8(self, code: int, depth: int) -> float:
        (value,) = _F64.unpack(self.raw(8))
        return float(value)

    # Strings: 0x00-0x1f, 0x30-0x33, R (more follows), S
    def string(self, code: int, depth: int) -> str:
        if code < 0x20:
            return self._text(self._units(code))
        chunks = []
        while code == 0x52:
            self.count()
            chunks.append(self._units(self._u16()))
            code = self.byte()
        if code == 0x53:
            chunks.append(self._units(self._u16()))
        elif code < 0x20:
            chunks.append(self._units(code))
        elif 0x30 <= code <= 0x33:
            chunks.append(self._units(((code - 0x30) << 8) + self.byte()))
        else:
            raise self.unexpected(code, "a chunk of a string")
        return self._text(b"".join(chunks))

    def _units(self, count: int) -> bytes:
        """Read the bytes of ``count`` UTF-16 units."""
        start = self.position
        raw = self.raw(count)
        if raw.isascii():
            return raw
        # Each missing unit has at least one byte, so this never reads too far. In valid text a
        # unit has at most three bytes, so the number of missing units shrinks quickly.
        found = _unit_count(raw)
        while found < count and self.position - start < 3 * count:
            found += _unit_count(self.raw(count - found))
        if found == count:
            self.raw(_missing_bytes(self._data[start : self.position]))
        else:
            raise ProtocolError(f"Hessian string of {count} UTF-16 units cuts a character in two")
        return self._data[start : self.position]

    def _text(self, raw: bytes) -> str:
        if raw.isascii():
            return raw.decode("ascii")
        return _PAIR.sub(_joined_pair, raw).decode("utf-8")

    # Binary: 0x20-0x2f, 0x34-0x37, A (more follows), B
    def binary(self, code: int, depth: int) -> bytes:
        chunks = []
        while code == 0x41:
            self.count()
            chunks.append(self.raw(self._u16()))
            code = self.byte()
        if code == 0x42:
            chunks.append(self.raw(self._u16()))
        elif 0x20 <= code <= 0x2F:
            chunks.append(self.raw(code - 0x20))
        elif 0x34 <= code <= 0x37:
            chunks.append(self.raw(((code - 0x34) << 8) + self.byte()))
        else:
            raise self.unexpected(code, "a chunk of binary data")
        return b"".join(chunks)

    # Containers
    def list_until_end(self, code: int, depth: int) -> list[Any]:
        """0x57, and U with a type before the values."""
        self.enter(depth)
        if code == 0x55:
            self._type()
        values = []
        while self._data[self.position] != 0x5A:
            values.append(self.value(depth + 1))
        self.position += 1
        return values

    def list_of_length(self, code: int, depth: int) -> list[Any]:
        """0x58, V with a type; 0x78-0x7f, 0x70-0x77 with a type."""
        self.enter(depth)
        if code == 0x56 or 0x70 <= code <= 0x77:
            self._type()
        length = code & 0x07 if code >= 0x70 else self.integer("the length of a list")
        if not 0 <= length <= len(self._data) - self.position:
            raise ProtocolError(
                f"Hessian list of {length} values in {len(self._data) - self.position} bytes"
            )
        return [self.value(depth + 1) for _ in range(length)]

    def map(self, code: int, depth: int) -> dict[Any, Any]:
        """H, and M with a type before the entries."""
        self.enter(depth)
        if code == 0x4D:
            self._type()
        entries: dict[Any, Any] = {}
        while self._data[self.position] != 0x5A:
            key = self.value(depth + 1)
            self.check_key(key)
            if key in entries:
                raise ProtocolError(f"key {key!r:.60} occurs twice in a Hessian map")
            entries[key] = self.value(depth + 1)
        self.position += 1
        return entries

    def check_key(self, key: object) -> None:
        """Refuse what is no key of a map."""
        if not isinstance(key, str):
            raise ProtocolError(f"key of a Hessian map is {type(key).__name__}, not a string")

    def refused(self, code: int, depth: int) -> Any:
        raise self.unexpected(code, "null, a boolean, number, string, binary, list or map")

    # Helpers
    def count(self, number: int = 1) -> None:
        """Count values or chunks against the bound: a few bytes of input can cause much work."""
        self.elements_left -= number
        if self.elements_left < 0:
            raise ProtocolError(f"Hessian document of more than {self._elements_max} values")

    def enter(self, depth: int) -> None:
        """Begin a container inside ``depth`` others."""
        if depth >= self.depth_max:
            raise ProtocolError(f"Hessian value is nested deeper than {self.depth_max}")

    def _type(self) -> None:
        """Skip the name of a type, or the number of a type that was named before."""
        code = self.byte()
        if is_string(code):
            self.string(code, 0)
            self._types += 1
            return
        self.position -= 1
        number = self.integer("a type")
        if not 0 <= number < self._types:
            raise ProtocolError(f"type {number} of a Hessian value; only {self._types} were named")

    def integer(self, what: str) -> int:
        """Read an int; an error says ``what`` was expected."""
        code = self.byte()
        if not (0x80 <= code <= 0xD7 or code == 0x49):
            raise self.unexpected(code, what)
        number = self.readers[code](self, code, 0)
        assert isinstance(number, int)
        return number

    def byte(self) -> int:
        """Read one byte."""
        byte = self._data[self.position]
        self.position += 1
        return byte

    def _u16(self) -> int:
        (value,) = _U16.unpack(self.raw(2))
        return int(value)

    def raw(self, size: int) -> bytes:
        """Read so many bytes."""
        start = self.position
        raw = self._data[start : start + size]
        if len(raw) != size:
            raise ProtocolError(
                f"Hessian value ends early: {size} bytes needed at byte {start}, {len(raw)} left"
            )
        self.position = start + size
        return raw

    def unexpected(self, code: int, wanted: str) -> ProtocolError:
        """Return the error for a first byte that was just read."""
        return ProtocolError(
            f"Hessian code 0x{code:02x} at byte {self.position - 1}, expected {wanted}"
        )


def _joined_pair(pair: re.Match[bytes]) -> bytes:
    """Return the character of two surrogates of three bytes each, as four bytes of UTF-8."""
    _, high_1, high_2, _, low_1, low_2 = pair[0]
    high = (high_1 & 0x0F) << 6 | high_2 & 0x3F
    low = (low_1 & 0x0F) << 6 | low_2 & 0x3F
    return chr(0x10000 + (high << 10 | low)).encode("utf-8")


def _missing_bytes(raw: bytes) -> int:
    """Return how many bytes of the last character are missing in ``raw``."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            return max(0, (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) - back)
    return 0


def _unit_count(raw: bytes) -> int:
    """Return how many UTF-16 units begin in ``raw``; a four-byte character has two."""
    leads = raw.translate(None, _CONTINUATION_BYTES)
    return len(leads) + len(leads.translate(None, _BELOW_FOUR_BYTE_LEADS))


def is_string(code: int) -> bool:
    """Whether a string begins with this byte."""
    return code < 0x20 or 0x30 <= code <= 0x33 or code in {0x52, 0x53}


#: Reads a value: the decoder, the value's first byte, and how many containers it is in.
Reader: TypeAlias = Callable[[Any, int, int], Any]


def reader_table(
    cls: type[PlainDecoder], ranges: Sequence[tuple[int, int, str]]
) -> tuple[Reader, ...]:
    """Return the reader of every first byte; bytes in no range are refused.

    Args:
        cls: Has the readers.
        ranges: First byte, last byte, name of the method. A later range replaces an earlier one.
    """
    table: list[Reader] = [cls.refused] * 256
    for first, last, name in ranges:
        for code in range(first, last + 1):
            table[code] = getattr(cls, name)
    return tuple(table)


PLAIN_READERS: Final = (
    (0x00, 0x1F, "string"),
    (0x20, 0x2F, "binary"),
    (0x30, 0x33, "string"),
    (0x34, 0x37, "binary"),
    (0x38, 0x3F, "long_3"),
    (0x41, 0x42, "binary"),
    (0x44, 0x44, "double_8"),
    (0x46, 0x46, "false"),
    (0x48, 0x48, "map"),
    (0x49, 0x49, "int_4"),
    (0x4C, 0x4C, "long_8"),
    (0x4D, 0x4D, "map"),
    (0x4E, 0x4E, "null"),
    (0x52, 0x53, "string"),
    (0x54, 0x54, "true"),
    (0x55, 0x55, "list_until_end"),
    (0x56, 0x56, "list_of_length"),
    (0x57, 0x57, "list_until_end"),
    (0x58, 0x58, "list_of_length"),
    (0x59, 0x59, "int_4"),
    (0x5B, 0x5C, "double_0"),
    (0x5D, 0x5D, "double_1"),
    (0x5E, 0x5E, "double_2"),
    (0x5F, 0x5F, "double_thousandths"),
    (0x70, 0x7F, "list_of_length"),
    (0x80, 0xBF, "int_1"),
    (0xC0, 0xCF, "int_2"),
    (0xD0, 0xD7, "int_3"),
    (0xD8, 0xEF, "long_1"),
    (0xF0, 0xFF, "long_2"),
)
PlainDecoder.readers = reader_table(PlainDecoder, PLAIN_READERS)
