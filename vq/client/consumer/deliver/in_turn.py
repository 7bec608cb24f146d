"""A delivery that is at one message at a time, in order: for listeners and for an inbox."""

from collections.abc import Iterator, Sequence
from typing import Any

from vq.client.consumer.deliver.delivery import Delivery, DeliveryHooks, Executor
from vq.client.consumer.deliver.failures import Failed, Failures, Verdict
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.progress import Progress, Window
from vq.client.consumer.deliver.tries import tried_again
from vq.client.reading.chunk import Chunk
from vq.errors import FilterFailed
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition


class InTurn(Delivery):
    """One held partition, whose messages are handled one by one.

    Attributes:
        window: The messages at hand.
        room: How many of them may be handed out in the next turn; None: all.
        pause_s: Before the message at hand is tried again.
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
        super().__init__(
            partition,
            position,
            listener,
            failures,
            executor=executor,
            permit=permit,
            hooks=hooks,
            most=most,
            owed=owed,
            wanted=wanted,
        )
        self.window = Window(position)
        self.room: int | None = None
        self._is_full = False  # nothing more is handed out before a commit
        self._look_at = self._committed + most // 2  # up to this number nobody need count
        self.pause_s = 0.0
        self._finished_to: Progress | None = None  # by a transaction; the window may be behind it
        self._tried = (-1, 0)  # the offset of the message that failed last, and how often it did

    # The executor -----------------------------------------------------------------------------
    def leave_line(self) -> bool:
        """Leave after a chunk was handled; return whether to keep it in line, else ``put`` follows.

        It is one with ``leave``, since small chunks feel every lock.
        """
        with self._lock:
            self._at_work -= 1
            on_stopped, self._on_stopped = self._on_stopped, None
            stays = self._in_line = self._has_more()
        if on_stopped is not None:
            on_stopped()
        return stays

    def has_more(self) -> bool:
        """Whether to keep it in line, after its chunk was handled; else ``put`` follows."""
        with self._lock:
            self._in_line = self._has_more()
            return self._in_line

    def more(self) -> bool:
        """Have messages in the window, of which ``room`` may be handed out.

        False: the chunk at hand is handled, or what is handled is to be committed first.
        """
        window, decoder = self.window, self._decoder
        try:
            while not self.is_stopped:
                if self._finished_to is not None:
                    self._follow(self._finished_to)
                if window.messages and window.finished < len(window.messages):
                    if window.before + len(window.messages) > self._look_at:
                        return self._has_room()
                    self.room = None
                    return True
                if self._open is None:
                    with self._lock:
                        if not self._chunks:
                            return False
                        self._open = self._chunks.popleft()
                    decoder.begin(self._open)
                elif not decoder.has_more:
                    self._end_chunk(self._open)
                    return False
                elif window.messages:
                    with self._lock:
                        window.open(())  # they are not kept beside those that follow
                messages = decoder.more()
                with self._lock:
                    window.open(messages)
        except FilterFailed as error:
            self._begin_anew(error)
        except Exception as error:  # noqa: BLE001 - told and logged there
            self.broke(error)
        return False

    def _follow(self, place: Progress) -> None:
        """Have the window pass what a transaction has finished."""
        window = self.window
        with self._lock:
            while window.finished < len(window.messages):
                if window.messages[window.finished].offset >= place.position:
                    break
                window.finish(window.finished)
            if window.place().position >= place.position:
                self._finished_to = None

    def progress_with(self, messages: Sequence[Message]) -> Progress:
        """See ``Delivery``; they are the lowest unfinished ones."""
        last = messages[-1]
        return Progress(last.next_offset, last.id)

    def finish_now(self, messages: Sequence[Message]) -> None:
        """See ``Delivery``."""
        with self._lock:
            place = self.progress_with(messages)
            if place.position > self._place().position:
                self._finished_to = place

    def _has_room(self) -> bool:
        """Count how many messages may be handed out; ask for a commit once half of them were."""
        with self._lock:
            handled, half = self.window.finished_ever, self._most // 2
            owed = handled - self._committed
            # Not all that there is room for, so that the commit is asked for in time.
            self.room = (self._most if owed > half else half + 1) - owed
            self._is_full = self.room <= 0
            if owed > half:
                self._asks(handled)
            return not self._is_full

    def turn_again(self) -> Iterator[Message]:
        """Iterate over the lowest unfinished message, after an error; see ``Window.turn``.

        One message is enough: that it goes on is told soon.
        """
        return map(self._counted, self.window.turn(1))

    def _counted(self, message: Message) -> Message:
        offset, tries = self._tried
        return tried_again(message, tries + 1) if message.offset == offset else message

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
            self._goes_on()

    def failed(self, failed: Failed) -> float | None:
        """The listener failed for the lowest unfinished message.

        Returns the pause before the next try; None: it goes on behind the message, or was stopped.
        """
        decided = self.failures.failed(failed, self.error)
        self._tried = failed.offset, failed.attempts
        self.pause_s = decided.pause_s
        if decided.verdict is Verdict.SKIP:
            self.window.finish(self.window.finished)
            if self.error is not None:
                self._goes_on()
            return None
        if decided.verdict is Verdict.STOP:
            self.stop_group(decided.error)
            return None
        self._stuck(decided.error)
        self.put_back()
        return decided.pause_s

    def put_back(self) -> None:
        """Keep no message during a pause: many partitions may be in one at the same time."""
        messages, finished = self.window.messages, self.window.finished
        if finished < len(messages):
            with self._lock:
                self.window.open(())
            self._decoder.take_back(messages, finished)

    # Under the lock -----------------------------------------------------------------------------
    def _has_more(self) -> bool:
        if self._is_full or self.is_stopped:
            return False
        return bool(self._chunks) or self._open is not None

    def _handled_ever(self) -> int:
        return self.window.finished_ever

    def _has_committed(self) -> bool:
        self._look_at = self._committed + self._most // 2
        if not self._is_full or self.window.finished_ever - self._committed >= self._most:
            return False
        self._is_full = False
        is_in_line, self._in_line = self._in_line, True
        return not is_in_line and not self.is_stopped

    def _place(self) -> Progress:
        place, finished_to = self.window.place(), self._finished_to
        if finished_to is not None and finished_to.position > place.position:
            return finished_to
        return place

    def _halt(self) -> None:
        super()._halt()
        self.window.left, self.window.lists_left = iter(()), iter(())

    def _passed_over(self, bad: int, following: int) -> None:
        self.window.pass_over(following)

    def _forget_fetched(self) -> int:
        self.window.open(())
        return self.window.place().position
