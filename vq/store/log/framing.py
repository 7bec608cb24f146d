"""Framing of batches: making the control record of one, and checking those another node made.

Plain values in and out. The bytes of a control record are ``format``; writing a framed batch is
``log``; what recovery does with frames it cannot trust is ``scan``.
"""

import contextlib
import struct
from collections.abc import Sequence
from typing import Final

from vq import limits
from vq.errors import BatchTooLarge, CorruptData, InvalidRequest, NotMaster, OffsetOutOfRange
from vq.model import ProducerStamp
from vq.store.records.batches import Order, headers, verified
from vq.store.records.format import (
    BATCH_ON_DISK_BYTES_MAX,
    CONTROL_BYTES,
    BatchHeader,
    batch_crc,
    decode_control,
    pack_control,
)

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
    order, end = Order(epoch, append_time_ms), end_offset
    try:
        for batch in verified(data, end_offset):
            if batch.master_epoch < order.epoch:
                raise epoch_is_over(batch.master_epoch, order.epoch)
            order.take(batch)
            batches.append(batch)
            end = batch.end_offset
    except CorruptData as error:
        if end == end_offset:
            _check_begin(data, end_offset)
        raise CorruptData(f"bad framed bytes: {error}", details={"offset": end}) from error
    left = len(data) - (end - end_offset)
    if left:
        raise CorruptData(
            f"bad framed bytes: the last {left}, at offset {end}, are no whole batch",
            details={"offset": end},
        )
    return batches


def check_batches(
    data: bytes, batches: Sequence[BatchHeader], *, epoch: int, append_time_ms: int
) -> None:
    """Return if a log may take batches whose headers are read already; see ``check_frames``.

    Args:
        data: Of these batches, and nothing else.
        batches: From ``batches_ready``; the first one begins where the log ends.
        epoch, append_time_ms: Of the last batch of the log.

    Raises:
        NotMaster, CorruptData: See ``check_frames``.
    """
    order, at = Order(epoch, append_time_ms), 0
    for batch in batches:
        if batch.master_epoch < order.epoch:
            raise epoch_is_over(batch.master_epoch, order.epoch)
        try:
            if batch_crc(data, at, batch.byte_length) != batch.crc:
                raise CorruptData("its records or its header fail their CRC")
            order.take(batch)
        except CorruptData as error:
            details = {"offset": batch.start_offset}
            raise CorruptData(f"bad framed bytes: {error}", details=details) from error
        at += batch.byte_length


def batches_ready(data: bytes | memoryview, offset: int, durable: int) -> list[BatchHeader]:
    """Return the headers of the batches at the front of ``data`` that a copy may write now.

    They are whole, and nothing that they call durable lies behind ``durable``, up to where the copy
    is. Bytes that are no batch end them. The CRC of the batches is not checked.

    Args:
        data: Of another copy.
        offset: Of their first byte: where this copy ends.
        durable: See above.
    """
    ready: list[BatchHeader] = []
    end = offset + len(data)
    with contextlib.suppress(CorruptData):
        for batch in headers(data, offset):
            if batch.end_offset > end or batch.synced_offset > durable:
                break
            ready.append(batch)
    return ready


def _check_begin(data: bytes | memoryview, end_offset: int) -> None:
    with contextlib.suppress(CorruptData):
        first = decode_control(data)
        if first is not None and first.start_offset != end_offset:
            raise OffsetOutOfRange(
                f"framed bytes begin at offset {first.start_offset}, the log ends at "
                f"{end_offset}; send what follows its end",
                details={"latest": end_offset},
            )
