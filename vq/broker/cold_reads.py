"""Reads of bytes that are not in memory: a thread brings them there first.

A read of the mapped file on the event loop waits for the disk if pages are missing, and all
connections wait with it. So a read first asks the log whether the bytes are in memory
(``LogReader.cold``); if not, they are fetched here, and the read goes on afterwards.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from vq.broker.runner import Lane, Runner
from vq.broker.session import Session
from vq.broker.tasks import Tasks
from vq.log_lines import get_logger

logger = get_logger(__name__)


class ColdRead(NamedTuple):
    """Bytes to bring into memory, and the request that waits for them."""

    fetch: Callable[[], None]  # blocks
    wanted: Callable[[], bool]  # whether the request still waits
    then: Callable[[], None]  # called on the loop, if the request still waits


class ColdReads:
    """All cold reads of a node. Those of one connection come one after the other.

    So one connection cannot have more brought into memory than one answer; how many wait is bounded
    by its requests in flight.
    """

    def __init__(self, runner: Runner, tasks: Tasks) -> None:
        self._runner = runner
        self._tasks = tasks
        self._waiting: dict[Session, deque[ColdRead]] = {}

    def add(self, session: Session, read: ColdRead) -> None:
        """Have bytes fetched for a request of ``session``."""
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.append(read)
            return
        self._waiting[session] = deque([read])
        self._tasks.start(self._work_off(session))

    async def _work_off(self, session: Session) -> None:
        waiting = self._waiting[session]
        try:
            while waiting:
                read = waiting.popleft()
                if read.wanted():
                    await self._runner.run(read.fetch, Lane.READ)
                if read.wanted():
                    self._go_on(read)
        finally:
            del self._waiting[session]

    @staticmethod
    def _go_on(read: ColdRead) -> None:
        try:
            read.then()
        except Exception:
            logger.exception("request that waited for the disk failed")
