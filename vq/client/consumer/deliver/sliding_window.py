"""Messages of a partition that are handled in any order, and how far all of them are. Pure.

    finished ──▶│ the lowest unfinished one … finished and unfinished ones … │◀── the end
             place (what is committed)              at most so many, and so many bytes

What is redelivered after a crash is what lies in the window, and what left it since the last
commit: together at most so many messages. A result for a message that is not in it, such as one of
an earlier lifetime of the partition, changes nothing.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, compress, islice, takewhile
from operator import itemgetter
from typing import Final

from vq.client.consumer.deliver.bulk import BulkQueue, content_bytes
from vq.client.consumer.deliver.progress import Progress
from vq.coordination.tree.values.consumers import BAD_RECORD_ID
from vq.model import Message

# What is done for each message is done by these, many at a time, without a step of Python for each.
_FIELDS: Final = Message._fields
_content_of: Final = itemgetter(_FIELDS.index("content"))
_offset_of: Final = itemgetter(_FIELDS.index("offset"))
_offset_and_id: Final = itemgetter(_FIELDS.index("offset"), _FIELDS.index("id"))


class SlidingWindow:
    """The window of one partition.

    Args:
        position: Where it begins.
        most: So many messages it has at most, from the lowest unfinished one on.
        owed: So many of them before ``position`` are not committed.
        most_bytes: Their contents together stay below this, but for the message that reaches it.

    Attributes:
        most_ever: So many messages may be admitted ever; it grows with what is committed.
        end: Behind the last message that was admitted, and what was passed since.
        finished_ever: How many messages were finished, up to the lowest unfinished one.
    """

    __slots__ = (
        "_admitted_ever",
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
        "most_ever",
    )

    def __init__(self, position: int, most: int, most_bytes: int, owed: int = 0) -> None:
        self.end = position
        self.most_ever = most - owed
        self.finished_ever = 0
        self._admitted_ever = 0
        self._most = most
        self._most_bytes = most_bytes
        self._begin = Progress(position)
        self._messages: Final = BulkQueue()  # from the lowest unfinished one on
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
        return self._room() > 0 and self._bytes < self._most_bytes

    @property
    def is_full(self) -> bool:
        """Whether no message may be admitted before another one is finished."""
        return len(self._messages) >= self._most or self._bytes >= self._most_bytes

    def _room(self) -> int:
        return self.most_ever - self._admitted_ever

    @property
    def place(self) -> Progress:
        """Where the lowest unfinished message is; all before it are finished."""
        return self._begin

    @property
    def passed_over(self) -> Sequence[int]:
        """The offsets of what was passed over behind an unfinished message."""
        return self._bad

    def ahead(self) -> tuple[tuple[int, int], ...]:
        """Return the offset and the id of each finished message behind an unfinished one.

        First those of what was passed over there.
        """
        bad = tuple((each, BAD_RECORD_ID) for each in self._bad)
        if not self._finished:
            return bad
        are_finished = map(self._finished.__contains__, map(_offset_of, self._messages))
        return (*bad, *compress(map(_offset_and_id, self._messages), are_finished))

    def place_with(
        self, messages: Sequence[Message]
    ) -> tuple[Progress, tuple[tuple[int, int], ...]]:
        """Return what ``place`` and ``ahead`` were if these messages were finished, too."""
        finished = self._finished.union(map(_offset_of, messages))
        rest = deque(self._messages)
        place = self._begin
        while rest and rest[0].offset in finished:
            last = rest.popleft()
            place = Progress(last.next_offset, last.id)
        if not rest and len(self._messages):
            place = Progress(self.end, None if self._is_cut else place.message_id)
        bad = ((each, BAD_RECORD_ID) for each in self._bad if each >= place.position)
        ahead = (_offset_and_id(each) for each in rest if each.offset in finished)
        return place, (*bad, *ahead)

    def admit(self, messages: list[Message], start: int = 0) -> int:
        """Take messages from ``start`` on that follow its end; return behind the last one taken."""
        room = self._room()
        if room <= 0 or self._bytes >= self._most_bytes:
            return start
        end = min(start + room, len(messages))
        taken = messages if not start and end == len(messages) else messages[start:end]
        if not taken:
            return start
        size = self._bytes + content_bytes(taken)
        if size - len(taken[-1].content) >= self._most_bytes:  # the last one may reach the bound
            sizes = list(accumulate(map(len, map(_content_of, taken)), initial=self._bytes))
            count = bisect_left(sizes, self._most_bytes)
            taken, size = taken[:count], sizes[count]
        self._is_cut = False
        self._messages.extend(taken)
        self._bytes = size
        self._admitted_ever += len(taken)
        self.end = taken[-1].next_offset
        return start + len(taken)

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

    def finish(self, messages: list[Message]) -> None:
        """Note that these messages are finished, or others of the same offsets."""
        window, finished = self._messages, self._finished
        if not finished and window.begins_with(messages):
            self._advance(messages)  # nearly always: in the order of the partition
            return
        if not messages:
            return
        offsets = list(map(_offset_of, messages))
        lowest, end = window[0].offset if window else self.end, self.end
        if min(offsets) < lowest or max(offsets) >= end:  # it does not have all of them
            offsets = [each for each in offsets if lowest <= each < end]
        finished.update(offsets)
        passed = list(takewhile(finished.__contains__, map(_offset_of, window)))
        finished.difference_update(passed)
        self._advance(list(islice(window, len(passed))))

    def _advance(self, passed: list[Message]) -> None:
        """These messages, which are the first ones, are finished."""
        if not passed:
            return
        messages = self._messages
        messages.drop(len(passed))
        self._bytes -= content_bytes(passed)
        self.finished_ever += len(passed)
        last = passed[-1]
        if messages:
            self._begin = Progress(last.next_offset, last.id)
        else:
            self._begin = Progress(self.end, None if self._is_cut else last.id)
            self._finished.clear()  # of what begins no message
        while self._bad and self._bad[0] < self._begin.position:
            self._bad.popleft()
