"""Threads that handle the messages of a local queue: a pool, mailboxes, stages of a pipeline.

A message goes into the **box** of its key; a box is handled in order, one message at a time, and
boxes side by side. Without ``by_key`` each message has a box of its own. A box is in one state:

    queued     it has messages and waits for a thread
    running    a thread handles its first message
    waiting    its first message failed, and is tried again at a time
    paused     nobody handles it until it is resumed
    pausing    ... once the thread that is at it has returned
"""

import enum
import heapq
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from vq import limits
from vq.bounds import check_between
from vq.client.consumer.deliver.tries import RETRY, Retry, retry_of, tried_again
from vq.client.kinds import check_function, check_takes_message
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    StorageFailed,
    TimedOut,
    VqError,
)
from vq.local.items import LATER, LocalItem
from vq.local.queue import LocalQueue
from vq.log_lines import get_logger
from vq.model import Key, Message
from vq.shown import shown

logger = get_logger(__name__)

#: What a handler returns: nothing, what goes to the next queue, or that its message is tried again.
Handled = bytes | Message | Iterable[bytes | Message] | Retry | None
_WINDOW_MAX: Final = 1_000_000
_WINDOW_BYTES_MAX: Final = 1 << 40
_RENEWALS: Final = 3  # per lease
_INSTEAD: Final = "give a plain function of a message; coroutines take from a vq.aio.LocalQueue"
#: A close waits so long for handlers that run, and a stage so long for room before it looks
#: whether it is closed.
_CLOSE_S: Final = 30.0
_ROOM_S: Final = 0.5
_monotonic: Final = time.monotonic


class NotHandled(Exception):
    """A message was put off: that is no failed try. For vq only.

    Args:
        after_s: The pause before its handler is called again, in seconds.
    """

    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = after_s


class BoxState(enum.Enum):
    """What becomes of the messages of a box; see the top of this module."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    PAUSING = "pausing"


class _Box:
    """The messages of one key that were taken, in order."""

    __slots__ = ("items", "key", "state", "tries")

    def __init__(self, key: object) -> None:
        self.key = key
        self.items: deque[LocalItem] = deque()
        self.state = BoxState.QUEUED
        self.tries = 0  # of its first message, that failed


class _TakerWaker:
    """Wakes the thread that takes; it may be woken already, by something else than a message."""

    __slots__ = ("_wake",)

    def __init__(self, wake: threading.Lock) -> None:
        self._wake = wake

    def release(self) -> None:
        """See ``Waker.release``."""
        try:
            self._wake.release()
        except RuntimeError:  # it was woken already
            pass


class LocalWorkers:
    """Threads that call a handler for each message, and complete what it has handled.

    A handler that raises, or returns ``vq.RETRY``, stops nothing. With ``by_key`` its message is
    tried again in its box, at once ``retries`` times and then every ``retry_s`` (settings of the
    queue), and the messages of its key wait; without, it goes back to the queue
    (``LocalQueue.fail``). While a message is here its lease is renewed. Close it before the queue.

    Args:
        queue: Where messages come from.
        handler: A plain function, called with a message; what it returns goes to the queue ``to``.
            With ``vq.Retry(after_s=...)`` the message is tried again after that pause. With ``to``
            it may be a generator.
        workers: So many threads, >= 1.
        by_key: Handle messages with the same key in order, one at a time.
        to: The next queue of a pipeline. A message is completed once what was made of it is
            durable there; after a crash in between, its puts are recognised by idempotency keys
            within that queue's window.
        window: So many messages are taken at once. With ``by_key`` those of keys that fail or are
            paused do not count, up to ``later_max`` of the queue, so that others go on.
        window_bytes: ... and no more once the contents of all have so many bytes.

    Raises:
        InvalidArgument: A number is out of its bounds, or ``handler`` is a coroutine function.
    """

    def __init__(
        self,
        queue: LocalQueue,
        handler: Callable[[Message], Handled],
        *,
        workers: int = 4,
        by_key: bool = False,
        to: LocalQueue | None = None,
        window: int = 1_000,
        window_bytes: int = 64 * limits.MIB,
    ) -> None:
        for name, value, most in (
            ("workers", workers, _WINDOW_MAX),
            ("window", window, _WINDOW_MAX),
            ("window_bytes", window_bytes, _WINDOW_BYTES_MAX),
        ):
            check_between(name, value, 1, most)
        for name, given in (("queue", queue), ("to", to)):
            if not isinstance(given, LocalQueue) and (name == "queue" or given is not None):
                raise InvalidArgument(f"{name} = {shown(given)} is no vq.local.LocalQueue")
        if to is None or not inspect.isgeneratorfunction(handler):
            check_function("handler", handler, _INSTEAD)
        check_takes_message("handler", handler)
        self._queue = queue
        self._handler = handler
        self._by_key = by_key
        self._to = to
        self._window = window
        self._window_bytes = window_bytes
        # Entered as the lock that it is, and not as a condition: where the handler of a signal
        # raises in that, the lock would stay taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._boxes: dict[object, _Box] = {}
        self._queued: deque[_Box] = deque()
        self._retries: list[tuple[float, int, _Box]] = []  # a heap
        self._paused_keys: set[object] = set()
        self._all_paused = False
        self._held = self._held_bytes = 0
        self._stalled = 0  # so many of those held are in boxes that nobody may handle now
        self._stalled_max = queue.config.later_max if by_key else 0
        self._closing = False
        self._pid = os.getpid()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._waker = _TakerWaker(self._wake)
        self._threads = [
            threading.Thread(target=self._take_all, name="vq-local-takes", daemon=True),
            *(
                threading.Thread(target=self._work, name=f"vq-local-worker-{n}", daemon=True)
                for n in range(workers)
            ),
        ]
        for thread in self._threads:
            thread.start()

    # The application ------------------------------------------------------------------------------
    def pause(self, key: Key | None = None) -> None:
        """Handle no more messages of a key, or with None of all keys.

        Handlers that run go on. Messages of a paused key wait in memory.
        """
        with self._lock:
            if key is None:
                self._all_paused = True
                return
            self._paused_keys.add(key)
            box = self._boxes.get(key)
            if box is not None and box.state in _ON_PAUSE:
                self._move(box, _ON_PAUSE[box.state])

    def resume(self, key: Key | None = None) -> None:
        """Handle messages of a key again, or with None of all keys that are not paused by name."""
        with self._lock:
            if key is None:
                self._all_paused = False
            else:
                self._paused_keys.discard(key)
                box = self._boxes.get(key)
                if box is not None and box.state is BoxState.PAUSED:
                    self._enqueue(box)
                elif box is not None and box.state is BoxState.PAUSING:
                    self._move(box, BoxState.RUNNING)
            self._changed.notify_all()

    @property
    def held(self) -> int:
        """How many messages were taken and are not completed."""
        return self._held

    def close(self) -> None:
        """Wait up to 30 s for handlers that run; give what was taken back. May be repeated.

        The message of a handler that runs longer is given again, too. In the child of a fork it
        does nothing.

        Raises:
            InvalidState: A handler called it, which would wait for itself. The others go on.
        """
        if self._pid != os.getpid():
            return
        self.check_outside()
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._waker.release()
        deadline = _monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(deadline - _monotonic(), 0.0))
        if any(thread.is_alive() for thread in self._threads):
            logger.warning(
                "handlers do not return, their messages are given again",
                queue=self._queue.name,
                after_s=_CLOSE_S,
            )
        with self._lock:
            left = [item for box in self._boxes.values() for item in reversed(box.items)]
            self._boxes.clear()
        for item in left:
            self._give_back(item)

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if one of the handlers calls it. For vq only."""
        if threading.current_thread() in self._threads:
            raise InvalidState(
                "closing it inside its own handler would wait for itself; close it from another "
                "thread"
            )

    def _give_back(self, item: LocalItem) -> None:
        try:
            self._queue._core.takes.give_back(item)
        except VqError as error:
            logger.warning("message cannot be given back", queue=self._queue.name, error=error)

    # Taking ---------------------------------------------------------------------------------------
    def _take_all(self) -> None:
        takes = self._queue._core.takes
        lease_s = self._queue.config.lease_s
        pause_s = -1.0 if lease_s is None else lease_s / _RENEWALS
        renew_at = _monotonic() + pause_s
        try:
            while not self._closing:
                if lease_s is not None and _monotonic() >= renew_at:
                    self._renew()
                    renew_at = _monotonic() + pause_s
                left_s = -1.0 if lease_s is None else max(renew_at - _monotonic(), 0.0)
                if self._is_full:
                    takes.pass_on()  # it may have been woken for a message, and takes none
                    self._wake.acquire(timeout=left_s)
                    continue
                try:
                    item = takes.take_now()
                except (InvalidState, StorageFailed):
                    raise
                except VqError as error:
                    logger.error(
                        "messages cannot be read, trying again", queue=self._queue.name, error=error
                    )
                    self._wake.acquire(timeout=self._queue.config.retry_s)
                    continue
                if item is not None:
                    self._add(item)
                elif takes.wait_for_message(self._waker):
                    self._wake.acquire(timeout=left_s)
                    takes.takers.leave(self._waker)
        except VqError as error:
            if not self._closing:
                logger.error("taking messages ends", queue=self._queue.name, error=error)
        finally:
            takes.pass_on()

    @property
    def _is_full(self) -> bool:
        counted = self._held - min(self._stalled, self._stalled_max)
        return counted >= self._window or self._held_bytes >= self._window_bytes

    def _renew(self) -> None:
        with self._lock:
            items = [item for box in self._boxes.values() for item in box.items]
        for item in items:
            try:
                self._queue.extend(item)
            except VqError:  # it was completed just now, or the queue is closed
                continue

    def _box_key(self, item: LocalItem) -> object:
        """Return what names the box of a message; itself: it has one of its own."""
        found = item.key if self._by_key else None
        return item if found is None else found

    def _add(self, item: LocalItem) -> None:
        try:
            key = self._box_key(item)
        except VqError:  # its key cannot be parsed; its handling tells it
            key = item
        with self._lock:
            self._held += 1
            self._held_bytes += len(item.content)
            box = self._boxes.get(key)
            if box is not None:
                box.items.append(item)
                self._stalled += box.state in _STALLED
                return
            box = self._boxes[key] = _Box(key)
            box.items.append(item)
            pause_s = self._pause_after_crashes(item)
            if key in self._paused_keys:
                self._move(box, BoxState.PAUSED)
            elif pause_s:
                self._try_later(box, pause_s)
                self._changed.notify()
            else:
                self._enqueue(box)

    def _pause_after_crashes(self, item: LocalItem) -> float:
        """Return how long a message waits that was in hand at crashes and has kept its place.

        So the boxes of others come first, if it ends the process again.
        """
        config = self._queue.config
        is_tired = self._by_key and item.lane != LATER and item.attempts - 1 > config.retries
        return config.retry_s if is_tired else 0.0

    def _move(self, box: _Box, state: BoxState) -> None:
        """Give a box its next state."""
        before, box.state = box.state, state
        change = (state in _STALLED) - (before in _STALLED)
        if change:
            was_full = self._is_full
            self._stalled += change * len(box.items)
            if was_full and not self._is_full:
                self._waker.release()

    def _try_later(self, box: _Box, pause_s: float) -> None:
        self._move(box, BoxState.WAITING)
        heapq.heappush(self._retries, (_monotonic() + pause_s, id(box), box))

    def _enqueue(self, box: _Box) -> None:
        self._move(box, BoxState.QUEUED)
        self._queued.append(box)
        self._changed.notify()

    # Handling -------------------------------------------------------------------------------------
    def _work(self) -> None:
        while True:
            with self._lock:
                box = self._next_box()
                if box is None:
                    return
                item, tries = box.items[0], box.tries
            try:
                pause_s = self._handle(item, tries)
                tries += 1
            except NotHandled as put_off:
                pause_s = put_off.after_s
            with self._lock:
                self._settle(box, pause_s, tries)

    def _next_box(self) -> _Box | None:
        """Return the next box, which a thread may handle now; None: it is time to end."""
        while not self._closing:
            now = _monotonic()
            while self._retries and self._retries[0][0] <= now:
                box = heapq.heappop(self._retries)[2]
                if box.state is BoxState.WAITING:
                    self._enqueue(box)
            while self._queued and not self._all_paused:
                box = self._queued.popleft()
                if box.state is BoxState.QUEUED:
                    box.state = BoxState.RUNNING
                    return box
            self._changed.wait(self._retries[0][0] - now if self._retries else None)
        return None

    def _handle(self, item: LocalItem, tries: int) -> float | None:
        """Call the handler for a message that failed ``tries`` times in its box.

        Returns:
            The pause before its next try there, in seconds; None: the box is done with it.
        """
        self._queue._core.base.note_given(item, tries, keeps_place=self._by_key)
        try:
            message, attempts = item.message, item.attempts + tries
            if attempts > 1:
                message = tried_again(message, attempts)
            made = self._handler(message)
            again = retry_of(made)
            if again is None:
                self._pass_on(item, made)
        except NotHandled:
            raise
        except BaseException as error:  # also SystemExit: the thread works for other boxes
            again = RETRY
            logger.warning(
                "handler failed, its message is tried again",
                queue=self._queue.name,
                id=item.id,
                error=error,
                exc_info=error,
            )
        config = self._queue.config
        if again is not None and self._by_key:
            pause_s = config.retry_s if tries >= config.retries else 0.0
            return pause_s if again.after_s is None else again.after_s
        try:
            if again is None:
                self._queue.complete(item)
            else:
                self._queue.fail(item, delay_s=again.after_s)
        except VqError:  # another taker has it, or the queue is closed: it is given again
            pass
        return None

    def _pass_on(self, item: LocalItem, made: Any) -> None:
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()  # or Python warns of it
            raise InvalidArgument(f"the handler returned {shown(made)}, not awaited; {_INSTEAD}")
        if self._to is None or made is None:
            return
        some = [made] if isinstance(made, bytes | Message) else made
        if isinstance(some, str) or not isinstance(some, Iterable):
            raise InvalidArgument(
                f"the handler returned {shown(made)}; give bytes, a vq.Message, or several of them"
            )
        for number, each in enumerate(some):
            key = f"{self._queue._core.base.identity}/{item.id}/{number}" if item.id else None
            self._put_on(self._to, each, key)

    def _put_on(self, to: LocalQueue, made: bytes | Message, key: str | None) -> None:
        """Put what a handler made, and wait for room; a close ends the wait."""
        while True:
            began = _monotonic()
            try:
                to.put(made, idempotency_key=key, timeout=_ROOM_S)
                return
            except (BufferFull, TimedOut):
                if _monotonic() - began < _ROOM_S:  # it does not wait for room
                    raise
                if self._closing:
                    raise NotHandled(0.0) from None

    def _settle(self, box: _Box, pause_s: float | None, tries: int) -> None:
        if pause_s is None:
            was_full = self._is_full
            self._held -= 1
            self._held_bytes -= len(box.items.popleft().content)
            box.tries = 0
            if was_full and not self._is_full:
                self._waker.release()
        else:
            box.tries = tries
        if box.state is BoxState.PAUSING:
            self._move(box, BoxState.PAUSED)
        elif pause_s:
            self._try_later(box, pause_s)
            self._changed.notify()
        elif box.items:
            self._enqueue(box)
        if not box.items:
            self._boxes.pop(box.key, None)  # a close that waited long enough has removed it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Nobody may handle such a box now.
_STALLED: Final = (BoxState.WAITING, BoxState.PAUSED)
#: What a pause makes of a box; a paused box stays as it is.
_ON_PAUSE: Final = {
    BoxState.QUEUED: BoxState.PAUSED,
    BoxState.WAITING: BoxState.PAUSED,
    BoxState.RUNNING: BoxState.PAUSING,
}
