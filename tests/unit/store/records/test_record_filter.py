"""A filter picks whole records, and believes no tag or header that it has not verified."""

from collections.abc import Callable

import pytest

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.store.records import codec, record_filter
from vq.store.records.compression import compress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_HEADER,
    COMPRESSION_ZLIB,
    COVERED_HEADER,
    FLAG_CONTROL,
    FLAG_TAG,
    RECORD_LENGTH_MAX,
    BatchHeader,
    encode_control,
    md5,
)
from vq.store.records.record import (
    Properties,
    boundaries,
    decode_records,
    encode_properties,
    encode_record,
)
from vq.store.records.record_filter import filter_records

PLAIN = encode_record(1, b"plain")
TAGGED = encode_record(2, b"tagged", b"red")
FULL = encode_record(3, b"full", b"blue", encode_properties(Properties(key="k")))
CONTROL = encode_control(BatchHeader(0, 88 + len(PLAIN + TAGGED + FULL), 3, 1), 0)
BATCH = CONTROL + PLAIN + TAGGED + FULL
UNCOMMON_EACH = (
    encode_record(4, compress(b"zlib", COMPRESSION_ZLIB), b"red", None, COMPRESSION_ZLIB),
    encode_record(5, b"crc", b"red", None, 0, CHECKSUM_CRC32C),
)
UNCOMMON = b"".join(UNCOMMON_EACH)


def test_filter_keeps_whole_records_of_the_tags_and_merges_neighbours() -> None:
    """Slices of the buffer, one per run; offsets of each record; and where to go on."""
    data = memoryview(BATCH + BATCH + TAGGED[:-1])
    slices, offsets, end = filter_records(data, 100, Filter(("red", "blue")))
    first = len(CONTROL) + len(PLAIN)
    assert [bytes(s) for s in slices] == [TAGGED + FULL, TAGGED + FULL]
    assert offsets == [
        100 + first,
        100 + first + len(TAGGED),
        100 + len(BATCH) + first,
        100 + len(BATCH) + first + len(TAGGED),
    ]
    assert end == 100 + 2 * len(BATCH)
    assert filter_records(data, 100, Filter(("green",))) == ([], [], end)


def test_control_records_of_unknown_sizes_are_passed_over() -> None:
    """One of a later version does not stop the readers of this one; a damaged one does."""
    payload = b"\x02" * 200
    unknown = CHECKSUM_HEADER.pack(200, md5(payload).digest())
    unknown += COVERED_HEADER.pack(0, FLAG_CONTROL) + payload
    data = TAGGED + unknown + TAGGED
    slices, offsets, end = filter_records(memoryview(data), 0, Filter(("red",)))
    assert (b"".join(slices), end) == (TAGGED + TAGGED, len(data))
    assert offsets == [0, len(TAGGED + unknown)]
    damaged = TAGGED + unknown[:-1] + b"x" + TAGGED
    assert filter_records(memoryview(damaged), 0, Filter(("red",)))[2] == len(TAGGED)


def test_a_tag_that_reaches_beyond_its_record_matches_nothing() -> None:
    """Though the bytes behind the record would complete it."""
    covered = COVERED_HEADER.pack(1, FLAG_TAG) + (3).to_bytes(4, "big") + b"re"
    lying = CHECKSUM_HEADER.pack(len(covered) - 12, md5(covered).digest()) + covered
    data = memoryview(lying + TAGGED)
    reached = bytes(data[24:27]).decode()
    assert filter_records(data, 0, Filter((reached,))) == ([], [], len(data))


@pytest.mark.parametrize("intact", [codec.python_intact, codec.intact], ids=["python", "installed"])
def test_every_flipped_bit_ends_the_walk(
    monkeypatch: pytest.MonkeyPatch, intact: Callable[..., int]
) -> None:
    """What lies before it is picked; nothing behind it is, and no record is left out unseen."""
    monkeypatch.setattr(record_filter, "intact", intact)
    data = BATCH + UNCOMMON + BATCH
    edges = boundaries(data, 0)
    wanted = [r.offset for r in decode_records(data, 0) if r.tag == b"red"]
    assert filter_records(memoryview(data), 0, Filter(("red",)))[1:] == (wanted, len(data))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        where = max(edge for edge in edges if edge <= bit // 8)
        if where:
            _, offsets, end = filter_records(memoryview(damaged), 0, Filter(("red",)))
            assert (offsets, end) == ([at for at in wanted if at < where], where), bit
        at_damage = memoryview(damaged)[where:]  # where the next step goes on
        size = int.from_bytes(at_damage[:4], "big")
        if size <= len(at_damage) - 20 or size > RECORD_LENGTH_MAX:
            with pytest.raises(CorruptData) as refused:
                filter_records(at_damage, where, Filter(("red",)))
            assert refused.value.details == {"offset": where}
        else:  # it claims to be longer than what there is
            assert filter_records(at_damage, where, Filter(("red",))) == ([], [], where)


# Expressions ------------------------------------------------------------------------------------
def priced(number: int, price: str | None, payload: bytes = b"x") -> bytes:
    headers = {} if price is None else {"price": price}
    return encode_record(number, payload, None, encode_properties(Properties("k", headers)))


PRICED = [priced(1, "9"), priced(2, "11"), priced(3, None), priced(4, "ten"), priced(5, "12")]


def where(text: str) -> Filter:
    return Filter.of_request((), text)


def test_an_expression_keeps_the_records_of_which_it_is_true() -> None:
    data = CONTROL + b"".join(PRICED) + CONTROL + TAGGED + PRICED[1] + PRICED[0][:-1]
    slices, offsets, end = filter_records(memoryview(data), 0, where("price > 10"))
    assert b"".join(slices) == PRICED[1] + PRICED[4] + PRICED[1]
    assert len(offsets) == 3
    assert end == len(data) - len(PRICED[0]) + 1
    assert filter_records(memoryview(data), 0, where("price IS NULL AND TAGS = 'red'"))[1] == [
        data.index(TAGGED)
    ]


def test_where_nothing_can_match_no_record_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes have none of what a record that matches has; they are verified all the same."""
    data = b"".join([*PRICED, *UNCOMMON_EACH, *PRICED])
    monkeypatch.setattr(record_filter, "is_true_at", lambda *_: pytest.fail("looked at one"))
    assert filter_records(memoryview(data), 7, where("region = 'hz'")) == ([], [], 7 + len(data))
    damaged = bytearray(data)
    damaged[-1] ^= 1
    end = 7 + len(data) - len(PRICED[-1])
    assert filter_records(memoryview(bytes(damaged)), 7, where("region = 'hz'")) == ([], [], end)


def test_a_cut_record_is_left_for_the_next_answer_where_nothing_can_match() -> None:
    data = b"".join(PRICED) + encode_record(9, b"x" * 100)[:50]
    assert filter_records(memoryview(data), 0, where("region = 'hz'"))[2] == len(data) - 50
    with pytest.raises(CorruptData, match="fails its checksum"):
        filter_records(memoryview(b"\0" * 200), 0, where("region = 'hz'"))


def test_fields_that_cannot_be_parsed_are_no_reason_to_hide_a_message() -> None:
    """Their reader meets them, and tells."""
    for bad in (
        encode_record(1, b"price", b"\xff"),
        encode_record(2, b"", None, b"\xff\xffprice"),
    ):
        wanted = where("price > 10")
        assert filter_records(memoryview(bad), 0, wanted)[1] == [0]


def test_every_flipped_bit_is_found_by_an_expression_too() -> None:
    data = PRICED[0] + PRICED[1]
    for position in range(len(PRICED[0]), len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            _, offsets, end = filter_records(memoryview(bytes(flipped)), 0, where("price > 10"))
            assert (offsets, end) == ([], len(PRICED[0]))
