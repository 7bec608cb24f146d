"""The record codec: what goes in comes out, and damage never does."""

from random import Random

import google_crc32c
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from support.cases import case
from support.key_vectors import KEY_VECTORS

from vq import limits
from vq.errors import CorruptData, InvalidArgument, MessageTooLarge
from vq.message_filter import Filter
from vq.model import Key
from vq.store.records.compression import compress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_HEADER,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    COVERED_HEADER,
    FLAG_COMPRESSION_SHIFT,
    BatchHeader,
    encode_control,
    md5,
)
from vq.store.records.record import (
    Properties,
    Record,
    boundaries,
    bytes_needed,
    decode_into,
    decode_key,
    decode_properties,
    decode_records,
    encode_key,
    encode_properties,
    encode_record,
    read_properties,
)
from vq.store.records.record_filter import filter_records

PLAIN = encode_record(1, b"plain")
TAGGED = encode_record(2, b"tagged", b"red")
FULL = encode_record(3, b"full", b"blue", encode_properties(Properties(key="k")), 0)
CONTROL = encode_control(
    BatchHeader(0, 88 + len(PLAIN + TAGGED + FULL), 3, 1), google_crc32c.value(PLAIN)
)
BATCH = CONTROL + PLAIN + TAGGED + FULL


def test_records_have_these_bytes() -> None:
    """Golden: length, MD5, id, flag, tag, payload."""
    assert PLAIN.hex() == "00000005e3270d68000000000000000100000000706c61696e"
    assert TAGGED.hex() == ("0000000d3444a0df00000000000000020000000100000003726564746167676564")


def test_a_batch_gives_its_records_and_no_control_record() -> None:
    """Offsets count from the base, and every field is there."""
    out: list[Record] = []
    end = decode_into(BATCH, 1000, out)
    assert end == 1000 + len(BATCH)
    assert [(r.offset, r.next_offset, r.id, r.tag, r.payload) for r in out] == [
        (1088, 1113, 1, None, b"plain"),
        (1113, 1146, 2, b"red", b"tagged"),
        (1146, end, 3, b"blue", b"full"),
    ]
    assert out[2].properties is not None
    assert decode_properties(out[2].properties).key == "k"


def test_an_incomplete_last_record_is_left_alone() -> None:
    """Wherever the buffer ends, the whole records before come out, and the offset to go on from."""
    edges = boundaries(BATCH, 0)
    for size in range(len(BATCH) + 1):
        out: list[Record] = []
        end = decode_into(memoryview(BATCH)[:size], 0, out)
        assert end == max(edge for edge in edges if edge <= size)
        assert out == [r for r in decode_records(BATCH, 0) if r.next_offset <= size]


def test_every_changed_byte_behind_a_header_is_noticed() -> None:
    """Damage raises, tells where, and leaves the records before it."""
    for at in range(len(CONTROL) + len(PLAIN) + 20, len(CONTROL) + len(PLAIN) + len(TAGGED)):
        damaged = bytearray(BATCH)
        damaged[at] ^= 1
        out: list[Record] = []
        with pytest.raises(CorruptData) as caught:
            decode_into(bytes(damaged), 0, out)
        assert caught.value.details["offset"] == len(CONTROL) + len(PLAIN)
        assert [r.id for r in out] == [1]


def test_zeros_are_no_record() -> None:
    """Twenty zero bytes are damage, not an empty message."""
    with pytest.raises(CorruptData):
        decode_records(bytes(20), 0)


def test_an_impossible_length_is_damage_not_a_wait() -> None:
    """A reader must not ask for 4 GiB more."""
    data = b"\xff" * 20
    for call in (
        lambda: decode_records(data, 0),
        lambda: boundaries(data, 0),
        lambda: bytes_needed(data),
        lambda: filter_records(memoryview(data), 0, Filter(("x",))),
    ):
        with pytest.raises(CorruptData):
            call()


@pytest.mark.parametrize("flag", [0x8, 0x80, 0x1000, 0x200, 0x5, 0x300])
def test_unknown_flags_are_refused(flag: int) -> None:
    """A record of a kind this version does not know is not guessed at."""
    record = bytearray(encode_record(1, b"x" * 68))
    record[16:20] = flag.to_bytes(4, "big")
    with pytest.raises(CorruptData):
        decode_records(bytes(record), 0)


def test_a_tag_longer_than_its_record_is_damage() -> None:
    """The inner length is checked too, tag and properties alike."""
    lying = (1000).to_bytes(4, "big") + b"red"
    for flag in (1, 2, 3):
        covered = COVERED_HEADER.pack(1, flag) + lying
        record = CHECKSUM_HEADER.pack(len(lying), md5(covered).digest()) + covered
        with pytest.raises(CorruptData, match="longer than itself"):
            decode_records(record, 0)


def test_crc_records_are_verified_with_crc() -> None:
    """The flag chooses the checksum, which covers the same bytes."""
    plain = encode_record(1, b"plain", checksum=CHECKSUM_CRC32C)
    assert plain.hex() == "000000056b72e8e8000000000000000100000100706c61696e"
    record = encode_record(9, b"crc", b"t", None, 0, CHECKSUM_CRC32C)
    assert decode_records(record, 0)[0][2:] == (9, 0x101, b"t", None, b"crc")
    with pytest.raises(CorruptData):
        decode_records(record[:-1] + b"x", 0)


def test_an_empty_message_is_a_record() -> None:
    """Nothing but an id is still a message."""
    assert decode_records(encode_record(4, b""), 0)[0].payload == b""


def test_bounds_of_the_parts() -> None:
    """Tag, properties and payload are refused one byte above their bound, taken at it."""
    encode_record(1, bytes(limits.MESSAGE_BYTES_MAX), bytes(255), bytes(36 * 1024))
    for arguments in (
        (bytes(limits.MESSAGE_BYTES_MAX + 1),),
        (b"", bytes(256)),
        (b"", None, bytes(36 * 1024 + 1)),
    ):
        with pytest.raises(MessageTooLarge):
            encode_record(1, *arguments)


def test_bytes_needed_tells_how_much_to_ask_for() -> None:
    """A header at first, then the whole record."""
    assert bytes_needed(b"") == 20
    assert bytes_needed(TAGGED[:19]) == 20
    assert bytes_needed(TAGGED[:20]) == len(TAGGED)


def test_boundaries_are_all_starts_and_the_end() -> None:
    """Control records count, half a record does not."""
    assert boundaries(BATCH + b"123", 10) == [10, 98, 123, 156, 10 + len(BATCH)]
    assert boundaries(b"", 5) == [5]


def test_properties_come_back() -> None:
    """All fields; nothing at all takes no bytes."""
    full = Properties("key", {"b": "2", "a": "1"}, 1_700_000_000_000, 3, "orders-1@88")
    data = encode_properties(full)
    assert data is not None
    assert decode_properties(data) == full
    assert data == encode_properties(Properties("key", {"a": "1", "b": "2"}, *_rest(full)))
    assert encode_properties(Properties()) is None


def _rest(full: Properties) -> tuple[int, int, str]:
    return full.delivery_time_ms, full.retry_count, full.origin


def test_unusable_properties_are_refused() -> None:
    """Bad values before sending, bad bytes after receiving."""
    with pytest.raises(InvalidArgument):
        encode_properties(Properties(key="\ud800"))
    with pytest.raises(InvalidArgument):
        encode_properties(Properties(retry_count=-1))
    with pytest.raises(MessageTooLarge):
        encode_properties(Properties(headers={"h": "x" * 40_000}))
    with pytest.raises(CorruptData):
        decode_properties(b"\xff\xff")


def test_loops_read_from_any_bytes_what_protobuf_reads() -> None:
    """Properties that vq has written, and those with one byte changed, taken out or added."""
    written = [
        encode_properties(Properties(key=key, headers=headers)) or b""
        for key in (None, "k", "ü" * 64, b"\xff", -1001)
        for headers in ({}, {"a": "1"}, {"": "", "b": "ü", "c": "x" * 130})
    ]
    chance = Random(1)
    for data in written * 200:
        cut, end = chance.randrange(len(data) + 1), chance.randrange(3)
        changed = data[:cut] + chance.randbytes(chance.randrange(2)) + data[cut + end - 1 :]
        for each in (data, changed):
            found = read_properties(each)
            with case(each):
                if found is None:
                    with pytest.raises(CorruptData):
                        decode_properties(each)
                else:
                    expected = decode_properties(each)
                    assert found == (expected.key, expected.headers or None)
                    assert list(found[1] or ()) == sorted(found[1] or ())


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_ZSTD, COMPRESSION_LZ4])
def test_a_compressed_payload_stays_compressed(kind: int) -> None:
    """The record keeps it as it is and says so."""
    payload = compress(b"again and again " * 100, kind)
    [found] = decode_records(encode_record(1, payload, None, None, kind), 0)
    assert (found.payload, found.flag) == (payload, kind << FLAG_COMPRESSION_SHIFT)


SHORT_KEYS: list[Key] = ["k", "ü", "k" * 127, "ü" * 63, b"k", b"\xff" * 127, 0, -1, 1001]


@pytest.mark.parametrize("key", SHORT_KEYS)
def test_a_short_key_is_encoded_as_protobuf_does(key: Key) -> None:
    encoded = encode_key(key)
    assert encoded is not None
    assert encoded == encode_properties(Properties(key=key))
    assert decode_key(encoded) == key
    assert type(decode_key(encoded)) is type(key)


@pytest.mark.parametrize("key", ["", "k" * 128, "ü" * 64, b"", b"k" * 128])
def test_other_keys_are_left_to_protobuf(key: Key) -> None:
    assert encode_key(key) is None
    assert decode_key(encode_properties(Properties(key=key)) or b"") is None


def test_golden_keys_both_ways() -> None:
    for vector in KEY_VECTORS:
        with case(vector.key):
            assert encode_properties(Properties(key=vector.key)) == vector.properties
            key = decode_properties(vector.properties).key
            assert (key, type(key)) == (vector.key, type(vector.key))


def test_an_empty_text_is_no_key_and_empty_bytes_are_one() -> None:
    assert encode_properties(Properties(key="")) is None
    assert decode_properties(b"\x0a\x00").key is None
    assert decode_properties(b"\x32\x00").key == b""


def test_a_reader_that_knows_only_text_keys_skips_the_others() -> None:
    """A version of before the other kinds, which had the fields 1 to 5."""
    file = FileDescriptorProto(name="earlier.proto", package="earlier", syntax="proto3")
    earlier = file.message_type.add(name="RecordProperties")
    earlier.field.add(name="key", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    earlier.field.add(name="origin", number=5, type="TYPE_STRING", label="LABEL_OPTIONAL")
    pool = DescriptorPool()
    pool.Add(file)
    reader = GetMessageClass(pool.FindMessageTypeByName("earlier.RecordProperties"))
    for key in (0, 1001, -(2**63), b"", b"\xff", "text"):
        data = encode_properties(Properties(key=key, origin="orders-1@88"))
        found = reader.FromString(data)
        assert found.origin == "orders-1@88"
        assert found.key == (key if isinstance(key, str) else "")


def test_the_last_of_several_keys_counts() -> None:
    """As protobuf reads a oneof; vq writes one."""
    assert decode_properties(b"\x0a\x01a\x38\x02").key == 1
    assert decode_properties(b"\x38\x02\x0a\x01a").key == "a"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x38",
        b"\x38\x80",
        b"\x38\x02\x02",
        b"\x38" + b"\x80" * 10 + b"\x01",
        b"\x38" + b"\xff" * 9 + b"\x02",
        b"\x32\x02a",
        b"\x0a\x01ab",
        b"\x42\x01a",
        b"\x38\x02\x12\x00",
    ],
)
def test_what_is_not_one_short_key_is_left_to_protobuf(data: bytes) -> None:
    assert decode_key(data) is None
