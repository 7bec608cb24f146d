"""A message as bytes for a pipe, as fields, or as JSON; and text that is safe to show.

Texts of others (contents, keys, tags, headers, names) may hold control characters: a terminal would
obey them, and a newline or a tab forges lines and columns. So text for people goes through
``safe``, JSON through ``json_text``.
"""

import base64
import json
import logging
import textwrap
from datetime import UTC, datetime
from typing import Any, Final

from vq.model import Key, Message, time_ms_of

_NEWLINE: Final = 0x0A
#: Whole numbers up to here are exact in readers of JSON that have only 64-bit floats.
_EXACT_MAX: Final = 1 << 53


def _dangerous() -> list[int]:
    """Return the code points that act on a terminal or on the order in which text is shown."""
    controls = [*range(0x20), *range(0x7F, 0xA0)]  # C0, DEL and C1
    separators = [0x2028, 0x2029]  # lines and paragraphs, to some
    directions = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    surrogates = range(0xD800, 0xE000)  # not text: no stream takes them
    return [*controls, *separators, *directions, *surrogates]


def _escaped(code: int) -> str:
    names = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
    return names.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


_SAFE: Final = {code: _escaped(code) for code in _dangerous()}
_SAFE_LINES: Final = {code: text for code, text in _SAFE.items() if code != _NEWLINE}
_SAFE_JSON: Final = {code: f"\\u{code:04x}" for code in _dangerous() if code != _NEWLINE}


def safe(text: str) -> str:
    """Return text in which whatever acts on a terminal is shown instead: ``\\x1b``, ``\\n``."""
    return text.translate(_SAFE)


def safe_lines(text: str) -> str:
    """Return the same for a text of our own with several lines."""
    return text.translate(_SAFE_LINES)


def safe_content(content: bytes) -> str:
    """Return the content of a message as one line; bytes that are not UTF-8 as ``\\xff``."""
    return safe(content.decode(errors="backslashreplace"))


def json_text(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Return a JSON document; strings in it hold nothing that acts on a terminal."""
    return json.dumps(value, indent=indent, ensure_ascii=ascii_only).translate(_SAFE_JSON)


def in_seconds(milliseconds: int | None) -> float | None:
    """Return a time as JSON has it: seconds, of a moment since 1970 UTC; None stays None."""
    return None if milliseconds is None else milliseconds / 1000


def utc(milliseconds: int | None) -> str:
    """Return a moment for people."""
    if milliseconds is None:
        return "an unknown time"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # any number may be in the tree
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SafeFormatter(logging.Formatter):
    """Log lines for people, with control characters escaped.

    A record is one line. A traceback follows it indented, since the texts of its errors may come
    from others and have lines that look like a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback."""
        return safe_lines(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return safe(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """Return a traceback, indented."""
        return textwrap.indent(super().formatException(ei), "  ", lambda _: True)


def as_fields(message: Message) -> dict[str, Any]:
    """Return everything a message has.

    Content that is not UTF-8 is base64 under its own name. A key of bytes is hexadecimal under its
    own name. An id, and an integer key beyond 2**53, is text: most JSON readers would round it.
    ``key_type`` tells such a key from one of text.
    """
    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "next_offset": message.next_offset,
        "id": str(message.id),
        "sent_s": in_seconds(time_ms_of(message.id)),
        "tag": message.tag,
        **_key_field(message.key),
        "headers": dict(message.headers or {}),
    }
    try:
        fields["content"] = message.content.decode()
    except UnicodeDecodeError:
        fields["content_base64"] = base64.b64encode(message.content).decode()
    return fields


def as_record(message: Message) -> dict[str, Any]:
    """Return the same for people: times as UTC, and ``-`` for what the message does not have."""
    fields = as_fields(message)
    del fields["sent_s"]
    stored_ms = message.append_time_ms
    absent = ("tag", "key", "key_type")
    return {
        "stored": None if stored_ms is None else utc(stored_ms),
        "sent": utc(time_ms_of(message.id)),
        **{k: "-" if v is None and k in absent else v for k, v in fields.items()},
    }


def _key_field(key: Key | None) -> dict[str, Any]:
    if isinstance(key, bytes):
        return {"key_hex": key.hex(), "key_type": "bytes"}
    if isinstance(key, int):
        return {"key": key if abs(key) <= _EXACT_MAX else str(key), "key_type": "int"}
    return {"key": key, "key_type": None if key is None else "text"}


def as_json_line(message: Message) -> bytes:
    """Return a message as one line of JSON."""
    return json_text(as_fields(message)).encode() + b"\n"


def as_verbose_line(message: Message) -> bytes:
    """Return partition, offset, id, tag, key and content, tab-separated, all made safe.

    A key of bytes is ``0x`` and hexadecimal digits.
    """
    key = message.key
    shown = "0x" + key.hex() if isinstance(key, bytes) else "" if key is None else key
    parts = (message.partition, message.offset, message.id, message.tag or "", shown)
    columns = [*(safe(str(part)) for part in parts), safe_content(message.content)]
    return "\t".join(columns).encode() + b"\n"


def as_line(message: Message) -> bytes:
    """Return the content, byte for byte, and a newline: for a pipe."""
    return message.content + b"\n"


def as_terminal_line(message: Message) -> bytes:
    """Return the content as one line that is safe to show."""
    return safe_content(message.content).encode() + b"\n"
