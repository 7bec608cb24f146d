"""How commands show values with ``--json``, and the JSON Schema of that.

A *kind* says what stands in a place of a document: a type of Python (``str``, ``int | None``), a
``Shape``, or a JSON Schema with kinds in it, which ``record``, ``some``, ``maybe`` and ``mapping``
make. ``schema_of`` turns a kind into JSON Schema when somebody asks, so that commands do not pay.
"""

import enum
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from vq.cli.base.text import in_seconds

Schema = Mapping[str, Any]
Kind = Any
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")

_NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


class Shape(Generic[V]):
    """Values of a class as objects in JSON: one description for the values and for their schema.

    The kind of a field is the type that the class declares: an enumeration is its text, a
    collection a list, a class with fields an object. A time in ``_ms`` is shown in seconds.

    Args:
        of: The class.
        names: The fields of the object in their order: ``topic``; ``bytes=size_bytes`` if the
            attribute has another name, ``node=server.node`` if it is that of an attribute (null
            where that is None), ``begun_s`` for ``begun_ms``, ``state=`` for the value itself;
            ``error?`` if an empty value is null; ``*`` for all fields of the class.
        parts: By field: the shape of its value, or of the elements; or a function of its value
            whose declared result is shown.
    """

    def __init__(
        self, of: type[V], names: str = "*", **parts: "Shape[Any] | Callable[[Any], Any]"
    ) -> None:
        words = [each for word in names.split() for each in _all_of(of, word)]
        self.fields: Final[Mapping[str, _Field]] = {
            name: _Field(of, attribute, empty_is_null, parts.pop(name, None))
            for name, attribute, empty_is_null in (_parsed(of, word) for word in words)
        }
        assert not parts, f"{parts} are no fields"

    def __call__(self, value: V) -> dict[str, Any]:
        """Return a value as JSON has it."""
        return {name: each.shown(value) for name, each in self.fields.items()}

    def all(self, values: Iterable[V]) -> list[dict[str, Any]]:
        """Return several values as JSON has them."""
        return [self(each) for each in values]


class _Field(NamedTuple):
    """The kind of a field of a shape, and how to read it."""

    of: type[Any]
    attribute: str
    empty_is_null: bool
    part: "Shape[Any] | Callable[[Any], Any] | None"

    def shown(self, value: Any) -> Any:
        for name in self._path:
            value = None if value is None else getattr(value, name)
        if self.empty_is_null and not value:
            return None
        if isinstance(self.part, Shape | None):
            in_ms = self.attribute.endswith("_ms")
            return in_seconds(value) if in_ms else _shown(value, self.part)
        return None if value is None else _shown(self.part(value), None)

    def schema(self) -> Schema:
        hint: Any = self.of
        may_be_null = self.empty_is_null
        for name in self._path:
            hint, is_optional = _hint_of(hint, name)
            may_be_null |= is_optional
        if not isinstance(self.part, Shape | None):
            found = _of_type(typing.get_type_hints(self.part)["return"], None)
        else:
            found = _of_type(float if self.attribute.endswith("_ms") else hint, self.part)
        return _or_null(found) if may_be_null else found

    @property
    def _path(self) -> list[str]:
        return self.attribute.split(".") if self.attribute else []


class _Maybe(NamedTuple):
    kind: Kind


def maybe(kind: Kind) -> Kind:
    """Return the kind of a value that may be null."""
    return _Maybe(kind)


def some(kind: Kind) -> Schema:
    """Return the kind of a list."""
    return {"type": "array", "items": kind}


def record(**kinds: Kind) -> Schema:
    """Return the kind of an object that has all these fields."""
    return {"type": "object", "properties": kinds, "required": list(kinds)}


def having(kind: Shape[Any] | Schema, **kinds: Kind) -> Schema:
    """Return the kind of an object with more fields."""
    return record(**fields_of(kind), **kinds)


def optional(kind: Shape[Any] | Schema, **kinds: Kind) -> Schema:
    """Return the kind of an object with more fields that it may lack."""
    kind = having(kind) if isinstance(kind, Shape) else kind
    return {**kind, "properties": {**kind["properties"], **kinds}}


def mapping(kind: Kind) -> Schema:
    """Return the kind of an object with any names."""
    return {"type": "object", "additionalProperties": kind}


def message_schema(*left_out: str, **first: Kind) -> Schema:
    """Return what JSON has of a message, without some fields, and with others before them."""
    has = record(
        topic=str,
        partition=int,
        offset=int,
        next_offset=int,
        id=str,
        sent_s=float,
        tag=maybe(str),
        key_type=maybe(str),
        headers=mapping(str),
    )["properties"]
    return optional(
        record(**first, **{name: kind for name, kind in has.items() if name not in left_out}),
        key={"type": ["string", "integer", "null"]},
        key_hex=str,
        content=str,
        content_base64=str,
    )


MESSAGE_SCHEMA: Final = message_schema()


def fields_of(kind: Shape[Any] | Schema) -> Mapping[str, Kind]:
    """Return the kinds of the fields of an object."""
    return kind.fields if isinstance(kind, Shape) else kind["properties"]


def shows(kind: Kind, **with_options: Kind) -> Callable[[F], F]:
    """Say what a command prints with ``--json``, and what with further options, by their names.

    For a command that prints a line for each message, ``kind`` is that of a line.
    """

    def decorate(function: F) -> F:
        vars(function)["schemas"] = {"": kind, **with_options}
        return function

    return decorate


def schema_of(kind: Kind) -> Schema:
    """Return the JSON Schema of a kind."""
    if isinstance(kind, Shape):
        return schema_of(record(**kind.fields))
    if isinstance(kind, _Field):
        return kind.schema()
    if isinstance(kind, _Maybe):
        return _or_null(schema_of(kind.kind))
    if not isinstance(kind, Mapping):
        return _of_type(kind, None)
    found = dict(kind)
    for name in ("items", "additionalProperties"):
        if name in kind:
            found[name] = schema_of(kind[name])
    if "properties" in kind:
        found["properties"] = {name: schema_of(each) for name, each in kind["properties"].items()}
    return found


def _of_type(hint: Any, part: Shape[Any] | None) -> Schema:
    """Return the schema of values of a type; ``part`` is the shape of those without another."""
    hint, is_optional = _without_none(hint)
    if is_optional:
        return _or_null(_of_type(hint, part))
    if isinstance(hint, tuple):  # a whole number is a number
        return {"type": [_NAMES[each] for each in hint if not (each is int and float in hint)]}
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of_type(arguments[1], part)}
    if arguments and issubclass(origin, Collection):
        return {"type": "array", "items": _of_type(arguments[0], part)}
    if issubclass(origin, enum.Enum):
        return {"type": "string"}
    return schema_of(part or Shape(hint))


def _hint_of(kind: type[Any], name: str) -> tuple[Any, bool]:
    """Return the type of an attribute without None, and whether it may be None."""
    declared = getattr(kind, name, None)
    if isinstance(declared, property):
        return _without_none(typing.get_type_hints(declared.fget)["return"])
    return _without_none(typing.get_type_hints(kind)[name])


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    kinds = [each for each in typing.get_args(hint) if each is not types.NoneType]
    plain = tuple(each for each in kinds if each in _NAMES)
    found = plain if len(plain) == len(kinds) > 1 else kinds[0]
    return found, len(kinds) < len(typing.get_args(hint))


def _or_null(schema: Schema) -> Schema:
    named = schema["type"]
    several = [named] if isinstance(named, str) else named
    return schema if "null" in several else {**schema, "type": [*several, "null"]}


def _shown(value: Any, part: Shape[Any] | None) -> Any:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {name: _shown(each, part) for name, each in value.items()}
    if isinstance(value, Collection) and not hasattr(value, "_fields"):
        return [_shown(each, part) for each in value]
    return (part or Shape(type(value)))(value)


def _attributes(of: type[Any]) -> list[str]:
    """Return the fields of a class."""
    return [each.name for each in fields(of)] if is_dataclass(of) else list(of._fields)


def _all_of(of: type[Any], word: str) -> list[str]:
    return _attributes(of) if word == "*" else [word]


def _parsed(of: type[Any], word: str) -> tuple[str, str, bool]:
    """Return name, attribute, and whether an empty value is null, of a word of ``names``."""
    text = word.removesuffix("?")
    name, equals, attribute = text.partition("=")
    if name.endswith("_ms"):
        name, attribute = f"{name[:-3]}_s", name
    elif not equals:
        in_ms = f"{name[:-2]}_ms"
        attribute = in_ms if name.endswith("_s") and in_ms in _attributes(of) else name
    return name, attribute, text != word


def as_text(value: object) -> str:
    """Return a value as text: the kind of a field whose numbers or names are more than JSON has."""
    return str(value)
