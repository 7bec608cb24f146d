"""``get_many``: a task, or a thread, takes messages instead of being called for each.

Loop-bound. The messages of a call count as consumed when the next call begins. A call that ends
without a result, by a time-out or a cancellation, has taken none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from vq.client.consumer.inbox import Inbox, Messages
from vq.client.kinds import check_whole
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import Message, check_timeout

logger = get_logger(__name__)
#: The most messages that one call returns.
MANY_MAX: Final = 100_000


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
        self._in_hand = 0  # number of the call whose messages are in hand
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
        check_whole("max_messages", max_messages)
        if not 1 <= max_messages <= MANY_MAX:
            raise InvalidArgument(f"max_messages {max_messages} is outside [1, {MANY_MAX}]")
        bound = None if timeout is None else check_timeout(timeout)
        if self._inbox.closed:
            raise InvalidState("this consumer is closed")
        if received is not None:
            await self._end_call()
            self.take_back(received)
        self.warn_if_left()
        self._task = asyncio.current_task()  # first: the beginning takes long, too
        await self._begin()
        if self._reader is None:
            self._reader = Messages(self._inbox, self._begin)
        self._inbox.enter(self._reader, self._task)
        try:
            async with asyncio.timeout(bound):
                messages = await self._inbox.next_many(max_messages)
        except TimeoutError:
            return []
        self._in_hand = call
        self._given = PulledMessages(messages)
        return self._given

    def warn_if_left(self) -> None:
        """Say once that messages count whose loop was left: their handler may have failed.

        They count from now on. Whether ``break`` or an error ended the loop cannot be told.
        """
        given, self._given = self._given, None
        if given is None or not given.is_left or self._has_warned:
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
        if self._in_hand > received:
            self._given = None
            self._inbox.put_back("its call of get_many was interrupted, or what handles it failed")
