"""How the ranges of partitions on broker groups are shown, and moves: planned, or carried out."""

from collections.abc import Sequence
from typing import Any, Final

from vq.cli.base.json_schema import maybe, record, some
from vq.cli.base.options import Invocation
from vq.model import Span
from vq.operations.partitions.placements import Move, Moved

RANGE_SCHEMA: Final = record(group=str, start=int, end=maybe(int), first_number=maybe(int))

MOVES_SCHEMA: Final = some(
    record(**{"topic": str, "partition": int, "from": str, "to": str}, at_offset=maybe(int))
)

_COLUMNS = ("topic", "partition", "from", "to", "at_offset")


def range_json(span: Span) -> dict[str, Any]:
    """Return a range of offsets, and the number of its first message."""
    return {
        "group": span.group,
        "start": span.start,
        "end": span.end,
        "first_number": span.first_number,
    }


def move_rows(planned: Sequence[Move], done: Sequence[Moved] | None) -> list[dict[str, Any]]:
    """Return the rows of moves that were done; of those that are planned without ``done``."""
    if done is None:
        return [
            {
                "topic": each.placement.topic,
                "partition": each.placement.partition,
                "from": each.source.group,
                "to": each.target.group,
                "at_offset": None,
            }
            for each in planned
        ]
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "from": each.source,
            "to": each.target,
            "at_offset": each.offset,
        }
        for each in done
    ]


def show_moves(
    invocation: Invocation, planned: Sequence[Move], done: Sequence[Moved] | None
) -> None:
    """Print moves; ``done`` is None if they were only planned."""
    rows, output = move_rows(planned, done), invocation.output
    if output.as_json:
        output.document({"done": done is not None, "moves": rows})
    else:
        output.table(rows, columns=_COLUMNS, optional=("at_offset",))
    if done is None and planned:
        invocation.only_planned()
