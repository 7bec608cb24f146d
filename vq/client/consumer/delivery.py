"""From fetched bytes to a listener called once per message, partition by partition.

    loop                     worker threads                      loop
    chunk ──▶ Delivery ──▶ decode, verify, call listener ──▶ room to fetch, position to commit

A ``Delivery`` is one partition's line of chunks. It is in at most one worker at a time, so a
partition's messages are handled in order by one thread; different partitions may be handled side
by side when there is more than one worker.
"""

import contextlib
import contextvars
import enum
import heapq
import itertools
import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, length_hint
from typing import Any, NamedTuple, Protocol

from vq.backoff import Backoff
from vq.client.config import ConsumerConfig, OnListenerError
from vq.client.consumer.permit import RECHECK_S, Permit
from vq.client.raised import forget_locals
from vq.client.reading.chunk import Chunk, Rest
from vq.client.reading.decode import Decoder
from vq.errors import InternalError, ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition
from vq.shown import shown_raised

logger = get_logger(__name__)
_BACKOFF_MAX_S = 30.0

Listener = Callable[[Message], Any]


def ignore(message: Message) -> None:
    """Stand in for a listener where messages are iterated over instead."""


class Progress(NamedTuple):
    """How far a partition was handled.

    ``message_id`` is the id of the last message that the user is done with; None: none since the
    delivery began. ``epoch`` is that of the batch before ``position``; 0: not known, which it is to
    a delivery.
    """

    position: int
    message_id: int | None = None
    epoch: int = 0


class _Turn(NamedTuple):
    """How far a listener is in the messages of a chunk.

    ``left`` yields the messages of this turn, of which there are ``size``; it has given out the
    one that the listener is at.
    """

    before: int
    size: int = 0
    left: Iterator[Message] = iter(())

    @property
    def handled(self) -> int:
        """Return how many messages of the chunk the listener is done with; from any thread."""
        return self.before + max(0, self.size - length_hint(self.left) - 1)


_AT_BEGIN = _Turn(0)
_next_offset = attrgetter("next_offset")


def id_at(position: int, messages: Sequence[Message], before: int | None) -> int | None:
    """Return the id of the last message that ends at or before ``position``.

    It is looked up when somebody asks, so that delivering a message need not note it. ``messages``
    are those of the chunk at hand, ``before`` is the answer for the chunks before it.
    """
    count = bisect_right(messages, position, key=_next_offset)
    return messages[count - 1].id if count else before


class Failures:
    """What becomes of the messages of one partition whose listener raises."""

    def __init__(self, partition: TopicPartition, config: ConsumerConfig) -> None:
        self._partition = partition
        self._config = config
        self._tries = 0  # how often the message at hand failed

    def over(self) -> None:
        """Note that a message was handled."""
        self._tries = 0

    def failed(
        self, offset: int, error: BaseException, before: VqError | None
    ) -> tuple[ListenerFailed, float | None]:
        """Return what to tell, and the pause before the next try; None: skip the message.

        Args:
            offset: Of the message.
            error: What the listener raised.
            before: Why the partition stands still already; None: it does not.
        """
        self._tries += 1
        config = self._config
        failed = ListenerFailed(
            f"the listener raised for the message at offset {offset}: {shown_raised(error)}",
            details={"offset": offset},
        )
        failed.__cause__ = error
        # Once for each cause: a listener may fail in another way at a later try.
        is_told = (
            before is not None
            and type(before.__cause__) is type(error)
            and before.details.get("offset") == offset
        )
        where_raised = None if is_told else error
        if config.on_listener_error is OnListenerError.SKIP and (
            self._tries > config.listener_retries
        ):
            logger.error(
                "listener raised, message skipped",
                partition=self._partition,
                tries=self._tries,
                error=failed,
                exc_info=where_raised,
            )
            self._tries = 0
            return failed, None
        logger.warning(
            "listener raised, trying again",
            partition=self._partition,
            tries=self._tries,
            error=failed,
            exc_info=where_raised,
        )
        backoff = Backoff(first_s=config.listener_backoff_s, most_s=_BACKOFF_MAX_S)
        return failed, backoff.pause_s(self._tries)


@dataclass(frozen=True, slots=True)
class DeliveryHooks:
    """What a delivery tells its consumer, from whichever thread it is in; none of it waits.

    Attributes:
        consumed: So many bytes of chunks were handled, and this is kept of them: others may be
            fetched.
        stuck: The partition does not go on for now, because of this; told at every try.
        went_on: It goes on after ``stuck``.
        fetch_again: The bytes from this offset on failed a check: fetch them again.
    """

    consumed: Callable[[int, Rest], None]
    stuck: Callable[[VqError], None]
    went_on: Callable[[], None]
    fetch_again: Callable[[int], None]


class Delivery(Protocol):
    """One held partition on its way to the user.

    Attributes:
        delivered: How many messages the user is done with.
        error: Why delivery stands still now, or None. It is tried again by itself.
    """

    delivered: int
    error: VqError | None

    @property
    def position(self) -> int:
        """Where this group goes on after a stop: behind the last message the user is done with,
        control records and filtered messages included. Any thread may read it."""
        ...

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk; the fetcher bounds how many bytes wait here."""
        ...

    def progress(self) -> Progress:
        """Return ``position`` and the message that it stands behind; on the loop."""
        ...

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Deliver no further message; call ``on_stopped`` once the user is at none any more.

        It may be called from another thread, or at once.
        """
        ...


DeliveryMaker = Callable[[TopicPartition, int, Listener, DeliveryHooks], Delivery]
"""``(partition, position, listener, hooks)`` to a delivery."""


class _Place(enum.Enum):
    """Where a delivery stands with its workers."""

    IDLE = "idle"
    """Nothing is to be handled, or it was stopped."""
    IN_LINE = "in line"
    """A worker will be at it."""
    AT_WORK = "at work"
    """A worker is at it."""
    PAUSED = "paused"
    """It waits for its next try."""


# 16 fields change: those of the chunk at hand are read for each message, where one attribute less
# to go through counts, and nearly all of them are changed under one lock.
class ThreadDelivery:
    """A delivery that calls a listener on one of ``workers``; see ``Delivery``.

    A worker handles one chunk and then the next delivery in line, so that a partition with a long
    backlog does not keep the others waiting. Nor does one whose listener raises: it leaves the
    worker and comes back for its next try.
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        listener: Listener,
        config: ConsumerConfig,
        *,
        hooks: DeliveryHooks,
        workers: "Workers",
        permit: Permit,
    ) -> None:
        self.partition = partition
        self.delivered = 0
        self.error: VqError | None = None
        self._begin = position  # where the chunk at hand begins for the user
        self._stuck_at = position  # where ``error`` came up
        self._listener = listener
        self._failures = Failures(partition, config)
        self._hooks = hooks
        self._permit = permit
        self._until = -math.inf  # of the permit, as looked up last; once stopped it stays here
        self._workers = workers
        self._chunks: deque[Chunk] = deque()
        self._decoder = Decoder(partition)
        # The chunk at hand, some of its messages, and how far the listener is in them. Position and
        # last message follow from that, so that nothing is noted for each message. They are changed
        # together only under the lock.
        self._open: Chunk | None = None
        self._messages: list[Message] = []
        self._turn = _AT_BEGIN
        self._expected: int | None = None  # after damage: only the chunk that begins here counts
        self._id_before: int | None = None  # the last one of the chunks before
        self._lock = threading.Lock()
        self._place = _Place.IDLE
        self._stopping = False
        self._on_stopped: Callable[[], None] | None = None

    # The loop ---------------------------------------------------------------------------------
    def add(self, chunk: Chunk) -> None:
        """See ``Delivery.add``."""
        with self._lock:
            if self._stopping or self._expected not in {None, chunk.offset}:
                return
            self._expected = None
            self._chunks.append(chunk)
            if self._place is not _Place.IDLE:
                return
            self._place = _Place.IN_LINE
        self._workers.submit(self)

    def progress(self) -> Progress:
        """See ``Delivery.progress``."""
        with self._lock:  # no chunk ends meanwhile
            return self._progress()

    @property
    def position(self) -> int:
        """See ``Delivery.position``."""
        return self.progress().position

    def _progress(self) -> Progress:
        handled = self._turn.handled
        if not handled:
            return Progress(self._begin, self._id_before)
        last = self._messages[handled - 1]
        return Progress(last.next_offset, last.id)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """See ``Delivery.stop``; called from the worker's thread, or at once when none is at it.

        It does not wait in line: the listener of another partition may be at its message for long.
        """
        with self._lock:
            self._stopping = True
            self._until = -math.inf
            self._chunks.clear()
            if self._place is _Place.AT_WORK:
                self._on_stopped = on_stopped
                return
            self._place = _Place.IDLE
        on_stopped()

    def forsake(self) -> None:
        """In the child of a fork: deliver nothing further. The parent goes on with it."""
        self._lock = threading.Lock()  # a thread that stayed behind may have it
        self._stopping = True
        self._until = -math.inf
        self._on_stopped = None

    # A worker ---------------------------------------------------------------------------------
    def run(self) -> None:
        """Deliver one chunk, or go on with it after a pause; called by one worker."""
        with self._lock:
            if self._stopping:
                return  # before its turn came
            self._place = _Place.AT_WORK
        pause: float | None = None
        try:
            pause = self._deliver()
        except BaseException as error:  # noqa: BLE001 - the thread is for other partitions, too
            try:
                self._begin_anew(
                    InternalError(f"{self.partition}: delivery failed: {shown_raised(error)}")
                )
            finally:  # last: the application's logging may raise
                logger.exception("delivery failed, starting again", partition=self.partition)
        finally:
            self._leave_worker(pause)

    def _leave_worker(self, pause: float | None) -> None:
        """Get in line again, at once or after a pause, or tell that nothing runs here any more."""
        with self._lock:
            if not self._stopping and pause is not None:
                self._place = _Place.PAUSED
                self._workers.submit_later(self, pause)
                return
            if not self._stopping and self._chunks:
                self._place = _Place.IN_LINE
                self._workers.submit(self)
                return
            self._place = _Place.IDLE
            on_stopped = self._on_stopped
        if on_stopped is not None:
            on_stopped()

    def _deliver(self) -> float | None:
        """Handle what is left of the chunk at hand; return a pause in seconds before going on."""
        chunk = self._open
        if chunk is None:
            with self._lock:
                if not self._chunks:
                    return None
                chunk = self._open = self._chunks.popleft()
            self._decoder.begin(chunk)
        while not self._stopping:
            if self._turn.handled < len(self._messages):
                pause = self._hand_out()
                if pause is not None:
                    self._put_back()
                    return pause
            elif not self._decoder.has_more:
                break
            elif not self._may_go_on():
                return RECHECK_S
            else:
                self._forget_messages()
                self._messages = self._decoder.more()
        if self._stopping:
            return None
        if self._decoder.error is not None:
            self._begin_anew(self._decoder.error)
            return None
        with self._lock:
            self._forget_chunk()
            self._begin = self._decoder.read_to
        self._decoder.end_chunk()
        if self.error is not None and self.position > self._stuck_at:
            self._went_on()
        self._hooks.consumed(chunk.size, self._decoder.rest)
        return None

    def _hand_out(self) -> float | None:
        """Call the listener for the messages at hand; return a pause before going on, or None."""
        if not self._may_go_on():
            return RECHECK_S
        failure = self._call_listener()
        if failure is not None:
            return self._pause_after(*failure)
        if self.error is not None and self.position > self._stuck_at:
            self._went_on()
        return None

    def _put_back(self) -> None:
        """Keep no message during a pause: many partitions may be in one at the same time."""
        messages, handled = self._messages, self._turn.handled
        self._forget_messages()
        self._decoder.take_back(messages, handled)

    def _forget_messages(self) -> None:
        """Go on behind what was handled of them."""
        with self._lock:
            self._begin, self._id_before, _ = self._progress()
            self._messages, self._turn = [], _AT_BEGIN

    def _may_go_on(self) -> bool:
        """Whether the next message may be handed out now."""
        self._until = self._permit.until
        return not self._stopping and self._permit.now() < self._until

    def _call_listener(self) -> tuple[int, BaseException] | None:
        """Call the listener for the messages left, until it raises; return for which and what.

        For which: its offset. What is raised refers to the functions that called this one, so that
        a message in a variable of theirs would be kept with it.

        After an error one message is enough: that it goes on is told soon.
        """
        listener = self._listener
        before = self._turn.handled
        messages = self._messages[before:] if before else self._messages
        if self.error is not None:
            messages = messages[:1]
        now = self._permit.now
        left = iter(messages)
        self._turn = _Turn(before, len(messages), left)
        all_done = False
        try:
            for message in left:
                if now() >= self._until and not self._may_go_on():
                    return None
                try:
                    listener(message)
                except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                    return message.offset, error
            all_done = True
        finally:
            handled = before + len(messages) if all_done else self._turn.handled
            self._turn = _Turn(handled)
            if handled > before:
                self.delivered += handled - before
                self._failures.over()
        return None

    def _pause_after(self, offset: int, error: BaseException) -> float | None:
        """Return the pause before the next try, or None when the message is to be skipped."""
        # A message handled before this one has reset the count.
        failed, pause = self._failures.failed(offset, error, self.error)
        if pause is None:
            self.delivered += 1
            self._turn = _Turn(self._turn.handled + 1)
            if self.error is not None:
                self._went_on()
            return None
        self._stuck(failed)
        return pause

    def _stuck(self, error: VqError) -> None:
        forget_locals(error)  # it is kept for as long as the partition stands still, or longer
        self.error = error
        self._stuck_at = self.position
        self._hooks.stuck(error)

    def _went_on(self) -> None:
        self.error = None
        self._hooks.went_on()

    def _begin_anew(self, error: VqError) -> None:
        """Bytes failed a check: forget what was fetched, and have it fetched again."""
        with self._lock:
            self._chunks.clear()
            self._decoder = Decoder(self.partition)
            self._forget_chunk()
            self._expected = self._begin
        self._stuck(error)
        self._hooks.fetch_again(self._begin)

    def _forget_chunk(self) -> None:
        """Go on behind what was handled of the chunk at hand; under the lock."""
        self._begin, self._id_before, _ = self._progress()
        self._open, self._messages, self._turn = None, [], _AT_BEGIN


class Workers:
    """Threads that run deliveries, in the order in which they became ready.

    Args:
        count: How many.
        name: Of the threads.
        context: Each run of a delivery, with its listener, has a copy of it; None: of an empty one.
    """

    def __init__(
        self, count: int, *, name: str, context: contextvars.Context | None = None
    ) -> None:
        self._context = contextvars.Context() if context is None else context
        # Not a ``SimpleQueue``: before Python 3.13 its ``get`` waits for ever if its time-out is
        # over before it has begun to wait, as on a busy machine.
        self._wake = threading.Condition(threading.Lock())
        self._ready: deque[ThreadDelivery] = deque()
        self._later: list[tuple[float, int, ThreadDelivery]] = []  # a heap by due time
        self._numbers = itertools.count()
        self._at_work: set[ThreadDelivery] = set()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is called by one of the threads."""
        return threading.current_thread() in self._threads

    def submit(self, delivery: ThreadDelivery) -> None:
        """Have ``delivery.run`` called once."""
        with self._wake:
            self._ready.append(delivery)
            self._wake.notify()

    def submit_later(self, delivery: ThreadDelivery, pause_s: float) -> None:
        """Have ``delivery.run`` called once, after a pause."""
        with self._wake:
            due = time.monotonic() + pause_s
            heapq.heappush(self._later, (due, next(self._numbers), delivery))
            self._wake.notify()  # whoever waits looks again for how long

    def _run(self) -> None:
        while not self._closed and (delivery := self._next()) is not None:
            self._at_work.add(delivery)
            try:
                self._context.copy().run(delivery.run)
            except BaseException:  # the others still need the thread
                with contextlib.suppress(BaseException):  # of the application's logging
                    logger.exception("delivery failed, others continue")
            finally:
                self._at_work.discard(delivery)

    def _next(self) -> ThreadDelivery | None:
        """Wait for the next delivery in line and return it; None once the threads are to end."""
        with self._wake:
            while not self._closed:
                until_due_s = self._until_due()
                if self._ready:
                    delivery = self._ready.popleft()
                    if self._ready or self._later:
                        self._wake.notify()  # another thread takes what is ready or due, meanwhile
                    return delivery
                self._wake.wait(until_due_s)
        return None

    def _until_due(self) -> float | None:
        """Make ready what is due; return the seconds until something will be. Under the lock."""
        while self._later:
            left = self._later[0][0] - time.monotonic()
            if left > 0:
                return left
            self._ready.append(heapq.heappop(self._later)[2])
        return None

    def forsake(self, _: str) -> None:
        """In the child of a fork, by a listener perhaps: its thread ends when that returns."""
        # A thread that stayed behind may have the old one.
        self._wake = threading.Condition(threading.Lock())
        self._closed = True
        for delivery in list(self._at_work):
            delivery.forsake()

    def close(self, timeout_s: float) -> bool:
        """Stop the threads; False when one of them is still inside a listener after the time."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
