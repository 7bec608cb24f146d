"""The intake of a producer: plain messages are taken in without a lock, in one step each.

What runs here runs for every message in its caller's thread, so it is there twice, like the record
codec: in Python, the reference, and compiled in ``_intake.c``, which is built at install time where
a C compiler is found and then takes its place. Whatever is not plain (a key, headers, a tag never
seen before, a large content, an odd time-out, a full buffer, a topic not published) is left to the
producer, which says what is wrong or waits.

    message ── plain? ── has its topic a line with room? ── append ── wake the loop, if it sleeps
                 └────── no: nothing happened ──────┘
"""

import threading
from collections.abc import Callable
from typing import Final, Protocol

from vq.client.future import SendCallback, SendFuture
from vq.client.producer.head import Head
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message
from vq.store import codec

try:
    from vq.client.producer import _intake
except ImportError:  # nothing compiled it
    _intake = None  # type: ignore[assignment]

#: Whether the compiled intake is in use.
COMPILED: Final = _intake is not None
#: Whether all that clients run for every message is compiled: this and the record codec.
LOOPS_COMPILED: Final = COMPILED and codec.COMPILED
#: Larger messages are not taken in: the buffer must know of each at once.
TAKEN_IN_BYTES_MAX: Final = 4_096

Line = tuple[list[SendFuture], int]
"""What a topic has taken in, and the largest content that it takes."""

_new = object.__new__
_PLAIN_NUMBERS: Final = frozenset((float, int))

if _intake is not None:
    _intake.quicken(Message)  # a producer's caller makes one for every send


class Intake(Protocol):
    """What the producer sees of it.

    Attributes:
        lines: Topic to line. Topics that take nothing have none. Whoever takes a line away empties
            its list afterwards, and finds everything that ``take`` said it took.
        most: So many messages may wait in each line.
        awake: The loop knows that there is something; cleared by the loop before it empties lines.
    """

    @property
    def lines(self) -> dict[str, Line]: ...

    most: int
    awake: bool

    def take(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None:
        """Append a plain message to its topic's line; None: it was not taken, nothing happened.

        Any thread.

        Args:
            message: What to send.
            callback: Called with the outcome.
            timeout: Seconds until there must be an outcome; None: as configured.
        """


class PythonIntake:
    """The reference. See ``Intake``."""

    def __init__(
        self,
        lock: threading.Lock,
        clock: Callable[[], float],
        timeout_s: float,
        wake: Callable[[], object],
        heads_of_tags: dict[str, Head],
        bytes_max: int,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        """See ``make_intake``."""
        self.lines: dict[str, Line] = {}
        self.most = 0
        self.awake = False
        self._lock = lock
        self._clock = clock
        self._timeout_s = timeout_s
        self._wake = wake
        self._heads_of_tags = heads_of_tags
        self._bytes_max = bytes_max
        self._future = future

    def take(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None:
        """See ``Intake.take``."""
        if type(message) is not Message:
            return None
        topic, content, tag, key, headers = message[:5]
        if (
            type(topic) is not str
            or type(content) is not bytes
            or len(content) > self._bytes_max
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
        line = self.lines.get(topic)
        if line is None:
            return None
        taken_in, bytes_max = line
        if len(content) > bytes_max or len(taken_in) >= self.most:
            return None
        # No lock. Whoever empties the list clears ``awake`` before, and whoever takes the line away
        # empties it afterwards: neither can miss what was appended here.
        taken_in.append(future)
        if self.lines.get(topic) is not line and self._came_too_late(topic, taken_in, future):
            return None
        if not self.awake:
            self._wake()
        return future

    def _came_too_late(self, topic: str, taken_in: list[SendFuture], future: SendFuture) -> bool:
        """The line was taken away meanwhile: whether the message has to be taken back."""
        with self._lock:
            line = self.lines.get(topic)
            if (line is not None and line[0] is taken_in) or future not in taken_in:
                return False  # only its bound changed; or it was taken along
            taken_in.remove(future)
            return True


def make_intake(
    lock: threading.Lock,
    clock: Callable[[], float],
    timeout_s: float,
    wake: Callable[[], object],
    heads_of_tags: dict[str, Head],
    bytes_max: int,
    future: type[SendFuture] = SendFuture,
) -> Intake:
    """Return an intake without lines, compiled where it can be.

    Args:
        lock: Held by whoever takes lines away or empties them.
        clock: Monotonic time.
        timeout_s: Seconds that a message has, where its send names none.
        wake: Tells the loop that there is something, and sets ``awake``.
        heads_of_tags: Heads of tags that were checked before; others are not plain.
        bytes_max: Largest content that is plain; -1: none is.
        future: What is made for each message.
    """
    if not COMPILED:
        return PythonIntake(lock, clock, timeout_s, wake, heads_of_tags, bytes_max, future)
    return _intake.Intake(Message, future, clock, timeout_s, wake, heads_of_tags, bytes_max)
