"""Lines of input, and the messages that they mean: what ``vq produce`` reads.

Not in here: how messages are sent, and what becomes of them.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

from vq import limits
from vq.client.producer.intake.stages import Heads
from vq.errors import InvalidArgument, MessageTooLarge
from vq.model import Key, Message
from vq.shown import shown

#: What ``--key-type`` takes.
KEY_TYPES = ("text", "int", "hex")
#: Content, key and separator of any message fit into this.
LINE_BYTES_MAX = 2 * limits.MESSAGE_BYTES_MAX
#: A character of JSON takes up to six bytes for one of the message, as in ``\\u0001``.
JSON_LINE_BYTES_MAX = 6 * LINE_BYTES_MAX
#: Python takes more than that for an integer, such as 1_000 and digits of other scripts. A key has
#: 64 bits; so many digits are enough to say so.
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,100}")
_HEX: Final = re.compile(rb"([0-9a-fA-F]{2})*")


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that no message can hold; only its size is kept."""

    size: int


class CutLine(bytes):
    """What an input ends with instead of a whole line."""

    __slots__ = ()


def lines_of(
    file: BinaryIO, *, bytes_max: int = LINE_BYTES_MAX, tell_cut: bool = False
) -> Iterator[bytes | LongLine]:
    """Yield the lines without their newline; a last line without one counts too.

    Input without newlines, such as /dev/zero, takes no more memory than the longest line.

    Args:
        file: What is read.
        bytes_max: The longest line of interest.
        tell_cut: Yield such a last line as a ``CutLine``.
    """
    while line := file.readline(bytes_max + 1):
        size = len(line)
        if line.endswith(b"\n"):
            yield line.removesuffix(b"\n")
        elif size <= bytes_max:
            yield CutLine(line) if tell_cut else line
        else:
            while not line.endswith(b"\n") and (line := file.readline(bytes_max)):
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


class InputFormat(Protocol):
    """What an input means, line by line."""

    @property
    def may_have_keys(self) -> bool:
        """Whether a message may have a key."""
        ...

    @property
    def tells_keyless(self) -> bool:
        """Whether a message without a key is worth telling: others of this input have one."""
        ...

    def lines(self, file: BinaryIO) -> Iterable[bytes | LongLine]:
        """Yield what stands for one message each."""
        ...

    def message(self, line: bytes) -> Message:
        """Return a line as a message.

        Raises:
            InvalidArgument: It means none.
        """
        ...


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

    @property
    def may_have_keys(self) -> bool:
        """See ``InputFormat``."""
        return self.key is not None or self.separator is not None

    @property
    def tells_keyless(self) -> bool:
        """See ``InputFormat``."""
        return self.separator is not None

    def lines(self, file: BinaryIO) -> Iterator[bytes | LongLine]:
        """See ``InputFormat``."""
        return lines_of(file)

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


#: What a message of ``vq consume --json`` has beside what is sent again: where it was, and when.
_PLACE: Final = frozenset({"topic", "partition", "offset", "next_offset", "id", "sent_s"})
_SENT: Final = (
    "content",
    "content_base64",
    "key",
    "key_hex",
    "key_type",
    "tag",
    "headers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """Lines of JSON as ``vq consume --json`` and ``vq archive export`` write them.

    Content, key, tag and headers of the message are those of the line; its place and its id, which
    the line may tell, are not taken over. See ``text.as_fields``.

    Attributes:
        topic: The topic of every message.
    """

    topic: str

    @property
    def may_have_keys(self) -> bool:
        """See ``InputFormat``."""
        return True

    @property
    def tells_keyless(self) -> bool:
        """See ``InputFormat``."""
        return False

    def lines(self, file: BinaryIO) -> Iterator[bytes | LongLine]:
        """See ``InputFormat``."""
        return lines_of(file, bytes_max=JSON_LINE_BYTES_MAX, tell_cut=True)

    def message(self, line: bytes) -> Message:
        """See ``InputFormat``."""
        try:
            fields = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            if isinstance(line, CutLine):
                raise InvalidArgument(
                    f"the input ends within this message, after {len(line)} bytes of it: what "
                    "wrote it was stopped or failed, and more messages may be missing"
                ) from error
            raise InvalidArgument(f"this line is not JSON: {error}; {_WANTED}") from error
        if not isinstance(fields, dict):
            raise InvalidArgument(f"this line is JSON, but not an object; {_WANTED}")
        unknown = sorted(fields.keys() - _PLACE - {*_SENT})
        if unknown:
            raise InvalidArgument(
                f"field {shown(unknown[0])} of this line is unknown; what is sent is in "
                f"{', '.join(_SENT)}"
            )
        tag = fields.get("tag")
        if not isinstance(tag, str | None):
            raise InvalidArgument(f"tag = {shown(tag)} of this line is not text; {_WANTED}")
        content, key = _json_content(fields), _json_key(fields)
        return Message(self.topic, content, tag=tag, key=key, headers=_json_headers(fields))


_WANTED: Final = "--input json takes what `vq consume --json` prints"


def _json_content(fields: Mapping[str, Any]) -> bytes:
    content, encoded = fields.get("content"), fields.get("content_base64")
    if isinstance(content, str) and encoded is None:
        return _utf8(content, "content")
    if isinstance(encoded, str) and content is None:
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise InvalidArgument(f"content_base64 of this line is not base64: {error}") from error
    raise InvalidArgument(
        "this line has no content: give one of content, a text, and content_base64; " + _WANTED
    )


def _json_key(fields: Mapping[str, Any]) -> Key | None:
    key, digits = fields.get("key"), fields.get("key_hex")
    kind = fields.get("key_type")
    if digits is not None:
        if key is None and kind in {None, "bytes"} and isinstance(digits, str):
            return key_of(_utf8(digits, "key_hex"), "hex")
    elif key is None:
        if kind is None:
            return None
    elif type(key) is int:
        if kind in {None, "int"}:
            return key
    elif isinstance(key, str):
        if kind in {None, "text"}:
            return key
        if kind == "int":
            return key_of(_utf8(key, "key"), "int")
    raise InvalidArgument(
        f"key = {shown(key)}, key_hex = {shown(digits)} and key_type = {shown(kind)} of this line "
        "are not a key: a text has key_type text, an integer int, and key_hex has bytes"
    )


def _json_headers(fields: Mapping[str, Any]) -> Mapping[str, str] | None:
    headers = fields.get("headers")
    if headers is None:
        return None
    if isinstance(headers, dict) and all(isinstance(each, str) for each in headers.values()):
        return headers or None
    raise InvalidArgument(
        f"headers = {shown(headers)} of this line is not an object of texts; {_WANTED}"
    )


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field} of this line is not text: {error}") from error


def too_long(line: LongLine) -> MessageTooLarge:
    """Return the error for a line that is longer than any message."""
    return MessageTooLarge(
        f"line of {line.size} bytes; no message has more than {limits.MESSAGE_BYTES_MAX}"
    )
