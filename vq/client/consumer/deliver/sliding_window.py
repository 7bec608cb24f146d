"""Messages of a partition that are handled in any order, and how far all of them are. Pure.

    finished ──▶│ the lowest unfinished one … finished and unfinished ones … │◀── the end
             place (what is committed)              at most so many, and so many bytes

What is redelivered after a crash is at most what lies in the window, and what left it since the
last commit. A result for a message that is not in it, such as one of an earlier lifetime of the
partition, changes nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from vq.client.consumer.deliver.progress import Progress
from vq.coordination.tree.values.consumers import BAD_RECORD_ID
from vq.model import Message


class SlidingWindow:
    """The window of one partition.

    Args:
        position: Where it begins.
        most: So many messages it has at most, from the lowest unfinished one on.
        most_bytes: Their contents together stay below this, but for the message that reaches it.

    Attributes:
        end: Behind the last message that was admitted, and what was passed since.
        finished_ever: How many messages were finished, up to the lowest unfinished one.
    """

    __slots__ = (
        "_bad",
        "_begin",
        "_bytes",
        "_finished",
        "_is_cut",
        "_messages",
        "_most",
        "_most_bytes",
        "end",
        "finished_ever",
    )

    def __init__(self, position: int, most: int, most_bytes: int) -> None:
        self.end = position
        self.finished_ever = 0
        self._most = most
        self._most_bytes = most_bytes
        self._begin = Progress(position)
        self._messages: deque[Message] = deque()  # from the lowest unfinished one on
        self._finished: set[int] = set()  # offsets of those of them that are finished
        self._bad: deque[int] = deque()  # offsets behind them that were passed over
        self._bytes = 0
        self._is_cut = False  # something was passed over behind the last message

    def __len__(self) -> int:
        """Return how many messages it has, finished ones behind an unfinished one included."""
        return len(self._messages)

    @property
    def has_room(self) -> bool:
        """Whether another message may be admitted."""
        return len(self._messages) < self._most and self._bytes < self._most_bytes

    @property
    def place(self) -> Progress:
        """Where the lowest unfinished message is; all before it are finished."""
        return self._begin

    def ahead(self) -> tuple[tuple[int, int], ...]:
        """Return the offset and the id of each finished message behind an unfinished one.

        First those of what was passed over there.
        """
        bad, finished = tuple((each, BAD_RECORD_ID) for each in self._bad), self._finished
        if not finished:
            return bad
        handled = ((each.offset, each.id) for each in self._messages if each.offset in finished)
        return (*bad, *handled)

    def admit(self, messages: Sequence[Message], start: int = 0) -> int:
        """Take messages from ``start`` on that follow its end; return behind the last one taken."""
        stop = min(len(messages), start + self._most - len(self._messages))
        size, most_bytes = self._bytes, self._most_bytes
        at = start
        while at < stop and size < most_bytes:
            size += len(messages[at].content)
            at += 1
        if at > start:
            self._is_cut = False
            self._messages.extend(islice(messages, start, at))
            self._bytes = size
            self.end = messages[at - 1].next_offset
        return at

    def pass_to(self, position: int) -> None:
        """Note that there are no more messages before ``position``, at or behind its end."""
        self.end = position
        if not self._messages:
            self._begin = Progress(position, self._begin.message_id)

    def pass_over(self, bad: int, position: int) -> None:
        """Note that from ``bad`` to ``position`` there is no message: see ``Window``."""
        self.end = position
        self._is_cut = True
        if self._messages:
            self._bad.append(bad)
        else:
            self._begin = Progress(position)

    def finish(self, offsets: Iterable[int]) -> None:
        """Note that the messages at these offsets are finished."""
        messages, finished = self._messages, self._finished
        lowest = messages[0].offset if messages else self.end
        for offset in offsets:
            if lowest <= offset < self.end:
                finished.add(offset)
        last = None
        while messages and messages[0].offset in finished:
            last = messages.popleft()
            finished.remove(last.offset)
            self._bytes -= len(last.content)
            self.finished_ever += 1
        if last is not None:
            is_end = not messages
            known = None if is_end and self._is_cut else last.id
            self._begin = Progress(self.end if is_end else last.next_offset, known)
            while self._bad and self._bad[0] < self._begin.position:
                self._bad.popleft()
        if not messages:
            finished.clear()  # of what begins no message
