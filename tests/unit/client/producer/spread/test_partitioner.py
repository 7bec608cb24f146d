"""Where a key goes never changes: other languages and later versions must agree."""

from collections import Counter
from typing import Any

import pytest
from support.cases import case
from support.key_vectors import KEY_VECTORS

from vq.client.config import ProducerConfig
from vq.client.producer.spread.partitioner import (
    DEFAULT,
    STRATEGIES,
    TopicPartitions,
    checked_choice,
    chosen_by,
    key_partition,
    own_choice,
    strategy_of,
    wants_load,
)
from vq.errors import InvalidArgument, NotPublished
from vq.model import Message

GOLDEN = [
    ("a", 5, 2),
    ("a", 1, 0),
    ("", 7, 0),
    ("order-17", 16, 4),
    ("ключ", 16, 10),
    ("键", 1000, 676),
]


@pytest.mark.parametrize(("key", "partitions", "expected"), GOLDEN)
def test_golden_choices(key: str, partitions: int, expected: int) -> None:
    assert key_partition(key, partitions) == expected


def test_every_golden_key_goes_where_other_languages_send_it() -> None:
    for vector in KEY_VECTORS:
        with case(vector.key):
            found = {count: key_partition(vector.key, count) for count in vector.partitions}
            assert found == vector.partitions


def test_a_text_goes_where_its_bytes_go() -> None:
    for text in ("a", "order-17", "ключ", ""):
        assert key_partition(text, 1_000) == key_partition(text.encode(), 1_000)


def test_an_integer_is_its_own_hash() -> None:
    assert [key_partition(number, 5) for number in range(-5, 6)] == [*range(5), *range(5), 0]


def test_keys_spread_evenly() -> None:
    counts = Counter(key_partition(f"customer-{number}", 16) for number in range(16_000))
    assert set(counts) == set(range(16))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150


def test_the_hash_spreads_a_million_keys_evenly() -> None:
    """Chi-square over 50 partitions: 66.3 is exceeded by chance once in 20 times."""
    keys, partitions = 1_000_000, 50
    counts = Counter(key_partition(f"order-{number}", partitions) for number in range(keys))
    expected = keys / partitions
    assert len(counts) == partitions
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 66.3


# Settings -----------------------------------------------------------------------------------------
def choose_zero(message: Message, partitions: TopicPartitions) -> int:
    return 0


class Chooses:
    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        return 1


def test_a_name_is_a_strategy() -> None:
    assert strategy_of(None) is DEFAULT
    assert own_choice(None) is None
    for name, strategy in STRATEGIES.items():
        assert strategy_of(name) is strategy
        assert own_choice(name) is None


def test_a_function_or_an_object_that_chooses_is_asked() -> None:
    message, partitions = Message("t", b"x"), TopicPartitions("t", 2, (0, 1))
    for setting, expected in ((choose_zero, 0), (Chooses(), 1)):
        assert strategy_of(setting) is None
        choose = own_choice(setting)
        assert choose is not None
        assert choose(message, partitions) == expected


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("hsah", "partitioner = 'hsah'; give one of hash, round-robin"),
        (7, r"partitioner = 7 \(int\); give one of"),
        (lambda message: 0, r"partitioner\(message\) cannot be called: .*vq\.TopicPartitions"),
        (Chooses, r"Chooses is a class; give an instance of it: Chooses\(\.\.\.\)"),
    ],
)
def test_other_settings_are_refused(setting: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        ProducerConfig(partitioner=setting)


@pytest.mark.parametrize("chosen", [-1, 3, None, "1", 1.0])
def test_a_choice_is_checked(chosen: object) -> None:
    with pytest.raises(InvalidArgument, match=f"chose partition {chosen!r} of t, which has part"):
        checked_choice(chosen, "t", 3)


def test_a_huge_choice_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidArgument, match="chose partition an int of 16610 bits of t"):
        checked_choice(10**5000, "t", 3)


class NoNumber:
    def __index__(self) -> int:
        raise KeyError("no number")

    def __repr__(self) -> str:
        raise KeyError("no text")


def test_a_choice_whose_code_raises_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="chose partition a NoNumber of t"):
        checked_choice(NoNumber(), "t", 3)


@pytest.mark.parametrize("error", [KeyError("mine"), NotPublished("of another topic")])
def test_what_a_partitioner_raises_is_the_cause_of_a_refusal(error: Exception) -> None:
    def choose(*_: object) -> int:
        raise error

    text = f"the partitioner raised {type(error).__name__}: .*; the message to t is not sent"
    with pytest.raises(InvalidArgument, match=text) as caught:
        chosen_by(choose, Message("t", b"x"), TopicPartitions("t", 3, ()))
    assert caught.value.__cause__ is error


def test_a_choice_may_be_any_whole_number() -> None:
    assert checked_choice(True, "t", 3) == 1


class Wants(Chooses):
    wants_load = True


def test_a_partitioner_may_want_the_load() -> None:
    def function(message: Message, partitions: TopicPartitions) -> int:
        return 0

    assert wants_load(Wants())
    assert not wants_load(Chooses())
    assert not wants_load(function)
    function.wants_load = True  # type: ignore[attr-defined]
    assert wants_load(function)
    assert not wants_load("least-loaded")
    assert not wants_load(None)
