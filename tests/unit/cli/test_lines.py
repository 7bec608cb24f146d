"""Lines become messages; one that does not is refused with the reason."""

import io

import pytest

from vq.cli.lines import (
    LINE_BYTES_MAX,
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
        (LineFormat(topic="t", tag="\udcff"), "is no text"),
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
