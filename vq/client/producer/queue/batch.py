"""Batches of one partition: what is worth one, what it holds, and what identifies it.

``Filling`` decides whether the pending messages are worth a batch now. ``Batch`` has the encoded
records and the futures. ``Stamps`` numbers batches, so that a broker recognises what is sent again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import google_crc32c

from vq.client.future import SendFuture
from vq.client.producer.queue.futures import UNASKED, bytes_of, columns, tell
from vq.errors import VqError
from vq.limits import PRODUCER_EPOCH_MAX
from vq.model import DivertedResult, ProducerIdentity, ProducerStamp
from vq.store.records.codec import encode_records, places
from vq.store.records.format import RECORD_HEADER_BYTES

_deadline = attrgetter("deadline")
#: The place-holder for messages that expired while their records were on the wire.
_EXPIRED = SendFuture(b"", None, None, math.inf)
_EXPIRED.outcome = UNASKED


def _encode(items: list[SendFuture], ids: list[int]) -> tuple[bytes, list[int], float]:
    """Return the records of ``items`` back to back, the size of each, and the first deadline."""
    contents, heads, deadline = columns(items)
    return *encode_records(contents, heads, ids), deadline


def encodes(item: SendFuture) -> bool:
    """Return whether a message can be encoded."""
    try:
        _encode([item], [1])
    except Exception:  # noqa: BLE001 - the sender has logged it
        return False
    return True


class Ended:
    """Messages that have their outcome.

    Attributes:
        count: How many.
        size: Their bytes in the buffer.
        freed: Their space was given back. A signal handler may interrupt whoever does that, who
            then does it again: it counts once.
    """

    __slots__ = ("count", "freed", "size")

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self.freed = False


@dataclass(frozen=True, slots=True)
class BatchRest:
    """What a batch is once some of its messages have left it; see ``Batch``.

    Attributes:
        gone: Those that leave.
    """

    gone: list[SendFuture]
    items: list[SendFuture]
    ids: list[int]
    body: bytes
    sizes: list[int]
    crc: int
    deadline: float
    count: int
    size: int


class Batch(Ended):
    """Messages of one partition that are sent, stored and acknowledged together.

    Attributes:
        count: How many of its messages have no outcome yet.
        size: Their bytes in the buffer, as ``bytes_of`` counts.
        since: When its first message was appended.
        deadline: The earliest deadline of its messages.
        sent_at: When the loop first sent it; infinity before.
        stamp: Identifies a resend. It changes only while no copy with the old stamp may be stored.
        attempts: How often it was sent.
        sent: It was sent on a live connection and has no answer yet.
        unknown: An attempt ended without an answer, so the broker may have stored it.
        error: Why it was refused for good; kept until all earlier batches have left.
        stored: The broker confirmed it, and its futures have their outcome.
        resolving: Some of its futures may have their offset already.
        done: All its futures have their outcome.
        counted: Its outcome was counted, and its space given back.
        has_diverted: Some of its messages are directed to another partition.
    """

    __slots__ = (
        "attempts",
        "body",
        "counted",
        "crc",
        "deadline",
        "done",
        "error",
        "has_diverted",
        "ids",
        "items",
        "last_refusal",
        "resolving",
        "sent",
        "sent_at",
        "since",
        "sizes",
        "stamp",
        "stored",
        "unknown",
    )

    def __init__(self, items: list[SendFuture], ids: list[int], stamp: ProducerStamp) -> None:
        self.items = items
        self.ids = ids
        self.stamp = stamp
        self.body, self.sizes, self.deadline = _encode(items, ids)
        self.crc: int = google_crc32c.value(self.body)
        self.since = items[0].appended_at
        self.sent_at = math.inf
        super().__init__(len(items), len(self.body) - len(items) * RECORD_HEADER_BYTES)
        self.attempts = 0
        self.sent = False
        self.unknown = False
        self.stored = False
        self.resolving = False
        self.done = self.counted = False
        self.has_diverted = False
        self.error: VqError | None = None
        self.last_refusal: VqError | None = None

    @property
    def certain(self) -> bool:
        """Whether it is certainly not stored, and no copy of it can be any more."""
        return not (self.sent or self.unknown or self.stored or self.resolving)

    @property
    def diverted(self) -> int:
        """How many of its messages are stored, and directed to another partition."""
        if not self.has_diverted:
            return 0
        return sum(isinstance(item.outcome, DivertedResult) for item in self.items)

    def resolve(self, partition: int, offset: int) -> None:
        """Give every future its offset and run its callback; the first record is at ``offset``.

        If a signal handler interrupts it before ``done``, the caller may call it again.
        """
        try:
            if self.resolving or self.has_diverted:
                self.resolving = True
                self._resolve_rest(partition, offset)
            else:
                self.resolving = True
                tell(self.items, partition, offset, self.sizes, self.ids)
        except BaseException:  # a signal handler raised between two messages
            self._resolve_rest(partition, offset)
            self.done = True
            raise
        self.done = True

    def _resolve_rest(self, partition: int, offset: int) -> None:
        results = places(partition, offset, self.sizes, self.ids)
        for item, result in zip(self.items, results, strict=True):
            if item.outcome is None:
                diverts = self.has_diverted and is_diverted(item, partition)
                item.succeed(DivertedResult(*result) if diverts else result)
            item.wake()

    def fail(self, error: VqError) -> None:
        """Give ``error`` to every future without an outcome."""
        try:
            fail_all(self.items, error)
        finally:
            self.done = all(item.outcome is not None for item in self.items)

    def forget(self) -> None:
        """Drop the futures, which all have an outcome, and keep the bytes for a resend."""
        self.items = [_EXPIRED] * len(self.items)

    def without_late(self, now: float, *, drop: bool) -> BatchRest:
        """Return what is left without the messages whose deadline has passed.

        With ``drop``, their records are left out, too; no copy of this batch may be under way.
        Otherwise the bytes stay as they were sent, with place-holders for these messages. At least
        one message must have time left.
        """
        late = [item for item in self.items if item.deadline <= now]
        if not drop:
            items = [item if item.deadline > now else _EXPIRED for item in self.items]
            return self._rest(late, items)
        kept = [
            (item, number)
            for item, number in zip(self.items, self.ids, strict=True)
            if item.deadline > now and item is not _EXPIRED
        ]
        return self._encoded_rest(late, kept)

    def without_last(self, first: int, *, drop: bool) -> BatchRest:
        """Return what is left without the messages from index ``first`` on that have no outcome.

        For ``drop``, see ``without_late``.
        """
        gone = [item for item in self.items[first:] if item.outcome is None]
        items = self.items[:first]
        if not drop:
            return self._rest(gone, items + [_EXPIRED] * (len(self.items) - first))
        if len(gone) == self.count:
            return self._rest(gone, self.items)
        kept = [
            (item, number)
            for item, number in zip(items, self.ids, strict=False)
            if item is not _EXPIRED
        ]
        return self._encoded_rest(gone, kept)

    def _rest(self, gone: list[SendFuture], items: list[SendFuture]) -> BatchRest:
        """Return a rest with the same bytes as now."""
        count, size = self.count - len(gone), self.size - bytes_of(gone)
        deadline = min(map(_deadline, items))
        return BatchRest(
            gone, items, self.ids, self.body, self.sizes, self.crc, deadline, count, size
        )

    def _encoded_rest(
        self, gone: list[SendFuture], kept: list[tuple[SendFuture, int]]
    ) -> BatchRest:
        items, ids = [item for item, _ in kept], [number for _, number in kept]
        body, sizes, _ = _encode(items, ids)
        crc = google_crc32c.value(body)
        return replace(self._rest(gone, items), ids=ids, body=body, sizes=sizes, crc=crc)

    def keep(self, rest: BatchRest) -> None:
        """Remove the messages that leave, which have no outcome yet; may be called again."""
        self.items, self.ids = rest.items, rest.ids
        self.body, self.sizes, self.crc = rest.body, rest.sizes, rest.crc
        self.deadline, self.count, self.size = rest.deadline, rest.count, rest.size


class Failing(Ended):
    """Messages that leave a queue or a batch with an error, and what is to be done with them.

    A signal handler may interrupt each step. All steps may be taken again, with the same effect.

    Attributes:
        items: The messages.
        error: What the first one gets, and the others, too, if ``behind`` is None.
        behind: What all but the first one get.
    """

    __slots__ = ("_batch", "_rest", "behind", "error", "items")

    def __init__(
        self,
        items: list[SendFuture],
        error: VqError,
        behind: VqError | None = None,
        *,
        batch: Batch | None = None,
        rest: BatchRest | None = None,
    ) -> None:
        """Note what to do; with ``batch``, it keeps ``rest``."""
        super().__init__(len(items), bytes_of(items))
        self.items = items
        self.error = error
        self.behind = behind
        self._batch = batch
        self._rest = rest

    def fail(self) -> None:
        """Give every message its error, unless it has an outcome."""
        if self._batch is not None and self._rest is not None:
            self._batch.keep(self._rest)
            self._batch = None  # nothing else: later changes of the batch must stay
        if self.behind is not None:
            fail_all(self.items[:1], self.error)
        fail_all(self.items, self.behind or self.error)


def is_diverted(item: SendFuture, partition: int) -> bool:
    """Return whether a message that is sent to ``partition`` is directed to another one."""
    return item.partition != partition and not item.is_dealt


def fail_all(items: list[SendFuture], error: VqError) -> None:
    """Give ``error`` to each of ``items`` that has no outcome."""
    try:
        for item in items:
            if item.outcome is None:
                item.fail(error)
    except BaseException:  # a signal handler raised between two messages
        for item in items:
            if item.outcome is None:
                item.fail(error)
            item.wake()
        raise


#: If less than this part of a batch is in flight and pending, further messages wait for the answer.
_FEW_PART = 8
#: A batch counts as full here with so many messages, however many it may have.
_FULL_ENOUGH = 2_000


class Filling:
    """How many messages fill a batch of one partition. Only the queue's owner uses it.

    A small batch behind another one would wait for the flush of that one at the broker, and a batch
    costs producer, broker and consumer the same work, however small it is. A producer may also be
    told to let batches *linger*: to wait for more messages while a batch is not full.

    Args:
        records_max: Most messages of a batch.
        bytes_max: Most bytes of a batch, the headers of its records included.
        linger_s: How long a batch that is not full waits for more messages.

    Attributes:
        full: How many messages filled a recent batch; 1 to ``records_max``.
    """

    def __init__(self, records_max: int, bytes_max: int, linger_s: float) -> None:
        self.full = records_max
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._linger_s = linger_s

    @property
    def candidates(self) -> int:
        """How many pending messages to examine for the next batch: a few more than filled one.

        A message that does not fit costs as much to examine as one that does.
        """
        return min(self.full + self.full // 4 + 8, self._records_max)

    def note(self, fitted: int, *, cut: bool) -> None:
        """Take note of a batch; ``cut``: the next message did not fit into it."""
        self.full = fitted if cut else max(self.full, fitted)

    def is_worth_a_frame(self, pending: int) -> bool:
        """Return whether to send so many messages beside a batch in flight."""
        return pending * 2 >= min(self.full, _FULL_ENOUGH)

    def are_few(self, count: int) -> bool:
        """Return whether so many messages, in flight and pending, need no further batch soon."""
        return count * _FEW_PART < min(self.full, _FULL_ENOUGH)

    def lingers_until(self, pending: Sequence[SendFuture], now: float) -> float:
        """Return until when to wait for more than these messages, at least one; 0: do not wait.

        A message for whose outcome somebody waits, or which has less time left than a linger takes,
        keeps the batch from waiting.
        """
        linger_s = self._linger_s
        if not linger_s:
            return 0.0
        until = pending[0].appended_at + linger_s
        hurried_at = now + linger_s
        if (
            until <= now
            or len(pending) >= self._records_max
            or bytes_of(pending) + len(pending) * RECORD_HEADER_BYTES >= self._bytes_max
            or any(each.waiters is not None or each.deadline <= hurried_at for each in pending)
        ):
            return 0.0
        return until


#: From this epoch on the queue takes a new producer id as soon as it is safe.
RENEW_EPOCH = PRODUCER_EPOCH_MAX // 2


class Stamps:
    """Numbers the batches of one queue; only its owner uses it.

    The broker appends a batch only if its sequence follows the last one of the same producer id and
    epoch. A new epoch begins its sequences at 0, and the broker then refuses copies of earlier
    epochs. Epochs are 16 bits. Long before the last one the queue takes a new producer id, which it
    may do only while no batch is in flight and the broker refuses all copies of earlier ones.

    With an identity of the application (``ProducerConfig.identity``), id and epoch are fixed: other
    epochs of the id belong to other producers. The queue then ends where it would change them.

    Attributes:
        sequence: Of the next new batch.
        may_be_copied: The broker may still store a copy of an earlier epoch's batch.
        fixed: The application chose id and epoch, which stay.
        is_renewal_due: Epochs are to end soon: the queue shall take a new producer id.
    """

    __slots__ = (
        "_epoch",
        "_new_id",
        "_producer_id",
        "fixed",
        "is_renewal_due",
        "may_be_copied",
        "sequence",
    )

    def __init__(
        self, new_producer_id: Callable[[], int], identity: ProducerIdentity | None = None
    ) -> None:
        self._new_id = new_producer_id
        self.fixed = identity is not None
        self._producer_id, self._epoch = identity or (new_producer_id(), 0)
        self.sequence = 0
        self.may_be_copied = False
        self.is_renewal_due = False

    def stamp(self, sequence: int) -> ProducerStamp:
        """Return the stamp of a batch under the present id and epoch."""
        return ProducerStamp(self._producer_id, self._epoch, sequence)

    def renew(self) -> None:
        """Take a new producer id; the broker must not be able to store a copy of any batch."""
        self._producer_id = self._new_id()
        self._epoch = self.sequence = 0
        self.may_be_copied = self.is_renewal_due = False

    def next_epoch(self, *, in_doubt: bool) -> None:
        """Begin the next epoch.

        Args:
            in_doubt: The broker may still store a copy of a batch of an earlier epoch.
        """
        assert not self.fixed
        self.may_be_copied = self.may_be_copied or in_doubt
        if self._epoch < PRODUCER_EPOCH_MAX:
            self._epoch += 1
            self.sequence = 0
            self.is_renewal_due = self._epoch >= RENEW_EPOCH
        else:  # nothing was stored since the renewal was due: the gap keeps out old copies
            self.renew()
