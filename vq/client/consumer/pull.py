"""``get_many``: a task, or a thread, takes messages instead of being called for each.

Loop-bound, but for ``ThreadPull`` and ``ThreadSharedPull``. The messages of a call count as
consumed when the next call begins; those of a shared group count one by one, by their own methods.
A call that ends without a result, by a time-out or a cancellation, has taken none.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, Self

from vq import limits
from vq.bounds import check_between
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.client.consumer.deliver.workers import Listener
from vq.client.consumer.pulling_thread import check_one_thread
from vq.client.consumer.shared.work import Settle, SharedMessage
from vq.client.loop_calls import call_soon
from vq.client.runtime import LoopThread
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import Message, check_timeout

logger = get_logger(__name__)


_CLOSED: Final = "this consumer is closed"


def _checked(max_messages: int, timeout: float | None) -> float | None:
    """Check what a call asks for; return its bound in seconds."""
    check_between("max_messages", max_messages, 1, limits.MANY_MAX)
    return None if timeout is None else check_timeout(timeout)


class PulledMessages(list[Message]):
    """The messages of one call; it can tell whether a loop over it came to its end.

    A loop that an error ends, or ``break``, leaves its iterator behind as it is then: nothing is
    done for each message.
    """

    __slots__ = ("_ended", "_iterator")

    def __init__(self, messages: Iterable[Message]) -> None:
        super().__init__(messages)
        self._iterator: Iterator[Message] | None = None  # of the last loop
        self._ended = False  # one before that came to its end

    def __iter__(self) -> Iterator[Message]:
        self._ended = self._ended or (self._iterator is not None and not self.is_left)
        self._iterator = super().__iter__()
        return self._iterator

    @property
    def is_left(self) -> bool:
        """Whether a loop over the messages has begun, and none came to its end."""
        if self._iterator is None or self._ended:
            return False
        # An iterator of a list forgets its list at the end: behind the last message, not with it.
        of_list: tuple[object, tuple[object, ...]] = self._iterator.__reduce__()  # type: ignore[assignment]
        return of_list[1][0] is self


class Pull:
    """The calls of one consumer; ``begin`` is awaited before the first message."""

    def __init__(self, inbox: Inbox, begin: Callable[[], Awaitable[object]]) -> None:
        self._inbox = inbox
        self._begin = begin
        self._reader: Messages | None = None
        self._task: asyncio.Task[object] | None = None
        self._latest = 0  # number of the last call that has begun
        self._first = 0  # number of the call that had the first messages of what is in hand
        self._step = 0  # the lists behind these have so many messages
        self._given: PulledMessages | None = None  # by the last call; None: nothing is in hand
        self._has_warned = False

    async def get_many(
        self,
        max_messages: int,
        timeout: float | None,
        *,
        call: int = 0,
        received: int | None = None,
    ) -> list[Message]:
        """See ``MessageConsumer.get_many``.

        Args:
            max_messages: See there.
            timeout: See there.
            call: The number of this call.
            received: The number of the last call whose result reached the application; None: all
                did. Messages of a later one are returned again.
        """
        bound = _checked(max_messages, timeout)
        if self._inbox.closed:
            raise InvalidState(_CLOSED)
        if received is not None:
            if call < self._latest:  # it was interrupted before it began
                return []
            self._latest = call
            await self._end_call()
            if call < self._latest:  # it was interrupted, too, and a later one has begun
                return []
            self.take_back(received)
        self.warn_if_left()
        self._task = asyncio.current_task()  # first: the beginning takes long, too
        await self._begin()
        if self._reader is None:
            self._reader = Messages(self._inbox, self._begin)
        self._inbox.enter(self._reader, self._task)
        messages = self._inbox.many_at_once(max_messages)
        if not messages:
            try:
                async with asyncio.timeout(bound):
                    messages = await self._inbox.next_many(max_messages)
            except TimeoutError:
                return []
        return self._hand_out(messages, call)

    def following(self, max_messages: int, call: int, received: int) -> list[Message] | None:
        """Return the list behind the one in hand, if it is at hand; None: ask ``at_once``.

        In the thread that has that one. An interrupt anywhere in here is seen by ``take_back``: the
        turn knows how many lists were taken, and each belongs to the call of the next number.
        """
        if max_messages != self._step or received != call - 1 or not self._inbox.permit.holds:
            return None
        self.warn_if_left()
        messages = next(self._inbox.at_hand.lists_left, None)
        if messages is None:
            return None
        self._given = PulledMessages(messages)
        return self._given

    def at_once(self, max_messages: int, call: int, received: int) -> list[Message]:
        """Do what ``get_many`` does if messages are here, and outside of a task; none: await it."""
        task, reader = self._task, self._reader
        if reader is None or self._inbox.closed or (task is not None and not task.done()):
            return []
        self._latest = call
        self.take_back(received)
        self.warn_if_left()
        self._task = None
        self._inbox.enter(reader, None)
        messages = self._inbox.lists_at_once(max_messages)
        if not messages:
            return messages
        handed_out = self._hand_out(messages, call)
        self._step = max_messages
        return handed_out

    def _hand_out(self, messages: list[Message], call: int) -> list[Message]:
        self._first, self._step = call, 0
        self._given = PulledMessages(messages)
        return self._given

    def warn_if_left(self) -> None:
        """Say once that messages count whose loop was left: their handler may have failed.

        They count from now on. Whether ``break`` or an error ended the loop cannot be told.
        """
        given, self._given = self._given, None
        if given is None or not given.is_left or self._has_warned:
            return
        if not self._inbox.has_in_hand:  # a transaction has finished it, or it comes again
            return
        self._has_warned = True
        logger.warning(
            "batch was left by the loop over it, all its messages count as handled",
            topic=given[0].topic,
            partition=given[0].partition,
            offset=given[0].offset,
            messages=len(given),
            hint="if a handler failed, the group passes them by: catch errors inside the loop, or "
            "subscribe with a listener, which has such a message again",
        )

    async def _end_call(self) -> None:
        """End the call before, if it still waits: its thread was interrupted."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def take_back(self, received: int) -> None:
        """Have messages delivered again that did not reach anybody: see ``get_many``."""
        if self._first + max(0, self._inbox.given - 1) > received:
            self._given = None
            self._inbox.put_back("its call of get_many was interrupted, or what handles it failed")


class ThreadPull:
    """The calls of one consumer of the blocking API: one thread at a time takes messages.

    The messages of a call belong to the thread that called. A call's result may not reach it: a
    signal handler raised while the thread waited. Then the next call takes the messages back first.
    Calls have numbers, so that it takes back no messages of an earlier call, which did reach the
    thread.

    Attributes:
        inbox: Where the messages come.
    """

    def __init__(self, core: ConsumerCore, inbox: Inbox, runtime: LoopThread) -> None:
        self.inbox = inbox
        self._pull = Pull(inbox, core.ensure_started)
        self._runtime = runtime
        self._lock = threading.Lock()  # guards the three below
        self._owner: threading.Thread | None = None  # has the messages of its call, or waits
        self._call = 0  # number of the last one
        self._received = 0  # number of the last one whose result reached the owner; -1: none counts
        self._has_listeners: bool | None = None  # None: nothing was subscribed

    def check_subscription(self, listener: Listener | None) -> None:
        """Check that all topics have listeners, or none has.

        Raises:
            InvalidArgument: This one differs from those before.
        """
        if self._has_listeners is not None and self._has_listeners is (listener is None):
            raise InvalidArgument(
                "some topics of this consumer have a listener and some have none; give all of them "
                "one, or none and call get_many, or make two consumers"
            )

    def subscribed(self, listener: Listener | None) -> None:
        """Note that a topic was subscribed."""
        self._has_listeners = listener is not None

    def get_many(self, max_messages: int, timeout: float | None) -> list[Message]:
        """See ``MessageConsumer.get_many``."""
        self.check_pulled()
        bound = _checked(max_messages, timeout)
        call, received = self._enter()
        pull, runtime = self._pull, self._runtime
        runtime.check()
        messages = pull.following(max_messages, call, received)
        if messages is None:  # a call on the loop, which is not a task: that costs twice as much
            messages = runtime.call(lambda: pull.at_once(max_messages, call, received))
        if not messages:
            messages = runtime.run(pull.get_many(max_messages, bound, call=call, received=received))
        if not messages:
            with self._lock:  # nothing is in hand: another thread may go on
                self._owner, self._received = None, call
            return messages
        self._received = call  # last: behind it, no signal handler runs before the return
        return messages

    def check_pulled(self) -> None:
        """Raise ``InvalidState`` if listeners get the messages."""
        if self._has_listeners:
            raise InvalidState(
                "the topics of this consumer have listeners, which get the messages; subscribe "
                "without a listener to call get_many"
            )

    def _enter(self) -> tuple[int, int]:
        """Let this thread call; return the number of the call, and of the last received one.

        Raises:
            InvalidState: Another thread has messages, or waits for some.
        """
        me = threading.current_thread()
        with self._lock:
            owner = self._owner
            check_one_thread(owner, me)
            if owner not in {None, me}:
                self._received = -1  # it ended with messages in hand
            self._owner, self._call = me, self._call + 1
            return self._call, self._received

    def drop_unreceived(self) -> None:
        """Have messages delivered again whose call did not reach its thread. On the loop."""
        with self._lock:
            received = self._received
        self._pull.take_back(received)

    def put_down(self) -> None:
        """Do not count what is in hand as consumed."""
        with self._lock:
            self._received = -1

    def closing(
        self, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return ``close`` preceded by the end of the inbox.

        What is in hand counts as consumed if this thread has it.
        """
        with self._lock:
            is_ours = self._owner in {None, threading.current_thread()}
            received = self._received if is_ours else -1

        async def closed() -> None:
            self._pull.take_back(received)  # a call that another thread waits for gets nothing
            self._pull.warn_if_left()
            self.inbox.close()
            await close()

        return closed


class SharedPull:
    """The calls of a member of a shared group: any number at a time, and each message by itself.

    Args:
        core: Of the consumer.
        settle: See ``ConsumerCore.start``.
    """

    def __init__(self, core: ConsumerCore, settle: Settle | None = None) -> None:
        self._core = core
        self._settle = settle

    async def next(self) -> Message | None:
        """Return the next message, waiting for one; None: the consumer is closed."""
        if self._core.closed:
            return None
        await self._core.ensure_started(self._settle)
        found = await self._core.take_many(1)
        return found[0] if found else None

    async def get_many(self, max_messages: int, timeout: float | None) -> list[Message]:
        """See ``MessageConsumer.get_many``; a call that is cancelled has taken none."""
        bound = _checked(max_messages, timeout)
        self._core.check_open()
        await self._core.ensure_started(self._settle)
        try:
            async with asyncio.timeout(bound):
                return list(await self._core.take_many(max_messages))
        except TimeoutError:
            return []


class SharedMessages:
    """An iteration over the messages of a shared group; it ends when the consumer is closed."""

    def __init__(self, pull: SharedPull) -> None:
        self._pull = pull
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = None if self._is_over else await self._pull.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def aclose(self) -> None:
        """End this iteration; the messages that it has given can be settled still."""
        self._is_over = True


class ThreadSharedPull:
    """The calls of a member of a shared group, of threads. Any thread."""

    def __init__(self, core: ConsumerCore, settle: Settle, runtime: LoopThread) -> None:
        self._core = core
        self._pull = SharedPull(core, settle)
        self._runtime = runtime

    def get_many(self, max_messages: int, timeout: float | None) -> list[Message]:
        """See ``MessageConsumer.get_many``.

        A call that the handler of a signal ends has taken nothing: what it has is given back.
        """
        taken: list[Message] = []
        task: asyncio.Task[object] | None = None
        is_dropped = False

        async def take() -> None:
            nonlocal task
            task = asyncio.current_task()
            if not is_dropped:
                taken.extend(await self._pull.get_many(max_messages, timeout))

        def drop() -> None:
            nonlocal is_dropped
            is_dropped = True
            if task is not None:
                task.cancel()
            self._core.give_back([each for each in taken if isinstance(each, SharedMessage)])

        try:
            self._runtime.run(take())
        except BaseException:
            call_soon(self._runtime.loop, drop)
            raise
        return taken
