"""Header messages as Hessian 2 maps: the same field names as in ``wire.proto``.

A field that has its default value is left out, as protobuf does, and null means the same. Every
integer is written as a long, so that a reader in Java always gets a ``Long``; int and long are both
read. A field of 32 or 64 unsigned bits may also be given as the negative number that Java shows for
the same bits. Names that this version does not know are read over, as protobuf does.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from vq.errors import ProtocolError
from vq.hessian import encoding
from vq.hessian import plain as hessian
from vq.hessian.plain import Long, Value

_M = TypeVar("_M", bound=Message)

_UNSIGNED_BITS: Final = {
    FieldDescriptor.TYPE_UINT32: 32,
    FieldDescriptor.TYPE_FIXED32: 32,
    FieldDescriptor.TYPE_UINT64: 64,
    FieldDescriptor.TYPE_FIXED64: 64,
}
_SIGNED_BITS: Final = {FieldDescriptor.TYPE_INT32: 32, FieldDescriptor.TYPE_INT64: 64}

_FIELDS: Final[dict[type[Message], dict[str, FieldDescriptor]]] = {}


def encode(message: Message) -> bytes:
    """Return ``message`` as a Hessian 2 map."""
    return encoding.encode(_to_map(message))


def decode(cls: type[_M], data: bytes) -> _M:
    """Return the ``cls`` in the Hessian 2 map ``data``.

    Raises:
        ProtocolError: The bytes are not such a map, or a field has another type or range.
    """
    value = hessian.decode(data)
    if not isinstance(value, Mapping):
        raise ProtocolError(f"Hessian header is {type(value).__name__}, not a map")
    message = cls()
    _fill(message, value)
    return message


def _to_map(message: Message) -> dict[str, Value]:
    return {field.name: _to_value(field, value) for field, value in message.ListFields()}


def _to_value(field: FieldDescriptor, value: Any) -> Value:
    item = _map_value(field)
    if item is not None:
        return {str(key): _to_scalar(item, entry) for key, entry in sorted(value.items())}
    if field.is_repeated:
        return [_to_scalar(field, item) for item in value]
    return _to_scalar(field, value)


def _to_scalar(field: FieldDescriptor, value: Any) -> Value:
    if isinstance(value, Message):
        return _to_map(value)
    bits = _UNSIGNED_BITS.get(field.type)
    if bits == 64 and value >= 1 << 63:
        return Long(value - (1 << 64))
    if bits or field.type in _SIGNED_BITS:
        return Long(value)
    scalar: Value = value
    return scalar


def _fill(message: Message, entries: Mapping[str, Value]) -> None:
    fields = _fields(type(message))
    for name, value in entries.items():
        field = fields.get(name)
        if field is None or value is None:
            continue
        item = _map_value(field)
        if item is not None:
            if not isinstance(value, Mapping):
                raise _wrong_type(field, value, "a map")
            target = getattr(message, name)
            for key, entry in value.items():
                target[key] = _from_scalar(item, entry)
        elif field.is_repeated:
            if not isinstance(value, list):
                raise _wrong_type(field, value, "a list")
            _fill_repeated(getattr(message, name), field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if not isinstance(value, Mapping):
                raise _wrong_type(field, value, "a map")
            target = getattr(message, name)
            target.SetInParent()  # also if it has only default values
            _fill(target, value)
        else:
            setattr(message, name, _from_scalar(field, value))


def _fields(cls: type[Message]) -> dict[str, FieldDescriptor]:
    """Return name → field.

    It does not use protobuf's ``fields_by_name``, which is written in C and reads a name only up to
    a zero byte.
    """
    known = _FIELDS.get(cls)
    if known is None:
        fields = cls.DESCRIPTOR.fields
        known = _FIELDS[cls] = {each.name: cast("FieldDescriptor", each) for each in fields}
    return known


def _fill_repeated(target: Any, field: FieldDescriptor, values: list[Value]) -> None:
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        target.extend([_from_scalar(field, value) for value in values])
        return
    for value in values:
        if not isinstance(value, Mapping):
            raise _wrong_type(field, value, "a map")
        _fill(target.add(), value)


def _from_scalar(field: FieldDescriptor, value: Value) -> Any:
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        wanted: type = str
    elif kind == FieldDescriptor.TYPE_BYTES:
        wanted = bytes
    elif kind == FieldDescriptor.TYPE_BOOL:
        wanted = bool
    else:
        return _from_integer(field, value)
    if not isinstance(value, wanted):
        raise _wrong_type(field, value, wanted.__name__)
    return value


def _from_integer(field: FieldDescriptor, value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(field, value, "an integer")
    bits = _UNSIGNED_BITS.get(field.type)
    if bits is None:
        bits = _SIGNED_BITS[field.type]
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise _out_of_range(field, value, bits)
        return value
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise _out_of_range(field, value, bits)
    return value & ((1 << bits) - 1)


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """Return the field of the values if ``field`` is a map, which protobuf stores as entries."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["value"]


def _wrong_type(field: FieldDescriptor, value: Value, wanted: str) -> ProtocolError:
    return ProtocolError(f"field {field.name} is {type(value).__name__}, not {wanted}")


def _out_of_range(field: FieldDescriptor, value: int, bits: int) -> ProtocolError:
    return ProtocolError(f"field {field.name} = {value} does not fit into {bits} bits")
