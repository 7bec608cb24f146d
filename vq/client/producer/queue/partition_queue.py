"""The batches of one producer in one partition: what to send, resend, renumber and give up.

This module decides and does no I/O. The broker appends a batch only if its sequence follows the
last one from the same producer id and epoch. It answers a repeated batch with the first result.
So:

* Batches are sent in order. After a cut connection they are sent again in the same order with the
  same stamps, so no batch is stored twice and none overtakes another.
* A batch whose deadline passes without an answer is reported as unknown. It stays in flight and is
  sent again until the broker answers: a gap in the sequence would make later batches unknown too.
* A batch that the broker refuses for good leaves a gap in the sequence. If no later batch may have
  a copy under way, the later batches take the free numbers. Otherwise they are renumbered under the
  next producer epoch, and the broker refuses copies of the old epoch. While such a copy could still
  be stored, its batch is not renumbered: its outcome becomes unknown.
* Long before the last epoch the queue takes a new producer id, see ``Stamps``.

With ``config.ordered``, a message that fails takes along what was accepted behind it: messages that
are certainly not stored are refused, the others are reported as unknown. With ``config.identity``,
nothing is renumbered: everything that comes after a failure fails, too.

In flight, oldest first:      [stored, an earlier one is not] [sent] [sent] [not sent] | pending
"""

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Literal, Protocol, TypeAlias, TypeVar

from vq import errors
from vq.backoff import Backoff
from vq.client.config import ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.metrics import TopicMeter
from vq.client.producer.queue.batch import (
    Batch,
    Ended,
    Failing,
    Filling,
    Stamps,
    encodes,
    fail_all,
    is_diverted,
)
from vq.client.producer.queue.futures import bytes_of, fitting, last_waiting
from vq.client.producer.spread.spread import Spread
from vq.model import Address, TopicPartition
from vq.remoting import messages
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.store.records.format import OFFSET_MAX, RECORD_HEADER_BYTES

F = TypeVar("F", bound=SendFuture)
#: With more pending messages than this, search for late ones only once a second.
_SCAN_ALWAYS = 2_000
_SCAN_S = 1.0
_EARLIER = (
    "an earlier message for this partition failed and the producer is ordered; send all failed "
    "messages again in their order"
)
_UNTAKEN = "no broker took it"
_deadline = attrgetter("deadline")


def _seconds(items: Sequence[SendFuture]) -> str:
    """Return the time that the message with the earliest deadline had."""
    first = min(items, key=_deadline)
    seconds = first.deadline - first.appended_at
    return f"{round(seconds, 1 if seconds >= 1 else 3):g} s"


def _leave_to_sender(items: Sequence[SendFuture]) -> None:
    """Have the sender send messages, not their threads."""
    for item in items:
        if isinstance(item, BlockingSendFuture):
            item.leads = False


class Host(Protocol):
    """What queues ask of the producer that they belong to; in practice the ``Sender``.

    Attributes:
        config: How it batches, waits and tries again.
        context: The application's functions run in copies of it.
    """

    config: ProducerConfig
    context: contextvars.Context

    def new_producer_id(self) -> int:
        """Return a producer id that nobody has."""

    def make_spread(self, is_waiting: Callable[[int], bool]) -> Spread:
        """Return the spread of a topic.

        ``is_waiting`` returns whether messages wait for a batch in a partition.
        """

    def on_ended(self, ended: Ended) -> None:
        """Free the space of messages that have their outcome."""

    def why_waiting(self, partition: TopicPartition) -> str:
        """Return on the loop why nothing can be sent to a partition now; empty: it can."""


class BatchLeader:
    """The thread of a call of ``send_batch``, which may send its messages itself.

    Attributes:
        leads, is_busy: See ``BlockingSendFuture``.
        queue: What it was given to lead; None: nothing yet.
    """

    __slots__ = ("is_busy", "leads", "queue")

    def __init__(self) -> None:
        self.leads: bool | None = None
        self.is_busy = False
        self.queue: PartitionQueue | None = None


#: A thread that sends from a queue: its message stands for it, or its batch.
Leader: TypeAlias = BlockingSendFuture | BatchLeader


class PartitionQueue:
    """The state of one producer in one partition.

    Only the owner uses it. The accumulator's lock guards ``owner``, ``closed`` and appends to
    ``pending``. While another thread owns the queue, the sender may only remove late messages from
    ``pending``, under the lock too.

    A signal handler may raise in the owner's thread between any two steps. ``leave`` or a resend
    completes the interrupted step: a batch stays in flight until all its messages have an outcome.

    Attributes:
        owner: The sender, or the thread that leads; None: nobody.
        claimed: The messages that the leading thread sends.
        shared: How many messages the last batch of a leading thread had, if of several threads; 0.
        pending: Messages not yet in a batch, oldest first.
        failing: Messages that leave ``pending`` or a batch, to be given an error next.
        in_flight: Batches without a final answer, oldest first; at most ``config.window``.
        retry_at: Nothing is sent before this monotonic time.
        closed: Why nothing is sent any more.
        topic_id: The id of the topic; a topic that is created again has another one.
        epoch: The master's epoch at the last look-up; 0: no look-up yet.
        master: Its address then, for errors.
        has_diverted: Some of ``pending`` may be directed to another partition.
        has_failed: Messages of an ordered producer failed; ``fail_rest`` comes next. It stays with
            an identity.
    """

    def __init__(self, partition: TopicPartition, host: Host, meter: TopicMeter) -> None:
        """Make an empty queue, of the producer ``host``, which counts in ``meter``."""
        config = host.config
        self.partition = partition
        self.pending: list[SendFuture] = []
        self.failing: Failing | None = None
        self.in_flight: deque[Batch] = deque()
        self.retry_at = 0.0
        self.owner: Leader | Literal["sender"] | None = None
        self.claimed: list[SendFuture] = []
        self.shared = 0
        self.closed: errors.VqError | None = None
        self.topic_id = ""
        self.epoch = 0
        self.master: Address | None = None
        self.has_diverted = False
        self.has_failed = False
        self._config = config
        self._host = host
        self._stamps = Stamps(host.new_producer_id, config.identity)
        self._meter = meter
        self._backoff = Backoff(first_s=config.retry_backoff_s, most_s=config.retry_backoff_max_s)
        self._failures = 0  # since the broker stored a batch
        self._refusal: errors.VqError | None = None  # the last retriable refusal, until one stores
        self._scan_at = 0.0
        self._filling = Filling(config.batch_records, config.batch_bytes, config.linger_ms / 1000)

    # Ownership: all under the accumulator's lock ----------------------------------------------
    def enter(self) -> bool:
        """Make the sender the owner; return False if a blocking sender leads."""
        if isinstance(self.owner, Leader) and not self.owner.leads:
            self.leave()  # a signal handler raised in its thread, which has left
        if self.owner is None and not self._pass_lead():
            self.owner = "sender"
        return self.owner == "sender"

    def lead(self, future: BlockingSendFuture) -> bool:
        """Make the thread of ``future`` the owner, if it may lead; return whether it is.

        It may lead if it was given the lead, or if only blocking sends are before its message; and
        not once it has stepped aside.
        """
        if not future.leads:
            return False
        if self.owner is not future:
            free = self.owner is None and self.closed is None and not self.in_flight
            if not free or not (self.pending[:1] == [future] or future in self._waited()):
                return False
            self.owner = future
        return True

    def claim(self, future: BlockingSendFuture) -> list[SendFuture] | None:
        """Make the thread of ``future`` the owner, if it may lead, and return what it sends now.

        It sends as many of the blocking sends as fit into one batch; none, if all were late.

        Returns:
            None if it may not lead; the queue stays as it is.
        """
        if not self.lead(future):
            return None
        waited = self._waited()
        claimed = self.fitting(waited) if len(waited) > 1 else waited
        count = len(claimed)
        self.claimed = claimed
        del self.pending[:count]  # no call between these two: see ``topic_queues``
        self.shared = count if count > 1 else 0
        return claimed

    def is_free_for(self, items: list[SendFuture]) -> bool:
        """Return whether a thread may lead with these messages, which nobody has yet, as a batch.

        Nothing is before them, and no batch takes more of them. The thread then claims them.
        """
        is_idle = not (self.is_busy or self.closed)
        return is_idle and len(self.fitting(items)) == len(items)

    def _waited(self) -> list[SendFuture]:
        """Return the blocking sends at the head of ``pending``."""
        found: list[SendFuture] = []
        for each in self.pending:
            if not isinstance(each, BlockingSendFuture):
                break
            found.append(each)
        return found

    def leave(self) -> bool:
        """Release the queue; return whether the sender has work here.

        Claimed messages that were not sent go back to the head of ``pending``, for the sender.
        Otherwise the thread of the first message takes the lead, or is about to claim the queue. If
        a signal handler interrupted the handling of an answer, the batch is sent again.
        """
        for batch in self.in_flight:
            if batch.sent:
                batch.sent = False
                batch.unknown = True
        if not self.in_flight and last_waiting(self.claimed) is not None:
            back = [each for each in self.claimed if each.outcome is None]
            _leave_to_sender(back)
            self.pending[:0] = back
        self.claimed = []
        self.owner = None
        if self._pass_lead():
            return False
        if self.in_flight or self.closed:
            return True
        first = self.pending[0] if self.pending else None
        comes = isinstance(first, BlockingSendFuture) and first.leads is None  # its thread
        return first is not None and not comes

    def _pass_lead(self) -> bool:
        first = self.pending[0] if self.pending else None
        if not isinstance(first, BlockingSendFuture) or not first.leads:
            return False
        if first.partition != self.partition.partition:
            return False  # it was moved here; its thread sleeps until it has its outcome
        if self.in_flight or self.closed is not None:
            return False
        first.rouse()  # wake it before it owns the queue: an awake thread claims by itself
        self.owner = first
        return True

    def without_outcome(self) -> list[SendFuture]:
        """Return every message that may have no outcome yet, whichever thread owns the queue.

        It also holds in the child of a fork, whose parent's threads may have been at any step: a
        message that leaves one of these lists is in another one before. One may be in two.
        """
        in_flight = [item for batch in tuple(self.in_flight) for item in batch.items]
        failing = self.failing
        failed = [] if failing is None else failing.items
        return [*in_flight, *failed, *self.claimed, *self.pending]

    @property
    def is_busy(self) -> bool:
        """Whether a message may have no outcome yet, or somebody owns the queue."""
        return bool(self.pending or self.in_flight or self.failing or self.owner)

    def led_by(self, master: Address, epoch: int) -> None:
        """Note the master; to a new one, everything is sent at once.

        The pause before the next try grew while there was none, and says nothing of this one.
        """
        if (master, epoch) != (self.master, self.epoch):
            self.master, self.epoch = master, epoch
            self.retry_at = 0.0
            self._failures = 0

    # What to send -----------------------------------------------------------------------------
    def next_to_send(
        self, now: float, take_ids: Callable[[int], list[int]], *, hurry: bool = True
    ) -> Batch | None:
        """Return the next batch to send, marked as sent; None: nothing can be sent now.

        Without ``hurry``, a batch that is not full may linger.

        The caller asks until it gets None. A new batch is encoded only after all earlier ones are
        sent, so encoding overlaps with their round trips. An error of ``take_ids`` is passed on;
        the messages stay pending.
        """
        if now < self.retry_at:
            return None
        batch = None
        for each in self.in_flight:
            if each.error is not None:
                return None  # the gap before later batches must be closed first
            if not each.sent and not each.stored:
                batch = each
                break
        else:
            if self._may_make_one() and (hurry or not self.lingers_until(now)):
                items = self._next_items()
                batch = self._make(items, take_ids(len(items)), pending=True)
        if batch is not None:
            batch.sent = True
            batch.attempts += 1
            if batch.attempts == 1:
                batch.sent_at = now
            else:
                self._meter.batch_resent()
        return batch

    @property
    def next_bytes(self) -> int:
        """How many bytes the batch has at most that is to be sent next."""
        for each in self.in_flight:
            if not each.sent and not each.stored:
                return len(each.body)
        items = self.pending[: self._filling.candidates]
        return bytes_of(items) + len(items) * RECORD_HEADER_BYTES

    def _may_make_one(self) -> bool:
        """Return whether to make one more batch of pending messages now."""
        under_way = len(self.in_flight)
        if not self.pending or under_way >= self._config.window:
            return False
        if self.has_failed and self._stamps.fixed:
            return False  # ``fail_rest`` comes next
        if not under_way:
            return True
        if any(batch.done and not batch.stored for batch in self.in_flight):
            return False  # its messages have an outcome, but its bytes still use memory uncounted
        if self._stamps.is_renewal_due:
            return False  # drain first: a new producer id needs an empty ``in_flight``
        return self._filling.is_worth_a_frame(len(self.pending))

    def lingers_until(self, now: float) -> float:
        """Return until when the pending messages wait for more; 0: they do not."""
        return self._filling.lingers_until(self.pending, now) if self.pending else 0.0

    @property
    def may_rest(self) -> bool:
        """Whether one small batch is in flight and nothing can be sent before its answer."""
        if self.owner is not None or len(self.in_flight) != 1:
            return False
        batch = self.in_flight[0]
        return batch.sent and self._filling.are_few(batch.count + len(self.pending))

    def batch_of(self, items: Sequence[SendFuture], ids: list[int]) -> Batch:
        """Return ``items`` as a batch marked as sent; no other batch may be in flight."""
        batch = self._make(list(items), ids)
        batch.sent = True
        batch.attempts = 1
        return batch

    def _next_items(self) -> list[SendFuture]:
        """Return the first messages of ``pending`` that fit into a batch, at least one."""
        items = self.pending[: self._filling.candidates]
        fitting = self.fitting(items)
        self._filling.note(len(fitting), cut=len(fitting) < len(items))
        return fitting

    def fitting(self, items: list[F]) -> list[F]:
        """Return as many of ``items`` as fit into one batch, at least the first."""
        items = items[: self._config.batch_records]
        del items[fitting(items, self._config.batch_bytes, RECORD_HEADER_BYTES) :]
        return items

    def _make(self, items: list[SendFuture], ids: list[int], *, pending: bool = False) -> Batch:
        """Encode a new batch and put it in flight; an error while encoding uses no sequence.

        With ``pending``, remove its messages from the head of ``pending``.
        """
        stamps = self._stamps
        if stamps.is_renewal_due and not self.in_flight and not stamps.may_be_copied:
            stamps.renew()
        batch = Batch(items, ids, stamps.stamp(stamps.sequence))
        taken = len(items) if pending else 0
        if self.has_diverted:
            number = self.partition.partition
            batch.has_diverted = any(is_diverted(item, number) for item in items)
        stamps.sequence += 1
        self.in_flight += (batch,)  # no call between these: see ``topic_queues``
        del self.pending[:taken]
        if pending and not self.pending:
            self.has_diverted = False  # only the sender, which also diverts: see ``set_aside``
        return batch

    def take_apart(self) -> None:
        """Put messages back to the head of ``pending`` whose batches are certainly not stored.

        Under the lock; for a partition that is unavailable. Batches in front of one that may be
        stored stay in flight.
        """
        kept = list(self.in_flight)
        loose: list[Batch] = []
        while kept and kept[-1].certain and kept[-1].error is None:
            loose.insert(0, kept.pop())
        if not loose:
            return
        back = [item for batch in loose for item in batch.items if item.outcome is None]
        _leave_to_sender(back)  # as in ``leave``
        number = self.partition.partition
        diverted = any(is_diverted(item, number) for item in back)
        rest = deque(kept)
        self.has_diverted = self.has_diverted or diverted
        self.pending[:0] = back  # no call between these: see ``topic_queues``
        self.in_flight = rest
        self._stamps.sequence = loose[0].stamp.sequence  # no copy with this number or a later one

    # The wire ----------------------------------------------------------------------------------
    def put_header(self, batch: Batch) -> bytes:
        """Return the header of the PUT that carries ``batch``; its body is ``batch.body``."""
        stamp, partition = batch.stamp, self.partition
        return PutRequest(
            topic=partition.topic,
            partition=partition.partition,
            record_count=len(batch.items),
            crc=batch.crc,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.producer_epoch,
            sequence=stamp.sequence,
            topic_id=self.topic_id,
            epoch=self.epoch,
            resend=batch.unknown,
        ).SerializeToString()

    def apply_answer(
        self, batch: Batch, answer: Frame | errors.VqError | None, now: float
    ) -> errors.VqError | None:
        """Turn an answer into outcomes; return its error, None when the batch is stored.

        ``answer`` is a reply, or the error that kept the batch from being sent, or None if the
        broker did not answer.
        """
        try:
            if answer is None:
                self.on_unanswered([batch], now)
                return None
            error = answer if isinstance(answer, errors.VqError) else self._take(batch, answer)
            if isinstance(error, errors.SequenceStale):
                self.on_outcome_lost(batch, error)
            elif isinstance(error, errors.OutcomeUnknown | errors.ProtocolError):
                self.on_unanswered([batch], now)
            elif error is not None:
                self.on_refused(batch, error, now)
        except BaseException:  # a signal handler, or the application's logging, raised
            if batch.sent:
                self.on_unanswered([batch], now)  # send it again
            raise
        return error

    def _take(self, batch: Batch, frame: Frame) -> errors.VqError | None:
        """Apply a reply; return its error, None if the batch is stored."""
        try:
            response = messages.decode_reply(frame)
        except errors.VqError as error:
            return error
        assert isinstance(response, PutResponse)
        if response.offset + len(batch.body) > OFFSET_MAX:
            return errors.ProtocolError(
                f"{self.partition}: the broker answers that a batch of {len(batch.body)} bytes is "
                f"at offset {response.offset}; the last one a partition can have is {OFFSET_MAX}"
            )
        self.on_stored(batch, response.offset)
        return None

    # What an answer means ---------------------------------------------------------------------
    def on_stored(self, batch: Batch, offset: int) -> None:
        """Resolve ``batch``: the broker has it durably, its first record at ``offset``."""
        self._failures = 0
        self._refusal = None
        batch.sent = False
        self._stamps.may_be_copied = False  # the broker knows this epoch and refuses earlier ones
        if not batch.done:
            try:
                self._run(batch.resolve, self.partition.partition, offset)
            except BaseException:  # a signal handler raised: send again, to get the answer again
                batch.unknown = True
                raise
            finally:
                self._count_ended(batch, None)
        if not batch.counted:
            self._count_ended(batch, None)  # a signal handler raised there
        batch.stored = True
        self._remove_finished()

    def on_refused(self, batch: Batch, error: errors.VqError, now: float) -> None:
        """Decide what follows: the broker certainly did not store this attempt of ``batch``."""
        batch.sent = False
        taken = self._is_taken(batch, error)
        gap = taken or isinstance(error, errors.SequenceGap | errors.UnknownProducer)
        if not gap:
            batch.last_refusal = error
        if gap and self.in_flight and self.in_flight[0] is not batch:
            self._pause(now)  # earlier batches have no answer yet, or are sent again
        elif gap and not batch.unknown and not self._stamps.fixed:
            if batch.attempts > 1:
                self._pause(now)  # a new epoch did not help: do not try all of them at once
            if taken:
                self._stamps.renew()
            self._renumber(in_doubt=False)  # the broker forgot this producer; nothing is stored
        elif not gap and (error.retriable or error.refresh_routes):
            self._refusal = error
            self._pause(now)  # later batches get SequenceGap, and are sent again too
        else:
            batch.error = error
        self._remove_finished()

    def _is_taken(self, batch: Batch, error: errors.VqError) -> bool:
        """Whether the broker knows the producer id as another user's, and another one will do.

        After a start it gives an id to whoever it sees first with it. An own copy of an earlier
        batch that it may still store needs the id: then there is no other one.
        """
        number = error.details.get("number")
        is_other = isinstance(error, errors.NotAuthorized) and number == batch.stamp.producer_id
        return is_other and not self._stamps.may_be_copied

    def on_outcome_lost(self, batch: Batch, error: errors.SequenceStale) -> None:
        """Give up ``batch`` as unknown: no resend can show whether the broker stored it."""
        batch.sent = False
        batch.unknown = True
        batch.error = error
        self._remove_finished()

    def on_unanswered(self, batches: Iterable[Batch], now: float) -> None:
        """Send ``batches`` again later: they got no usable answer and may be stored."""
        self._refusal = None
        for batch in batches:
            batch.sent = False
            batch.unknown = True
        self._pause(now)

    def on_tick(self, now: float) -> None:
        """Fail what is past its deadline: sent messages at once, pending ones within a second."""
        self.finish_failing()
        for batch in self.in_flight:
            if batch.deadline <= now and not batch.done:
                self._give_up_late(batch, now)
        self.drop_late(now)
        self._remove_finished()

    def drop_late(self, now: float) -> None:
        """Fail the pending messages that are past their deadline."""
        self.take_late(now)
        self.finish_failing()

    def take_late(self, now: float) -> None:
        """Remove pending messages past their deadline; under the lock unless the sender owns.

        Only the sender calls it, and ``finish_failing`` before and behind it.
        """
        if len(self.pending) > _SCAN_ALWAYS and now < self._scan_at:
            return
        self._scan_at = now + _SCAN_S
        waiting = self.pending[:]
        count = len(waiting)
        late = [item for item in waiting if item.deadline <= now]
        if not late:
            return
        if self._config.ordered:
            first = waiting.index(late[0])
            kept = waiting[:first]
            failing = Failing(waiting[first:], self._not_sent(late), self._behind())
        else:
            kept = [item for item in waiting if item.deadline > now]
            failing = Failing(late, self._not_sent(late))
        self.failing = failing  # no call between these: see ``topic_queues``
        self.pending[:count] = kept  # one step: callers append behind the slice at any time

    def finish_failing(self) -> None:
        """Fail the messages of ``failing``; the sender completes so what was interrupted."""
        failing = self.failing
        if failing is None:
            return
        self._run(failing.fail)
        self.has_failed = self._config.ordered
        self._host.on_ended(failing)
        self.failing = None
        self._meter.failed(failing.count, failing.size, failing.error)

    def fail_pending(self, error: errors.VqError) -> None:
        """Fail the messages that are in no batch yet."""
        self.finish_failing()
        items = self.pending[:]
        count = len(items)
        failing = Failing(items, error)
        self.failing = failing  # no call between these: see ``topic_queues``
        del self.pending[:count]
        self.finish_failing()

    def fail_rest(self) -> None:
        """Fail what was accepted while a message of an ordered producer got its error.

        The owner drains between the failure and this call, so nothing that was accepted before the
        failure had its outcome stays.
        """
        self.fail_pending(self._behind())
        self.has_failed = self._stamps.fixed

    def refuse(self, items: Sequence[SendFuture], error: errors.VqError) -> None:
        """Remove these messages from ``pending`` and fail them; the sender owns the queue."""
        waiting, gone = self.pending[:], set(items)
        kept = [item for item in waiting if item not in gone]
        count = len(waiting)
        failing = Failing([item for item in waiting if item in gone], error)
        self.failing = failing  # no call between these: see ``topic_queues``
        self.pending[:count] = kept  # one step: callers append behind the slice at any time
        self.finish_failing()

    def fail_late(self, now: float, error: errors.VqError) -> None:
        """Give ``error`` to messages past their deadline: the steps that should do it raised."""
        late = [item for item in self.without_outcome() if item.deadline <= now]
        self._run(fail_all, late, error)

    def refuse_unencodable(self, error: errors.VqError) -> None:
        """Fail what keeps the next batch from being encoded; the sender owns the queue."""
        items = self.fitting(self.pending[: self._filling.candidates])
        self.refuse([item for item in items if not encodes(item)] or items, error)

    def close(self, error: errors.VqError) -> None:
        """Fail every message."""
        for batch in self.in_flight:
            if not batch.done:
                refusal = batch.last_refusal or error
                self._fail(batch, refusal if batch.certain else self._unanswered(error))
            batch.sent = False
        self.in_flight.clear()
        self.fail_pending(error)

    def _unanswered(self, error: errors.VqError) -> errors.VqError:
        return errors.TimedOut(
            f"{self.partition}: sent, and perhaps stored; no answer came before the end: {error}"
        )

    def _give_up_late(self, batch: Batch, now: float) -> None:
        error = self._given_up(batch)
        certain = isinstance(error, errors.Refused)
        if self._config.ordered:
            self._give_up_in_order(batch, error, now)
            return
        if any(item.deadline > now and item.outcome is None for item in batch.items):
            rest = batch.without_late(now, drop=certain)
            self.failing = Failing(rest.gone, error, batch=batch, rest=rest)
            self.finish_failing()
            return
        self._fail(batch, error)
        if certain:
            batch.error = error  # never send it again; it leaves a gap
        else:
            batch.forget()

    def _give_up_in_order(self, batch: Batch, error: errors.VqError, now: float) -> None:
        """Fail the first late message of a batch and everything behind it."""
        certain = isinstance(error, errors.Refused)
        first = next(
            number
            for number, item in enumerate(batch.items)
            if item.deadline <= now and item.outcome is None
        )
        behind = self._behind() if certain else self._behind_unknown()
        rest = batch.without_last(first, drop=certain)
        failing = Failing(rest.gone, error, behind, batch=batch, rest=rest)
        if not rest.count:
            batch.error = error if certain else batch.error
            batch.done = True  # no call between these: see ``topic_queues``
        self.failing = failing
        self.finish_failing()
        in_flight = list(self.in_flight)
        self._fail_behind(in_flight[in_flight.index(batch) + 1 :])

    def _fail_behind(self, batches: Sequence[Batch]) -> None:
        """Fail what is behind a failed message: the last batches in flight, and ``pending``."""
        for batch in batches:
            if batch.done:
                continue
            if batch.certain:
                batch.error = self._behind()
                self._fail(batch, batch.error)
            else:
                self._fail(batch, self._behind_unknown())
                batch.forget()
        self.fail_pending(self._behind())

    def _behind(self) -> errors.VqError:
        return errors.NotSent(f"{self.partition}: not sent, because {_EARLIER}")

    def _behind_unknown(self) -> errors.VqError:
        return errors.TimedOut(f"{self.partition}: sent, and perhaps stored; {_EARLIER}")

    def _fail(self, batch: Batch, error: errors.VqError) -> None:
        try:
            self._run(batch.fail, error)
        finally:
            self.has_failed = self._config.ordered
            self._count_ended(batch, error)

    def _run(self, step: Callable[..., None], *arguments: object) -> None:
        """Take a step that calls functions of the application, for all messages at once."""
        self._host.context.copy().run(step, *arguments)

    def _count_ended(self, batch: Batch, error: errors.VqError | None) -> None:
        """Report a batch as ended once it is done; an interrupted one is reported later."""
        if not batch.done or batch.counted or not batch.count:
            return
        self._host.on_ended(batch)
        batch.counted = True
        if error is None:
            self._meter.stored(batch.count, batch.size, batch.since, diverted=batch.diverted)
        else:
            self._meter.failed(batch.count, batch.size, error)

    def silence(self, now: float) -> float:
        """Return the seconds since the loop sent the oldest batch; 0: none is in flight."""
        oldest = next(iter(tuple(self.in_flight)), None)
        return 0.0 if oldest is None else max(0.0, now - oldest.sent_at)

    def _not_sent(self, items: Sequence[SendFuture]) -> errors.VqError:
        late = f"not sent within its deadline of {_seconds(items)}"
        refusal = self._refusal
        if isinstance(refusal, errors.Unreachable):
            why = self._host.why_waiting(self.partition)
            return errors.NotSent(  # the class that this cause has before the first attempt, too
                f"{self.partition}: {late}: {why or refusal.message}"
            )
        if refusal is not None:
            return type(refusal)(
                f"{self.partition}: {late}; the broker refused earlier batches: {refusal.message}",
                details=refusal.details,
            )
        why = self._host.why_waiting(self.partition)
        if not why and self.in_flight:
            why = f"its broker {self.master} has not answered earlier messages"
        return errors.NotSent(f"{self.partition}: {late}: {why or _UNTAKEN}")

    def _given_up(self, batch: Batch) -> errors.VqError:
        broker = "" if self.master is None else f" from broker {self.master}"
        if batch.unknown or batch.sent:
            return errors.TimedOut(
                f"{self.partition}: no answer{broker} within its deadline of "
                f"{_seconds(batch.items)}; it may be stored: sending it again may store it twice"
            )
        if isinstance(batch.last_refusal, errors.Unreachable):
            self._refusal = batch.last_refusal
        elif batch.last_refusal is not None:
            return batch.last_refusal
        return self._not_sent(batch.items)

    # Batches that leave, and their sequence numbers -------------------------------------------
    def _remove_finished(self) -> None:
        """Remove the oldest batches while they are stored or refused for good."""
        while self.in_flight:
            batch = self.in_flight[0]
            if batch.stored:
                self.in_flight.popleft()
                continue
            fails_now = not batch.done
            if batch.error is not None:
                if fails_now:
                    self._fail(batch, self._final_error(batch, batch.error))
                self._count_ended(batch, batch.error)
            else:
                return
            self.in_flight.popleft()
            self._close_gap(batch)
            if fails_now and self._config.ordered:
                self._fail_behind(tuple(self.in_flight))

    def _final_error(self, batch: Batch, error: errors.VqError) -> errors.VqError:
        if not batch.unknown or isinstance(error, errors.OutcomeUnknown | errors.SequenceTaken):
            return error
        return errors.TimedOut(f"{self.partition}: {error}; an earlier attempt had no answer")

    def _close_gap(self, gone: Batch) -> None:
        """Renumber the batches behind one that left without being stored."""
        if self._stamps.fixed:
            return  # they have failed with it
        taken = isinstance(gone.error, errors.SequenceTaken)  # there is no hole behind it
        if gone.unknown or taken or any(batch.sent or batch.unknown for batch in self.in_flight):
            self._renumber(in_doubt=gone.unknown or taken)
        else:  # no copy with this number or a later one exists: use the numbers again
            self._number(list(self.in_flight), gone.stamp.sequence)

    def _renumber(self, *, in_doubt: bool) -> None:
        """Give all batches in flight new numbers under the next producer epoch.

        With ``in_doubt``, the broker may still store a copy of the batch that left, and then also
        copies of later batches that were sent: these leave too, as unknown.
        """
        rest: list[Batch] = []
        for batch in self.in_flight:
            if not (in_doubt and (batch.unknown or batch.sent)):
                rest.append(batch)
                continue
            if not batch.done:
                self._fail(batch, errors.TimedOut(f"{self.partition}: no certain answer"))
            batch.sent = False  # ignore a late answer
        self._stamps.next_epoch(in_doubt=in_doubt)
        self._number(rest, 0)

    def _number(self, batches: list[Batch], first: int) -> None:
        """Put only ``batches`` in flight, to be sent again under new numbers."""
        stamps = self._stamps
        stamps.sequence = first
        kept: deque[Batch] = deque()
        for batch in batches:
            if batch.done:
                continue
            batch.stamp = stamps.stamp(stamps.sequence)
            stamps.sequence += 1
            batch.sent = batch.unknown = False
            batch.error = None
            kept.append(batch)
        self.in_flight = kept

    def _pause(self, now: float) -> None:
        self._failures += 1
        self.retry_at = max(self.retry_at, now + self._backoff.pause_s(self._failures))
