"""What the bytes of a message say: JSON, protobuf, Hessian, text, or hex. Decisions."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vq.errors import ProtocolError
from vq.hessian import plain

if TYPE_CHECKING:
    from vq.decoding.descriptors import MessageType

#: Bytes of a message that are shown; the rest is for a download.
SHOWN_BYTES_MAX: Final = 64 * 1024
#: Characters of the text of one in lines. Each line of what lies deep begins with many spaces.
_LINES_CHARS_MAX: Final = 4 * SHOWN_BYTES_MAX
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
    data: bytes,
    wanted: Format = Format.AUTO,
    message_type: "MessageType | None" = None,
    *,
    lines: bool = True,
) -> Decoded:
    """Return bytes as text; what cannot be read as it is asked for is shown as hex, with why.

    Args:
        data: The content of a message.
        wanted: How to read it.
        message_type: Its type, if it is protobuf.
        lines: Values are laid out in lines; False: in one.
    """
    indent = 2 if lines else None
    readers: Mapping[Format, Callable[[bytes], Decoded]] = {
        Format.JSON: partial(_json_or_raise, indent=indent),
        Format.TEXT: _text_or_raise,
        Format.HESSIAN: partial(_hessian_or_raise, indent=indent),
        Format.PROTOBUF: partial(_protobuf_or_raise, message_type=message_type, indent=indent),
        Format.HEX: partial(_hex, indent=indent),
    }
    tried = [wanted]
    if wanted is Format.AUTO:
        tried = [Format.PROTOBUF] * (message_type is not None)
        # a lone number or word reads better as text
        tried += [Format.JSON] * (data[:1].strip() in (b"{", b"[", b""))
        tried += [Format.TEXT, Format.HESSIAN, Format.HEX]
    problem = ""
    for each in tried:
        try:
            return readers[each](data)
        except (ValueError, RecursionError, ProtocolError) as error:
            problem = str(error) or type(error).__name__
    return replace(_hex(data, indent), problem=problem)


def _laid_out(value: Any, indent: int | None) -> str:
    """Return a value as JSON: in lines if they are not too long together, else in one."""
    if indent is not None:
        lines, left = [], _LINES_CHARS_MAX
        for part in json.JSONEncoder(indent=indent, ensure_ascii=False).iterencode(value):
            lines.append(part)
            left -= len(part)
            if left < 0:
                break
        else:
            return "".join(lines)
    return json.dumps(value, ensure_ascii=False)


def _json_or_raise(data: bytes, indent: int | None) -> Decoded:
    if len(data) > SHOWN_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes are too many to lay out; read them as text")
    return Decoded(Format.JSON, _laid_out(json.loads(data), indent))


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


def _protobuf_or_raise(
    data: bytes, message_type: "MessageType | None", indent: int | None
) -> Decoded:
    if message_type is None:
        raise ValueError("the type of the messages of this topic is not known")
    if len(data) > SHOWN_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes are too many to lay out; at most {SHOWN_BYTES_MAX}")
    value, cut = message_type.read(data)
    return Decoded(Format.PROTOBUF, _laid_out(value, indent), cut)


def _hessian_or_raise(data: bytes, indent: int | None) -> Decoded:
    value = plain.decode(data, bytes_max=SHOWN_BYTES_MAX)
    return Decoded(Format.HESSIAN, _laid_out(_jsonable(value), indent))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _hex(data: bytes, indent: int | None) -> Decoded:
    if indent is None:
        return Decoded(Format.HEX, data[:_HEX_BYTES_MAX].hex(), len(data) > _HEX_BYTES_MAX)
    lines = []
    for begin in range(0, min(len(data), _HEX_BYTES_MAX), _HEX_COLUMNS):
        part = data[begin : begin + _HEX_COLUMNS]
        printable = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{begin:06x}  {part.hex(' '):<{_HEX_COLUMNS * 3 - 1}}  {printable}")
    return Decoded(Format.HEX, "\n".join(lines), len(data) > _HEX_BYTES_MAX)
