"""Spreads the messages that no key directs over the partitions of a topic.

A spread decides for many messages at once: the accumulator calls it when it drains a topic's list,
so a message costs a slice and no call. All methods are called under the accumulator's lock, except
``follow``, which runs on the loop and replaces what the others read in one step.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from vq.client.producer.spread.partitioner import SpreadKind

T = TypeVar("T")
#: Shares of one deal: a partition and its messages, in their order. A partition occurs once.
Shares = list[tuple[int, list[T]]]

#: A weighted ring has so many places per partition: a weight counts in sixteenths of an even share.
#: With 4,096 partitions a ring costs 20 ms to make and 0.5 MB.
_PLACES_PER_PARTITION: Final = 16


class Spread(Protocol):
    """Chooses partitions for messages that no key directs."""

    def follow(self, partitions: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """Use these partitions (at least one) from now on.

        Args:
            partitions: Their numbers, in rising order.
            weights: How much each shall get, in relation to the others, >= 0 and not all 0;
                None: all the same. Only a ``Ring`` heeds them.
        """

    def one(self) -> int:
        """Return the partition for one message."""

    def deal(self, items: list[T]) -> Shares[T]:
        """Return which of ``items``, in their order, goes where."""


def make_spread(
    kind: SpreadKind, rng: random.Random, *, full: int, is_waiting: Callable[[int], bool]
) -> Spread:
    """Return a spread without partitions.

    Args:
        kind: Which one.
        rng: Draws where it begins, so that producers do not all begin at the same partition.
        full: Messages of a full batch.
        is_waiting: Returns whether messages wait for a batch in this partition.
    """
    if kind is SpreadKind.SINGLE:
        return Single(rng)
    if kind is SpreadKind.RANDOM:
        return Random(rng)
    if kind is SpreadKind.STICKY:
        return Sticky(rng, full=full, is_waiting=is_waiting)
    return Ring(first=rng.getrandbits(32))


class Ring:
    """Round robin over places; a partition with more weight has more of them.

    Args:
        first: The place where it begins, modulo the number of places.
    """

    def __init__(self, *, first: int) -> None:
        self._first = first
        self._places: tuple[list[int], bool] = [], True  # and whether each partition has one
        self._next = 0

    def follow(self, partitions: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """See ``Spread.follow``."""
        places = list(partitions) if weights is None else places_of(partitions, weights)
        self._places = places, weights is None
        self._next = self._first % len(places)

    def one(self) -> int:
        """See ``Spread.one``."""
        places, _ = self._places  # ``follow`` may replace them at any time
        self._next += 1
        return places[(self._next - 1) % len(places)]

    def deal(self, items: list[T]) -> Shares[T]:
        """See ``Spread.deal``."""
        places, is_even = self._places
        first, count = self._next, len(items)
        turns = len(places)
        self._next += count
        if turns == 1:
            return [(places[0], items)]
        if is_even:
            return [
                (places[(first + number) % turns], items[number::turns])
                for number in range(min(count, turns))
            ]
        return shares_of([places[(first + number) % turns] for number in range(count)], items)


class Random:
    """Every message goes to a partition drawn for it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._partitions: Sequence[int] = ()

    def follow(self, partitions: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """See ``Spread.follow``."""
        self._partitions = tuple(partitions)

    def one(self) -> int:
        """See ``Spread.one``."""
        return self._rng.choice(self._partitions)

    def deal(self, items: list[T]) -> Shares[T]:
        """See ``Spread.deal``."""
        return shares_of(self._rng.choices(self._partitions, k=len(items)), items)


class Sticky:
    """Messages go to one partition until a batch of it is full or has left; then to another one.

    Fewer and larger batches than round robin, for topics with many partitions and few messages. The
    next partition is drawn (Kafka's KIP-480 has the idea).

    Args:
        rng: Draws the next partition.
        full: Messages of a full batch.
        is_waiting: Returns whether messages wait for a batch in this partition.
    """

    def __init__(self, rng: random.Random, *, full: int, is_waiting: Callable[[int], bool]) -> None:
        self._rng = rng
        self._full = full
        self._is_waiting = is_waiting
        # The same twice: to draw from, and to look one up.
        self._partitions: tuple[Sequence[int], frozenset[int]] = (), frozenset()
        self._current = -1
        self._dealt = 0  # to the current one

    def follow(self, partitions: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """See ``Spread.follow``."""
        self._partitions = tuple(partitions), frozenset(partitions)

    def one(self) -> int:
        """See ``Spread.one``."""
        self._move_on()
        self._dealt += 1
        return self._current

    def deal(self, items: list[T]) -> Shares[T]:
        """See ``Spread.deal``."""
        chosen: list[int] = []
        while len(chosen) < len(items):
            self._move_on()
            count = min(self._full - self._dealt, len(items) - len(chosen))
            chosen += [self._current] * count
            self._dealt += count
        return shares_of(chosen, items)

    def _move_on(self) -> None:
        partitions, known = self._partitions  # ``follow`` may replace them at any time
        stays = (
            self._dealt < self._full
            and self._current in known
            and (self._dealt == 0 or self._is_waiting(self._current))
        )
        if not stays:
            others = [number for number in partitions if number != self._current]
            self._current = self._rng.choice(others or partitions)
            self._dealt = 0


class Single:
    """Every message goes to one partition, drawn from the first ones it is given; it stays."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._partition = -1

    def follow(self, partitions: Sequence[int], weights: Sequence[float] | None = None) -> None:
        """See ``Spread.follow``; later partitions do not count."""
        if self._partition < 0:
            self._partition = self._rng.choice(partitions)

    def one(self) -> int:
        """See ``Spread.one``."""
        return self._partition

    def deal(self, items: list[T]) -> Shares[T]:
        """See ``Spread.deal``."""
        return [(self._partition, items)]


def shares_of(chosen: Sequence[int], items: Sequence[T]) -> Shares[T]:
    """Return the shares when item ``n`` goes to partition ``chosen[n]``."""
    shares: dict[int, list[T]] = {}
    for number, item in zip(chosen, items, strict=True):
        share = shares.get(number)
        if share is None:
            shares[number] = [item]
        else:
            share.append(item)
    return list(shares.items())


def places_of(partitions: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return a ring in which each partition has as many places as its weight says, far apart.

    Places that the weights do not divide evenly go to the largest remainders. A partition with a
    weight above 0 may get no place, if its weight is below half of one place.

    Example: weights 2, 1, 1 in four places give 0, 1, 2, 0: partition 0 has the places at 1/4 and
    3/4 of the ring, the others theirs at 1/2.

    Args:
        partitions: Their numbers, at least one.
        weights: One for each, >= 0 and not all 0.

    Raises:
        ValueError: The lists differ in length, or no weight is above 0.
    """
    total = sum(weights)
    if total <= 0:
        raise ValueError(f"weights {list(weights)}: one must be above 0")
    count = _PLACES_PER_PARTITION * len(partitions)
    return _ring(partitions, [weight / total * count for weight in weights], count)


def _ring(partitions: Sequence[int], wanted: Sequence[float], count: int) -> list[int]:
    """Return a ring of ``count`` places; ``wanted`` says how many each partition would have."""
    numbers = [int(each) for each in wanted]
    by_remainder = sorted(range(len(numbers)), key=lambda index: numbers[index] - wanted[index])
    for index in by_remainder[: count - sum(numbers)]:
        numbers[index] += 1
    at: list[float] = []  # where each place is, as a part of the ring
    owners: list[int] = []
    for partition, number in zip(partitions, numbers, strict=True):
        at += [(place + 0.5) / number for place in range(number)]
        owners += [partition] * number
    return [owners[index] for index in sorted(range(count), key=at.__getitem__)]
