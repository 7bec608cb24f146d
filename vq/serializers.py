"""Serializers: objects to the contents of messages, and back.

A producer with a serializer (``ProducerConfig.serializer``) takes objects as contents::

    config = vq.ProducerConfig(serializer=vq.serializers.Json())

A consumer gets bytes, and its listener calls ``loads(message.content)`` of the same serializer. Any
object with ``name``, ``dumps`` and ``loads`` is a serializer; those of this module may be used by
any number of threads. Classes named by received bytes are never built, except those that the
application registered.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtobufMessage

from vq import limits
from vq.bounds import check_between
from vq.errors import ContentUnreadable, InvalidArgument, ProtocolError
from vq.hessian import objects
from vq.hessian.plain import Long
from vq.shown import shown

__all__ = ["Hessian2", "Json", "Long", "Protobuf", "Serializer"]

M = TypeVar("M", bound=ProtobufMessage)

_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
#: Deeper values could use up Python's stack: it takes some five calls to read one level.
_DEPTH_MAX_MAX: Final = 100


class Serializer(Protocol):
    """Makes contents of messages from objects, and objects from contents.

    A producer calls ``dumps`` in the thread that sends, several at once; with ``vq.aio`` that is
    the thread of the event loop.
    """

    @property
    def name(self) -> str:
        """What errors call it."""

    def dumps(self, value: Any) -> bytes:
        """Return an object as bytes.

        Raises:
            InvalidArgument: The serializer does not take the object. A producer turns any other
                exception into this one.
        """

    def loads(self, content: bytes) -> Any:
        """Return the object of which ``dumps`` made ``content``.

        Raises:
            ContentUnreadable: The bytes are no such content.
        """


class Json:
    """JSON (RFC 8259) in UTF-8, without spaces; characters beyond ASCII are not escaped.

    It takes None, bool, int, float, str, list, tuple, and dict with keys of text, and nothing else:
    no NaN, no infinity, no datetime, no other keys. A tuple comes back as a list.
    """

    name: Final = "json"

    def dumps(self, value: Any) -> bytes:
        """Return a value as JSON.

        Raises:
            InvalidArgument: JSON has no such value.
        """
        try:
            text = _JSON.encode(value)
            _check_keys(value)
            return text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"{shown(value)} cannot be written as JSON: {error}") from error

    def loads(self, content: bytes) -> Any:
        """Return the value of a JSON document.

        Raises:
            ContentUnreadable: It is no JSON in UTF-8, has NaN or an infinity, or a number too large
                for a float.
        """
        try:
            return json.loads(
                content.decode(), parse_constant=_no_constant, parse_float=_finite_float
            )
        except (ValueError, RecursionError) as error:
            what = f"content of {len(content)} bytes is not JSON: {error}"
            raise ContentUnreadable(what) from error


class Protobuf(Generic[M]):
    """Protobuf messages of one class.

    Equal messages become equal bytes: entries of maps are sorted.

    Args:
        message_class: A generated class.

    Raises:
        InvalidArgument: It is not a class of protobuf messages.
    """

    name: Final = "protobuf"

    def __init__(self, message_class: type[M]) -> None:
        if not isinstance(message_class, type) or not issubclass(message_class, ProtobufMessage):
            raise InvalidArgument(f"{message_class!r} is not a class of protobuf messages")
        self._class = message_class

    def dumps(self, value: M) -> bytes:
        """Return a message as bytes.

        Raises:
            InvalidArgument: It is of another class, or lacks a required field.
        """
        if not isinstance(value, self._class):
            raise InvalidArgument(
                f"{shown(value)} is {type(value).__name__}; give {self._class.__name__}"
            )
        try:
            return value.SerializeToString(deterministic=True)
        except EncodeError as error:
            raise InvalidArgument(f"{self._class.__name__} cannot be written: {error}") from error

    def loads(self, content: bytes) -> M:
        """Return the message in ``content``; fields that its class does not know are kept aside.

        Raises:
            ContentUnreadable: It is no message of the class.
        """
        try:
            return self._class.FromString(content)
        except DecodeError as error:
            raise ContentUnreadable(
                f"content of {len(content)} bytes is not a {self._class.__name__}: {error}"
            ) from error


class Hessian2:
    """Hessian 2, for contents that Java programs write and read.

    It takes None, bool, int (64 bits), float, str, bytes, list, tuple, dict with scalars as keys,
    datetime with a time zone, and instances of registered dataclasses. In Java these are null,
    Boolean, Integer (Long if it needs more than 32 bits, or is a ``Long``), Double, String, byte[],
    ArrayList, HashMap, Date and the class of the registered name. A datetime is cut to whole
    milliseconds and comes back in UTC; a tuple comes back as a list.

    Received data never choose what is built. An object of a class that is not registered comes back
    as a dict of its fields.

    Args:
        classes: Dataclasses by the name that they have in the data, such as
            ``{"com.example.Order": Order}``. Fields have the same names on both sides. A field in
            the data that the class does not have is left out; a field that the data do not have
            gets its default.
        bytes_max: Largest content, written or read; 1 MiB, the largest payload.
        depth_max: Lists, maps and objects inside one another, written or read; 64, at most 100.
        elements_max: Values, keys and names of fields, written or read; 100 000. Bounds time and
            memory. Long strings and binaries count as one more for each 32 KiB.

    Raises:
        InvalidArgument: A class is no dataclass or has two names, or a bound is out of range.
    """

    name: Final = "hessian2"

    def __init__(
        self,
        classes: Mapping[str, type] | None = None,
        *,
        bytes_max: int = limits.MESSAGE_BYTES_MAX,
        depth_max: int = 64,
        elements_max: int = 100_000,
    ) -> None:
        for what, bound, most in (
            ("bytes_max", bytes_max, 2**31 - 1),
            ("depth_max", depth_max, _DEPTH_MAX_MAX),
            ("elements_max", elements_max, 2**31 - 1),
        ):
            check_between(what, bound, 1, most)
        given: object = classes
        if not isinstance(given, Mapping | None):
            raise InvalidArgument(
                f"classes = {shown(given)} is {type(given).__name__}; give a mapping of names to "
                "dataclasses"
            )
        self._bounds = objects.Bounds(bytes_max, depth_max, elements_max)
        self._classes = objects.Classes(classes or {})

    def dumps(self, value: Any) -> bytes:
        """Return a value as one Hessian 2 document.

        Raises:
            InvalidArgument: Hessian 2 has no such value, or it exceeds a bound.
        """
        try:
            return objects.encode(value, self._classes, self._bounds)
        except RecursionError as error:
            raise InvalidArgument(f"{shown(value)} is nested too deep: {error}") from error

    def loads(self, content: bytes) -> Any:
        """Return the value of a Hessian 2 document.

        Raises:
            ContentUnreadable: It is no such document or exceeds a bound, or a registered class does
                not take its fields.
        """
        try:
            return objects.decode(content, self._classes, self._bounds)
        except (ProtocolError, RecursionError) as error:
            raise ContentUnreadable(f"content of {len(content)} bytes: {error}") from error


def _check_keys(value: Any) -> None:
    """Refuse keys that are no text: ``json`` writes numbers as text, which may come twice then."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for key in each:
                if not isinstance(key, str):
                    raise TypeError(f"key {shown(key)} is {type(key).__name__}, not text")
            each = each.values()
        elif not isinstance(each, list | tuple):
            continue
        left += [inner for inner in each if isinstance(inner, dict | list | tuple)]


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # as of 1e999, which is valid JSON
        raise ValueError(f"{text:.40} is larger than any float")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
