"""``MessageFactoryConfig(local="dir")`` for coroutines: producers and consumers of local queues.

What decides is that of threads (``vq.local.factory``). In here is only who waits: coroutines wait
for commits and messages without a thread; what reads or opens files is done by one. A listener runs
on the loop; a thread of the consumer waits for it.
"""

import asyncio
import concurrent.futures
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn, Self

from vq import limits
from vq.aio.local import LocalQueue
from vq.bounds import check_between
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer.deliver.listening import check_listener
from vq.client.future import SendCallback, check_callback, report
from vq.client.kinds import topic_named
from vq.client.loop_calls import call_soon
from vq.errors import InvalidState, TimedOut, VqError
from vq.local.factory.consumer import LOOK_S, LocalMessageConsumer
from vq.local.factory.producer import LocalMessageProducer
from vq.local.factory.queues import LocalQueues
from vq.local.factory.refused import refuse_name
from vq.local.items import LocalItem
from vq.local.listeners import CANCELLED, as_delivered
from vq.message_filter import Wanting
from vq.model import Message, SendResult, check_timeout
from vq.tasks import cancellation_of

_monotonic: Final = time.monotonic


class AsyncLocalProducer:
    """The part of ``vq.aio.MessageProducer`` that needs no cluster. One loop."""

    def __init__(self, queues: LocalQueues, inner: LocalMessageProducer) -> None:
        """Use ``vq.aio.MessageFactory.create_producer``."""
        self._queues = queues
        self._inner = inner

    @property
    def config(self) -> ProducerConfig:
        """As given."""
        return self._inner.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._inner.closed

    async def publish(self, topic: str) -> None:
        """Open the queue of a topic."""
        await asyncio.to_thread(self._inner.publish, topic)

    async def send(self, message: Message, timeout: float | None = None) -> SendResult:
        """Send a message; return its place once it is durable.

        If the task is cancelled, a message that was accepted is stored nevertheless.

        Raises:
            TimedOut: The disk has not answered within ``timeout``; it may be stored, or will be.
        """
        timeout = None if timeout is None else check_timeout(timeout)
        future = await self.send_async(message)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise TimedOut(f"the disk has not answered within {timeout} s") from error

    async def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Accept a message; return its future. The callback runs on this loop.

        Errors as of ``vq.MessageProducer.send_async`` of a local factory.
        """
        check_callback(callback)
        sending: concurrent.futures.Future[SendResult]
        if self._queues.may_wait(topic_named(message)):
            sending = await asyncio.to_thread(self._inner.send_async, message, None, timeout)
        else:
            sending = self._inner.send_async(message, None, timeout)
        if callback is not None:
            tell = functools.partial(_tell, callback, sending)
            loop = asyncio.get_running_loop()
            sending.add_done_callback(lambda _: call_soon(loop, tell))
        future = asyncio.wrap_future(sending)
        future.add_done_callback(_see)
        return future

    async def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Send a message without an outcome."""
        await asyncio.to_thread(self._inner.send_oneway, message, timeout)

    async def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages; return their places once all are durable."""
        return await asyncio.to_thread(self._inner.send_batch, messages, timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once all that was sent before is durable."""
        await asyncio.to_thread(self._inner.flush, timeout)

    async def close(self) -> None:
        """Flush, and take no more messages. May be called again."""
        await asyncio.to_thread(self._inner.close)

    def __getattr__(self, name: str) -> NoReturn:
        refuse_name("producer", name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _see(future: "asyncio.Future[SendResult]") -> None:
    """Look at the error of a message: nobody need await its future."""
    if not future.cancelled():
        future.exception()


def _tell(callback: SendCallback, sending: "concurrent.futures.Future[SendResult]") -> None:
    """Tell a callback the outcome, also of a message whose future was cancelled."""
    error = sending.exception()
    try:
        if error is None:
            callback(sending.result(), None)
        elif isinstance(error, VqError):
            callback(None, error)
    except BaseException as raised:  # noqa: BLE001  of the application
        report("callback of a send", raised)


class AsyncLocalConsumer:
    """The part of ``vq.aio.MessageConsumer`` that needs no cluster. One loop."""

    def __init__(self, queues: LocalQueues, inner: LocalMessageConsumer) -> None:
        """Use ``vq.aio.MessageFactory.create_consumer``."""
        self._queues = queues
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._listening: set[asyncio.Task[Any] | None] = set()
        self._pulled: LocalQueue | None = None

    @property
    def config(self) -> ConsumerConfig:
        """As given."""
        return self._inner.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._inner.closed

    def subscribe(
        self,
        topic_or_pattern: str,
        length: int = limits.MIB,
        listener: Callable[[Message], Awaitable[Any]] | None = None,
        message_filter: Wanting = None,
    ) -> Self:
        """Add a topic, and the coroutine function for its messages, before ``start``."""
        called = None
        if listener is not None:
            check_listener(listener)
            called = self._waiting_for(listener)
        self._inner.subscribe(topic_or_pattern, length, called, message_filter)
        return self

    def _waiting_for(self, listener: Callable[[Message], Awaitable[Any]]) -> Callable[..., Any]:
        async def run(message: Message) -> Any:
            task = asyncio.current_task()
            self._listening.add(task)
            try:
                return await listener(message)
            except asyncio.CancelledError as error:
                if cancellation_of(error) is not None:
                    raise
                return error  # its code raised it by itself: a failed try
            finally:
                self._listening.discard(task)

        def call(message: Message) -> Any:
            running = run(message)
            try:
                result = asyncio.run_coroutine_threadsafe(running, self._loop).result()
            except concurrent.futures.CancelledError:
                return CANCELLED  # by a close, or the end of the loop
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
                running.close()
                return CANCELLED
            if isinstance(result, asyncio.CancelledError):
                raise result
            return result

        return call

    async def start(self) -> Self:
        """Begin to call the listeners."""
        await asyncio.to_thread(self._inner.start)
        return self

    async def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return messages of the one topic; those of the call before count as handled.

        A call that is cancelled has taken none.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds to wait for the first one; None: without an end.

        Raises:
            InvalidArgument: An argument is unusable.
            InvalidState: It is closed, or has no topic without a listener.
        """
        check_between("max_messages", max_messages, 1, limits.MANY_MAX)
        timeout = None if timeout is None else check_timeout(timeout)
        topic, passes = self._inner.pulled()
        self._inner.finish()
        if self._pulled is None:
            queue = await asyncio.to_thread(self._queues.queue, topic)
            self._pulled = LocalQueue.over(queue._core)
        deadline = None if timeout is None else _monotonic() + timeout
        taken: list[tuple[LocalItem, Message]] = []
        try:
            while len(taken) < max_messages:
                left_s = LOOK_S if deadline is None else max(deadline - _monotonic(), 0.0)
                item = await self._pulled.take(0 if taken else min(left_s, LOOK_S))
                if item is None:
                    is_over = deadline is not None and left_s <= LOOK_S
                    if taken or is_over or self.closed:
                        break
                    continue
                try:
                    message = as_delivered(item)
                    wanted = passes(message)
                except BaseException:
                    self._pulled._core.takes.give_back(item)
                    raise
                if wanted:
                    taken.append((item, message))
                else:
                    self._pulled.complete(item)
        except BaseException:
            for item, _ in reversed(taken):
                self._pulled._core.takes.give_back(item)
            raise
        is_held = self._inner.hold([item for item, _ in taken])
        return [message for _, message in taken] if is_held else []

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages; each counts as handled when the next one is asked for."""
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        while not self.closed:
            for message in await self.get_many(1):
                yield message

    async def commit(self) -> None:
        """Return once it is durable what was handled; what is in hand of ``get_many`` is not."""
        await asyncio.to_thread(self._inner.commit)

    async def close(self) -> None:
        """Wait up to 30 s for listeners that run; those that are not done by then are cancelled.

        Messages of ``get_many`` count as handled, the others are given to others. May be called
        again.

        Raises:
            InvalidState: A listener of this consumer called it, which would wait for itself.
        """
        if asyncio.current_task() in self._listening:
            raise InvalidState("a listener cannot close its consumer, which waits for it to return")
        await asyncio.to_thread(self._inner.close)
        for task in list(self._listening):
            if task is not None:
                task.cancel()

    def __getattr__(self, name: str) -> NoReturn:
        refuse_name("consumer", name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            self._inner.put_down()
        await self.close()
