"""Hessian 2 with dates, references and registered classes: contents that Java programs share.

It adds to ``plain``:

    date         J, K                     datetime in UTC, whole milliseconds
    class        C, then a name, a count, and the names of the fields
    object       O, 0x60-0x6f             an instance of a registered dataclass, or a dict
    reference    Q                        the list, map or object of that number, read before
    map          M H                      keys may be any scalar, not only strings

The data never choose what is built. A class that is not registered under its exact name becomes a
dict of its fields, and nothing is looked up or imported.

A reference counts as many values and levels as what it refers to, so the bounds hold for the value
that comes out, not only for its bytes. A reference to a container that contains it is refused. The
encoder writes no references: a value that occurs twice is written twice.

Specification: http://hessian.caucho.com/doc/hessian-serialization.html, sections 4.3 to 4.12
"""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

from vq.clock import MINUTE_MS
from vq.errors import InvalidArgument, ProtocolError
from vq.hessian.encoding import encode_integer, encode_scalar, encode_string
from vq.hessian.plain import PLAIN_READERS, PlainDecoder, is_string, reader_table
from vq.shown import shown

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: The years 1 to 9999 in UTC, which are what ``datetime`` holds.
_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_MS_MAX: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_INT_MAX: Final = 2**31 - 1
#: A string or binary of so many encoded bytes counts as one more element: it may have two chunks.
_CHUNK_BYTES_MIN: Final = 0x7FFF
#: Objects of the first classes of a document have a code of their own.
_SHORT_CLASSES: Final = 16
_SHOWN: Final = 60  # characters of a value in an error
_Key = str | int | float | bytes | datetime | None


class Bounds(NamedTuple):
    """What one document may have at most.

    Attributes:
        bytes_max: Bytes.
        depth_max: Lists, maps and objects inside one another.
        elements_max: Values, keys, chunks and names of fields.
    """

    bytes_max: int
    depth_max: int
    elements_max: int


class ObjectClass:
    """A class that may be written and read, and its name in the data.

    Attributes:
        name: Such as ``com.example.Order``.
        cls: A dataclass.
        fields: The names of its fields that its constructor takes.
    """

    __slots__ = ("cls", "fields", "name")

    def __init__(self, name: str, cls: type) -> None:
        """Check both.

        Raises:
            InvalidArgument: The name is no text, or the class is no dataclass.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgument(
                f"the name of a class is {name!r}; give text such as com.example.A"
            )
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
            raise InvalidArgument(f"class {name} = {cls!r} is not a dataclass")
        self.name = name
        self.cls = cls
        self.fields = tuple(each.name for each in dataclasses.fields(cls) if each.init)

    def make(self, values: Mapping[str, Any]) -> Any:
        """Return an instance; values for fields that the class does not have are left out.

        Raises:
            ProtocolError: The class does not take the values.
        """
        known = {name: values[name] for name in self.fields if name in values}
        try:
            return self.cls(**known)
        except Exception as error:
            raise ProtocolError(
                f"class {self.name} cannot be made from its fields {sorted(values)}: {error}"
            ) from error


class Classes:
    """The registered classes, by name and by type."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        """Check all.

        Raises:
            InvalidArgument: See ``ObjectClass``; or a class has two names.
        """
        self.by_name = {name: ObjectClass(name, cls) for name, cls in classes.items()}
        self.by_type: dict[type, ObjectClass] = {each.cls: each for each in self.by_name.values()}
        if len(self.by_type) != len(self.by_name):
            raise InvalidArgument(
                f"one class is registered under two names of {sorted(self.by_name)}: which one to "
                "write is not clear"
            )


# Encoding -------------------------------------------------------------------------------------
def encode(value: object, classes: Classes, bounds: Bounds) -> bytes:
    """Return ``value`` as one Hessian 2 document, which ``decode`` takes with the same arguments.

    Lists and maps are written as they are when the encoder comes to them, even if another thread
    changes them.

    Raises:
        InvalidArgument: The value has an unsupported type, an integer beyond 64 bits, a lone
            surrogate, a datetime without time zone or outside the years 1 to 9999 in UTC, or two
            keys of a map that are written alike; or it exceeds a bound.
    """
    encoder = _Encoder(classes, bounds)
    try:
        encoder.value(value, 0)
    except UnicodeError as error:
        raise InvalidArgument(f"a string holds a lone surrogate: {error}") from error
    encoder.check_size()
    return bytes(encoder.out)


class _Encoder:
    def __init__(self, classes: Classes, bounds: Bounds) -> None:
        self.out = bytearray()
        self._classes = classes
        self._bounds = bounds
        self._elements = 0  # at least as many as the decoder counts
        self._numbers: dict[str, int] = {}  # of the classes that the document defines, by name

    def check_size(self) -> None:
        if len(self.out) > self._bounds.bytes_max:
            raise InvalidArgument(f"Hessian document of more than {self._bounds.bytes_max} bytes")

    def _count(self, number: int) -> None:
        self._elements += number
        if self._elements > self._bounds.elements_max:
            raise InvalidArgument(
                f"Hessian document of more than {self._bounds.elements_max} values"
            )

    def value(self, value: object, depth: int) -> None:
        self.check_size()
        before = len(self.out)
        if encode_scalar(value, self.out):
            self._count(1 + (len(self.out) - before) // _CHUNK_BYTES_MIN)
            return
        self._count(1)
        if isinstance(value, datetime):
            self._date(value)
            return
        if depth >= self._bounds.depth_max:
            raise InvalidArgument(
                f"value is nested deeper than {self._bounds.depth_max}, or contains itself"
            )
        if isinstance(value, Mapping):
            self._map(value, depth)
        elif isinstance(value, list | tuple):
            self._list(value, depth)
        else:
            self._object(value, depth)

    def _date(self, value: datetime) -> None:
        if value.utcoffset() is None:
            raise InvalidArgument(
                f"{value!r} has no time zone: give one, such as datetime.now(UTC)"
            )
        ms = _ms_of(value)
        if not _MS_MIN <= ms <= _MS_MAX:
            raise InvalidArgument(f"{value!r} is outside the years 1 to 9999 in UTC")
        minutes, rest = divmod(ms, MINUTE_MS)
        if rest == 0 and -_INT_MAX <= minutes <= _INT_MAX:
            self.out += b"\x4b" + minutes.to_bytes(4, "big", signed=True)
        else:
            self.out += b"\x4a" + ms.to_bytes(8, "big", signed=True)

    def _map(self, value: Mapping[Any, Any], depth: int) -> None:
        self.out.append(0x48)
        written = set()
        for key, item in dict(value).items():  # a copy, as in ``_list``
            if not isinstance(key, _Key):
                raise InvalidArgument(f"key {shown(key)} of a map is {type(key).__name__}")
            self.value(key, depth + 1)
            as_read = _ms_of(key) * _MILLISECOND if isinstance(key, datetime) else key
            if as_read in written:
                raise InvalidArgument(f"two keys of a map are written as {shown(key)}")
            written.add(as_read)
            self.value(item, depth + 1)
        self.out.append(0x5A)

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        items = tuple(value)  # another thread may append: the length that is written must be right
        if len(items) < 8:
            self.out.append(0x78 + len(items))
        else:
            self.out.append(0x58)
            encode_integer(len(items), self.out)
        for item in items:
            self.value(item, depth + 1)

    def _object(self, value: object, depth: int) -> None:
        known = self._classes.by_type.get(type(value))
        if known is None:
            raise InvalidArgument(
                f"{shown(value)} is {type(value).__name__}, which Hessian 2 does not hold: give "
                "None, bool, int, float, str, bytes, datetime, list, dict or a registered dataclass"
            )
        number = self._numbers.get(known.name)
        if number is None:
            number = self._define(known)
        if number < _SHORT_CLASSES:
            self.out.append(0x60 + number)
        else:
            self.out.append(0x4F)
            encode_integer(number, self.out)
        for name in known.fields:
            self.value(getattr(value, name), depth + 1)

    def _define(self, known: ObjectClass) -> int:
        number = self._numbers[known.name] = len(self._numbers)
        before = len(self.out)
        self.out.append(0x43)
        encode_string(known.name, self.out)
        encode_integer(len(known.fields), self.out)
        for name in known.fields:
            encode_string(name, self.out)
        self._count(1 + len(known.fields) + (len(self.out) - before) // _CHUNK_BYTES_MIN)
        return number


def _ms_of(value: datetime) -> int:
    """Return a time with a time zone as it is written: whole milliseconds since 1970."""
    return (value - _EPOCH) // _MILLISECOND


# Decoding -------------------------------------------------------------------------------------
def decode(data: bytes, classes: Classes, bounds: Bounds) -> Any:
    """Return the one value in ``data``.

    Raises:
        ProtocolError: The bytes are not one value, exceed a bound, contain a reference to an outer
            container, or a registered class does not take its fields.
    """
    if len(data) > bounds.bytes_max:
        raise ProtocolError(
            f"Hessian document of {len(data)} bytes; at most {bounds.bytes_max} are read"
        )
    return _ObjectDecoder(data, classes, bounds).document()


class _Definition(NamedTuple):
    name: str
    fields: list[str]


class _Referable(NamedTuple):
    """A list, map or object that was read."""

    value: Any
    elements: int  # inside it
    levels: int  # of containers, itself counted


class _ObjectDecoder(PlainDecoder):
    __slots__ = ("_classes", "_deepest", "_definitions", "_referable")

    def __init__(self, data: bytes, classes: Classes, bounds: Bounds) -> None:
        super().__init__(data, bounds.depth_max, bounds.elements_max)
        self._classes = classes
        self._definitions: list[_Definition] = []
        self._referable: list[_Referable | None] = []  # None: it has not ended
        self._deepest = 0  # containers around the deepest value of the container being read

    def check_key(self, key: object) -> None:
        """Take any scalar, as Java's maps do."""
        if not isinstance(key, _Key):
            raise ProtocolError(f"key of a Hessian map is {type(key).__name__}, not a scalar")

    def enter(self, depth: int) -> None:
        """Begin a container inside ``depth`` others."""
        super().enter(depth)
        self._deepest = max(self._deepest, depth + 1)

    # Scalars
    def date_ms(self, code: int, depth: int) -> datetime:
        return self._date(int.from_bytes(self.raw(8), "big", signed=True))

    def date_minutes(self, code: int, depth: int) -> datetime:
        return self._date(int.from_bytes(self.raw(4), "big", signed=True) * MINUTE_MS)

    def _date(self, ms: int) -> datetime:
        try:
            return _EPOCH + ms * _MILLISECOND
        except OverflowError as error:
            raise ProtocolError(
                f"Hessian date of {ms} ms since 1970 is outside the years 1 to 9999"
            ) from error

    # Containers
    def list_until_end(self, code: int, depth: int) -> list[Any]:
        return self._noted(super().list_until_end, code, depth)

    def list_of_length(self, code: int, depth: int) -> list[Any]:
        return self._noted(super().list_of_length, code, depth)

    def map(self, code: int, depth: int) -> dict[Any, Any]:
        return self._noted(super().map, code, depth)

    def object(self, code: int, depth: int) -> Any:
        """O and a number, or the number in the code."""
        return self._noted(self._object, code, depth)

    def _object(self, code: int, depth: int) -> Any:
        self.enter(depth)
        number = code - 0x60 if code >= 0x60 else self.integer("the number of a class")
        if not 0 <= number < len(self._definitions):
            raise ProtocolError(
                f"object of the Hessian class {number}; only {len(self._definitions)} were defined"
            )
        definition = self._definitions[number]
        values = {name: self.value(depth + 1) for name in definition.fields}
        known = self._classes.by_name.get(definition.name)
        return values if known is None else known.make(values)

    def _noted(self, read: Callable[[int, int], T], code: int, depth: int) -> T:
        """Read a container and note it, so that a reference may name it."""
        number = len(self._referable)
        self._referable.append(None)
        left, deepest_outside = self.elements_left, self._deepest
        self._deepest = depth
        value = read(code, depth)
        self._referable[number] = _Referable(
            value, left - self.elements_left, self._deepest - depth
        )
        self._deepest = max(self._deepest, deepest_outside)
        return value

    def reference(self, code: int, depth: int) -> Any:
        """Q and the number of a list, map or object, in the order in which they begin."""
        number = self.integer("the number of a value")
        if not 0 <= number < len(self._referable):
            raise ProtocolError(
                f"reference to the Hessian value {number}; only {len(self._referable)} began"
            )
        found = self._referable[number]
        if found is None:
            raise ProtocolError(f"the Hessian value {number} contains itself")
        self.count(found.elements)
        if depth + found.levels > self.depth_max:
            raise ProtocolError(f"Hessian value is nested deeper than {self.depth_max}")
        self._deepest = max(self._deepest, depth + found.levels)
        return found.value

    def definition(self, code: int, depth: int) -> Any:
        """C: one class definition or several, and then a value."""
        while code == 0x43:
            self.count()
            self._define()
            code = self.byte()
        return self.readers[code](self, code, depth)

    def _define(self) -> None:
        name = self._name("the name of a class")
        size = self.integer("the number of fields")
        if size < 0:
            raise ProtocolError(f"Hessian class {name[:_SHOWN]!r} of {size} fields")
        self.count(size)
        fields = [self._name("the name of a field") for _ in range(size)]
        if len(set(fields)) != size:
            raise ProtocolError(f"Hessian class {name[:_SHOWN]!r} has a field twice")
        self._definitions.append(_Definition(name, fields))

    def _name(self, what: str) -> str:
        code = self.byte()
        if not is_string(code):
            raise self.unexpected(code, what)
        return self.string(code, 0)


_ObjectDecoder.readers = reader_table(
    _ObjectDecoder,
    (
        *PLAIN_READERS,
        (0x43, 0x43, "definition"),
        (0x4A, 0x4A, "date_ms"),
        (0x4B, 0x4B, "date_minutes"),
        (0x4F, 0x4F, "object"),
        (0x51, 0x51, "reference"),
        (0x60, 0x6F, "object"),
    ),
)
