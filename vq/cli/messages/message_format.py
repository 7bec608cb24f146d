"""``--format``: how a message is written, by a pattern such as ``{time} {key} {content}``."""

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vq.cli.base.text import safe, safe_content, utc
from vq.errors import InvalidArgument
from vq.model import Key, Message, time_ms_of
from vq.shown import shown

_FIELDS: Final[dict[str, Callable[[Message], str]]] = {
    "topic": lambda message: message.topic,
    "partition": lambda message: str(message.partition),
    "offset": lambda message: str(message.offset),
    "next_offset": lambda message: str(message.next_offset),
    "id": lambda message: str(message.id),
    "time": lambda message: utc(time_ms_of(message.id or 0)),
    "key": lambda message: key_text(message.key),
    "tag": lambda message: message.tag or "",
    "headers": lambda message: ",".join(f"{k}={v}" for k, v in (message.headers or {}).items()),
}
_CONTENT: Final = "content"
_HEADER: Final = "headers["
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}
#: What ``--format`` takes, for texts.
NAMES: Final = (*_FIELDS, "headers[NAME]", _CONTENT)


def key_text(key: Key | None) -> str:
    """Return a key as text; one of bytes is ``0x`` and hexadecimal digits, none is empty."""
    if isinstance(key, bytes):
        return "0x" + key.hex()
    return "" if key is None else str(key)


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A pattern, ready to be applied.

    Attributes:
        parts: Texts as they are, and functions of a message; None stands for its content.
    """

    parts: tuple[str | Callable[[Message], str] | None, ...]

    @classmethod
    def parse(cls, pattern: str) -> "MessageFormat":
        """Return the format that a pattern means; ``{{`` is a brace, ``\\t`` and ``\\n`` too work.

        Raises:
            InvalidArgument: It has an unknown name, or braces that do not match.
        """
        parts: list[str | Callable[[Message], str] | None] = []
        try:
            pieces = list(string.Formatter().parse(pattern))
        except ValueError as error:
            raise InvalidArgument(f"--format {shown(pattern)}: {error}") from error
        for literal, name, spec, conversion in pieces:
            parts.append(_unescaped(literal))
            if name is None:
                continue
            if spec or conversion or (part := _part_of(name)) is _unknown:
                raise InvalidArgument(
                    f"--format {shown(pattern)}: {{{name}}} is none of "
                    f"{', '.join(f'{{{each}}}' for each in NAMES)}"
                )
            parts.append(part)
        return cls(tuple(parts))

    def line(self, message: Message, *, terminal: bool) -> bytes:
        """Return a message as a line; its content is as it is, unless it goes to a terminal.

        All else is made safe: no key ends a line.
        """
        return b"".join(self._bytes(part, message, terminal) for part in self.parts) + b"\n"

    def _bytes(
        self, part: str | Callable[[Message], str] | None, message: Message, terminal: bool
    ) -> bytes:
        if part is None:
            return safe_content(message.content).encode() if terminal else message.content
        if isinstance(part, str):
            return part.encode()
        return safe(part(message)).encode()


def _unknown(_message: Message) -> str:
    raise AssertionError("never called")


def _part_of(name: str) -> Callable[[Message], str] | None:
    if name == _CONTENT:
        return None
    if name.startswith(_HEADER) and name.endswith("]") and len(name) > len(_HEADER) + 1:
        header = name[len(_HEADER) : -1]

        def value(message: Message) -> str:
            return (message.headers or {}).get(header, "")

        return value
    found: Callable[[Message], str] = _FIELDS.get(name, _unknown)
    return found


def _unescaped(text: str) -> str:
    found, at = [], 0
    while at < len(text):
        pair = text[at : at + 2]
        if pair in _ESCAPES:
            found.append(_ESCAPES[pair])
            at += 2
        else:
            found.append(text[at])
            at += 1
    return "".join(found)
