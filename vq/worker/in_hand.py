"""Memory that a process shares with its parent: what it has in hand, and what it has handled.

The parent must know it when the process cannot tell any more: it was killed, or hangs. A process
writes it for each message, so it costs no system call. One slot belongs to one thread, the
only one that writes it; the parent reads.

    begun_s | offset | id | earlier | handled | failed | partition | length of topic | topic

``begun_s`` is 0 while nothing is in hand. It is written last at the begin and first at the end, so
what a reader finds between two equal values belongs together.
"""

import mmap
import os
import struct
import tempfile
import threading
import time
from typing import Final, NamedTuple

from vq.limits import NAME_CHARS_MAX
from vq.model import Message
from vq.worker.suspects import MessageKey

_SLOT: Final = struct.Struct(f"=dqqqqqiH{NAME_CHARS_MAX}s")
_BEGUN: Final = struct.Struct("=d")
_COUNTS: Final = struct.Struct("=qq")
_MESSAGE: Final = struct.Struct("=qqq")
_PLACE: Final = struct.Struct(f"=iH{NAME_CHARS_MAX}s")
_COUNTS_AT: Final = _BEGUN.size + _MESSAGE.size
_PLACE_AT: Final = _COUNTS_AT + _COUNTS.size
_READS_MAX: Final = 3


class HeldByThread(NamedTuple):
    """A message that a thread has in hand, and since when by ``time.monotonic``."""

    key: MessageKey
    begun_s: float


def key_of(message: Message) -> MessageKey:
    """Return which message of which delivery it is."""
    failure = message.failure
    earlier = 0 if failure is None else failure.attempts
    return MessageKey(message.topic, message.partition, message.offset, message.id, earlier)


def make_file(slots: int) -> int:
    """Return the descriptor of a file with so many empty slots; it has no name.

    In memory where the system can: a full disk would end whoever writes into its pages.

    Raises:
        OSError: The system has no descriptor, memory or space left.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("vq-in-hand")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.truncate(descriptor, slots * _SLOT.size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Slots:
    """The slots of one process.

    Args:
        descriptor: Of ``make_file``; it is not needed behind this call.
        count: How many.
    """

    def __init__(self, descriptor: int, count: int) -> None:
        self._map = mmap.mmap(descriptor, count * _SLOT.size)
        self._count = count
        self._lock = threading.Lock()
        self._taken = 0
        self._own = threading.local()

    # The process ------------------------------------------------------------------------------
    def begin(self, message: Message) -> None:
        """The calling thread has a message in hand.

        Raises:
            IndexError: More threads call than there are slots.
        """
        own = self._own
        try:
            at = own.at
        except AttributeError:
            at = own.at = self._take()
            own.handled = own.failed = 0
        topic = message.topic.encode()
        key = key_of(message)
        _MESSAGE.pack_into(self._map, at + _BEGUN.size, key.offset, key.id, key.earlier)
        _PLACE.pack_into(self._map, at + _PLACE_AT, key.partition, len(topic), topic)
        _BEGUN.pack_into(self._map, at, time.monotonic())

    def end(self, *, failed: bool) -> None:
        """The calling thread has it no more."""
        own = self._own
        _BEGUN.pack_into(self._map, own.at, 0.0)
        if failed:
            own.failed += 1
        else:
            own.handled += 1
        _COUNTS.pack_into(self._map, own.at + _COUNTS_AT, own.handled, own.failed)

    def _take(self) -> int:
        with self._lock:
            if self._taken >= self._count:
                raise IndexError(f"more than {self._count} threads have messages in hand")
            self._taken += 1
            return (self._taken - 1) * _SLOT.size

    # The parent -------------------------------------------------------------------------------
    def in_hand(self) -> list[HeldByThread]:
        """Return what is in hand now."""
        found = (self._read(number * _SLOT.size) for number in range(self._count))
        return [each for each in found if each is not None]

    def _read(self, at: int) -> HeldByThread | None:
        for _ in range(_READS_MAX):
            begun, offset, id, earlier, _, _, partition, length, topic = _SLOT.unpack_from(
                self._map, at
            )
            if not begun:
                return None
            if _BEGUN.unpack_from(self._map, at)[0] == begun:
                name = topic[:length].decode(errors="replace")
                return HeldByThread(MessageKey(name, partition, offset, id, earlier), begun)
        return None  # it comes and goes: what is in hand for long is found

    def counts(self) -> tuple[int, int]:
        """Return how many messages were handled, and how many tries failed."""
        handled = failed = 0
        for number in range(self._count):
            one, other = _COUNTS.unpack_from(self._map, number * _SLOT.size + _COUNTS_AT)
            handled, failed = handled + one, failed + other
        return handled, failed

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()
