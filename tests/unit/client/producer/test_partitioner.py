"""Where a key goes never changes: other languages and later versions must agree."""

from collections import Counter

import pytest

from vq.client.producer.partitioner import key_partition

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


def test_keys_spread_evenly() -> None:
    counts = Counter(key_partition(f"customer-{number}", 16) for number in range(16_000))
    assert set(counts) == set(range(16))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150
