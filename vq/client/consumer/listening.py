"""Coroutines called once per message: the asyncio twin of threads that call listeners.

Loop-bound. A partition with messages has one task, which takes them from its ``InboxDelivery`` and
awaits the listener for each, in order. A message counts as consumed when the listener returns.
A library may cancel that task: it ends, and after a pause another one goes on with the partition.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from vq.client.config import ConsumerConfig
from vq.client.consumer.delivery import Failures
from vq.client.consumer.inbox import InboxDelivery
from vq.client.consumer.permit import RECHECK_S, Permit
from vq.client.kinds import check_whole
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import Message
from vq.shown import shown
from vq.tasks import begin_task

logger = get_logger(__name__)
#: The most listeners of one topic that run at a time.
CONCURRENCY_MAX: Final = 1_000

AsyncListener = Callable[[Message], Awaitable[Any]]
"""A coroutine function of a message."""


@dataclass(frozen=True, slots=True)
class _Listener:
    """The listener of one topic.

    Attributes:
        call: The application's.
        slots: So many of them run at a time.
    """

    call: AsyncListener
    slots: asyncio.Semaphore


@dataclass(slots=True)
class _Turn:
    """A partition that has messages for its listener.

    Attributes:
        delivery: Of its messages.
        listener: For them.
        failures: So far.
        pause_s: Before the message at hand is tried again.
    """

    delivery: InboxDelivery
    listener: _Listener
    failures: Failures
    pause_s: float = 0.0


class Listening:
    """The listeners of one consumer; the place of an ``Inbox`` for their deliveries.

    Args:
        permit: To deliver.
        config: Of the consumer.
        context: They run in copies of it, as everything that the factory calls by itself.
    """

    def __init__(
        self, permit: Permit, config: ConsumerConfig, context: contextvars.Context
    ) -> None:
        self._context = context
        self._permit = permit
        self._config = config
        self._listeners: dict[str, _Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_hand: set[InboxDelivery] = set()  # a listener is at a message of it
        self._is_closing = False

    def __contains__(self, topic: object) -> bool:
        """Whether a topic has a listener."""
        return topic in self._listeners

    def __bool__(self) -> bool:
        """Whether any topic has one."""
        return bool(self._listeners)

    def add(self, topic: str, listener: AsyncListener, concurrency: int) -> None:
        """Have the messages of a topic given to a listener."""
        self._listeners[topic] = _Listener(listener, asyncio.Semaphore(concurrency))

    def put(self, delivery: InboxDelivery) -> None:
        """A partition has something to deliver, and no task."""
        listener = self._listeners[delivery.partition.topic]
        self._begin(_Turn(delivery, listener, Failures(delivery.partition, self._config)))

    def _begin(self, turn: _Turn) -> None:
        if self._is_closing:
            return
        task = begin_task(self._serve(turn), self._context)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, turn))

    def _ended(self, turn: _Turn, task: asyncio.Task[None]) -> None:
        """Have another task go on after one that somebody else cancelled.

        It begins by a timer: a loop that ends cancels all tasks, and runs no timer any more.
        """
        self._tasks.discard(task)
        if task.cancelled() and not self._is_closing:
            pause_s = max(turn.pause_s, RECHECK_S)
            task.get_loop().call_later(pause_s, self._begin, turn)

    def keeps(self, delivery: InboxDelivery) -> bool:
        """Whether a listener is at a message of ``delivery``, which is to stop."""
        return delivery in self._in_hand

    async def close(self) -> None:
        """Cancel what still runs, after the consumer has waited for it and left the group."""
        self._is_closing = True
        for delivery in self._in_hand:
            logger.warning(
                "listener is cancelled, its message will be delivered again",
                partition=delivery.partition,
            )
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if a listener calls this: it would wait for itself."""
        if asyncio.current_task() in self._tasks:
            raise InvalidState(
                "closing a consumer inside its own listener would wait for itself; close it in "
                "another task"
            )

    async def _serve(self, turn: _Turn) -> None:
        """Deliver what has come for a partition, a chunk at a time; others go on between them."""
        while True:
            pause: float | None = 0.0
            async with turn.listener.slots:
                try:
                    pause = await self._deliver(turn)
                except Exception:  # of the application's logging, or of vq
                    with contextlib.suppress(Exception):
                        logger.exception("delivery failed, trying again")
                    pause = RECHECK_S
            if pause is None and not turn.delivery.has_more:
                return
            await asyncio.sleep(pause or 0.0)

    async def _deliver(self, turn: _Turn) -> float | None:
        """Handle the chunk at hand; return a pause before going on, None: it is done."""
        while True:
            if not self._permit.holds:  # another member may own these messages by now
                return RECHECK_S
            message = turn.delivery.take()
            if message is None:
                return None
            pause = await self._handle(turn, message)
            if pause is not None:
                return pause

    async def _handle(self, turn: _Turn, message: Message) -> float | None:
        """Await the listener for a message; return the pause before it is tried again, or None.

        A cancellation by others than ``close`` is a failed try, and ends the task.
        """
        delivery, failures = turn.delivery, turn.failures
        self._in_hand.add(delivery)
        settled, cancelled = False, None
        try:
            try:
                await turn.listener.call(message)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    if self._is_closing:
                        raise
                    cancelled = error
                failed, pause = failures.failed(message.offset, error, delivery.error)
            else:
                failures.over()
                pause = None
            turn.pause_s = pause or 0.0
            settled = True
            self._in_hand.discard(delivery)
            if pause is None:
                delivery.finished(message)
            else:
                delivery.failed(message, failed)
        finally:
            if not settled:
                self._in_hand.discard(delivery)
                delivery.put_back([message])
        if cancelled is not None:
            raise cancelled
        return pause


_CANCEL_S: Final = 5.0


def _is_cancelled() -> bool:
    """Whether somebody cancels the present task; a listener may raise the same error by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def check_listener(listener: object, concurrency: object) -> None:
    """Check what an application gives to be called for each message.

    Raises:
        InvalidArgument: It is no coroutine function, or the number is out of range.
    """
    call = getattr(listener, "__call__", None)  # noqa: B004 - of an object that is called
    if not inspect.iscoroutinefunction(listener) and not inspect.iscoroutinefunction(call):
        raise InvalidArgument(
            f"listener {shown(listener)} is no coroutine function; give an `async def` of the "
            "message: a plain function would hold the event loop"
        )
    check_whole("concurrency", concurrency)
    assert isinstance(concurrency, int)
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidArgument(f"concurrency {concurrency} is outside [1, {CONCURRENCY_MAX}]")
