"""Messages for those that ask: ``async for`` and ``get_many``.

Loop-bound. A message counts as consumed when the task asks for the next one, or when the consumer
is closed. The end of an iteration, by ``break``, by an error or by a cancellation, consumes
nothing: the inbox cannot tell them apart. A message belongs to the task that asked for it.
"""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from vq.client.consumer.deliver.asking import Asking
from vq.client.consumer.deliver.delivery import Executor
from vq.client.consumer.deliver.hands import Finisher
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.permit import RECHECK_S, Permit
from vq.client.consumer.deliver.progress import Window
from vq.client.loop_calls import call_soon
from vq.errors import InvalidState, VqError
from vq.log_lines import get_logger
from vq.model import Message
from vq.shown import shown_raised

if sys.version_info >= (3, 12):
    _task_of = asyncio.current_task
else:  # there it is not in C: a tenth of what a message costs
    _task_of = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]
logger = get_logger(__name__)
_LEFT = "its loop was left before the next one was asked for"
_NOTHING: Final = Window(0)


class Inbox(Executor):
    """The messages that have arrived for one consumer, in turns from its partitions.

    Attributes:
        permit: To hand them out.
        at_hand: The messages behind the one in hand, of the same partition and step. Who takes the
            next one of ``left`` has handled the one before. It may be any thread that takes the
            next one of ``lists_left``.
    """

    def __init__(self, permit: Permit) -> None:
        self.permit: Final = permit
        self.at_hand = _NOTHING
        self._ready: deque[InTurn] = deque()
        self._arrived = asyncio.Event()
        # In hand: a message of one partition; or after ``next_many`` so many of each.
        self._current: InTurn | None = None
        self._many: dict[InTurn, int] = {}
        self._reader: weakref.ref[Messages] | None = None  # the iterator that asked last,
        self._task: asyncio.Task[Any] | None = None  # and its task
        self._is_waiting = False  # that task waits for a message
        self._has_warned = False
        self._taken: Finisher | None = None  # finishes what is in hand
        self._closed = False
        self._error: VqError | None = None  # why no message follows

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def put(self, delivery: InTurn) -> None:
        """See ``Executor.put``; on the loop."""
        self._ready.append(delivery)
        self._arrived.set()

    def fail(self, error: VqError) -> None:
        """End the iteration with an error: no message follows."""
        self._error = error
        self._arrived.set()

    def abandon_in_child(self, why: str) -> None:
        """Give nothing in the child of a fork, where every message is the parent's."""
        self._current, self._many, self.at_hand = None, {}, _NOTHING
        self._error = InvalidState(why)

    def close(self, *, consumed: bool = True) -> None:
        """End the iteration; the message in hand counts as ``consumed`` or is delivered again.

        A message of another task stays with it, and counts when that task asks for the next one.
        The message of a task that failed is delivered again.
        """
        failure = self._failure()
        if failure:
            self._give_back(failure)
        elif not consumed:
            self._let_go(consumed=False)
        elif not self._is_of_another(asyncio.current_task()):
            self._let_go(consumed=True)
        self._closed = True
        self.at_hand = _NOTHING
        self._arrived.set()

    def enter(self, reader: "Messages", task: asyncio.Task[Any] | None) -> None:
        """Let ``reader`` ask from now on, in ``task``; the caller calls ``next`` at once.

        The message of a task that failed is delivered again. The message of a loop that was left is
        consumed, since the next one is asked for.

        Raises:
            InvalidState: Another task is inside its loop; its message would count as consumed now.
        """
        other = self._present_reader()
        if other is not None and self._is_of_another(task):
            raise InvalidState(
                f"another task iterates over this consumer: {_name(self._task)} has a message or "
                f"waits for one, and {_name(task)} asks for the next; hand the messages of one "
                "iteration to several tasks, or make several consumers (to bound a wait, use "
                "asyncio.timeout: before Python 3.12 asyncio.wait_for makes a task of its own)"
            )
        failure = self._failure()
        if failure:
            self._give_back(failure)
        if other is not reader:
            if self._in_hand():
                self._warn(self._in_hand()[0])
            if other is not None:
                other.task = None
            loop = asyncio.get_running_loop()
            # In any thread: the garbage collector runs on whichever it likes.
            self._reader = weakref.ref(reader, lambda ref: call_soon(loop, self.left, ref))
        self._task = reader.task = task

    def _warn(self, delivery: InTurn) -> None:
        """Say once that a message counts that a loop was left with: its handler may have failed."""
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "a new loop counts the message of the loop before as handled",
            partition=delivery.partition,
            offset=_first(delivery).offset,
            hint="if its handler failed, the group passes it by: catch errors inside the loop, or "
            "subscribe with a listener, which has such a message again",
        )

    def left(self, reader: "weakref.ref[Messages]") -> None:
        """Give the message of an iteration that is over back, if its partition is to stop."""
        waited_for = any(delivery.is_stopping for delivery in self._in_hand())
        if waited_for and reader == self._reader:
            self._give_back(self._failure() or _LEFT)

    def is_waited_for(self, _: InTurn) -> None:
        """See ``Executor``: a message that no task handles any more is given back."""
        failure = self._failure()
        if not failure and self._reader is not None and self._present_reader() is None:
            failure = _LEFT
        if failure:
            self._give_back(failure)

    def put_back(self, why: str) -> None:
        """Have what is in hand delivered again."""
        self._give_back(why)

    def take(self) -> list[tuple[InTurn, list[Message]]]:
        """Return what is in hand, for a transaction; see ``taken_by``."""
        current, self._current, self.at_hand = self._current, None, _NOTHING
        if current is not None:  # from now on as after ``next_many``
            count = current.window.in_hand
            current.window.end_turn(is_finished=False)
            self._many = {current: count}
        return [
            (each, list(each.window.messages[each.window.finished :][:count]))
            for each, count in self._many.items()
        ]

    def taken_by(self, taken: Finisher) -> None:
        """Have a transaction finish what is in hand: until ``give_back`` nobody gets the next."""
        self._taken = taken

    @property
    def taken(self) -> Finisher | None:
        """What is to finish what is in hand; None: the next call does."""
        return self._taken

    def give_back(self, taken: Finisher, *, finished: bool) -> None:
        """A transaction has ended: what it had is finished, or is delivered again."""
        if self._taken is taken:
            self._taken = None
            self._let_go(consumed=finished)

    @property
    def has_in_hand(self) -> bool:
        """Whether the last message, or those of the last call, are in hand still."""
        return bool(self._in_hand())

    def _in_hand(self) -> list[InTurn]:
        return list(self._many) if self._current is None else [self._current]

    def _present_reader(self) -> "Messages | None":
        reader = None if self._reader is None else self._reader()
        return None if reader is None or reader.ended else reader

    def _failure(self) -> str:
        """Return how the task of the message in hand failed; "": it did not."""
        task = self._task
        if task is None or not task.done() or not self._in_hand():
            return ""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        return "" if error is None else f"its task failed: {shown_raised(error)}"

    def _is_of_another(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a living task other than ``task`` has the message in hand, or waits for one.

        The task may have left its loop, or called ``anext`` once, and handle the message still.
        """
        owner = self._task
        if owner is None or owner is task or owner.done():
            return False
        return self._is_waiting or bool(self._in_hand())

    def _give_back(self, why: str) -> None:
        for delivery in self._in_hand():
            logger.warning(
                "message will be delivered again",
                partition=delivery.partition,
                offset=_first(delivery).offset,
                reason=why,
            )
        self._let_go(consumed=False)

    def _let_go(self, *, consumed: bool) -> None:
        if self._taken is not None:  # its transaction has not ended
            self._taken, consumed = None, False
        current, self._current, self.at_hand = self._current, None, _NOTHING
        many, self._many = self._many, {}
        if current is not None:
            current.window.end_turn(is_finished=consumed)
            if current.error is not None:
                current.handled()
            current.leave()
        for delivery, count in many.items():
            if consumed:
                delivery.window.finish(delivery.window.finished, count)
            delivery.handled()
            delivery.leave()

    async def next(self) -> Message | None:
        """Return the next message, waiting for one; None once closed.

        A cancellation takes no message: it can only come while there is none.

        Raises:
            VqError: No message follows; see ``fail``.
        """
        delivery = await self._arrival()
        if delivery is None:
            return None
        self._current, self.at_hand = delivery, delivery.window
        # After an error one message is enough: that it goes on is told soon.
        return next(delivery.window.turn(delivery.room if delivery.error is None else 1))

    async def next_many(self, most: int) -> list[Message]:
        """Return up to ``most`` messages, waiting for a first one; none once closed.

        Each partition gives those that are decoded at hand. They are one message for what follows:
        all of them are consumed, or none. A cancellation takes no message, as in ``next``.
        """
        first = await self._arrival()
        return [] if first is None else self._many_from(first, most)

    def many_at_once(self, most: int) -> list[Message]:
        """Do what ``next_many`` does if there is a message; none: wait for one with that."""
        self._ask()
        first = self._at_once()
        return [] if first is None else self._many_from(first, most)

    def lists_at_once(self, most: int) -> list[Message]:
        """Do what ``many_at_once`` does; more lists of ``most`` messages may be at hand then.

        They are if all that is here is of one partition: taking turns is for several.
        """
        self._ask()
        first = self._at_once()
        if first is None:
            return []
        if len(self._ready) > 1 or first.error is not None:
            return self._many_from(first, most)
        self._current, self.at_hand = first, first.window
        return next(first.window.turn_in_lists(most, first.room))

    @property
    def given(self) -> int:
        """How many lists the present turn has given out; 0: it is no turn in lists."""
        return 0 if self._current is None else self._current.window.given

    def _many_from(self, first: InTurn, most: int) -> list[Message]:
        messages = self._take(first, most)
        if len(messages) < most and len(self._ready) > 1:
            for delivery in list(self._ready):
                if len(messages) >= most or not self.permit.holds:
                    break
                if delivery is not first and delivery.more() and delivery.enter():
                    messages += self._take(delivery, most - len(messages))
        return messages

    def _take(self, delivery: InTurn, most: int) -> list[Message]:
        window = delivery.window
        if delivery.room is not None:
            most = min(most, delivery.room)
        taken = list(window.messages[window.finished : window.finished + most])
        self._many[delivery] = len(taken)
        return taken

    def _ask(self) -> None:
        """Consume what is in hand, since the next one is asked for."""
        if self._taken is not None:
            raise InvalidState(
                "what this consumer has given out belongs to a transaction that has not ended; "
                "commit it, or roll it back, before the next one"
            )
        self._let_go(consumed=True)

    def _at_once(self) -> InTurn | None:
        """Return a partition with a message that may be handed out now; None: there is none.

        Raises:
            VqError: No message follows; see ``fail``.
        """
        if self._error is not None and not self._closed:
            raise self._error.with_traceback(None)  # at each call: it shows where that was
        while self._ready and not self._closed and self._error is None and self.permit.holds:
            delivery = self._ready[0]
            if delivery.more() and delivery.enter():
                return delivery
            self._ready.popleft()
            if delivery.has_more():  # after the other partitions
                self._ready.append(delivery)
        return None

    async def _arrival(self) -> InTurn | None:
        """Return a partition with a message, waiting for one; what is in hand is consumed."""
        self._ask()
        self._is_waiting = True
        try:
            while not self._closed:
                self._arrived.clear()  # first, so that what arrives from here on ends the wait
                delivery = self._at_once()
                if delivery is not None:
                    return delivery
                if self._ready and not self.permit.holds:
                    await asyncio.sleep(RECHECK_S)  # another member may own these by now
                    continue
                await self._arrived.wait()
            return None
        finally:
            self._is_waiting = False


def _first(delivery: InTurn) -> Message:
    """Return the first message in hand."""
    return delivery.window.messages[delivery.window.finished]


class Messages(Asking):
    """One iteration over an inbox; ``begin`` is awaited before the first message.

    Attributes:
        ended: It gives no further message.
        task: See ``PythonAsking``.
    """

    __slots__ = ("__weakref__", "_begin", "ended")

    _inbox: Inbox

    def __init__(self, inbox: Inbox, begin: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inbox, inbox.permit, asyncio.get_running_loop(), _task_of)
        self.ended = False
        self._begin = begin

    async def _following(self) -> Message:
        """Return the next message, wherever it is, waiting for one."""
        task = _task_of(self._loop)
        if task is not self.task and not self.ended:
            await self._begin()
            if not self.ended:  # aclose() was called meanwhile otherwise
                self._inbox.enter(self, task)
        message = None if self.ended else await self._inbox.next()
        if message is None:
            self._end()
            raise StopAsyncIteration
        # From Python 3.12 on, an exception that was raised and caught on the way, as of a znode
        # that is not there yet, may keep this frame. It must not keep the iteration: that ends with
        # its last reference, and another task may ask then.
        del self
        return message

    async def aclose(self) -> None:
        """End this iteration, as ``contextlib.aclosing`` does; its message stays in hand."""
        self._end()
        self._inbox.left(weakref.ref(self))

    def _end(self) -> None:
        self.ended = True
        self.task = None


def _name(task: asyncio.Task[Any] | None) -> str:
    return "code outside a task" if task is None else f"task {task.get_name()!r}"
