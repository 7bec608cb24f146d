"""Makes the head of a record, which is before the payload: flag bits, tag, properties.

Tags, keys and headers are checked here and nowhere else.
"""

from collections.abc import Mapping

from vq import limits
from vq.errors import InvalidArgument, MessageTooLarge
from vq.model import TAG_SEPARATOR, Key
from vq.shown import shown
from vq.store.records.format import FLAG_PROPERTIES, FLAG_TAG
from vq.store.records.record import Properties, encode_key, encode_properties

#: The largest head that has only a tag.
TAG_HEAD_BYTES_MAX = 4 + limits.TAG_BYTES_MAX
_TAGS_REMEMBERED = 1_024
_KEY_MIN = -(2**63)
_KEY_MAX = 2**63 - 1
_SHOWN = 40  # characters of a value in an error
_SHOWN_BITS = 128

Head = tuple[int, bytes]
"""Flag bits, and the bytes before the payload."""


def encode_head(tag: bytes | None, properties: bytes | None) -> Head | None:
    """Return a record's head; None when it has neither tag nor properties."""
    flag = 0
    head = b""
    if tag is not None:
        flag = FLAG_TAG
        head = len(tag).to_bytes(4, "big") + tag
    if properties is not None:
        flag |= FLAG_PROPERTIES
        head += len(properties).to_bytes(4, "big") + properties
    return (flag, head) if flag else None


def with_flag(head: Head | None, flag: int) -> Head | None:
    """Return a head with more flag bits; the same head if there are none."""
    if not flag:
        return head
    return (flag, b"") if head is None else (head[0] | flag, head[1])


class Heads:
    """Makes heads for one producer. Any thread.

    Attributes:
        of_tags: Heads of tags that were already checked.
    """

    def __init__(self) -> None:
        self.of_tags: dict[str, Head] = {}

    def of_tag(self, tag: str) -> Head | None:
        """Return the head of a message that has only a tag, and remember it.

        Raises:
            InvalidArgument: The tag is unusable.
        """
        head = encode_head(_checked_tag(tag), None)
        if head is not None and type(tag) is str and len(self.of_tags) < _TAGS_REMEMBERED:
            self.of_tags[tag] = head
        return head

    def of_message(
        self, tag: str | None, key: Key | None, headers: Mapping[str, str] | None
    ) -> Head | None:
        """Return the head of any message; remember it if it has only a tag.

        Raises:
            InvalidArgument, MessageTooLarge: Tag, key or headers are unusable.
        """
        if key is not None or headers is not None:
            return self.of(tag, key, headers)
        if tag is None:
            return None
        known = self.of_tags.get(tag) if type(tag) is str else None
        return known or self.of_tag(tag)

    @staticmethod
    def of(tag: str | None, key: Key | None, headers: Mapping[str, str] | None) -> Head | None:
        """Return the head of any message.

        Raises:
            InvalidArgument, MessageTooLarge: Tag, key or headers are unusable.
        """
        if headers is not None or type(key) is not str:
            _check_types(key, headers)
            key = plain_key(key)
        headers = {} if headers is None else headers
        try:
            properties = None
            if key is not None and not headers:
                properties = encode_key(key)
            if properties is None:
                properties = encode_properties(Properties(key=key, headers=headers))
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"key {_shown(key)} is no text: {error}") from error
        except InvalidArgument as error:
            _check_unicode(headers)
            raise InvalidArgument(
                f"key {_shown(key)} and {len(headers)} headers: {error}"
            ) from error
        except MessageTooLarge as error:
            raise MessageTooLarge(
                f"key {_shown(key)} and {len(headers)} headers take {error.details['size']} bytes, "
                f"encoded; a message has at most {limits.PROPERTIES_BYTES_MAX} bytes of them",
                details=error.details,
                hint="shorten the key or the headers, or put their data into the content",
            ) from None
        return encode_head(None if tag is None else _checked_tag(tag), properties)


def plain_key(key: Key | None) -> Key | None:
    """Return a key as the text, bytes or integer that it holds.

    A subclass may override what ``encode``, ``len`` and ``%`` do. What is stored and where it goes
    does not depend on that.
    """
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):
        return bytes(memoryview(key))
    return None if key is None else int.__index__(key)


def _check_types(key: object, headers: object) -> None:
    if isinstance(key, bool) or not isinstance(key, str | bytes | int | None):
        raise InvalidArgument(
            f"key {_shown(key)} is {type(key).__name__}; give text, bytes or an integer"
        )
    if isinstance(key, int) and not _KEY_MIN <= int.__index__(key) <= _KEY_MAX:
        raise InvalidArgument(f"key {_shown(key)} is outside [{_KEY_MIN}, {_KEY_MAX}], 64 bits")
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers {_shown(headers)} is {type(headers).__name__}; give a mapping of text to text"
        )
    if "" in headers:
        raise InvalidArgument("a header has an empty name; give it a name, or leave it out")
    for name, value in headers.items():
        for what, part in (("name", name), ("value", value)):
            if not isinstance(part, str):
                raise InvalidArgument(
                    f"the {what} of header {_shown(name)} is {_shown(part)} "
                    f"({type(part).__name__}); give text"
                )


def _check_unicode(headers: Mapping[str, str]) -> None:
    """Refuse the first header that cannot be encoded; only called once encoding has failed."""
    for name, value in headers.items():
        for what, part in (("name", name), ("value", value)):
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(
                    f"the {what} of header {_shown(name)} is no text: {error}"
                ) from error


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:  # too many digits for repr
        return f"of {value.bit_length()} bits"
    return shown(value, _SHOWN)


def _checked_tag(tag: str) -> bytes:
    if not isinstance(tag, str):
        raise InvalidArgument(f"tag {_shown(tag)} is {type(tag).__name__}; give text")
    tag = str.__str__(tag)  # whatever a subclass overrides
    try:
        encoded = tag.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"tag {_shown(tag)} is no text: {error}") from error
    if not 1 <= len(encoded) <= limits.TAG_BYTES_MAX:
        raise InvalidArgument(
            f"tag {_shown(tag)} of {len(encoded)} bytes is outside [1, {limits.TAG_BYTES_MAX}]"
        )
    if TAG_SEPARATOR in tag:
        raise InvalidArgument(
            f"tag {_shown(tag)} has '{TAG_SEPARATOR}', which separates the tags of a filter: no "
            "consumer could name this tag; use another separator"
        )
    if tag.strip() != tag:
        raise InvalidArgument(
            f"tag {_shown(tag)} begins or ends with white space, which filters leave out: no "
            "consumer could name this tag; leave it out here, too"
        )
    return encoded
