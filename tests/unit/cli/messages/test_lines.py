"""Lines become messages; one that does not is refused with the reason."""

import io
import json
import random
from typing import Any

import pytest

from vq.cli.base.text import as_json_line
from vq.cli.messages.lines import (
    JSON_LINE_BYTES_MAX,
    LINE_BYTES_MAX,
    CutLine,
    JsonFormat,
    LineFormat,
    LongLine,
    headers_of,
    lines_of,
)
from vq.errors import InvalidArgument, MessageTooLarge
from vq.model import Key, Message


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo\r\n", [b"one", b"", b"two\r"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_a_line_is_what_stands_before_a_newline(data: bytes, lines: list[bytes]) -> None:
    assert list(lines_of(io.BytesIO(data))) == lines


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext", b"\nnext\n"])
@pytest.mark.parametrize("more", [0, 1, 2, LINE_BYTES_MAX, 3 * LINE_BYTES_MAX])
def test_a_line_that_no_message_holds_is_counted_and_not_kept(end: bytes, more: int) -> None:
    """/dev/zero has no newline: reading it as one line took all the memory there was."""
    size = LINE_BYTES_MAX + more
    first, *others = lines_of(io.BytesIO(b"x" * size + end))
    assert first == (LongLine(size) if more else b"x" * size)
    assert others == ([b"next"] if b"next" in end else [])


@pytest.mark.parametrize(
    ("line", "separator", "content", "key"),
    [
        (b"k:v:w", None, b"k:v:w", None),
        (b"k:v:w", ":", b"v:w", "k"),
        (b":v", ":", b"v", ""),
        (b"k\xffv", "\udcff", b"v", "k"),  # how an argument arrives that is not UTF-8
    ],
)
def test_the_key_is_the_text_before_the_first_separator(
    line: bytes, separator: str | None, content: bytes, key: str | None
) -> None:
    made = LineFormat(topic="t", tag="x", separator=separator).message(line)
    assert made == Message("t", content, tag="x", key=key)


@pytest.mark.parametrize(
    ("line", "key_type", "key"),
    [
        (b"1001:x", "text", "1001"),
        (b"1001:x", "int", 1001),
        (b"-7:x", "int", -7),
        (b"00fF:x", "hex", b"\x00\xff"),
        (b":x", "hex", b""),
    ],
)
def test_the_type_of_a_key_is_chosen(line: bytes, key_type: str, key: Key) -> None:
    made = LineFormat(topic="t", separator=":", key_type=key_type).message(line)
    assert (made.key, type(made.key)) == (key, type(key))


@pytest.mark.parametrize(
    ("line", "key_type", "wanted"),
    [
        (b"x:", "int", "key 'x' is not an integer"),
        (b":", "int", "key '' is not an integer"),
        (b"\xff:", "int", "is not an integer"),
        (b"1_000:", "int", "key '1_000' is not an integer"),
        ("\N{ARABIC-INDIC DIGIT ONE}:".encode(), "int", "is not an integer"),
        (b"9" * 101 + b":", "int", "is not an integer"),
        (b"f:", "hex", "key 'f' is not bytes as hexadecimal digits"),
        (b"f f:", "hex", "key 'f f' is not bytes as hexadecimal digits"),
        (b"\xff:", "text", "key b'.xff' is not UTF-8; give --key-type hex"),
    ],
)
def test_a_key_of_another_type_is_refused(line: bytes, key_type: str, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=wanted):
        LineFormat(topic="t", separator=":", key_type=key_type).message(line)


def test_headers_are_names_and_values() -> None:
    assert headers_of(()) is None
    assert headers_of(("a=1", "b=x=y", "c=")) == {"a": "1", "b": "x=y", "c": ""}
    made = LineFormat(topic="t", separator=":", headers={"a": "1"}).message(b"k:v")
    assert made == Message("t", b"v", key="k", headers={"a": "1"})


@pytest.mark.parametrize(
    ("texts", "error"),
    [(("a",), "'a' is not NAME=VALUE"), (("=1",), "not NAME=VALUE"), (("a=1", "a=2"), "twice")],
)
def test_a_header_needs_a_name_of_its_own(texts: tuple[str, ...], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        headers_of(texts)


def test_a_line_without_the_separator_is_refused_unless_that_is_allowed() -> None:
    """A message without a key goes to any partition: the order by key would be lost in silence."""
    form = LineFormat(topic="t", separator="::")
    with pytest.raises(
        InvalidArgument, match=r"no '::' in this line.*KEY::MESSAGE.*--allow-no-key"
    ):
        form.message(b"no:key")
    allowed = LineFormat(topic="t", separator="::", may_lack_key=True)
    assert allowed.message(b"no:key") == Message("t", b"no:key")
    assert allowed.message(b"a::key") == Message("t", b"key", key="a")


@pytest.mark.parametrize(
    ("form", "error"),
    [
        (LineFormat(topic="t", tag="a||b"), r"tag 'a\|\|b' has '\|\|'.*use another separator"),
        (LineFormat(topic="t", tag=" a"), "tag ' a' begins or ends with white space"),
        (LineFormat(topic="t", tag=""), "tag '' of 0 bytes"),
        (LineFormat(topic="t", tag="\udcff"), "is not text"),
        (LineFormat(topic="t", key=2**63), "is outside"),
        (LineFormat(topic="t", headers={"a": "\udcff"}), "surrogates not allowed"),
    ],
)
def test_what_all_messages_have_is_checked_before_the_first_one(
    form: LineFormat, error: str
) -> None:
    with pytest.raises(InvalidArgument, match=error):
        form.check()


def test_headers_that_fit_into_no_message_are_refused_before_the_first_one() -> None:
    with pytest.raises(MessageTooLarge):
        LineFormat(topic="t", headers={"a": "x" * 40_000}).check()


JSON = JsonFormat(topic="to")
KEYS: list[Key | None] = [
    None,
    0,
    -1,
    2**53,
    -(2**63),
    2**63 - 1,
    "k",
    "1",
    "a\tb\u2028",
    b"",
    b"\xff",
]


def _same(message: Message) -> Message:
    (line,) = JSON.lines(io.BytesIO(as_json_line(message)))
    assert isinstance(line, bytes)
    return JSON.message(line)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("content", [b"", b"a\r\nb\n", b"\xff\x00\n", "é\x1b\x85\ufeff".encode()])
def test_what_consume_prints_as_json_means_the_same_message(
    key: Key | None, content: bytes
) -> None:
    """Its place and its id are those of another topic."""
    said = {"tag": "é", "headers": {"a\n": "", "b": "\u202e"}}
    where = {"partition": 3, "offset": 88, "next_offset": 120, "id": 2**62}
    made = _same(Message("from", content, key=key, **said, **where))  # type: ignore[arg-type]
    assert made == Message("to", content, key=key, **said)  # type: ignore[arg-type]
    assert type(made.key) is type(key)
    assert _same(Message("from", content)) == Message("to", content)


def test_the_largest_message_fits_into_a_line_of_json() -> None:
    for each in (b"\x01", b"\xff"):
        message = Message("to", each * (LINE_BYTES_MAX // 2), headers={"a": "\x01" * 32_000})
        assert len(as_json_line(message)) <= JSON_LINE_BYTES_MAX
        assert _same(message) == message


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "has no content: give one of content, a text, and content_base64; --input json takes"),
        ({"content": "a", "content_base64": "YQ=="}, "has no content"),
        ({"content": 1}, "has no content"),
        ({"content": "\ud800"}, "content of this line is not text"),
        ({"content_base64": "a"}, "content_base64 of this line is not base64"),
        ({"content": "a", "tag": 1}, "tag = 1 of this line is not text"),
        ({"content": "a", "headers": {"a": 1}}, "is not an object of texts"),
        ({"content": "a", "headers": []}, "is not an object of texts"),
        ({"content": "a", "key": 1.5}, "key = 1.5, .* are not a key"),
        ({"content": "a", "key": True}, "are not a key"),
        ({"content": "a", "key": "a", "key_type": "int"}, "key 'a' is not an integer"),
        ({"content": "a", "key": 1, "key_type": "text"}, "are not a key"),
        ({"content": "a", "key": "a", "key_type": "bytes"}, "are not a key"),
        ({"content": "a", "key": "a", "key_hex": "00"}, "are not a key"),
        ({"content": "a", "key_hex": "0"}, "key '0' is not bytes as hexadecimal digits"),
        ({"content": "a", "key_type": "int"}, "are not a key"),
        ({"content": "a", "kye": "a"}, "field 'kye' of this line is unknown; what is sent is in"),
    ],
)
def test_json_that_means_no_message_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        JSON.message(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "line", [b"", b"x", b"[]", b'"a"', b"\xff", b"{" * 9, b"[" * 100_000, b"9" * 5_000]
)
def test_a_line_that_is_no_object_of_json_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"this line is (not JSON|JSON, but not an object)"):
        JSON.message(line)


def test_an_input_that_ends_within_a_message_is_told_from_a_whole_one() -> None:
    """At any byte: a message is whole, or refused; its newline may be missing."""
    rng = random.Random(7)
    messages = [Message("to", rng.randbytes(9), key=rng.randbytes(2)) for _ in range(3)]
    lines = [as_json_line(each) for each in messages]
    data = b"".join(lines)
    for end in range(len(data) + 1):
        whole, left = 0, end
        while whole < 3 and left >= len(lines[whole]) - 1:
            left -= len(lines[whole])
            whole += 1
        found = list(JSON.lines(io.BytesIO(data[:end])))
        assert [JSON.message(each) for each in found[:whole]] == messages[:whole]  # type: ignore[arg-type]
        assert len(found) == whole + (left > 0)
        if left > 0:
            assert isinstance(found[-1], CutLine)
            with pytest.raises(InvalidArgument, match=f"within this message, after {left} bytes"):
                JSON.message(found[-1])
