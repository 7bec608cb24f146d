"""Messages as fields and JSON: complete, and safe for any bytes."""

import json

import pytest

from vq.cli import text
from vq.model import Message


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


def test_birth_time_comes_from_the_id() -> None:
    assert text.as_fields(message(b""))["born_ms"] == 1_735_689_600_005
