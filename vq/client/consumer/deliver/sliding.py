"""A delivery that is at several messages at a time: by key, in any order, or in lists.

    decoder ──▶ window, lanes ──▶ ready ──▶ executor ──▶ listener ──▶ done ──▶ window, lanes

A message is *ready* when it may be handled now. Those with the same *lane* follow one another: the
first is ready or in hand, the others wait behind it. Whoever is at messages takes them from
``ready`` and puts them into ``done``: a plain deque and a plain list, so nothing is locked for a
message. Lists are taken under the lock, from a queue made for that. What is done moves on
(``_settle``), many at a time, when somebody runs out of messages, or asks for the progress.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress, islice
from operator import itemgetter
from typing import Any, Final, final

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.bulk import AnyQueue, BulkQueue, take_first
from vq.client.consumer.deliver.delivery import Delivery, DeliveryHooks, Executor
from vq.client.consumer.deliver.failures import FailingMessages, Failures, Verdict, failed_try
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.deliver.sliding_window import SlidingWindow
from vq.client.consumer.deliver.tries import Retry, TriedMessage, tried_again
from vq.client.raised import forget_locals
from vq.client.reading.chunk import Chunk
from vq.coordination.tree.values.consumers import BAD_RECORD_ID
from vq.coordination.tree.values.group_terms import WorkingMode
from vq.errors import FilterFailed, ListenerFailed, VqError
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition

_ONE: Final = object()  # the lane of all messages of an orderly partition
_lane_of_key: Final[Callable[[Message], Hashable]] = itemgetter(Message._fields.index("key"))


def _no_lane(_: Message) -> Hashable:
    return None


def _one_lane(_: Message) -> Hashable:
    return _ONE


_LANES: Final[dict[WorkingMode, Callable[[Message], Hashable]]] = {
    WorkingMode.ORDERLY: _one_lane,
    WorkingMode.KEYED: _lane_of_key,
    WorkingMode.CONCURRENT: _no_lane,
}


@final
class Sliding(Delivery):
    """One held partition, several of whose messages may be in hand.

    Attributes:
        window: What was decoded and is not finished up to its beginning.
        ready: What may be handled now; taken from the left by whoever is at messages.
        done: What the listener is done with, and has not moved on.
        waiting: The messages that wait for one of their lane, by lane; no lane has an empty queue.
        takes_lists: The listener gets lists.
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        listener: Any,
        failures: Failures,
        *,
        config: ConsumerConfig,
        ahead: Iterable[tuple[int, int]] = (),
        executor: Executor,
        permit: Permit,
        hooks: DeliveryHooks,
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
            most=config.window_messages,
            owed=owed,
            wanted=wanted,
        )
        self.window: Final = SlidingWindow(
            position, config.window_messages, config.window_bytes, owed
        )
        self.takes_lists: Final = config.batch_size > 1
        self.done: Final[list[Message]] = []
        self.waiting: Final[dict[Hashable, AnyQueue]] = {}
        self._batch_size = config.batch_size
        self._batch_wait_s = config.batch_wait_ms / 1000
        self._short_since: float | None = None  # there are fewer messages than a list has
        self._lane_of = _LANES[WorkingMode(config.mode)]
        are_many = self.takes_lists and self._lane_of is not _one_lane
        self.ready: Final[AnyQueue] = BulkQueue() if are_many else deque()
        self._lanes: Final[set[Hashable]] = set()  # those with a message that is ready or in hand
        self._handled: Final = dict(ahead)  # ids by offsets: before, and not to be delivered again
        self._bad: Final = sorted(each for each in self._handled if self.has_passed(each))
        self._decoded: list[Message] = []  # the last step,
        self._admitted = 0  # and how many of them are in the window
        self._is_decoding = False
        self._failing: Final = FailingMessages()
        self._is_damaged = False  # what was fetched failed a check,
        self._damaged_at = position  # behind this

    def ahead(self) -> tuple[tuple[int, int], ...]:
        """See ``Delivery.ahead``; what was not fetched again yet is ahead still."""
        with self._lock:
            self._settle()
            return (*self.window.ahead(), *sorted(self._handled.items()))

    def progress_with(self, messages: Sequence[Message]) -> Progress:
        """See ``Delivery``."""
        with self._lock:
            self._settle()
            place, ahead = self.window.place_with(messages)
            handled = sorted(self._handled.items())
        return place._replace(ahead=(*ahead, *handled))

    def finish_now(self, messages: Sequence[Message]) -> None:
        """See ``Delivery``; their lanes are released when the listener has returned."""
        with self._lock:
            self._settle()
            self._finish(list(messages))

    def passed_over(self) -> tuple[tuple[int, int], ...]:
        """See ``Delivery.passed_over``."""
        with self._lock:
            bad = [*self.window.passed_over, *filter(self.has_passed, self._bad)]
        return tuple((each, BAD_RECORD_ID) for each in bad)

    def has_passed(self, offset: int) -> bool:
        """See ``Delivery``."""
        return self._handled.get(offset) == BAD_RECORD_ID

    def forsake(self) -> None:
        """See ``Delivery.forsake``."""
        super().forsake()
        self.ready.clear()

    # The executor -----------------------------------------------------------------------------
    def enter_line(self) -> bool:
        """Come from the line, to be at messages until ``leave``; False: it was stopped before."""
        with self._lock:
            self._in_line = False
            if self.is_stopped:
                return False
            self._at_work += 1
            return True

    def needs_help(self, least: int = 2) -> bool:
        """Whether another one should be at messages, too, since so many are ready; then ``put``."""
        with self._lock:
            return self._needs_help(least)

    def settle(self) -> bool:
        """Have what is done move on: a message waits behind it; return as ``needs_help`` does."""
        with self._lock:
            self._settle()
            return self._needs_help(2)

    def more(self) -> bool:
        """Have something ready; False: there is nothing now, or another one is decoding it."""
        while True:
            with self._lock:
                is_ready, chunk = self._look()
            if self.error is not None:
                self._goes_on()
            if chunk is None:
                return is_ready
            try:
                self._step(chunk)
            except FilterFailed as error:
                self._begin_anew(error)
                return False
            except Exception as error:  # noqa: BLE001 - told and logged there
                self.broke(error)
                return False
            finally:  # not before the decoder was replaced
                self._is_decoding = False

    def _look(self) -> tuple[bool, Chunk | None]:
        """Return whether something is ready, and otherwise the chunk to decode a step of."""
        if self.is_stopped:
            return False, None
        self._settle()
        if self._decoded:
            self._admit()
        owed = self.window.finished_ever - self._committed
        if owed > self._most // 2 or (owed and not self.window.has_room and self._is_short()):
            self._asks(self.window.finished_ever)
        if self.ready and (not self.takes_lists or not self._is_short()):
            return True, None
        if self._is_decoding or not self.window.has_room:
            return bool(self.ready), None
        if self._open is None:
            if not self._chunks:
                return bool(self.ready), None
            self._open = self._chunks.popleft()
            self._decoder.begin(self._open)
        self._is_decoding = True
        return False, self._open

    def _step(self, chunk: Chunk) -> None:
        """Decode the next step of a chunk, outside the lock; all of the last one is admitted."""
        decoder = self._decoder
        if decoder.has_more:
            messages = decoder.more()
            with self._lock:
                self._decoded, self._admitted = messages, 0
            return
        if decoder.error is not None:
            self._begin_anew(decoder.error)
            return
        with self._lock:
            self._open = None
            self.window.pass_to(decoder.read_to)
        decoder.end_chunk()
        if self._is_damaged and self.window.end > self._damaged_at:
            self._is_damaged = False
            self._goes_on()
        self._hooks.consumed(chunk.size, decoder.rest)

    def take(self) -> tuple[list[Message], float]:
        """Return the next list of messages; if it is empty, the pause until there may be one.

        A message that failed before is alone, so that the others of its list do not fail with it.
        """
        most, waiting = self._batch_size, self.waiting
        found: list[Message] = []
        with self._lock:
            pause_s = self._pause_of_short() if self._batch_wait_s else 0.0
            if pause_s:
                return found, pause_s
            ready, is_failing = self.ready, bool(self._failing)
            if not is_failing and (not waiting or self._lane_of is _one_lane):
                found = take_first(ready, min(most, len(ready)))
                if found and waiting:  # without it another one has the lane in hand
                    found = self._with_lane(_ONE, found)
                return found, 0.0
            while ready and len(found) < most:
                if found and is_failing and ready[0].attempts > 1:
                    break
                message = ready.popleft()
                found.append(message)
                if is_failing and message.attempts > 1:
                    break
                found = self._with_lane(self._lane_of(message), found)
        return found, 0.0

    def _with_lane(self, lane: Hashable, found: list[Message]) -> list[Message]:
        """Take what waits in a lane, too, up to the length of a list; return all."""
        waiting = self.waiting.get(lane)
        if waiting is None:
            return found
        there = len(waiting)
        count = min(there, self._batch_size - len(found))
        if self._failing:
            tries = (message.attempts > 1 for message in islice(waiting, count))
            count = next(compress(range(count), tries), count)
        taken = take_first(waiting, count)
        if count == there:
            del self.waiting[lane]
        if len(taken) < len(found):  # the shorter one is copied
            found += taken
            return found
        taken[:0] = found
        return taken

    def _pause_of_short(self) -> float:
        """Return how long to wait for more messages than there are."""
        if not self.ready or self.ready[0].attempts > 1:
            return 0.0
        now = self.permit.now()
        if not self._is_short() or self.window.is_full:
            self._short_since = None
            return 0.0
        if self._short_since is None:
            self._short_since = now
        pause_s = self._short_since + self._batch_wait_s - now
        if pause_s > 0:
            return pause_s
        self._short_since = None
        return 0.0

    def _is_short(self) -> bool:
        """Whether there are fewer messages than a list may have."""
        return self._at_hand() < self._batch_size

    def _at_hand(self) -> int:
        """Return how many messages a list could have now, or more than it may have."""
        count = len(self.ready)
        if count < self._batch_size and self.waiting:
            for message in islice(self.ready, count):
                waiting = self.waiting.get(self._lane_of(message))
                if waiting is not None:
                    count += len(waiting)
        return count

    def failed(
        self, messages: Sequence[Message], result: BaseException | Retry
    ) -> list[tuple[Message, float]]:
        """The listener failed for messages that it was given together.

        Returns those to be ready again (``again``) after a pause each. What follows one of them in
        its lane waits for it.
        """
        if isinstance(result, Retry) and result.done:
            done = min(result.done, len(messages))
            self.finished_part(messages, done)
            messages = messages[done:]
        later: list[tuple[Message, float]] = []
        behind: dict[Hashable, list[Message]] = {}  # by lane, behind the one that is tried first
        handled: list[Message] = []
        is_alone = len(messages) == 1
        for message in messages:
            failed = failed_try(message, result)
            before = self._failing.get(message.offset)
            decided = self.failures.decide(failed, before, is_alone=is_alone)
            with contextlib.suppress(BaseException):  # of the application's logging
                self.failures.tell(decided, before)
            if decided.verdict is Verdict.STOP:
                self.stop_group(decided.error)
                return []
            if decided.verdict is Verdict.SKIP:
                handled.append(message)
                continue
            self._note_failing(message.offset, decided.error)
            lane = self._lane_of(message)
            next_try = tried_again(message, failed.attempts + 1)
            if lane is not None and lane in behind:
                behind[lane].append(next_try)
                continue
            if lane is not None:
                behind[lane] = []
            later.append((next_try, decided.pause_s))
        with self._lock:
            self._finish(handled)
            for lane, waiting in behind.items():
                self._wait_first(lane, waiting)
            self._release(each for each in map(self._lane_of, handled) if each not in behind)
        if self.error is not None:
            self._goes_on()
        return later

    def finished_part(self, messages: Sequence[Message], count: int) -> None:
        """The first ``count`` messages of a list are done with; the others are still in hand."""
        done, left = list(messages[:count]), messages[count:]
        with self._lock:
            self._finish(done)
            kept = {self._lane_of(each) for each in left}
            self._release(each for each in map(self._lane_of, done) if each not in kept)

    def again(self, message: Message) -> bool:
        """A message that failed may be handled again; returns whether ``put`` follows."""
        with self._lock:
            if self.is_stopped:
                return False
            self.ready.append(message)
            is_in_line, self._in_line = self._in_line, True
            return not is_in_line

    # Under the lock -----------------------------------------------------------------------------
    def _handled_ever(self) -> int:
        self._settle()
        return self.window.finished_ever

    def _has_committed(self) -> bool:
        had_room = self.window.has_room
        self.window.most_ever = self._committed + self._most
        return not had_room and self.window.has_room and self._needs_help(0)

    def _place(self) -> Progress:
        self._settle()
        return self.window.place

    def _halt(self) -> None:
        super()._halt()
        self.ready.clear()
        self.waiting.clear()
        self._lanes.clear()
        self._decoded, self._admitted = [], 0

    def _passed_over(self, bad: int, following: int) -> None:
        self.window.pass_over(bad, following)
        self._handled.pop(bad, None)
        self._is_damaged = False

    def _forget_fetched(self) -> int:
        self._decoded, self._admitted = [], 0
        return self.window.end

    def _needs_help(self, least: int) -> bool:
        if self._in_line or self.is_stopped or len(self.ready) < least:
            return False
        self._in_line = True
        return True

    def _settle(self) -> None:
        """Let what is done move on: in the window, and the messages that wait in its lane."""
        messages = self.done[:]
        if not messages:
            return
        del self.done[: len(messages)]  # others append to it meanwhile
        self._finish(messages)
        if not self._lanes:
            return
        if self._lane_of is not _one_lane:
            self._release(map(self._lane_of, messages))
        elif _ONE in self.waiting:
            self._first_ready(_ONE, self.waiting[_ONE])
        else:
            self._lanes.clear()

    def _finish(self, messages: list[Message]) -> None:
        self.window.finish(messages)
        if self._failing and TriedMessage in map(type, messages):  # seldom: a quick look is enough
            for message in [each for each in messages if type(each) is TriedMessage]:
                self._failing.finish(message.offset)

    def _release(self, lanes: Iterable[Hashable]) -> None:
        """The messages of these lanes that were in hand are finished."""
        waiting = self.waiting
        if not waiting:
            self._lanes.difference_update(lanes)
            return
        lanes = list(lanes)
        self._lanes.difference_update(lanes)
        # A list may have had several messages of a lane.
        for lane in dict.fromkeys([each for each in lanes if each in waiting]):
            self._lanes.add(lane)
            self._first_ready(lane, waiting[lane])

    def _first_ready(self, lane: Hashable, waiting: AnyQueue) -> None:
        """Have the first of those ready that wait in a lane."""
        self.ready.append(waiting.popleft())
        if not waiting:
            del self.waiting[lane]

    def _wait_first(self, lane: Hashable, messages: Sequence[Message]) -> None:
        """Have messages wait in front of the others of their lane."""
        if messages and not self.is_stopped:
            self._queue_of(lane).extendleft(reversed(messages))

    def _admit(self) -> None:
        """Take what was decoded into the window, as far as it has room."""
        start, decoded = self._admitted, self._decoded
        end = self._admitted = self.window.admit(decoded, start)
        messages = decoded[start:end] if end - start < len(decoded) else decoded
        if end == len(decoded):
            self._decoded, self._admitted = [], 0
        if self._handled:
            messages = self._pass_handled(messages)
        if self._lane_of is _no_lane:
            self.ready.extend(messages)
            return
        if self._lane_of is _one_lane:
            self._admit_in_turn(messages)
            return
        free: list[Message] = []
        lanes, add_lane, make_ready = self._lanes, self._lanes.add, free.append
        for message, lane in zip(messages, map(self._lane_of, messages), strict=True):
            if lane not in lanes:
                if lane is not None:
                    add_lane(lane)
                make_ready(message)
            elif lane in self.waiting:
                self.waiting[lane].append(message)
            else:
                self.waiting[lane] = deque((message,))
        self.ready.extend(free)

    def _admit_in_turn(self, messages: list[Message]) -> None:
        """Have the first one ready if none is, and the others wait behind it."""
        if not messages:
            return
        waiting = self._queue_of(_ONE)
        waiting.extend(messages)
        if _ONE not in self._lanes:
            self._lanes.add(_ONE)
            self._first_ready(_ONE, waiting)

    def _queue_of(self, lane: Hashable) -> AnyQueue:
        """Return what waits in a lane, or an empty queue; the only lane has one for many."""
        waiting = self.waiting.get(lane)
        if waiting is None:
            waiting = self.waiting[lane] = BulkQueue() if lane is _ONE else deque()
        return waiting

    def _pass_handled(self, messages: list[Message]) -> list[Message]:
        """Finish those of the admitted messages that were handled before; return the others.

        The id is compared, too: a log that lost its end may have another message at an offset.
        """
        handled, left, passed = self._handled, [], []
        for message in messages:
            if handled.pop(message.offset, None) == message.id:
                passed.append(message)
            else:
                left.append(message)
        self.window.finish(passed)
        for offset in [each for each in handled if each < self.window.end]:
            del handled[offset]  # no message begins there any more
        return left

    # Errors -------------------------------------------------------------------------------------
    def _begin_anew(self, error: VqError) -> None:
        self._is_damaged, self._damaged_at = True, self.window.end
        super()._begin_anew(error)

    def _note_failing(self, offset: int, error: ListenerFailed) -> None:
        forget_locals(error)  # it is kept until the message is finished
        with self._lock:
            self._failing.note(offset, error)
            first = self._failing.first_held()
        if error.details["held"] and first is not None:
            self._stuck(first)

    def _goes_on(self) -> None:
        """Tell that nothing is held up any more, or of the next message that is."""
        told = self.error
        with self._lock:
            first = self._failing.first_held()
        if first is None:
            if not self._is_damaged:
                super()._goes_on()
            return
        if isinstance(told, ListenerFailed):
            if told.details["offset"] != first.details["offset"]:
                self._stuck(first)
        elif not self._is_damaged:
            self._stuck(first)
