"""Serializers against arbitrary values and arbitrary bytes."""

from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults import times

from vq.errors import CorruptData, InvalidArgument
from vq.serializers import Hessian2, Json, Protobuf, Serializer
from vq.store.properties_pb2 import RecordProperties


@dataclass
class Node:
    name: str
    left: Any = None
    right: Any = None


@dataclass
class Empty:
    pass


HESSIAN = Hessian2({"Node": Node, "Empty": Empty})
SERIALIZERS = [Json(), Protobuf(RecordProperties), HESSIAN]
texts = st.text(st.characters(codec="utf-8"), max_size=40)
longs = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
dates = st.datetimes(timezones=st.just(UTC)).map(
    lambda value: value.replace(microsecond=value.microsecond // 1_000 * 1_000)
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
)
HESSIAN_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | longs
    | floats
    | texts
    | st.binary(max_size=3_000)
    | dates
    | st.just(Empty()),
    lambda inner: (
        st.lists(inner, max_size=10)
        | st.dictionaries(texts | longs | dates | st.binary(max_size=9), inner, max_size=5)
        | st.builds(Node, texts, inner, inner)
    ),
)


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    assert Json().loads(Json().dumps(value)) == value


@given(HESSIAN_VALUES)
def test_hessian_comes_back(value: Any) -> None:
    """Objects of registered classes, too; without the classes they are dicts."""
    content = HESSIAN.dumps(value)
    assert HESSIAN.loads(content) == value
    Hessian2().loads(content)


@given(texts, st.dictionaries(texts, texts), longs)
def test_protobuf_comes_back(origin: str, headers: dict[str, str], key: int) -> None:
    message = RecordProperties(origin=origin, headers=headers, key_int=key)
    serializer = Protobuf(RecordProperties)
    assert serializer.loads(serializer.dumps(message)) == message


def hessian_like() -> st.SearchStrategy[bytes]:
    """Pieces of documents, in any order: more of them nearly parse than of arbitrary bytes."""
    pieces = st.sampled_from(
        [
            b"C\x04Node\x92\x04name\x04left",
            b"\x60",
            b"\x61",
            b"O\x90",
            b"H",
            b"Z",
            b"\x7a",
            b"\x79",
            b"\x57",
            b"Q\x90",
            b"Q\x91",
            b"\x01a",
            b"\x91",
            b"N",
            b"J" + bytes(8),
            b"K\x7f\xff\xff\xff",
        ]
    )
    return st.lists(pieces | st.binary(max_size=3), max_size=30).map(b"".join)


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda each: each.name)
@settings(max_examples=times(150, 5_000))
@given(st.binary(max_size=200) | hessian_like())
def test_arbitrary_bytes_never_do_worse_than_corrupt_data(
    serializer: Serializer, content: bytes
) -> None:
    """What is read can be written, unless it is NaN or a date beyond what datetime holds."""
    try:
        value = serializer.loads(content)
    except CorruptData:
        return
    again = serializer.loads(serializer.dumps(value))
    assert again == value or repr(again) == repr(value)


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=lambda each: each.name)
@given(st.from_type(object) | JSON | HESSIAN_VALUES)
def test_arbitrary_objects_never_do_worse_than_invalid_argument(
    serializer: Serializer, value: Any
) -> None:
    try:
        content = serializer.dumps(value)
    except InvalidArgument:
        return
    assert type(content) is bytes
    serializer.loads(content)
