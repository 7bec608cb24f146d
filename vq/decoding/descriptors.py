"""Protobuf by descriptor: a set as ``protoc`` writes it, and bytes of messages read by it.

    protoc --include_imports --descriptor_set_out=shop.desc shop.proto

A set, and the bytes that are read by it, may be hostile. The set is bounded in bytes, files, types
and names before it is built, for each field has its full name then. The text of a message is
bounded in characters, its nesting in levels.
"""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from vq.errors import InvalidArgument
from vq.limits import KIB, MIB
from vq.shown import shown

#: Bytes of a set. One of a company's whole interface has a few hundred KiB.
SET_BYTES_MAX: Final = MIB
FILES_MAX: Final = 2_000
TYPES_MAX: Final = 20_000
#: Characters of all names of a set when each is written in full, as it is once the set is built.
NAMES_CHARS_MAX: Final = 32 * MIB
#: Characters of the text that is made of one message.
TEXT_CHARS_MAX: Final = 256 * KIB
#: Levels of messages in messages; the parser of protobuf has the same bound.
DEPTH_MAX: Final = 100
#: Sets that stay built: a page of messages is read by one, again and again.
_BUILT_MAX: Final = 8
#: Characters that a line of the text has beside the name and the value.
_LINE_CHARS: Final = 8
_HOW: Final = "write it with `protoc --include_imports --descriptor_set_out=FILE …`"


class DescriptorSet:
    """The types of a descriptor set. May be used by any number of threads.

    Attributes:
        types: Full names of all types of messages, sorted; ``shop.Order.Line`` is one within
            another one.
    """

    def __init__(self, files: Sequence[Any]) -> None:
        names = [each.name for each in files]
        if len(names) > FILES_MAX:
            raise InvalidArgument(f"the set has {len(names)} files; at most {FILES_MAX} are taken")
        by_name = {each.name: each for each in files}
        if len(by_name) < len(names):
            raise InvalidArgument("the set has two files of one name")
        self.types: Sequence[str] = _checked_types(files)
        self._pool = DescriptorPool()
        try:
            for name in _in_order(by_name):
                self._pool.Add(by_name[name])
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidArgument(f"the descriptor set is not valid: {_told(error)}") from error

    @classmethod
    def parse(cls, data: bytes) -> "DescriptorSet":
        """Return the set of the bytes of a ``FileDescriptorSet``; the last few sets stay built.

        Raises:
            InvalidArgument: They are none, too large, or the types in it are not valid.
        """
        if len(data) > SET_BYTES_MAX:
            raise InvalidArgument(
                f"the descriptor set has {len(data)} bytes; at most {SET_BYTES_MAX} are taken: "
                "give protoc only the files of the types that are needed"
            )
        return _built(data)

    def message_type(self, name: str) -> "MessageType":
        """Return a type by its full name.

        Raises:
            InvalidArgument: The set has none of this name.
        """
        try:
            found = self._pool.FindMessageTypeByName(name)
        except KeyError:
            near = difflib.get_close_matches(name[:200], self.types[:2_000], 3, 0.5)
            raise InvalidArgument(
                f"the descriptor set has no type {shown(name)}"
                + (f"; it has {', '.join(near)}" if near else "")
            ) from None
        return MessageType(found, self._pool)


class MessageType:
    """A type, to read messages by. May be used by any number of threads.

    Attributes:
        name: Its full name.
    """

    def __init__(self, descriptor: Descriptor, pool: DescriptorPool) -> None:
        self.name = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)
        self._pool = pool

    def read(self, data: bytes) -> tuple[dict[str, Any], bool]:
        """Return the fields of a message by name, for JSON, and whether some are left out.

        A field that the type does not know is there with its number. What has its default value is
        not in the bytes of proto3, and so it is not here.

        Raises:
            ValueError: The bytes are no message of this type.
        """
        try:
            message = self._class.FromString(data)
        except DecodeError as error:
            raise ValueError(f"the bytes are no {self.name}: {_told(error)}") from error
        reading = _Reading(self._pool)
        return reading.fields(message, 0), reading.cut


@functools.lru_cache(_BUILT_MAX)
def _built(data: bytes) -> DescriptorSet:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    except DecodeError as error:
        raise InvalidArgument(f"the file is no descriptor set ({_told(error)}): {_HOW}") from error
    if not files:
        raise InvalidArgument(f"the descriptor set has no file: {_HOW}")
    return DescriptorSet(files)


def _in_order(files: Mapping[str, Any]) -> Iterable[str]:
    """Return the names of files, each one after those that it imports."""
    for each in files.values():
        for name in each.dependency:
            if name not in files:
                raise InvalidArgument(
                    f"{shown(each.name)} imports {shown(name)}, which is not in the set: {_HOW}"
                )
    try:
        return list(
            TopologicalSorter(
                {name: each.dependency for name, each in files.items()}
            ).static_order()
        )
    except CycleError as error:
        raise InvalidArgument(
            f"files of the set import each other: {' -> '.join(map(shown, error.args[1][:10]))}"
        ) from None


def _checked_types(files: Iterable[Any]) -> Sequence[str]:
    """Return the full names of types, sorted.

    Raises:
        InvalidArgument: There are too many, or the names of all that is in them are too long.
    """
    types: list[str] = []
    left = NAMES_CHARS_MAX
    for name, chars, is_type in (one for each in files for one in _named(each)):
        left -= chars
        if left < 0:
            raise InvalidArgument(
                "the names in the set, each with those of the package and the types around it, "
                f"have more than {NAMES_CHARS_MAX} characters: shorten {shown(name[:200])}"
            )
        if is_type:
            types.append(name)
        if len(types) > TYPES_MAX:
            raise InvalidArgument(f"the set has more than {TYPES_MAX} types: give protoc less")
    return sorted(types)


def _named(file: Any) -> Iterable[tuple[str, int, bool]]:
    """Yield each message with the characters of all full names in it, and whether it is a type.

    What is beside messages comes first, as the package.
    """
    services = [one for each in file.service for one in (each, *each.method)]
    package = file.package  # once: protobuf makes a text of it each time
    yield package, _chars(package, file.enum_type, file.extension, services), False
    waiting = [(package, each) for each in file.message_type]
    while waiting:
        outer, found = waiting.pop()
        name = f"{outer}.{found.name}" if outer else found.name
        within = _chars(name, found.enum_type, found.extension, found.field, found.oneof_decl)
        yield name, len(name) + within, not found.options.map_entry
        waiting += [(name, each) for each in found.nested_type]


def _chars(scope: str, enums: Sequence[Any], *named: Iterable[Any]) -> int:
    values = (one for each in enums for one in each.value)
    return sum(len(scope) + 1 + len(each.name) for of in (enums, values, *named) for each in of)


@dataclass(slots=True)
class _Reading:
    """One message on its way to text: what is left of its characters.

    Attributes:
        cut: Something was left out.
    """

    pool: DescriptorPool
    left: int = TEXT_CHARS_MAX
    cut: bool = False

    def fields(self, message: ProtobufMessage, depth: int) -> dict[str, Any]:
        """Return the fields of a message; those that it does not know are last."""
        if depth > DEPTH_MAX:
            raise ValueError(f"messages lie deeper than {DEPTH_MAX} in each other")
        found: dict[str, Any] = {}
        for each, value in message.ListFields():
            name = f"[{each.full_name}]" if each.is_extension else each.name
            if not self._pays(name, depth):
                return found
            found[name] = self._value(each, value, depth + 1)
        return found | self._unknown(unknown_fields.UnknownFieldSet(message), depth)

    def _value(self, of: FieldDescriptor, value: Any, depth: int) -> Any:
        if of.message_type is not None and of.message_type.GetOptions().map_entry:
            kind = of.message_type.fields_by_name["value"]
            entries: dict[str, Any] = {}
            for key in value:
                if not self._pays(str(key), depth):
                    break
                entries[str(key)] = self._one(kind, value[key], depth + 1)
            return entries
        if of.is_repeated:
            several = []
            for each in value:
                if not self._pays("", depth):
                    break
                several.append(self._one(of, each, depth + 1))
            return several
        return self._one(of, value, depth)

    def _one(self, of: FieldDescriptor, value: Any, depth: int) -> Any:
        if of.message_type is not None:
            return self._message(value, depth)
        if of.enum_type is not None:
            known = of.enum_type.values_by_number.get(value)
            return self._paid(value if known is None else known.name)
        return self._paid(_text_of(value) if isinstance(value, bytes) else value)

    def _message(self, message: Any, depth: int) -> Any:
        name = message.DESCRIPTOR.full_name
        if name == "google.protobuf.Timestamp":
            moment = _moment(message)
            if moment:
                return self._paid(moment)
        if name == "google.protobuf.Any":
            inner = self._inner(message)
            if inner is not None:
                return {
                    "type_url": self._paid(message.type_url),
                    "value": self.fields(inner, depth + 1),
                }
        return self.fields(message, depth)

    def _inner(self, message: Any) -> ProtobufMessage | None:
        """Return what an Any holds; None: the set does not have its type, or it is no such one."""
        try:
            kind = self.pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
            return message_factory.GetMessageClass(kind).FromString(message.value)
        except (KeyError, DecodeError):
            return None

    def _unknown(self, present: Any, depth: int) -> dict[str, Any]:
        """Return fields by their numbers; one that is there several times has a list."""
        found: dict[str, list[Any]] = {}
        for each in present:
            name = f"unknown field {each.field_number}"
            if depth > DEPTH_MAX or not self._pays(name, depth):
                break
            data = each.data
            if isinstance(data, bytes):
                data = self._paid(_text_of(data))
            elif not isinstance(data, int):  # a group
                data = self._unknown(data, depth + 1)
            found.setdefault(name, []).append(data)
        return {name: each[0] if len(each) == 1 else each for name, each in found.items()}

    def _pays(self, name: str, depth: int) -> bool:
        """Take the cost of a line; False: nothing is left for it."""
        self.left -= len(name) + _LINE_CHARS + 2 * depth
        self.cut |= self.left < 0
        return self.left >= 0

    def _paid(self, value: Any) -> Any:
        """Return a value, or the beginning of a text for which too little is left."""
        if isinstance(value, str):
            if len(value) > max(0, self.left):
                value, self.cut = value[: max(0, self.left)], True
            self.left -= len(value)
        return value


def _text_of(data: bytes) -> str:
    """Return bytes as text if they look like some, else as hexadecimal digits."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


def _moment(message: Any) -> str:
    """Return a time of protobuf as text; "": it is out of range."""
    try:
        seconds = datetime.fromtimestamp(message.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return ""
    part = f".{message.nanos:09d}".rstrip("0") if 0 < message.nanos < 10**9 else ""
    return f"{seconds}{part}Z"


def _told(error: Exception) -> str:
    """Return what a library says, bounded: it quotes names of the set."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
