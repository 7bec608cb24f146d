"""``get_many``: a task, or a thread, takes messages instead of being called for each.

Loop-bound. The messages of a call count as consumed when the next call begins. A call that ends
without a result, by a time-out or a cancellation, has taken none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from vq.client.consumer.inbox import Inbox, Messages
from vq.client.kinds import check_whole
from vq.errors import InvalidArgument, InvalidState
from vq.model import Message, check_timeout

#: The most messages that one call returns.
MANY_MAX: Final = 100_000


class Pull:
    """The calls of one consumer; ``begin`` is awaited before the first message."""

    def __init__(self, inbox: Inbox, begin: Callable[[], Awaitable[object]]) -> None:
        self._inbox = inbox
        self._begin = begin
        self._reader: Messages | None = None
        self._task: asyncio.Task[object] | None = None
        self._in_hand = 0  # number of the call whose messages are in hand

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
        return messages

    async def _end_call(self) -> None:
        """End the call before, if it still waits: its thread was interrupted."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def take_back(self, received: int) -> None:
        """Have messages delivered again that did not reach anybody: see ``get_many``."""
        if self._in_hand > received:
            self._inbox.put_back("its call of get_many was interrupted, or what handles it failed")
