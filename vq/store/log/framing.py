"""Framing of batches: making the control record of one, and checking those another node made.

Plain values in and out. The bytes of a control record are ``format``; writing a framed batch is
``log``; what recovery does with frames it cannot trust is ``scan``.
"""

import struct
from typing import Final

from vq import limits
from vq.errors import BatchTooLarge, CorruptData, InvalidRequest, NotMaster, OffsetOutOfRange
from vq.model import ProducerStamp
from vq.store.records.format import (
    BATCH_ON_DISK_BYTES_MAX,
    CONTROL_BYTES,
    BatchHeader,
    batch_crc,
    decode_control,
    pack_control,
)

__all__ = ["batches_ready", "check_frames", "epoch_is_over", "frame"]

_NO_STAMP: Final = ProducerStamp(0, 0, 0)


def frame(
    size: int,
    record_count: int,
    records_crc: int,
    start_offset: int,
    synced_offset: int,
    append_time_ms: int,
    epoch: int,
    stamp: ProducerStamp | None,
    transaction_id: int,
) -> bytes:
    """Return the control record that makes a batch of ``size`` bytes, itself included.

    Raises:
        BatchTooLarge: More than a batch may have.
        InvalidRequest: A value does not fit its field.
    """
    if size > BATCH_ON_DISK_BYTES_MAX:
        raise BatchTooLarge(
            f"batch of {size - CONTROL_BYTES} bytes; at most {limits.BATCH_BYTES_MAX} bytes"
        )
    producer_id, producer_epoch, sequence = stamp or _NO_STAMP
    try:
        return pack_control(
            start_offset,
            size,
            record_count,
            append_time_ms,
            epoch,
            synced_offset,
            producer_id,
            producer_epoch,
            sequence,
            transaction_id,
            records_crc,
        )
    except struct.error as error:
        raise InvalidRequest(f"{stamp} does not fit a batch header: {error}") from error


def epoch_is_over(epoch: int, last_epoch: int) -> NotMaster:
    """Return the error for a batch of ``epoch`` behind one of the larger ``last_epoch``."""
    return NotMaster(f"epoch {epoch} is over: epoch {last_epoch} has appended here")


def check_frames(
    data: bytes | memoryview, *, end_offset: int, epoch: int, append_time_ms: int
) -> list[BatchHeader]:
    """Return the headers of the batches in ``data``, if a log that ends so may take them all.

    Recovery accepts a log that ends with these batches (``scan.verify``). The records' own
    checksums are the reader's to verify; the CRC of the batch covers them here.

    Args:
        data: Whole batches, back to back, as they lie in another copy of the log.
        end_offset: Where the log ends.
        epoch: Master epoch of its last batch.
        append_time_ms: Append time of its last batch.

    Raises:
        OffsetOutOfRange: They begin elsewhere; ``details["latest"]`` is where the log ends.
        NotMaster: Their epoch is smaller than that of a batch before them.
        CorruptData: They are no batches, or damaged; ``details["offset"]`` is where.
    """
    batches: list[BatchHeader] = []
    position = 0
    while position < len(data):
        offset = end_offset + position
        batch = _whole_batch(data, position, offset)
        if batch.start_offset != offset:
            if not batches:
                raise OffsetOutOfRange(
                    f"framed bytes begin at offset {batch.start_offset}, the log ends at {offset}; "
                    "send what follows its end",
                    details={"latest": offset},
                )
            raise _corrupt(offset, f"the batch there says it begins at {batch.start_offset}")
        if batch.master_epoch < epoch:
            raise epoch_is_over(batch.master_epoch, epoch)
        if batch.append_time_ms < append_time_ms:
            raise _corrupt(
                offset, f"append time {batch.append_time_ms} comes before {append_time_ms}"
            )
        epoch, append_time_ms = batch.master_epoch, batch.append_time_ms
        batches.append(batch)
        position += batch.byte_length
    return batches


def batches_ready(data: bytes | memoryview, durable: int) -> int:
    """Return how many bytes at the front of ``data`` are batches that a copy may write now.

    They are whole, and nothing that they call durable lies behind ``durable``, up to where the copy
    is. Bytes that are no batch end them.
    """
    position = 0
    while True:
        try:
            batch = decode_control(data, position)
        except CorruptData:
            return position
        if batch is None or batch.synced_offset > durable:
            return position
        if batch.byte_length > len(data) - position:
            return position
        position += batch.byte_length


def _whole_batch(data: bytes | memoryview, position: int, offset: int) -> BatchHeader:
    try:
        batch = decode_control(data, position)
    except CorruptData as error:
        raise _corrupt(offset, str(error)) from error
    left = len(data) - position
    if batch is None or batch.byte_length > left:
        needed = CONTROL_BYTES if batch is None else batch.byte_length
        raise _corrupt(offset, f"the batch there needs {needed} bytes, {left} bytes came")
    if batch_crc(data, position, batch.byte_length) != batch.crc:
        raise _corrupt(offset, "the batch there fails its CRC")
    return batch


def _corrupt(offset: int, why: str) -> CorruptData:
    return CorruptData(f"bad framed bytes at offset {offset}: {why}", details={"offset": offset})
