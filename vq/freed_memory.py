"""Has the C library keep memory that was freed, for the frames and messages that come next.

glibc hands memory of large blocks back to the kernel when they are freed, and each page of the next
block costs a page fault. Frames of a megabyte come and go all the time: a client that reads
messages of 1 KiB spent more time in these faults than in decoding.
"""

import contextlib
from typing import Final

#: glibc learns from no block above 32 MiB; some of that is its own.
_BLOCK_BYTES_MAX: Final = (32 << 20) - (64 << 10)
#: The most that it can be made to keep in this way.
KEPT_BYTES_MAX: Final = 2 * _BLOCK_BYTES_MAX


def keep_freed_memory(kept_bytes: int) -> None:
    """Have glibc keep about ``kept_bytes`` of freed memory at the end of each heap.

    It frees one block of half the size: glibc then takes it that blocks of this size come and go,
    as in any program that works with them. So there is nothing new about the state of the process,
    the thresholds never fall, and whoever has set them (``MALLOC_TRIM_THRESHOLD_``, ``mallopt``)
    keeps what was set. No page of the block is touched. Other C libraries are left as they are.

    Args:
        kept_bytes: At most ``KEPT_BYTES_MAX``; a heap is that of a thread, or is shared by some.
    """
    with contextlib.suppress(MemoryError):  # a process whose address space is bounded
        bytes(min(kept_bytes, KEPT_BYTES_MAX) // 2)
