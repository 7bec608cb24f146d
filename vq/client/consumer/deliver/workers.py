"""Threads that call listeners: one of them at a partition at a time, or several.

A worker handles one chunk, or messages for some milliseconds, and then the next delivery in line,
so that a partition with a long backlog does not keep the others waiting. Nor does one whose
listener fails: it, or the message alone, leaves the worker and comes back for its next try.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from vq.client.consumer.deliver.delivery import Executor
from vq.client.consumer.deliver.failures import Failed, failed_try
from vq.client.consumer.deliver.hands import Hand, hand_of
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.permit import RECHECK_S
from vq.client.consumer.deliver.sliding import Sliding
from vq.client.consumer.deliver.tries import Retry, retry_of
from vq.log_lines import get_logger
from vq.model import Message

logger = get_logger(__name__)

#: How long a worker is at one partition while others wait in line.
SLICE_S: Final = 0.01

#: Messages whose pause is so long at least, and ends within the other time, come together.
_TOGETHER_FROM_S: Final = 0.05
_TOGETHER_S: Final = 0.005


class OneCall:
    """A listener that is to be called for one message, which is no delivery's.

    Attributes:
        done: What it has returned, or raised.
    """

    is_stopped = False

    def __init__(self, listener: Any, message: Message) -> None:
        self.done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._listener = listener
        self._message = message

    def run(self) -> None:
        """Call it, on a thread."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            result = self._listener(self._message)
        except BaseException as error:  # noqa: BLE001 - the user's code raises anything
            self.done.set_exception(error)
        else:
            self.done.set_result(result)

    def forsake(self) -> None:
        """See ``Delivery.forsake``."""


AnyDelivery = InTurn | Sliding
Listener = Callable[[Any], Any]
"""A plain function of a message, or of a list of them with ``batch_size``."""


class Workers(Executor):
    """The threads of one consumer; they take deliveries in the order in which these became ready.

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
        # Entered as the lock that it is, and not as a condition: where the handler of a signal
        # raises in that, the lock would stay taken.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._ready: deque[AnyDelivery | OneCall] = deque()
        self._later: list[tuple[float, int, AnyDelivery, Message | None]] = []  # a heap by due time
        self._numbers = itertools.count()
        self._at_work: set[AnyDelivery | OneCall] = set()
        self._timed_until = math.inf  # some thread waits until then for what is due
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

    def put(self, delivery: AnyDelivery) -> None:
        """See ``Executor.put``."""
        with self._lock:
            self._ready.append(delivery)
            self._wake.notify()

    async def call(self, listener: Any, message: Message) -> Any:
        """See ``Executor.call``."""
        one = OneCall(listener, message)
        with self._lock:
            self._ready.append(one)
            self._wake.notify()
        return await asyncio.wrap_future(one.done)

    def put_later(
        self, delivery: AnyDelivery, pause_s: float, message: Message | None = None
    ) -> None:
        """Have a partition handled after a pause; with a message of it that is ready then.

        If it was stopped meanwhile, the next owner handles them.
        """
        with self._lock:
            if delivery.is_stopped:  # before ``forget``, which takes this lock, too
                return
            due = time.monotonic() + pause_s
            if pause_s >= _TOGETHER_FROM_S:  # never early; one wake-up for those of a moment
                due = math.ceil(due / _TOGETHER_S) * _TOGETHER_S
            later = due, next(self._numbers), delivery, message
            heapq.heappush(self._later, later)
            if self._later[0] is later and due < self._timed_until:
                self._wake.notify()  # whoever waits looks again for how long

    def end_pauses(self) -> None:
        """See ``Executor.end_pauses``."""
        with self._lock:
            now = time.monotonic()
            self._later = [(min(each[0], now), *each[1:]) for each in self._later]
            heapq.heapify(self._later)
            self._wake.notify()

    def forget(self, delivery: AnyDelivery) -> None:
        """See ``Executor.forget``."""
        with self._lock:
            left = [each for each in self._later if each[2] is not delivery]
            if len(left) < len(self._later):
                self._later = left
                heapq.heapify(self._later)

    def _run(self) -> None:
        while not self._closed and (delivery := self._next()) is not None:
            self._at_work.add(delivery)
            try:
                # An instance check of an ABC is a call.
                if isinstance(delivery, OneCall):
                    self._context.copy().run(delivery.run)
                    continue
                handle = self._handle_some if type(delivery) is Sliding else self._handle
                self._context.copy().run(handle, delivery)  # type: ignore[arg-type]
            except BaseException:  # the others still need the thread
                with contextlib.suppress(BaseException):  # of the application's logging
                    logger.exception("delivery failed, others continue")
            finally:
                self._at_work.discard(delivery)
                delivery = None  # what is stopped is not kept while the thread waits

    def _handle(self, delivery: InTurn) -> None:
        """Handle one chunk, or go on with it after a pause; then get in line again, or leave."""
        if not delivery.enter():
            return
        pause: float | None = None
        try:
            pause = _deliver(delivery, hand_of(delivery))
        except BaseException as error:  # noqa: BLE001 - the thread is for other partitions, too
            delivery.broke(error)
        finally:
            if pause is not None:
                delivery.leave()
                self.put_later(delivery, pause)
            elif delivery.leave_line():
                self.put(delivery)

    def _handle_some(self, delivery: Sliding) -> None:
        """Handle messages while there are any that are ready, or until others have waited."""
        if not delivery.enter_line():
            return
        pause: float | None = None
        try:
            at = self._deliver_lists if delivery.takes_lists else self._pass
            pause = at(delivery, hand_of(delivery))
        except BaseException as error:  # noqa: BLE001 - as above
            delivery.broke(error)
            pause = RECHECK_S
        finally:
            delivery.leave()
            if pause is not None:
                self.put_later(delivery, pause)

    def _pass(self, delivery: Sliding, hand: Hand) -> float | None:
        """Call the listener for what is ready; return a pause before coming back, None: need not.

        Other threads do the same with the same two queues, whose ends are theirs one at a time.
        """
        now = delivery.permit.now
        ready, done, waiting = delivery.ready, delivery.done, delivery.waiting
        message = result = None
        until = -math.inf
        slice_end = now() + SLICE_S
        try:
            while delivery.more():
                listener = delivery.listener
                if delivery.needs_help():
                    self.put(delivery)
                while ready:
                    if now() >= until:
                        if not delivery.may_go_on():
                            return RECHECK_S
                        if now() >= slice_end:
                            if self._ready:
                                return 0.0
                            slice_end = now() + SLICE_S
                        until = min(delivery.until, slice_end)
                    try:
                        message = hand.messages = ready.popleft()
                    except IndexError:
                        break
                    try:
                        result = listener(message)
                    except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                        if hand.taken is None or hand.is_failed(error):
                            self._try_later(delivery, [message], error)
                            continue
                        result = None
                    if hand.taken is not None:
                        refused, result = hand.put_down(), None
                        if refused is not None:
                            self._try_later(delivery, [message], refused)
                            continue
                    if result is not None and (retry := retry_of(result)) is not None:
                        self._try_later(delivery, [message], retry)
                        continue
                    done.append(message)
                    if waiting and message.key in waiting and delivery.settle():
                        self.put(delivery)
        finally:
            hand.messages = ()
            message = result = None  # an error that is kept refers to this call
        return None

    def _deliver_lists(self, delivery: Sliding, hand: Hand) -> float | None:
        """Do what ``_pass`` does, with lists."""
        messages: list[Message] = []
        result = None
        slice_end = delivery.permit.now() + SLICE_S
        try:
            while delivery.more():
                if not delivery.may_go_on():
                    return RECHECK_S
                if self._ready and delivery.permit.now() >= slice_end:
                    return 0.0
                messages, pause_s = delivery.take()
                if pause_s:
                    return pause_s
                if not messages:
                    continue
                if delivery.ready and delivery.needs_help(1):
                    self.put(delivery)
                hand.messages = messages
                try:
                    result = delivery.listener(messages.copy())  # it may change its own
                except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                    if hand.taken is None or hand.is_failed(error):
                        self._try_later(delivery, messages, error)
                        continue
                    result = None
                if hand.taken is not None:
                    refused, result = hand.put_down(), None
                    if refused is not None:
                        self._try_later(delivery, messages, refused)
                        continue
                if result is not None and (retry := retry_of(result)) is not None:
                    self._try_later(delivery, messages, retry)
                else:
                    delivery.done.extend(messages)
        finally:
            hand.messages = ()
            messages, result = [], None  # as in ``_pass``
        return None

    def _try_later(
        self, delivery: Sliding, messages: list[Message], result: BaseException | Retry
    ) -> None:
        for message, pause_s in delivery.failed(messages, result):
            self.put_later(delivery, pause_s, message)

    def _next(self) -> AnyDelivery | OneCall | None:
        """Wait for the next delivery in line and return it; None once the threads are to end."""
        with self._lock:
            while not self._closed:
                until_due_s = self._until_due()
                if self._ready:
                    delivery = self._ready.popleft()
                    # Another thread takes what is ready or due, meanwhile.
                    if self._ready or (self._later and self._timed_until == math.inf):
                        self._wake.notify()
                    return delivery
                self._wait(until_due_s)
        return None

    def _wait(self, until_due_s: float | None) -> None:
        """Wait until woken; one thread alone waits for what is due first. Under the lock."""
        due = self._later[0][0] if self._later else math.inf
        if due >= self._timed_until:
            self._wake.wait()
            return
        self._timed_until = due
        try:
            self._wake.wait(until_due_s)
        finally:
            if self._timed_until == due:
                self._timed_until = math.inf

    def _until_due(self) -> float | None:
        """Make ready what is due; return the seconds until something will be. Under the lock."""
        while self._later:
            left = self._later[0][0] - time.monotonic()
            if left > 0:
                return left
            _, _, delivery, message = heapq.heappop(self._later)
            if message is None or not isinstance(delivery, Sliding) or delivery.again(message):
                self._ready.append(delivery)
        return None

    def forsake(self, _: str) -> None:
        """In the child of a fork, by a listener perhaps: its thread ends when that returns."""
        # A thread that stayed behind may have the old one.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closed = True
        for delivery in list(self._at_work):
            delivery.forsake()

    def close(self, timeout_s: float) -> bool:
        """Stop the threads; False when one of them is still inside a listener after the time."""
        with self._lock:
            self._closed = True
            self._wake.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _deliver(delivery: InTurn, hand: Hand) -> float | None:
    """Handle what is left of the chunk at hand; return a pause in seconds before going on."""
    while delivery.may_go_on():
        if not delivery.more():
            return None
        failed = _call_listener(delivery, hand)
        if failed is None:
            delivery.handled()
        else:
            pause = delivery.failed(failed)
            if pause is not None:
                return pause
    delivery.put_back()
    return RECHECK_S


def _call_listener(delivery: InTurn, hand: Hand) -> Failed | None:
    """Call the listener for the messages left, until it fails; return for which and how.

    For which: its offset. What is raised refers to the functions that called this one, so that a
    message in a variable of theirs would be kept with it.
    """
    listener, window, now = delivery.listener, delivery.window, delivery.permit.now
    all_done = False
    try:
        again = delivery.error is not None
        for message in delivery.turn_again() if again else window.turn(delivery.room):
            if now() >= delivery.until and not delivery.may_go_on():
                return None
            try:
                result = listener(message)
            except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                if hand.taken is None or hand.is_failed(error):
                    return failed_try(message, error)
                continue
            if hand.taken is not None:
                refused = hand.put_down()
                if refused is not None:
                    return failed_try(message, refused)
                continue
            if result is not None and (retry := retry_of(result)) is not None:
                return failed_try(message, retry)
        all_done = True
    finally:
        window.end_turn(is_finished=all_done)
    return None
