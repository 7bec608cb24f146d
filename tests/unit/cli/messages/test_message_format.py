"""``vq consume --format``: a pattern with the fields of a message."""

import pytest

from vq.cli.messages.message_format import NAMES, MessageFormat
from vq.errors import InvalidArgument
from vq.model import Message

MESSAGE = Message("t", b"a\nb\xff", "red", "k\t1", {"h": "x\ny", "i": "2"}, 3, 88, 120, 5 << 23)


def line(pattern: str, *, terminal: bool = False) -> bytes:
    return MessageFormat.parse(pattern).line(MESSAGE, terminal=terminal)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{topic} {partition}:{offset}-{next_offset}", b"t 3:88-120\n"),
        ("{key}|{tag}", b"k\\t1|red\n"),
        ("{headers}", b"h=x\\ny,i=2\n"),
        ("{headers[i]},{headers[none]}", b"2,\n"),
        ("{time}", b"2025-01-01T00:00:00.005Z\n"),
        ("{id}\\t{{{tag}}}\\n\\\\", b"41943040\t{red}\n\\\n"),
        ("{content}", b"a\nb\xff\n"),
        ("", b"\n"),
    ],
)
def test_a_pattern_has_fields_and_texts(pattern: str, expected: bytes) -> None:
    """Only the content is as it is; no key and no header forges a line."""
    assert line(pattern) == expected


def test_a_terminal_gets_the_content_made_safe() -> None:
    assert line("{content}", terminal=True) == b"a\\nb\\xff\n"


@pytest.mark.parametrize(
    "pattern", ["{value}", "{key!r}", "{key:>5}", "{", "}", "{headers[]}", "{}"]
)
def test_a_pattern_that_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match="--format"):
        MessageFormat.parse(pattern)


@pytest.mark.parametrize("key", [None, b"\x00\xff", 7])
def test_all_names_work_for_all_keys(key: object) -> None:
    bare = Message("t", b"x", key=key, partition=0, offset=0, next_offset=1, id=0)  # type: ignore[arg-type]
    for name in NAMES:
        assert MessageFormat.parse(f"{{{name}}}").line(bare, terminal=False).endswith(b"\n")
