"""Whether a body is what its header says."""

import google_crc32c
import pytest
from support.broker import message
from support.cases import case

from vq import limits
from vq.broker.partition import batch_check
from vq.broker.partition.batch_check import check_batch, check_empty
from vq.errors import BadChecksum, BatchTooLarge, InvalidRequest, MessageTooLarge, VqError
from vq.store.records import codec
from vq.store.records.format import RECORD_HEADER, BatchHeader, encode_control

TAG, PROPERTIES = 1, 2


@pytest.fixture(autouse=True, params=["python", "in use"])
def walk(request, monkeypatch):
    """Every claim holds for the reference and for what is in use, compiled where it could be."""
    if request.param == "python":
        monkeypatch.setattr(batch_check, "well_formed", codec.python_well_formed)


def _check(body: bytes, count: int, *, max_message_bytes: int = 1_000, **fields) -> None:
    crc = fields.pop("crc", google_crc32c.value(body))
    check_batch(body, record_count=count, crc=crc, max_message_bytes=max_message_bytes, **fields)


def record(body: bytes, flag: int = 0, *, length: int | None = None, id: int = 7) -> bytes:
    """Return a record whose header says what it is told, true or not."""
    return RECORD_HEADER.pack(len(body) if length is None else length, bytes(4), id, flag) + body


def field(size: int, content: bytes | None = None) -> bytes:
    return size.to_bytes(4, "big") + (b"t" * size if content is None else content)


@pytest.mark.parametrize("count", [1, 2, 32, 33, 2_000])
def test_whole_records_pass(count):
    """Whatever their number, with and without tags."""
    _check(message(b"x" * 50, tag="red") * count, count)
    _check(message(b"") * count, count)


@pytest.mark.parametrize(
    "good",
    [
        record(b""),
        record(field(0), TAG),
        record(field(limits.TAG_BYTES_MAX) + b"x", TAG),
        record(field(6, "标签".encode()) + b"x", TAG),
        record(field(limits.STORED_PROPERTIES_BYTES_MAX) + b"x", PROPERTIES),
        record(field(3) + field(5) + b"x" * 1_000, TAG | PROPERTIES),
        record(b"no zlib stream", 1 << 4),
        record(b"no zstd frame", 2 << 4),
        record(b"no lz4 frame", 3 << 4),
        record(b"", 1 << 8),
        record(b"", id=2**63 - 1),
    ],
)
def test_what_only_a_reader_can_judge_passes(good):
    """Checksums are the reader's, and what is inside properties and compressed payloads."""
    for before in (0, 40):
        with case(before):
            _check(message(b"x") * before + good + message(b"x"), before + 2)


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


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("cut", [1, 20, 21, 40])
def test_a_cut_off_or_padded_body_is_refused(cut, count):
    """The lengths must add up, however many records there are."""
    body = message(b"x" * 21) * count
    with pytest.raises(InvalidRequest):
        _check(body[:-cut], count)
    with pytest.raises(InvalidRequest):
        _check(body + bytes(cut), count)


@pytest.mark.parametrize("count", [3, 100])
def test_a_wrong_count_is_refused(count):
    """As many records as announced, no more and no fewer."""
    with pytest.raises(InvalidRequest, match=f"announces {count - 1} records.* more follows"):
        _check(message(b"x") * count, count - 1)
    with pytest.raises(InvalidRequest, match=f"announces {count + 1} records, {count} were found"):
        _check(message(b"x" * 100) * count, count + 1)


@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_control_record_is_refused(before):
    """Nobody outside may write what recovery steers by."""
    control = encode_control(BatchHeader(0, 88, 0, 0), 0)
    with pytest.raises(InvalidRequest, match="control"):
        _check(message(b"x") * before + control, before + 1)


def test_the_bound_on_a_message_is_that_of_its_payload():
    """Tag and header do not count; one byte more is too much."""
    _check(message(b"x" * 1_000, tag="red"), 1)
    with pytest.raises(MessageTooLarge, match="1001 bytes") as caught:
        _check(message(b"x" * 1_001, tag="red"), 1)
    assert caught.value.details == {"max_message_bytes": 1_000}


BAD = {
    "longer than the body": (record(b"", length=1 << 31), InvalidRequest, "the body at"),
    "an id of 64 bits": (record(b"", id=2**63), InvalidRequest, "63 bits"),
    "an unknown flag": (record(b"", 1 << 12), InvalidRequest, "flag 0x1000"),
    "a compression nobody reads": (record(b"", 4 << 4), InvalidRequest, "flag 0x40"),
    "an unknown checksum": (record(b"", 2 << 8), InvalidRequest, "flag 0x200"),
    "a control record": (record(b"", 4), InvalidRequest, "control"),
    "a tag without a length": (record(b"abc", TAG), InvalidRequest, "inside its tag"),
    "a tag that leaves it": (record(field(9, b"x" * 8), TAG), InvalidRequest, "inside its tag"),
    "the largest tag length": (record(b"\xff" * 4, TAG), InvalidRequest, "inside its tag"),
    "a tag too large": (record(field(256), TAG), MessageTooLarge, "tag of 256 bytes"),
    "a tag that is no UTF-8": (record(field(2, b"\xc3("), TAG), InvalidRequest, "not UTF-8"),
    "properties that leave it": (
        record(field(3) + field(9, b""), TAG | PROPERTIES),
        InvalidRequest,
        "inside its properties",
    ),
    "properties too large": (
        record(field(36_865), PROPERTIES),
        MessageTooLarge,
        "properties of 36865 bytes",
    ),
    "a payload too large": (record(b"x" * 1_001), MessageTooLarge, "payload of 1001 bytes"),
}


def test_a_record_that_readers_cannot_take_apart_is_refused():
    """Wherever it stands in however long a batch: it would stop every consumer."""
    for what, (bad, error, why) in BAD.items():
        for before, behind in ((0, 0), (0, 50), (40, 0), (40, 50), (1_999, 0)):
            body = message(b"x") * before + bad + message(b"x") * behind
            with case(what, before, behind), pytest.raises(error, match=why):
                _check(body, before + 1 + behind)


def test_every_bad_record_is_named_by_its_place():
    """The sender learns where to look."""
    with pytest.raises(VqError, match="the record at byte 840"):
        _check(message(b"x") * 40 + record(b"", 1 << 12), 41)


def test_only_the_first_batch_of_an_epoch_may_be_empty() -> None:
    check_empty(7, 0)
    for producer_id, sequence in ((0, 0), (7, 1), (0, 1)):
        with pytest.raises(InvalidRequest, match="only the first batch of a producer's epoch"):
            check_empty(producer_id, sequence)
