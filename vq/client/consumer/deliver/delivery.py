"""One held partition on its way from fetched bytes to the user.

    add ──▶ chunks ──▶ decoder ──▶ window ──▶ executor ──▶ listener ──▶ progress, room to fetch
                                                 │ raises
                                                 ▼
                                              failures: a pause, and again

An executor is at a partition's messages: threads that call a listener (``workers``), tasks that
await one (``listening``), or an ``inbox`` that is asked for them. It is at one message of a
partition at a time, in order.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.failures import Failures
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.progress import Progress, Window
from vq.client.raised import forget_locals
from vq.client.reading.chunk import Chunk, Rest
from vq.client.reading.decode import Decoder
from vq.errors import FilterFailed, InternalError, VqError
from vq.log_lines import get_logger
from vq.message_filter import ALL, Filter
from vq.model import TopicPartition
from vq.shown import shown_raised

logger = get_logger(__name__)


class Executor(ABC):
    """Who is at the messages of partitions."""

    @abstractmethod
    def put(self, delivery: "Delivery") -> None:
        """A partition has something to deliver. Any thread."""

    def is_waited_for(self, delivery: "Delivery") -> None:  # noqa: B027  not all care
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
    """

    consumed: Callable[[int, Rest], None]
    stuck: Callable[[VqError], None]
    went_on: Callable[[], None]
    fetch_again: Callable[[int], None]


class Delivery:
    """One held partition.

    The loop gives it chunks and stops it. Its executor is the only one that takes messages, between
    ``enter`` and ``leave``, perhaps in another thread. What both change is changed under the lock.

    Attributes:
        partition: The partition.
        listener: What the executor calls; None if it is asked for messages.
        error: Why it stands still now, or None. It is tried again by itself.
        window: The messages at hand.
        permit: To deliver,
        until: and how long it lasts, as looked up last; once stopped it stays in the past.
        is_stopped: No further message is to be delivered.
        pause_s: Before the message at hand is tried again.
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        listener: Any,
        config: ConsumerConfig,
        *,
        executor: Executor,
        permit: Permit,
        hooks: DeliveryHooks,
        wanted: Filter = ALL,
    ) -> None:
        self.partition: Final = partition
        self.listener: Final = listener
        self.error: VqError | None = None
        self.window: Final = Window(position)
        self.permit: Final = permit
        self.until = -math.inf
        self.is_stopped = False
        self.pause_s = 0.0
        self._executor = executor
        self._hooks = hooks
        self._failures = Failures(partition, config)
        self._stuck_at = position  # where ``error`` came up
        self._chunks: deque[Chunk] = deque()
        self._expected: int | None = None  # after damage: only the chunk that begins here counts
        self._wanted = wanted
        self._decoder = Decoder(partition, wanted=wanted)
        self._open: Chunk | None = None  # what the window's messages come from
        self._lock = threading.Lock()
        self._in_line = False  # its executor has it
        self._is_entered = False
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

    def progress(self) -> Progress:
        """Return where this group goes on after a stop, and the message before that.

        It is behind the last message that the user is done with, and behind control records and
        filtered messages. Any thread may ask.
        """
        with self._lock:  # no chunk ends meanwhile
            return self.window.place()

    @property
    def position(self) -> int:
        """That of ``progress``."""
        return self.progress().position

    @property
    def delivered(self) -> int:
        """How many messages the user is done with."""
        with self._lock:
            return self.window.finished_ever

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Deliver no further message; call ``on_stopped`` once the user is at none any more.

        It may be called by the executor's thread, or at once. It does not wait in line: the
        listener of another partition may be at its message for long.
        """
        with self._lock:
            self.is_stopped = True
            self.until = -math.inf
            self.window.left = iter(())
            self._chunks.clear()
            is_entered = self._is_entered
            if is_entered:
                self._on_stopped = on_stopped
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
            self._is_entered = not self.is_stopped
            return self._is_entered

    def leave(self) -> None:
        """Note that the user is at no message any more."""
        with self._lock:
            self._is_entered = False
            on_stopped, self._on_stopped = self._on_stopped, None
        if on_stopped is not None:
            on_stopped()

    @property
    def is_entered(self) -> bool:
        """Whether the user is at a message."""
        return self._is_entered

    def has_more(self) -> bool:
        """Whether to keep it in line, after its chunk was handled; else ``put`` follows."""
        with self._lock:
            self._in_line = bool(self._chunks)
            return self._in_line

    def may_go_on(self) -> bool:
        """Whether the next message may be handed out now."""
        self.until = self.permit.until
        return not self.is_stopped and self.permit.now() < self.until

    def more(self) -> bool:
        """Have unfinished messages in the window; False: the chunk at hand is handled."""
        window = self.window
        try:
            while not self.is_stopped:
                if window.messages:
                    if window.finished < len(window.messages):
                        return True
                    with self._lock:
                        window.open(())  # they are not kept beside those that follow
                if self._open is None:
                    with self._lock:
                        if not self._chunks:
                            return False
                        self._open = self._chunks.popleft()
                    self._decoder.begin(self._open)
                elif not self._decoder.has_more:
                    self._end_chunk(self._open)
                    return False
                messages = self._decoder.more()
                with self._lock:
                    window.open(messages)
        except FilterFailed as error:
            self._begin_anew(error)
        except Exception as error:  # noqa: BLE001 - told and logged there
            self.broke(error)
        return False

    def _end_chunk(self, chunk: Chunk) -> None:
        if self._decoder.error is not None:
            self._begin_anew(self._decoder.error)
            return
        with self._lock:
            self.window.pass_to(self._decoder.read_to)
        self._open = None
        self._decoder.end_chunk()
        if self.error is not None:
            self.handled()
        self._hooks.consumed(chunk.size, self._decoder.rest)

    def handled(self) -> None:
        """Messages were handled: tell that it goes on, if it stood still before them."""
        self.pause_s = 0.0
        if self.error is not None and self.position > self._stuck_at:
            self._went_on()

    def failed(self, offset: int, error: BaseException) -> float | None:
        """The listener raised for the lowest unfinished message, which is at ``offset``.

        Returns the pause before the next try; None: the message is skipped.
        """
        failed, pause = self._failures.failed(offset, error, self.error)
        self.pause_s = pause or 0.0
        if pause is None:
            self.window.finish(self.window.finished)
            if self.error is not None:
                self._went_on()
            return None
        self._stuck(failed)
        self.put_back()
        return pause

    def put_back(self) -> None:
        """Keep no message during a pause: many partitions may be in one at the same time."""
        messages, finished = self.window.messages, self.window.finished
        if finished < len(messages):
            with self._lock:
                self.window.open(())
            self._decoder.take_back(messages, finished)

    def broke(self, error: BaseException) -> None:
        """Begin anew after an error of vq, or of the application's logging."""
        failed = InternalError(f"{self.partition}: delivery failed: {shown_raised(error)}")
        try:
            self._begin_anew(failed)
        finally:  # last: the application's logging may raise
            logger.error(
                "delivery failed, starting again", partition=self.partition, exc_info=error
            )

    def _begin_anew(self, error: VqError) -> None:
        """Forget what was fetched, and have it fetched again, after a pause."""
        with self._lock:
            self.window.open(())
            self._chunks.clear()
            self._decoder = Decoder(self.partition, wanted=self._wanted)
            self._open = None
            begin = self._expected = self.window.place().position
        self._stuck(error)
        self._hooks.fetch_again(begin)

    def _stuck(self, error: VqError) -> None:
        forget_locals(error)  # it is kept for as long as the partition stands still, or longer
        self.error = error
        self._stuck_at = self.position
        self._hooks.stuck(error)

    def _went_on(self) -> None:
        self.error = None
        self._hooks.went_on()
