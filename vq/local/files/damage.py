"""Damage in the logs of a local queue: how far it reaches, and a place for its bytes.

What is whole tells: the record's own length if a whole record follows, else the end of its batch,
else the next batch.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vq import limits
from vq.errors import CorruptData
from vq.local.files.lanes import LOGS, NOTES
from vq.log_lines import get_logger
from vq.store.disk.disk import Disk
from vq.store.log.log import Log
from vq.store.log.lookup import batch_at
from vq.store.records.record import bytes_needed, is_intact
from vq.store.records.scan import first_control

logger = get_logger(__name__)

_DAMAGED: Final = "@damaged."
_DAMAGED_NAME: Final = re.compile(
    rf"{_DAMAGED}([a-z0-9-]+)\.(\d{{1,20}})\.(\d{{1,20}})\.(\d{{1,20}})", re.A
)
_ONE_BYTES: Final = limits.KIB


class DamagedMessages(NamedTuple):
    """Messages that could not be read; their bytes were set aside, and the lane went on.

    Attributes:
        log: ``lane-0`` to ``lane-2``, ``later``, or ``notes`` (of completions: what those were of
            is given again).
        offset: Where the bytes begin in the log.
        number: Of the first one in its lane.
        messages: So many, or notes.
        path: The file that has the bytes.
    """

    log: str
    offset: int
    number: int
    messages: int
    path: Path


def damaged_in(directory: Path, names: Iterable[str]) -> list[DamagedMessages]:
    """Return what was set aside, by the names of the files in a queue's directory."""
    found = []
    for name in names:
        match = _DAMAGED_NAME.fullmatch(name)
        if match is not None and match[1] in LOGS:  # others are not ours: a copy of an editor, say
            offset, number, count = (int(each) for each in match.groups()[1:])
            found.append(DamagedMessages(match[1], offset, number, count, directory / name))
    return sorted(found)


class LaneDamage:
    """What of the logs of one queue cannot be read. Under the lock of the queue.

    Args:
        directory: Of the queue.
        logs: By lane; those of ``Storage``.
        disk: The disk.

    Attributes:
        found: What was set aside, also by earlier processes.
        messages_now: So many messages since the queue was opened.
    """

    def __init__(self, directory: Path, logs: Sequence[Log], disk: Disk) -> None:
        self._directory = directory
        self._logs = logs
        self._disk = disk
        self.found = damaged_in(directory, disk.listdir(directory))
        self.messages_now = 0

    def set_aside(self, lane: int, offset: int, number: int, error: CorruptData) -> tuple[int, int]:
        """Keep the bytes that cannot be read; return the next boundary and its number.

        Raises:
            CorruptData: They cannot be kept, so nothing goes on.
        """
        log = self._logs[lane]
        following, next_number = self._past(lane, offset, number)
        count = 1 if lane == NOTES else next_number - number
        path = self._directory / f"{_DAMAGED}{LOGS[lane]}.{offset}.{number}.{count}"
        found = DamagedMessages(LOGS[lane], offset, number, count, path)
        if found not in self.found:
            try:
                data = bytes(log.reader.read(offset, following - offset, following))
                self._disk.write_atomic(path, data)
            except OSError as failed:
                raise CorruptData(
                    f"{error}; its bytes cannot be set aside: {failed}",
                    hint=f"free space in {self._directory}, then take again",
                ) from error
            self.found.append(found)
        self.messages_now += count if lane != NOTES else 0
        logger.error(
            "messages cannot be read, set aside",
            directory=log.directory,
            offset=offset,
            messages=count,
            path=path,
            error=error,
        )
        return following, next_number

    def _past(self, lane: int, offset: int, number: int) -> tuple[int, int]:
        """Return the first boundary behind damage that is known to be one, and its number."""
        log = self._logs[lane]
        block = log.reader.block_at(offset)
        try:
            if block is None:
                raise CorruptData(f"no block has offset {offset}")
            batch, _ = batch_at(block, offset)
            first = log.reader.number_at(batch.start_offset)
        except CorruptData:
            return self.next_batch(lane, offset + 1)
        with contextlib.suppress(CorruptData):
            size = bytes_needed(log.reader.read(offset, _ONE_BYTES, batch.end_offset))
            following = offset + size
            if following == batch.end_offset or self._is_whole(lane, following, batch.end_offset):
                return following, number + 1
        if first is None:
            return self.next_batch(lane, batch.end_offset)
        return batch.end_offset, first + batch.record_count

    def _is_whole(self, lane: int, offset: int, end: int) -> bool:
        if offset >= end:
            return False
        reader = self._logs[lane].reader
        size = bytes_needed(reader.read(offset, _ONE_BYTES, end))
        return offset + size <= end and is_intact(bytes(reader.read(offset, size, end)))

    def next_batch(self, lane: int, offset: int) -> tuple[int, int]:
        """Return where the next batch begins at ``offset`` or behind it, and its number.

        Damage hides the numbers of what follows, up to the next place that an index knows. They
        follow from it if the batches in between are whole.
        """
        log = self._logs[lane]
        first, count = -1, 0  # whole batches that end at ``offset``
        while (block := log.reader.block_at(offset)) is not None:
            data = block.view(offset - block.start_offset, block.end_offset - offset)
            header = first_control(bytes(data), offset)
            start = block.end_offset if header is None else header.start_offset
            number = log.messages_appended
            if start < log.end_offset:
                known = log.reader.number_at(start)
                number = -1 if known is None else known
            if first < 0 or start != offset:
                first, count = start, 0
            if number >= 0:
                return first, number - count
            if header is not None:
                count += header.record_count
            offset = start if header is None else header.end_offset
        return log.end_offset, log.messages_appended
