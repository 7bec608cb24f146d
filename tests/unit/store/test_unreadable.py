"""Records that no reader can read, though their batch is what was sent."""

import pytest

from vq.store.compression import compress
from vq.store.format import COMPRESSION_ZLIB
from vq.store.record import encode_record
from vq.store.unreadable import why_unreadable

GOOD = encode_record(1, b"good")


def wrong_checksum(record: bytes) -> bytes:
    return record[:4] + bytes([record[4] ^ 1]) + record[5:]


UNREADABLE = {
    "checksum": wrong_checksum(encode_record(2, b"bad")),
    "checksum, with a tag": wrong_checksum(encode_record(2, b"bad", tag=b"t")),
    "properties": encode_record(2, b"bad", properties=b"\xff\xff\xff"),
    "compression": encode_record(2, b"no zlib", compression=COMPRESSION_ZLIB),
}


@pytest.mark.parametrize("record", UNREADABLE.values(), ids=UNREADABLE)
def test_it_is_told_why_a_record_cannot_be_read(record: bytes) -> None:
    assert why_unreadable(record, 100)


@pytest.mark.parametrize(
    "record",
    [
        GOOD,
        encode_record(2, b"x", tag=b"t", properties=b""),
        encode_record(2, compress(b"x" * 100, COMPRESSION_ZLIB), compression=COMPRESSION_ZLIB),
    ],
)
def test_a_record_that_can_be_read_is_passed(record: bytes) -> None:
    assert why_unreadable(record, 100) == ""
