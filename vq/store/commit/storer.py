"""Which logs are dirty, and what becomes of each when a flush ends.

The storer lives on the event loop. It keeps the set of dirty logs; at the end of a loop iteration,
or before that if nothing else is expected in it, and whenever a flush ends, it hands all of them to
the flusher at once. What is appended while a flush runs waits for the next one.
"""

from collections.abc import Sequence
from typing import Protocol

from vq.errors import VqError
from vq.log_lines import get_logger
from vq.store.commit.flusher import Flusher
from vq.store.log.ticket import SyncTicket
from vq.turn import Turn

logger = get_logger(__name__)


class Flushable(Protocol):
    """A log, and who waits until what is appended to it is durable; in a broker a channel."""

    def begin_flush(self) -> SyncTicket | None:
        """Return what is to be made durable, or None when nothing is dirty any more."""
        ...

    def end_flush(self, ticket: SyncTicket) -> None:
        """Note that the ticket is durable. Must be quick: the next flush waits for it."""
        ...

    def acknowledge_flushed(self) -> None:
        """Acknowledge the batches that are durable now."""
        ...

    def flush_failed(self, error: BaseException) -> None:
        """Note that the ticket may or may not be durable and that nothing more will be."""
        ...


class Storer:
    """Starts flushes and tells the logs how they ended.

    Invariant: at most one flush is in flight, and while any log is dirty one is in flight or
    will be started at the end of this loop iteration.

    Attributes:
        flushes: How many flushes ended.
        flushed_logs: Over how many logs in sum; divided by ``flushes`` it is the width of a commit.
    """

    def __init__(self, flusher: Flusher, turn: Turn) -> None:
        self._flusher = flusher
        self._turn = turn
        self._dirty: dict[Flushable, None] = {}  # a set that keeps its order
        self._flushing: list[Flushable] = []
        self._busy = False
        self.flushes = 0
        self.flushed_logs = 0
        turn.on_end(self.kick, early=True)

    def start(self) -> None:
        """Start the flusher; call on the event loop."""
        self._flusher.start(self._on_done)

    def close(self) -> None:
        """End the flusher after the flush in flight."""
        self._flusher.close()

    def mark(self, log: Flushable) -> None:
        """Have ``log`` flushed with the next flush."""
        if not self._busy and not self._dirty:
            self._turn.schedule()
        self._dirty[log] = None

    def kick(self) -> None:
        """Start a flush of all that is dirty, unless one is in flight."""
        if self._busy or not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        logs: list[Flushable] = []
        tickets: list[SyncTicket] = []
        for log in dirty:
            try:
                ticket = log.begin_flush()
            except Exception as error:  # noqa: BLE001  one log must not stop the others
                _fail(log, error)
                continue
            if ticket is not None:
                logs.append(log)
                tickets.append(ticket)
        if tickets:
            self._busy = True
            self._flushing = logs
            self._flusher.submit(tickets)

    def _on_done(
        self, tickets: Sequence[SyncTicket], outcome: Sequence[BaseException | None]
    ) -> None:
        """Handle the outcome of a flush in a turn of its own: start the next one, acknowledge."""
        logs = self._flushing
        self._turn.begin()
        try:
            self._busy = False
            self.flushes += 1
            self.flushed_logs += len(logs)
            done: list[Flushable] = []
            for log, ticket, error in zip(logs, tickets, outcome, strict=True):
                if error is not None:
                    _fail(log, error)
                    continue
                try:
                    log.end_flush(ticket)
                except Exception as found:  # noqa: BLE001  one log must not stop the others
                    _fail(log, found)
                else:
                    done.append(log)
            if self._dirty:
                self.kick()
            for log in done:
                try:
                    log.acknowledge_flushed()
                except Exception:
                    logger.exception(
                        "acknowledging after a flush failed, trying again at the next flush",
                        partition=log,
                    )
        finally:
            self._turn.run()


def _fail(log: Flushable, error: BaseException) -> None:
    """End the writing of one log; an error in that does not stop the others."""
    if not isinstance(error, (OSError, VqError)):
        logger.error("flush failed", partition=log, exc_info=error)
    try:
        log.flush_failed(error)
    except Exception:
        logger.exception("ending the writing of a log failed", partition=log)
