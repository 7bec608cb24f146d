"""The share of the flusher that background work takes, so that acknowledgements get the rest.

The flusher of a disk also writes checkpoints, saves indexes and deletes files, some milliseconds
for each log; no batch is acknowledged meanwhile. Whoever works through many partitions hands it a
little at a time: it waits until that is done, and then as long again as others are to have.

In here: these waits. Not in here: what a flush does (``vq.store.log.flushing``).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from vq.backoff import Backoff
from vq.clock import Clock

#: A pause is so many times as long as what went before it took, so that others get most.
PAUSE_SHARE: Final = 3.0
PAUSE_S_MAX: Final = 1.0
#: It is looked again and again whether the flusher is done, with growing pauses, but not for ever.
LOOKS: Final = Backoff(first_s=0.001, most_s=0.05)
LOOKS_MAX: Final = 200


async def is_done(is_left: Callable[[], bool]) -> bool:
    """Return whether nothing ``is_left`` for the flusher, once that is so or time is up."""
    for number in range(1, LOOKS_MAX):
        if not is_left():
            return True
        await asyncio.sleep(LOOKS.pause_s(number))
    return False


async def give_way(clock: Clock, begun_s: float, is_left: Callable[[], bool]) -> bool:
    """Return once others had the flusher for long enough; False at once if time is up.

    Args:
        clock: Of ``begun_s``.
        begun_s: When the work began that is over once nothing ``is_left``.
        is_left: Whether the flusher has something of it still to do.
    """
    if not await is_done(is_left):
        return False
    await asyncio.sleep(min(PAUSE_S_MAX, PAUSE_SHARE * (clock.monotonic() - begun_s)))
    return True
