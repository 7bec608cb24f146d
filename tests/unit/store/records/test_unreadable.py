"""Records that no reader can read, though their batch is what was sent."""

from typing import Any, SupportsIndex

import pytest
from support.batches import batch

from vq.store.records.compression import compress
from vq.store.records.format import COMPRESSION_ZLIB
from vq.store.records.record import encode_record
from vq.store.records.unreadable import first_unreadable, why_unreadable

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


class Counted(bytes):
    """Bytes that count how many of them were copied."""

    copied = 0

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        part = super().__getitem__(key)
        if isinstance(part, bytes):
            self.copied += len(part)
        return part


def test_a_batch_of_bad_records_is_looked_through_once() -> None:
    """Each costs as much as it is long, however many follow it."""
    bad = wrong_checksum(encode_record(2, b"x" * 100))
    data = Counted(batch([bad] * 1_000))
    last = len(data) - len(bad)
    found = first_unreadable(data, 0, last)
    assert found is not None
    assert found[:2] == (last, len(data))
    assert data.copied < 3 * len(data)
