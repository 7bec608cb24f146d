"""Framing: the control record of a batch, and frames that another copy of the log made."""

from collections.abc import Callable

import google_crc32c
import pytest

from vq.errors import (
    BatchTooLarge,
    CorruptData,
    InvalidRequest,
    NotMaster,
    OffsetOutOfRange,
    VqError,
)
from vq.limits import BATCH_BYTES_MAX
from vq.model import ProducerStamp
from vq.store.log.framing import batches_ready, check_batches, check_frames, frame
from vq.store.records.format import CONTROL_BYTES, BatchHeader, encode_control
from vq.store.records.record import encode_record

RECORDS = encode_record(1, b"one") + encode_record(2, b"two")
CRC = google_crc32c.value(RECORDS)
SIZE = CONTROL_BYTES + len(RECORDS)
START = 1000


def framed(offset: int, *, epoch: int = 5, time_ms: int = 70, records: bytes = RECORDS) -> bytes:
    """One batch as it lies in a log."""
    size = CONTROL_BYTES + len(records)
    crc = google_crc32c.value(records)
    stamp = ProducerStamp(7, 1, 3)
    return frame(size, 2, crc, offset, START, time_ms, epoch, stamp, 9) + records


def check(data: bytes, *, end_offset: int = START, epoch: int = 5) -> list[BatchHeader]:
    """Ask whether a log that ends so may take the bytes."""
    return check_frames(data, end_offset=end_offset, epoch=epoch, append_time_ms=70)


# Making -------------------------------------------------------------------------------------------
def test_a_frame_says_everything_that_a_header_does() -> None:
    """With a producer and without one."""
    header = BatchHeader(START, SIZE, 2, 70, 5, START, 7, 1, 3, 9)
    assert framed(START) == encode_control(header, CRC) + RECORDS
    nobody = header._replace(producer_id=0, producer_epoch=0, producer_sequence=0)
    assert frame(SIZE, 2, CRC, START, START, 70, 5, None, 9) == encode_control(nobody, CRC)


def test_a_frame_is_as_large_as_a_batch_may_be() -> None:
    """One byte more is refused with the bound."""
    largest = CONTROL_BYTES + BATCH_BYTES_MAX
    assert len(frame(largest, 1, 0, 0, 0, 0, 1, None, 0)) == CONTROL_BYTES
    with pytest.raises(BatchTooLarge, match=str(BATCH_BYTES_MAX)):
        frame(largest + 1, 1, 0, 0, 0, 0, 1, None, 0)


def test_a_stamp_that_does_not_fit_is_refused() -> None:
    """Producer epochs have 16 bits."""
    with pytest.raises(InvalidRequest, match="65536"):
        frame(SIZE, 1, 0, 0, 0, 0, 1, ProducerStamp(1, 65_536, 0), 0)


# Checking -----------------------------------------------------------------------------------------
def test_good_frames_are_taken_with_all_their_headers() -> None:
    """None at all, one, or several in which epoch and time rise."""
    assert check(b"") == []
    data = framed(START) + framed(START + SIZE, epoch=6) + framed(START + 2 * SIZE, epoch=6)
    found = check(data)
    assert [each.start_offset for each in found] == [START + n * SIZE for n in range(3)]
    assert [each.master_epoch for each in found] == [5, 6, 6]
    assert found[0].stamp == ProducerStamp(7, 1, 3)


@pytest.mark.parametrize("begin", [START - 1, START + 1, START + SIZE])
def test_frames_that_begin_elsewhere_are_refused_with_the_end(begin: int) -> None:
    """A gap and bytes that are there already; the sender learns where to go on."""
    with pytest.raises(OffsetOutOfRange) as caught:
        check(framed(begin + 1000), end_offset=START + 1000)
    assert caught.value.details == {"latest": START + 1000}


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (lambda at: framed(at + 1), CorruptData),
        (lambda at: framed(at, epoch=4), NotMaster),
        (lambda at: framed(at, time_ms=69), CorruptData),
        (lambda at: RECORDS, CorruptData),
        (lambda at: framed(at)[:-1], CorruptData),
        (lambda at: framed(at)[: CONTROL_BYTES - 1], CorruptData),
        (lambda at: framed(at) + b"\0", CorruptData),
    ],
)
def test_one_bad_frame_refuses_them_all(
    second: Callable[[int], bytes], error: type[VqError]
) -> None:
    """Place, epoch, time, structure, and bytes that end inside a batch."""
    with pytest.raises(error):
        check(framed(START) + second(START + SIZE))


def test_an_epoch_that_is_over_here_is_refused() -> None:
    """Its master does not know the newer one, which has appended."""
    with pytest.raises(NotMaster):
        check(framed(START, epoch=5), epoch=6)


def test_no_flipped_bit_passes() -> None:
    """In any byte of the second batch; the error tells where that begins."""
    data = framed(START) + framed(START + SIZE)
    for at in range(SIZE, 2 * SIZE):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptData) as caught:
            check(bytes(damaged))
        assert caught.value.details == {"offset": START + SIZE}, at


# Batches of a copy --------------------------------------------------------------------------------
def test_a_copy_writes_what_calls_nothing_durable_that_it_has_not_flushed() -> None:
    """Both batches say that everything up to START is durable."""
    data = framed(START) + framed(START + SIZE)
    assert batches_ready(data, START, START) == check(data)
    assert not batches_ready(data, START, START - 1)


@pytest.mark.parametrize("cut", [0, 1, CONTROL_BYTES - 1, CONTROL_BYTES, SIZE - 1])
def test_a_copy_writes_whole_batches(cut: int) -> None:
    data = framed(START) + framed(START + SIZE)[:cut]
    assert batches_ready(data, START, START) == check(data[:SIZE])
    assert not batches_ready(data[SIZE:], START + SIZE, START)


def test_a_copy_writes_nothing_behind_bytes_that_are_no_batch() -> None:
    """What is wrong with them is told by ``check_frames``."""
    found = batches_ready(framed(START) + RECORDS + framed(START), START, START)
    assert found == check(framed(START))


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (framed(START + SIZE), None),
        (framed(START + SIZE, epoch=4), NotMaster),
        (framed(START + SIZE, time_ms=69), CorruptData),
        (framed(START + SIZE)[:-1] + b"?", CorruptData),
    ],
)
def test_a_copy_checks_the_batches_that_it_writes_as_it_checks_all(
    second: bytes, error: type[VqError] | None
) -> None:
    """With headers that were read before, it finds the same."""
    data = framed(START) + second
    ready = batches_ready(data, START, START)
    if error is None:
        check_batches(data, ready, epoch=5, append_time_ms=70)
        return
    with pytest.raises(error) as caught:
        check_batches(data, ready, epoch=5, append_time_ms=70)
    with pytest.raises(error) as known:
        check(data)
    assert caught.value.details == known.value.details
