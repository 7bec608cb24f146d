"""How far clocks of producers may be ahead of the brokers', for filters on the time of sending.

A broker finds messages by the time at which it stored them, and a filter asks for the time at which
their producer accepted them. A query reads from ``clockAhead`` before the filter's time on, and so
passes what a producer has sent whose clock is further ahead. Whether there is such a producer is
known only where its messages are read: one of them with a time that has not come yet proves it.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: `vq message find` has the same bound.
CLOCK_AHEAD_S: Final = 3_600.0
#: Ten years: no block is passed by for its time.
CLOCK_AHEAD_S_MAX: Final = 10 * 366 * 86_400.0


def told_ahead(batch: pa.RecordBatch, now_s: float, clock_ahead_s: float) -> str:
    """Return what proves that a producer's clock is too far ahead; "": nothing does.

    Args:
        batch: Messages, perhaps with their time.
        now_s: The present time, in seconds since 1970.
        clock_ahead_s: How far a clock may be ahead.
    """
    if "timestamp" not in batch.schema.names or not batch.num_rows:
        return ""
    latest_us = pc.max(batch.column("timestamp").cast(pa.int64())).as_py()
    ahead_s = latest_us / 1_000_000 - now_s
    if ahead_s <= clock_ahead_s:
        return ""
    return (
        f"a message has a time {ahead_s:.1f} s in the future: the clock of its producer is more "
        f"than clockAhead = {clock_ahead_s:g} s ahead, or the clock of this machine is behind"
    )
