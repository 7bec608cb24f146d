"""Which range of offsets of each partition a query reads, and how it is split into tasks.

Pure: what brokers say comes in as values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The messages of a partition that begin in ``[start, end)``; the ends may lie inside messages.

    Attributes:
        topic: Of the partition.
        partition: Its number.
        start, end: Offsets.
        topic_id: Tells the topic from a namesake that was deleted.
        has_passed: What lies before it is passed by, because it was stored too long ago.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    has_passed: bool = False

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self.end - self.start


#: A task that reads less costs more than it saves.
_SPLIT_BYTES_MIN: Final = 64 * 1024


def split(ranges: Iterable[Range], least: int | None) -> list[Range]:
    """Return ranges for tasks: at least ``least`` of them if they are long enough; sorted.

    Each range is cut into equal pieces, as many as its share of all bytes asks for. A cut may lie
    inside a message, which belongs to the piece where it begins.

    Example: 300 bytes and 100 bytes (and no least size) for 4 tasks give three pieces and one.
    """
    found = sorted(each for each in ranges if each.size > 0)
    if least is None or len(found) >= least:
        return found
    total = sum(each.size for each in found)
    pieces: list[Range] = []
    for each in found:
        count = -(-least * each.size // total)  # rounded up, so that the sum is enough
        count = max(1, min(count, each.size // _SPLIT_BYTES_MIN))
        cuts = [each.start + each.size * number // count for number in range(count + 1)]
        pieces += [replace(each, start=start, end=end) for start, end in pairwise(cuts)]
    return pieces


def narrowed(ranges: Iterable[Range], low: int, high: int) -> list[Range]:
    """Return the parts of ranges in ``[low, high)``; those that are empty are left out."""
    found = (replace(each, start=max(each.start, low), end=min(each.end, high)) for each in ranges)
    return [each for each in found if each.size > 0]


def shares(sizes: Mapping[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
    """Return how many bytes of each partition a micro-batch takes, about ``limit`` in all.

    Everybody gets the same at first; what small ones leave goes to the others. So no partition
    waits for a large one, and the sum is ``limit`` while there is enough.

    Example: sizes 10, 100 and 100 with the limit 110 give 10, 50 and 50.
    """
    left, given = limit, {}
    waiting: Sequence[tuple[str, int]] = sorted(sizes, key=lambda each: (sizes[each], each))
    for number, partition in enumerate(waiting):
        fair = left // (len(waiting) - number)
        # The last bytes are dealt one by one, so that a small limit brings every query further.
        given[partition] = min(sizes[partition], max(fair, 1 if left > 0 else 0))
        left -= given[partition]
    return given
