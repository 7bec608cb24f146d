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
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import google_crc32c

from vq import limits
from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.partition import puts
from vq.broker.partition.channel import Channel
from vq.broker.standing.gate import Gate
from vq.broker.timers.log_records import TRIES, LogRecords
from vq.broker.timers.notes import (
    NOTE_TAG,
    Cancelled,
    Done,
    Note,
    Sent,
    decode_note,
    encode_note,
)
from vq.broker.timers.outbox import Gone, NotRemembered, Outbox, Parcel
from vq.broker.timers.own_writes import OwnWrites
from vq.broker.timers.pending import PACKED_BYTES, Delayed, Pending, packed, unpacked
from vq.clock import Clock
from vq.errors import Busy, CorruptData, InvalidRequest, OffsetOutOfRange, VqError
from vq.log_lines import get_logger
from vq.model import Cancellation, ProducerStamp, TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import Command
from vq.store.records.record import Record, read_delivery

__all__ = ["Timer"]

logger = get_logger(__name__)

#: A batch of messages that are due has at most so many bytes and messages.
BATCH_BYTES: Final = 512 * limits.KIB
BATCH_MESSAGES: Final = 1_000
#: One batch of the log has at most so many notes, of about so many messages: a batch has a bound.
NOTES_MAX: Final = 1_000
NOTED_MAX: Final = 50_000
#: The clock is looked at so often at least: it may be set.
LOOK_S: Final = 1.0
#: What cannot be written or read is tried again after so long.
RETRY_S: Final = 1.0
#: Records that could not be read are read again this often.
READ_AGAIN_S: Final = 30.0
#: That the last batch of a target is stored is noted after so long, if no batch follows.
DONE_S: Final = 5.0
#: Cancellations that are remembered, so that one that is repeated has the same answer.
CANCELLED_MAX: Final = 10_000
_NOTES: Final = RequestId(Command.PUT, 0, 0)


class _Batch:
    """A batch of one target between its note and its outcome.

    Attributes:
        sent: Its note.
        committed: That was read back.
    """

    __slots__ = ("committed", "sent")

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.committed = False


class Timer:
    """See the module. Loop-bound; ``run`` is its task, and ends with the mastership.

    Args:
        channel: Of the partition.
        outbox: Sends what is due.
        gate: Says whether anything may be appended.
        clock: Tells when something is.
        runner: Reads what is not in memory.
        counts: Of the node.

    Attributes:
        is_live: All that was committed before this node began to lead was read.
    """

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
        self.channel: Final = channel
        self.is_live = False
        self._outbox = outbox
        self._gate = gate
        self._clock = clock
        self._counts = counts
        self._tasks = Tasks()
        self._woken = asyncio.Event()
        self._log = LogRecords(channel, outbox, runner)
        self._read_again_at = 0.0
        self._stamps: dict[TopicPartition, ProducerStamp] = {}  # of the next batch
        self._targets: list[TopicPartition] = []
        self._numbers: dict[TopicPartition, int] = {}
        self._pending = Pending()
        self._ready: dict[TopicPartition, bytearray] = {}  # packed; in the order of delivery
        self._batches: dict[TopicPartition, _Batch] = {}  # of each target one at a time
        self._stored: dict[TopicPartition, float] = {}  # last batches, not noted as stored: since
        self._cancels: dict[int, asyncio.Future[None]] = {}  # whose notes are not committed yet
        self._cancelled: OrderedDict[int, None] = OrderedDict()
        self._problems: dict[object, str] = {}  # by what does not go on

    def __len__(self) -> int:
        """How many messages wait, or are due and not stored yet."""
        ready = sum(map(len, self._ready.values())) // PACKED_BYTES
        sent = sum(len(each.sent.messages) for each in self._batches.values())
        return len(self._pending) + ready + sent

    # The task -------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Do all of it until cancelled."""
        try:
            while True:
                self._woken.clear()
                try:
                    await self._read()
                    self._tell("reading", "")
                except (VqError, OSError) as error:
                    why = f"delayed messages of {self.channel} cannot be read: {error}"
                    self._tell("reading", why)
                    await self._wait(RETRY_S)
                    continue
                if self._is_caught_up() and not self.is_live:
                    self._go_live()
                if self.is_live:
                    self._write()
                    self._note_needed()
                await self._wait(self._pause_s())
        finally:
            self.channel.parked.pop(self, None)
            for committed in self._cancels.values():
                committed.set_exception(Busy(f"{self.channel} is led by another node now"))
                committed.exception()  # perhaps nobody waits any more
            await self._tasks.close()

    def wake(self) -> None:
        """See ``parked.Woken``: more may be committed."""
        self._woken.set()

    async def _wait(self, pause_s: float) -> None:
        self.channel.park(self)
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _pause_s(self) -> float:
        if not self.is_live:
            return LOOK_S  # what is due waits, too: without this the task would spin
        now_ms = self._clock.wall_ms()
        next_ms = self._pending.next_ms(now_ms)
        if next_ms is None:
            return DONE_S
        return min(LOOK_S, max(0.0, (next_ms - now_ms) / 1_000))

    def _is_caught_up(self) -> bool:
        channel = self.channel
        return channel.knows_end and self._log.position >= channel.read_limit

    def _tell(self, what: object, why: str) -> None:
        """Note why something does not go on; "": it does. A new reason is logged."""
        before = self._problems.pop(what, "")
        if why:
            self._problems[what] = why
            if not before:
                logger.warning("delayed messages wait", partition=self.channel, reason=why)

    @property
    def problems(self) -> list[str]:
        """Why messages wait that are due, or might be."""
        return list(self._problems.values())

    # Reading the log ------------------------------------------------------------------------------
    async def _read(self) -> None:
        """Take what is committed and was not read yet.

        Raises:
            VqError, OSError: It cannot be read.
        """
        log = self._log
        while log.has_more:
            self._take_all(await log.next_records())
            await asyncio.sleep(0)
        if log.unread and self._clock.monotonic() >= self._read_again_at:
            self._read_again_at = self._clock.monotonic() + READ_AGAIN_S
            for record in await log.read_again():
                self._take_late(record)
        self._tell("records", log.problem)

    def _take_all(self, records: Sequence[Record]) -> None:
        """Take the next records of the log; a broker that starts takes a million."""
        own, numbers = self.channel.partition.topic, self._numbers
        waiting: list[Delayed | tuple[int, int, int, int]] = []
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
            self._take(record)
        self._pending.add_all(waiting)

    def _take(self, record: Record) -> None:
        """Take the next record of the log."""
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
        self._pending.add(Delayed(due_ms, record.offset, length, self._number(to)))

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
        if isinstance(note, Sent):
            batch = self._batches.get(note.to)
            if batch is not None and batch.sent.stamp == note.stamp:
                batch.committed = True
                self._start(batch, resend=False)
                return
            self._take_earlier(note)
        elif isinstance(note, Done):
            for to in note.to:
                if not self.is_live:
                    self._finish(to)
        else:
            self._take_cancelled(note.message)

    def _take_earlier(self, note: Sent) -> None:
        """Take the note of a batch of which it is not known whether it is stored."""
        number = self._number(note.to)
        for each in note.messages if self._log.unread else ():
            if self._log.was_passed(each.offset):
                self._log.settled.add(each.offset)
                self._pending.add(each._replace(target=number))
        before = self._batches.get(note.to)
        old = () if before is None else before.sent.messages
        again = {each.offset for each in old} & {each.offset for each in note.messages}
        if again:  # the one before it got no outcome, and this one takes its place
            del self._batches[note.to]
            for each in old:
                if each.offset not in again:
                    self._pending.put_back(each._replace(target=number))
        else:
            self._finish(note.to)  # the one before it was stored
        known = [each for each in note.messages if each.offset >= self._log.begin]
        for each in known:
            if each.offset not in again:
                self._pending.remove(each.due_ms, each.offset)
        if len(known) == len(note.messages):
            self._batches[note.to] = _Batch(note)
        else:  # it is stored: otherwise all of it would still be there
            for each in known:
                self._pending.free(each.offset)

    def _take_late(self, record: Record) -> None:
        """Take a record that could not be read when it was its turn."""
        if record.tag != NOTE_TAG:
            self._take(record)
            return
        with suppress(CorruptData):
            note = decode_note(record.payload)
            if isinstance(note, Cancelled):  # what others say is over by now
                due_ms, offset = note.message[:2]
                if self._pending.holds(due_ms, offset):
                    self._take_cancelled(note.message)

    def _drop(self, message: Delayed) -> None:
        self._pending.remove(message.due_ms, message.offset)
        self._pending.free(message.offset)

    def _take_cancelled(self, message: Delayed) -> None:
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

    def _finish(self, to: TopicPartition) -> None:
        """The last batch of a target is stored, or is for nobody."""
        batch = self._batches.pop(to, None)
        if batch is not None:
            for each in batch.sent.messages:
                self._pending.free(each.offset)

    def _go_live(self) -> None:
        """All was read: send what may have been sent, and what is due."""
        self.is_live = True
        logger.info("delayed messages were read", partition=self.channel, messages=len(self))
        for batch in list(self._batches.values()):
            batch.committed = True
            self._start(batch, resend=True)

    # Sending --------------------------------------------------------------------------------------
    def _start(self, batch: _Batch, *, resend: bool) -> None:
        self._tasks.start(self._send(batch, resend=resend))

    async def _send(self, batch: _Batch, *, resend: bool) -> None:
        """Send a batch whose note is committed, until it has an outcome."""
        sent = batch.sent
        to, messages = sent.to, sent.messages
        for tries in itertools.count(1):
            try:
                parts = [
                    bytes(await self._log.bytes_at(each.offset, each.length)) for each in messages
                ]
                bad = self._log.damaged(messages, parts)
                if bad and not resend and tries >= TRIES:
                    self._set_aside(batch, bad)
                    return
                if bad:
                    raise CorruptData(f"the record at offset {bad[0].offset} fails its checksum")
                parcel = Parcel(to, sent.stamp, b"".join(parts), len(parts), resend)
                resend = True
                await self._outbox.send(parcel, lambda why: self._tell(to, why))
                self._counts.delivered += len(messages)
            except Gone as error:
                self._counts.undeliverable += len(messages)
                logger.warning(
                    "delayed messages have no partition any more",
                    topic=to.topic,
                    partition=to.partition,
                    messages=len(messages),
                    error=error,
                )
            except NotRemembered as error:
                logger.warning(
                    "delayed messages may be stored twice: their broker does not remember them",
                    topic=to.topic,
                    partition=to.partition,
                    messages=len(messages),
                    error=error,
                )
                self._again(sent)
                return
            except (VqError, OSError) as error:
                self._tell(to, f"messages that are due for {to} cannot be read: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            break
        self._tell(to, "")
        self._finish(to)
        self._stored[to] = self._clock.monotonic()
        self.wake()

    def _again(self, sent: Sent) -> None:
        """Have the messages of a batch sent under a new stamp."""
        del self._batches[sent.to]
        self._stamps.pop(sent.to, None)  # with another producer
        if sent.messages:
            self._put_first(sent)
        self.wake()

    def _set_aside(self, batch: _Batch, bad: Sequence[Delayed]) -> None:
        """Leave messages out of a batch that was never sent; they are read again later."""
        for each in bad:
            logger.error(
                "record of a delayed message cannot be read, delivering others without it",
                partition=self.channel,
                offset=each.offset,
            )
            self._log.unread[each.offset] = each.offset + each.length
            self._pending.free(each.offset)
        good = [each for each in batch.sent.messages if each not in bad]
        self._again(batch.sent._replace(messages=good))

    # Writing notes --------------------------------------------------------------------------------
    def _write(self) -> None:
        """Note batches of what is due, for the targets that have none."""
        for delayed in self._pending.due(self._clock.wall_ms()):
            room = self._ready.setdefault(self._targets[delayed.target], bytearray())
            room += packed((delayed,))
        notes: list[Note] = []
        count = 0
        for to in [each for each in self._ready if each not in self._batches]:
            sent = self._batch_of(to)
            self._batches[to] = _Batch(sent)
            notes.append(sent)
            self._stored.pop(to, None)
            count += len(sent.messages)
            if len(notes) >= NOTES_MAX or count >= NOTED_MAX:
                break  # the others follow once these are committed
        before = self._clock.monotonic() - DONE_S
        done = sorted(to for to, since in self._stored.items() if since <= before)[:NOTES_MAX]
        if done:
            notes.append(Done(done))
        if not notes:
            return
        if self._append(notes):
            for to in done:
                del self._stored[to]
        else:
            for note in notes:
                if isinstance(note, Sent):
                    self._take_back(note)

    def _batch_of(self, to: TopicPartition) -> Sent:
        ready = self._ready[to]
        size = 0
        messages: list[Delayed] = []
        for each in unpacked(bytes(ready[: BATCH_MESSAGES * PACKED_BYTES])):
            if messages and size + each.length > BATCH_BYTES:
                break
            messages.append(each)
            size += each.length
        del ready[: len(messages) * PACKED_BYTES]
        if not ready:
            del self._ready[to]
        stamp = self._stamps.get(to)
        if stamp is None:
            stamp = ProducerStamp(_producer_of(self.channel, self._log.position), 0, 0)
        self._stamps[to] = stamp._replace(sequence=stamp.sequence + 1)
        return Sent(to, stamp, messages)

    def _take_back(self, sent: Sent) -> None:
        del self._batches[sent.to]
        self._stamps[sent.to] = sent.stamp
        self._put_first(sent)

    def _put_first(self, sent: Sent) -> None:
        number = self._numbers[sent.to]
        messages = packed(each._replace(target=number) for each in sent.messages)
        self._ready[sent.to] = messages + self._ready.get(sent.to, bytearray())

    def _append(self, notes: Sequence[Note]) -> bool:
        """Append notes to the log as one batch; whether they may be committed."""
        role, refusal = self.channel.role, self._gate.put_refusal
        if refusal is not None or not (role.holds() or self.channel.goes_on):
            return self._not_noted(refusal or Busy(f"group {role.group} may have another master"))
        records = b"".join(map(encode_note, notes))
        crc: int = google_crc32c.value(records)
        header = wire.PutRequest(
            topic=self.channel.partition.topic,
            partition=self.channel.partition.partition,
            record_count=len(notes),
            crc=crc,
        )
        writes = OwnWrites(role.group)
        puts.put(self.channel, writes, _NOTES, header, records)
        if writes.error is not None:
            return self._not_noted(writes.error)
        self._tell("writing", "")
        return True

    def _not_noted(self, why: VqError) -> bool:
        """Try again later."""
        self._tell("writing", f"nothing can be noted in {self.channel}: {why}")
        asyncio.get_running_loop().call_later(RETRY_S, self.wake)
        return False

    def _note_needed(self) -> None:
        """Have retention keep what is needed of the log."""
        places = [self._log.position, *self._log.unread]
        if self._pending.needed_from is not None:
            places.append(self._pending.needed_from)
        self.channel.needed = min(places)

    # Cancelling ---------------------------------------------------------------------------------
    async def cancel(self, offset: int, message_id: int) -> Cancellation:
        """Have a message delivered to nobody; return what became of it.

        Raises:
            VqError: That cannot be told now, or it is no message that was sent here.
        """
        if not self.is_live:
            raise Busy(f"what waits in {self.channel} is being read; try again")
        if offset < self._log.begin:
            return Cancellation.DELIVERED
        message = await self._message_at(offset, message_id)
        if offset in self._cancelled:
            return Cancellation.CANCELLED
        committed = self._cancels.get(offset)
        if committed is None:
            if not self._take_out(message):
                batch = self._batches.get(self._targets[message.target])
                if batch is not None and not batch.committed:
                    raise Busy(f"the message at offset {offset} of {self.channel} is due now")
                return Cancellation.DELIVERED
            if not self._append([Cancelled(message)]):
                self._pending.put_back(message)
                raise Busy(self._problems["writing"])
            committed = self._cancels[offset] = asyncio.get_running_loop().create_future()
        await asyncio.shield(committed)
        return Cancellation.CANCELLED

    async def _message_at(self, offset: int, message_id: int) -> Delayed:
        """Return the message of a producer.

        Raises:
            InvalidRequest: It has another id, or there is none.
        """
        record, delivery = None, None
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
                "give the result of the send"
            )
        due_ms, to = delivery
        return Delayed(due_ms, offset, record.next_offset - offset, self._numbers[to])

    def _take_out(self, delayed: Delayed) -> bool:
        """Take a message out that waits, or is due and in no batch; whether it is one."""
        if self._pending.holds(delayed.due_ms, delayed.offset):
            self._pending.remove(delayed.due_ms, delayed.offset)
            return True
        room = self._ready.get(self._targets[delayed.target], bytearray())
        at = room.find(packed((delayed,)))
        while at >= 0 and at % PACKED_BYTES:
            at = room.find(packed((delayed,)), at + 1)
        if at >= 0:
            del room[at : at + PACKED_BYTES]
        return at >= 0


def _producer_of(channel: Channel, position: int) -> int:
    """Return the id of a producer under which nobody has sent.

    Who leads in an epoch has noted nothing behind the position up to which it has read.
    """
    name = f"{channel.topic_id} {channel.partition} {channel.role.epoch} {position}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1 or 1


class Counts:
    """What the timers of a node count from its start on."""

    __slots__ = ("cancelled", "delivered", "undeliverable")

    def __init__(self) -> None:
        self.delivered = self.cancelled = self.undeliverable = 0
