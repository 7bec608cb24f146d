"""What one log holds for other partitions, on its way there: in batches, each noted before it goes.

    ready ──▶ note "sent" in the log ──▶ it is read back, so it is committed ──▶ outbox ──▶ stored
                                                              note "done", some seconds later ◀──┘

Nothing is sent before its note is committed, and a note that another master does not have is never
committed. Of a target one batch at a time is under way; what becomes ready meanwhile goes together
in the next one. A batch that may have been sent before is sent again under the same stamp, and the
broker that has it recognises it.
"""

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, Protocol

from vq.broker.base.tasks import Tasks
from vq.broker.journal.items import PACKED, Item, packed, unpacked
from vq.broker.journal.notes import UNKNOWN, Done, Sent
from vq.broker.journal.outbox import Gone, NotRemembered, Outbox, Parcel
from vq.broker.partition.channel import Channel
from vq.clock import Clock
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.model import ProducerStamp, TopicPartition

logger = get_logger(__name__)

#: One batch of the log has at most so many notes, of about so many items: a batch has a bound.
NOTES_MAX: Final = 1_000
NOTED_MAX: Final = 50_000
#: What cannot be written or read is tried again after so long.
RETRY_S: Final = 1.0
#: That the last batch of a target is stored is noted after so long, if no batch follows.
DONE_S: Final = 5.0


class LeftOut(Exception):
    """Some items of a batch that was never sent cannot go with it.

    Attributes:
        items: These.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__(items)
        self.items = items


class Source(Protocol):
    """Whose items are delivered.

    Attributes:
        what: How they are called, in the log.
        batch_bytes, batch_items: A batch has at most so much, or one item.
        position: Up to where its log was read.
    """

    @property
    def what(self) -> str: ...

    @property
    def batch_bytes(self) -> int: ...

    @property
    def batch_items(self) -> int: ...

    @property
    def position(self) -> int: ...

    def took(self, sent: Sent, new: Sequence[Item]) -> bool:
        """Take out of what waits what an earlier master has sent, or was about to send.

        Args:
            sent: Its batch.
            new: Its items that were in no batch before.

        Returns:
            Whether all of it is still there; otherwise it is stored.
        """

    def joins(self, first: Item, item: Item) -> bool:
        """Whether an item may go in one batch with another one."""
        return True

    def put_back(self, to: TopicPartition, items: Sequence[Item]) -> None:
        """Have items wait again: an earlier master has sent them, and they got no outcome."""

    def free(self, to: TopicPartition, items: Sequence[Item], offset: int) -> None:
        """Need items no more: they are stored from an offset on, or ``UNKNOWN``: gone, perhaps."""

    async def parcel(self, sent: Sent, *, resend: bool, tries: int) -> Parcel:
        """Return the bytes of a batch.

        Raises:
            LeftOut: The rest of it is to be sent without some items.
            VqError, OSError: They cannot be read now.
        """

    def delivered(self, to: TopicPartition, items: Sequence[Item], gone: Gone | None) -> None:
        """Count items that were stored by this node, or have no partition any more."""

    def tell(self, what: object, why: str) -> None:
        """Note why something does not go on; "": it does."""

    def wake(self) -> None:
        """Look again at what is to be noted."""


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


class Deliveries:
    """See the module. Loop-bound.

    Args:
        channel: Of the log.
        outbox: Sends the batches.
        clock: For times between notes.
        source: Whose items these are.
    """

    def __init__(self, channel: Channel, outbox: Outbox, clock: Clock, source: Source) -> None:
        self._channel = channel
        self._outbox = outbox
        self._clock = clock
        self._source = source
        self._is_live = False
        self._tasks = Tasks()
        self._stamps: dict[TopicPartition, ProducerStamp] = {}  # of the next batch
        self._ready: dict[TopicPartition, bytearray] = {}  # packed; in the order of delivery
        self._batches: dict[TopicPartition, _Batch] = {}  # of each target one at a time
        self._stored: dict[TopicPartition, tuple[float, int]] = {}  # last ones, not noted: when, at

    def __len__(self) -> int:
        """How many items are ready, or under way."""
        ready = sum(map(len, self._ready.values())) // PACKED.size
        return ready + sum(len(each.sent.items) for each in self._batches.values())

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.close()

    # What is ready --------------------------------------------------------------------------------
    def ready(self, to: TopicPartition, items: Iterable[Item]) -> None:
        """Have items delivered behind those that are ready."""
        room, pack = self._ready.setdefault(to, bytearray()), PACKED.pack
        room += b"".join([pack(key, offset, length, 0) for key, offset, length, _ in items])

    def take_out(self, to: TopicPartition, item: Item) -> bool:
        """Take out an item that is ready; whether it is one."""
        wanted = packed((item._replace(target=0),))
        room = self._ready.get(to, bytearray())
        at = room.find(wanted)
        while at >= 0 and at % PACKED.size:
            at = room.find(wanted, at + 1)
        if at >= 0:
            del room[at : at + PACKED.size]
            if not room:
                del self._ready[to]
        return at >= 0

    def is_noted(self, to: TopicPartition) -> bool:
        """Whether the note of the batch that is under way to a target is committed, or none is."""
        batch = self._batches.get(to)
        return batch is None or batch.committed

    def is_under_way(self, to: TopicPartition, item: Item) -> bool:
        """Whether an item is in a batch that has no outcome."""
        batch = self._batches.get(to)
        return batch is not None and item._replace(target=0) in batch.sent.items

    def under_way(self) -> set[Item]:
        """Return the items of all batches that have no outcome."""
        return {item for batch in self._batches.values() for item in batch.sent.items}

    # Notes that are read --------------------------------------------------------------------------
    def take(self, note: Sent | Done) -> None:
        """Take a note that is committed."""
        if isinstance(note, Done):
            if not self._is_live:
                for to, offset in note.to.items():
                    self._finish(to, offset)
            return
        batch = self._batches.get(note.to)
        if batch is not None and batch.sent.stamp == note.stamp:
            batch.committed = True
            self._start(batch, resend=False)
        else:
            self._take_earlier(note)

    def _take_earlier(self, note: Sent) -> None:
        """Take the note of a batch of which it is not known whether it is stored."""
        before = self._batches.get(note.to)
        old: Sequence[Item] = () if before is None else before.sent.items
        again = set(old).intersection(note.items)
        if again:  # the one before it got no outcome, and this one takes its place
            del self._batches[note.to]
            self._source.put_back(note.to, [each for each in old if each not in again])
        else:
            self._finish(note.to, note.before)  # the one before it was stored
        new = [each for each in note.items if each not in again] if again else note.items
        if self._source.took(note, new):
            self._batches[note.to] = _Batch(note)

    def _finish(self, to: TopicPartition, offset: int) -> None:
        """The last batch of a target is stored, or is for nobody."""
        batch = self._batches.pop(to, None)
        if batch is not None:
            self._source.free(to, batch.sent.items, offset)

    def go_live(self) -> None:
        """All that was committed before is read: send what may have been sent."""
        self._is_live = True
        for batch in list(self._batches.values()):
            batch.committed = True
            self._start(batch, resend=True)

    # Notes that are written -----------------------------------------------------------------------
    def notes(self) -> list[Sent | Done]:
        """Return what is to be noted: batches of what is ready, for the targets that have none.

        The caller appends them, and says ``written`` or ``not_written``.
        """
        notes: list[Sent | Done] = []
        count = 0
        for to in [each for each in self._ready if each not in self._batches]:
            sent = self._begin(to, self._next_items(to))
            notes.append(sent)
            count += len(sent.items)
            if len(notes) >= NOTES_MAX or count >= NOTED_MAX:
                break  # the others follow once these are committed
        before = self._clock.monotonic() - DONE_S
        done = {  # not of those that have another batch by now: its note says it
            to: at
            for to, (since, at) in self._stored.items()
            if since <= before and to not in self._batches
        }
        if done:
            notes.append(Done(dict(itertools.islice(done.items(), NOTES_MAX))))
        return notes

    def begin(self, to: TopicPartition, item: Item) -> Sent | None:
        """Return the note of a batch of one item that is not ready before it is written.

        None: others are before it, so it is to be ready.
        """
        if to in self._batches or to in self._ready:
            return None
        return self._begin(to, [item])

    def _begin(self, to: TopicPartition, items: Sequence[Item]) -> Sent:
        stamp = self._stamps.get(to)
        if stamp is None:
            producer = _producer_of(self._channel, self._source.position)
            stamp = ProducerStamp(producer, 0, 0)
        self._stamps[to] = stamp._replace(sequence=stamp.sequence + 1)
        before = self._stored.get(to, (0.0, UNKNOWN))[1]
        sent = Sent(to, stamp, items, before)
        self._batches[to] = _Batch(sent)
        return sent

    def written(self, notes: Iterable[Sent | Done]) -> None:
        """Note that notes were appended."""
        for note in notes:
            for to in note.to if isinstance(note, Done) else (note.to,):
                self._stored.pop(to, None)

    def not_written(self, notes: Iterable[Sent | Done], *, is_ready: bool = True) -> None:
        """Note that notes were not appended; ``is_ready``: their items were and are again."""
        for note in notes:
            if isinstance(note, Sent):
                del self._batches[note.to]
                self._stamps[note.to] = note.stamp
                if is_ready:
                    self._put_first(note.to, note.items)

    def _next_items(self, to: TopicPartition) -> list[Item]:
        ready, source = self._ready[to], self._source
        size = 0
        items: list[Item] = []
        for each in unpacked(bytes(ready[: source.batch_items * PACKED.size])):
            if items and (
                size + each.length > source.batch_bytes or not source.joins(items[0], each)
            ):
                break
            items.append(each)
            size += each.length
        del ready[: len(items) * PACKED.size]
        if not ready:
            del self._ready[to]
        return items

    def _put_first(self, to: TopicPartition, items: Iterable[Item]) -> None:
        self._ready[to] = packed(items) + self._ready.get(to, bytearray())

    # Sending --------------------------------------------------------------------------------------
    def _start(self, batch: _Batch, *, resend: bool) -> None:
        self._tasks.start(self._send(batch, resend=resend))

    async def _send(self, batch: _Batch, *, resend: bool) -> None:
        """Send a batch whose note is committed, until it has an outcome."""
        sent, source = batch.sent, self._source
        to, items, offset = sent.to, sent.items, UNKNOWN
        for tries in itertools.count(1):
            try:
                parcel = await source.parcel(sent, resend=resend, tries=tries)
                resend = True
                offset = await self._outbox.send(parcel, lambda why: source.tell(to, why))
                source.delivered(to, items, None)
            except LeftOut as error:
                self._again(to, [each for each in items if each not in error.items])
                return
            except Gone as error:
                self._stamps.pop(to, None)  # whoever has the name now waits for this batch's number
                source.delivered(to, items, error)
                logger.warning(
                    "what was to be delivered has no partition any more",
                    what=source.what,
                    topic=to.topic,
                    partition=to.partition,
                    items=len(items),
                    error=error,
                )
            except NotRemembered as error:
                logger.warning(
                    "delivered perhaps twice: the broker does not remember",
                    what=source.what,
                    topic=to.topic,
                    partition=to.partition,
                    items=len(items),
                    error=error,
                )
                self._again(to, items)
                return
            except (VqError, OSError) as error:
                source.tell(to, f"{source.what} for {to} cannot be read: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            break
        source.tell(to, "")
        self._finish(to, offset)
        self._stored[to] = self._clock.monotonic(), offset
        source.wake()

    def _again(self, to: TopicPartition, items: Sequence[Item]) -> None:
        """Have the items of a batch sent under a new stamp."""
        del self._batches[to]
        self._stamps.pop(to, None)  # with another producer
        if items:
            self._put_first(to, items)
        self._source.wake()


def _producer_of(channel: Channel, position: int) -> int:
    """Return the id of a producer under which nobody has sent.

    Who leads in an epoch has noted nothing behind the position up to which it has read.
    """
    name = f"{channel.topic_id} {channel.partition} {channel.role.epoch} {position}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1 or 1
