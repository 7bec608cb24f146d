"""The last batches of each producer, so that a resend is recognised.

Plain values in and out; the table is part of the checkpoint, is rebuilt from the batch headers
behind it, and moves along when a partition moves. Not here: appending, or waiting for a flush.

    | size | field                                                              |
    |  1   | version, 3                                                         |
    |  1   | 1: producers were forgotten, 0: none was; version 1 lacks the byte  |
    |  4   | number of producers n                                              |
    |      | n times, least recently used first:                                |
    |  8   |   producer id                                                      |
    |  2   |   producer epoch                                                   |
    |  1   |   number of batches m, 1 to 5                                      |
    | 24 m |   batches in rising order: sequence (8), start offset (8),         |
    |      |   number of records (4), their mark (4); versions 1 and 2 lack     |
    |      |   these two                                                        |
    |  4   | CRC-32C of everything before                                       |
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from vq.errors import (
    CorruptData,
    ProducerFenced,
    SequenceGap,
    SequenceStale,
    SequenceTaken,
    UnknownProducer,
)
from vq.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_PARTITION_MAX
from vq.model import ProducerStamp
from vq.store.records.format import BatchHeader

_VERSION: Final = 3
_HEAD: Final = struct.Struct(">B?I")
_HEAD_1: Final = struct.Struct(">BI")
_PRODUCER: Final = struct.Struct(">QHB")
_BATCH: Final = struct.Struct(">QQII")
_BATCH_1: Final = struct.Struct(">QQ")
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper
_LAYOUTS: Final = {1: (_HEAD_1, _BATCH_1), 2: (_HEAD, _BATCH_1), _VERSION: (_HEAD, _BATCH)}


class Records(NamedTuple):
    """What tells the records of one batch from those of another; see ``format.records_mark``."""

    messages: int
    mark: int


#: Of a batch in a table that did not tell it; no batch has so many records.
_NOT_KNOWN: Final = Records(0xFFFF_FFFF, 0)


class _KnownBatch(NamedTuple):
    sequence: int
    start_offset: int
    records: Records


class _Producer:
    """One producer. Invariant: ``batches`` holds consecutive sequences, 1 to 5 of them."""

    __slots__ = ("batches", "epoch", "last")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last = -1
        self.batches: deque[_KnownBatch] = deque(maxlen=PRODUCER_BATCHES_REMEMBERED)


class ProducerTable:
    """The last five batches of each of the last 4 096 producers of one partition.

    One thread only. Example, producer 7 in epoch 0 having stored sequences 0, 1 and 2: sequence 3
    is new, 1 is a resend and gives its first offset, 4 is a gap; epoch 1 starts again at 0, and
    then everything of epoch 0 is refused.

    Attributes:
        forgot: Whether a producer that is not in the table may have written before: a full table
            dropped some, or the log began elsewhere and its table did not come along.
    """

    __slots__ = ("_entries", "forgot")

    def __init__(self, *, forgot: bool = False) -> None:
        self._entries: OrderedDict[int, _Producer] = OrderedDict()
        self.forgot = forgot

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._entries

    def check(self, stamp: ProducerStamp, *, resend: bool = False) -> int | None:
        """Return None for the next new batch; for a repeated one the start offset of the first.

        A repeated batch may still wait for its flush: it is durable once the log's synced offset
        is beyond the offset returned.

        Args:
            stamp: Of the batch.
            resend: The producer has sent it before and got no answer.

        Raises:
            SequenceGap: Batches before it are missing, or a new epoch does not begin with 0.
            SequenceStale: It is older than the five remembered; or it is the resend of a first
                batch, and the table has forgotten producers, perhaps this one.
            ProducerFenced: A newer epoch of the producer has written.
            UnknownProducer: The producer is not remembered and this is not its first batch.
        """
        producer_id, epoch, sequence = stamp
        entry = self._entries.get(producer_id)
        if entry is None:
            if sequence == 0:
                if resend and self.forgot:
                    raise SequenceStale(
                        f"producer {producer_id} sent its first batch again and is not remembered "
                        f"here: only the last {PRODUCERS_PER_PARTITION_MAX} producers are, so the "
                        "first attempt may be stored"
                    )
                return None
            raise UnknownProducer(
                f"producer {producer_id} is not remembered here and sent sequence {sequence}; "
                "only sequence 0 can be its first"
            )
        if epoch == entry.epoch:
            if sequence == entry.last + 1:
                return None
            return _repeated(entry, stamp)
        if epoch < entry.epoch:
            raise ProducerFenced(
                f"producer {producer_id} writes in epoch {entry.epoch} now, not in {epoch}",
                details={"epoch": entry.epoch},
            )
        if sequence != 0:
            raise SequenceGap(
                f"producer {producer_id} began epoch {epoch} with sequence {sequence}, not 0",
                details={"expected": 0},
            )
        return None

    def compare(self, stamp: ProducerStamp, records: Records) -> None:
        """Return if a repeated batch, for which ``check`` gave an offset, is the one remembered.

        Whoever may read a topic learns the stamps of its producers, and can send a batch with the
        next one. That of the producer itself must not pass for its resend.

        Raises:
            SequenceTaken: Another batch has its sequence. This one is not stored.
        """
        producer_id, _, sequence = stamp
        batches = self._entries[producer_id].batches
        known = batches[sequence - batches[0].sequence].records
        if known not in (records, _NOT_KNOWN):
            raise SequenceTaken(
                f"another batch has sequence {sequence} of producer {producer_id}: "
                f"{known.messages} record(s) with the mark {known.mark:#010x} are stored, "
                f"{records.messages} with the mark {records.mark:#010x} came"
            )

    def record(
        self, stamp: ProducerStamp, start_offset: int, records: Records = _NOT_KNOWN
    ) -> None:
        """Remember a batch that was appended, or was found in the log."""
        producer_id, epoch, sequence = stamp
        entries = self._entries
        entry = entries.get(producer_id)
        if entry is None or epoch != entry.epoch:
            entry = entries[producer_id] = _Producer(epoch)
            if len(entries) > PRODUCERS_PER_PARTITION_MAX:
                entries.popitem(last=False)
                self.forgot = True
        elif sequence != entry.last + 1:
            entry.batches.clear()
        entry.last = sequence
        entry.batches.append(_new(_KnownBatch, (sequence, start_offset, records)))
        entries.move_to_end(producer_id)

    def record_all(self, batches: Sequence[BatchHeader]) -> None:
        """Remember batches that follow each other in the log, as ``record`` does for each.

        Of each producer it takes the last ones alone: it would forget those before them.
        """
        taken: dict[int, int] = {}
        last: list[BatchHeader] = []
        for header in reversed(batches):
            producer_id = header.producer_id
            if producer_id:
                count = taken.get(producer_id, 0)
                if count < PRODUCER_BATCHES_REMEMBERED:
                    taken[producer_id] = count + 1
                    last.append(header)
        for header in reversed(last):
            records = Records(header.record_count, header.records_mark)
            self.record(header.stamp, header.start_offset, records)

    def before(self, offset: int) -> "ProducerTable":
        """Return a table of the batches that start before ``offset``, of those remembered."""
        table = ProducerTable(forgot=self.forgot)
        for producer_id, entry in self._entries.items():
            for sequence, start, records in entry.batches:
                if start < offset:
                    stamp = ProducerStamp(producer_id, entry.epoch, sequence)
                    table.record(stamp, start, records)
        return table

    def batches(self) -> list[tuple[int, ProducerStamp, Records]]:
        """Return the batches remembered with their start offsets, in the order of these."""
        found = [
            (start, ProducerStamp(producer_id, entry.epoch, sequence), records)
            for producer_id, entry in self._entries.items()
            for sequence, start, records in entry.batches
        ]
        return sorted(found)

    def copy(self) -> "ProducerTable":
        """Return an independent table with the same content."""
        return ProducerTable.from_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes that the module's table shows."""
        parts = [_HEAD.pack(_VERSION, self.forgot, len(self._entries))]
        for producer_id, entry in self._entries.items():
            parts.append(_PRODUCER.pack(producer_id, entry.epoch, len(entry.batches)))
            parts += [
                _BATCH.pack(sequence, start, *records) for sequence, start, records in entry.batches
            ]
        body = b"".join(parts)
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> "ProducerTable":
        """Return the table that ``to_bytes`` wrote; no bytes at all give an empty one.

        Raises:
            CorruptData: The bytes are not a producer table, are damaged, or of an unknown version.
        """
        table = cls()
        if not data:
            return table
        head, batch = _LAYOUTS.get(data[0], (None, _BATCH))
        if head is None or len(data) < head.size + 4:
            raise CorruptData(
                f"{len(data)} bytes are not a producer table of version 1 to {_VERSION}"
            )
        if google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise CorruptData("a producer table fails its CRC")
        count = head.unpack_from(data)[-1]
        # Version 1 did not note it; a table only shrinks from the bound, so this errs on its side.
        forgot = count >= PRODUCERS_PER_PARTITION_MAX if head is _HEAD_1 else bool(data[1])
        table.forgot = forgot
        at = head.size
        try:
            for _ in range(count):
                producer_id, epoch, batches = _PRODUCER.unpack_from(data, at)
                at += _PRODUCER.size
                for _ in range(batches):
                    sequence, offset, *records = batch.unpack_from(data, at)
                    at += batch.size
                    stamp = ProducerStamp(producer_id, epoch, sequence)
                    table.record(stamp, offset, Records(*records) if records else _NOT_KNOWN)
        except struct.error as error:
            raise CorruptData(f"a producer table of {count} producers is cut off") from error
        if at != len(data) - 4:
            raise CorruptData(f"a producer table of {count} producers has {len(data)} bytes")
        return table


def _repeated(entry: _Producer, stamp: ProducerStamp) -> int:
    sequence = stamp.sequence
    if sequence > entry.last:
        raise SequenceGap(
            f"producer {stamp.producer_id} sent sequence {sequence}, {entry.last + 1} comes next",
            details={"expected": entry.last + 1},
        )
    oldest = entry.batches[0].sequence
    if sequence < oldest:
        raise SequenceStale(
            f"producer {stamp.producer_id} sent sequence {sequence} again; only {oldest} to "
            f"{entry.last} are remembered",
            details={"oldest": oldest},
        )
    return entry.batches[sequence - oldest].start_offset
