"""The appender: takes plain messages, and accounts for the buffer of a producer.

``append`` runs for every plain message in its caller's thread. So it exists twice, like the record
codec: in Python, the reference, and compiled in ``_accumulator.c``. If the installer finds a C
compiler, it builds the compiled one, which is then used.

What a message needs that is not plain, and waiting for space, are the accumulator's.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from vq.client.config import MESSAGE_OVERHEAD_BYTES
from vq.client.future import ANY_PARTITION, SendCallback, SendFuture, accumulator
from vq.client.producer.intake.stages import Head
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message
from vq.store.records import codec

#: Whether the compiled ``append`` is in use.
COMPILED: Final = accumulator is not None
#: Whether all loops that clients run per message are compiled: this one and the record codec.
LOOPS_COMPILED: Final = COMPILED and codec.COMPILED

_new = object.__new__
_PLAIN_NUMBERS: Final = frozenset((float, int))


class Appender(Protocol):
    """Appends plain messages: the part of the accumulator that runs for each of them.

    Attributes:
        topics: The published topics, by name.
        space: Free bytes of the buffer. It may go below 0 by one message.
        places: How many more messages the buffer takes.
        awake: The sender will drain soon; it clears this before it drains.
        closed: No message may be appended any more.
    """

    @property
    def topics(self) -> dict[str, TopicQueues]: ...

    @property
    def space(self) -> int: ...

    @property
    def places(self) -> int: ...

    awake: bool
    closed: bool

    def append(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None:
        """Append a plain message to its topic's list; return None, without effect, if it is not.

        A plain message has no key, no headers and no time of delivery, and no tag or a known one.
        It names no partition unless it was received. Its topic stores a payload of its size as it
        is, and the buffer has space for it. To the compiled appender also messages with usual keys
        and headers are plain, see ``_head.h``: it makes the same of them as the stages do. Any
        thread.

        Args:
            message: The message to send.
            callback: Called with the outcome.
            timeout: Seconds until there must be an outcome; None: as configured.
        """

    def append_unheard(
        self, message: Message, callbacks: dict[str, SendCallback], timeout: float | None, /
    ) -> SendFuture | None:
        """Append a plain message with the callback of its topic; see ``append``.

        It returns None without effect as well if the topic has no callback in there.
        """

    def put(self, future: SendFuture, queues: TopicQueues, /) -> bool:
        """Append a message that passed all stages; return whether there was space for it.

        There is none in a topic that is not published any more. The handler of a signal comes
        before it or behind it; with the reference also inside, where it holds the lock. Any thread.
        """

    def prepare(
        self,
        messages: list[Any],
        places: list[int],
        count: int,
        size: int,
        deadline: float,
        queues: TopicQueues,
        partition: int,
        /,
    ) -> list[SendFuture]:
        """Return the futures of plain messages, which are not appended. Any thread.

        It ends before the first message that is not plain; the reference takes none.

        Args:
            messages: All of a call.
            places: Which of them are to be prepared, the last one first.
            count: Prepare at most so many.
            size: Prepare none behind so many bytes.
            deadline: Of each.
            queues: Their topic.
            partition: Where those go that have no key.
        """

    def one_topic(self, messages: list[Any], /) -> str | None:
        """Return the topic of messages that all have the same and no time of delivery.

        None: they have not, or what they have is not said; the reference says nothing.
        """

    def use(self, size: int, count: int, /) -> None:
        """Count ``count`` messages of ``size`` bytes together; negative numbers free them.

        The caller has the lock.
        """


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
        places: int,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        """See ``make_appender``."""
        self.topics: dict[str, TopicQueues] = {}
        self.space = space
        self.places = places
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
        topic, content, tag, key, headers, partition, offset = message[:7]
        if (
            type(topic) is not str
            or type(content) is not bytes
            or key is not None
            or headers is not None
            or (partition != ANY_PARTITION and offset == ANY_PARTITION)
            or message.deliver_at is not None
            or message.delay_s is not None
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
        future = _new(self._future)  # the same as SendFuture(...), without the call of __init__
        future.content = content
        future.head = head
        future.callback = callback
        future.appended_at = now = self._clock()
        future.deadline = now + timeout
        future.outcome = None
        future.waiters = None
        future.size = len(content) if head is None else len(content) + len(head[1])
        future.partition = -1
        queues = self.topics.get(topic)
        if queues is None or len(content) > queues.plain_bytes_max:
            return None
        return future if self.put(future, queues) else None

    def append_unheard(
        self, message: Message, callbacks: dict[str, SendCallback], timeout: float | None, /
    ) -> SendFuture | None:
        """See ``Appender.append_unheard``."""
        if type(message) is not Message or type(message.topic) is not str:
            return None
        callback = callbacks.get(message.topic)
        return None if callback is None else self.append(message, callback, timeout)

    def put(self, future: SendFuture, queues: TopicQueues, /) -> bool:
        """See ``Appender.put``."""
        with self._lock:
            if self.closed or self.space <= 0 or self.places <= 0:
                return False
            if self.topics.get(queues.topic) is not queues:
                return False
            queues.directed |= future.partition >= 0
            queues.appended += (future,)  # no call between these: see ``topic_queues``
            self.space -= future.size + MESSAGE_OVERHEAD_BYTES
            self.places -= 1
        if not self.awake:
            try:
                self._wake()
            except BaseException:  # a signal handler raised: wake the sender nevertheless
                self._wake()
                raise
        return True

    def prepare(
        self,
        messages: list[Any],
        places: list[int],
        count: int,
        size: int,
        deadline: float,
        queues: TopicQueues,
        partition: int,
        /,
    ) -> list[SendFuture]:
        """See ``Appender.prepare``."""
        return []

    def one_topic(self, messages: list[Any], /) -> str | None:
        """See ``Appender.one_topic``."""
        return None

    def use(self, size: int, count: int, /) -> None:
        """See ``Appender.use``.

        A signal handler may raise before its first step, and then the account stays wrong by these
        messages. It cannot interrupt the compiled one.
        """
        self.space -= size + count * MESSAGE_OVERHEAD_BYTES
        self.places -= count


def make_appender(
    lock: AbstractContextManager[object],
    clock: Callable[[], float],
    timeout_s: float,
    wake: Callable[[], object],
    heads_of_tags: dict[str, Head],
    space: int,
    places: int,
    future: type[SendFuture] = SendFuture,
) -> Appender:
    """Return an appender without topics, the compiled one if it was built.

    Args:
        lock: A caller holds it while it changes ``topics``, drains or uses space. The compiled
            ``append`` needs no lock: no other code runs between its look-up of the topic and the
            append.
        clock: Monotonic time.
        timeout_s: Seconds until there must be an outcome, for a send without a time-out.
        wake: Wakes the sender and sets ``awake``.
        heads_of_tags: Heads of known tags; a message with another tag is not plain.
        space: Bytes of the buffer.
        places: Messages of the buffer.
        future: The class of the future that is made for each message.
    """
    if not COMPILED:
        return PythonAppender(lock, clock, timeout_s, wake, heads_of_tags, space, places, future)
    compiled: Appender = accumulator.Appender(
        Message,
        future,
        TopicQueues,
        clock,
        timeout_s,
        wake,
        heads_of_tags,
        space,
        places,
        MESSAGE_OVERHEAD_BYTES,
    )
    return compiled


def not_plain(message: Message, callback: object, timeout: float | None, /) -> SendFuture | None:
    """Stand in for ``Appender.append`` where no message is plain; return None."""
    return None
