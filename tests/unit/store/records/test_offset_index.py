"""The sparse index of a block."""

import pytest

from vq.errors import CorruptData
from vq.store.records.offset_index import INTERVAL_BYTES, IndexEntry, OffsetIndex


def index() -> OffsetIndex:
    """Batches of 40 000 bytes and 10 messages, 1 s apart: every second one gets an entry."""
    made = OffsetIndex(1000, messages_before=500)
    for number in range(10):
        made.maybe_add(1000 + number * 40_000, number * 10, 5_000 + number * 1_000)
    return made


def test_entries_are_an_interval_apart() -> None:
    """The first batch has one, then every batch at least 64 KiB further on."""
    assert len(index()) == 5
    assert INTERVAL_BYTES == 65_536


def test_search_by_offset() -> None:
    """The last entry at or before."""
    assert index().at_offset(1000) == IndexEntry(1000, 0, 5_000)
    assert index().at_offset(80_999) == IndexEntry(1000, 0, 5_000)
    assert index().at_offset(81_000) == IndexEntry(81_000, 20, 7_000)
    assert index().at_offset(10**9) == IndexEntry(321_000, 80, 13_000)


def test_search_by_time() -> None:
    """The last entry that is older; the block's start if none is."""
    assert index().before_time(5_000) == IndexEntry(1000, 0, 0)
    assert index().before_time(7_001) == IndexEntry(81_000, 20, 7_000)
    assert index().before_time(7_000) == IndexEntry(1000, 0, 5_000)
    assert OffsetIndex(7).before_time(1) == IndexEntry(7, 0, 0)


def test_search_by_what_a_batch_says() -> None:
    """The last entry before the first that is late; the block's start if all or none are."""
    late = index().before_first
    assert late(lambda offset: offset >= 241_000) == IndexEntry(161_000, 40, 9_000)
    assert late(lambda offset: True) == IndexEntry(1000, 0, 0)
    assert late(lambda offset: False) == IndexEntry(321_000, 80, 13_000)
    assert OffsetIndex(7).before_first(lambda offset: True) == IndexEntry(7, 0, 0)


def test_bytes_come_back() -> None:
    """With what they cover; the next entry is due where it would have been."""
    data = index().to_bytes(end_offset=401_000, messages=100)
    back, end, messages = OffsetIndex.from_bytes(data)
    assert (end, messages, back.messages_before, len(back)) == (401_000, 100, 500, 5)
    assert back.to_bytes(end_offset=end, messages=messages) == data
    back.maybe_add(321_000 + INTERVAL_BYTES - 1, 0, 0)
    assert len(back) == 5
    back.maybe_add(321_000 + INTERVAL_BYTES, 0, 0)
    assert len(back) == 6


def test_an_empty_index_comes_back() -> None:
    """A block without batches has one too."""
    back, end, messages = OffsetIndex.from_bytes(OffsetIndex(5).to_bytes(end_offset=5, messages=0))
    assert (back.start_offset, end, messages, len(back)) == (5, 5, 0, 0)


def test_damage_is_noticed() -> None:
    """Any cut, any flipped bit, anything appended."""
    data = index().to_bytes(end_offset=401_000, messages=100)
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            OffsetIndex.from_bytes(data[:size])
    for at in range(len(data)):
        with pytest.raises(CorruptData):
            OffsetIndex.from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CorruptData):
        OffsetIndex.from_bytes(data + b"x")
