"""The bytes of records and control records, as docs/formats.md tells them."""

import google_crc32c
import pytest

from vq.errors import CorruptData
from vq.store.records import format
from vq.store.records.format import (
    BatchHeader,
    block_name,
    decode_control,
    encode_control,
    records_mark,
)

HEADER = BatchHeader(
    start_offset=0x1122334455,
    byte_length=88 + 24,
    record_count=1,
    append_time_ms=1_750_000_000_000,
    master_epoch=7,
    synced_offset=0x1122334400,
    producer_id=0xABCDEF,
    producer_epoch=3,
    producer_sequence=99,
    transaction_id=5,
)
RECORDS = b"r" * 24
# Pins the layout: a change of this text is a change of the format on every disk.
GOLDEN = (
    "00000044 f1929fa9 0000000000000000 00000004"  # length, MD5, id, flag CONTROL
    "01 00 0003 00000007"  # version, attributes, producer epoch, master epoch
    "0000001122334455 0000001122334400"  # start offset, synced offset
    "00000070 00000001 000001977420dc00"  # byte length, record count, append time
    "0000000000abcdef 0000000000000063 0000000000000005"  # producer id, sequence, transaction
    "b2861d99"  # CRC-32C
)


def encoded() -> bytes:
    return encode_control(HEADER, google_crc32c.value(RECORDS))


def test_a_control_record_has_these_bytes() -> None:
    """The golden bytes of format version 1."""
    assert encoded().hex() == GOLDEN.replace(" ", "")


def test_what_was_encoded_is_decoded() -> None:
    """Every field comes back, and the CRC covers records and header."""
    decoded = decode_control(encoded())
    assert decoded is not None
    assert decoded._replace(crc=0) == HEADER
    assert decoded.crc == format.batch_crc(encoded() + RECORDS, 0, HEADER.byte_length)
    assert decoded.end_offset == HEADER.start_offset + HEADER.byte_length


def test_a_cut_off_control_record_is_none() -> None:
    """However short the buffer, an incomplete one is no damage."""
    data = encoded()
    assert [decode_control(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_every_changed_byte_is_noticed() -> None:
    """No byte of a control record can change unseen."""
    data = encoded()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        with pytest.raises(CorruptData):
            decode_control(changed)


def test_zeros_are_no_control_record() -> None:
    """Space taken ahead never looks like a batch."""
    with pytest.raises(CorruptData):
        decode_control(bytes(4096))


def test_the_mark_lies_where_a_search_expects_it() -> None:
    """``CONTROL_MARK`` is the same in every control record."""
    at = format.CONTROL_MARK_AT
    assert encoded()[at : at + len(format.CONTROL_MARK)] == format.CONTROL_MARK


def test_block_names_sort_as_their_offsets() -> None:
    """16 digits, and only those are parsed."""
    assert block_name(42) == "0000000000000042.block"
    assert format.parse_block_name(block_name(42)) == 42
    for name in ("42.block", "0000000000000042.index", "000000000000004x.block", "checkpoint"):
        assert format.parse_block_name(name) is None


def test_the_mark_of_records_follows_from_their_crc_and_from_any_control_record() -> None:
    """Whatever the control record says; another CRC has another mark."""
    marks = set()
    for crc in (0, 1, google_crc32c.value(RECORDS), 2**31, 2**32 - 1):
        for header in (HEADER, HEADER._replace(start_offset=1, synced_offset=0, master_epoch=2)):
            decoded = decode_control(encode_control(header, crc))
            assert decoded is not None
            assert decoded.records_mark == records_mark(crc)
        marks.add(records_mark(crc))
    assert len(marks) == 5
