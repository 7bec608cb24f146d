"""The store's codecs against arbitrary values and arbitrary bytes."""

import itertools
from collections.abc import Callable

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults import times

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.model import Key, Message, ProducerStamp
from vq.store.log.checkpoint import Checkpoint
from vq.store.records import codec
from vq.store.records.compression import compress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_MD5,
    COMPRESSIONS,
    CONTROL_BYTES,
    RECORD_HEADER,
    BatchHeader,
    decode_control,
    encode_control,
    md5,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.producers import ProducerTable, Records
from vq.store.records.record import (
    Properties,
    Record,
    boundaries,
    decode_into,
    decode_key,
    decode_properties,
    decode_records,
    encode_key,
    encode_properties,
    encode_record,
    python_decode_into,
)
from vq.store.records.record_filter import filter_records

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
KEYS = texts.filter(bool) | st.binary(max_size=200) | st.integers(-(2**63), 2**63 - 1)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.binary(max_size=300),
        st.none() | st.binary(max_size=10),
        st.none() | st.binary(max_size=40),
        st.integers(0, 3),
        st.sampled_from([CHECKSUM_MD5, CHECKSUM_CRC32C]),
    ),
    max_size=8,
)


@given(RECORDS, st.integers(0, 2**50))
def test_records_come_back(items: list[tuple], base: int) -> None:
    """Whatever they hold, with the offsets they have."""
    encoded = [encode_record(*item) for item in items]
    data = b"".join(encoded)
    found = decode_records(data, base)
    assert [(r.id, r.payload, r.tag, r.properties) for r in found] == [i[:4] for i in items]
    assert boundaries(data, base) == [base, *(r.next_offset for r in found)]
    offset = base
    for record, raw in zip(found, encoded, strict=True):
        assert (record.offset, record.next_offset) == (offset, offset + len(raw))
        offset += len(raw)


@given(RECORDS, st.sets(st.text(max_size=2), max_size=3))
def test_a_filter_keeps_exactly_the_tagged_records(items: list[tuple], tags: set[str]) -> None:
    """The same as decoding everything and looking at each."""
    data = b"".join(encode_record(*item) for item in items)
    slices, offsets, end = filter_records(memoryview(data), 7, Filter(tuple(tags)))
    wanted = [r for r in decode_records(data, 7) if r.tag in [tag.encode() for tag in tags]]
    assert offsets == [r.offset for r in wanted]
    assert b"".join(slices) == b"".join(data[r.offset - 7 : r.next_offset - 7] for r in wanted)
    assert end == 7 + len(data)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_never_do_worse_than_corrupt_data(data: bytes) -> None:
    """No other exception, no endless loop, from any decoder."""
    for decode in (
        lambda: decode_records(data, 0),
        lambda: boundaries(data, 0),
        lambda: filter_records(memoryview(data), 0, Filter(("x",))),
        lambda: decode_control(data),
        lambda: decode_properties(data),
        lambda: OffsetIndex.from_bytes(data),
        lambda: ProducerTable.from_bytes(data),
        lambda: Checkpoint.from_bytes(data),
    ):
        try:
            decode()
        except CorruptData:
            pass


@given(RECORDS, st.integers(0, 2**20), st.integers(0, 255), st.integers(0, 2**20), st.booleans())
def test_both_loops_give_the_same_records(
    items: list[tuple], at: int, change: int, cut: int, has_control: bool
) -> None:
    """Whole, cut anywhere, and with any byte changed; also the same error at the same offset."""
    data = bytearray(b"".join(encode_record(*item) for item in items))
    if has_control:
        data = bytearray(encode_control(BatchHeader(0, CONTROL_BYTES, 1, 1), 0)) + data
    if data:
        data[at % len(data)] ^= change
    whole = bytes(data[: cut % (len(data) + 1)] if cut % 2 else data)

    def result(decode: Callable[[bytes, int, list[Record]], int]) -> tuple[object, list[Record]]:
        out: list[Record] = []
        try:
            return decode(whole, 1_000, out), out
        except CorruptData as error:
            return (str(error), error.details), out

    assert result(decode_into) == result(python_decode_into)


@given(st.integers(20, 5_000), RECORDS)
def test_zeros_never_parse(zeros: int, items: list[tuple]) -> None:
    """Behind good records or alone, zeros end in an error at their first byte, never in records."""
    data = b"".join(encode_record(*item) for item in items)
    out: list = []
    with pytest.raises(CorruptData) as caught:
        decode_into(data + bytes(zeros), 0, out)
    assert caught.value.details["offset"] == len(data)
    assert len(out) == len(items)


@given(
    st.builds(
        BatchHeader,
        start_offset=u64,
        byte_length=st.integers(CONTROL_BYTES, 1 << 22),
        record_count=u32,
        append_time_ms=u64,
        master_epoch=u32,
        synced_offset=st.just(0),
        producer_id=u64,
        producer_epoch=st.integers(0, 2**16 - 1),
        producer_sequence=u64,
        transaction_id=u64,
        crc=st.just(0),
    ),
    st.binary(max_size=100),
    st.integers(0, 8 * CONTROL_BYTES - 1),
)
def test_control_records_come_back_and_single_bits_do_not_pass(
    header: BatchHeader, records: bytes, bit: int
) -> None:
    """Both ways; any flipped bit is damage."""
    data = encode_control(header, google_crc32c.value(records))
    decoded = decode_control(b"??" + data, 2)
    assert decoded is not None
    assert decoded._replace(crc=0) == header
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptData):
        decode_control(bytes(changed))


@given(
    st.builds(
        Properties,
        key=st.none() | KEYS,
        headers=st.dictionaries(texts, texts, max_size=4),
        delivery_time_ms=u64,
        retry_count=u32,
        origin=texts,
    )
)
def test_properties_come_back(properties: Properties) -> None:
    """All texts and numbers."""
    found = decode_properties(encode_properties(properties) or b"")
    assert found == properties
    assert type(found.key) is type(properties.key)


@given(KEYS)
def test_both_ways_to_a_key_agree(key: Key) -> None:
    """Short ones without protobuf, and the others with it."""
    properties = encode_properties(Properties(key=key))
    assert properties is not None
    assert encode_key(key) in (properties, None)
    assert decode_key(properties) in (key, None)


@given(st.binary(max_size=13) | st.binary(max_size=12).map(lambda rest: b"\x38" + rest))
def test_a_short_key_is_what_protobuf_reads(properties: bytes) -> None:
    """Any bytes that are read without protobuf mean the same to it."""
    try:
        found = decode_key(properties)
    except UnicodeDecodeError:
        found = None
    if found is not None:
        key = decode_properties(properties).key
        assert (key, type(key)) == (found, type(found))


@settings(max_examples=times(50, 5_000))
@given(
    st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 9), st.integers(0, 50)), max_size=30)
)
def test_an_index_never_points_behind_what_is_sought(steps: list[tuple[int, int, int]]) -> None:
    """Its entries are real batches at or before; searching on from there finds everything."""
    index = OffsetIndex(5)
    offset, messages, time = 5, 0, 0
    batches = []
    for size, count, wait in steps:
        time += wait
        index.maybe_add(offset, messages, time)
        batches.append((offset, messages, time))
        offset, messages = offset + size + 88, messages + count
    data = index.to_bytes(end_offset=offset, messages=messages)
    for which in (index, OffsetIndex.from_bytes(data)[0]):
        for batch in batches:
            assert tuple(which.at_offset(batch[0])) in batches
            assert which.at_offset(batch[0]).offset <= batch[0]
            older = which.before_time(batch[2])
            assert older.append_time_ms < batch[2] or older == (5, 0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.booleans()), max_size=40),
)
def test_a_producer_table_agrees_with_a_full_history(steps: list[tuple[int, int, bool]]) -> None:
    """Every repeat among the last five is recognised; the table through its bytes is the same."""
    table = ProducerTable()
    history: dict[int, list[int]] = {}
    for number, (producer, back, through_bytes) in enumerate(steps):
        sent = history.setdefault(producer, [])
        assert table.check(ProducerStamp(producer, 0, len(sent))) is None
        table.record(ProducerStamp(producer, 0, len(sent)), number, Records(1, number))
        sent.append(number)
        if through_bytes:
            table = ProducerTable.from_bytes(table.to_bytes())
        if back < len(sent):
            repeated = len(sent) - 1 - back
            assert table.check(ProducerStamp(producer, 0, repeated)) == sent[repeated]
            table.compare(ProducerStamp(producer, 0, repeated), Records(1, sent[repeated]))


# Both codecs --------------------------------------------------------------------------------------
def common_and_damaged() -> st.SearchStrategy[bytes]:
    """Logs of common records, then hurt in a few places or not."""

    def hurt(data: bytes, places: list[tuple[int, int]]) -> bytes:
        changed = bytearray(data)
        for at, value in places:
            if changed:
                changed[at % len(changed)] = value
        return bytes(changed)

    def record_of(
        id: int, payload: bytes, tag: bytes | None, head: bytes | None, kind: int, intact: bool
    ) -> bytes:
        if intact and kind in COMPRESSIONS:
            payload = compress(payload, kind)
        return encode_record(id, payload, tag, head, kind)

    keys = (texts | KEYS).map(lambda key: encode_properties(Properties(key=key)))
    names = st.dictionaries(texts, texts, max_size=4)
    both = st.builds(Properties, key=st.none() | KEYS, headers=names).map(encode_properties)
    few_hurts = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), max_size=2)
    headers = st.builds(lambda data, places: hurt(data or b"", places), both, few_hurts)
    record = st.builds(
        record_of,
        st.integers(0, 2**63 - 1),
        st.binary(max_size=300),
        st.none() | st.binary(min_size=1, max_size=10),
        st.none()
        | keys
        | headers
        | st.binary(max_size=10)
        | st.binary(max_size=12).map(b"\x38".__add__),
        st.sampled_from([0, 0, 0, 1, 2, 3, 5]),
        st.booleans(),
    )
    logs = st.lists(record, max_size=40).map(b"".join)
    hurts = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2)
    return st.builds(hurt, logs, hurts)


@pytest.mark.skipif(not codec.COMPILED, reason="the codec was not compiled here (no C compiler)")
@given(common_and_damaged() | st.binary(max_size=400), st.integers(0, 2**40))
def test_the_compiled_codec_reads_what_the_reference_reads(data: bytes, base: int) -> None:
    results = []
    for decode in (codec.python_decode_common, codec.decode_common):
        out: list[Message] = []
        tags: dict[bytes, str] = {}
        room = [500]
        results.append((decode(data, 0, base, "t", 1, tags, out, None, room), out, tags, room))
        results[-1] += ([list(each.headers or ()) for each in out],)  # in the same order
    assert results[0] == results[1]


@pytest.mark.skipif(not codec.COMPILED, reason="the codec was not compiled here (no C compiler)")
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.none() | st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=20)),
            st.integers(0, 2**63 - 1),
        ),
        max_size=40,
    )
)
def test_the_compiled_codec_writes_what_the_reference_writes(
    records: list[tuple[bytes, tuple[int, bytes] | None, int]],
) -> None:
    contents, heads, ids = ([each[place] for each in records] for place in range(3))
    assert codec.encode_records(contents, heads, ids) == codec.python_encode(contents, heads, ids)


HEADERS = st.builds(
    RECORD_HEADER.pack,
    st.integers(0, 60) | u32,
    st.just(bytes(4)),
    u64,
    st.sampled_from([0, 0, 1, 2, 3, 3, 4, 0x10, 0x20, 0x113, 0x200, 0x213]) | u32,
)
LENGTHS = st.integers(0, 40).map(lambda size: size.to_bytes(4, "big")) | st.binary(max_size=4)


@settings(max_examples=times(250, 5_000))
@given(
    RECORDS,
    st.lists(HEADERS | LENGTHS | st.binary(max_size=60), max_size=6),
    st.integers(0, 20),
    st.sampled_from([0, 10, 300, 1 << 20]),
)
def test_both_checks_of_structure_agree(
    items: list[tuple], more: list[bytes], count: int, payload_bytes_max: int
) -> None:
    """On good records, on nearly good ones and on arbitrary bytes."""
    data = b"".join([*(encode_record(*item) for item in items), *more])
    found = codec.python_well_formed(data, count, payload_bytes_max)
    assert codec.well_formed(data, count, payload_bytes_max) == found


@settings(max_examples=times(150, 5_000))
@given(RECORDS, st.lists(HEADERS | LENGTHS | st.binary(max_size=60), max_size=6))
def test_what_passes_the_check_can_be_taken_apart(items: list[tuple], more: list[bytes]) -> None:
    """With right checksums, a reader finds the same records at the same places."""
    data = b"".join([*(encode_record(*item) for item in items), *more])
    count, end = codec.well_formed(data, 100, 1 << 20)
    good = bytearray(data[:end])
    places = boundaries(good, 0)
    assert len(places) == count + 1
    assert places[-1] == end
    for start, stop in itertools.pairwise(places):
        flag = int.from_bytes(good[start + 16 : start + 20], "big")
        covered = bytes(good[start + 8 : stop])
        crc = google_crc32c.value(covered).to_bytes(4, "big")
        good[start + 4 : start + 8] = crc if flag & CHECKSUM_CRC32C else md5(covered).digest()[:4]
    found = decode_records(bytes(good), 0)
    assert [record.offset for record in found] == places[:-1]
    for record in found:
        if record.tag is not None:
            record.tag.decode()
