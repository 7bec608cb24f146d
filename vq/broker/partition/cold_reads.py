"""Reads of bytes that are not in memory: a thread brings them there first.

A read of the mapped file on the event loop waits for the disk if pages are missing, and all
connections wait with it. So a read first asks the log whether the bytes are in memory
(``LogReader.cold``); if not, they are fetched here, and the read goes on afterwards. Archived bytes
are served from memory only: also a look-up in them may have to wait (``read_again``).
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from vq.broker.base.runner import Lane, Runner, wait_at_most
from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.partition.context import Context
from vq.log_lines import get_logger
from vq.store.archive.archive import place_of
from vq.store.archive.archived_file import Fetch, NotInMemory

logger = get_logger(__name__)


class ColdRead(NamedTuple):
    """Bytes to bring into memory, and the request that waits for them."""

    fetch: Callable[[], None]  # blocks
    wanted: Callable[[], bool]  # whether the request still waits
    then: Callable[[], None]  # called on the loop, if the request still waits


class _ColdRequest:
    """A request that is handled again once bytes are in memory."""

    def __init__(self, session: Session) -> None:
        self._session = session
        session.waiting[self] = None

    @property
    def is_wanted(self) -> bool:
        """Whether its connection is there still."""
        return self in self._session.waiting

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self._session.waiting.pop(self, None)


#: How long a request waits for bytes of an archive elsewhere.
ELSEWHERE_TIMEOUT_S: Final = 5.0
#: Fetches for one request; a look-up needs one for each chunk that it looks into.
FETCHES_MAX: Final = 64


class Tries:
    """Counts how often a request was handled again."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = FETCHES_MAX

    def spend(self, error: NotInMemory) -> None:
        """Count one more.

        Raises:
            NotInMemory: There were too many: what was fetched is pushed out again and again.
        """
        self._left -= 1
        if self._left < 0:
            raise error


def read_again(
    context: Context, session: Session, error: NotInMemory, again: Callable[[], None]
) -> None:
    """Have ``again`` called once the bytes are in memory that a request lacked."""
    waiting = _ColdRequest(session)

    def then() -> None:
        waiting.cancel()
        again()

    context.fetch_cold(session, ColdRead(error.fetch, lambda: waiting.is_wanted, then))


def threads_of(fetch: Callable[[], None]) -> tuple[Lane, str]:
    """Return on which lane, and at which place, bytes are fetched: some may never come."""
    place = place_of(fetch.url) if isinstance(fetch, Fetch) else ""
    return (Lane.ELSEWHERE if place else Lane.READ), place


class ColdReads:
    """All cold reads of a node. Those of one connection and place come one after the other.

    So one connection cannot have more brought into memory than one answer; how many wait is bounded
    by its requests in flight. What comes from elsewhere is waited for ``ELSEWHERE_TIMEOUT_S`` at
    most; then its request is answered with an error.
    """

    def __init__(self, runner: Runner, tasks: Tasks) -> None:
        self._runner = runner
        self._tasks = tasks
        self._waiting: dict[tuple[Session, str], deque[ColdRead]] = {}  # by place

    @property
    def waiting(self) -> int:
        """How many reads wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def add(self, session: Session, read: ColdRead) -> None:
        """Have bytes fetched for a request of ``session``."""
        key = session, threads_of(read.fetch)[1]
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(read)
            return
        self._waiting[key] = deque([read])
        self._tasks.start(self._work_off(key))

    async def _work_off(self, key: tuple[Session, str]) -> None:
        waiting = self._waiting[key]
        try:
            while waiting:
                read = waiting.popleft()
                if read.wanted():
                    await self._fetch(read.fetch)
                if read.wanted():
                    self._go_on(read)
        finally:
            del self._waiting[key]

    async def _fetch(self, fetch: Callable[[], None]) -> None:
        lane, place = threads_of(fetch)
        try:
            if not isinstance(fetch, Fetch) or not place:
                await self._runner.run(fetch, lane)
                return
            try:
                await wait_at_most(ELSEWHERE_TIMEOUT_S, self._runner.run(fetch, lane, place))
            except TimeoutError as error:
                fetch.give_up(str(error))
        except Exception:  # the read that follows tells its request; others wait behind this one
            logger.exception("bringing bytes into memory failed")

    @staticmethod
    def _go_on(read: ColdRead) -> None:
        try:
            read.then()
        except Exception:
            logger.exception("request that waited for the disk failed")
