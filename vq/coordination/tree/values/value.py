"""How a value is stored: as a small JSON object that an operator can read with zkCli.

Each has the format version ``v``. A reader ignores fields that it does not know (an older vq reads
a newer value of the same version) and refuses a higher ``v``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Self, get_args, get_origin, get_type_hints

from vq.coordination.tree.coordinator import NODE_BYTES_MAX, Unreadable
from vq.errors import InvalidArgument
from vq.shown import shown

FORMAT_VERSION: Final = 1


class Value:
    """Base of all values: encoding as a JSON object with ``v``; decoding checks every type."""

    _what: ClassVar[str] = "value"
    _newest: ClassVar[int] = FORMAT_VERSION  # the highest version that is read
    #: Fields that are left out while they have their defaults.
    _omits: ClassVar[tuple[str, ...]] = ()

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return _ENCODER.encode({"v": self._version(), **self._to_json()}).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """Read the bytes stored at ``path``.

        Raises:
            Unreadable: They are not a value of this class, or a newer vq wrote them.
        """
        document = cls._document(path, data)
        try:
            return cls._from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise cls._unreadable(path, data, error) from error

    @classmethod
    def _document(cls, path: str, data: bytes) -> dict[str, Any]:
        """Return the object of a version that this vq reads; its fields are not checked."""
        try:
            document: dict[str, Any] = json.loads(data)
            version = document["v"]
            if type(version) is not int or version < 1:
                raise ValueError(f"v = {version!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise cls._unreadable(path, data, error) from error
        if version > cls._newest:
            raise Unreadable(
                f"znode {path!r} has format v{version}, this vq reads up to v{cls._newest}; "
                "upgrade vq here"
            )
        return document

    @classmethod
    def _unreadable(cls, path: str, data: bytes, error: Exception) -> Unreadable:
        return Unreadable(
            f"znode {path!r} has {shown(data, 80)}, which is not a {cls._what}: {error!r}"
        )

    def _version(self) -> int:
        """Return the version to write: a vq that reads only lower ones would misread the value."""
        return FORMAT_VERSION

    def _to_json(self) -> dict[str, Any]:
        left_out = _defaults(type(self))  # type: ignore[arg-type]
        names = _readers(type(self))  # type: ignore[arg-type]
        values = ((name, getattr(self, name)) for name in names)
        return {
            name: value for name, value in values if name not in left_out or value != left_out[name]
        }

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**read_fields(cls, document))


class SingleValue(Value):
    """Base of values of which the tree has one; see ``coordination.tree.single``.

    All fields have defaults, which hold where nobody has written the value.
    """

    _less: ClassVar[str] = "make it smaller"  # what to do about one that is too large

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """See ``Value.encode``.

        Raises:
            InvalidArgument: It would be larger than a node may be.
        """
        data = super().encode()
        if len(data) > NODE_BYTES_MAX:
            raise InvalidArgument(
                f"the {self._what} has {len(data)} bytes, at most {NODE_BYTES_MAX} are stored: "
                f"{self._less}"
            )
        return data


def read_fields(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass that a document has, each read as its type says.

    Raises:
        TypeError, ValueError: One has another type.
    """
    return {
        name: read(name, document[name])
        for name, read in _readers(kind).items()  # type: ignore[arg-type]
        if name in document
    }


def read(name: str, value: object, kind: Any) -> Any:
    """Return a field of a document that is to have a type.

    That is int, str, bool, float, an enumeration, one of these or None; a mapping or a tuple of
    such; a dataclass, which is stored as an object, or a named tuple, stored as a list; or a class
    that says it itself: ``of_stored`` of its text ``stored``, ``from_json`` of an object.

    Raises:
        TypeError, ValueError: It has another type; the error names the field.
    """
    return _reader(kind)(name, value)


Read = Callable[[str, Any], Any]
#: What a plain field may have.
_ALLOWED: Final[Mapping[Any, tuple[type, ...]]] = {
    int: (int,),
    str: (str,),
    bool: (bool,),
    float: (int, float),
}
_WORDS: Final = {str: "strings", int: "whole numbers"}


@cache
def _readers(kind: type[Any]) -> Mapping[str, Read]:
    hints = get_type_hints(kind)
    return {each.name: _reader(hints[each.name]) for each in fields(kind)}


@cache
def _defaults(kind: type[Value]) -> Mapping[str, Any]:
    """Return the defaults of the fields that are left out while they have them."""
    return {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(kind)  # type: ignore[arg-type]
        if each.name in kind._omits
    }


@cache
def _reader(kind: Any) -> Read:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:
        return _read_optional(kind, *(each for each in arguments if each is not NoneType))
    if kind in _ALLOWED:
        return _read_plain(kind, kind.__name__, _ALLOWED[kind])
    if origin is tuple:
        return _read_list(*arguments)
    if issubclass(origin, Mapping):
        return _read_mapping(arguments[1])
    if issubclass(origin, tuple):
        return _read_named_tuple(kind)
    if hasattr(kind, "of_stored"):
        return lambda name, value: kind.of_stored(read(name, value, str))
    if hasattr(kind, "from_json"):
        return lambda _, value: kind.from_json(value)
    return _read_object(kind) if is_dataclass(kind) else lambda _, value: kind(value)


def _read_plain(kind: Any, text: str, types: tuple[type, ...]) -> Read:
    allows_bool = bool in types

    def read_plain(name: str, value: Any) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and not allows_bool):
            raise TypeError(f"{name} = {value!r} is not {text}")
        return value

    return read_plain


def _read_optional(whole: Any, kind: Any) -> Read:
    if kind in _ALLOWED:
        return _read_plain(kind, str(whole), (*_ALLOWED[kind], NoneType))
    read_value = _reader(kind)
    return lambda name, value: None if value is None else read_value(name, value)


def _read_list(*kinds: Any) -> Read:
    """Return what reads a tuple of one type, or of as many as there are elements."""
    words, plain = _WORDS.get(kinds[0], "values"), frozenset(_ALLOWED.get(kinds[0], ()))
    if kinds[-1] is not ...:
        read_each = tuple(map(_reader, kinds))

        def read_some(name: str, value: Any) -> tuple[Any, ...]:
            if not isinstance(value, list) or len(value) != len(kinds):
                raise TypeError(f"{name} = {value!r} is not a list of {len(kinds)} {words}")
            return tuple(each(name, one) for each, one in zip(read_each, value, strict=True))

        return read_some
    read_one = _reader(kinds[0])

    def read_list(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise TypeError(f"{name} = {value!r} is not a list of {words}")
        if plain.issuperset(map(type, value)):  # most lists: no call for each
            return tuple(value)
        return tuple(read_one(name, one) for one in value)

    return read_list


def _read_mapping(kind: Any) -> Read:
    read_one, words = _reader(kind), _WORDS.get(kind, "values")
    plain = frozenset(_ALLOWED.get(kind, ()))

    def read_mapping(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"{name} = {value!r} is not an object of {words}")
        if plain.issuperset(map(type, value.values())):
            return value
        return {key: read_one(name, each) for key, each in value.items()}

    return read_mapping


def _read_named_tuple(kind: Any) -> Read:
    read_list = _read_list(*get_type_hints(kind).values())
    return lambda name, value: kind(*read_list(name, value))


def _read_object(kind: Any) -> Read:
    def read_object(name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"{name} = {value!r} is not an object")
        return kind(**read_fields(kind, value))

    return read_object


def _stored(value: Any) -> Any:
    """Return what JSON has of a part of a value: a text that it says itself, or its fields."""
    if hasattr(value, "stored"):
        return value.stored
    return {each.name: getattr(value, each.name) for each in fields(value)}


_ENCODER: Final = json.JSONEncoder(default=_stored)
