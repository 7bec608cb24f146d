"""Messages for ``async for``: the coroutine twin of threads that call listeners.

Loop-bound. A message counts as consumed when the task asks for the next one, or when the consumer
is closed. The end of an iteration, by ``break``, by an error or by a cancellation, consumes
nothing: the inbox cannot tell them apart. A message belongs to the task that asked for it.
"""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, Self

from vq.client.consumer.delivery import DeliveryHooks, Progress, id_at
from vq.client.consumer.permit import RECHECK_S, Permit
from vq.client.loop_calls import call_soon
from vq.client.raised import forget_locals
from vq.client.reading.chunk import Chunk
from vq.client.reading.decode import Decoder
from vq.errors import InternalError, InvalidState, VqError
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition
from vq.shown import shown_raised

if sys.version_info >= (3, 12):
    _task_of = asyncio.current_task
else:  # there it is not in C: a tenth of what a message costs
    _task_of = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]
logger = get_logger(__name__)
_LEFT = "its loop was left before the next one was asked for"


class Inbox:
    """The messages that have arrived for one consumer, in turns from its partitions."""

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._ready: deque[InboxDelivery] = deque()
        self._arrived = asyncio.Event()
        # In hand: a message; after ``next_many`` the last of several, the last ones of other
        # partitions, too, and for each partition those before its last one.
        self._current: tuple[InboxDelivery, Message] | None = None
        self._also: list[tuple[InboxDelivery, Message]] = []
        self._earlier: dict[InboxDelivery, list[Message]] = {}
        self._reader: weakref.ref[Messages] | None = None  # the iterator that asked last,
        self._task: asyncio.Task[Any] | None = None  # and its task
        self._is_waiting = False  # that task waits for a message
        self._has_warned = False
        self._closed = False
        self._error: VqError | None = None  # why no message follows

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def put(self, delivery: "InboxDelivery") -> None:
        """A partition has something to deliver."""
        self._ready.append(delivery)
        self._arrived.set()

    def fail(self, error: VqError) -> None:
        """End the iteration with an error: no message follows."""
        self._error = error
        self._arrived.set()

    def abandon_in_child(self, why: str) -> None:
        """Give nothing in the child of a fork, where every message is the parent's."""
        self._current, self._also, self._earlier = None, [], {}
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
            if self._current is not None:
                self._warn(self._current)
            if other is not None:
                other.task = None
            loop = asyncio.get_running_loop()
            # In any thread: the garbage collector runs on whichever it likes.
            self._reader = weakref.ref(reader, lambda ref: call_soon(loop, self.left, ref))
        self._task = reader.task = task

    def _warn(self, in_hand: "tuple[InboxDelivery, Message]") -> None:
        """Say once that a message counts that a loop was left with: its handler may have failed."""
        if self._has_warned:
            return
        self._has_warned = True
        delivery, message = in_hand
        logger.warning(
            "a new loop counts the message of the loop before as handled",
            partition=delivery.partition,
            offset=message.offset,
            hint="if its handler failed, the group passes it by: catch errors inside the loop, or "
            "subscribe with a listener, which has such a message again",
        )

    def left(self, reader: "weakref.ref[Messages]") -> None:
        """Give the message of an iteration that is over back, if its partition is to stop."""
        waited_for = any(delivery.is_stopping for delivery, _ in self._in_hand())
        if waited_for and reader == self._reader:
            self._give_back(self._failure() or _LEFT)

    def keeps(self, delivery: "InboxDelivery") -> bool:
        """Whether a task still handles a message of ``delivery``, which is to stop.

        A message that no task handles any more is given back, not consumed.
        """
        if not any(each is delivery for each, _ in self._in_hand()):
            return False
        failure = self._failure()
        if not failure and self._reader is not None and self._present_reader() is None:
            failure = _LEFT
        if failure:
            self._give_back(failure)
        return not failure

    def put_back(self, why: str) -> None:
        """Have what is in hand delivered again."""
        self._give_back(why)

    def _in_hand(self) -> "list[tuple[InboxDelivery, Message]]":
        return self._also if self._current is None else [*self._also, self._current]

    def _present_reader(self) -> "Messages | None":
        reader = None if self._reader is None else self._reader()
        return None if reader is None or reader.ended else reader

    def _failure(self) -> str:
        """Return how the task of the message in hand failed; "": it did not."""
        task = self._task
        if self._current is None or task is None or not task.done():
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
        return self._is_waiting or self._current is not None

    def _give_back(self, why: str) -> None:
        for delivery, message in self._in_hand():
            logger.warning(
                "message will be delivered again",
                partition=delivery.partition,
                offset=[*self._earlier.get(delivery, []), message][0].offset,
                reason=why,
            )
        self._let_go(consumed=False)

    def _let_go(self, *, consumed: bool) -> None:
        in_hand, self._current, self._also = self._in_hand(), None, []
        earlier, self._earlier = self._earlier, {}
        for delivery, message in in_hand:
            before = earlier.get(delivery, [])
            if consumed:
                delivery.finished(message, 1 + len(before))
            else:
                delivery.put_back([*before, message])

    def next_at_hand(self) -> Message | None:
        """Return the message that follows the one in hand, if it is here; consume that one."""
        current = self._current
        if current is None or self._closed:
            return None
        delivery, message = current
        messages = delivery.messages
        permit = self._permit
        if not messages or delivery.error is not None or permit.now() >= permit.until:
            return None
        delivery.position = message.next_offset
        delivery.delivered += 1
        message = messages.popleft()
        self._current = delivery, message
        return message

    async def next(self) -> Message | None:
        """Return the next message, waiting for one; None once closed.

        A cancellation takes no message: it can only come while there is none.

        Raises:
            VqError: No message follows; see ``fail``.
        """
        current = self._current
        if self._earlier:
            self._let_go(consumed=True)
        elif current is not None:
            self._current = None
            current[0].finished(current[1])
        self._is_waiting = True
        try:
            return await self._arrival()
        finally:
            self._is_waiting = False

    async def next_many(self, most: int) -> list[Message]:
        """Return up to ``most`` messages, waiting for a first one; none once closed.

        Each partition gives those that are decoded at hand. They are one message for what follows:
        all of them are consumed, or none. A cancellation takes no message, as in ``next``.
        """
        message = await self.next()
        if message is None or self._current is None:
            return []
        first = self._current[0]
        messages = [message, *first.take_more(most - 1)]
        self._current = first, messages[-1]
        self._earlier[first] = messages[:-1]
        for delivery in list(self._ready):
            if len(messages) >= most or not self._permit.holds:
                break
            head = None if delivery is first else delivery.take()
            if head is not None:
                taken = [head, *delivery.take_more(most - len(messages) - 1)]
                messages += taken
                self._also.append((delivery, taken[-1]))
                self._earlier[delivery] = taken[:-1]
        return messages

    async def _arrival(self) -> Message | None:
        while not self._closed:
            if self._error is not None:
                raise self._error.with_traceback(None)  # at each call: it shows where that was
            self._arrived.clear()  # first, so that what arrives from here on ends the wait below
            while self._ready and not self._closed and self._error is None:
                if not self._permit.holds:  # another member may own these messages by now
                    await asyncio.sleep(RECHECK_S)
                    continue
                delivery = self._ready[0]
                message = delivery.take()
                if message is not None:
                    self._current = delivery, message
                    return message
                self._ready.popleft()
                if delivery.has_more:  # after the other partitions
                    self._ready.append(delivery)
            await self._arrived.wait()
        return None


class Messages:
    """One iteration over an inbox; ``begin`` is awaited before the first message.

    Attributes:
        ended: It gives no further message.
        task: The task that may take messages through it; None: another iteration is in charge.
    """

    __slots__ = ("__weakref__", "_begin", "_inbox", "_loop", "ended", "task")

    def __init__(self, inbox: Inbox, begin: Callable[[], Awaitable[object]]) -> None:
        self.ended = False
        self.task: asyncio.Task[Any] | None = None
        self._inbox = inbox
        self._begin = begin
        self._loop = asyncio.get_running_loop()  # given to current_task, which is faster then

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        task = _task_of(self._loop)
        if task is self.task:
            message = self._inbox.next_at_hand()
            if message is not None:
                return message
        elif not self.ended:
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


class Taker(Protocol):
    """Who takes the messages of deliveries: an inbox, or listeners."""

    def put(self, delivery: "InboxDelivery") -> None:
        """See ``Inbox.put``."""
        ...

    def keeps(self, delivery: "InboxDelivery") -> bool:
        """See ``Inbox.keeps``."""
        ...


class InboxDelivery:
    """One partition's queue of messages for their taker; see ``delivery.Delivery``."""

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        inbox: Taker,
        hooks: DeliveryHooks,
    ) -> None:
        self.partition = partition
        self.position = position
        self.delivered = 0
        self.error: VqError | None = None
        self._stuck_at = position  # where ``error`` came up
        self._inbox = inbox
        self._hooks = hooks
        self._expected: int | None = None  # after damage: only the chunk that begins here counts
        self._chunks: deque[Chunk] = deque()
        self.messages: deque[Message] = deque()  # of the open chunk, not yet given to the user
        self._open: Chunk | None = None  # the chunk that _messages came from
        self._decoded: list[Message] = []  # all messages of that chunk
        self._id_before: int | None = None  # the last one of the chunks before
        self._decoder = Decoder(partition)
        self._in_line = False
        self._stopped = False
        self._on_stopped: Callable[[], None] | None = None

    def add(self, chunk: Chunk) -> None:
        """See ``Delivery.add``."""
        if self._stopped or self._expected not in {None, chunk.offset}:
            return
        self._expected = None
        self._chunks.append(chunk)
        if not self._in_line:
            self._in_line = True
            self._inbox.put(self)

    def progress(self) -> Progress:
        """See ``Delivery.progress``."""
        return Progress(self.position, id_at(self.position, self._decoded, self._id_before))

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """See ``Delivery.stop``."""
        self._stopped = True
        self._chunks.clear()
        self.messages.clear()
        if self._inbox.keeps(self):
            self._on_stopped = on_stopped
        else:
            on_stopped()

    @property
    def is_stopping(self) -> bool:
        """Whether a hand-over waits until no task handles a message of it."""
        return self._on_stopped is not None

    @property
    def has_more(self) -> bool:
        """Whether there is a chunk to take messages from; if so, it stays in the queue."""
        self._in_line = bool(self._chunks)
        return self._in_line

    def take(self) -> Message | None:
        """Return the next message of the open chunk, or of the next chunk if none is open.

        None: that chunk is done.
        """
        if not self.messages:
            try:
                self._decode()
            except Exception as error:
                failed = InternalError(f"{self.partition}: delivery failed: {shown_raised(error)}")
                self._begin_anew(failed)
                logger.exception("delivery failed, starting again", partition=self.partition)
                return None
        if self.messages:
            return self.messages.popleft()
        self._close_chunk()
        return None

    def take_more(self, most: int) -> list[Message]:
        """Return the messages that follow in the open chunk, ``most`` of them at most."""
        count = min(most, len(self.messages))
        return [self.messages.popleft() for _ in range(count)]

    def _decode(self) -> None:
        """Take the next messages from the open chunk, or from the next one."""
        if self._open is None and self._chunks:
            self._open = self._chunks.popleft()
            self._decoded = self._decoder.decode(self._open)
        elif self._decoder.has_more and not self._stopped:
            self._id_before = self.progress().message_id
            self._decoded = []  # not beside those that follow
            self._decoded = self._decoder.more()
        else:
            return
        self.messages.extend(self._decoded)

    def _close_chunk(self) -> None:
        chunk = self._open
        if chunk is None:
            return
        if self._decoder.error is not None and not self._stopped:
            self._begin_anew(self._decoder.error)
            return
        if not self._stopped:
            self.position = self._decoder.read_to
        self._forget_chunk()
        self._hooks.consumed(chunk.size, self._decoder.rest)
        self._maybe_went_on()

    def _forget_chunk(self) -> None:
        self._id_before, self._decoded = self.progress().message_id, []
        self._open = None
        self._decoder.end_chunk()

    def _begin_anew(self, error: VqError) -> None:
        """Bytes failed a check: forget what was fetched, and have it fetched again."""
        self._forget_chunk()
        self._chunks.clear()
        self._decoder = Decoder(self.partition)
        self._expected = self.position
        self._stuck(error)
        self._hooks.fetch_again(self.position)

    def _stuck(self, error: VqError) -> None:
        self._stuck_at = self.position
        forget_locals(error)  # it is kept for as long as the partition stands still, or longer
        self.error = error
        self._hooks.stuck(error)

    def _maybe_went_on(self) -> None:
        if self.error is not None and self.position > self._stuck_at:
            self.error = None
            self._hooks.went_on()

    def finished(self, message: Message, count: int = 1) -> None:
        """Count ``count`` messages in hand as consumed, of which ``message`` is the last one."""
        self.position = message.next_offset
        self.delivered += count
        self._maybe_went_on()
        self._let_go()

    def put_back(self, messages: Sequence[Message]) -> None:
        """Make ``messages``, which were in hand, the next ones again."""
        if not self._stopped:
            self.messages.extendleft(reversed(messages))
        self._let_go()

    def failed(self, message: Message, error: VqError) -> None:
        """Make ``message``, which was in hand, the next one again: its listener raised.

        No message is kept during the pause: many partitions may be in one at the same time.
        """
        if not self._stopped:
            handled = len(self._decoded) - len(self.messages) - 1
            self._id_before = self.progress().message_id
            self._decoder.take_back(self._decoded, handled)
            self._decoded = []
            self.messages.clear()
            self._stuck(error)
        self._let_go()

    def _let_go(self) -> None:
        if self._on_stopped is not None:
            on_stopped, self._on_stopped = self._on_stopped, None
            on_stopped()
