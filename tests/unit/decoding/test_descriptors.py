"""Protobuf by a descriptor set, and what is hostile in either."""

import json

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protobuf import KIND, SHOP, add_field, order_class, packed, shop, varint

from vq.decoding import descriptors
from vq.decoding.contents import SHOWN_BYTES_MAX, Format, decoded
from vq.decoding.descriptors import SET_BYTES_MAX, TEXT_CHARS_MAX, DescriptorSet
from vq.errors import InvalidArgument


def test_types_are_told_without_the_entries_of_maps() -> None:
    types = DescriptorSet.parse(SHOP).types
    assert [each for each in types if each.startswith("shop")] == ["shop.Order", "shop.Order.Line"]


def test_a_message_is_told_by_the_names_of_its_fields() -> None:
    """Enums by name, bytes that are no text as hex, times as times, what Any holds by its type."""
    order = order_class()
    inner = order(number=1)
    message = order(
        number=2**63, lines=[{"article": "中", "count": -1}, {}], state=1, notes={"a": "b"}
    )
    message.picture = b"\xff\x00"
    message.former.number = 7
    message.sent.seconds, message.sent.nanos = 1_795_946_623, 500_000_000
    message.more.type_url, message.more.value = "x/shop.Order", inner.SerializeToString()
    message.flags[:] = [True, False]
    found = decoded(
        message.SerializeToString(),
        Format.PROTOBUF,
        DescriptorSet.parse(SHOP).message_type("shop.Order"),
    )
    assert (found.format, found.cut, found.problem) == (Format.PROTOBUF, False, "")
    assert json.loads(found.text) == {
        "number": 2**63,
        "lines": [{"article": "中", "count": -1}, {}],
        "state": "PAID",
        "notes": {"a": "b"},
        "picture": "0xff00",
        "former": {"number": 7},
        "sent": "2026-11-29T10:03:43.5Z",
        "more": {"type_url": "x/shop.Order", "value": {"number": 1}},
        "flags": [True, False],
    }


def test_what_the_type_does_not_know_is_shown_with_its_number() -> None:
    """A newer producer has more fields than the set: nothing is hidden."""
    kind = DescriptorSet.parse(SHOP).message_type("shop.Order.Line")
    data = b"\x38\x05\x38\x05\x42\x03abc" + b"\x4b\x08\x01\x4c" + b"\x55\x01\x00\x00\x00"
    assert kind.read(data)[0] == {
        "unknown field 7": [5, 5],
        "unknown field 8": "abc",
        "unknown field 9": {"unknown field 1": 1},
        "unknown field 10": 1,
    }


def test_a_topic_with_a_type_is_read_by_it_before_anything_else() -> None:
    """But what is no such message is still told as what it is."""
    kind = DescriptorSet.parse(SHOP).message_type("shop.Order")
    text = order_class()(notes={"k": "v"}).SerializeToString()
    assert decoded(text).format is not Format.PROTOBUF
    assert decoded(text, message_type=kind).format is Format.PROTOBUF
    assert decoded(b'{"a": 1}', message_type=kind).format is Format.JSON
    assert decoded(b"", message_type=kind).text == "{}"
    found = decoded(b"\xff\xff", Format.PROTOBUF, kind)
    assert found.format is Format.HEX
    assert "no shop.Order" in found.problem
    assert "not known" in decoded(b"", Format.PROTOBUF).problem


def _cycle() -> bytes:
    files = [FileDescriptorProto(name=each, syntax="proto3") for each in ("a", "b")]
    files[0].dependency[:], files[1].dependency[:] = ["b"], ["a"]
    return packed(*files)


def _nested(levels: int) -> bytes:
    message = b"\x0a\x01M"
    for _ in range(levels):
        message = b"\x0a\x01M" + _field_of(3, message)
    return _field_of(1, b"\x0a\x06x.prot" + _field_of(4, message))


def _field_of(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def _twice() -> bytes:
    file = FileDescriptorProto(name="x.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    for number in (1, 2):
        add_field(message, "same", number, KIND.TYPE_BOOL)
    return packed(file)


def _untyped() -> bytes:
    file = FileDescriptorProto(name="x.proto", syntax="proto3")
    add_field(file.message_type.add(name="M"), "of", 1, KIND.TYPE_MESSAGE, ".nowhere.N")
    return packed(file)


def _many(files: int, types: int) -> bytes:
    made = [FileDescriptorProto(name=f"f{each}", syntax="proto3") for each in range(files)]
    for each in range(types):
        made[0].message_type.add(name=f"M{each}")
    return packed(*made)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no file"),
        (b"not a set", "no descriptor set"),
        (SHOP[:-7], "no descriptor set"),
        (b"\0" * (SET_BYTES_MAX + 1), str(SET_BYTES_MAX)),
        (packed(shop()), "google/protobuf/timestamp.proto"),
        (_cycle(), "import each other"),
        (_nested(200), "no descriptor set"),
        (_twice(), "same"),
        (_untyped(), "nowhere.N"),
        (
            packed(FileDescriptorProto(name="a"), FileDescriptorProto(name="a", package="b")),
            "one name",
        ),
        (packed(FileDescriptorProto(name="a", syntax="proto9")), "proto9"),
        (_many(descriptors.FILES_MAX + 1, 0), str(descriptors.FILES_MAX)),
        (_many(1, descriptors.TYPES_MAX + 1), str(descriptors.TYPES_MAX)),
    ],
)
def test_a_set_that_is_not_valid_is_refused_with_why(data: bytes, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        DescriptorSet.parse(data)


def test_a_type_that_is_not_there_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(InvalidArgument, match=r"shop\.Order"):
        DescriptorSet.parse(SHOP).message_type("shop.Ordre")
    for name in ("", "x" * 10_000, "shop.Order.NotesEntries", "\0"):
        with pytest.raises(InvalidArgument):
            DescriptorSet.parse(SHOP).message_type(name)


def test_bytes_that_nest_deep_are_told_or_refused() -> None:
    """Messages in themselves, groups in groups, Any in Any: none uses up the stack."""
    kind = DescriptorSet.parse(SHOP).message_type("shop.Order")
    deep, anys = b"", b""
    for _ in range(3_000):
        deep = _field_of(6, deep)
    for _ in range(1_000):
        inner = order_class()()
        inner.more.type_url, inner.more.value = "x/shop.Order", anys
        anys = inner.SerializeToString()
    for data in (deep, anys, b"\x5b" * 5_000 + b"\x5c" * 5_000, b"\x5b" * 60 + b"\x5c" * 60):
        assert decoded(data, Format.PROTOBUF, kind).format in (Format.HEX, Format.PROTOBUF)


def test_few_bytes_do_not_make_much_text() -> None:
    """A byte for each element, and a name of each field that is as long as a set may be."""
    kind = DescriptorSet.parse(SHOP).message_type("shop.Order")
    flags = order_class()(flags=[True] * 60_000).SerializeToString()
    file = FileDescriptorProto(name="x.proto", syntax="proto3")
    long = file.message_type.add(name="M")
    add_field(long, "f" * 900_000, 1, KIND.TYPE_MESSAGE, ".M", several=True)
    for data, of in (
        (flags, kind),
        (b"\x0a\x00" * 30_000, DescriptorSet.parse(packed(file)).message_type("M")),
        (b"\x68\x01" * 30_000, kind),
    ):
        found = decoded(data, Format.PROTOBUF, of)
        assert found.cut
        assert len(found.text) < 2 * TEXT_CHARS_MAX
    assert "too many" in decoded(b"\0" * (SHOWN_BYTES_MAX + 1), Format.PROTOBUF, kind).problem


@given(st.binary(max_size=300))
def test_no_bytes_of_a_message_fail(data: bytes) -> None:
    kind = DescriptorSet.parse(SHOP).message_type("shop.Order")
    assert isinstance(decoded(data, Format.PROTOBUF, kind).text, str)


@settings(max_examples=300)
@given(st.integers(0, len(SHOP) - 1), st.binary(min_size=1, max_size=8))
def test_no_change_of_a_set_fails(place: int, noise: bytes) -> None:
    """It is refused, or its types can be used."""
    try:
        found = DescriptorSet.parse(SHOP[:place] + noise + SHOP[place + len(noise) :])
        for each in found.types:
            found.message_type(each).read(b"")
    except (InvalidArgument, ValueError):
        pass


def _long_names(*, as_package: bool) -> bytes:
    """A few kilobytes, and 50 MB of full names."""
    long = "p" * 10_000
    package = long if as_package else None
    file = FileDescriptorProto(name="x.proto", syntax="proto3", package=package)
    message = None if as_package else file.message_type.add(name=long)
    for number in range(1, 5_001):
        if message is None:
            file.message_type.add(name=f"M{number}")
        else:
            add_field(message, f"f{number}", number, KIND.TYPE_BOOL)
    return packed(file)


@pytest.mark.parametrize("as_package", [True, False])
def test_full_names_are_bounded_before_the_set_is_built(
    monkeypatch: pytest.MonkeyPatch, as_package: bool
) -> None:
    """Once it is built, everything has its name in full: of 1 MiB come gigabytes."""
    monkeypatch.setattr(descriptors, "DescriptorPool", None)
    with pytest.raises(InvalidArgument, match="33554432 characters"):
        DescriptorSet.parse(_long_names(as_package=as_package))


def test_types_are_counted_before_the_set_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "DescriptorPool", None)
    with pytest.raises(InvalidArgument, match="20000 types"):
        DescriptorSet.parse(_many(1, 20_001))
