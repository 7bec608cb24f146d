"""Finding things in the blocks of a log: boundaries, times, epochs, counts.

Answers come from the sparse index and a short walk over batch headers; nothing here changes a log.
"""

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.store.archive.archived_file import NotInMemory
from vq.store.log.block import Block
from vq.store.log.blocks import Blocks
from vq.store.records.format import (
    BATCH_ON_DISK_BYTES_MAX,
    CONTROL_BYTES,
    FLAG_CONTROL,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    BatchHeader,
)
from vq.store.records.record import boundaries, is_intact
from vq.store.records.record_filter import filter_records
from vq.store.records.scan import first_control

#: How many batches back ``message_before`` searches for a message that counts.
BATCHES_BACK_MAX: Final = 16


class EpochEnd(NamedTuple):
    """An epoch of which a log has batches, and where the last of these ends.

    Epoch 0 and the log's start if the log never had a batch.
    """

    epoch: int
    offset: int


def batch_at(block: Block, offset: int) -> tuple[BatchHeader, int]:
    """Return the batch that holds the byte at ``offset``, and the block's messages before it.

    Raises:
        CorruptData: A batch on the way is damaged.
        OSError: The medium cannot deliver it.
    """
    if offset == block.start_offset:
        return block.header_at(offset), 0
    entry = block.load_index().at_offset(offset)
    messages = entry.messages
    for header in block.headers(entry.offset):
        if offset < header.end_offset:
            return header, messages
        messages += header.record_count
    raise CorruptData(f"no batch of {block.path.name} holds offset {offset}")


def records_of(block: Block, batch: BatchHeader) -> list[int]:
    """Return where the records of a batch begin, and where the last one ends."""
    view = block.view(batch.start_offset - block.start_offset, batch.byte_length)
    return boundaries(view, batch.start_offset)


def next_boundary(block: Block, offset: int) -> int:
    """Return the first record boundary at or behind ``offset``, which the block holds.

    Damage before the batch that holds the offset hides how many messages lie before it, not where
    its records begin.

    Raises:
        CorruptData: The offset lies in damage.
        OSError: As ``batch_at``.
    """
    if offset == block.start_offset:
        return offset
    try:
        batch, _ = batch_at(block, offset)
    except CorruptData:
        behind = _batch_behind_damage(block, offset)
        if behind is None:
            raise
        batch = behind
    found = records_of(block, batch)
    return next((start for start in found if start >= offset), batch.end_offset)


def _batch_behind_damage(block: Block, offset: int) -> BatchHeader | None:
    """Return the batch that holds ``offset``, where batches before it are damaged; None: in damage.

    The search begins at an entry of the index, so near a true boundary: an intact batch there is
    passed as a whole, whatever its messages hold. It goes on behind each damaged batch.
    """
    try:
        at = block.load_index().at_offset(offset).offset
    except (CorruptData, NotInMemory):  # no index, and none can be made
        at = max(block.start_offset, offset - BATCH_ON_DISK_BYTES_MAX)
    while at <= offset:
        size = min(offset + CONTROL_BYTES, block.end_offset) - at
        found = first_control(bytes(block.view(at - block.start_offset, size)), at)
        if found is None or found.start_offset > offset:
            return None
        at = found.start_offset
        with contextlib.suppress(CorruptData):
            for header in block.headers(at):
                if offset < header.end_offset:
                    return header
                at = header.end_offset
        at += 1  # no intact batch begins there
    return None


def message_before(blocks: Blocks, offset: int, wanted: Filter) -> int | None:
    """Return the id of the last message that ends at or before ``offset``, a record boundary.

    Only messages that the filter takes count. None: there is none in the last ``BATCHES_BACK_MAX``
    batches before the offset.

    Raises:
        CorruptData, OSError: As ``batch_at``.
    """
    for _ in range(BATCHES_BACK_MAX):
        block = blocks.at(offset - 1)
        if block is None:
            break
        batch, _ = batch_at(block, offset - 1)
        size = min(offset, batch.end_offset) - batch.start_offset
        view = block.view(batch.start_offset - block.start_offset, size)
        if wanted:
            _, starts, end = filter_records(view, batch.start_offset, wanted)
            if end != batch.start_offset + size:
                raise CorruptData(f"the record at offset {end} of {block.path.name} is damaged")
        else:
            starts = boundaries(view, batch.start_offset)[1:-1]
        for start in reversed(starts):
            position = start - batch.start_offset
            length, _, message_id, flag = RECORD_HEADER.unpack_from(view, position)
            record = bytes(view[position : position + RECORD_HEADER_BYTES + length])
            if not is_intact(record):
                raise CorruptData(f"the record at offset {start} of {block.path.name} is damaged")
            if flag != FLAG_CONTROL:
                return int(message_id)
        offset = batch.start_offset
    return None


def offset_at_time(blocks: Blocks, time_ms: int) -> int | None:
    """Return the start of the first batch appended at or after ``time_ms``; None if there is none.

    Raises:
        CorruptData, OSError: As ``batch_at``.
    """
    at = _first_block(blocks, lambda header: header.append_time_ms >= time_ms)
    archive = blocks[at - 1].archive if at > 0 else None
    if at > 0 and (archive is None or archive.last_ms >= time_ms):  # inside the block before?
        block = blocks[at - 1]
        for header in block.headers(block.load_index().before_time(time_ms).offset):
            if header.append_time_ms >= time_ms:
                return header.start_offset
    return blocks[at].start_offset if at < len(blocks) and blocks[at].length else None


def epoch_end(blocks: Blocks, epoch: int) -> EpochEnd | None:
    """Return where the batches of ``epoch`` and of earlier ones end; None if there is none.

    Epochs never fall along a log, so the log itself is the table of (epoch, start offset) that
    others keep in a file: a search looks at the first header of some blocks, then of some index
    entries of one block, and walks over the headers of 64 KiB at most.

    Raises:
        CorruptData, OSError: As ``batch_at``.
    """
    at = _first_block(blocks, lambda header: header.master_epoch > epoch)
    if at == 0:
        return None
    block = blocks[at - 1]
    if block.archive is not None:
        found = block.archive.epoch_up_to(epoch)
        return None if found is None else EpochEnd(*found)
    entry = block.load_index().before_first(
        lambda offset: block.header_at(offset).master_epoch > epoch
    )
    last = None
    for header in block.headers(entry.offset):
        if header.master_epoch > epoch:
            break
        last = header
    return None if last is None else EpochEnd(last.master_epoch, last.end_offset)


def _first_block(blocks: Blocks, is_late: Callable[[BatchHeader], bool]) -> int:
    """Return the index of the first block that begins with a batch that ``is_late``, or is empty.

    Along the log ``is_late`` turns true once at most.
    """
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high) // 2
        block = blocks[middle]
        if block.length and not is_late(block.header_at(block.start_offset)):
            low = middle + 1
        else:
            high = middle
    return low


def messages_before(blocks: Blocks, offset: int, *, messages_appended: int) -> int:
    """Return how many messages start before ``offset``, counted since the log's first byte.

    Args:
        blocks: One of them holds the byte at ``offset``.
        offset: Need not be a boundary.
        messages_appended: Messages up to the end of the last block.

    Raises:
        CorruptData, OSError: As ``batch_at``.
    """
    at = blocks.index_at(offset)
    block = blocks[at]
    batch, messages = batch_at(block, offset)
    inside = records_of(block, batch) if offset > batch.start_offset else []
    # The first record is the control record, which does not count; the last entry is the end.
    behind = sum(1 for start in inside[1:-1] if start < offset)
    return before_block(blocks, at, messages_appended=messages_appended) + messages + behind


def before_block(blocks: Blocks, at: int, *, messages_appended: int) -> int:
    """Return the messages before block ``at``; from the blocks behind it if its index was lost.

    Raises:
        CorruptData, OSError: As ``batch_at``.
    """
    behind = 0
    for block in (blocks[i] for i in range(at, len(blocks))):
        index = block.load_index() if block.archive is None else block.kept_index()
        if index is not None and index.messages_before >= 0:
            return index.messages_before - behind
        behind += block.messages
    return messages_appended - behind


def offset_of(blocks: Blocks, messages: int, *, messages_appended: int) -> int:
    """Return where the first message begins that has ``messages`` or more before it in the log.

    The inverse of ``messages_before``: a search looks at the indexes of some blocks, and walks over
    the headers of 64 KiB at most.

    Args:
        blocks: One of them holds it, or a later message.
        messages: Messages before it, since the log's first byte.
        messages_appended: Messages up to the end of the last block.

    Raises:
        CorruptData, OSError: As ``batch_at``.
    """
    low, high = 0, len(blocks)
    while high - low > 1:
        middle = (low + high) // 2
        if before_block(blocks, middle, messages_appended=messages_appended) <= messages:
            low = middle
        else:
            high = middle
    block = blocks[low]
    left = max(0, messages - before_block(blocks, low, messages_appended=messages_appended))
    entry = block.load_index().before_message(left)
    left -= entry.messages
    for header in block.headers(entry.offset):
        if left < header.record_count:
            return records_of(block, header)[1 + left]
        left -= header.record_count
    raise CorruptData(f"{block.path.name} has {left + 1} messages less than its index says")
