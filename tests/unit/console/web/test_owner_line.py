"""Who had which partition when, as a picture."""

from hypothesis import given
from hypothesis import strategies as st

from vq.console.web.owner_line import COLOURS, owner_line
from vq.model import TopicPartition
from vq.operations.groups.balance import OwnerChange

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINUTE = 60_000
NOW = 1_795_946_400_000  # 10:00 in UTC


def claim(place: TopicPartition, member: str, minutes_ago: float, number: int = 0) -> OwnerChange:
    time_ms = int(NOW - minutes_ago * MINUTE)
    return OwnerChange(place.topic, place.partition, member, None, "first", time_ms, number)


def test_a_span_goes_from_a_claim_to_the_next_one_and_the_last_to_now() -> None:
    changes = [claim(T0, "a", 30, 1), claim(T1, "b", 15, 1), claim(T0, "b", 10, 2)]
    line = owner_line([T0, T1], changes, {T0: "b", T1: "b"}, now_ms=NOW)
    first, second = line.lanes[0].spans
    assert (first.member, first.x, first.width, first.end_ms) == ("a", 0, 66.667, second.begin_ms)
    assert (second.number, second.x, second.end_ms, second.lost) == (2, 66.667, None, False)
    assert [each.x for each in line.lanes[1].spans] == [50]
    assert line.members == {1: "a", 2: "b"}
    assert [text for _, text in line.ticks] == ["09:30", "09:40", "09:50", "10:00"]


def test_a_member_that_is_gone_has_an_end_that_nobody_knows() -> None:
    """Claims say who came; after a reset nobody has the partition."""
    changes = [claim(T0, "a", 30, 1), claim(T0, "", 20, 2)]
    (span,) = owner_line([T0], changes, {}, now_ms=NOW).lanes[0].spans
    assert (span.end_ms, span.lost) == (NOW - 20 * MINUTE, False)
    (span,) = owner_line([T0], changes[:1], {T0: None}, now_ms=NOW).lanes[0].spans
    assert (span.end_ms, span.lost) == (None, True)


def test_what_ended_before_the_left_edge_is_not_drawn_and_what_goes_on_is_cut() -> None:
    changes = [claim(T0, "a", 300, 1), claim(T0, "b", 200, 2), claim(T0, "c", 30, 3)]
    line = owner_line([T0], changes, {T0: "c"}, now_ms=NOW, back_ms=60 * MINUTE)
    spans = [(each.member, each.x, each.width) for each in line.lanes[0].spans]
    assert spans == [("b", 0, 50), ("c", 50, 50)]
    assert line.members == {1: "b", 2: "c"}


def test_nothing_that_is_remembered_is_a_picture_too() -> None:
    line = owner_line([T0], [], {}, now_ms=NOW)
    assert line.lanes[0].spans == []
    assert len(line.ticks) == 4


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-(10**17), 10**17), st.integers(0, 99)),
        max_size=8,
    ),
    st.none() | st.integers(-5, 10**18),
)
def test_wrong_clocks_draw_nothing_beyond_the_edges(claims, back_ms) -> None:
    changes = [OwnerChange("t", 0, name, None, "left", at, number) for name, at, number in claims]
    line = owner_line([T0], changes, {T0: "a"}, now_ms=NOW, back_ms=back_ms)
    for each in line.lanes[0].spans:
        assert 0 <= each.x <= 100
        assert each.x + each.width <= 100.01
        assert 0 <= line.colour(each.number) < COLOURS
