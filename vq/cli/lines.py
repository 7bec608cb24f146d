"""Lines of input, and the messages that they mean: what ``vq produce`` reads.

Not in here: how messages are sent, and what becomes of them.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from vq import limits
from vq.client.producer.head import Heads
from vq.errors import InvalidArgument, MessageTooLarge
from vq.model import Key, Message
from vq.shown import shown

#: What ``--key-type`` takes.
KEY_TYPES = ("text", "int", "hex")
#: Content, key and separator of any message fit into this.
LINE_BYTES_MAX = 2 * limits.MESSAGE_BYTES_MAX
#: Python takes more than that for an integer, such as 1_000 and digits of other scripts. A key has
#: 64 bits; so many digits are enough to say so.
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,100}")
_HEX: Final = re.compile(rb"([0-9a-fA-F]{2})*")


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that no message can hold; only its size is kept."""

    size: int


def lines_of(file: BinaryIO) -> Iterator[bytes | LongLine]:
    """Yield the lines without their newline; a last line without one counts too.

    Input without newlines, such as /dev/zero, takes no more memory than the longest line.
    """
    while line := file.readline(LINE_BYTES_MAX + 1):
        size = len(line)
        if size <= LINE_BYTES_MAX or line.endswith(b"\n"):
            yield line.removesuffix(b"\n")
            continue
        while not line.endswith(b"\n") and (line := file.readline(LINE_BYTES_MAX)):
            size += len(line)
        yield LongLine(size - line.endswith(b"\n"))


def key_of(text: bytes, key_type: str) -> Key:
    """Return the key that a text means.

    Raises:
        InvalidArgument: It is no UTF-8, no integer, or no bytes as hexadecimal digits. Nothing is
            replaced or left out: two keys that differ must not become one.
    """
    if key_type == "text":
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"key {shown(text)} is not UTF-8; give --key-type hex and the key as hexadecimal "
                "digits, to have a key of bytes"
            ) from error
    if key_type == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if key_type == "hex" and _HEX.fullmatch(text):
        return bytes.fromhex(text.decode())
    wanted = "an integer" if key_type == "int" else "bytes as hexadecimal digits"
    raise InvalidArgument(f"key {shown(text.decode(errors='replace'))} is not {wanted}")


def headers_of(texts: Sequence[str]) -> Mapping[str, str] | None:
    """Return the headers that texts ``NAME=VALUE`` mean; None without any.

    Raises:
        InvalidArgument: A text has no name, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name:
            raise InvalidArgument(f"header {shown(text)} is not NAME=VALUE")
        if name in headers:
            raise InvalidArgument(f"header {shown(name)} is given twice; a name has one value")
        headers[name] = value
    return headers or None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """What a line means, and what all messages have.

    Attributes:
        topic: The topic of every message.
        tag: The tag of every message.
        key: The key of every message; not with ``separator``.
        separator: The text of a line before its first separator is the key; None: no keys in lines.
        key_type: What the keys of lines are; one of ``KEY_TYPES``.
        may_lack_key: A line without the separator is a message without a key.
        headers: The headers of every message.
    """

    topic: str
    tag: str | None = None
    key: Key | None = None
    separator: str | None = None
    key_type: str = "text"
    may_lack_key: bool = False
    headers: Mapping[str, str] | None = None

    def check(self) -> None:
        """Check what all messages have, before the first line is read.

        Raises:
            InvalidArgument, MessageTooLarge: Tag, key or headers are unusable.
        """
        Heads().of_message(self.tag, self.key, self.headers)

    def message(self, line: bytes) -> Message:
        """Return a line as a message.

        Raises:
            InvalidArgument: The line has no key, or one of another type.
        """
        if self.separator is None:
            return Message(self.topic, line, tag=self.tag, key=self.key, headers=self.headers)
        # the bytes that were typed, also if they are no UTF-8
        before, found, after = line.partition(os.fsencode(self.separator))
        if found:
            key = key_of(before, self.key_type)
            return Message(self.topic, after, tag=self.tag, key=key, headers=self.headers)
        if self.may_lack_key:
            return Message(self.topic, line, tag=self.tag, headers=self.headers)
        raise InvalidArgument(
            f"no {shown(self.separator)} in this line, so it has no key: write KEY"
            f"{self.separator}MESSAGE, or give --allow-no-key to send such lines without a key"
        )


def too_long(line: LongLine) -> MessageTooLarge:
    """Return the error for a line that is longer than any message."""
    return MessageTooLarge(
        f"line of {line.size} bytes; no message has more than {limits.MESSAGE_BYTES_MAX}"
    )
