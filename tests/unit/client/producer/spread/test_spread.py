"""Who gets the messages that no key directs: in one go or one by one, evenly or by weight."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.client.producer.spread.partitioner import SpreadKind
from vq.client.producer.spread.spread import (
    Random,
    Ring,
    Single,
    Spread,
    Sticky,
    make_spread,
    places_of,
)


def dealt(spread: Spread, count: int) -> list[int]:
    """Return the partition of each of ``count`` messages that are dealt out in one go."""
    found = [-1] * count
    for partition, items in spread.deal(list(range(count))):
        for item in items:
            assert found[item] == -1, "a message goes to one partition"
            found[item] = partition
    assert -1 not in found
    return found


def ring(count: int, weights: list[float] | None = None) -> Ring:
    spread = Ring(first=0)
    spread.follow(range(count), weights)
    return spread


# Ring -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weights", [None, [3.0, 1.0, 2.0, 0.5]])
def test_a_deal_gives_what_single_choices_would(weights: list[float] | None) -> None:
    at_once, one_by_one = ring(4, weights), ring(4, weights)
    for count in (1, 3, 17, 64, 2):
        assert dealt(at_once, count) == [one_by_one.one() for _ in range(count)]


def test_messages_of_one_partition_keep_their_order() -> None:
    """Also where the ring names a partition more than once."""
    shares = dict(ring(2, [3.0, 1.0]).deal(list(range(100))))
    assert [len(items) for items in shares.values()] == [75, 25]
    assert [items == sorted(items) for items in shares.values()] == [True, True]


def test_each_partition_occurs_once_in_a_deal() -> None:
    shares = ring(3, [5.0, 1.0, 1.0]).deal(list(range(50)))
    assert sorted(partition for partition, _ in shares) == [0, 1, 2]


def test_an_example_of_places() -> None:
    """The docstring's, twelve times over."""
    assert places_of([0, 1, 2], [2.0, 1.0, 1.0]) == [0, 1, 2, 0] * 12


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200).filter(lambda w: sum(w) > 1e-9))
def test_places_follow_the_weights(weights: list[float]) -> None:
    places = places_of(range(len(weights)), weights)
    counts, total = Counter(places), sum(weights)
    assert len(places) == 16 * len(weights)
    for number, weight in enumerate(weights):
        assert abs(counts[number] - weight / total * len(places)) <= 1
        assert weight or not counts[number]


@pytest.mark.parametrize("partitions", [4, 128, 4_096])
def test_weights_count_however_many_partitions_there_are(partitions: int) -> None:
    """Twice the weight is twice the share, and a sixteenth of an even share is not nothing."""
    half = partitions // 2
    counts = Counter(places_of(range(partitions), [1.0] * half + [2.0] * half))
    first, second = (
        sum(counts[number] for number in numbers)
        for numbers in (range(half), range(half, partitions))
    )
    assert second == pytest.approx(2 * first, rel=0.1)
    few = Counter(places_of(range(partitions), [1 / 16] + [1.0] * (partitions - 1)))
    assert few[0] == 1


def test_places_of_one_partition_lie_apart() -> None:
    places = places_of([0, 1], [3.0, 1.0])
    assert all(1 in places[at : at + 5] for at in range(len(places) - 5))


def test_no_weight_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="one must be above 0"):
        places_of([0, 1], [0.0, 0.0])


# Random and sticky --------------------------------------------------------------------------------
def test_random_is_even_over_many_messages() -> None:
    spread = Random(random.Random(1))
    spread.follow([1, 2, 5])
    counts = Counter(dealt(spread, 30_000)) + Counter(spread.one() for _ in range(30_000))
    assert set(counts) == {1, 2, 5}
    assert all(abs(count - 20_000) < 600 for count in counts.values())


def sticky(waiting: set[int], full: int = 10) -> Sticky:
    spread = Sticky(random.Random(1), full=full, is_waiting=waiting.__contains__)
    spread.follow([0, 1, 2, 3])
    return spread


def test_sticky_stays_until_a_batch_is_full() -> None:
    spread = sticky({0, 1, 2, 3})
    found = [spread.one() for _ in range(10)]
    assert len(set(found)) == 1
    assert spread.one() != found[0]
    found = dealt(spread, 9 + 10)  # one is dealt already
    assert len(set(found[:9])) == len(set(found[9:])) == 1
    assert found[0] != found[-1]


def test_sticky_moves_on_when_the_batch_has_left() -> None:
    waiting: set[int] = set()
    spread = sticky(waiting)
    first = spread.one()
    waiting.add(first)
    assert dealt(spread, 2) == [first, first]
    waiting.clear()
    assert spread.one() != first


def test_sticky_leaves_a_partition_that_is_gone() -> None:
    spread = sticky({0, 1, 2, 3})
    first = spread.one()
    spread.follow([number for number in range(4) if number != first])
    assert spread.one() != first


def test_sticky_does_not_search_its_partitions() -> None:
    """With thousands of them, a search would cost each message as many comparisons."""
    compared: list[int] = []

    class Number(int):
        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return int(self) == other

        __hash__ = int.__hash__

    spread = Sticky(random.Random(1), full=10, is_waiting=lambda _: True)
    spread.follow([Number(number) for number in range(4_000)])
    for _ in range(100):
        spread.one()
    assert len(compared) <= 100


def test_sticky_is_even_in_the_long_run() -> None:
    spread = sticky({0, 1, 2, 3})
    counts = Counter(dealt(spread, 40_000))
    assert all(abs(count - 10_000) < 600 for count in counts.values())


@pytest.mark.parametrize("kind", SpreadKind)
def test_one_partition_gets_everything(kind: SpreadKind) -> None:
    spread = make_spread(kind, random.Random(1), full=3, is_waiting=lambda _: False)
    spread.follow([4])
    assert dealt(spread, 10) == [spread.one() for _ in range(10)] == [4] * 10


@pytest.mark.parametrize("kind", SpreadKind)
def test_producers_do_not_all_begin_at_one_partition(kind: SpreadKind) -> None:
    begins = set()
    for seed in range(40):
        spread = make_spread(kind, random.Random(seed), full=3, is_waiting=lambda _: False)
        spread.follow(range(8))
        begins.add(spread.one())
    assert len(begins) > 5


def test_single_draws_once_and_stays() -> None:
    chosen = set()
    for seed in range(50):
        spread = Single(random.Random(seed))
        spread.follow([1, 2, 3])
        first = spread.one()
        chosen.add(first)
        spread.follow([7])
        assert spread.one() == first
        assert spread.deal(["a", "b"]) == [(first, ["a", "b"])]
    assert chosen == {1, 2, 3}


def test_single_stays_at_partition_0_too() -> None:
    spread = Single(random.Random(1))
    spread.follow([0])
    spread.follow([1, 2])
    assert spread.one() == 0
