"""Group commit over all logs of a node: which are dirty, and what a flush acknowledges.

The storer lives on the event loop. It keeps the set of dirty channels; at the end of a loop
iteration, and whenever a flush ends, it hands all of them to the flusher at once. What is appended
while a flush runs waits for the next one.
"""

from collections.abc import Sequence
from typing import Protocol

from vq.broker.base.turn import Turn
from vq.broker.partition.flusher import Flusher
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.store.log.ticket import SyncTicket

logger = get_logger(__name__)


class Flushable(Protocol):
    """A log that can be flushed; in practice a ``Channel``."""

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
    """Starts flushes and hands their outcomes to the channels.

    Invariant: at most one flush is in flight, and while any channel is dirty one is in flight or
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
        turn.on_end(self.kick)

    def start(self) -> None:
        """Start the flusher; call on the event loop."""
        self._flusher.start(self._on_done)

    def close(self) -> None:
        """End the flusher after the flush in flight."""
        self._flusher.close()

    def mark(self, channel: Flushable) -> None:
        """Have ``channel`` flushed with the next flush."""
        self._dirty[channel] = None
        if not self._busy:
            self._turn.schedule()

    def kick(self) -> None:
        """Start a flush of all that is dirty, unless one is in flight."""
        if self._busy or not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        channels: list[Flushable] = []
        tickets: list[SyncTicket] = []
        for channel in dirty:
            try:
                ticket = channel.begin_flush()
            except Exception as error:  # noqa: BLE001  one log must not stop the others
                _fail(channel, error)
                continue
            if ticket is not None:
                channels.append(channel)
                tickets.append(ticket)
        if tickets:
            self._busy = True
            self._flushing = channels
            self._flusher.submit(tickets)

    def _on_done(
        self, tickets: Sequence[SyncTicket], outcome: Sequence[BaseException | None]
    ) -> None:
        """Handle the outcome of a flush in a turn of its own."""
        self._turn.begin()
        try:
            self._take_outcome(tickets, outcome)
        finally:
            self._turn.run()

    def _take_outcome(
        self, tickets: Sequence[SyncTicket], outcome: Sequence[BaseException | None]
    ) -> None:
        """First start the next flush, then acknowledge."""
        channels = self._flushing
        self._busy = False
        self.flushes += 1
        self.flushed_logs += len(channels)
        done: list[Flushable] = []
        for channel, ticket, error in zip(channels, tickets, outcome, strict=True):
            if error is not None:
                _fail(channel, error)
                continue
            try:
                channel.end_flush(ticket)
            except Exception as found:  # noqa: BLE001  one log must not stop the others
                _fail(channel, found)
            else:
                done.append(channel)
        if self._dirty:
            self.kick()
        for channel in done:
            try:
                channel.acknowledge_flushed()
            except Exception:
                logger.exception(
                    "acknowledging after a flush failed, trying again at the next flush",
                    partition=channel,
                )


def _fail(channel: Flushable, error: BaseException) -> None:
    """End the writing of one log; an error in that does not stop the others."""
    if not isinstance(error, (OSError, VqError)):
        logger.error("flush failed", partition=channel, exc_info=error)
    try:
        channel.flush_failed(error)
    except Exception:
        logger.exception("ending the writing of a log failed", partition=channel)
