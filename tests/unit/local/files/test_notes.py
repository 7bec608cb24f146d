"""Ranges of numbers, notes and snapshots: what is written is what is read."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.errors import CorruptData
from vq.local.files.notes import (
    Aside,
    LaneSnapshot,
    OpenRange,
    Snapshot,
    code_of,
    decode_note,
    encode_notes,
    lane_and_number,
    merged,
    ranges_of,
    without,
)

NUMBERS = st.sets(st.integers(0, 60))


def numbers_in(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for start, end in ranges for number in range(start, end)}


@given(NUMBERS)
def test_ranges_cover_the_numbers_and_do_not_touch(numbers: set[int]) -> None:
    ranges = ranges_of(numbers)
    assert numbers_in(ranges) == numbers
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))


@given(NUMBERS, NUMBERS)
def test_merged_ranges_cover_both(first: set[int], second: set[int]) -> None:
    found = merged([*ranges_of(first), *ranges_of(second)])
    assert found == ranges_of(first | second)


@given(NUMBERS, st.integers(0, 60), st.integers(0, 60))
def test_what_is_left_of_a_range(gone: set[int], start: int, size: int) -> None:
    left = list(without((start, start + size), ranges_of(gone)))
    assert numbers_in(left) == set(range(start, start + size)) - gone


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2**40))))
def test_notes_say_which_messages_were_completed(places: set[tuple[int, int]]) -> None:
    codes = [code_of(*place) for place in places]
    assert {lane_and_number(code) for code in codes} == places
    found = {
        (lane, number)
        for note in encode_notes(codes)
        for lane, (start, end) in decode_note(note)
        for number in range(start, end)
    }
    assert found == places


def test_many_ranges_become_several_notes() -> None:
    codes = [code_of(1, 2 * number) for number in range(100_000)]
    notes = encode_notes(codes)
    assert len(notes) == 4
    assert sum(len(list(decode_note(note))) for note in notes) == 100_000


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x01\x00", b"\x01\x09\0\0\0\1" + bytes(16)])
def test_bytes_that_are_no_note_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        list(decode_note(data))


def test_a_snapshot_comes_back_as_it_was() -> None:
    lane = LaneSnapshot(17, 4_000, [OpenRange(3, 5, 100), OpenRange(9, 10, 400)], [(20, 25)], 9_000)
    snapshot = Snapshot(
        [lane, LaneSnapshot(), LaneSnapshot()],
        [Aside(1_000, 4, 300, 2, 5)],
        6,
        700,
        [("order-17", 1_750_000_000_000)],
        88,
    )
    assert Snapshot.from_bytes(snapshot.to_bytes()) == snapshot


def test_a_damaged_snapshot_is_refused() -> None:
    data = Snapshot().to_bytes().replace(b'"notes": 0', b'"notes": 9')
    with pytest.raises(CorruptData):
        Snapshot.from_bytes(data)
