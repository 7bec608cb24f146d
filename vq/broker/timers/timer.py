"""One partition of delayed messages on the node that leads it: read, kept, sent when due, recalled.

    log ──▶ read, record by record, up to the high watermark ──▶ pending
                                                                   │ due
             note "sent" in the log  ◀── batches of their targets ─┘
                   │ is read back: it is committed
                   ▼
             outbox ──▶ stored ──▶ the log is not needed for them any more

Whatever changes what waits is read from the log, the notes of this node included: so a node that
begins to lead reads the log and knows what the one before it knew. Nothing is sent before its note
is committed, and a note that another master does not have is never committed. A batch that may have
been sent before is sent again under the same stamp, and the broker recognises it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from vq import limits
from vq.broker.base.runner import Runner
from vq.broker.journal.deliveries import DONE_S, LeftOut
from vq.broker.journal.items import Item
from vq.broker.journal.log_records import TRIES
from vq.broker.journal.notes import NOTE_TAG, UNKNOWN, Sent
from vq.broker.journal.outbox import Gone, Outbox, Parcel
from vq.broker.journal.reader import LOOK_S, DeliveringReader
from vq.broker.partition.channel import Channel
from vq.broker.standing.gate import Gate
from vq.broker.timers.notes import Cancelled, Note, decode_note, encode_note
from vq.broker.timers.pending import Pending
from vq.clock import Clock
from vq.errors import Busy, CorruptData, InvalidRequest, OffsetOutOfRange
from vq.log_lines import get_logger
from vq.model import Cancellation, TopicPartition
from vq.store.records.record import Record, read_delivery

logger = get_logger(__name__)

#: Cancellations that are remembered, so that one that is repeated has the same answer.
CANCELLED_MAX: Final = 10_000


class Timer(DeliveringReader):
    """See the module. Loop-bound.

    Args:
        channel: Of the partition.
        outbox: Sends what is due.
        gate: Says whether anything may be appended.
        clock: Tells when something is.
        runner: Reads what is not in memory.
        counts: Of the node.

    Attributes:
        is_live: All that was committed before this node began to lead was read.
        what, batch_bytes, batch_items: See ``deliveries.Source``.
    """

    what: Final = "delayed messages"
    batch_bytes: Final = 512 * limits.KIB
    batch_items: Final = 1_000

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        gate: Gate,
        *,
        clock: Clock,
        runner: Runner,
        counts: "Counts",
    ) -> None:
        super().__init__(channel, outbox, gate, clock=clock, runner=runner, passes_by=True)
        self._counts = counts
        self._targets: list[TopicPartition] = []
        self._numbers: dict[TopicPartition, int] = {}
        self._pending = Pending()
        self._cancels: dict[int, asyncio.Future[None]] = {}  # whose notes are not committed yet
        self._cancelled: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """How many messages wait, or are due and not stored yet."""
        return len(self._pending) + len(self._deliveries)

    # Reading the log ------------------------------------------------------------------------------
    def pause_s(self) -> float:
        """See ``JournalReader``."""
        now_ms = self._clock.wall_ms()
        next_ms = self._pending.next_ms(now_ms)
        if next_ms is None:
            return DONE_S
        return min(LOOK_S, max(0.0, (next_ms - now_ms) / 1_000))

    def ended(self) -> None:
        """See ``JournalReader``."""
        for committed in self._cancels.values():
            committed.set_exception(self.channel.acks.mastership_lost())
            committed.exception()  # perhaps nobody waits any more

    def take_all(self, records: Sequence[Record]) -> None:
        """See ``JournalReader``; a broker that starts takes a million."""
        own, numbers = self.channel.partition.topic, self._numbers
        waiting: list[tuple[int, int, int, int]] = []
        for record in records:
            offset, following, _, _, tag, properties, _ = record
            if properties is not None and tag != NOTE_TAG:
                delivery = read_delivery(properties)
                if delivery is not None and delivery[1].topic != own:
                    due_ms, to = delivery
                    number = numbers.get(to)
                    if number is None:
                        number = self._number(to)
                    waiting.append((due_ms, offset, following - offset, number))
                    continue
            self._pending.add_all(waiting)  # a note may be about these
            waiting.clear()
            self.take(record)
        self._pending.add_all(waiting)

    def take(self, record: Record) -> None:
        """See ``JournalReader``."""
        if record.tag == NOTE_TAG:
            try:
                note = decode_note(record.payload)
            except CorruptData as error:  # of a later version
                self._leave_out(record, str(error))
            else:
                self._take_note(note)
            return
        delivery = None if record.properties is None else read_delivery(record.properties)
        if delivery is None or delivery[1].topic == self.channel.partition.topic:
            self._leave_out(record, "it has no time, or no partition to go to")
            return
        due_ms, to = delivery
        length = record.next_offset - record.offset
        self._pending.add(Item(due_ms, record.offset, length, self._number(to)))

    def _number(self, to: TopicPartition) -> int:
        """Return the number of a target."""
        number = self._numbers.get(to)
        if number is None:
            number = self._numbers[to] = len(self._targets)
            self._targets.append(to)
        return number

    def _leave_out(self, record: Record, why: str) -> None:
        logger.warning(
            "what is no delayed message is left out",
            partition=self.channel,
            offset=record.offset,
            reason=why,
        )

    def _take_note(self, note: Note) -> None:
        if isinstance(note, Cancelled):
            self._take_cancelled(note.message)
        else:
            self._deliveries.take(note)

    # What its deliveries ask --------------------------------------------------------------------
    def took(self, sent: Sent, new: Sequence[Item]) -> bool:
        """See ``Source``."""
        number = self._number(sent.to)
        for each in sent.items if self._log.unread else ():
            if self._log.was_passed(each.offset):
                self._log.settled.add(each.offset)
                self._pending.add(each._replace(target=number))
        for each in new:
            if each.offset >= self._log.begin:
                self._pending.remove(each.key, each.offset)
        known = [each for each in sent.items if each.offset >= self._log.begin]
        if known and len(known) == len(sent.items):
            return True
        for each in known:  # it is stored: otherwise all of it would still be there
            self._pending.free(each.offset)
        return False

    def put_back(self, to: TopicPartition, items: Sequence[Item]) -> None:
        """See ``Source``."""
        number = self._number(to)
        for each in items:
            self._pending.put_back(each._replace(target=number))

    def free(self, _to: TopicPartition, items: Sequence[Item], _offset: int = UNKNOWN) -> None:
        """See ``Source``."""
        for each in items:
            self._pending.free(each.offset)

    async def parcel(self, sent: Sent, *, resend: bool, tries: int) -> Parcel:
        """See ``Source``."""
        items = sent.items
        parts = [bytes(await self._log.bytes_at(each.offset, each.length)) for each in items]
        bad = self._log.damaged(items, parts)
        if bad and not resend and tries >= TRIES:
            self._set_aside(bad)
            raise LeftOut(bad)
        if bad:
            raise CorruptData(f"the record at offset {bad[0].offset} fails its checksum")
        return Parcel(sent.to, sent.stamp, b"".join(parts), len(parts), resend)

    def delivered(self, _to: TopicPartition, items: Sequence[Item], gone: Gone | None) -> None:
        """See ``Source``."""
        if gone is None:
            self._counts.delivered += len(items)
        else:
            self._counts.undeliverable += len(items)

    def _set_aside(self, bad: Sequence[Item]) -> None:
        """Leave messages out of a batch that was never sent; they are read again later."""
        for each in bad:
            logger.error(
                "record of a delayed message cannot be read, delivering others without it",
                partition=self.channel,
                offset=each.offset,
            )
            self._log.unread[each.offset] = each.offset + each.length
            self._pending.free(each.offset)

    def take_late(self, record: Record) -> None:
        """See ``JournalReader``."""
        if record.tag != NOTE_TAG:
            self.take(record)
            return
        with suppress(CorruptData):
            note = decode_note(record.payload)
            if isinstance(note, Cancelled):  # what others say is over by now
                due_ms, offset = note.message[:2]
                if self._pending.holds(due_ms, offset):
                    self._take_cancelled(note.message)

    def _drop(self, message: Item) -> None:
        self._pending.remove(message.key, message.offset)
        self._pending.free(message.offset)

    def _take_cancelled(self, message: Item) -> None:
        if message.offset < self._log.begin:
            return
        self._cancelled[message.offset] = None
        if len(self._cancelled) > CANCELLED_MAX:
            self._cancelled.popitem(last=False)
        committed = self._cancels.pop(message.offset, None)
        if self._log.was_passed(message.offset):
            self._log.settled.add(message.offset)
        elif committed is None:
            self._drop(message)
        else:
            self._pending.free(message.offset)
            committed.set_result(None)
        self._counts.cancelled += 1

    def go_live(self) -> None:
        """See ``JournalReader``."""
        logger.info("delayed messages were read", partition=self.channel, messages=len(self))
        super().go_live()

    # Writing notes --------------------------------------------------------------------------------
    def write(self) -> None:
        """Note batches of what is due, for the targets that have none."""
        for delayed in self._pending.due(self._clock.wall_ms()):
            self._deliveries.ready(self._targets[delayed.target], (delayed,))
        notes = self._deliveries.notes()
        if not notes:
            return
        if self.append(list(map(encode_note, notes))) is None:
            self._deliveries.written(notes)
        else:
            self._deliveries.not_written(notes)

    def needs(self) -> Sequence[int]:
        """See ``JournalReader``."""
        needed = self._pending.needed_from
        return () if needed is None else (needed,)

    # Cancelling ---------------------------------------------------------------------------------
    async def cancel(
        self, offset: int, message_id: int, check: Callable[[str], None] = lambda _topic: None
    ) -> Cancellation:
        """Have a message delivered to nobody; return what became of it.

        Args:
            offset, message_id: Of the message.
            check: Called with the topic that it goes to; raises why it is not recalled.

        Raises:
            VqError: ``check`` raised it; or that cannot be told now, or it is no message that was
                sent here.
        """
        if not self.is_live:
            raise Busy(f"what waits in {self.channel} is being read; try again")
        if offset < self._log.begin:
            return Cancellation.DELIVERED
        message = await self._message_at(offset, message_id)
        check(self._targets[message.target].topic)
        if offset in self._cancelled:
            return Cancellation.CANCELLED
        committed = self._cancels.get(offset)
        if committed is None:
            if not self._take_out(message):
                if not self._deliveries.is_noted(self._targets[message.target]):
                    raise Busy(f"the message at offset {offset} of {self.channel} is due now")
                return Cancellation.DELIVERED
            if self.append([encode_note(Cancelled(message))]) is not None:
                self._pending.put_back(message)
                raise Busy(self._problems["writing"])
            committed = self._cancels[offset] = asyncio.get_running_loop().create_future()
        await asyncio.shield(committed)
        return Cancellation.CANCELLED

    async def _message_at(self, offset: int, message_id: int) -> Item:
        """Return the message of a producer.

        Raises:
            InvalidRequest: It has another id, or there is none.
        """
        record, delivery = None, None
        # What is live was read to its end, so a log that was not opened for that has nothing.
        if self.channel.log is not None or offset < self.channel.start_offset:
            with suppress(CorruptData, OffsetOutOfRange):
                record = await self._log.record_at(offset)
                delivery = read_delivery(record.properties or b"")
        if (
            not record
            or not delivery
            or record.id != message_id
            or delivery[1] not in self._numbers
        ):
            raise InvalidRequest(
                f"offset {offset} of {self.channel} has no delayed message with id {message_id}; "
                "give the result of the send; one whose time had come at the send is not delayed"
            )
        due_ms, to = delivery
        return Item(due_ms, offset, record.next_offset - offset, self._numbers[to])

    def _take_out(self, delayed: Item) -> bool:
        """Take a message out that waits, or is due and in no batch; whether it is one."""
        if self._pending.holds(delayed.key, delayed.offset):
            self._pending.remove(delayed.key, delayed.offset)
            return True
        return self._deliveries.take_out(self._targets[delayed.target], delayed)


class Counts:
    """What the timers of a node count from its start on."""

    __slots__ = ("cancelled", "delivered", "undeliverable")

    def __init__(self) -> None:
        self.delivered = self.cancelled = self.undeliverable = 0
