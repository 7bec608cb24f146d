"""How long a listener may be at a message: ``listener_timeout_s``.

A coroutine is cancelled at the limit, which is a failed try. A thread cannot be ended from outside:
it is told that the listener takes too long, and what the listener returns counts all the same. In
both APIs a hand-over waits no longer than the limit (``core``).
"""

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from vq.client.consumer.troubles import Troubles
from vq.errors import ListenerFailed
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition

logger = get_logger(__name__)
#: How often threads are looked at, as a part of the limit, and at least every so often.
_LOOKS: Final = 4
_LOOK_S: Final = 1.0


def limited(call: Callable[[Any], Awaitable[Any]], limit_s: float) -> Callable[[Any], Any]:
    """Return a listener that is cancelled at the limit."""

    @functools.wraps(call)
    async def bounded(messages: Any) -> Any:
        scope = asyncio.timeout(limit_s)
        try:
            async with scope:
                return await call(messages)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise TimeoutError(f"the listener took longer than {limit_s} s") from error

    return bounded


class Running(NamedTuple):
    """A listener that is at a message, or at a list that begins with it."""

    partition: TopicPartition
    offset: int
    since: float


class Watched:
    """A listener of threads, and since when each of them is in it."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call
        self._running: dict[int, Running] = {}  # by thread

    def __call__(self, messages: Any) -> Any:
        first: Message = messages[0] if isinstance(messages, list) else messages
        me = threading.get_ident()
        where = TopicPartition(first.topic, first.partition)
        self._running[me] = Running(where, first.offset, time.monotonic())
        try:
            return self._call(messages)
        finally:
            del self._running[me]

    def overdue(self, limit_s: float) -> dict[TopicPartition, ListenerFailed]:
        """Return the partitions that a listener has been in for too long, with what to tell."""
        now = time.monotonic()
        found = {}
        for where, offset, since in list(self._running.values()):
            if now - since >= limit_s:
                found[where] = ListenerFailed(
                    f"the listener is at the message at offset {offset} for {now - since:.0f} s, "
                    f"longer than listener_timeout_s = {limit_s}",
                    details={"offset": offset},
                )
        return found


async def watch(
    listeners: Iterable[Any],
    limit_s: float,
    troubles: Troubles,
    held: Callable[[], Collection[TopicPartition]],
) -> None:
    """Tell which of the partitions that are ``held`` a thread's listener is in for too long."""
    told: set[TopicPartition] = set()
    watched = [each for each in listeners if isinstance(each, Watched)]
    while watched:
        await asyncio.sleep(min(limit_s / _LOOKS, _LOOK_S))
        overdue: dict[TopicPartition, ListenerFailed] = {}
        for listener in watched:
            overdue |= listener.overdue(limit_s)
        for where in told - overdue.keys():
            troubles.over(where)
        here = set(held())
        for where in sorted(overdue.keys() & here):
            troubles.failed(where, int(overdue[where].details["offset"]), overdue[where])
            if where not in told:
                logger.warning(
                    "listener takes longer than its limit", partition=where, error=overdue[where]
                )
        told = overdue.keys() & here
