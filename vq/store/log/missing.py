"""What a log had when its checkpoint was written, and has no more; without I/O.

*Example*: blocks at 0, 100 and 200, and a checkpoint at offset 260. The block at 0 is gone, and the
last one was cut at 230: missing are [0, 100) and [230, 260).
"""

import itertools
from collections.abc import Collection, Mapping
from typing import Final

from vq.store.log.checkpoint import Checkpoint

#: Blocks and ranges that one sentence names.
NAMED_MAX: Final = 5


def missing_ranges(
    checkpoint: Checkpoint | None, sizes: Mapping[int, int], gone: Collection[int], x: int
) -> list[tuple[int, int]]:
    """Return the ranges that are gone or damaged, in rising order; [] if nothing tells.

    Args:
        checkpoint: It names the blocks and says how far the log reached.
        sizes: The lengths of the block files that are there, by start offset.
        gone: Start offsets of blocks that should be there and are not.
        x: Where the verified part ends. What lies behind it in its block counts as damaged.
    """
    if checkpoint is None:
        return []
    end = checkpoint.offset
    begins = sorted({*gone, *(start for start in sizes if start < end)})
    found = [(checkpoint.start_offset, begins[0] if begins else end)]  # mostly empty
    for start, following in itertools.pairwise([*begins, end]):
        if start in gone:
            found.append((start, following))
        elif start <= x < following:
            found.append((x, following))
        else:
            found.append((start + sizes[start], following))
    ranges = [(max(start, checkpoint.start_offset), stop) for start, stop in found]
    return [each for each in ranges if each[0] < each[1]]


def missing_text(ranges: list[tuple[int, int]]) -> str:
    """Return a sentence, with a space before it; "" if nothing is missing."""
    if not ranges:
        return ""
    named = ", ".join(f"[{start}, {end})" for start, end in ranges[:NAMED_MAX])
    return f" Missing or damaged: offsets {named}{' and more' if ranges[NAMED_MAX:] else ''}."
