"""Frames between the owner of a local queue and other processes of its machine.

    | 4 | length of the JSON |
    | 4 | length of the body |
    | . | JSON: a request (``do`` and arguments), an answer, or an error |
    | . | body: head and content of one message, or nothing |

Both ends are of one version of vq, or the hello is refused. Pure, but for reading a socket.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vq import errors, limits
from vq.errors import ProtocolError, VqError
from vq.local.items import LocalItem

SOCKET_NAME: Final = "@socket"
LOCAL_PROTOCOL: Final = 3
_LENGTHS: Final = struct.Struct(">II")
_JSON_BYTES_MAX: Final = 64 * limits.MIB
_BODY_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX + limits.RECORD_OVERHEAD_BYTES_MAX


class LocalFrame(NamedTuple):
    """A request or an answer."""

    values: dict[str, Any]
    body: bytes = b""


def write_frame(to: socket.socket, values: Mapping[str, Any], body: bytes = b"") -> None:
    """Send a frame.

    Raises:
        OSError: The other end is gone.
        ProtocolError: The other end would refuse it.
    """
    text = json.dumps(values).encode()
    _check_sizes(len(text), len(body))
    to.sendall(b"".join((_LENGTHS.pack(len(text), len(body)), text, body)))


def read_frame(of: socket.socket) -> LocalFrame | None:
    """Return the next frame; None: the other end has closed.

    Raises:
        ProtocolError: It is none.
        OSError: The connection is broken.
    """
    head = _exactly(of, _LENGTHS.size)
    if head is None:
        return None
    text_bytes, body_bytes = _LENGTHS.unpack(head)
    _check_sizes(text_bytes, body_bytes)
    text, body = _exactly(of, text_bytes), _exactly(of, body_bytes)
    if text is None or body is None:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"a frame is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ProtocolError(f"a frame has {type(values).__name__}, no object")
    return LocalFrame(values, body)


def _check_sizes(text_bytes: int, body_bytes: int) -> None:
    if text_bytes > _JSON_BYTES_MAX or body_bytes > _BODY_BYTES_MAX:
        raise ProtocolError(f"a frame of {text_bytes} and {body_bytes} bytes is too large")


def _exactly(of: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = of.recv(min(size, limits.MIB))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def written_item(item: LocalItem) -> tuple[dict[str, Any], bytes]:
    """Return what says an item to the other end: values, and a body."""
    flag, head = (0, b"") if item.head is None else item.head
    values = {
        "topic": item.topic,
        "id": item.id,
        "attempts": item.attempts,
        "priority": item.priority,
        "flag": flag,
        "head": len(head),
    }
    return values, head + item.content


def unpacked_item(values: Mapping[str, Any], body: bytes) -> LocalItem:
    """Return the item that the other end has said."""
    at = values["head"]
    head = (values["flag"], body[:at]) if values["flag"] else None
    item = LocalItem(body[at:], values["topic"], 0, values["priority"], head, values["attempts"])
    item.id = values["id"]
    return item


def error_of(error: BaseException) -> dict[str, Any]:
    """Return what says an error to the other end."""
    if isinstance(error, VqError):
        return {"error": type(error).__name__, "text": error.message, "hint": error.hint}
    return {"error": "InternalError", "text": f"{type(error).__name__}: {error}", "hint": ""}


def raised_by(values: Mapping[str, Any]) -> VqError:
    """Return the error that the other end has said."""
    kind = getattr(errors, values["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, VqError)):
        kind = VqError
    return kind(values["text"], hint=values["hint"])
