"""A message as bytes for a pipe, as fields, or as JSON; the same in every command."""

import base64
import json
from typing import Any

from vq.client.ids import time_ms_of
from vq.model import Message


def as_fields(message: Message) -> dict[str, Any]:
    """Return everything a message has; content that is not UTF-8 is base64 under its own name."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "next_offset": message.next_offset,
        "id": message.id,
        "born_ms": time_ms_of(message.id),
        "tag": message.tag,
        "key": message.key,
        "headers": dict(message.headers or {}),
    }
    try:
        fields["content"] = message.content.decode()
    except UnicodeDecodeError:
        fields["content_base64"] = base64.b64encode(message.content).decode()
    return fields


def as_json_line(message: Message) -> bytes:
    """Return a message as one line of JSON."""
    return json.dumps(as_fields(message), ensure_ascii=False).encode() + b"\n"


def as_verbose_line(message: Message) -> bytes:
    """Return partition, offset, id, tag and key, tab-separated, before the content."""
    parts = (message.partition, message.offset, message.id, message.tag or "", message.key or "")
    return "\t".join(map(str, parts)).encode() + b"\t" + message.content + b"\n"


def as_line(message: Message) -> bytes:
    """Return the content and a newline."""
    return message.content + b"\n"
