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

    async def get_many(
        self, max_messages: int, timeout: float | None, *, lost: bool = False
    ) -> list[Message]:
        """See ``MessageConsumer.get_many``.

        ``lost``: the result of the call before did not reach the application. Its messages are
        returned again.
        """
        check_whole("max_messages", max_messages)
        if not 1 <= max_messages <= MANY_MAX:
            raise InvalidArgument(f"max_messages {max_messages} is outside [1, {MANY_MAX}]")
        bound = None if timeout is None else check_timeout(timeout)
        if self._inbox.closed:
            raise InvalidState("this consumer is closed")
        if lost:
            await self._take_back()
        await self._begin()
        if self._reader is None:
            self._reader = Messages(self._inbox, self._begin)
        self._task = asyncio.current_task()
        self._inbox.enter(self._reader, self._task)
        try:
            async with asyncio.timeout(bound):
                return await self._inbox.next_many(max_messages)
        except TimeoutError:
            return []

    async def _take_back(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._inbox.put_back("its call of get_many was interrupted")
