"""When a disk will be full, from how its use has grown; without I/O.

The bytes in use are noted every ``SAMPLE_S`` for ``WINDOWS_S[-1]`` (bounded: 720 numbers). For each
window, the growth is the median of the slopes between any two notes in it (Theil and Sen): a file
that comes and goes, or one large deletion, does not move it. Deletions that go on, as those of
retention, are a part of it: a disk on which as much is deleted as is written does not fill up.

The growth that counts is the largest of the windows. After one large deletion the long windows say
"it shrinks" for hours, the short one soon says again how fast it fills.

Nothing is known before ``LEAST_S``. The notes are of this process and of this boot: a restart
begins anew, rather than to take the time at which nobody measured for one of no growth.

*Example*: 10 GB are free up to the mark at which messages are refused, and use grows by 2 GB an
hour over the last two hours, by 0.5 GB an hour over the last day. So the disk is full in 5 hours.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

SAMPLE_S: Final = 120.0
WINDOWS_S: Final = (2 * 3_600.0, 6 * 3_600.0, 24 * 3_600.0)
LEAST_S: Final = 1_200.0
#: Of the notes in a window, so many are compared with each other.
POINTS_MAX: Final = 48
#: A disk that is full later than this, ten years, does not fill up.
FULL_IN_S_MAX: Final = 10 * 366 * 24 * 3_600.0

Note = tuple[float, int]


class Growth:
    """How fast the bytes in use of one disk grow.

    Attributes:
        bytes_per_s: Negative: they become fewer. None: not known yet.
        notes: What was noted, as far back as is looked.
    """

    def __init__(self) -> None:
        self.notes: deque[Note] = deque()
        self.bytes_per_s: float | None = None

    def note(self, now_s: float, used_bytes: int) -> None:
        """Note the bytes in use; more often than ``SAMPLE_S`` does nothing.

        Args:
            now_s: Of a clock that only goes on.
            used_bytes: Of the whole disk.
        """
        notes = self.notes
        if notes and now_s - notes[-1][0] < SAMPLE_S:
            return
        notes.append((now_s, used_bytes))
        while now_s - notes[0][0] > WINDOWS_S[-1]:
            notes.popleft()
        self.bytes_per_s = _growth(tuple(notes))


def _growth(notes: Sequence[Note]) -> float | None:
    now_s = notes[-1][0]
    span_s = now_s - notes[0][0]
    if span_s < LEAST_S:
        return None
    slopes = []
    for window_s in WINDOWS_S:
        slopes.append(slope([note for note in notes if now_s - note[0] <= window_s]))
        if window_s >= span_s:  # a longer one has the same notes
            break
    return max((each for each in slopes if each is not None), default=None)


def slope(notes: Sequence[Note]) -> float | None:
    """Return the median slope between any two notes; None: there are fewer than two."""
    step = -(-len(notes) // POINTS_MAX)
    some = notes[::-1][::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, later in enumerate(some)
        for earlier in some[number + 1 :]
    ]
    return median(slopes) if slopes else None


def full_in_s(growth: float | None, left_bytes: int) -> float | None:
    """Return after how many seconds ``left_bytes`` are in use, too.

    None: the growth is not known, or the disk does not fill up. 0: it is full.
    """
    if left_bytes <= 0:
        return 0.0
    if growth is None or growth * FULL_IN_S_MAX < left_bytes:
        return None
    return left_bytes / growth
