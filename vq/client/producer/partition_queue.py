"""One partition's line of batches: what is sent next, again, renumbered, or given up.

Decides, does no I/O. The broker appends a batch only if its sequence follows the last one it has
from this producer id and epoch, and answers a batch it already has with the first result. So:

* Batches go out in order, and again in order with the same stamps after a cut: nothing is stored
  twice, nothing overtakes.
* A batch whose deadline passed without an answer is reported as unknown, but keeps its place and
  is sent again until its fate is settled: leaving a hole would put what follows in doubt too.
* A batch that was refused for good leaves a hole in the sequence. When no copy of those behind it
  is on its way, they move up. Otherwise they are renumbered under the next producer epoch, which
  shuts out the copies of the old ones. One that may itself have such a copy is not renumbered while
  the copy could still be stored: its outcome becomes unknown.
* Epochs are 16 bits. Long before the last one, the line goes on under a new producer id, when it is
  empty and all copies of what was in it are shut out.

The line, oldest first:      [stored, its elders are not] [sent] [sent] [to be sent] | pending
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Literal, TypeVar

from vq import errors
from vq.backoff import Backoff
from vq.client.config import ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.batch import Batch, bytes_of, fail_all
from vq.limits import PRODUCER_EPOCH_MAX
from vq.model import ProducerStamp, TopicPartition
from vq.store.format import RECORD_HEADER_BYTES

F = TypeVar("F", bound=SendFuture)
#: More pending messages than this are looked through for late ones only once a second.
_SCAN_ALWAYS = 2_000
_SCAN_S = 1.0
#: This part of a batch is so little that the next messages may wait for its answer.
_FEW_PART = 8
#: From this epoch on the line takes a new producer id as soon as it safely can.
_RENEW_EPOCH = PRODUCER_EPOCH_MAX // 2


class PartitionQueue:
    """The state of one producer in one partition.

    Used by its owner. ``owner`` and ``closed`` change under the accumulator's lock, and ``pending``
    is appended to under it; while another thread owns the queue, the sender only takes out of
    ``pending`` what is late, under the lock, too.

    A signal handler may raise in the thread that owns it, between any two steps. What was not done
    then is done by ``leave`` or by sending again: a batch stays in line until all its messages have
    their outcome.

    Attributes:
        owner: Who is at it: the sender, or a thread that sends a message of its own.
        claimed: What that thread sends.
        shared: The last such batch carried messages of several threads.
        pending: Messages not yet in a batch, oldest first.
        in_flight: Unresolved batches, oldest first; at most ``config.window``.
        retry_at: Nothing is sent before this monotonic time.
        closed: Why nothing is sent any more.
        topic_id: Which topic of that name it belongs to.
        epoch: Of the master that was last looked up for it, 0: none was.
    """

    def __init__(
        self,
        partition: TopicPartition,
        new_producer_id: Callable[[], int],
        config: ProducerConfig,
        on_ended: Callable[[int, int], None],
    ) -> None:
        self.partition = partition
        self.pending: list[SendFuture] = []
        self.in_flight: deque[Batch] = deque()
        self.retry_at = 0.0
        self.owner: BlockingSendFuture | Literal["sender"] | None = None
        self.claimed: list[BlockingSendFuture] = []
        self.shared = False
        self.closed: errors.VqError | None = None
        self.topic_id = ""
        self.epoch = 0
        self._config = config
        self._new_producer_id = new_producer_id
        self._producer_id = new_producer_id()
        self._on_ended = on_ended  # (messages, their bytes) that have their outcome now
        self._producer_epoch = 0
        self._may_be_copied = False  # copies of an earlier epoch are not shut out yet
        self._next_sequence = 0
        self._backoff = Backoff(first_s=config.retry_backoff_s, most_s=config.retry_backoff_max_s)
        self._failures = 0  # since the broker stored a batch
        self._refusal: errors.VqError | None = None  # why the broker takes nothing for now
        self._scan_at = 0.0
        self._full = config.batch_records  # so many messages filled a batch lately

    # Who is at it: all under the accumulator's lock -------------------------------------------
    def enter(self) -> bool:
        """Make the sender the owner; False when a thread is, or was given the lead just now."""
        if isinstance(self.owner, BlockingSendFuture) and not self.owner.leads:
            self.leave()  # its thread has gone, by a signal handler that raised
        if self.owner is None and not self._pass_lead():
            self.owner = "sender"
        return self.owner == "sender"

    def claim(self, future: BlockingSendFuture) -> bool:
        """Make the thread of ``future`` the owner: it leads, ``take`` comes next.

        It may if it was given the lead, or if nothing but blocking sends comes before its message.
        """
        free = self.owner is None and self.closed is None and not self.in_flight
        if free and future.leads and future in self._waited():
            self.owner = future
        return self.owner is future

    def take(self) -> list[BlockingSendFuture]:
        """Return what the thread that leads shall send: as many as fit into one batch."""
        claimed = self.fitting(self._waited())
        count = len(claimed)
        self.claimed = claimed
        del self.pending[:count]  # no call between these two: see ``topic_queues``
        self.shared = count > 1
        return claimed

    def _waited(self) -> list[BlockingSendFuture]:
        """Return what stands first and is waited for by threads."""
        found: list[BlockingSendFuture] = []
        for each in self.pending:
            if not isinstance(each, BlockingSendFuture):
                break
            found.append(each)
        return found

    def leave(self) -> bool:
        """Have no owner; return whether the sender has something to do here.

        What was claimed and never sent stands first again, and is left to the sender. Otherwise the
        lead goes on to the thread whose message stands first. A batch whose answer was not applied
        to its end, since a signal handler raised, is sent again.
        """
        for batch in self.in_flight:
            if batch.sent:
                batch.sent = False
                batch.unknown = True
        if not self.in_flight:
            back = [each for each in self.claimed if each.outcome is None]
            for each in back:
                each.leads = False
            self.pending[:0] = back
        self.claimed = []
        self.owner = None
        if self._pass_lead():
            return False
        return bool(self.pending or self.in_flight or self.closed)

    def _pass_lead(self) -> bool:
        first = self.pending[0] if self.pending else None
        if not isinstance(first, BlockingSendFuture) or not first.leads:
            return False
        if self.in_flight or self.closed is not None:
            return False
        first.rouse()  # before the next step: one that is awake and leads nothing claims by itself
        self.owner = first
        return True

    def without_outcome(self) -> list[SendFuture]:
        """Return every message that may have no outcome yet, whoever is at it."""
        in_flight = [item for batch in tuple(self.in_flight) for item in batch.items]
        return [*in_flight, *self.claimed, *self.pending]

    # What to send -----------------------------------------------------------------------------
    def next_to_send(self, now: float, take_ids: Callable[[int], list[int]]) -> Batch | None:
        """Return the batch to put on the wire next, counted as sent; None: nothing can go now.

        Asked again until there is none; a new batch is made only when its turn has come, so that
        those before it are on their way meanwhile. What ``take_ids`` raises is passed on; no
        message is lost by it.
        """
        if now < self.retry_at:
            return None
        batch = None
        for each in self.in_flight:
            if each.error is not None:
                return None  # nothing passes a hole
            if not each.sent and not each.stored:
                batch = each
                break
        else:
            if self._may_make_one():
                items = self._next_items()
                batch = self._make(items, take_ids(len(items)), pending=True)
        if batch is not None:
            batch.sent = True
            batch.attempts += 1
        return batch

    def _may_make_one(self) -> bool:
        """Whether what is pending shall be one more batch now."""
        under_way = len(self.in_flight)
        if not self.pending or under_way >= self._config.window:
            return False
        if any(batch.done and not batch.stored for batch in self.in_flight):
            return False  # given up, but not settled: its bytes count in no buffer any more
        if under_way and self._producer_epoch >= _RENEW_EPOCH:
            return False  # let it become empty, for a new producer id
        # A small batch behind another one would wait for the flush of that one at the broker, and a
        # batch costs producer, broker and consumer the same work, however small it is.
        return not under_way or len(self.pending) * 2 >= self._full

    @property
    def may_rest(self) -> bool:
        """Whether little is under way here, and nothing more will be sent before its answer."""
        if self.owner is not None or len(self.in_flight) != 1:
            return False
        batch = self.in_flight[0]
        return batch.sent and (batch.count + len(self.pending)) * _FEW_PART < self._full

    def batch_of(self, items: Sequence[SendFuture], ids: list[int]) -> Batch:
        """Return ``items`` as a batch that counts as sent; nothing else may be in flight."""
        batch = self._make(list(items), ids)
        batch.sent = True
        batch.attempts = 1
        return batch

    def _next_items(self) -> list[SendFuture]:
        """Return one batch's worth (at least one message) from the head of ``pending``.

        Looks at little more than a batch was worth lately, since a look costs as much for the
        messages that do not fit.
        """
        most = min(self._full + self._full // 4 + 8, self._config.batch_records)
        items = self.pending[:most]
        fitting = self.fitting(items)
        cut = len(fitting) < len(items)
        self._full = len(fitting) if cut else max(self._full, len(fitting))
        return fitting

    def fitting(self, items: list[F]) -> list[F]:
        """Return as many of ``items`` as fit into one batch, at least the first."""
        items = items[: self._config.batch_records]
        size = bytes_of(items) + len(items) * RECORD_HEADER_BYTES
        if size <= self._config.batch_bytes:
            return items
        ends = accumulate(item.size + RECORD_HEADER_BYTES for item in items)
        return items[: max(1, bisect_right(list(ends), self._config.batch_bytes))]

    def _make(self, items: list[SendFuture], ids: list[int], *, pending: bool = False) -> Batch:
        """Append a new batch to the line; its number is used up only once it is there.

        With ``pending``, its messages stand first there, and leave it.
        """
        renew = self._producer_epoch >= _RENEW_EPOCH
        if renew and not self.in_flight and not self._may_be_copied:
            self._renew()
        batch = Batch(items, ids, self._stamp(self._next_sequence))
        taken = len(items) if pending else 0
        self._next_sequence += 1
        self.in_flight += (batch,)  # no call between these: see ``topic_queues``
        del self.pending[:taken]
        return batch

    def _stamp(self, sequence: int) -> ProducerStamp:
        return ProducerStamp(self._producer_id, self._producer_epoch, sequence)

    # What came back ---------------------------------------------------------------------------
    def on_stored(self, batch: Batch, offset: int) -> None:
        """The broker has ``batch`` durably, its first record at ``offset``."""
        self._failures = 0
        self._refusal = None
        batch.sent = False
        self._may_be_copied = False  # the broker has seen this epoch: it refuses earlier ones
        if not batch.done:
            try:
                batch.resolve(self.partition.partition, offset)
            except BaseException:  # a signal handler raised: it is sent again, and answered again
                batch.unknown = True
                raise
            finally:
                self._count_ended(batch)
        batch.stored = True
        self._settle()

    def on_refused(self, batch: Batch, error: errors.VqError, now: float) -> None:
        """The broker certainly did not store this attempt of ``batch``."""
        batch.sent = False
        hole = isinstance(error, errors.SequenceGap | errors.UnknownProducer)
        if not hole:
            batch.last_refusal = error
        if hole and self.in_flight and self.in_flight[0] is not batch:
            self._pause(now)  # its elders have no answer yet, or are being sent again
        elif hole and not batch.unknown:
            self._renumber(in_doubt=False)  # the broker forgot this producer; nothing is stored
        elif not hole and (error.retriable or error.refresh_routes):
            self._refusal = error
            self._pause(now)  # what stands behind it meets a hole, and comes back by itself
        else:
            batch.error = error
        self._settle()

    def on_untellable(self, batch: Batch, error: errors.SequenceStale) -> None:
        """The broker cannot tell any more whether it stored ``batch``, and no resend will."""
        batch.sent = False
        batch.unknown = True
        batch.error = error
        self._settle()

    def on_unanswered(self, batches: Iterable[Batch], now: float) -> None:
        """The connection ended, or the answer was none: any of ``batches`` may be stored."""
        self._refusal = None
        for batch in batches:
            batch.sent = False
            batch.unknown = True
        self._pause(now)

    def on_tick(self, now: float) -> None:
        """Report what is past its deadline: at once what was sent, what waits within a second."""
        for batch in self.in_flight:
            if batch.deadline <= now and not batch.done:
                self._give_up_late(batch, now)
        self.drop_late(now)
        self._settle()

    def drop_late(self, now: float) -> None:
        """Report what waits past its deadline."""
        self.tell_late(self.take_late(now))

    def take_late(self, now: float) -> list[SendFuture]:
        """Take out what waits past its deadline, under the lock unless the sender is the owner."""
        if len(self.pending) > _SCAN_ALWAYS and now < self._scan_at:
            return []
        self._scan_at = now + _SCAN_S
        waiting = self.pending[:]
        late = [item for item in waiting if item.deadline <= now]
        if late:
            # One step: callers append behind the slice at any time.
            self.pending[: len(waiting)] = [item for item in waiting if item.deadline > now]
        return late

    def tell_late(self, late: list[SendFuture]) -> None:
        """Report what was taken out. For the sender only."""
        if late:
            self._fail_items(late, self._not_sent())

    def refuse_pending(self, error: errors.VqError) -> None:
        """Give up what is in no batch yet."""
        items = self.pending[:]
        del self.pending[: len(items)]
        self._fail_items(items, error)

    def close(self, error: errors.VqError) -> None:
        """Give up everything."""
        for batch in self.in_flight:
            if not batch.done:
                self._fail(batch, self._given_up(batch))
            batch.sent = False
        self.in_flight.clear()
        self.refuse_pending(error)

    def _give_up_late(self, batch: Batch, now: float) -> None:
        error = self._given_up(batch)
        certain = isinstance(error, errors.Refused)
        if any(item.deadline > now and item.outcome is None for item in batch.items):
            self._fail_items(batch.expire(now, drop=certain), error)
            return
        self._fail(batch, error)
        if certain:
            batch.error = error  # it must not be stored any more: a hole
        else:
            batch.forget()

    def _fail(self, batch: Batch, error: errors.VqError) -> None:
        try:
            batch.fail(error)
        finally:
            self._count_ended(batch)

    def _count_ended(self, batch: Batch) -> None:
        """Count a batch once, unless it was interrupted and is told again later."""
        if batch.done:
            self._on_ended(batch.count, batch.size)

    def _fail_items(self, items: list[SendFuture], error: errors.VqError) -> None:
        try:
            fail_all(items, error)
        finally:
            self._on_ended(len(items), bytes_of(items))

    def _not_sent(self) -> errors.VqError:
        refusal = self._refusal
        if refusal is not None:
            return type(refusal)(
                f"{self.partition}: not sent within its deadline; the broker refused earlier "
                f"batches: {refusal}",
                details=refusal.details,
            )
        return errors.NotSent(f"{self.partition}: not sent within its deadline; no broker took it")

    def _given_up(self, batch: Batch) -> errors.VqError:
        if batch.unknown or batch.sent:
            return errors.TimedOut(f"{self.partition}: no answer within the deadline")
        if batch.last_refusal is not None:
            return batch.last_refusal
        return self._not_sent()

    # Keeping the line -------------------------------------------------------------------------
    def _settle(self) -> None:
        """Take what stands first in line and is settled out of it."""
        while self.in_flight:
            batch = self.in_flight[0]
            if batch.stored:
                self.in_flight.popleft()
                continue
            if batch.error is not None:
                if not batch.done:
                    self._fail(batch, self._final_error(batch, batch.error))
            else:
                return
            self.in_flight.popleft()
            self._close_gap(batch)

    def _final_error(self, batch: Batch, error: errors.VqError) -> errors.VqError:
        if not batch.unknown or isinstance(error, errors.OutcomeUnknown):
            return error
        return errors.TimedOut(f"{self.partition}: {error}; an earlier attempt had no answer")

    def _close_gap(self, gone: Batch) -> None:
        """Renumber the line behind a batch that left without being stored."""
        if gone.unknown or any(batch.sent or batch.unknown for batch in self.in_flight):
            self._renumber(in_doubt=gone.unknown)
        else:  # no copy of anything from its number on exists: use the numbers again
            self._number(list(self.in_flight), gone.stamp.sequence)

    def _renumber(self, *, in_doubt: bool) -> None:
        """Give the line fresh numbers under the next producer epoch.

        With ``in_doubt``, a copy of the batch that left may still be stored, and behind it copies
        of those that were sent more than once: these leave too, as unknown.
        """
        rest: list[Batch] = []
        for batch in self.in_flight:
            if not (in_doubt and (batch.unknown or batch.sent)):
                rest.append(batch)
                continue
            if not batch.done:
                self._fail(batch, errors.TimedOut(f"{self.partition}: no answer that settles it"))
            batch.sent = False  # a late answer changes nothing
        self._may_be_copied = self._may_be_copied or in_doubt
        if self._producer_epoch < PRODUCER_EPOCH_MAX:
            self._producer_epoch += 1
        else:  # nothing was stored since the renewal was due; copies stay behind their hole
            self._renew()
        self._number(rest, 0)

    def _renew(self) -> None:
        """Go on under another producer id; no batch in the line may have a copy that counts."""
        self._producer_id = self._new_producer_id()
        self._producer_epoch = self._next_sequence = 0
        self._may_be_copied = False

    def _number(self, batches: list[Batch], first: int) -> None:
        """Make ``batches`` the line, to be sent again under new numbers."""
        self._next_sequence = first
        self.in_flight.clear()
        for batch in batches:
            if batch.done:
                continue
            batch.stamp = self._stamp(self._next_sequence)
            self._next_sequence += 1
            batch.sent = batch.unknown = False
            batch.error = None
            self.in_flight.append(batch)

    def _pause(self, now: float) -> None:
        self._failures += 1
        self.retry_at = max(self.retry_at, now + self._backoff.pause_s(self._failures))
