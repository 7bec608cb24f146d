"""The intact batches in a run of log bytes."""

import pytest
from support.batches import batch

from vq.store.records.batches import Batch, intact_batches, read_batches
from vq.store.records.record import encode_record

RECORDS = [encode_record(n, b"x" * 60, b"new") for n in range(1, 4)]


def test_batches_end_at_the_first_damaged_or_incomplete_one() -> None:
    first = batch(RECORDS, 0)
    second = batch(RECORDS, len(first), 2_000)
    data = first + second
    whole = [Batch(0, len(first), 1_000), Batch(len(first), len(data), 2_000)]
    assert intact_batches(data, 0) == whole
    assert intact_batches(data + data, 0) == whole  # the third one says that it lies elsewhere
    assert intact_batches(data[:-1], 0) == whole[:1]
    assert intact_batches(data, 1) == []
    for at in (3, 30, 60, len(first) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert intact_batches(bytes(damaged), 0) == []


@pytest.mark.parametrize("size", [88, 100, 300, 1_000])
def test_one_batch_is_read_whole_however_large_it_is(size: int) -> None:
    """And no more than that beside what was asked for."""
    first = batch(RECORDS, 1_000)
    data = first + batch(RECORDS, 1_000 + len(first)) * 2
    asked = []

    def read(position: int, length: int) -> bytes:
        asked.append(length)
        return data[position : position + length]

    got, found = read_batches(read, 1_000, 1_000, size, 1_000 + len(data))
    assert got == data[: max(size, len(first))]
    assert found == intact_batches(got, 1_000) != []
    assert max(asked) == max(min(size, len(data)), len(first))


def test_damage_is_not_read_twice() -> None:
    """Nor a batch that claims to go on behind the end."""
    data = bytearray(batch(RECORDS) * 3)
    asked = []

    def read(position: int, length: int) -> bytes:
        asked.append(length)
        return bytes(data[position : position + length])

    assert read_batches(read, 0, 0, 100, 150)[1] == []
    data[5] ^= 1
    assert read_batches(read, 0, 0, 100, len(data))[1] == []
    assert asked == [100, 100]
