"""Coroutines called for messages: the asyncio twin of threads that call listeners.

Loop-bound. A partition with messages has one task, which awaits the listener for each of them, in
order; or it has several of them. A message counts as consumed when the listener returns.
A library may cancel such a task: it ends, and after a pause another one goes on.
"""

import asyncio
import contextlib
import contextvars
import inspect
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from vq.client.consumer.deliver.delivery import Executor
from vq.client.consumer.deliver.failures import Failed, failed_try
from vq.client.consumer.deliver.hands import Hand, hand_of
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.permit import RECHECK_S
from vq.client.consumer.deliver.sliding import Sliding
from vq.client.consumer.deliver.tries import Retry, retry_of
from vq.client.consumer.deliver.workers import SLICE_S, AnyDelivery
from vq.client.kinds import check_takes_message
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import Message
from vq.shown import shown
from vq.tasks import begin_task, cancellation_of

logger = get_logger(__name__)

AsyncListener = Callable[[Any], Awaitable[Any]]
"""A coroutine function of a message, or of a list of them with ``batch_size``."""


class _Pause(NamedTuple):
    """What a partition waits for, and what is called then."""

    delivery: AnyDelivery
    timer: asyncio.TimerHandle
    call: Callable[[], object]


class Listening(Executor):
    """The listeners of one consumer.

    Args:
        count: So many of them run at a time.
        context: They run in copies of it, as everything that the factory calls by itself.
    """

    def __init__(self, count: int, context: contextvars.Context) -> None:
        self._slots = asyncio.Semaphore(count)
        self._context = context
        self._tasks: dict[asyncio.Task[None], AnyDelivery] = {}
        self._pauses: dict[int, _Pause] = {}
        self._numbers = itertools.count()
        self._is_closing = False

    def put(self, delivery: AnyDelivery) -> None:
        """See ``Executor.put``; on the loop."""
        if self._is_closing:
            return
        if isinstance(delivery, Sliding):
            task = begin_task(self._serve_some(delivery), self._context)
        else:
            task = begin_task(self._serve(delivery), self._context)
        self._tasks[task] = delivery
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Have another task go on after one that somebody else cancelled.

        It begins by a timer: a loop that ends cancels all tasks, and runs no timer any more.
        """
        delivery = self._tasks.pop(task)
        if task.cancelled() and not self._is_closing and not delivery.is_stopped:
            pause_s = delivery.pause_s if isinstance(delivery, InTurn) else 0.0
            self._after(delivery, max(pause_s, RECHECK_S), lambda: self.put(delivery))

    def _after(self, delivery: AnyDelivery, pause_s: float, call: Callable[[], object]) -> None:
        """Call something for a partition after a pause, or when the pauses are ended."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        if delivery.is_stopped:  # there is nothing to wait for
            pause_s = 0.0
        timer = loop.call_later(pause_s, self._is_over, number)
        self._pauses[number] = _Pause(delivery, timer, call)

    def _is_over(self, number: int) -> None:
        self._pauses.pop(number).call()

    def forget(self, delivery: AnyDelivery) -> None:
        """See ``Executor.forget``; what waits goes on at once, and finds that it was stopped."""
        for number in [of for of, each in self._pauses.items() if each.delivery is delivery]:
            self._pauses[number].timer.cancel()
            self._is_over(number)

    def end_pauses(self) -> None:
        """See ``Executor.end_pauses``."""
        for number, pause in list(self._pauses.items()):
            pause.timer.cancel()
            self._is_over(number)

    async def close(self) -> None:
        """Cancel what still runs, after the consumer has waited for it and left the group."""
        self._is_closing = True
        for pause in self._pauses.values():
            pause.timer.cancel()
        self._pauses.clear()
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

    async def _serve(self, delivery: InTurn) -> None:
        """Deliver what has come for a partition, a chunk at a time; others go on between them."""
        hand = hand_of(delivery)
        while True:
            pause: float | None = 0.0
            async with self._slots:
                try:
                    pause = await self._deliver(delivery, hand)
                except Exception:  # of the application's logging, or of vq
                    with contextlib.suppress(Exception):
                        logger.exception("delivery failed, trying again")
                    pause = RECHECK_S
            if pause is None and not delivery.has_more():
                return
            if not pause:
                await asyncio.sleep(0.0)
                continue
            over = asyncio.Event()
            self._after(delivery, pause, over.set)
            await over.wait()

    async def _deliver(self, delivery: InTurn, hand: Hand) -> float | None:
        """Handle the chunk at hand; return a pause before going on, None: it is done.

        A cancellation by others than ``close`` is a failed try, and ends the task.
        """
        while delivery.may_go_on():
            if not delivery.more() or not delivery.enter():
                return None
            try:
                failed = await _call_listener(delivery, hand)
                if failed is None:
                    delivery.handled()
                    continue
                cancelled = cancellation_of(failed.error)
                if cancelled is not None and self._is_closing:
                    raise cancelled
                pause = delivery.failed(failed)
                if cancelled is not None:
                    raise cancelled
            finally:
                delivery.leave()
            if pause is not None:
                return pause
        delivery.put_back()
        return None if delivery.is_stopped else RECHECK_S

    async def _serve_some(self, delivery: Sliding) -> None:
        """Handle messages of a partition that may have several in hand; others go on between."""
        pause: float | None = None
        async with self._slots:
            if not delivery.enter_line():
                return
            try:
                at = self._deliver_lists if delivery.takes_lists else self._pass
                pause = await at(delivery, hand_of(delivery))
            except Exception as error:  # noqa: BLE001 - of the application's logging, or of vq
                with contextlib.suppress(Exception):
                    delivery.broke(error)
                pause = RECHECK_S
            finally:
                delivery.leave()
        if pause is not None and not delivery.is_stopped:
            self._after(delivery, pause, lambda: self.put(delivery))

    async def _pass(self, delivery: Sliding, hand: Hand) -> float | None:
        """Do what its namesake in ``workers`` does, with a coroutine function."""
        now = delivery.permit.now
        ready, done, waiting = delivery.ready, delivery.done, delivery.waiting
        slice_end = now() + SLICE_S
        while delivery.more():
            call = delivery.listener
            if delivery.needs_help():
                self.put(delivery)
            while ready:
                if now() >= delivery.until and not delivery.may_go_on():
                    return RECHECK_S
                if now() >= slice_end:
                    return 0.0
                message = hand.messages = ready.popleft()
                try:
                    result = await call(message)
                except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                    self._failed(delivery, hand, [message], error)
                    continue
                if hand.taken is not None:
                    self._put_down(delivery, hand, [message])
                    continue
                if result is not None and (retry := retry_of(result)) is not None:
                    self._try_later(delivery, [message], retry)
                    continue
                done.append(message)
                if waiting and message.key in waiting and delivery.settle():
                    self.put(delivery)
        return None

    async def _deliver_lists(self, delivery: Sliding, hand: Hand) -> float | None:
        """Do what ``_pass`` does, with lists."""
        slice_end = delivery.permit.now() + SLICE_S
        while delivery.more():
            if not delivery.may_go_on():
                return RECHECK_S
            if delivery.permit.now() >= slice_end:
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
                result = await delivery.listener(messages.copy())  # it may change its own
            except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                self._failed(delivery, hand, messages, error)
                continue
            if hand.taken is not None:
                self._put_down(delivery, hand, messages)
                continue
            if result is not None and (retry := retry_of(result)) is not None:
                self._try_later(delivery, messages, retry)
            else:
                delivery.done.extend(messages)
        return None

    def _failed(
        self, delivery: Sliding, hand: Hand, messages: list[Message], error: BaseException
    ) -> None:
        """The listener has raised; that is nothing if a transaction has finished its messages."""
        if hand.taken is None or hand.is_failed(error):
            self._try_later(delivery, messages, error)
            return
        delivery.done.extend(messages)
        if (cancelled := cancellation_of(error)) is not None:
            raise cancelled

    def _put_down(self, delivery: Sliding, hand: Hand, messages: list[Message]) -> None:
        """The listener has returned, and a transaction was to finish its messages."""
        refused = hand.put_down()
        if refused is None:
            delivery.done.extend(messages)
        else:
            self._try_later(delivery, messages, refused)

    def _try_later(
        self, delivery: Sliding, messages: list[Message], result: BaseException | Retry
    ) -> None:
        """Have messages tried again; a cancellation by others than ``close`` ends the task, too."""
        cancelled = cancellation_of(result)
        if cancelled is not None and self._is_closing:
            raise cancelled
        for message, pause_s in delivery.failed(messages, result):
            self._after(delivery, pause_s, partial(self._again, delivery, message))
        if cancelled is not None:
            raise cancelled

    def _again(self, delivery: Sliding, message: Message) -> None:
        if delivery.again(message):
            self.put(delivery)


async def _call_listener(delivery: InTurn, hand: Hand) -> Failed | None:
    """Do what its namesake in ``workers`` does, with a coroutine function."""
    call, window, now = delivery.listener, delivery.window, delivery.permit.now
    all_done = False
    try:
        again = delivery.error is not None
        for message in delivery.turn_again() if again else window.turn(delivery.room):
            if now() >= delivery.until and not delivery.may_go_on():
                return None
            try:
                result = await call(message)
            except BaseException as error:  # noqa: BLE001 - the user's code raises anything
                if hand.taken is None or hand.is_failed(error):
                    return failed_try(message, error)
                if (cancelled := cancellation_of(error)) is not None:
                    raise cancelled from None
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


_CANCEL_S: Final = 5.0


def check_listener(listener: AsyncListener) -> None:
    """Check what an application gives to be called for the messages of a topic.

    Raises:
        InvalidArgument: It is no coroutine function, or does not take one argument.
    """
    call = getattr(listener, "__call__", None)  # noqa: B004 - of an object that is called
    if not inspect.iscoroutinefunction(listener) and not inspect.iscoroutinefunction(call):
        raise InvalidArgument(
            f"listener {shown(listener)} is no coroutine function; give an `async def` of the "
            "message: a plain function would hold the event loop"
        )
    check_takes_message("listener", listener)
