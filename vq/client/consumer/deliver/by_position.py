"""Messages for whoever finishes them by their positions, at a time of its own.

Loop-bound. Messages are *given out* in the order of their partitions, many beyond what is finished.
``finish`` takes the position behind the last message that is handled, so what is finished of a
partition is always its beginning. Messages that were given out and are not finished may be looked
at again. A partition that is to stop waits for its messages, but not for ever.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.delivery import Executor
from vq.client.consumer.deliver.permit import RECHECK_S
from vq.client.consumer.deliver.sliding import Sliding
from vq.coordination.tree.values.group_terms import WorkingMode
from vq.errors import InvalidState, VqError
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition

logger = get_logger(__name__)

#: How long a partition that is to stop waits for what was given out of it.
STOP_WAIT_S: Final = 10.0


class _Given(NamedTuple):
    """A message that was given out; ``number`` is its place among all of them."""

    number: int
    message: Message


class ByPosition(Executor):
    """What was given out of all partitions of one consumer, and what may be given out next.

    Attributes:
        count: How many messages are given out and not finished.
        size: Bytes of their contents.
        error: Why no message follows; None: some may.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._line: dict[Sliding, None] = {}  # may have messages; first come, first served
        self._given: dict[Sliding, deque[_Given]] = {}  # entered, as its user is at messages
        self._next = 0
        self._arrived = asyncio.Event()
        self._stops: dict[Sliding, asyncio.TimerHandle] = {}
        self.error: VqError | None = None
        self._is_closed = False

    # The consumer ---------------------------------------------------------------------------------
    def settings(self, config: ConsumerConfig) -> ConsumerConfig:
        """See ``Executor``: what follows a message is given out before that one is finished."""
        return replace(config, mode=WorkingMode.CONCURRENT)

    def put(self, delivery: Sliding) -> None:
        """See ``Executor.put``; on the loop."""
        if self._is_closed or not delivery.enter_line():
            return
        if delivery in self._given:
            delivery.leave()  # once is enough
        else:
            self._given[delivery] = deque()
        self._line[delivery] = None
        self._arrived.set()

    def forget(self, delivery: Sliding) -> None:
        """See ``Executor.forget``."""
        self._line.pop(delivery, None)
        if not self._given.get(delivery, True):
            self._leave(delivery)

    def is_waited_for(self, delivery: Sliding) -> None:
        """See ``Executor``: what is not finished in time is given back, and is delivered again."""
        if delivery in self._given and delivery not in self._stops:
            loop = asyncio.get_running_loop()
            self._stops[delivery] = loop.call_later(STOP_WAIT_S, self._give_back, delivery)

    def fail(self, error: VqError) -> None:
        """See ``Executor.fail``."""
        self.error = error
        self._arrived.set()

    # The user -------------------------------------------------------------------------------------
    async def take(self, most: int, most_bytes: int) -> list[Message]:
        """Give out messages that were not given out before, waiting for a first one.

        Args:
            most: 1 or more.
            most_bytes: Their contents stay below it, but for the one that reaches it.

        Raises:
            InvalidState: It was closed.
            VqError: No message follows.
        """
        while True:
            self._arrived.clear()  # first, so that what arrives from here on ends the wait
            messages = self.take_now(most, most_bytes)
            if messages:
                return messages
            if self._line:  # the permit has lapsed: another member may own them by now
                await asyncio.sleep(RECHECK_S)
            else:
                await self._arrived.wait()

    def take_now(self, most: int, most_bytes: int) -> list[Message]:
        """Return what ``take`` does without a wait; nothing if there is nothing."""
        if self._is_closed:
            raise InvalidState("this consumer is closed")
        if self.error is not None:
            raise self.error.with_traceback(None)
        return self._take(most, most_bytes)

    def again(self) -> list[Message]:
        """Return what is given out and not finished, in the order in which it was given out."""
        given = [each for waiting in self._given.values() for each in waiting]
        return [message for _, message in sorted(given, key=lambda each: each.number)]

    def finish(self, partition: TopicPartition, position: int) -> int | None:
        """Finish what was given out of a partition before a position.

        Returns:
            Up to where the partition is finished then, which is to be stored: it may be before the
            position, where there is no message in between. None: nothing of the partition is given
            out; what is before the position may be finished long since, or given back.

        Raises:
            InvalidState: The position is behind all that was given out.
        """
        for delivery, waiting in self._given.items():
            if delivery.partition != partition or not waiting:
                continue
            last = waiting[-1].message.next_offset
            if position > last:
                raise InvalidState(
                    f"{partition}: position {position} is behind {last}, up to which messages were "
                    "given out"
                )
            done = []
            while waiting and waiting[0].message.next_offset <= position:
                done.append(waiting.popleft().message)
            self._forget_given(done)
            delivery.done.extend(done)
            finished = min(position, delivery.position)
            if not delivery.is_stopped:
                self._line[delivery] = None  # its window has room
                self._arrived.set()
            elif not waiting:
                self._leave(delivery)
            return finished
        return None

    def close(self) -> None:
        """Give everything back that is not finished; nothing follows."""
        self._is_closed = True
        self._line.clear()
        for delivery in list(self._given):
            self._leave(delivery)
        self._arrived.set()

    # Own ------------------------------------------------------------------------------------------
    def _take(self, most: int, most_bytes: int) -> list[Message]:
        found: list[Message] = []
        for delivery in list(self._line):
            for message in self._ready(delivery):
                found.append(message)
                most_bytes -= len(message.content)
                if len(found) == most or most_bytes <= 0:
                    # Others have their turn first, next time.
                    del self._line[delivery]
                    self._line[delivery] = None
                    return found
        return found

    def _ready(self, delivery: Sliding) -> Iterator[Message]:
        """Give out the messages of a partition one by one; it leaves the line behind the last."""
        if not delivery.may_go_on():
            if delivery.is_stopped:
                self.forget(delivery)
            return
        waiting = self._given[delivery]
        while delivery.more():
            while delivery.ready:
                message = delivery.ready.popleft()
                waiting.append(_Given(self._next, message))
                self._next += 1
                self.count += 1
                self.size += len(message.content)
                yield message
        self._line.pop(delivery, None)
        if not waiting:
            self._leave(delivery)

    def _give_back(self, delivery: Sliding) -> None:
        waiting = self._given.get(delivery)
        if waiting:
            logger.warning(
                "messages were not committed in time, they will be delivered again",
                partition=delivery.partition,
                messages=len(waiting),
                offset=waiting[0].message.offset,
            )
        self._leave(delivery)

    def _leave(self, delivery: Sliding) -> None:
        """The user is at no message of a partition any more."""
        waiting = self._given.pop(delivery, None)
        timer = self._stops.pop(delivery, None)
        if timer is not None:
            timer.cancel()
        if waiting is not None:
            self._forget_given([each.message for each in waiting])
            delivery.leave()

    def _forget_given(self, messages: list[Message]) -> None:
        self.count -= len(messages)
        self.size -= sum(len(each.content) for each in messages)
