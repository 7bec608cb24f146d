"""Coroutines called once per message: the asyncio twin of threads that call listeners.

Loop-bound. A partition with messages has one task, which awaits the listener for each of them, in
order. A message counts as consumed when the listener returns.
A library may cancel that task: it ends, and after a pause another one goes on with the partition.
"""

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from vq.client.consumer.deliver.delivery import Delivery, Executor
from vq.client.consumer.deliver.permit import RECHECK_S
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
class TopicListener:
    """The listener of one topic.

    Attributes:
        call: The application's.
        slots: So many of them run at a time.
    """

    call: AsyncListener
    slots: asyncio.Semaphore


class Listening(Executor):
    """The listeners of one consumer.

    Args:
        context: They run in copies of it, as everything that the factory calls by itself.
    """

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._tasks: dict[asyncio.Task[None], Delivery] = {}
        self._is_closing = False

    def put(self, delivery: Delivery) -> None:
        """See ``Executor.put``; on the loop."""
        if self._is_closing:
            return
        task = begin_task(self._serve(delivery), self._context)
        self._tasks[task] = delivery
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Have another task go on after one that somebody else cancelled.

        It begins by a timer: a loop that ends cancels all tasks, and runs no timer any more.
        """
        delivery = self._tasks.pop(task)
        if task.cancelled() and not self._is_closing:
            task.get_loop().call_later(max(delivery.pause_s, RECHECK_S), self.put, delivery)

    async def close(self) -> None:
        """Cancel what still runs, after the consumer has waited for it and left the group."""
        self._is_closing = True
        for delivery in self._tasks.values():
            if delivery.is_entered:
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

    async def _serve(self, delivery: Delivery) -> None:
        """Deliver what has come for a partition, a chunk at a time; others go on between them."""
        while True:
            pause: float | None = 0.0
            async with delivery.listener.slots:
                try:
                    pause = await self._deliver(delivery)
                except Exception:  # of the application's logging, or of vq
                    with contextlib.suppress(Exception):
                        logger.exception("delivery failed, trying again")
                    pause = RECHECK_S
            if pause is None and not delivery.has_more():
                return
            await asyncio.sleep(pause or 0.0)

    async def _deliver(self, delivery: Delivery) -> float | None:
        """Handle the chunk at hand; return a pause before going on, None: it is done.

        A cancellation by others than ``close`` is a failed try, and ends the task.
        """
        while delivery.may_go_on():
            if not delivery.more() or not delivery.enter():
                return None
            try:
                failure = await _call_listener(delivery)
                if failure is None:
                    delivery.handled()
                    continue
                error = failure[1]
                is_cancelled = isinstance(error, asyncio.CancelledError) and _is_cancelled()
                if is_cancelled and self._is_closing:
                    raise error
                pause = delivery.failed(*failure)
                if is_cancelled:
                    raise error
            finally:
                delivery.leave()
            if pause is not None:
                return pause
        delivery.put_back()
        return None if delivery.is_stopped else RECHECK_S


async def _call_listener(delivery: Delivery) -> tuple[int, BaseException] | None:
    """Do what its namesake in ``workers`` does, with a coroutine function."""
    call, window, now = delivery.listener.call, delivery.window, delivery.permit.now
    all_done = False
    try:
        for message in window.turn(None if delivery.error is None else 1):
            if now() >= delivery.until and not delivery.may_go_on():
                return None
            try:
                await call(message)
            except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                return message.offset, error
        all_done = True
    finally:
        window.end_turn(is_finished=all_done)
    return None


_CANCEL_S: Final = 5.0


def _is_cancelled() -> bool:
    """Whether somebody cancels the present task; a listener may raise the same error by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def listener_of(listener: AsyncListener, concurrency: int) -> TopicListener:
    """Return what an application gives to be called for each message of a topic, checked.

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
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidArgument(f"concurrency {concurrency} is outside [1, {CONCURRENCY_MAX}]")
    return TopicListener(listener, asyncio.Semaphore(concurrency))
