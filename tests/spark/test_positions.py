"""Ranges, splits and the places of streams, without Spark and without a broker."""

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_vq.planning import TopicNow
from pyspark_vq.positions import (
    Positions,
    TopicPositions,
    available,
    capped,
    joined,
    limited,
    ranges_between,
)
from pyspark_vq.ranges import Range, narrowed, shares, split
from vq.admin import PartitionEnds
from vq.errors import InvalidArgument

MIB = 1 << 20


def at(*places: int, id: str = "i", topic: str = "t") -> Positions:
    return Positions({topic: TopicPositions(id, places)})


def now(*ends: tuple[int, int] | None, id: str = "i", log_end: int | None = None) -> list[TopicNow]:
    found: Mapping[int, PartitionEnds | None] = {
        number: None if each is None else PartitionEnds(*each, log_end or each[1])
        for number, each in enumerate(ends)
    }
    return [TopicNow("t", id, found)]


# Splits -----------------------------------------------------------------------------------------
def test_a_long_range_is_split_by_its_share_of_all_bytes() -> None:
    pieces = split([Range("t", 0, 0, 3 * MIB), Range("t", 1, 5, 5 + MIB)], 4)
    assert [(each.partition, each.start, each.end) for each in pieces] == [
        (0, 0, MIB),
        (0, MIB, 2 * MIB),
        (0, 2 * MIB, 3 * MIB),
        (1, 5, 5 + MIB),
    ]


def test_small_ranges_are_not_split_and_empty_ones_are_no_tasks() -> None:
    ranges = [Range("t", 1, 7, 9), Range("t", 0, 3, 3)]
    assert split(ranges, 100) == split(ranges, None) == [Range("t", 1, 7, 9)]
    assert split([], 3) == []


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**32)), max_size=8),
    st.none() | st.integers(1, 200),
)
def test_pieces_have_every_offset_once(parts: list[tuple[int, int]], least: int | None) -> None:
    ranges = [Range("t", n, low, low + size) for n, (low, size) in enumerate(parts)]
    pieces = split(ranges, least)
    for each in ranges:
        own = [piece for piece in pieces if piece.partition == each.partition]
        assert sum(piece.size for piece in own) == each.size
        assert all(piece.size > 0 for piece in own)
        if own:
            assert (own[0].start, own[-1].end) == (each.start, each.end)
            assert all(a.end == b.start for a, b in itertools.pairwise(own))


def test_ranges_are_narrowed_to_offsets() -> None:
    assert narrowed([Range("t", 0, 0, 9), Range("t", 1, 20, 30)], 5, 21) == [
        Range("t", 0, 5, 9),
        Range("t", 1, 20, 21),
    ]


# Shares -----------------------------------------------------------------------------------------
def test_a_limit_is_shared_so_that_small_partitions_do_not_wait() -> None:
    sizes = {("t", 0): 10, ("t", 1): 100, ("t", 2): 100}
    assert shares(sizes, 110) == {("t", 0): 10, ("t", 1): 50, ("t", 2): 50}


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.integers(1, 10**7))
def test_shares_have_what_is_to_be_shared(sizes: list[int], limit: int) -> None:
    by_partition = {("t", n): size for n, size in enumerate(sizes)}
    found = shares(by_partition, limit)
    assert all(0 <= found[each] <= size for each, size in by_partition.items())
    assert sum(found.values()) == min(limit, sum(sizes))


# Places -----------------------------------------------------------------------------------------
def test_places_come_back_and_are_small() -> None:
    many = at(*range(10**12, 10**12 + 4096))
    assert Positions.decode(many.encode()) == many
    assert len(str(many.encode())) < 70_000
    with pytest.raises(InvalidArgument, match="version 2"):
        Positions.decode({"v": 2})


def test_a_partition_that_came_later_begins_with_what_is_there() -> None:
    """Nothing of it was to be read before, so nothing of it is lost."""
    found = now((0, 9), (3, 7), None, (0, 1))
    joining, losses = joined(at(5), found, {})
    assert (joining, losses) == (at(5, 3), []), "a silent one waits, with those behind it"
    end, losses = available(joining, found)
    assert (end, losses) == (at(9, 7), [])
    assert ranges_between(joining, end) == [Range("t", 0, 5, 9, "i"), Range("t", 1, 3, 7, "i")]
    assert joined(end, found[:1], {}) == (Positions({}), [])


def test_a_topic_that_joins_begins_where_it_is_told_to_or_waits() -> None:
    found = now((3, 9), (0, 4))
    assert joined(Positions({}), found, {"t": {0: 7, 1: 4}}) == (at(7, 4), [])
    assert joined(Positions({}), found, {}) == (Positions({}), [])


def test_where_topics_begin_that_join_comes_back_with_the_end() -> None:
    """Spark keeps nothing else of it."""
    other = at(4, topic="u")
    end = at(9).with_(at(8, topic="u"))
    assert Positions.begin_of(at(5).encode(), end.encode(other)) == at(5).with_(other)
    assert Positions.begin_of(at(5).encode(), end.encode()) == at(5)
    assert "from" not in end.encode(Positions({}))


def test_a_partition_whose_broker_is_silent_stays_where_it_is() -> None:
    assert available(at(5, 1, 0), now(None, (0, 4), None)) == (at(5, 4, 0), [])


def test_a_topic_that_may_come_again_is_not_lost() -> None:
    assert available(at(5), [], waiting={"t"}) == (at(5), [])


def test_a_new_master_that_may_not_tell_the_end_yet_loses_nothing() -> None:
    assert available(at(5), now((0, 3), log_end=5)) == (at(5), [])


def test_losses_are_told() -> None:
    end, losses = available(at(5, 9), now((7, 9), (0, 4)))
    assert end == at(9, 4)
    assert "[5, 7) of t-0 was deleted before it was read" in losses[0]
    assert "t-1 ends at 4" in losses[1]
    assert ranges_between(at(5, 9), end) == [Range("t", 0, 5, 9, "i")]
    assert available(at(5), []) == (at(5), ["topic 't' was deleted"])


def test_another_topic_of_the_name_is_read_from_its_beginning() -> None:
    found = now((1, 3), id="j")
    joining, losses = joined(at(5), found, {})
    assert "was deleted and created again" in losses[0]
    begin = at(5).with_(joining)
    end, losses = available(begin, found)
    assert (end, losses) == (at(3, id="j"), [])
    assert ranges_between(begin, end) == [Range("t", 0, 1, 3, "j")]


def test_a_query_that_ends_by_itself_does_not_go_beyond_its_end() -> None:
    assert capped(at(9, 4, 8), at(7, 6), at(5)) == at(7, 4, 0)
    assert capped(at(9, id="j"), at(7), at(5)) == at(5)
    assert capped(at(9), Positions({}), Positions({})) == Positions({})
    assert capped(at(9), at(4), at(5)) == at(5)


def test_a_query_that_ends_by_itself_goes_back_to_the_end_of_a_log_that_was_cut() -> None:
    """What is written between the new end and the old place would be passed over later."""
    assert capped(at(3), at(3), at(5)) == at(3)
    assert capped(at(3), at(7), at(5)) == at(3)


def test_a_limit_moves_places_back() -> None:
    found = now((0, 100), (0, 10), (90, 100))
    end, moved = limited(at(0, 0, 50), at(100, 10, 100), found, 40)
    assert end == at(20, 10, 100)
    assert moved == {"t": {0: 20}}
    assert limited(at(0), at(100), found, 100) == (at(100), {})
