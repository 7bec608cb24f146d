"""What stored bytes hold, batch by batch: are they what was written, whole, and in order?

Plain values in and out; no I/O. ``read_bytes`` reads the bytes, of one node.

For each batch it checks its place, the checksum of its control record, the CRC over all its
records, the checksum of each record, and their number. Along the batches it checks what never
falls: the epoch of the master and the append time; and that each producer's batches follow one
another: in one epoch of a producer sequences rise by one, and a new epoch begins with 0.

After damage the check goes on at the next intact batch. What lies between is one fault. Nothing is
concluded from what lies before it: the lost batches may explain anything.
"""

import enum
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vq.errors import CorruptData, InvalidArgument
from vq.store.records.batches import verified
from vq.store.records.codec import intact
from vq.store.records.format import (
    CONTROL_BYTES,
    FLAG_CONTROL,
    RECORD_HEADER_BYTES,
    BatchHeader,
)
from vq.store.records.record import is_intact
from vq.store.records.scan import first_control

#: Message ids end before it.
_ID_END: Final = 2**63
#: So many faults of one check are kept; all are counted.
FAULTS_MAX: Final = 1_000
#: So many producers of one check are followed, those seen first.
PRODUCERS_MAX: Final = 10_000
#: Classes of message sizes: class n has sizes of n bits.
SIZE_CLASSES: Final = 32
_FIELDS: Final = struct.Struct(
    ">"
    "I"  # length
    "4x"  # checksum: ``intact`` verifies it
    "Q"  # id
    "I"  # flag
)


class FaultKind(enum.StrEnum):
    """What is wrong with a range of stored bytes."""

    DAMAGED = "damaged"  # no intact batch
    RECORD = "record"  # the batch is as it was written, and a record in it never was sound
    SEQUENCE = "sequence"  # a batch of a producer is missing before this one, or is stored twice
    EPOCH = "epoch"  # of an older master than the batch before
    TIME = "time"  # appended before the batch before


class ContentFault(NamedTuple):
    """A range of offsets ``[start, end)`` in which something is wrong; ``detail`` says what."""

    start: int
    end: int
    kind: FaultKind
    detail: str


class CheckedBatch(NamedTuple):
    """An intact batch: two copies of a log have the same ones.

    Attributes:
        start, end: Offsets ``[start, end)``.
        crc: Its CRC.
        epoch: Of the master that appended it.
        append_ms: When, in ms since 1970 UTC.
    """

    start: int
    end: int
    crc: int
    epoch: int
    append_ms: int


@dataclass(slots=True)
class ProducerEdge:
    """The batches of one producer in a range that was checked.

    Attributes:
        producer_id: Which.
        start: Offset of its first batch in the range.
        first: Epoch and sequence of its first batch; None: damage lies before it.
        last: Of its last one; None: damage lies behind it.
    """

    producer_id: int
    start: int
    first: tuple[int, int] | None
    last: tuple[int, int] | None


@dataclass(slots=True)
class ContentTotals:
    """What is intact in a range.

    Attributes:
        batches, messages, intact_bytes: How much.
        sizes: How many messages have a size of n bits, for each n; the size is that of the record
            behind its header, so with tag and properties, and compressed if it is.
        first, last: The first and last batch; None: there is none.
        id_falls: How often a message had a smaller id than the one before it. That is no fault: ids
            of several producers mix.
    """

    batches: int = 0
    messages: int = 0
    intact_bytes: int = 0
    sizes: list[int] = field(default_factory=lambda: [0] * (SIZE_CLASSES + 1))
    first: CheckedBatch | None = None
    last: CheckedBatch | None = None
    id_falls: int = 0


class ContentCheck:
    """Checks the bytes of one range, fed to it in order, from the start of a batch on.

    Not thread-safe. Memory: one batch, and 16 bytes a message until ``take_messages``.

    Args:
        start: Offset of the first byte; a batch begins there.

    Attributes:
        position: Where the next byte fed lies.
        faults: The first ``FAULTS_MAX`` of them, in order.
        fault_counts: How many there are of each kind.
        totals: What is intact.
        damaged: Whether bytes were lost or damaged.
        follows_all: Whether ``producers`` are all there are.
        keep_batches: Whether intact batches are kept from now on.
        batches_seen: Those that were.
    """

    def __init__(self, start: int) -> None:
        self.position = start
        self.faults: list[ContentFault] = []
        self.fault_counts: dict[FaultKind, int] = {}
        self.totals = ContentTotals()
        self.damaged = False
        self.batches_seen: list[CheckedBatch] = []
        self.keep_batches = False
        self._rest = b""
        self._bad: tuple[int, str] | None = None  # where damage begins, and what it is
        self._before: CheckedBatch | None = None  # the batch before, unless damage lies between
        self._id_before = 0
        self._ids = array("Q")
        self._offsets = array("Q")
        self._producers: dict[int, ProducerEdge] = {}
        self.follows_all = True

    @property
    def producers(self) -> list[ProducerEdge]:
        """The producers of batches with a stamp; the first ``PRODUCERS_MAX``."""
        return list(self._producers.values())

    @property
    def fault_count(self) -> int:
        """How many faults there are, of all kinds."""
        return sum(self.fault_counts.values())

    def take_messages(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the offsets and ids of the messages since the last call, and forget them."""
        offsets, ids = self._offsets, self._ids
        self._offsets, self._ids = array("Q"), array("Q")
        return offsets, ids

    def feed(self, data: bytes) -> None:
        """Check the next bytes."""
        buf = self._rest + data if self._rest else data
        base = self.position - len(self._rest)
        self.position += len(data)
        sound = at = 0
        while True:
            if self._bad is not None:
                found = first_control(buf[at:], base + at)
                if found is None:
                    at = max(at, len(buf) - CONTROL_BYTES + 1)
                    break
                at = found.start_offset - base
                self._end_damage(found.start_offset)
            try:
                for header in verified(buf[at:], base + at):
                    self._take(header)
                    at = header.start_offset - base
                    sound = self._walk(buf, at, header, max(sound, at))
                    at += header.byte_length
                break
            except CorruptData as error:
                self._begin_damage(base + at, str(error.details["why"]))
                stop = int(error.details.get("end", 0))
                if stop:
                    self._end_damage(stop)
                at = stop - base if stop else at + 1
        self._rest = buf[at:]

    def skip(self, offset: int, why: str) -> None:
        """Note that the bytes up to ``offset`` cannot be had; it need not be the start of a batch.

        Raises:
            InvalidArgument: It lies before the bytes that were fed.
        """
        if offset < self.position:
            raise InvalidArgument(f"offset {offset} lies before {self.position}, the next byte")
        self._begin_damage(self.position - len(self._rest), why)
        self._rest = b""
        self.position = offset

    def leave(self) -> int:
        """End the range where its last whole batch ends, and return that offset.

        What was fed behind it is not judged: the bytes that follow could not be had.
        """
        end = self.position - len(self._rest)
        if self._bad is not None:
            self._end_damage(end)
        self._rest = b""
        self.position = end
        return end

    def finish(self) -> None:
        """End the range at ``position``: what is left over is no whole batch."""
        if self._bad is None and self._rest:
            at = self.position - len(self._rest)
            self._begin_damage(at, "the batch does not end in this range")
        self._rest = b""
        if self._bad is not None:
            self._end_damage(self.position)

    def note(self, start: int, end: int, kind: FaultKind, detail: str) -> None:
        """Note a fault."""
        self.fault_counts[kind] = self.fault_counts.get(kind, 0) + 1
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(ContentFault(start, end, kind, detail))

    # Damage -------------------------------------------------------------------------------------
    def _begin_damage(self, offset: int, why: str) -> None:
        if self._bad is None:
            self._bad = (offset, why)

    def _end_damage(self, end: int) -> None:
        assert self._bad is not None
        (start, why), self._bad = self._bad, None
        last = self.faults[-1] if self.faults else None
        if last is not None and last.kind is FaultKind.DAMAGED and last.end == start:
            self.faults[-1] = last._replace(end=end)  # side by side is one
        else:
            self.note(start, end, FaultKind.DAMAGED, why)
        self.damaged = True
        self._before = None
        for edge in self._producers.values():
            edge.last = None

    # Intact batches -----------------------------------------------------------------------------
    def _take(self, header: BatchHeader) -> None:
        """Note an intact batch, and how it follows the one before."""
        start, end = header.start_offset, header.end_offset
        before = self._before
        if before is not None:
            if header.master_epoch < before.epoch:
                why = f"epoch {header.master_epoch} follows epoch {before.epoch}"
                self.note(start, end, FaultKind.EPOCH, why)
            if header.append_time_ms < before.append_ms:
                fall_ms = before.append_ms - header.append_time_ms
                why = f"it was appended {fall_ms} ms before the batch before it"
                self.note(start, end, FaultKind.TIME, why)
        if header.producer_id:
            self._follow(header)
        batch = CheckedBatch(start, end, header.crc, header.master_epoch, header.append_time_ms)
        totals = self.totals
        totals.first = totals.first or batch
        self._before = totals.last = batch
        totals.batches += 1
        totals.intact_bytes += header.byte_length
        if self.keep_batches:
            self.batches_seen.append(batch)

    def _follow(self, header: BatchHeader) -> None:
        stamp = (header.producer_epoch, header.producer_sequence)
        edge = self._producers.get(header.producer_id)
        if edge is None:
            if len(self._producers) < PRODUCERS_MAX:
                first = None if self.damaged else stamp
                self._producers[header.producer_id] = ProducerEdge(
                    header.producer_id, header.start_offset, first, stamp
                )
            else:
                self.follows_all = False
            return
        if edge.last is not None:
            why = sequence_fault(header.producer_id, edge.last, stamp)
            if why:
                self.note(header.start_offset, header.end_offset, FaultKind.SEQUENCE, why)
        edge.last = stamp

    def _walk(self, buf: bytes, at: int, header: BatchHeader, sound: int) -> int:
        """Check the records of an intact batch; return where those known to be sound end."""
        position, stop = at + CONTROL_BYTES, at + header.byte_length
        base = header.start_offset - at
        unpack, sizes = _FIELDS.unpack_from, self.totals.sizes
        add_id, add_offset = self._ids.append, self._offsets.append
        id_before, falls, count = self._id_before, 0, 0
        last = stop - RECORD_HEADER_BYTES
        while position <= last:
            length, message_id, flag = unpack(buf, position)
            end = position + RECORD_HEADER_BYTES + length
            if end > stop:
                break
            if end > sound:
                sound = intact(buf, position)
                if end > sound:  # compressed, or with another checksum: not one of the common ones
                    if flag & FLAG_CONTROL or not is_intact(buf[position:end]):
                        why = "the record fails its checksum, and was stored so"
                        self.note(base + position, base + end, FaultKind.RECORD, why)
                    sound = end
            if message_id < _ID_END:
                add_id(message_id)
                add_offset(base + position)
            else:  # no broker takes it, and programs with numbers of 63 bits cannot count it
                why = f"the record has the id {message_id}, and ids have 63 bits"
                self.note(base + position, base + end, FaultKind.RECORD, why)
            sizes[length.bit_length()] += 1
            if message_id < id_before:
                falls += 1
            id_before = message_id
            count += 1
            position = end
        self._id_before = id_before
        self.totals.id_falls += falls
        self.totals.messages += count
        if position != stop or count != header.record_count:
            why = (
                f"the batch announces {header.record_count} records in {header.byte_length} bytes; "
                f"it has {count} in {position - at}"
            )
            self.note(header.start_offset, header.end_offset, FaultKind.RECORD, why)
        return sound


def sequence_fault(producer_id: int, before: tuple[int, int], after: tuple[int, int]) -> str:
    """Return what is wrong with two batches of a producer that follow one another; "": nothing.

    Each is an epoch of the producer and a sequence. *Example*: (0, 4) is followed by (0, 5), or by
    (1, 0). (0, 4) again is a batch stored twice, and (0, 7) shows that two batches are missing.
    """
    expected = (before[0], before[1] + 1)
    if after == expected or (after[0] > before[0] and after[1] == 0):
        return ""
    name = f"producer {producer_id}"
    if after == before or (after[0] == before[0] and after[1] <= before[1]):
        return f"sequence {after[1]} of {name} follows {before[1]}: it is stored again, or late"
    if after[0] < before[0]:
        return f"{name} wrote in epoch {after[0]} after epoch {before[0]}"
    if after[0] == before[0]:
        missing = after[1] - expected[1]
        return f"{missing} batches of {name} are missing before sequence {after[1]}"
    return f"epoch {after[0]} of {name} begins with sequence {after[1]}: batches are missing"
