"""A filter picks whole records by tag, and believes no tag that it has not verified."""

from collections.abc import Callable

import pytest

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.store.records import codec, tag_filter
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
from vq.store.records.tag_filter import filter_by_tag

PLAIN = encode_record(1, b"plain")
TAGGED = encode_record(2, b"tagged", b"red")
FULL = encode_record(3, b"full", b"blue", encode_properties(Properties(key="k")))
CONTROL = encode_control(BatchHeader(0, 88 + len(PLAIN + TAGGED + FULL), 3, 1), 0)
BATCH = CONTROL + PLAIN + TAGGED + FULL
UNCOMMON = (
    encode_record(4, compress(b"zlib", COMPRESSION_ZLIB), b"red", None, COMPRESSION_ZLIB)
    + encode_record(5, b"crc", b"red", None, 0, CHECKSUM_CRC32C)
)  # fmt: skip


def test_filter_keeps_whole_records_of_the_tags_and_merges_neighbours() -> None:
    """Slices of the buffer, one per run; offsets of each record; and where to go on."""
    data = memoryview(BATCH + BATCH + TAGGED[:-1])
    slices, offsets, end = filter_by_tag(data, 100, Filter(("red", "blue")))
    first = len(CONTROL) + len(PLAIN)
    assert [bytes(s) for s in slices] == [TAGGED + FULL, TAGGED + FULL]
    assert offsets == [
        100 + first,
        100 + first + len(TAGGED),
        100 + len(BATCH) + first,
        100 + len(BATCH) + first + len(TAGGED),
    ]
    assert end == 100 + 2 * len(BATCH)
    assert filter_by_tag(data, 100, Filter(("green",))) == ([], [], end)


def test_control_records_of_unknown_sizes_are_passed_over() -> None:
    """One of a later version does not stop the readers of this one; a damaged one does."""
    payload = b"\x02" * 200
    unknown = CHECKSUM_HEADER.pack(200, md5(payload).digest())
    unknown += COVERED_HEADER.pack(0, FLAG_CONTROL) + payload
    data = TAGGED + unknown + TAGGED
    slices, offsets, end = filter_by_tag(memoryview(data), 0, Filter(("red",)))
    assert (b"".join(slices), end) == (TAGGED + TAGGED, len(data))
    assert offsets == [0, len(TAGGED + unknown)]
    damaged = TAGGED + unknown[:-1] + b"x" + TAGGED
    assert filter_by_tag(memoryview(damaged), 0, Filter(("red",)))[2] == len(TAGGED)


def test_a_tag_that_reaches_beyond_its_record_matches_nothing() -> None:
    """Though the bytes behind the record would complete it."""
    covered = COVERED_HEADER.pack(1, FLAG_TAG) + (3).to_bytes(4, "big") + b"re"
    lying = CHECKSUM_HEADER.pack(len(covered) - 12, md5(covered).digest()) + covered
    data = memoryview(lying + TAGGED)
    reached = bytes(data[24:27]).decode()
    assert filter_by_tag(data, 0, Filter((reached,))) == ([], [], len(data))


@pytest.mark.parametrize("intact", [codec.python_intact, codec.intact], ids=["python", "installed"])
def test_every_flipped_bit_ends_the_walk(
    monkeypatch: pytest.MonkeyPatch, intact: Callable[..., int]
) -> None:
    """What lies before it is picked; nothing behind it is, and no record is left out unseen."""
    monkeypatch.setattr(tag_filter, "intact", intact)
    data = BATCH + UNCOMMON + BATCH
    edges = boundaries(data, 0)
    wanted = [r.offset for r in decode_records(data, 0) if r.tag == b"red"]
    assert filter_by_tag(memoryview(data), 0, Filter(("red",)))[1:] == (wanted, len(data))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        where = max(edge for edge in edges if edge <= bit // 8)
        if where:
            _, offsets, end = filter_by_tag(memoryview(damaged), 0, Filter(("red",)))
            assert (offsets, end) == ([at for at in wanted if at < where], where), bit
        at_damage = memoryview(damaged)[where:]  # where the next step goes on
        size = int.from_bytes(at_damage[:4], "big")
        if size <= len(at_damage) - 20 or size > RECORD_LENGTH_MAX:
            with pytest.raises(CorruptData) as refused:
                filter_by_tag(at_damage, where, Filter(("red",)))
            assert refused.value.details == {"offset": where}
        else:  # it claims to be longer than what there is
            assert filter_by_tag(at_damage, where, Filter(("red",))) == ([], [], where)
