"""The accumulator: takes messages from any thread, within one bound of memory, for the sender.

    append ── plain, and space left? ── its topic's list ── wake the sender, if it sleeps
      └─ no: append_any says what is wrong, waits for space, asks which partition a key belongs to

``append`` runs for every message in its caller's thread, so it is there twice, like the record
codec: in Python, the reference, and compiled in ``_accumulator.c``, which is built at install time
where a C compiler is found and then takes its place.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.future import BlockingSendFuture, SendCallback, SendFuture
from vq.client.producer.head import Head, Heads
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.topic_queues import TopicQueues
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    NotPublished,
    VqError,
)
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message, check_timeout
from vq.store import codec

try:
    from vq.client.producer import _accumulator
except ImportError:  # nothing compiled it
    _accumulator = None  # type: ignore[assignment]

#: Whether the compiled ``append`` is in use.
COMPILED: Final = _accumulator is not None
#: Whether all that clients run for every message is compiled: this and the record codec.
LOOPS_COMPILED: Final = COMPILED and codec.COMPILED

F = TypeVar("F", bound=SendFuture)
_new = object.__new__
_PLAIN_NUMBERS: Final = frozenset((float, int))


class Appender(Protocol):
    """Appends plain messages: the part of the accumulator that runs for each of them.

    Attributes:
        topics: What may be appended to, by name.
        space: Bytes that are left in the buffer. It may go below 0 by one message.
        awake: The sender knows that there is something; cleared by it before it drains.
        closed: Nothing is appended any more.
    """

    @property
    def topics(self) -> dict[str, TopicQueues]: ...

    @property
    def space(self) -> int: ...

    awake: bool
    closed: bool

    def append(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None:
        """Append a plain message to its topic's list; None: it was not, and nothing happened.

        Plain is a message without key and headers, with a tag seen before or none, that its topic
        takes and the buffer has space for. Any thread.

        Args:
            message: What to send.
            callback: Called with the outcome.
            timeout: Seconds until there must be an outcome; None: as configured.
        """

    def use(self, count: int, /) -> None:
        """Take so many bytes of the space, give them back when negative; the lock is held."""


class PythonAppender:
    """The reference. See ``Appender``."""

    def __init__(
        self,
        lock: AbstractContextManager[object],
        clock: Callable[[], float],
        timeout_s: float,
        wake: Callable[[], object],
        heads_of_tags: dict[str, Head],
        space: int,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        """See ``make_appender``."""
        self.topics: dict[str, TopicQueues] = {}
        self.space = space
        self.awake = False
        self.closed = False
        self._lock = lock
        self._clock = clock
        self._timeout_s = timeout_s
        self._wake = wake
        self._heads_of_tags = heads_of_tags
        self._future = future

    def append(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None:
        """See ``Appender.append``."""
        if type(message) is not Message:
            return None
        topic, content, tag, key, headers = message[:5]
        if (
            type(topic) is not str
            or type(content) is not bytes
            or key is not None
            or headers is not None
        ):
            return None
        head = None
        if timeout is None:
            timeout = self._timeout_s
        elif type(timeout) not in _PLAIN_NUMBERS or not 0 <= timeout <= TIMEOUT_S_MAX:
            return None
        if tag is not None:
            head = self._heads_of_tags.get(tag) if type(tag) is str else None
            if head is None:
                return None
        future = _new(self._future)  # what SendFuture(...) does, without a call
        future.content = content
        future.head = head
        future.callback = callback
        future.deadline = self._clock() + timeout
        future.outcome = None
        future.waiters = None
        future.size = len(content) if head is None else len(content) + len(head[1])
        future.partition = -1
        with self._lock:
            queues = self.topics.get(topic)
            if (
                queues is None
                or self.closed
                or self.space <= 0
                or len(content) > queues.content_bytes_max
            ):
                return None
            queues.appended.append(future)
            self.space -= future.size + MESSAGE_OVERHEAD_BYTES
        if not self.awake:
            try:
                self._wake()
            except BaseException:  # a signal handler raised: the sender is told all the same
                self._wake()
                raise
        return future

    def use(self, count: int, /) -> None:
        """See ``Appender.use``."""
        self.space -= count


def make_appender(
    lock: AbstractContextManager[object],
    clock: Callable[[], float],
    timeout_s: float,
    wake: Callable[[], object],
    heads_of_tags: dict[str, Head],
    space: int,
    future: type[SendFuture] = SendFuture,
) -> Appender:
    """Return an appender without topics, compiled where it can be.

    Args:
        lock: Held by whoever changes ``topics``, drains or uses space. The compiled ``append``
            needs none: nothing else runs from its look at the topic to the append.
        clock: Monotonic time.
        timeout_s: Seconds that a message has, where its send names none.
        wake: Tells the sender that there is something, and sets ``awake``.
        heads_of_tags: Heads of tags that were checked before; others are not plain.
        space: Bytes of the buffer.
        future: What is made for each message.
    """
    if not COMPILED:
        return PythonAppender(lock, clock, timeout_s, wake, heads_of_tags, space, future)
    return _accumulator.Appender(
        Message,
        future,
        TopicQueues,
        clock,
        timeout_s,
        wake,
        heads_of_tags,
        space,
        MESSAGE_OVERHEAD_BYTES,
    )


class Accumulator:
    """What one producer was given and has not seen to its end, by topic, and the space it takes.

    ``append`` and ``append_any`` may be called from any thread; the others say who calls them.
    A message goes to ``append`` first, and to ``append_any`` if it was not plain.

    Attributes:
        append: See ``Appender.append``.
        lock: Guards the topics, their queues' ``owner`` and ``pending``, and the space. Reentrant:
            a finalizer or a signal handler may run anywhere, and append.
        topics: The published topics; changed under the lock.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Callable[[], float],
        wake: Callable[[], None],
        *,
        every_plain: bool = True,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        """Make an empty one on the sender's thread, which must never wait for space.

        Args:
            config: Deadlines and the size of the buffer.
            clock: Monotonic time.
            wake: Tells the sender that there is something; any thread.
            every_plain: Messages without a key take turns; otherwise none is plain.
            future: What is made for each message.
        """
        self.lock = threading.RLock()
        self._held_here: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self._config = config
        self._clock = clock
        self._wake = wake
        self._future = future
        self._space_came = threading.Condition(self.lock)
        self._waiting = 0  # threads that wait for space
        self._sender_thread = threading.get_ident()
        self._closed = ""  # why nothing is appended any more
        self._heads = Heads()
        self._appender = make_appender(
            self.lock,
            clock,
            config.send_timeout_s,
            self.wake_sender,
            self._heads.of_tags,
            config.buffer_bytes,
            future,
        )
        self.topics = self._appender.topics
        self.append = self._appender.append if every_plain else _not_plain

    # Any thread -------------------------------------------------------------------------------
    def append_any(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
        *,
        block: bool = True,
    ) -> SendFuture:
        """Append any message.

        Args:
            message: What to send.
            callback: Called on the sender's loop with the outcome.
            timeout: Seconds until there must be an outcome; None: as configured.
            block: Wait while the buffer is full, at most until the send's deadline; never on the
                sender's own thread, which alone makes space.

        Raises:
            InvalidArgument, MessageTooLarge: The message is unusable; nothing was appended.
            NotPublished: The topic was not published by this producer, or was deleted since.
            InvalidState: The producer is closed.
            BufferFull: No space until the deadline (at once, without ``block``, and for a finalizer
                or a signal handler that interrupted another use of the producer in its thread).
        """
        block = block and not self._held_here()  # waiting would give up the lock of both uses
        future, _ = self._append(self._future, message, callback, timeout, block=block)
        self.wake_sender()
        return future

    def append_waited(
        self, message: Message, timeout: float | None
    ) -> tuple[PartitionQueue, BlockingSendFuture]:
        """Append a message whose thread waits for the outcome; return its queue and future.

        The thread may be the one that sends it, so the sender is not woken: ``claim`` comes next.

        Raises:
            InvalidState: A finalizer or a signal handler that interrupted another use of the
                producer in its thread would wait for itself.
            VqError: See ``append_any``.
        """
        if self._held_here():
            raise InvalidState(
                "a blocking send by a finalizer or signal handler, while its thread is inside the "
                "same producer, would wait for itself; use send_async there"
            )
        future, queues = self._append(BlockingSendFuture, message, None, timeout, block=True)
        return queues.queues[future.partition], future

    def _append(
        self,
        make: type[F],
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        block: bool,
    ) -> tuple[F, TopicQueues]:
        if not isinstance(message, Message):
            raise InvalidArgument(f"a message is a vq.Message, not {type(message).__name__}")
        topic, content, tag, key, headers = message[:5]
        queues = self._published(topic)
        if type(content) is not bytes:
            content = _as_bytes(content)
        if len(content) > queues.content_bytes_max:
            raise MessageTooLarge(
                f"message of {len(content)} bytes; topic {topic} takes at most "
                f"{queues.content_bytes_max}"
            )
        head = self._head_of(tag, key, headers)
        bound = self._config.send_timeout_s if timeout is None else check_timeout(timeout)
        future = make(content, head, callback, self._clock() + bound)
        future.partition = queues.partition_of(key)
        with self.lock:
            if self._appender.space <= 0:
                self._wait_for_space(future.deadline, block=block)
            if self._published(topic) is not queues:
                raise NotPublished(f"topic {topic} was deleted and made again meanwhile")
            if make is BlockingSendFuture and future.partition < 0:
                future.partition = queues.next_turn()
            queues.directed |= future.partition >= 0
            queues.appended.append(future)
            self._appender.use(future.size + MESSAGE_OVERHEAD_BYTES)
        return future, queues

    def claim(self, queue: PartitionQueue, future: BlockingSendFuture) -> bool:
        """Have the thread of ``future`` lead a queue: ``take``, send, ``leave``.

        False: somebody else is at it, the sender or another thread, and carries the message or
        passes the lead.
        """
        with self.lock:
            self._drain_topic_of(queue)
            claimed = queue.claim(future)
            if not claimed and not isinstance(queue.owner, BlockingSendFuture):
                self.wake_sender()
            return claimed

    def take(self, queue: PartitionQueue) -> list[BlockingSendFuture]:
        """Return what the thread that leads a queue shall send."""
        with self.lock:
            self._drain_topic_of(queue)
            return queue.take()

    def _drain_topic_of(self, queue: PartitionQueue) -> None:
        queues = self.topics.get(queue.partition.topic)
        if queues is not None and (queues.appended or queues.shares):
            queues.drain()

    def leave(self, queue: PartitionQueue, future: BlockingSendFuture) -> None:
        """Give back a queue if the thread of ``future`` has it; its next owner is told."""
        with self.lock:
            if queue.owner is future and queue.leave():
                self.wake_sender()

    def forsake(self, queue: PartitionQueue, future: BlockingSendFuture) -> None:
        """The thread of ``future`` goes away: the sender carries its message."""
        with self.lock:
            future.leads = False
            if queue.owner is future:
                queue.leave()
            self.wake_sender()

    def wake_sender(self) -> None:
        """Have the sender look at what there is, unless it is about to."""
        try:
            if self.awake:
                return
            self.awake = True
            self._wake()
        except BaseException:  # a signal handler raised, perhaps before the sender was told
            self.awake = False
            self._wake()  # other threads count on it by now
            raise

    @property
    def awake(self) -> bool:
        """Whether the sender is about to look; it says so no more before it does."""
        return self._appender.awake

    @awake.setter
    def awake(self, awake: bool) -> None:
        self._appender.awake = awake

    def give_back(self, count: int, size: int) -> None:
        """Some messages have their outcome: ``size`` bytes as counted by their futures."""
        with self.lock:
            self._appender.use(-size - count * MESSAGE_OVERHEAD_BYTES)
            if self._waiting:
                self._space_came.notify_all()

    def has_space(self) -> bool:
        """Return whether ``append_any`` would not have to wait now."""
        return self._appender.space > 0

    def _published(self, topic: object) -> TopicQueues:
        queues = self.topics.get(topic) if isinstance(topic, str) else None
        if self._closed:
            raise InvalidState(self._closed)
        if not isinstance(topic, str):
            raise InvalidArgument(f"topic {topic!r} is {type(topic).__name__}; give text")
        if queues is None:
            raise NotPublished(f"topic {topic!r} was not published by this producer")
        return queues

    def _head_of(
        self, tag: str | None, key: str | None, headers: Mapping[str, str] | None
    ) -> Head | None:
        if key is not None or headers is not None:
            return self._heads.of(tag, key, headers)
        if tag is None:
            return None
        known = self._heads.of_tags.get(tag) if type(tag) is str else None
        return known or self._heads.of_tag(tag)

    def _wait_for_space(self, deadline: float, *, block: bool) -> None:
        """Return once there is space; the lock is held. Half the buffer must drain before that."""
        if threading.get_ident() == self._sender_thread:
            block = False  # waiting here would keep the sender from making space
        buffer_bytes = self._config.buffer_bytes
        self._waiting += 1
        try:
            while self._appender.space < buffer_bytes // 2:
                left = deadline - self._clock()
                if not block or left <= 0 or not self._space_came.wait(left):
                    raise BufferFull(
                        f"messages of {buffer_bytes - self._appender.space} bytes wait already, "
                        f"buffer_bytes is {buffer_bytes}"
                    )
                if self._closed:
                    raise InvalidState(self._closed)
        finally:
            self._waiting -= 1

    # The sender -------------------------------------------------------------------------------
    def drain(self) -> None:
        """Hand all that was appended to the queues of its partitions."""
        with self.lock:
            for queues in self.topics.values():
                if queues.appended or queues.shares:
                    queues.drain()

    def enter(self, queue: PartitionQueue) -> bool:
        """Take a queue for the sender; False while a blocking sender has it."""
        with self.lock:
            return queue.enter()

    def drop_late(self, queue: PartitionQueue, now: float) -> None:
        """Report what waits past its deadline in a queue that a blocking sender has."""
        with self.lock:  # that thread takes out of ``pending``, too
            late = queue.take_late(now)
        queue.tell_late(late)

    def open(self, queues: TopicQueues) -> None:
        """Let messages be appended to a topic."""
        with self.lock:
            self.topics[queues.topic] = queues

    def remove(self, queues: TopicQueues, error: VqError) -> list[PartitionQueue]:
        """Give up a topic: nothing is appended any more. Return its queues, to be closed."""
        with self.lock:
            self.topics.pop(queues.topic, None)
            queues.drain()
            for queue in queues.queues:
                queue.closed = error
        return queues.queues

    def close(self, why: str) -> None:
        """Refuse everything from now on; who waits for space is told. What was taken stays."""
        with self.lock:
            self.refuse(why)
            self._space_came.notify_all()

    def refuse(self, why: str) -> None:
        """Do so without the lock: in the child of a fork nobody may be there to release it."""
        self._closed = why
        self._appender.closed = True

    @property
    def closed(self) -> str:
        """Why nothing is appended any more; empty while it is open."""
        return self._closed

    def queues(self) -> list[PartitionQueue]:
        """Return the queues of all topics."""
        return [queue for queues in self.topics.values() for queue in queues.queues]


def _not_plain(
    message: Message, callback: SendCallback | None, timeout: float | None, /
) -> SendFuture | None:
    return None


def _as_bytes(content: object) -> bytes:
    if not isinstance(content, bytes | bytearray | memoryview):
        shown = repr(content)[:40]
        raise InvalidArgument(
            f"content {shown} is {type(content).__name__}; give bytes (text: content.encode())"
        )
    try:
        return bytes(memoryview(content))  # the bytes themselves, whatever a derived type makes up
    except ValueError as error:
        raise InvalidArgument(f"content cannot be read: {error}") from error
