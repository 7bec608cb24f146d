"""Which blocks of a log a run of the archive takes, and which it ends first; without I/O.

A run says: archive what is old enough *as of* a time. A block is as old as its last batch, as for
retention.

*Runs come once a day*, and a block that takes appends can be no archive. So a run ends every such
block with messages of an hour or more before that time, whatever the age of archives is: the
next run finds the messages of a day in blocks of that day. Otherwise a partition with little
traffic would have messages of many days in one block, and the block would stay as young as the
last of them.

*What a run ends, the run a day later shall take.* It ends blocks a little after its time, and a day
may have 23 hours. So a block is due some time before it has its age: a twelfth of it, at most two
hours.

*Example*: messages are archived after 24 hours, runs come at 02:00. On Tuesday the run ends a block
with messages of Monday 02:00 to Tuesday 02:00. It is due on Wednesday: its last message is 24 hours
old then, and 22 would do. So each message is an archive when it is 24 to 48 hours old.
"""

from collections.abc import Sequence
from typing import Final

from vq.clock import HOUR_MS
from vq.store.log.retention import Kept, OpenBlock, times_of

#: A block that takes appends stays while its first message is younger than this.
ROLL_AFTER_MS: Final = HOUR_MS
#: A block is due so much before it has its age, at most, and at most this share of its age.
EARLY_MS_MAX: Final = 2 * HOUR_MS
EARLY_SHARE: Final = 12


def due(blocks: Sequence[Kept], *, after_hours: int, as_of_ms: int) -> int:
    """Return how many of the blocks are due: the first ones.

    The first one that is too young ends the search. A block whose time is not
    known is as old as the next one that has a time; without one it stays.

    Args:
        blocks: The closed blocks that are no archives, in rising order.
        after_hours: Of the topic.
        as_of_ms: Of the run.
    """
    age_ms = after_hours * HOUR_MS
    before_ms = as_of_ms - age_ms + min(EARLY_MS_MAX, age_ms // EARLY_SHARE)
    for at, time_ms in enumerate(times_of(blocks)):
        if time_ms is None or time_ms > before_ms:
            return at
    return len(blocks)


def must_roll(block: OpenBlock, *, as_of_ms: int) -> bool:
    """Return whether a run ends the block that takes appends."""
    if block.end == block.start or block.first_ms is None:
        return False
    return block.first_ms <= as_of_ms - ROLL_AFTER_MS
