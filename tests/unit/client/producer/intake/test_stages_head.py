"""Heads are those of the reference encoder; what cannot be one is shown."""

import pickle
import re
from typing import Any

import pytest

from vq import limits
from vq.client.producer.intake.stages import Heads, encode_head, with_flag
from vq.errors import InvalidArgument, MessageTooLarge
from vq.message_filter import Filter
from vq.store.records.format import FLAG_PROPERTIES, FLAG_TAG
from vq.store.records.record import Properties, decode_records, encode_properties, encode_record


@pytest.mark.parametrize("tag", [None, b"t", "ü".encode(), b"t" * limits.TAG_BYTES_MAX])
@pytest.mark.parametrize("properties", [None, encode_properties(Properties(key="k"))])
def test_a_head_is_what_the_reference_writes(tag: bytes | None, properties: bytes | None) -> None:
    whole = encode_record(1, b"payload", tag, properties)
    head = encode_head(tag, properties)
    if head is None:
        assert (tag, properties) == (None, None)
        return
    assert head[0] == int.from_bytes(whole[16:20], "big")
    assert whole[20:] == head[1] + b"payload"


def test_heads_of_tags_are_made_once_and_not_without_end() -> None:
    heads = Heads()
    first = heads.of_tag("a")
    assert first == (FLAG_TAG, b"\0\0\0\1a")
    assert heads.of_tags["a"] is first
    for number in range(3_000):
        assert heads.of_tag(str(number)) == encode_head(str(number).encode(), None)
    assert len(heads.of_tags) == 1_024


def test_key_and_headers_are_properties() -> None:
    head = Heads.of("t", "k", {"a": "b"})
    assert head is not None
    assert head[0] == FLAG_TAG | FLAG_PROPERTIES
    properties = encode_properties(Properties(key="k", headers={"a": "b"}))
    record = decode_records(encode_record(1, b"", b"t", properties), 0)[0]
    assert (record.tag, record.properties) == (b"t", properties)
    assert head[1] == b"\0\0\0\1t" + len(properties or b"").to_bytes(4, "big") + (properties or b"")


@pytest.mark.parametrize("tag", ["", "t" * (limits.TAG_BYTES_MAX + 1), "\udc80", b"bytes", 5])
def test_what_is_no_tag_is_refused(tag: str) -> None:
    for make in (Heads().of_tag, lambda each: Heads.of(each, "k", {})):
        with pytest.raises(InvalidArgument, match="tag"):
            make(tag)


@pytest.mark.parametrize(
    ("key", "headers", "text"),
    [
        (1.5, None, "key 1.5 is float; give text, bytes or an integer"),
        (True, None, "key True is bool; give text, bytes or an integer"),
        (bytearray(b"k"), None, "key bytearray(b'k') is bytearray; give text, bytes or an integer"),
        (
            2**63,
            None,
            "key 9223372036854775808 is outside [-9223372036854775808, 9223372036854775807], "
            "64 bits",
        ),
        (
            -(2**63) - 1,
            {"a": "b"},
            "key -9223372036854775809 is outside [-9223372036854775808, 9223372036854775807], "
            "64 bits",
        ),
        (None, 5, "headers 5 is int; give a mapping of text to text"),
        (None, [], "headers [] is list; give a mapping of text to text"),
        (None, {"a": 5}, "the value of header 'a' is 5 (int); give text"),
        (None, {1: "b"}, "the name of header 1 is 1 (int); give text"),
        (
            None,
            {"a": "b", "who": "\udcff"},
            "the value of header 'who' is not text: 'utf-8' codec can't encode character '\\udcff' "
            "in position 0: surrogates not allowed",
        ),
        (
            "k",
            {"\udcff": "b"},
            "the name of header '\\udcff' is not text: 'utf-8' codec can't encode character "
            "'\\udcff' in position 0: surrogates not allowed",
        ),
    ],
)
def test_what_has_another_type_is_shown_with_what_is_taken(
    key: Any, headers: Any, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(text)}$"):
        Heads.of(None, key, headers)
    assert Heads.of(None, None, {}) is None


def test_an_integer_with_too_many_digits_to_show_is_refused_by_its_size() -> None:
    with pytest.raises(InvalidArgument, match=r"^key of 16610 bits is outside \[-9223"):
        Heads.of(None, 10**5_000, None)


@pytest.mark.parametrize("key", [b"", b"k", b"k" * 128, 0, -1, 2**63 - 1, -(2**63)])
def test_bytes_and_integers_are_keys(key: bytes | int) -> None:
    """Zero and the empty bytes, too."""
    for headers in (None, {}, {"a": "b"}):
        properties = encode_properties(Properties(key=key, headers=headers or {}))
        assert properties
        assert Heads.of(None, key, headers) == encode_head(None, properties)


def test_a_key_of_bytes_has_a_bound() -> None:
    with pytest.raises(MessageTooLarge, match=r"key b'k+… and 0 headers take 40004 bytes.*32768"):
        Heads.of(None, b"k" * 40_000, None)


def test_key_and_headers_have_a_bound_together() -> None:
    """No setting raises it, so the hint does not name the setting for the content."""
    with pytest.raises(MessageTooLarge) as caught:
        Heads.of(None, "k", {"a": "b" * limits.PROPERTIES_BYTES_MAX})
    error = pickle.loads(pickle.dumps(caught.value))
    assert re.fullmatch(
        r"key 'k' and 1 headers take 32\d{3} bytes, encoded; a message has at most 32768 bytes of "
        r"them \(status 10\)",
        str(error),
    )
    assert error.details["bound"] == limits.PROPERTIES_BYTES_MAX < error.details["size"]
    assert "max_message_bytes" not in error.hint
    assert "shorten the key or the headers" in error.hint
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


@pytest.mark.parametrize("key", [None, "k"])
def test_a_header_has_a_name(key: str | None) -> None:
    with pytest.raises(InvalidArgument, match="a header has an empty name"):
        Heads.of(None, key, {"a": "b", "": "c"})


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("a||b", r"tag 'a\|\|b' has '\|\|', which separates the tags of a filter"),
        ("||", "separates"),
        (" a", "tag ' a' begins or ends with white space"),
        ("a\n", "white space"),
        (" ", "white space"),
    ],
)
def test_a_tag_that_no_filter_could_name_is_refused(tag: str, text: str) -> None:
    for make in (Heads().of_tag, lambda each: Heads.of(each, "k", None)):
        with pytest.raises(InvalidArgument, match=text):
            make(tag)


@pytest.mark.parametrize("tag", ["a|b", "a b", "|", "a | b", '"', '""', 'a"b'])
def test_a_tag_that_is_taken_can_be_named_by_a_filter(tag: str) -> None:
    assert Heads().of_tag(tag) is not None
    assert Filter.parse(f"{tag} || other").tags == (tag, "other")


@pytest.mark.parametrize("tag", ["a,b", ",", "a && b", "*", "a*", ">", '"a"', "a > b"])
def test_a_tag_with_a_sign_of_other_systems_is_named_between_quotes(tag: str) -> None:
    assert Heads().of_tag(tag) is not None
    assert Filter.parse(f'"{tag}" || other').tags == (tag, "other")


def test_a_key_without_a_text_is_refused_by_its_type() -> None:
    for key in ([10**5000], ({"a": 10**5000},)):
        with pytest.raises(InvalidArgument, match=f"^key a {type(key).__name__} is"):
            Heads.of(None, key, None)  # type: ignore[arg-type]


def test_what_is_no_key_is_shown() -> None:
    with pytest.raises(InvalidArgument, match=r"key 'a\\udc80' is not text"):
        Heads.of(None, "a\udc80", {})
    with pytest.raises(InvalidArgument, match=r"the value of header 'a' is not text"):
        Heads.of(None, "k", {"a": "\udc80"})
    with pytest.raises(MessageTooLarge, match=r"key 'k+… and 1 headers"):
        Heads.of(None, "k" * 40_000, {"a": "b"})


def test_a_head_gets_more_flag_bits() -> None:
    assert with_flag(None, 0) is None
    assert with_flag(None, 0x20) == (0x20, b"")
    head = Heads().of_tag("red")
    assert head is not None
    assert with_flag(head, 0) is head
    assert with_flag(head, 0x20) == (0x21, head[1])
