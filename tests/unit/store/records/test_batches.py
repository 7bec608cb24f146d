"""The two ways to walk batches: by their headers alone, and verified."""

from collections.abc import Callable

import pytest
from support.batches import batch

from vq.errors import CorruptData
from vq.store.records.batches import Order, headers, read_batches, read_headers, verified
from vq.store.records.format import BatchHeader, decode_control
from vq.store.records.record import encode_record

RECORDS = [encode_record(n, b"x" * 60, b"new") for n in range(1, 4)]
FIRST = batch(RECORDS, 1_000)
TWO = FIRST + batch(RECORDS, 1_000 + len(FIRST), 2_000)
END = 1_000 + len(TWO)


def starts(found: list[BatchHeader]) -> list[int]:
    return [each.start_offset for each in found]


def reading(data: bytes, asked: list[int] | None = None) -> Callable[[int, int], bytes]:
    """Return a ``pread`` of a block that begins at offset 1 000."""

    def read(position: int, length: int) -> bytes:
        if asked is not None:
            asked.append(length)
        return data[position : position + length]

    return read


def of_headers(data: bytes) -> list[BatchHeader]:
    return list(read_headers(reading(data), 1_000, 1_000, END, "0.block"))


def of_verified(data: bytes) -> list[BatchHeader]:
    return list(verified(data, 1_000))


def test_both_ways_yield_what_control_records_say() -> None:
    """The same headers, in order, however little is read at a time."""
    expected = [decode_control(TWO), decode_control(TWO, len(FIRST))]
    assert list(headers(TWO, 1_000)) == of_verified(TWO) == expected
    for size in (88, 89, len(FIRST), len(FIRST) + 88, 10_000):
        assert list(read_headers(reading(TWO), 1_000, 1_000, END, "", size=size)) == expected
    assert list(read_headers(reading(TWO), 1_000, 1_000 + len(FIRST), END, "")) == expected[1:]
    assert list(read_headers(reading(TWO), 1_000, END, END, "")) == []


def test_headers_may_go_on_behind_the_bytes_and_verified_batches_not() -> None:
    assert starts(list(headers(TWO[:-1], 1_000))) == [1_000, 1_000 + len(FIRST)]
    assert starts(of_verified(TWO[:-1])) == [1_000]
    assert list(headers(TWO[:87], 1_000)) == []


@pytest.mark.parametrize("walk", [of_headers, of_verified])
@pytest.mark.parametrize("at", [3, 9, 30, 60, 87])
def test_a_damaged_control_record_ends_both_ways(walk: Callable, at: int) -> None:
    """The error tells where, and why."""
    damaged = bytearray(TWO)
    damaged[len(FIRST) + at] ^= 1
    with pytest.raises(CorruptData, match="its control record is damaged") as caught:
        walk(bytes(damaged))
    assert caught.value.details["offset"] == 1_000 + len(FIRST)


@pytest.mark.parametrize("walk", [of_headers, of_verified])
def test_a_batch_that_says_it_lies_elsewhere_ends_both_ways(walk: Callable) -> None:
    with pytest.raises(CorruptData, match="that of offset 1000"):
        walk(FIRST + FIRST)


def test_damaged_records_are_seen_by_who_verifies() -> None:
    """It is told where the batch ends, since its control record is intact."""
    damaged = FIRST + TWO[len(FIRST) : -1] + b"?"
    assert starts(of_headers(damaged)) == [1_000, 1_000 + len(FIRST)]
    with pytest.raises(CorruptData, match="fail their CRC") as caught:
        of_verified(damaged)
    assert caught.value.details["end"] == END


def test_no_header_ends_behind_the_block() -> None:
    """Nor does a block end inside one."""
    with pytest.raises(CorruptData, match=f"of 0.block: it should end at {END}, the block ends"):
        list(read_headers(reading(TWO), 1_000, 1_000, END - 1, "0.block"))
    with pytest.raises(CorruptData, match="the file ends before it"):
        list(read_headers(reading(TWO[:-100]), 1_000, END, END + 100, "0.block"))


@pytest.mark.parametrize("size", [88, 100, 300, 1_000])
def test_one_batch_is_read_whole_however_large_it_is(size: int) -> None:
    """And no more than that beside what was asked for."""
    data = FIRST + batch(RECORDS, 1_000 + len(FIRST)) * 2
    asked: list[int] = []
    got, found = read_batches(reading(data, asked), 1_000, 1_000, size, 1_000 + len(data))
    assert got == data[: max(size, len(FIRST))]
    assert found[0] == decode_control(data)
    assert found[-1].end_offset <= 1_000 + len(got)
    assert max(asked) == max(min(size, len(data)), len(FIRST))


def test_damage_is_not_read_twice() -> None:
    """Nor a batch that claims to go on behind the end."""
    data = bytearray(FIRST * 3)
    asked: list[int] = []
    with pytest.raises(CorruptData, match="the block ends at 1150"):
        read_batches(reading(bytes(data), asked), 1_000, 1_000, 100, 1_150)
    data[5] ^= 1
    with pytest.raises(CorruptData, match="control record"):
        read_batches(reading(bytes(data), asked), 1_000, 1_000, 100, 1_000 + len(data))
    assert asked == [100, 100]


def test_what_is_read_ends_before_damage() -> None:
    """That is met by the next read."""
    data = TWO[:-1] + b"?"
    _, found = read_batches(reading(data), 1_000, 1_000, 10_000, END)
    assert starts(found) == [1_000]
    with pytest.raises(CorruptData, match="fail their CRC"):
        read_batches(reading(data), 1_000, 1_000 + len(FIRST), 10_000, END)
    with pytest.raises(CorruptData, match="the file ends before it"):
        read_batches(reading(TWO[:-1]), 1_000, 1_000 + len(FIRST), 100, END)


def test_epochs_and_times_never_fall() -> None:
    """Where an order is kept; a batch that was not taken changes nothing of it."""
    back = batch(RECORDS, 1_000 + len(FIRST), 999)
    assert starts(read_batches(reading(FIRST + back), 1_000, 1_000, 10_000, END)[1])[1:]
    order = Order()
    _, found = read_batches(reading(FIRST + back), 1_000, 1_000, 10_000, END, order)
    assert (starts(found), order) == ([1_000], Order(0, 1_000))
    with pytest.raises(CorruptData, match="1 ms before the batch before it"):
        read_batches(reading(FIRST + back), 1_000, 1_000 + len(FIRST), 10_000, END, order)
    assert order == Order(0, 1_000)
    with pytest.raises(CorruptData, match="of epoch 0 and follows one of epoch 3"):
        Order(3, 0).take(found[0])
