"""Messages as fields and JSON: complete, and safe for any bytes."""

import json
import logging
import sys

import pytest

from vq.cli.base import text
from vq.model import Key, Message


def message(content: bytes) -> Message:
    return Message("t", content, partition=3, offset=88, next_offset=120, id=5 << 23)


@pytest.mark.parametrize(
    ("content", "name", "value"),
    [
        (b"plain", "content", "plain"),
        ("zwölf\n".encode(), "content", "zwölf\n"),
        (b"\xff\x00", "content_base64", "/wA="),
    ],
)
def test_content_that_is_not_text_is_base64_under_its_own_name(
    content: bytes, name: str, value: str
) -> None:
    fields = text.as_fields(message(content))
    assert fields[name] == value
    assert len({"content", "content_base64"} & set(fields)) == 1


def test_json_is_one_line_whatever_the_content() -> None:
    line = text.as_json_line(message(b"a\nb\r\nc"))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line)["content"] == "a\nb\r\nc"


FORGED = Message(
    "t", b"a\nb\tc\x1b[2J\xff", tag="x\x9b", key="k\n9\t9\t9\t\tforged", partition=1, offset=2, id=0
)


def test_a_key_forges_no_line_and_no_column() -> None:
    line = text.as_verbose_line(FORGED)
    assert line == b"1\t2\t0\tx\\x9b\tk\\n9\\t9\\t9\\t\\tforged\ta\\nb\\tc\\x1b[2J\\xff\n"


@pytest.mark.parametrize(
    ("key", "field", "column"),
    [
        ("0", {"key": "0", "key_type": "text"}, b"0"),
        (0, {"key": 0, "key_type": "int"}, b"0"),
        (2**53, {"key": 2**53, "key_type": "int"}, b"9007199254740992"),
        (-(2**63), {"key": str(-(2**63)), "key_type": "int"}, b"-9223372036854775808"),
        (b"\x00\xff", {"key_hex": "00ff", "key_type": "bytes"}, b"0x00ff"),
        (b"", {"key_hex": "", "key_type": "bytes"}, b"0x"),
        (None, {"key": None, "key_type": None}, b""),
    ],
)
def test_json_tells_the_type_of_a_key(key: Key | None, field: dict, column: bytes) -> None:
    keyed = message(b"x")._replace(key=key)
    fields = json.loads(text.as_json_line(keyed))
    assert {name: value for name, value in fields.items() if name.startswith("key")} == field
    assert text.as_verbose_line(keyed).split(b"\t")[4] == column


def test_a_terminal_gets_one_harmless_line_and_a_pipe_gets_the_bytes() -> None:
    assert text.as_terminal_line(FORGED) == b"a\\nb\\tc\\x1b[2J\\xff\n"
    assert text.as_line(FORGED) == FORGED.content + b"\n"


def test_json_of_a_message_holds_nothing_that_acts_on_a_terminal() -> None:
    line = text.as_json_line(FORGED)
    assert not set(line[:-1]) & {*range(0x20), 0x7F}
    assert "\x9b" not in line.decode()
    fields = json.loads(line)
    assert (fields["key"], fields["tag"]) == (FORGED.key, FORGED.tag)


@pytest.mark.parametrize(
    "character", ["\x00", "\x1b", "\x7f", "\x85", "\x9f", "\u2028", "\u200f", "\u2067", "\u061c"]
)
def test_what_is_escaped_reads_as_its_code(character: str) -> None:
    assert text.safe(f"a{character}b") == f"a{character!r}b".replace("'", "")
    assert json.loads(text.json_text(character)) == character


@pytest.mark.parametrize("harmless", ["zwölf 十二 😀", "\xa0", "C:\\new", "naïve", "ש"])
def test_other_text_stays_as_it_is(harmless: str) -> None:
    assert text.safe(harmless) == text.safe_lines(harmless) == harmless


def test_log_lines_keep_their_tracebacks_and_nothing_else_that_breaks_lines() -> None:
    formatter = text.SafeFormatter("%(message)s")
    record = logging.LogRecord("x", logging.INFO, "", 0, "client=%s", ("\x1b[2J\r",), None)
    assert formatter.format(record) == "client=\\x1b[2J\\r"


def test_what_others_sent_forges_no_line_of_a_log() -> None:
    """Neither in a message nor in the error of a traceback."""
    formatter = text.SafeFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError("no\nINFO all well")
    except ValueError as error:
        record = logging.LogRecord("x", 40, "", 0, "error=%s", (error,), sys.exc_info())
    first, *traceback = formatter.format(record).split("\n")
    assert first == "ERROR error=no\\nINFO all well"
    assert "Traceback" in traceback[0]
    assert all(line.startswith("  ") for line in traceback)


def test_birth_time_comes_from_the_id() -> None:
    assert text.as_fields(message(b""))["sent_s"] == 1_735_689_600.005


def test_people_get_times_and_a_dash_for_what_a_message_does_not_have() -> None:
    """A message without a key has no type of a key, rather than one that nobody knows."""
    shown = text.as_record(message(b"a")._replace(append_time_ms=1_735_689_600_006))
    assert (shown["stored"], shown["sent"]) == (
        "2025-01-01T00:00:00.006Z",
        "2025-01-01T00:00:00.005Z",
    )
    assert (shown["tag"], shown["key"], shown["key_type"]) == ("-", "-", "-")
    assert "sent_s" not in shown
    keyed = text.as_record(message(b"a")._replace(key=b"\x01"))
    assert (keyed["stored"], keyed["key_hex"], keyed["key_type"]) == (None, "01", "bytes")
