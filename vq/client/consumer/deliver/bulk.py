"""Messages that are put in and taken many at a time, without a step of Python for each.

``content_bytes`` and ``stand_at`` exist twice: here in Python, the reference, and in
``_bulk.c``, which replaces them where a C compiler was found at installation. A test compares
them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat, starmap
from operator import is_, itemgetter
from typing import Any, Final, TypeAlias

from vq.model import Message

try:
    from vq.client.consumer.deliver import _bulk
except ImportError:  # nothing compiled it
    _bulk = None  # type: ignore[assignment]

#: Whether the compiled functions are in use.
COMPILED: Final = _bulk is not None
_CONTENT: Final = Message._fields.index("content")
_content_of: Final = itemgetter(_CONTENT)


def python_content_bytes(messages: list[Message]) -> int:
    """Return how many bytes the contents have together."""
    return sum(map(len, map(_content_of, messages)))


def python_stand_at(messages: list[Message], others: list[Message], start: int) -> bool:
    """Whether ``others`` has the same objects from ``start`` on."""
    here = others[start : start + len(messages)]
    return len(here) == len(messages) and all(map(is_, messages, here))


def _compiled_content_bytes(messages: list[Message]) -> int:
    return _bulk.content_bytes(messages, _CONTENT)


content_bytes = _compiled_content_bytes if COMPILED else python_content_bytes
stand_at = _bulk.stand_at if COMPILED else python_stand_at


class BulkQueue:
    """A queue of messages. Taking them costs a slice of a list, and a look at none of them.

    It keeps none that was taken. The places of these are empty until they are more than those that
    follow; then the list is cut, so that a message moves twice in the mean at most.
    """

    __slots__ = ("_at", "_messages")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._at = 0  # of the first one

    def __len__(self) -> int:
        return len(self._messages) - self._at

    def __iter__(self) -> Iterator[Message]:
        found: Any = iter(self._messages)
        found.__setstate__(self._at)  # no step for each empty place
        return found  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Message:
        """Return one of the messages; ``index`` is not negative."""
        message: Message = self._messages[self._at + index]
        return message

    def append(self, message: Message) -> None:
        """Put a message behind the others."""
        self._messages.append(message)

    def extend(self, messages: Iterable[Message]) -> None:
        """Put messages behind the others."""
        self._messages.extend(messages)

    def extendleft(self, messages: Iterable[Message]) -> None:
        """Put messages in front of the others, the last one first, as that of a deque does."""
        self._messages[: self._at] = list(messages)[::-1]
        self._at = 0

    def popleft(self) -> Message:
        """Take the first message; there is one."""
        messages, at = self._messages, self._at
        message: Message = messages[at]
        if 2 * at + 2 < len(messages):
            messages[at] = None
            self._at = at + 1
        else:
            self.drop(1)
        return message

    def take(self, count: int) -> list[Message]:
        """Take so many messages, or all, from the left."""
        messages, at = self._messages, self._at
        if not at and count >= len(messages):
            self._messages = []
            return messages
        found: list[Message] = messages[at : at + count]
        self.drop(len(found))
        return found

    def drop(self, count: int) -> None:
        """Take so many messages, which it has, from the left."""
        messages, at = self._messages, self._at
        end = at + count
        if 2 * end >= len(messages):
            del messages[:end]
            self._at = 0
        else:
            messages[at:end] = [None] * count
            self._at = end

    def clear(self) -> None:
        """Forget all messages."""
        self._messages.clear()
        self._at = 0

    def begins_with(self, messages: list[Message]) -> bool:
        """Whether its first messages are these very objects."""
        begins: bool = stand_at(messages, self._messages, self._at)
        return begins


AnyQueue: TypeAlias = BulkQueue | deque[Message]


def take_first(messages: AnyQueue, count: int) -> list[Message]:
    """Take so many messages, which it has, from the left."""
    if isinstance(messages, BulkQueue):
        return messages.take(count)
    if count == 1:  # of an orderly partition no other one is ready
        return [messages.popleft()]
    return list(starmap(messages.popleft, repeat((), count)))
