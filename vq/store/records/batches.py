"""Walking over the batches in log bytes, in one of two ways.

    headers    believes a control record whose checksum holds: which batches there are
    verified   believes a batch whose CRC holds, too: its records are what was appended

Each takes bytes in memory, and has a function that reads a block: ``read_headers`` reads control
records only, ``read_batches`` reads whole batches. A batch counts if it begins where the one before
it ends and says so itself. At the first one that does not, ``CorruptData`` says where
(``details["offset"]``) and why (``details["why"]``). What lies behind damage is for whoever goes on
there (``scan``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from vq.errors import CorruptData
from vq.store.records.format import CONTROL_BYTES, BatchHeader, batch_crc, decode_control

#: What ``read_headers`` reads at a time: it may have several control records, or one and what
#: nobody wants.
HEADERS_READ_BYTES: Final = 4096


@dataclass(slots=True)
class Order:
    """What never falls along a log, as of the batch taken last."""

    epoch: int = 0
    append_time_ms: int = 0

    def take(self, header: BatchHeader) -> None:
        """Note the next batch.

        Raises:
            CorruptData: It cannot follow the one before; nothing was noted.
        """
        epoch, time = header.master_epoch, header.append_time_ms
        if epoch < self.epoch:
            why = f"it is of epoch {epoch} and follows one of epoch {self.epoch}"
            raise _damaged(header.start_offset, why)
        if time < self.append_time_ms:
            why = f"it was appended {self.append_time_ms - time} ms before the batch before it"
            raise _damaged(header.start_offset, why)
        self.epoch, self.append_time_ms = epoch, time


def headers(data: bytes | memoryview, offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of the batches that ``data`` begins with; ends where the bytes do.

    The last batch may go on behind them.

    Args:
        data: Log bytes that begin with a batch.
        offset: Of their first byte.

    Raises:
        CorruptData: No batch begins at ``details["offset"]``.
    """
    return _walk(data, offset, is_verified=False)


def verified(data: bytes | memoryview, offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of the whole batches that ``data`` begins with, once their CRC holds.

    Args:
        data: As ``headers``.
        offset: As ``headers``.

    Raises:
        CorruptData: No intact batch begins at ``details["offset"]``. If its control record says
            how long it is, it ends at ``details["end"]``.
    """
    return _walk(data, offset, is_verified=True)


def _walk(data: bytes | memoryview, offset: int, *, is_verified: bool) -> Iterator[BatchHeader]:
    """Walk in one of the two ways: one generator, since two cost 0.2 µs a batch."""
    at, size = 0, len(data)
    whole = bytes(data) if is_verified else None
    data = whole or data
    while True:
        try:
            header = decode_control(data, at)
        except CorruptData as error:
            raise _damaged(offset + at, "its control record is damaged") from error
        if header is None:
            return
        start, length = header[:2]
        if start != offset + at:
            raise _damaged(offset + at, f"its control record is that of offset {start}")
        if whole is not None:
            if at + length > size:
                return
            if batch_crc(whole, at, length) != header[-1]:
                damage = _damaged(start, "its records or its header fail their CRC")
                damage.details["end"] = start + length
                raise damage
        yield header
        at += length


def read_headers(
    read: Callable[[int, int], bytes | memoryview],
    block_start: int,
    offset: int,
    end: int,
    name: str,
    *,
    size: int = HEADERS_READ_BYTES,
) -> Iterator[BatchHeader]:
    """Yield the header of each batch of a block in ``[offset, end)``.

    Behind a batch of more than ``size`` bytes it reads one control record, since the next batch
    may be as large.

    Args:
        read: Reads from a position on so many bytes at most; ``File.pread``.
        block_start: Offset of the first byte of the block.
        offset: Where a batch begins.
        end: Where one ends.
        name: Of the block, for the error.
        size: How much to read at a time, >= 88.

    Raises:
        CorruptData: No batch that ends there begins at ``details["offset"]``.
        OSError: The medium cannot deliver it.
    """
    try:
        length = 0  # of the batch before
        while offset < end:
            begin = offset
            wanted = size if length <= size else CONTROL_BYTES
            for header in headers(read(begin - block_start, min(wanted, end - begin)), begin):
                stop = header.end_offset
                if stop > end:
                    raise _too_long(header, end)
                yield header
                offset, length = stop, header.byte_length
            if offset == begin:
                raise _damaged(offset, "the file ends before it")
    except CorruptData as error:
        raise _damaged(offset, str(error.details["why"]), f" of {name}") from error


def read_batches(
    read: Callable[[int, int], bytes],
    block_start: int,
    offset: int,
    size: int,
    end: int,
    order: Order | None = None,
) -> tuple[bytes, list[BatchHeader]]:
    """Read some bytes of a block, or one batch if that is larger; return its intact batches.

    Args:
        read: As ``read_headers``.
        block_start: As ``read_headers``.
        offset: Where a batch begins, before ``end``.
        size: How much to read, >= 88.
        end: Where what may be read ends.
        order: Takes the batches; damage is what it does not take. None: they are in any order.

    Returns:
        The bytes from ``offset`` on, and the headers of the batches that they begin with, one at
        least.

    Raises:
        CorruptData: No intact batch begins there.
        OSError: The medium cannot deliver them.
    """
    data = read(offset - block_start, min(size, end - offset))
    found = _intact(data, offset, order)
    if found:
        return data, found
    header = next(headers(data, offset), None)
    if header is None:
        raise _damaged(offset, "the file ends before it")
    if header.end_offset > end:
        raise _too_long(header, end)
    data = read(offset - block_start, header.byte_length)
    found = _intact(data, offset, order)
    if not found:
        raise _damaged(offset, "the file ends before it")
    return data, found


def _intact(data: bytes, offset: int, order: Order | None) -> list[BatchHeader]:
    """Return the batches up to the first damaged one.

    Raises:
        CorruptData: That is the first of all.
    """
    found: list[BatchHeader] = []
    try:
        for header in verified(data, offset):
            if order is not None:
                order.take(header)
            found.append(header)
    except CorruptData:
        if not found:
            raise
    return found


def _too_long(header: BatchHeader, end: int) -> CorruptData:
    why = f"it should end at {header.end_offset}, the block ends at {end}"
    return _damaged(header.start_offset, why)


def _damaged(offset: int, why: str, of: str = "") -> CorruptData:
    return CorruptData(
        f"no intact batch at offset {offset}{of}: {why}", details={"offset": offset, "why": why}
    )
