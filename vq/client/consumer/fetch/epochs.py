"""In which epoch the batch before an offset was written, as far as the answers to reads told it.

Pure. An answer tells the epoch of the batch before its end. Epochs never fall along a log, so where
that of its begin is the same one, it holds for every offset between. The begin of a log has no
batch before it: there, that of the first batch counts.
"""

from collections import deque
from typing import Final, NamedTuple

from vq.errors import CorruptData
from vq.store.records.format import CONTROL_MARK, CONTROL_MARK_AT, decode_control

#: Ranges that are remembered; one begins where a master begins, or where something was read again.
RANGES_MAX: Final = 16


class _Range(NamedTuple):
    start: int
    end: int
    epoch: int


class Epochs:
    """The epochs of one partition as it is read; costs the same however much was read."""

    def __init__(self) -> None:
        self._ranges: deque[_Range] = deque(maxlen=RANGES_MAX)

    def note(self, begin: int, before: int, end: int, last: int, body: bytes = b"") -> None:
        """Note an answer.

        Args:
            begin: Its first offset.
            before: Epoch of the batch before that; 0: not known.
            end: The offset behind it.
            last: Epoch of the batch before that; 0: not known.
            body: All bytes between; b"": not all.
        """
        if not last:
            return
        if not before and (before := _first_epoch(body, begin)):
            begin += 1  # at the begin itself, it is not known
        start = begin if before == last else end
        if self._ranges:
            found = self._ranges[-1]
            if found.epoch == last and found.end == start:
                self._ranges[-1] = _Range(found.start, end, last)
                return
        self._ranges.append(_Range(start, end, last))

    def at(self, offset: int) -> int:
        """Return the epoch of the batch before ``offset``; 0: not known."""
        for each in reversed(self._ranges):
            if each.start <= offset <= each.end:
                return each.epoch
        return 0


def _first_epoch(body: bytes, begin: int) -> int:
    """Return the epoch of the batch that begins with these bytes; 0: none does."""
    if body[CONTROL_MARK_AT : CONTROL_MARK_AT + len(CONTROL_MARK)] != CONTROL_MARK:
        return 0
    try:
        header = decode_control(body)
    except CorruptData:
        return 0  # whoever decodes it has it read again
    return header.master_epoch if header is not None and header.start_offset == begin else 0
