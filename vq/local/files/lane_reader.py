"""Reading the lanes of a local queue: messages from a place on, one message, all that follow."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vq import limits
from vq.errors import CorruptData
from vq.local.files.damage import LaneDamage
from vq.local.files.notes import Aside, LaneSnapshot
from vq.local.items import IDEMPOTENCY_HEADER, LATER, LocalItem
from vq.store.log.log import Log
from vq.store.records.format import CONTROL_BYTES, decode_control
from vq.store.records.record import Record, bytes_needed, decode_into

_READ_BYTES: Final = 512 * limits.KIB
_ONE_BYTES: Final = limits.KIB
_IDEMPOTENCY: Final = IDEMPOTENCY_HEADER.encode()


class ReadMessage(NamedTuple):
    """A record with the number of its message in the lane."""

    number: int
    record: Record


class LaneReader:
    """Reads the logs of one queue; damage is set aside. Under the lock of the queue."""

    def __init__(self, logs: Sequence[Log], damage: LaneDamage) -> None:
        self._logs = logs
        self._damage = damage

    def read(
        self, lane: int, offset: int, number: int, count: int
    ) -> tuple[list[ReadMessage], int, int]:
        """Return some durable messages from a boundary on, and where to go on, with the number.

        What is damaged is set aside, so there may be none before that place.

        Args:
            lane: Of the messages.
            offset: Where the message of this number begins, or the batch in front of it.
            number: Of the first one.
            count: At most so many, >= 1.

        Raises:
            CorruptData, PartitionFailed, PartitionQuarantined: They cannot be read.
        """
        return self._chunk(lane, offset, number, count=count)

    def open_items(self, lane: int, snapshot: LaneSnapshot, topic: str) -> list[LocalItem]:
        """Return the messages of the open ranges of a lane.

        Raises:
            CorruptData, PartitionFailed, PartitionQuarantined: As ``read``.
        """
        items = []
        for start, end, offset, first in snapshot.opened:
            number = start if first < 0 else first
            while number < end:
                found, offset, number = self._chunk(lane, offset, number)
                items += [
                    LocalItem.stored(record, topic, lane, each, priority=lane, attempts=1)
                    for each, record in found
                    if start <= each < end
                ]
        return items

    def read_aside(self, aside: Aside, topic: str) -> LocalItem:
        """Return a message of the lane ``LATER``.

        Raises:
            CorruptData, PartitionFailed, PartitionQuarantined: As ``read``.
        """
        ((_, record),), _, _ = self._chunk(
            LATER, aside.offset, aside.number, size=_ONE_BYTES, count=1, skips=False
        )
        return LocalItem.stored(
            record,
            topic,
            LATER,
            aside.number,
            priority=aside.priority,
            attempts=aside.attempts + 1,
        )

    def scan(self, lane: int, offset: int, number: int) -> Iterator[ReadMessage]:
        """Yield the records from a boundary on."""
        end = self._logs[lane].end_offset
        offset = max(offset, self._logs[lane].start_offset)
        while offset < end:
            found, offset, number = self._chunk(lane, offset, number)
            yield from found

    def keyed(self, lane: int, offset: int) -> Iterator[Record]:
        """Yield the records, from a batch on, of chunks that have idempotency keys.

        Most have none, and are passed batch by batch.
        """
        log, size = self._logs[lane], _READ_BYTES
        offset = max(offset, log.start_offset)
        while offset < log.end_offset:
            data = bytes(log.reader.read(offset, size, log.end_offset))
            at = 0
            try:
                header = decode_control(data)
                while header is not None and at + header.byte_length <= len(data):
                    at += header.byte_length
                    header = decode_control(data, at)
            except CorruptData:  # whoever reads the messages tells it
                if not at:
                    offset = self._damage.next_batch(lane, offset + 1)[0]
                    continue
            if not at:  # not one whole batch
                size = CONTROL_BYTES if header is None else header.byte_length
                continue
            if _IDEMPOTENCY in data:
                records: list[Record] = []
                with contextlib.suppress(CorruptData):
                    decode_into(data[:at], offset, records)
                yield from records
            offset, size = offset + at, _READ_BYTES

    def _chunk(
        self,
        lane: int,
        offset: int,
        number: int,
        *,
        size: int = _READ_BYTES,
        count: int | None = None,
        skips: bool = True,
    ) -> tuple[list[ReadMessage], int, int]:
        log = self._logs[lane]
        records: list[Record] = []
        while not records and offset < log.synced_offset:
            data = bytes(log.reader.read(offset, size, log.synced_offset))
            try:
                following = decode_into(data, offset, records)
                if following == offset:  # not one whole record
                    size = bytes_needed(data)
            except CorruptData as error:
                if records:
                    following = records[-1].next_offset
                elif not skips:
                    raise
                else:
                    at = max(int(error.details.get("offset", offset)), offset)
                    following, number = self._damage.set_aside(lane, at, number, error)
            offset = following
        if count is not None and len(records) > count:
            del records[count:]
            offset = records[-1].next_offset
        found = [ReadMessage(number + at, record) for at, record in enumerate(records)]
        return found, offset, number + len(found)
