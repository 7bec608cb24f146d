"""Whether a body is what its header says."""

import google_crc32c
import pytest
from support.broker import message

from vq import limits
from vq.broker.batch_check import WALK_RECORDS_MAX, check_batch
from vq.errors import BadChecksum, BatchTooLarge, InvalidRequest, MessageTooLarge
from vq.store.format import BatchHeader, encode_control


def _check(body: bytes, count: int, *, max_message_bytes: int = 1_000, **fields) -> None:
    crc = fields.pop("crc", google_crc32c.value(body))
    check_batch(body, record_count=count, crc=crc, max_message_bytes=max_message_bytes, **fields)


@pytest.mark.parametrize("count", [1, 2, WALK_RECORDS_MAX, WALK_RECORDS_MAX + 1, 2_000])
def test_whole_records_pass(count):
    """Whatever their number, with and without tags."""
    _check(message(b"x" * 50, tag="red") * count, count)
    _check(message(b"") * count, count, verify_records=True)


@pytest.mark.parametrize(("body", "count"), [(b"", 0), (b"", 1), (b"x" * 19, 1), (b"x" * 39, 2)])
def test_a_body_that_cannot_hold_its_records_is_refused(body, count):
    """Before anything else is looked at."""
    with pytest.raises(InvalidRequest, match="cannot hold"):
        _check(body, count)


def test_a_wrong_checksum_is_refused():
    """Damage on the way is found before the bytes are stored."""
    with pytest.raises(BadChecksum):
        _check(message(b"x"), 1, crc=0)


def test_a_batch_beyond_its_bounds_is_refused():
    """Too many bytes or too many records."""
    with pytest.raises(BatchTooLarge):
        _check(bytes(limits.BATCH_BYTES_MAX + 1), 1)
    with pytest.raises(BatchTooLarge):
        _check(message(b"") * 20_001, 20_001)


@pytest.mark.parametrize("cut", [1, 20, 21, 40])
def test_a_cut_off_or_padded_body_is_refused(cut):
    """The lengths of small batches must add up."""
    body = message(b"x" * 21) * 2
    with pytest.raises(InvalidRequest):
        _check(body[:-cut], 2)
    with pytest.raises(InvalidRequest):
        _check(body + bytes(cut), 2)


def test_a_wrong_count_is_refused():
    """As many records as announced, no more."""
    with pytest.raises(InvalidRequest, match="3 were found"):
        _check(message(b"x") * 3, 2)


def test_a_control_record_is_refused():
    """Nobody outside may write what recovery steers by."""
    control = encode_control(BatchHeader(0, 88, 0, 0), 0)
    with pytest.raises(InvalidRequest, match="control"):
        _check(control, 1)
    with pytest.raises(InvalidRequest, match="control"):
        _check(message(b"x") + control, 2)


def test_the_bound_on_a_message_is_that_of_its_payload():
    """Tag and header do not count; one byte more is too much."""
    _check(message(b"x" * 1_000, tag="red"), 1)
    with pytest.raises(MessageTooLarge, match="1001 bytes") as caught:
        _check(message(b"x" * 1_001, tag="red"), 1)
    assert caught.value.details == {"max_message_bytes": 1_000}


def test_a_large_message_cannot_hide_in_a_large_batch():
    """Batches too long to be walked always are, when one of their records could be too large."""
    body = message(b"x") * WALK_RECORDS_MAX + message(b"x" * 1_001)
    with pytest.raises(MessageTooLarge):
        _check(body, WALK_RECORDS_MAX + 1)


def test_long_batches_are_walked_only_when_asked():
    """The default trusts the sender's CRC there; ``verify_records`` does not."""
    body = message(b"x" * 10) * 100
    damaged = body[:30] + b"\x00\x01" + body[32:]
    _check(damaged, 100, max_message_bytes=10_000)
    with pytest.raises((InvalidRequest, MessageTooLarge)):
        _check(damaged, 100, max_message_bytes=10_000, verify_records=True)


def test_a_tag_longer_than_its_record_is_refused():
    """Fields inside a record stay inside it."""
    record = bytearray(message(b"", tag="r"))
    record[20:24] = (1 << 30).to_bytes(4, "big")
    with pytest.raises(InvalidRequest, match="cut off"):
        _check(bytes(record), 1, max_message_bytes=4)
