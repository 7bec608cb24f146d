"""Threads that call listeners: a partition's messages in order, by one of them at a time.

A worker handles one chunk and then the next delivery in line, so that a partition with a long
backlog does not keep the others waiting. Nor does one whose listener raises: it leaves the worker
and comes back for its next try.
"""

import contextlib
import contextvars
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from vq.client.consumer.deliver.delivery import Delivery, Executor
from vq.client.consumer.deliver.permit import RECHECK_S
from vq.log_lines import get_logger
from vq.model import Message

logger = get_logger(__name__)

Listener = Callable[[Message], Any]


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
        self._wake = threading.Condition(threading.Lock())
        self._ready: deque[Delivery] = deque()
        self._later: list[tuple[float, int, Delivery]] = []  # a heap by due time
        self._numbers = itertools.count()
        self._at_work: set[Delivery] = set()
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

    def put(self, delivery: Delivery) -> None:
        """See ``Executor.put``."""
        with self._wake:
            self._ready.append(delivery)
            self._wake.notify()

    def put_later(self, delivery: Delivery, pause_s: float) -> None:
        """Have a partition handled after a pause."""
        with self._wake:
            due = time.monotonic() + pause_s
            heapq.heappush(self._later, (due, next(self._numbers), delivery))
            self._wake.notify()  # whoever waits looks again for how long

    def _run(self) -> None:
        while not self._closed and (delivery := self._next()) is not None:
            self._at_work.add(delivery)
            try:
                self._context.copy().run(self._handle, delivery)
            except BaseException:  # the others still need the thread
                with contextlib.suppress(BaseException):  # of the application's logging
                    logger.exception("delivery failed, others continue")
            finally:
                self._at_work.discard(delivery)

    def _handle(self, delivery: Delivery) -> None:
        """Handle one chunk, or go on with it after a pause; then get in line again, or leave."""
        if not delivery.enter():
            return
        pause: float | None = None
        try:
            pause = _deliver(delivery)
        except BaseException as error:  # noqa: BLE001 - the thread is for other partitions, too
            delivery.broke(error)
        finally:
            delivery.leave()
            if pause is not None and not delivery.is_stopped:
                self.put_later(delivery, pause)
            elif delivery.has_more():
                self.put(delivery)

    def _next(self) -> Delivery | None:
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


def _deliver(delivery: Delivery) -> float | None:
    """Handle what is left of the chunk at hand; return a pause in seconds before going on."""
    while delivery.may_go_on():
        if not delivery.more():
            return None
        failure = _call_listener(delivery)
        if failure is None:
            delivery.handled()
        else:
            pause = delivery.failed(*failure)
            if pause is not None:
                return pause
    delivery.put_back()
    return RECHECK_S


def _call_listener(delivery: Delivery) -> tuple[int, BaseException] | None:
    """Call the listener for the messages left, until it raises; return for which and what.

    For which: its offset. What is raised refers to the functions that called this one, so that a
    message in a variable of theirs would be kept with it.

    After an error one message is enough: that it goes on is told soon.
    """
    listener, window, now = delivery.listener, delivery.window, delivery.permit.now
    all_done = False
    try:
        for message in window.turn(None if delivery.error is None else 1):
            if now() >= delivery.until and not delivery.may_go_on():
                return None
            try:
                listener(message)
            except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                return message.offset, error
        all_done = True
    finally:
        window.end_turn(is_finished=all_done)
    return None
