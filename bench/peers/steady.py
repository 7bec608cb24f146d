"""Senders that go on while a node is killed: on a schedule, with so many messages unacknowledged.

A message that is late because those before it were not acknowledged is sent as soon as it may be.
"""

import array
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from vq.cli.bench.workload import Ready, WorkFailed, content

_DRAIN_S: Final = 60.0
_PAUSE_S: Final = 0.002
_SHOWN: Final = 3

Done = Callable[[BaseException | None], None]
"""Called once per message: None when it was acknowledged."""


class Progress:
    """What one stream sent, and when each message was acknowledged.

    Args:
        stream: Of the contents.
        size: Of each content.
        in_flight: Messages that may be unacknowledged at a time.
        rate: Messages a second.
    """

    def __init__(self, *, stream: int, size: int, in_flight: int, rate: float) -> None:
        self.sent = 0
        self._stream = stream
        self._size = size
        self._in_flight = in_flight
        self._rate = rate
        self._begin = time.monotonic()
        self._times = array.array("d")
        self._failed: list[int] = []
        self._errors: list[str] = []

    @property
    def outstanding(self) -> int:
        """Messages without an outcome."""
        return self.sent - len(self._times) - len(self._failed)

    def begin(self) -> None:
        """Begin the schedule now."""
        self._begin = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the next message may be sent."""
        if self.outstanding >= self._in_flight:
            return False
        return time.monotonic() >= self._begin + self.sent / self._rate

    def take(self) -> tuple[int, bytes]:
        """Return the next message; it counts as sent."""
        number = self.sent
        self.sent += 1
        return number, content(self._stream, number, self._size)

    def done(self, number: int, error: BaseException | None = None) -> None:
        """Note the outcome of a message."""
        if error is None:
            self._times.append(time.monotonic())
            return
        self._failed.append(number)
        if len(self._errors) < _SHOWN:
            self._errors.append(f"{type(error).__name__}: {error}")

    def result(self) -> dict[str, Any]:
        """Return what a work returns."""
        if self.outstanding:
            raise WorkFailed(f"{self.outstanding} messages had no outcome after {_DRAIN_S:g} s")
        return {
            "sent": self.sent,
            "failed": self._failed,
            "errors": self._errors,
            "times": sorted(self._times),
        }


def send_steadily(
    ready: Ready,
    progress: Progress,
    send: Callable[[bytes, Done], None],
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Send until the second ``ready``; return once every message has an outcome.

    Args:
        ready: See ``Ready``.
        progress: Of this stream.
        send: Sends one message with a callback; on a thread.
        wait: Waits so long; a client that calls back only when asked does it here.
    """
    stop = threading.Event()
    raised: list[Exception] = []

    def work() -> None:
        progress.begin()
        while not stop.is_set():
            if not progress.is_due():
                wait(_PAUSE_S)
                continue
            number, body = progress.take()
            send(body, lambda error, number=number: progress.done(number, error))  # type: ignore[misc]
            wait(0)
        deadline = time.monotonic() + _DRAIN_S
        while progress.outstanding and time.monotonic() < deadline:
            wait(_PAUSE_S)

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told below, on the thread of the work
            raised.append(error)

    thread = threading.Thread(target=guarded)
    ready()
    thread.start()
    ready()
    stop.set()
    thread.join()
    if raised:
        raise WorkFailed(f"sending ended: {raised[0]!r}")
    return progress.result()


async def publish_steadily(
    ready: Ready, progress: Progress, publish: Callable[[int, bytes], Awaitable[None]]
) -> dict[str, Any]:
    """Do the same with coroutines; ``publish`` returns when a message was acknowledged."""
    await asyncio.to_thread(ready)
    stopping = asyncio.ensure_future(asyncio.to_thread(ready))
    progress.begin()
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, body: bytes) -> None:
        await publish(number, body)
        progress.done(number)

    while not stopping.done():
        if not progress.is_due():
            await asyncio.sleep(_PAUSE_S)
            continue
        task = asyncio.create_task(one(*progress.take()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=_DRAIN_S)
    return progress.result()
