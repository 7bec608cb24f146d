"""Serializers: what goes in comes out, and what does not fit is refused before it is sent."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, struct_pb2

from vq import limits, serializers
from vq.errors import ContentUnreadable, CorruptData, InvalidArgument
from vq.serializers import Hessian2, Json, Protobuf, Serializer
from vq.store.properties_pb2 import RecordProperties


@dataclass
class Order:
    id: str
    count: int


ORDERS = Hessian2({"com.example.Order": Order})
PROPERTIES = Protobuf(RecordProperties)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("serializer", "value", "content"),
    [
        (
            Json(),
            {"a": [1, 2.5, None, True], "ü": "键"},
            '{"a":[1,2.5,null,true],"ü":"键"}'.encode(),
        ),
        (Json(), 2**70, b"1180591620717411303424"),
        (PROPERTIES, RecordProperties(key_int=1001), b"\x38\xd2\x0f"),
        (PROPERTIES, RecordProperties(), b""),
        (ORDERS, Order("o", 3), b"C\x11com.example.Order\x92\x02id\x05count\x60\x01o\x93"),
        (ORDERS, {"a": [1, None]}, b"H\x01a\x7a\x91NZ"),
    ],
)
def test_golden_contents_both_ways(serializer: Serializer, value: Any, content: bytes) -> None:
    assert serializer.dumps(value) == content
    assert serializer.loads(content) == value
    assert type(serializer.loads(content)) is type(value)


def test_equal_protobuf_messages_have_equal_bytes() -> None:
    """Entries of maps are sorted."""
    names = [f"name {number}" for number in range(50)]
    first = RecordProperties(headers=dict.fromkeys(names, "x"))
    second = RecordProperties(headers=dict.fromkeys(reversed(names), "x"))
    assert PROPERTIES.dumps(first) == PROPERTIES.dumps(second)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("serializer", "value", "text"),
    [
        (Json(), math.nan, r"^nan cannot be written as JSON: Out of range float values"),
        (Json(), {"a": [math.inf]}, "Out of range"),
        (Json(), datetime(2026, 1, 1, tzinfo=UTC), "datetime is not JSON serializable"),
        (Json(), b"x", r"^b'x' cannot be written as JSON: .* bytes"),
        (Json(), {1: "a", "1": "b"}, "key 1 is int, not text"),
        (Json(), [({"a": {None: 1}},)], "key None is NoneType, not text"),
        (Json(), {(1,): 2}, "keys must be str"),
        (Json(), {1, 2}, "set is not JSON serializable"),
        (Json(), CYCLE, "Circular reference"),
        (Json(), "\ud800", "surrogates not allowed"),
        (Json(), nested(100_000), "^a list cannot be written as JSON"),
        (Json(), 10**5_000, "^an int of 16610 bits cannot be written as JSON"),
        (PROPERTIES, struct_pb2.Value(), "is Value; give RecordProperties"),
        (PROPERTIES, {"key": "a"}, r"\{'key': 'a'\} is dict; give RecordProperties"),
        (
            Protobuf(descriptor_pb2.UninterpretedOption),
            descriptor_pb2.UninterpretedOption(name=[{}]),
            "UninterpretedOption cannot be written: .*missing required",
        ),
        (ORDERS, datetime.now, "which Hessian 2 does not hold"),
        (ORDERS, CYCLE, "contains itself"),
        (ORDERS, nested(65), "nested deeper than 64"),
        (Hessian2(bytes_max=3), "long", "more than 3 bytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_fit_is_refused(serializer: Serializer, value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        serializer.dumps(value)


@pytest.mark.parametrize(
    ("serializer", "content", "text"),
    [
        (Json(), b"", "content of 0 bytes is not JSON"),
        (Json(), b"\xff", "is not JSON: 'utf-8' codec"),
        (Json(), b"NaN", "NaN is not JSON"),
        (Json(), b"[-Infinity]", "-Infinity is not JSON"),
        (Json(), b'{"a": -1e999}', "-1e999 is larger than any float"),
        (Json(), b"1 2", "Extra data"),
        (Json(), b"[" * 100_000, "is not JSON"),
        (Json(), b"1" * 5_000, "is not JSON"),
        (PROPERTIES, b"\xff", "content of 1 bytes is not a RecordProperties"),
        (ORDERS, b"", "ends early"),
        (ORDERS, b"NN", "content of 2 bytes: 1 bytes follow"),
        (ORDERS, b"C\x11com.example.Order\x91\x02id\x60\x01o", "cannot be made from its fields"),
        (ORDERS, b"\x79" * 65 + b"N", "deeper than 64"),
        (Hessian2(bytes_max=3), b"\x04long", "at most 3 are read"),
        (Hessian2(elements_max=2), b"\x7a\x90\x90", "more than 2 values"),
        (Hessian2(depth_max=1), b"\x79\x78", "deeper than 1"),
    ],
)
def test_other_bytes_are_refused(serializer: Serializer, content: bytes, text: str) -> None:
    with pytest.raises(CorruptData, match=text):
        serializer.loads(content)


def at_depth(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else at_depth(frames - 1, call)


def test_the_deepest_value_needs_no_more_stack_than_a_listener_has() -> None:
    """Half of Python's default of a thousand calls."""
    deepest = Hessian2(depth_max=100)
    content = deepest.dumps(nested(100))
    assert at_depth(400, lambda: deepest.loads(content)) == nested(100)


def test_a_stack_that_is_used_up_is_an_error_of_vq() -> None:
    deepest = Hessian2(depth_max=100)
    content = deepest.dumps(nested(100))

    def error_at(frames: int) -> type[Exception] | None:
        try:
            at_depth(frames, lambda: deepest.loads(content))
        except (CorruptData, RecursionError) as error:
            return type(error)
        return None

    assert next(filter(None, map(error_at, range(400, 1_000)))) is ContentUnreadable


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Protobuf(dict), "<class 'dict'> is not a class of protobuf messages"),
        (lambda: Protobuf(RecordProperties()), "is not a class of protobuf messages"),
        (lambda: Hessian2({"A": dict}), "is not a dataclass"),
        (lambda: Hessian2(bytes_max=0), r"bytes_max = 0 is outside \[1, "),
        (lambda: Hessian2(depth_max=101), r"depth_max = 101 is outside \[1, 100\]"),
        (lambda: Hessian2(elements_max=0), "elements_max = 0 is outside"),
    ],
)
def test_what_makes_no_serializer_is_refused(make: Callable[[], Serializer], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make()


def test_the_default_bound_is_that_of_a_payload() -> None:
    content = b"B\xff\xff" + bytes(0xFFFF)
    assert len(ORDERS.loads(content)) == 0xFFFF
    with pytest.raises(CorruptData, match=f"at most {limits.MESSAGE_BYTES_MAX} are read"):
        ORDERS.loads(bytes(limits.MESSAGE_BYTES_MAX + 1))


def test_every_public_name_is_there() -> None:
    for name in serializers.__all__:
        assert getattr(serializers, name) is not None
    assert {each.name for each in (Json(), PROPERTIES, ORDERS)} == {"json", "protobuf", "hessian2"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bytes_max": "x"}, "bytes_max = 'x' is str; give a whole number"),
        ({"depth_max": True}, "depth_max = True is bool; give a whole number"),
        ({"elements_max": 1.5}, r"elements_max = 1\.5 is float"),
        ({"classes": 3}, "classes = 3 is int; give a mapping"),
    ],
)
def test_bounds_and_classes_of_a_wrong_kind_are_refused(settings: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        Hessian2(**settings)
