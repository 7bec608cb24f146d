"""Answers on their way to one peer, and what waits while it does not read them. Loop-bound.

Answers gather until the end of the loop iteration and leave with one ``writelines``. A peer that
has not read more than ``write_buffer_bytes`` of them is *congested*: what makes large answers is
deferred until it has read enough.

Under TLS the transport encrypts what it is given before it returns, for 4 MiB some milliseconds. So
it gets ``SLICE_BYTES`` in one iteration, and the rest in the next ones.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from vq import limits
from vq.clock import Clock
from vq.remoting.frames import Buffer

#: Bytes that are encrypted in one iteration of the loop, in about a quarter of a millisecond.
SLICE_BYTES: Final = 256 * limits.KIB


class Outgoing:
    """The answers for one connection.

    Args:
        buffer_bytes: A peer with more unread bytes is congested.
        clock: For durations.

    Attributes:
        congested: See above.
        encrypted: The connection is under TLS.
    """

    __slots__ = (
        "_buffer_bytes",
        "_buffers",
        "_bytes",
        "_congested_since",
        "_deferred",
        "_is_write_paused",
        "_now",
        "_unread_bytes",
        "congested",
        "encrypted",
    )

    def __init__(self, buffer_bytes: int, clock: Clock) -> None:
        self.congested = False
        self.encrypted = False
        self._buffer_bytes = buffer_bytes
        self._now = clock.monotonic
        self._buffers: list[Buffer] = []
        self._bytes = 0  # in them
        self._deferred: list[Callable[[], None]] = []
        self._is_write_paused = False
        self._congested_since = 0.0
        self._unread_bytes = 0  # at the last sweep

    def add(self, buffers: list[Buffer]) -> bool:
        """Gather an answer; True: it is the first since ``write``."""
        is_first = not self._buffers
        self._buffers += buffers
        for buffer in buffers:
            self._bytes += len(buffer)
        if self._bytes > self._buffer_bytes:
            self._congest()  # until the transport has shown how much it takes
        return is_first

    @property
    def waits(self) -> bool:
        """Whether a ``write`` has left something for the next iteration of the loop."""
        return bool(self._buffers)

    def write(self, transport: asyncio.WriteTransport | None, *, whole: bool = False) -> bool:
        """Hand what was gathered to the transport; True: the peer is not congested any more.

        ``relieve`` comes next then. Under TLS some may be left, unless ``whole``; see ``waits``.
        """
        buffers, self._buffers = self._buffers, []
        size, self._bytes = self._bytes, 0
        if transport is None or not buffers:
            return False
        if self.encrypted and size > SLICE_BYTES and not whole:
            buffers, self._buffers = _cut(buffers)
            self._bytes = sum(map(len, self._buffers))
        transport.writelines(buffers)
        if self._buffers:
            return False
        return (
            self.congested
            and not self._is_write_paused
            and transport.get_write_buffer_size() <= self._buffer_bytes
        )

    def pause(self) -> None:
        """The transport takes no more for now: the peer does not read."""
        self._is_write_paused = True
        self._congest()

    def resume(self) -> None:
        """The transport takes more again; ``relieve`` comes next."""
        self._is_write_paused = False

    def defer(self, action: Callable[[], None]) -> None:
        """Call ``action`` in ``relieve``, once the peer has read enough."""
        self._deferred.append(action)

    def relieve(self) -> bool:
        """Call what was deferred until the peer is congested again; True: all was called."""
        self.congested = False
        deferred, self._deferred = self._deferred, []
        for index, action in enumerate(deferred):
            if self.congested:
                self._deferred += deferred[index:]
                return False
            action()
        return True

    def forget(self) -> None:
        """Call nothing that was deferred."""
        self._deferred = []

    def unread_for(self, unread_bytes: int, now: float) -> float:
        """Return for how many seconds a congested peer has read nothing; asked at every sweep.

        ``unread_bytes`` is what the transport keeps for it at ``now``.
        """
        if unread_bytes < self._unread_bytes or not self._unread_bytes:
            self._congested_since = now
        self._unread_bytes = unread_bytes
        return now - self._congested_since

    def _congest(self) -> None:
        if not self.congested:
            self.congested = True
            self._congested_since = self._now()
            self._unread_bytes = 0


def _cut(buffers: list[Buffer]) -> tuple[list[Buffer], list[Buffer]]:
    """Return the first ``SLICE_BYTES`` of some buffers, and the rest; nothing is copied."""
    left = SLICE_BYTES
    for index, buffer in enumerate(buffers):
        if len(buffer) > left:
            view = memoryview(buffer)
            first = [*buffers[:index], view[:left]] if left else buffers[:index]
            return first, [view[left:], *buffers[index + 1 :]]
        left -= len(buffer)
    return buffers, []
