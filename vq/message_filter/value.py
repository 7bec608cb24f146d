"""Which messages of a topic a reader wants: one value, from what the user gives to the match.

Pure. Only this package knows how a filter is written: by users, in requests, and in the tree.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self, TypeAlias

from vq import limits
from vq.errors import FilterFailed, InvalidArgument, InvalidRequest
from vq.message_filter.conditions import Subject
from vq.message_filter.syntax import Expression, parse
from vq.model import Message
from vq.shown import shown, shown_raised

#: Separates the tags of a filter, as in ``a || b``; no tag has it.
TAG_SEPARATOR: Final = "||"
_ALL_TAGS: Final = "*"
#: What other systems separate tags by, or match them with.
_NO_PATTERNS: Final = (",", "&&", "*", ">")
_HOW: Final = "give tags as in 'a || b', or '*' alone for all messages"
#: Stored filters that are no tags begin with it: no list of tags does. An earlier vq takes them for
#: a tag that no member names, and so refuses to join such a group.
_NO_TAGS: Final = TAG_SEPARATOR
_CODE: Final = TAG_SEPARATOR + "@"
#: What the texts for people begin with that are no tags.
_WHERE: Final = "WHERE "
_CLASS: Final = "MessageFilter "


@dataclass(frozen=True, slots=True)
class Where:
    """A filter by an expression over the headers of messages, in RocketMQ's subset of SQL92.

    ``vq.Where("price > 10 AND region IN ('hz', 'sh') AND NOT (vip = TRUE)")``. A name is a header;
    ``TAGS`` and ``KEYS`` are the tag and the key. Brokers send only messages of which it is true,
    and the reader looks again. docs/reference/filters.md has the grammar and its meaning.

    Attributes:
        text: The expression.

    Raises:
        InvalidArgument: The text is no expression; the error names the place and what is expected.
    """

    text: str

    def __post_init__(self) -> None:
        given: object = self.text
        if not isinstance(given, str):
            raise InvalidArgument(
                f"the expression {shown(given)} is {type(given).__name__}; give text"
            )
        parse(self.text, "expression")


class MessageFilter(ABC):
    """A filter of the application: a class whose ``matches`` says which messages pass.

    It runs on the client only: brokers send all messages, and those that do not pass count as
    handled. So it saves no bytes, and the lag of the group counts what it leaves out. What
    ``matches`` raises stops the partition as damage does: it is tried again, and nothing is
    skipped.
    """

    @property
    def name(self) -> str:
        """What the members of a group must agree on: by default module and name of the class.

        Override it if instances differ in what they let pass, and put the difference into it.
        """
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @abstractmethod
    def matches(self, message: Message) -> bool:
        """Whether a message passes.

        A thread of the consumer calls it, or with ``vq.aio`` the loop, so it must not wait. After a
        failure or a change of owner it is called again for the same message.
        """


#: What users give: tags as text, an expression, a class; None: all messages.
Wanting: TypeAlias = str | Where | MessageFilter | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Messages with one of some tags, of an expression, or of a class; else all: it is false then.

    Filters are equal if the same messages pass, in whatever order their tags are given, and however
    an expression is spaced.

    Attributes:
        tags: As in requests.
        where: The expression, as in requests; "": none.
        code: The name of the application's filter; "": none.
        encoded: The tags in UTF-8, as in records.
        expression: What ``where`` means; None in a filter that was read from the tree.
        check: Raises ``FilterFailed``, or returns whether a message passes that a broker sent;
            None: all of them do.
    """

    tags: tuple[str, ...] = field(default=(), compare=False)
    where: str = ""
    code: str = ""
    encoded: frozenset[bytes] = field(init=False, repr=False)
    expression: Expression | None = field(default=None, compare=False, repr=False)
    check: Callable[[Message], bool] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoded", frozenset(tag.encode() for tag in self.tags))

    @classmethod
    def of(cls, given: Wanting, what: str = "message_filter") -> Self:
        """Return the filter that a user gives.

        Raises:
            InvalidArgument: It is of no such kind, or ``parse`` refuses it.
        """
        if isinstance(given, Where):
            return cls._of_expression(_asked(given.text))
        if isinstance(given, MessageFilter):
            return cls._of_code(given, what)
        other: object = given
        if isinstance(other, type) and issubclass(other, MessageFilter):
            raise InvalidArgument(f"{what} is the class {other.__name__}; give an instance of it")
        return cls.parse(given, what)

    @classmethod
    def _of_expression(cls, expression: Expression) -> Self:
        test = expression.test

        def check(message: Message) -> bool:
            return test(Subject(message.tag, message.key, message.headers or {})) is True

        return cls(where=expression.text, expression=expression, check=check)

    @classmethod
    def _of_code(cls, given: MessageFilter, what: str) -> Self:
        matches, name = given.matches, given.name
        if inspect.iscoroutinefunction(matches):
            raise InvalidArgument(
                f"matches of {what} {name} is a coroutine function; give a plain one"
            )
        if not isinstance(name, str) or not 0 < len(name) <= limits.NAME_CHARS_MAX:
            raise InvalidArgument(
                f"the name of {what} is {shown(name)}; give text of 1 to "
                f"{limits.NAME_CHARS_MAX} characters"
            )

        def check(message: Message) -> bool:
            try:
                return bool(matches(message))
            except Exception as error:
                raise FilterFailed(
                    f"filter {name} failed for the message at offset {message.offset} of "
                    f"{message.topic}-{message.partition}: {shown_raised(error)}",
                    details={"offset": message.offset},
                ) from error

        return cls(code=name, check=check)

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
            raise InvalidArgument(
                f"{what} = {shown(given)} is {type(given).__name__}; give text such as 'new || "
                "paid', a vq.Where, or an object of a class of vq.MessageFilter"
            )
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
    def of_text(cls, text: str) -> Self:
        """Return the filter that ``text`` is of, as people name one; "" and ``*``: all messages.

        What a class of the application lets pass is not known from its name.

        Raises:
            InvalidArgument: It is the text of none.
        """
        if text.startswith(_WHERE):
            return cls.of(Where(text.removeprefix(_WHERE)))
        if text.startswith(_CLASS):
            return cls(code=text.removeprefix(_CLASS))
        return cls.parse(text or None)

    @classmethod
    def of_request(cls, tags: Collection[str], where: str = "") -> Self:
        """Return the filter of a request, which has ``tags``, or an expression.

        Raises:
            InvalidRequest: It has too many tags, one that no message can have, or both, or the
                expression is none.
        """
        if where:
            if tags:
                raise InvalidRequest("a request has tags or an expression, not both")
            try:
                return cls._of_expression(_asked(where))
            except InvalidArgument as error:
                raise InvalidRequest(str(error)) from error
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
        """Return the filter that ``stored`` is of, to be compared and shown.

        An expression is not parsed: a later vq may have written it.
        """
        if text.startswith(_CODE):
            return cls(code=text.removeprefix(_CODE))
        if text.startswith(_NO_TAGS):
            return cls(where=text.removeprefix(_NO_TAGS))
        return cls(_parts(text))

    @property
    def stored(self) -> str:
        """The text in ZooKeeper: tags as they are, or what is none; empty for all messages.

        Tags are without spaces, unless one begins or ends with half of the separator.
        """
        if self.where:
            return _NO_TAGS + self.where
        if self.code:
            return _CODE + self.code
        half = TAG_SEPARATOR[0]
        is_clear = not any(tag.startswith(half) or tag.endswith(half) for tag in self.tags)
        return (TAG_SEPARATOR if is_clear else f" {TAG_SEPARATOR} ").join(self.tags)

    @property
    def text(self) -> str:
        """The text for people, which ``of_text`` takes; empty for all messages."""
        if self.where:
            return _WHERE + self.where
        if self.code:
            return _CLASS + self.code
        return f" {TAG_SEPARATOR} ".join(map(_quoted, self.tags))

    @property
    def state_bytes(self) -> int:
        """What it counts for in the memory of a broker."""
        terms = 0 if self.expression is None else self.expression.terms
        return terms * limits.FETCH_STATE_TERM_BYTES + sum(
            limits.FETCH_STATE_TAG_BYTES + len(tag) for tag in self.encoded
        )

    @property
    def cost(self) -> int:
        """How many times as long as by tags a record takes at most, about."""
        return 1 if self.expression is None else 1 + self.expression.terms // 4

    def __bool__(self) -> bool:
        """Whether it leaves messages out."""
        return bool(self.encoded or self.where or self.code)


ALL: Final = Filter()


@lru_cache(maxsize=64)
def _asked(where: str) -> Expression:
    """Parse an expression once more: many requests in turn have the same one."""
    return parse(where, "expression")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(TAG_SEPARATOR) if part.strip())


def _pattern_in(tag: str) -> str | None:
    return next((each for each in _NO_PATTERNS if each in tag), None)


def _is_quoted(text: str) -> bool:
    return len(text) > 2 and text[0] == text[-1] == '"'


def _quoted(tag: str) -> str:
    is_other = _pattern_in(tag) or _is_quoted(tag) or tag.startswith((_WHERE, _CLASS))
    return f'"{tag}"' if is_other else tag


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
