"""How the ranges of partitions on broker groups are shown, and moves: planned, or carried out."""

from collections.abc import Sequence
from typing import Any, Final

from vq.cli.base.json_schema import Shape, having, maybe, some
from vq.cli.base.options import Invocation
from vq.model import Span
from vq.operations.partitions.placements import Move, Moved

RANGE: Final = Shape(Span, "group start end first_number")

_PLANNED: Final = Shape(
    Move,
    "topic=placement.topic partition=placement.partition from=source.group to=target.group",
)
_DONE: Final = Shape(Moved, "topic partition from=source to=target at_offset=offset")
MOVES_SCHEMA: Final = some(having(_PLANNED, at_offset=maybe(int)))

_COLUMNS = "topic partition from to at_offset"


def move_rows(planned: Sequence[Move], done: Sequence[Moved] | None) -> list[dict[str, Any]]:
    """Return the rows of moves that were done; of those that are planned without ``done``."""
    if done is None:
        return [{**_PLANNED(each), "at_offset": None} for each in planned]
    return _DONE.all(done)


def show_moves(
    invocation: Invocation, planned: Sequence[Move], done: Sequence[Moved] | None
) -> None:
    """Print moves; ``done`` is None if they were only planned."""
    rows, output = move_rows(planned, done), invocation.output
    if not output.document({"done": done is not None, "moves": rows}):
        output.table(rows, columns=_COLUMNS, optional="at_offset")
    if done is None and planned:
        invocation.only_planned()
