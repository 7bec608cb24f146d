"""From fetched bytes to a listener called once per message, partition by partition.

    loop                     worker threads                      loop
    chunk ──▶ Delivery ──▶ decode, verify, call listener ──▶ room to fetch, position to commit

A ``Delivery`` is one partition's line of chunks. It is in at most one worker at a time, so a
partition's messages are handled in order by one thread; different partitions may be handled side
by side when there is more than one worker.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from vq.client.config import ConsumerConfig, OnListenerError
from vq.client.decode import Decoder
from vq.client.fetcher import Chunk
from vq.errors import CorruptData, VqError
from vq.model import Message, TopicPartition

logger = logging.getLogger(__name__)
_BACKOFF_MAX_S = 30.0

Listener = Callable[[Message], Any]


def ignore(message: Message) -> None:
    """Stand in for a listener where messages are iterated over instead."""


class Delivery(Protocol):
    """One held partition on its way to the user.

    Attributes:
        position: Where this group goes on after a stop: behind the last message the user is done
            with, control records and filtered messages included. Any thread may read it.
        delivered: How many messages the user is done with.
        error: Why delivery stands still, or None.
    """

    position: int
    delivered: int
    error: VqError | None

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk; the fetcher bounds how many bytes wait here."""
        ...

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Deliver no further message; call ``on_stopped`` once the user is at none any more.

        It may be called from another thread, or at once.
        """
        ...


DeliveryMaker = Callable[[TopicPartition, int, Listener, Callable[[int], None]], Delivery]
"""``(partition, position, listener, on_consumed)`` to a delivery; ``on_consumed`` takes bytes."""


class ThreadDelivery:
    """A delivery that calls a listener on one of ``workers``; see ``Delivery``."""

    def __init__(
        self,
        where: TopicPartition,
        position: int,
        listener: Listener,
        config: ConsumerConfig,
        *,
        on_consumed: Callable[[int], None],
        workers: "Workers",
    ) -> None:
        self.where = where
        self.position = position
        self.delivered = 0
        self.error: VqError | None = None
        self._listener = listener
        self._config = config
        self._on_consumed = on_consumed  # called from the worker, with bytes
        self._workers = workers
        self._chunks: deque[Chunk] = deque()
        self._decoder = Decoder(where)
        self._lock = threading.Lock()
        self._scheduled = False
        self._stopping = False
        self._stop = threading.Event()  # wakes a listener's pause between two tries
        self._on_stopped: Callable[[], None] | None = None

    # The loop ---------------------------------------------------------------------------------
    def add(self, chunk: Chunk) -> None:
        """See ``Delivery.add``."""
        with self._lock:
            self._chunks.append(chunk)
            if self._scheduled or self._stopping:
                return
            self._scheduled = True
        self._workers.submit(self)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """See ``Delivery.stop``; called from the worker's thread, or at once when none is at it."""
        with self._lock:
            self._stopping = True
            self._stop.set()
            self._chunks.clear()
            if self._scheduled:
                self._on_stopped = on_stopped
                return
        on_stopped()

    # A worker ---------------------------------------------------------------------------------
    def run(self) -> None:
        """Deliver what is queued; called by one worker."""
        while True:
            with self._lock:
                if not self._chunks or self._stopping:
                    self._scheduled = False
                    on_stopped = self._on_stopped
                    break
                chunk = self._chunks.popleft()
            self._deliver(chunk)
            self._on_consumed(len(chunk.body))
        if on_stopped is not None:
            on_stopped()

    def _deliver(self, chunk: Chunk) -> None:
        try:
            messages = self._decoder.decode(chunk)
        except CorruptData as error:
            self._give_up(error)
            return
        listener = self._listener
        done = 0
        try:
            for message in messages:
                if self._stopping:
                    return
                try:
                    listener(message)
                except Exception as error:  # noqa: BLE001 - the user's code; the policy decides
                    if not self._retry(message, error):
                        return
                self.position = message.next_offset
                done += 1
        finally:
            self.delivered += done
        if chunk.offsets is not None:
            self.position = chunk.next_offset

    def _give_up(self, error: CorruptData) -> None:
        self.error = error
        self._stopping = True
        logger.error(
            "%s: delivery stops at a damaged record, nothing is skipped: %s", self.where, error
        )

    def _retry(self, message: Message, error: Exception) -> bool:
        """Call the listener again as the policy says; False when delivery was stopped meanwhile."""
        pause = self._config.listener_backoff_s
        skip = self._config.on_listener_error is OnListenerError.SKIP
        tries = 0
        while True:
            tries += 1
            if skip and tries > self._config.listener_retries:
                logger.error(
                    "%s: message at offset %d skipped after %d tries: %r",
                    self.where,
                    message.offset,
                    tries,
                    error,
                )
                return True
            logger.warning(
                "%s: the listener raised for the message at offset %d, try %d: %r",
                self.where,
                message.offset,
                tries,
                error,
            )
            if self._stop.wait(pause):
                return False
            pause = min(pause * 2, _BACKOFF_MAX_S)
            try:
                self._listener(message)
            except Exception as again:  # noqa: BLE001 - see above
                error = again
            else:
                return True


class Workers:
    """Threads that run deliveries, in the order in which they became ready."""

    def __init__(self, count: int, *, name: str) -> None:
        self._ready: queue.SimpleQueue[ThreadDelivery | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, delivery: ThreadDelivery) -> None:
        """Have ``delivery.run`` called once."""
        self._ready.put(delivery)

    def _run(self) -> None:
        while True:
            delivery = self._ready.get()
            if delivery is None:
                return
            delivery.run()

    def close(self, timeout_s: float) -> bool:
        """Stop the threads; False when one of them is still inside a listener after the time."""
        for _ in self._threads:
            self._ready.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(
            thread.is_alive()
            for thread in self._threads
            if thread is not threading.current_thread()
        )
