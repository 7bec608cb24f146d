"""Messages for ``async for``: the coroutine twin of threads that call listeners.

Loop-bound. A message counts as consumed when the next one is asked for, just as a listener's
message counts as consumed when it returns.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from vq.client.decode import Decoder
from vq.client.fetcher import Chunk
from vq.errors import CorruptData, VqError
from vq.model import Message, TopicPartition


class Inbox:
    """What has arrived for one consumer, from all its partitions, partition by partition."""

    def __init__(self) -> None:
        self._ready: deque[InboxDelivery] = deque()
        self._arrived = asyncio.Event()
        self._current: tuple[InboxDelivery, Message] | None = None
        self._closed = False

    def put(self, delivery: "InboxDelivery") -> None:
        """A partition has something to deliver."""
        self._ready.append(delivery)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after the message in hand."""
        self.finish_current()
        self._closed = True
        self._arrived.set()

    def finish_current(self) -> None:
        """The user is done with the message in hand."""
        if self._current is not None:
            delivery, message = self._current
            self._current = None
            delivery.finished(message)

    def is_at(self, delivery: "InboxDelivery") -> bool:
        """Whether the user holds a message of ``delivery`` now."""
        return self._current is not None and self._current[0] is delivery

    async def next(self) -> Message | None:
        """Return the next message, waiting for one; None once closed.

        Raises:
            CorruptData: A record is damaged; its partition stands still, others go on.
        """
        self.finish_current()
        while not self._closed:
            while self._ready:
                delivery = self._ready[0]
                message = delivery.take()
                if message is not None:
                    self._current = delivery, message
                    return message
                self._ready.popleft()
                if delivery.error is not None and not delivery.told:
                    delivery.told = True
                    raise delivery.error
            self._arrived.clear()
            await self._arrived.wait()
        return None


class InboxDelivery:
    """One held partition's line into the inbox; see ``delivery.Delivery``."""

    def __init__(
        self,
        where: TopicPartition,
        position: int,
        inbox: Inbox,
        on_consumed: Callable[[int], None],
    ) -> None:
        self.where = where
        self.position = position
        self.delivered = 0
        self.error: VqError | None = None
        self.told = False
        self._inbox = inbox
        self._on_consumed = on_consumed
        self._chunks: deque[Chunk] = deque()
        self._messages: deque[Message] = deque()
        self._open: Chunk | None = None  # the chunk that _messages came from
        self._decoder = Decoder(where)
        self._in_line = False
        self._stopped = False
        self._on_stopped: Callable[[], None] | None = None

    def add(self, chunk: Chunk) -> None:
        """See ``Delivery.add``."""
        if self._stopped or self.error is not None:
            return
        self._chunks.append(chunk)
        if not self._in_line:
            self._in_line = True
            self._inbox.put(self)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """See ``Delivery.stop``."""
        self._stopped = True
        self._chunks.clear()
        self._messages.clear()
        if self._inbox.is_at(self):
            self._on_stopped = on_stopped
        else:
            on_stopped()

    def take(self) -> Message | None:
        """Return the next message, or None when there is none now (and leave the line)."""
        while not self._messages:
            self._close_chunk()
            if not self._chunks or self.error is not None:
                self._in_line = False
                return None
            self._open = self._chunks.popleft()
            try:
                self._messages.extend(self._decoder.decode(self._open))
            except CorruptData as error:
                self.error = error
        return self._messages.popleft()

    def _close_chunk(self) -> None:
        chunk, self._open = self._open, None
        if chunk is not None:
            if chunk.offsets is not None and not self._stopped:
                self.position = chunk.next_offset
            self._on_consumed(len(chunk.body))

    def finished(self, message: Message) -> None:
        """The user is done with ``message``."""
        self.position = message.next_offset
        self.delivered += 1
        if self._on_stopped is not None:
            on_stopped, self._on_stopped = self._on_stopped, None
            on_stopped()
