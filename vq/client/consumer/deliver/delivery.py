"""One held partition on its way from fetched bytes to the user.

    add ──▶ chunks ──▶ decoder ──▶ window ──▶ executor ──▶ listener ──▶ progress, room to fetch
                                                 │ fails
                                                 ▼
                                              failures: a pause, and again

An executor is at a partition's messages: threads that call a listener (``workers``), tasks that
await one (``listening``), or an ``inbox`` that is asked for them. ``in_turn`` has deliveries that
are at one message at a time, in order; ``sliding`` those that are at several.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.failures import Failures
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.progress import Progress
from vq.client.raised import forget_locals
from vq.client.reading.chunk import Chunk, Rest
from vq.client.reading.decode import Decoder
from vq.errors import InternalError, VqError
from vq.log_lines import get_logger
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition
from vq.shown import shown_raised

logger = get_logger(__name__)


class Executor(ABC):
    """Who is at the messages of partitions."""

    def settings(self, config: ConsumerConfig) -> ConsumerConfig:
        """Return the settings of a delivery for it; ``config`` are those of the consumer."""
        return config

    @abstractmethod
    def put(self, delivery: Any) -> None:
        """A partition has something to deliver. Any thread."""

    async def call(self, listener: Any, message: Message) -> Any:
        """Return what a listener returns for one message, which is no delivery's. On the loop."""
        return await listener(message)

    def end_pauses(self) -> None:  # noqa: B027  not all have them
        """Have what waits for its next try tried now: the group has another policy."""

    def forget(self, delivery: Any) -> None:  # noqa: B027  likewise
        """A partition was stopped: keep nothing of it that waits for its next try. Any thread."""

    def is_waited_for(self, delivery: Any) -> None:  # noqa: B027  not all care
        """A hand-over waits until the user is done with a message of ``delivery``."""

    def fail(self, error: VqError) -> None:  # noqa: B027  likewise
        """No message follows, because of this."""


@dataclass(frozen=True, slots=True)
class DeliveryHooks:
    """What a delivery tells its consumer, from whichever thread it is in; none of it waits.

    Attributes:
        consumed: So many bytes of chunks were handled, and this is kept of them: others may be
            fetched.
        stuck: The partition does not go on for now, because of this; told at every try.
        went_on: It goes on after ``stuck``.
        fetch_again: The bytes from this offset on failed a check: fetch them again.
        stop: The group is to stop here, because of this; the delivery has stopped.
        owes: So many messages are handled and not committed that they are to be committed now.
    """

    consumed: Callable[[int, Rest], None]
    stuck: Callable[[VqError], None]
    went_on: Callable[[], None]
    fetch_again: Callable[[int], None]
    stop: Callable[[VqError], None]
    owes: Callable[[], None]


class Delivery(ABC):
    """One held partition.

    The loop gives it chunks and stops it. Its executor is the only one that takes messages, between
    ``enter`` and ``leave``, perhaps in other threads. What both change is changed under the lock.

    What a crash has delivered again is bounded: at most ``most`` messages are handed out behind
    what is known to be committed. A commit is asked for when half of them are handled.

    Args:
        most: See above.
        owed: So many messages before ``position`` were handled since the last commit.

    Attributes:
        partition: The partition.
        listener: What the executor calls; None if it is asked for messages. The loop may change
            it: the executor looks again at each step.
        error: Why it stands still now, or None. It is tried again by itself.
        permit: To deliver,
        until: and how long it lasts, as looked up last; once stopped it stays in the past.
        is_stopped: No further message is to be delivered.
        failures: What becomes of a message whose listener failed.
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        listener: Any,
        failures: Failures,
        *,
        executor: Executor,
        permit: Permit,
        hooks: DeliveryHooks,
        most: int,
        owed: int = 0,
        wanted: Filter = ALL,
    ) -> None:
        self.partition: Final = partition
        self.listener = listener
        self.error: VqError | None = None
        self.permit: Final = permit
        self.until = -math.inf
        self.is_stopped = False
        self.failures: Final = failures
        self._executor = executor
        self._hooks = hooks
        self._most = most
        self._committed = -owed  # how many of those that were handled are committed
        self._asked_at: int | None = None  # so many were handled when a commit was asked for
        self._stuck_at = position  # where ``error`` came up
        self._chunks: deque[Chunk] = deque()
        self._expected: int | None = None  # after damage: only the chunk that begins here counts
        self._wanted = wanted
        self._decoder = Decoder(partition, wanted=wanted)
        self._open: Chunk | None = None  # what the messages at hand come from
        self._lock = threading.Lock()
        self._in_line = False  # its executor has it
        self._at_work = 0  # how many are between ``enter`` and ``leave``
        self._on_stopped: Callable[[], None] | None = None

    # The loop ---------------------------------------------------------------------------------
    def add(self, chunk: Chunk) -> None:
        """Queue a chunk; the fetcher bounds how many bytes wait here."""
        with self._lock:
            if self.is_stopped or self._expected not in {None, chunk.offset}:
                return
            self._expected = None
            self._chunks.append(chunk)
            if self._in_line:
                return
            self._in_line = True
        self._executor.put(self)

    def has_passed(self, offset: int) -> bool:
        """Whether a bad record was passed over before, by this member or the one before it."""
        return False

    def pass_over(self, bad: int, following: int) -> None:
        """Go on behind a record that nobody can read. Only after ``fetch_again``."""
        with self._lock:
            if self.is_stopped:
                return
            self._expected = following
            self._passed_over(bad, following)
        if self.error is not None:
            self._goes_on()

    def progress(self) -> Progress:
        """Return where this group goes on after a stop, and the message before that.

        All messages before it are done with, and control records and filtered messages are passed.
        Any thread may ask.
        """
        with self._lock:  # no chunk ends meanwhile
            place = self._place()
            return place._replace(owed=self._handled_ever() - self._committed)

    def ahead(self) -> tuple[tuple[int, int], ...]:
        """Return the offset and the id of each message behind that place that is handled, too.

        First those of bad records that were passed over; they have ``BAD_RECORD_ID``.
        """
        return ()

    @abstractmethod
    def progress_with(self, messages: Sequence[Message]) -> Progress:
        """Return the progress, with ``ahead``, as if these messages in hand were finished, too."""

    @abstractmethod
    def finish_now(self, messages: Sequence[Message]) -> None:
        """A transaction has finished messages: they are, whatever becomes of their listener."""

    def passed_over(self) -> tuple[tuple[int, int], ...]:
        """Return those of ``ahead`` that are bad records, which are few."""
        return ()

    @property
    def position(self) -> int:
        """That of ``progress``."""
        return self.progress().position

    @property
    def delivered(self) -> int:
        """How many messages the user is done with, up to ``position``."""
        with self._lock:
            return self._handled_ever()

    def count_of(self, progress: Progress) -> int:
        """Return what ``committed`` is to be told if this progress, asked for just now, is."""
        return self._committed + progress.owed

    def committed(self, count: int) -> None:
        """So many of the messages that were handled are committed: as many more may follow."""
        with self._lock:
            self._committed = max(self._committed, count)
            if self._asked_at is not None and count >= self._asked_at:
                self._asked_at = None
            goes_on = self._has_committed()
        if goes_on:
            self._executor.put(self)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Deliver no further message; call ``on_stopped`` once the user is at none any more.

        It may be called by the executor's thread, or at once. It does not wait in line: the
        listener of another partition may be at its message for long.
        """
        with self._lock:
            self._halt()
            is_entered = self._at_work > 0
            if is_entered:
                self._on_stopped = on_stopped
        self._executor.forget(self)
        if is_entered:
            self._executor.is_waited_for(self)
        else:
            on_stopped()

    @property
    def is_stopping(self) -> bool:
        """Whether a hand-over waits until the user is done with a message."""
        return self._on_stopped is not None

    def forsake(self) -> None:
        """In the child of a fork: deliver nothing further. The parent goes on with it."""
        self._lock = threading.Lock()  # a thread that stayed behind may have it
        self.is_stopped = True
        self.until = -math.inf
        self._on_stopped = None

    # The executor -----------------------------------------------------------------------------
    def enter(self) -> bool:
        """Note that the user is at a message until ``leave``; False: it was stopped before."""
        with self._lock:
            if self.is_stopped:
                return False
            self._at_work += 1
            return True

    def leave(self) -> None:
        """Note that the user is at no message any more."""
        with self._lock:
            on_stopped = self._leave()
        if on_stopped is not None:
            on_stopped()

    def _leave(self) -> Callable[[], None] | None:
        self._at_work -= 1
        if self._at_work or self._on_stopped is None:
            return None
        on_stopped, self._on_stopped = self._on_stopped, None
        return on_stopped

    @property
    def is_entered(self) -> bool:
        """Whether the user is at a message."""
        return self._at_work > 0

    def may_go_on(self) -> bool:
        """Whether the next message may be handed out now."""
        self.until = self.permit.until
        return not self.is_stopped and self.permit.now() < self.until

    @abstractmethod
    def more(self) -> bool:
        """Have messages that may be handed out; False: there are none now."""

    def broke(self, error: BaseException) -> None:
        """Begin anew after an error of vq, or of the application's logging."""
        failed = InternalError(f"{self.partition}: delivery failed: {shown_raised(error)}")
        try:
            self._begin_anew(failed)
        finally:  # last: the application's logging may raise
            logger.error(
                "delivery failed, starting again", partition=self.partition, exc_info=error
            )

    def stop_group(self, error: VqError) -> None:
        """Deliver nothing further, and have the group stopped here because of ``error``."""
        with self._lock:
            self._halt()
        self._executor.forget(self)
        forget_locals(error)
        self._hooks.stop(error)

    # Under the lock -----------------------------------------------------------------------------
    @abstractmethod
    def _handled_ever(self) -> int:
        """Return what ``delivered`` does."""

    @abstractmethod
    def _has_committed(self) -> bool:
        """Note that more may be handed out; return whether ``put`` follows."""

    def _asks(self, handled: int) -> None:
        """Ask for a commit of what is handled, unless one is asked for."""
        if self._asked_at is None:
            self._asked_at = handled
            self._hooks.owes()

    @abstractmethod
    def _place(self) -> Progress:
        """Return the place of ``progress``."""

    def _halt(self) -> None:
        self.is_stopped = True
        self.until = -math.inf
        self._chunks.clear()

    @abstractmethod
    def _passed_over(self, bad: int, following: int) -> None:
        """Have the progress go on behind a record that nobody can read."""

    @abstractmethod
    def _forget_fetched(self) -> int:
        """Forget what was fetched and is not handled; return from where it is needed again."""

    # Errors -------------------------------------------------------------------------------------
    def _begin_anew(self, error: VqError) -> None:
        """Forget what was fetched, and have it fetched again, after a pause."""
        with self._lock:
            begin = self._expected = self._forget_fetched()
            self._chunks.clear()
            self._decoder = Decoder(self.partition, wanted=self._wanted)
            self._open = None
        self._stuck(error)
        self._hooks.fetch_again(begin)

    def _stuck(self, error: VqError) -> None:
        forget_locals(error)  # it is kept for as long as the partition stands still, or longer
        self.error = error
        self._stuck_at = self.position
        self._hooks.stuck(error)

    def _goes_on(self) -> None:
        self.error = None
        self._hooks.went_on()
