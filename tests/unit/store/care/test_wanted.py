"""What a search looks for, and which records of a batch have it."""

import pytest
from support.batches import batch, keyed
from support.cases import case

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.model import Key
from vq.store.care.wanted import Wanted, key_of, matches
from vq.store.records.batches import verified
from vq.store.records.format import CONTROL_BYTES, BatchHeader
from vq.store.records.record import encode_record

LONG_TEXT, LONG_BYTES = "k" * 300, b"\xff" * 300
KEYS: list[Key] = ["a", "漢字", LONG_TEXT, b"a", b"", LONG_BYTES, 0, 1, -1, 2**63 - 1, -(2**63)]


def found(wanted: Wanted, records: list[bytes]) -> list[int]:
    """The numbers of the records that match."""
    data = batch(records)
    (only,) = verified(data, 0)
    starts = [CONTROL_BYTES]
    for each in records:
        starts.append(starts[-1] + len(each))
    return [starts.index(start) for start, _ in matches(data, 0, only, wanted)]


RECORDS = [
    encode_record(1, b"plain"),
    encode_record(2, b"tagged", b"new"),
    encode_record(3, b"keyed", None, keyed("a")),
    encode_record(4, b"both", b"new", keyed("a", headers={"h": "v"})),
    encode_record(5, b"other", b"old", keyed("b")),
]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Wanted(), [0, 1, 2, 3, 4]),
        (Wanted(id=3), [2]),
        (Wanted(id=9), []),
        (Wanted(key="a"), [2, 3]),
        (Wanted(filter=Filter(("new",))), [1, 3]),
        (Wanted(filter=Filter(("new", "old"))), [1, 3, 4]),
        (Wanted(key="a", filter=Filter(("new",))), [3]),
        (Wanted(id=4, key="a", filter=Filter(("new",))), [3]),
        (Wanted(id=4, key="b"), []),
    ],
)
def test_a_message_must_have_all_that_is_asked_for(wanted: Wanted, numbers: list[int]) -> None:
    assert found(wanted, RECORDS) == numbers


def test_the_tag_of_a_message_without_one_is_not_the_empty_tag() -> None:
    assert found(Wanted(filter=Filter(("ne",))), RECORDS) == []


@pytest.mark.parametrize("headers", [{}, {"a": "b"}])
def test_a_key_is_found_by_its_type_and_value(headers: dict[str, str]) -> None:
    """Long or short, alone or beside headers; equal digits of another type are another key."""
    records = [
        encode_record(n, b"", None, keyed(each, headers=headers)) for n, each in enumerate(KEYS)
    ]
    for number, key in enumerate(KEYS):
        with case(key):
            assert found(Wanted(key=key), records) == [number]
            (needle,) = Wanted(key=key).needles
            assert needle in records[number]


@pytest.mark.parametrize(
    "wanted", [Wanted(id=4), Wanted(key="a"), Wanted(filter=Filter(("new", "old")))]
)
def test_a_message_wanted_has_a_needle(wanted: Wanted) -> None:
    for number in found(wanted, RECORDS):
        assert any(needle in RECORDS[number] for needle in wanted.needles)


def test_without_a_wish_there_is_no_needle() -> None:
    assert Wanted().needles == ()


@pytest.mark.parametrize("properties", [b"\x0a\x02\xff\xfe", b"\x0a\xff", b"garbage", b""])
def test_damaged_properties_have_no_key(properties: bytes) -> None:
    assert key_of(properties) is None


@pytest.mark.parametrize("cut", [1, 10, 25])
def test_records_that_do_not_fill_their_batch_are_damage(cut: int) -> None:
    data = batch([RECORDS[1]])
    with pytest.raises(CorruptData):
        list(matches(data, 0, BatchHeader(0, len(data) - cut, 1, 0), Wanted(filter=Filter(("x",)))))


def test_fields_behind_the_end_of_a_record_are_damage() -> None:
    record = bytearray(RECORDS[1])
    record[20:24] = (1_000).to_bytes(4, "big")
    data = batch([bytes(record)])
    with pytest.raises(CorruptData):
        list(matches(data, 0, BatchHeader(0, len(data), 1, 0), Wanted(filter=Filter(("x",)))))
