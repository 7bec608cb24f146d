"""Messages for ``async for``: the coroutine twin of threads that call listeners.

Loop-bound. A message counts as consumed when the next one is asked for, just as a listener's
message counts as consumed when it returns.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from vq.client.decode import Decoder
from vq.client.delivery import Progress, id_at
from vq.client.fetcher import Chunk
from vq.errors import VqError
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

    def close(self, *, consumed: bool = True) -> None:
        """End the iteration; the message in hand counts as ``consumed`` or comes again."""
        self._let_go(consumed=consumed)
        self._closed = True
        self._arrived.set()

    def finish(self, message: Message) -> None:
        """The user is done with ``message``, if it is the one in hand."""
        if self._current is not None and self._current[1] is message:
            self._let_go(consumed=True)

    def _let_go(self, *, consumed: bool) -> None:
        if self._current is not None:
            delivery, message = self._current
            self._current = None
            delivery.finished(message if consumed else None)

    def is_at(self, delivery: "InboxDelivery") -> bool:
        """Whether the user holds a message of ``delivery`` now."""
        return self._current is not None and self._current[0] is delivery

    async def next(self) -> Message | None:
        """Return the next message, waiting for one; None once closed.

        Raises:
            CorruptData: A record is damaged; its partition stands still, others go on.
        """
        self._let_go(consumed=True)
        while not self._closed:
            while self._ready:
                delivery = self._ready[0]
                message = delivery.take()
                if message is not None:
                    self._current = delivery, message
                    return message
                self._ready.popleft()
                if delivery.has_more:  # the others come first
                    self._ready.append(delivery)
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
        self._decoded: list[Message] = []  # all messages of that chunk
        self._id_before: int | None = None  # the last one of the chunks before
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

    def progress(self) -> Progress:
        """See ``Delivery.progress``."""
        return Progress(self.position, id_at(self.position, self._decoded, self._id_before))

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """See ``Delivery.stop``."""
        self._stopped = True
        self._chunks.clear()
        self._messages.clear()
        if self._inbox.is_at(self):
            self._on_stopped = on_stopped
        else:
            on_stopped()

    @property
    def has_more(self) -> bool:
        """Whether there is a chunk to take messages from; it stays in the line then."""
        self._in_line = bool(self._chunks)
        return self._in_line

    def take(self) -> Message | None:
        """Return the next message of the chunk at hand (or of the next one, if there is none).

        None: that chunk is done.
        """
        if self._open is None and self._chunks:
            self._open = self._chunks.popleft()
            self._decoded = self._decoder.decode(self._open)
            self._messages.extend(self._decoded)
        if self._messages:
            return self._messages.popleft()
        self._close_chunk()
        return None

    def _close_chunk(self) -> None:
        chunk, self._open = self._open, None
        if self._decoder.error is not None and not self._stopped:
            self.error = self._decoder.error
            self._chunks.clear()
        elif chunk is not None:
            if chunk.offsets is not None and not self._stopped:
                self.position = chunk.next_offset
            self._id_before, self._decoded = self.progress().message_id, []
            self._on_consumed(chunk.size)

    def finished(self, message: Message | None) -> None:
        """The user holds no message any more and is done with ``message``."""
        if message is not None:
            self.position = message.next_offset
            self.delivered += 1
        if self._on_stopped is not None:
            on_stopped, self._on_stopped = self._on_stopped, None
            on_stopped()
