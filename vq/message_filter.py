"""Which messages of a topic a reader wants: one value, from its text to the match.

Pure. Now a filter is a choice of tags, and only this module knows how that is written.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Self

from vq import limits
from vq.errors import InvalidArgument, InvalidRequest
from vq.shown import shown

__all__ = ["ALL", "TAG_SEPARATOR", "Filter"]

#: Separates the tags of a filter, as in ``a || b``; no tag has it.
TAG_SEPARATOR: Final = "||"
_ALL_TAGS: Final = "*"
#: What other systems separate tags by, or match them with.
_NO_PATTERNS: Final = (",", "&&", "*", ">")
_HOW: Final = "give tags as in 'a || b', or '*' alone for all messages"


@dataclass(frozen=True, slots=True)
class Filter:
    """Messages with one of some tags; without tags all messages, and the filter is false.

    Filters are equal if the same messages pass, in whatever order their tags are given.

    Attributes:
        tags: As in requests.
        encoded: The same in UTF-8, as in records.
    """

    tags: tuple[str, ...] = field(default=(), compare=False)
    encoded: frozenset[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoded", frozenset(tag.encode() for tag in self.tags))

    @classmethod
    def parse(cls, text: str | None, what: str = "message_filter") -> Self:
        """Return the filter that a text such as ``a || b`` is; all messages pass ``*`` and None.

        There are no patterns. So a text with a sign that other systems take for one is refused: it
        would let no message pass. A tag that has such a sign stands between double quotes.

        Raises:
            InvalidArgument: It names no tag, too many, or one that no message can have.
        """
        if text is None:
            return cls()
        given: object = text
        if not isinstance(given, str):
            raise InvalidArgument(f"{what} = {shown(given)} is {type(given).__name__}; give text")
        tags = _parts(text)
        if tags == (_ALL_TAGS,):
            return cls()
        if not tags:
            raise InvalidArgument(f"{what} {shown(text)} names no tag; {_HOW}")
        if len(tags) > limits.FILTER_TAGS_MAX:
            raise InvalidArgument(
                f"{what} names {len(tags)} tags; at most {limits.FILTER_TAGS_MAX} are taken"
            )
        return cls(tuple(dict.fromkeys(_tag_of(tag, what) for tag in tags)))

    @classmethod
    def of_request(cls, tags: Collection[str]) -> Self:
        """Return the filter of a request, which has ``tags``.

        Raises:
            InvalidRequest: It has too many, or one that no message can have.
        """
        if len(tags) > limits.FILTER_TAGS_MAX:
            raise InvalidRequest(
                f"{len(tags)} tags in one filter; at most {limits.FILTER_TAGS_MAX} are taken"
            )
        found = cls(tuple(tags))
        if any(not 0 < len(tag) <= limits.TAG_BYTES_MAX for tag in found.encoded):
            raise InvalidRequest(f"a tag has 1 to {limits.TAG_BYTES_MAX} bytes")
        return found

    @classmethod
    def of_stored(cls, text: str) -> Self:
        """Return the filter that ``stored`` is of."""
        return cls(_parts(text))

    @property
    def stored(self) -> str:
        """The text in ZooKeeper: tags as they are; empty for all messages.

        Without spaces, unless a tag begins or ends with half of the separator.
        """
        half = TAG_SEPARATOR[0]
        is_clear = not any(tag.startswith(half) or tag.endswith(half) for tag in self.tags)
        return (TAG_SEPARATOR if is_clear else f" {TAG_SEPARATOR} ").join(self.tags)

    @property
    def text(self) -> str:
        """The text for people, which ``parse`` takes; empty for all messages."""
        return f" {TAG_SEPARATOR} ".join(map(_quoted, self.tags))

    def __bool__(self) -> bool:
        """Whether it leaves messages out."""
        return bool(self.encoded)

    def takes(self, tag: bytes | None) -> bool:
        """Whether a message with this tag, or without one, passes."""
        return not self.encoded or tag in self.encoded


ALL: Final = Filter()


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(TAG_SEPARATOR) if part.strip())


def _pattern_in(tag: str) -> str | None:
    return next((each for each in _NO_PATTERNS if each in tag), None)


def _is_quoted(text: str) -> bool:
    return len(text) > 2 and text[0] == text[-1] == '"'


def _quoted(tag: str) -> str:
    return f'"{tag}"' if _pattern_in(tag) or _is_quoted(tag) else tag


def _tag_of(text: str, what: str) -> str:
    tag = text
    if _is_quoted(text):
        tag = text[1:-1]
    else:
        sign = _pattern_in(text)
        if sign is not None:
            raise InvalidArgument(
                f"tag {shown(text)} of {what} has {sign!r}, which no filter understands: "
                f'{_HOW}; a tag with that sign is named as "{text}", with the double quotes'
            )
    if tag.strip() != tag:
        raise InvalidArgument(
            f"tag {shown(tag)} of {what} begins or ends with white space, which no message's tag "
            "does: leave it out"
        )
    try:
        size = len(tag.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"tag {shown(tag)} of {what} is not text: {error}") from error
    if size > limits.TAG_BYTES_MAX:
        raise InvalidArgument(
            f"tag {shown(tag)} of {what} has {size} bytes; no tag has more than "
            f"{limits.TAG_BYTES_MAX}"
        )
    return tag
