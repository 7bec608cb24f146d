"""What the bytes of a message say: JSON, protobuf, Hessian, text, or hex. Decisions."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from vq.decoding.descriptors import MessageType
from vq.errors import ProtocolError
from vq.hessian import plain

#: Bytes of a message that are shown; the rest is for a download.
SHOWN_BYTES_MAX: Final = 64 * 1024
_HEX_COLUMNS: Final = 16
#: Bytes of which hex shows the lines.
_HEX_BYTES_MAX: Final = 4 * 1024


class Format(StrEnum):
    """How bytes are read; ``AUTO``: the first that fits, protobuf only if there is a type."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HESSIAN = "hessian"
    PROTOBUF = "protobuf"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class Decoded:
    """Bytes as text for people.

    Attributes:
        format: How they were read.
        text: What they say.
        cut: Only the beginning is shown.
        problem: Why they are not what was asked for; then ``text`` is hex.
    """

    format: Format
    text: str
    cut: bool = False
    problem: str = ""


def decoded(
    data: bytes, wanted: Format = Format.AUTO, message_type: MessageType | None = None
) -> Decoded:
    """Return bytes as text; what cannot be read as it is asked for is shown as hex, with why.

    Args:
        data: The content of a message.
        wanted: How to read it.
        message_type: Its type, if it is protobuf.
    """
    if wanted is Format.AUTO:
        typed = None if message_type is None else _protobuf(data, message_type)
        return typed or _json(data) or _text(data) or _hessian(data) or _hex(data)
    readers: Mapping[Format, Callable[[bytes], Decoded]] = {
        Format.JSON: _json_or_raise,
        Format.TEXT: _text_or_raise,
        Format.HESSIAN: _hessian_or_raise,
        Format.PROTOBUF: partial(_protobuf_or_raise, message_type=message_type),
        Format.HEX: _hex,
    }
    try:
        return readers[wanted](data)
    except (ValueError, RecursionError, ProtocolError) as error:
        shown = _hex(data)
        return Decoded(Format.HEX, shown.text, shown.cut, str(error) or type(error).__name__)


def _json(data: bytes) -> Decoded | None:
    if data[:1].strip() not in (b"{", b"[", b""):  # a lone number or word reads better as text
        return None
    try:
        return _json_or_raise(data)
    except (ValueError, RecursionError):
        return None


def _json_or_raise(data: bytes) -> Decoded:
    if len(data) > SHOWN_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes are too many to lay out; read them as text")
    text = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    return Decoded(Format.JSON, text)


def _text(data: bytes) -> Decoded | None:
    try:
        return _text_or_raise(data)
    except ValueError:
        return None


def _text_or_raise(data: bytes) -> Decoded:
    cut = len(data) > SHOWN_BYTES_MAX
    part = data[:SHOWN_BYTES_MAX]
    if cut:  # not in the middle of a character
        while part and part[-1] & 0xC0 == 0x80:
            part = part[:-1]
        part = part[:-1] if part and part[-1] >= 0xC0 else part
    text = part.decode()
    if any(ord(each) < 32 and each not in "\t\n\r" for each in text):
        raise ValueError("there are control characters")
    return Decoded(Format.TEXT, text, cut)


def _protobuf(data: bytes, message_type: MessageType) -> Decoded | None:
    try:
        return _protobuf_or_raise(data, message_type)
    except (ValueError, RecursionError):
        return None


def _protobuf_or_raise(data: bytes, message_type: MessageType | None) -> Decoded:
    if message_type is None:
        raise ValueError("the type of the messages of this topic is not known")
    if len(data) > SHOWN_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes are too many to lay out; at most {SHOWN_BYTES_MAX}")
    value, cut = message_type.read(data)
    return Decoded(Format.PROTOBUF, json.dumps(value, indent=2, ensure_ascii=False), cut)


def _hessian(data: bytes) -> Decoded | None:
    try:
        return _hessian_or_raise(data)
    except (ProtocolError, ValueError, RecursionError):
        return None


def _hessian_or_raise(data: bytes) -> Decoded:
    value = plain.decode(data, bytes_max=SHOWN_BYTES_MAX)
    return Decoded(Format.HESSIAN, json.dumps(_jsonable(value), indent=2, ensure_ascii=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _hex(data: bytes) -> Decoded:
    lines = []
    for begin in range(0, min(len(data), _HEX_BYTES_MAX), _HEX_COLUMNS):
        part = data[begin : begin + _HEX_COLUMNS]
        printable = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{begin:06x}  {part.hex(' '):<{_HEX_COLUMNS * 3 - 1}}  {printable}")
    return Decoded(Format.HEX, "\n".join(lines), len(data) > _HEX_BYTES_MAX)
