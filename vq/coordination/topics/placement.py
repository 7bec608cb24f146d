"""Moves a partition by arithmetic on its spans, without I/O and without copying data.

The spans of a partition are one sequence of offsets without gaps: each starts at the end of the one
before, and only the last one may be open. Example, a move from ``b1`` to ``b2`` at offset 500::

    [b1: 0…)   --close_span(500)-->   [b1: 0…500)   --open_span(b2)-->   [b1: 0…500) [b2: 500…)
"""

from dataclasses import replace

from vq.errors import InvalidArgument, InvalidState
from vq.model import PartitionPlacement, PartitionState, Span


def check_spans(placement: PartitionPlacement) -> PartitionPlacement:
    """Return ``placement`` if its spans are one sequence without gaps, at most the last one open.

    Raises:
        InvalidArgument: They are not; the message shows the two spans that do not fit.
    """
    for before, after in zip(placement.spans, placement.spans[1:], strict=False):
        if before.end is None or before.end != after.start:
            raise InvalidArgument(
                f"{placement.topic}-{placement.partition}: span {after} does not follow {before}"
            )
    return placement


def close_span(placement: PartitionPlacement, end: int) -> PartitionPlacement:
    """Give the open span its end; the partition accepts no appends until another span is opened.

    Raises:
        InvalidState: No span is open.
        InvalidArgument: ``end`` is before the span's start.
    """
    last = placement.spans[-1] if placement.spans else None
    if last is None or last.end is not None:
        raise InvalidState(f"{placement.topic}-{placement.partition} has no open span to close")
    if end < last.start:
        raise InvalidArgument(f"end {end} is before the start {last.start} of the open span")
    spans = (*placement.spans[:-1], replace(last, end=end))
    return replace(placement, spans=spans, state=PartitionState.RO)


def open_span(
    placement: PartitionPlacement, group: str, number: int | None = None
) -> PartitionPlacement:
    """Let ``group`` accept appends from the end of the last span on.

    If the last span is empty, it is dropped. If the last span is of the same group, it is opened
    again. ``number`` is that of the next message; None: not known.

    Raises:
        InvalidState: A span is open already.
    """
    spans = placement.spans
    start = 0
    if spans:
        end = spans[-1].end
        if end is None:
            raise InvalidState(
                f"{placement.topic}-{placement.partition} is open on {spans[-1].group!r} already"
            )
        start = end
        if spans[-1].start == end:
            spans = spans[:-1]
    span = Span(group, start, number=number)
    if spans and spans[-1].group == group:
        spans, span = spans[:-1], replace(spans[-1], end=None)
    return replace(placement, spans=(*spans, span), state=PartitionState.RW)


def begin_range(
    placement: PartitionPlacement, end: int, number: int | None = None
) -> PartitionPlacement:
    """Close the open span at ``end`` and open another one there on the same group.

    ``number`` is that of the next message; None: not known.

    Raises:
        InvalidArgument: ``end`` is not behind the span's start.
        InvalidState: No span is open.
    """
    closed = close_span(placement, end)
    last = closed.spans[-1]
    if last.start == end:
        raise InvalidArgument(
            f"the span of {placement.topic}-{placement.partition} that begins at {end} has nothing"
        )
    return replace(placement, spans=(*closed.spans, Span(last.group, end, number=number)))


def move(
    placement: PartitionPlacement, end: int, group: str, number: int | None = None
) -> PartitionPlacement:
    """Close the open span at ``end`` and open one on ``group``, which must be another group.

    ``number`` is that of the next message; None: not known.

    Raises:
        InvalidArgument: The partition is open on ``group`` already, or ``end`` does not fit.
        InvalidState: No span is open.
    """
    if placement.writer_group == group:
        raise InvalidArgument(f"{placement.topic}-{placement.partition} is on {group!r} already")
    return open_span(close_span(placement, end), group, number)
