"""Headers as properties: Hessian documents and header messages survive the way, in any encoding."""

import math
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from vq.errors import ProtocolError
from vq.hessian import encoding
from vq.hessian import plain as hessian
from vq.hessian.plain import Long, Value
from vq.remoting import hessian_messages, messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import FLAG_HESSIAN, Command

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.floats(allow_nan=False),
    texts,
    st.tuples(texts, st.integers(0, 3_000)).map(lambda pair: (pair[0] * pair[1])[:40_000]),
    st.binary(max_size=2_000),
)
values: st.SearchStrategy[Value] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=12), st.dictionaries(texts, inner)),
    max_leaves=20,
)


@given(values)
def test_a_document_survives_the_way(value: Value) -> None:
    """Value and types are the same; only ``Long`` is a plain number again."""
    decoded = hessian.decode(encoding.encode(value), bytes_max=10**7)
    assert decoded == value
    assert encoding.encode(decoded) == encoding.encode(plain(value))


def plain(value: Value) -> Value:
    """The value without the wish for longs, and without the difference between zeros."""
    if isinstance(value, Long):
        return int(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@given(st.binary(max_size=300))
def test_bytes_are_a_document_or_refused(data: bytes) -> None:
    """Nothing else comes out of the decoder, and what it reads can be written again."""
    try:
        value = hessian.decode(data)
    except ProtocolError:
        return
    again = hessian.decode(encoding.encode(value))
    assert again == value or any(map(math.isnan, floats(value)))


def floats(value: Value) -> list[float]:
    """All doubles inside ``value``."""
    if isinstance(value, float):
        return [value]
    if isinstance(value, list):
        return [number for item in value for number in floats(item)]
    if isinstance(value, dict):
        return [number for item in value.values() for number in floats(item)]
    return []


RANGES = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=100),
}


def field_values(field: Any) -> st.SearchStrategy[Any]:
    """Values that a field of a header may have."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field_values(field.message_type.fields_by_name["value"])
        return st.dictionaries(texts, inner, max_size=5)
    if field.message_type is not None:
        one: st.SearchStrategy[Any] = header_messages(getattr(wire, field.message_type.name))
    else:
        one = RANGES[field.type]
    return st.lists(one, max_size=5) if field.is_repeated else one


def header_messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of a class, any of their fields set."""
    optional = {field.name: field_values(field) for field in cls.DESCRIPTOR.fields}
    return st.fixed_dictionaries({}, optional=optional).map(lambda fields: cls(**fields))


@given(st.sampled_from(Command).flatmap(lambda c: st.tuples(st.just(c), any_header(c))))
def test_a_header_survives_the_way_in_both_encodings(sample: tuple[Command, Message]) -> None:
    """Protobuf and Hessian carry the same message."""
    command, message = sample
    is_request = type(message) is command.request
    decode = messages.decode_request if is_request else messages.decode_response
    for flags in (0, FLAG_HESSIAN):
        header = messages.encode_header(command, message, flags)
        assert decode(command, header, flags) == message


def any_header(command: Command) -> st.SearchStrategy[Message]:
    """A request or a response of ``command``."""
    return st.one_of(header_messages(command.request), header_messages(command.response))


@given(header_messages(wire.Error))
def test_details_survive_the_way(error: Message) -> None:
    """Maps of numbers and of texts."""
    assert hessian_messages.decode(wire.Error, hessian_messages.encode(error)) == error
