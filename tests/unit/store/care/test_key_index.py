"""The key index of a block: it misses nothing, rules out most, and is refused when damaged."""

import random

import google_crc32c
import pytest
from support.batches import batch, keyed

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.model import Key
from vq.store.care import key_index
from vq.store.care.key_index import KeyIndex, KeyIndexBuilder, Part, Probe
from vq.store.care.wanted import Wanted
from vq.store.records.batches import verified
from vq.store.records.record import encode_record

START = 4_096


def built(batches: list[list[bytes]], start: int = START) -> tuple[KeyIndex, bytes]:
    """The index of a block with these batches, appended a second apart, and the block's bytes."""
    data = b""
    for number, records in enumerate(batches):
        data += batch(records, start + len(data), 1_000 * (number + 1))
    builder = KeyIndexBuilder(start)
    assert builder.add(data, list(verified(data, start)), start) == sum(map(len, batches))
    return KeyIndex(builder.to_bytes()), data


def numbers(index: KeyIndex, wanted: Wanted) -> list[int]:
    """The parts that may have it."""
    probe = Probe(wanted)
    return [number for number in range(len(index)) if index.may_have(number, probe)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is a part of its own."""
    monkeypatch.setattr(key_index, "PART_BYTES", 1)


def test_an_index_tells_where_its_parts_are(small_parts: None) -> None:
    index, data = built(
        [[encode_record(5, b"a")], [encode_record(9, b"b"), encode_record(7, b"c")]]
    )
    middle = START + len(data) - len(batch([encode_record(9, b"b"), encode_record(7, b"c")]))
    end = START + len(data)
    assert (index.start_offset, index.end_offset, index.last_batch) == (START, end, middle)
    assert index.last_crc == google_crc32c.value(data[middle - START : middle - START + 88])
    assert [index.part(n) for n in range(len(index))] == [
        Part(START, middle, 1_000, 1_000),
        Part(middle, end, 2_000, 2_000),
    ]
    assert [index.part_at(at) for at in (START, middle - 1, middle, end - 1)] == [0, 0, 1, 1]


def test_an_id_is_looked_for_between_the_least_and_the_largest_of_a_part(small_parts: None) -> None:
    index, _ = built([[encode_record(5, b"")], [encode_record(9, b""), encode_record(7, b"")]])
    told = {number: numbers(index, Wanted(id=number)) for number in (4, 5, 6, 7, 8, 9, 10)}
    assert told == {4: [], 5: [0], 6: [], 7: [1], 8: [1], 9: [1], 10: []}


def test_keys_of_different_types_and_tags_are_apart(small_parts: None) -> None:
    keys: list[Key] = ["1", b"1", 1, "tag"]
    index, _ = built(
        [
            *[[encode_record(1, b"", None, keyed(key))] for key in keys],
            [encode_record(1, b"", b"tag")],
            [encode_record(1, b"1")],
        ]
    )
    assert [numbers(index, Wanted(key=key)) for key in keys] == [[0], [1], [2], [3]]
    assert numbers(index, Wanted(filter=Filter(("tag", "none")))) == [4]
    assert numbers(index, Wanted(key="tag", filter=Filter(("tag",)))) == []
    assert numbers(index, Wanted()) == [0, 1, 2, 3, 4, 5]
    assert Probe(Wanted()).is_idle


def test_a_key_beside_headers_is_in_the_index(small_parts: None) -> None:
    index, _ = built([[encode_record(1, b"", b"t", keyed("k" * 500, headers={"a": "b"}))]])
    assert numbers(index, Wanted(key="k" * 500)) == [0]
    assert numbers(index, Wanted(key="a")) == []


def test_few_parts_seem_to_have_a_key_that_is_not_there() -> None:
    """About one in 120, as 10 bits for each key tell."""
    rng = random.Random(3)
    batches = [
        [encode_record(n, bytes(200), None, keyed(rng.randrange(2**40))) for n in range(1_200)]
        for _ in range(20)
    ]
    index, data = built(batches)
    assert len(index) == 20
    tries = 500
    wrong = sum(len(numbers(index, Wanted(key=f"absent-{n}"))) for n in range(tries))
    assert wrong / (tries * len(index)) < 0.02
    made = KeyIndexBuilder(START)
    made.add(data, list(verified(data, START)), START)
    assert len(made.to_bytes()) < len(data) // 100


def test_the_last_part_ends_with_the_block(small_parts: None) -> None:
    builder = KeyIndexBuilder(0)
    data = batch([encode_record(1, b"x")])
    builder.add(data, list(verified(data, 0)), 0)
    index = KeyIndex(builder.to_bytes())
    assert (builder.end_offset, index.part(0).end, len(index)) == (len(data), len(data), 1)


def _with_crc(data: bytes) -> bytes:
    return data + google_crc32c.value(data).to_bytes(4, "big")


def test_a_damaged_index_is_refused() -> None:
    builder = KeyIndexBuilder(START)
    data = batch([encode_record(1, b"x", b"t", keyed("k"))], START)
    builder.add(data, list(verified(data, START)), START)
    good = builder.to_bytes()
    KeyIndex(good)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptData):
            KeyIndex(bytes(damaged))
    for size in range(len(good)):
        with pytest.raises(CorruptData):
            KeyIndex(good[:size])


def test_an_index_that_contradicts_itself_is_refused_though_its_crc_holds() -> None:
    builder = KeyIndexBuilder(START)
    data = batch([encode_record(1, b"x", b"t")], START)
    builder.add(data, list(verified(data, START)), START)
    body = builder.to_bytes()[:-4]
    for at, value in (
        (36, b"\x00\x00\x00\x00"),  # no part
        (36, b"\xff\xff\xff\xff"),  # more parts than bytes
        (40, b"\x00" * 8),  # the first part begins elsewhere
        (16, (START).to_bytes(8, "big")),  # it ends where it starts
        (80, b"\xff" * 8),  # a filter without end
        (80, b"\x00" * 8),  # bytes behind the filters
    ):
        wrong = body[:at] + value + body[at + len(value) :]
        with pytest.raises(CorruptData):
            KeyIndex(_with_crc(wrong))
