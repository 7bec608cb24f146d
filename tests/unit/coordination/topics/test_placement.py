"""Spans: closing, opening, moving, forgetting."""

import pytest

from vq.coordination.topics.placement import check_spans, close_span, move, open_span
from vq.errors import InvalidArgument, InvalidState
from vq.model import PartitionPlacement, PartitionState, Span


def placed(*spans: Span, state: PartitionState = PartitionState.RW) -> PartitionPlacement:
    return PartitionPlacement("t", 0, spans, state)


def test_a_move_closes_the_old_span_and_opens_the_new_one() -> None:
    """Readers finish the old span and go on at the new group, at the same offset."""
    moved = move(placed(Span("b1", 0)), 500, "b2")
    assert moved == placed(Span("b1", 0, 500), Span("b2", 500))
    assert moved.writer_group == "b2"
    assert moved.span_at(499) == Span("b1", 0, 500)
    assert moved.span_at(500) == Span("b2", 500)


def test_a_closed_partition_takes_no_appends() -> None:
    """Between the two steps nobody is the writer."""
    closed = close_span(placed(Span("b1", 0)), 500)
    assert closed.state is PartitionState.RO
    assert closed.writer_group is None
    assert closed.span_at(500) is None


def test_an_empty_span_leaves_no_trace() -> None:
    """Nothing was written there, so nobody needs to look there."""
    assert move(placed(Span("b1", 0)), 0, "b2") == placed(Span("b2", 0))
    there = move(placed(Span("b1", 0)), 500, "b2")
    assert move(there, 500, "b3") == placed(Span("b1", 0, 500), Span("b3", 500))


def test_reopening_on_the_same_group_goes_on_with_its_span() -> None:
    """An aborted move, or one there and back with nothing written, ends as it began."""
    start = placed(Span("b1", 0))
    assert open_span(close_span(start, 500), "b1") == start
    assert move(move(start, 500, "b2"), 500, "b1") == start


def test_a_partition_never_placed_opens_at_0() -> None:
    """The first span starts at the first byte ever."""
    assert open_span(placed(), "b1") == placed(Span("b1", 0))


def test_impossible_steps_are_refused() -> None:
    """Twice closed, twice opened, moved to itself, ended before its start."""
    opened, closed = placed(Span("b1", 100)), placed(Span("b1", 100, 500))
    with pytest.raises(InvalidState):
        close_span(closed, 600)
    with pytest.raises(InvalidState):
        close_span(placed(), 0)
    with pytest.raises(InvalidState, match="b1"):
        open_span(opened, "b2")
    with pytest.raises(InvalidArgument, match="99"):
        close_span(opened, 99)
    with pytest.raises(InvalidArgument, match="already"):
        move(opened, 500, "b1")


@pytest.mark.parametrize(
    "spans",
    [
        (Span("a", 0), Span("b", 5)),
        (Span("a", 0, 5), Span("b", 6)),
        (Span("a", 0, 5), Span("b", 4)),
    ],
)
def test_spans_without_gaps_or_overlaps_only(spans: tuple[Span, ...]) -> None:
    """A gap would be silent loss, an overlap two truths."""
    with pytest.raises(InvalidArgument):
        check_spans(placed(*spans))
