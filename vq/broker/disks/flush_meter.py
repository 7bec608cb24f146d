"""How long flushes take and how many requests wait for them, measured at the flusher.

In here: the measurement, which costs something per flush and nothing per message. Not in here: a
flush (``flusher``), and what is made of the figures (``load``, ``disk_looks``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vq.broker.base.histogram import Histogram
from vq.clock import Clock
from vq.store.commit.flusher import Flusher, OnDone, Outcome
from vq.store.log.ticket import SyncTicket


@dataclass(frozen=True, slots=True)
class FlushTimes:
    """What a ``FlushMeter`` measured since it was last asked.

    Attributes:
        busy_s: Time with a flush in flight.
        flush_s: Mean time of one flush; None: there was none.
        depth: Mean number of waiting requests, at each flush and now.
    """

    busy_s: float
    flush_s: float | None
    depth: float


class Requests(Protocol):
    """Counts requests; in practice ``serving.server.Server``.

    Attributes:
        requests_waiting: Those without an answer.
    """

    requests_waiting: int


class FlushMeter:
    """A flusher that measures the one that does the work. Loop-bound.

    A flush lasts from ``submit`` until the loop hears of its end, as for the PUTs that wait for it.

    Args:
        flusher: Does the work.
        clock: Read at the beginning and at the end of each flush.
        requests: Counts those without an answer.
        times: Notes how long flushes took, of several flushers; None: of this one.

    Attributes:
        times: How long flushes took.
    """

    def __init__(
        self,
        flusher: Flusher,
        clock: Clock,
        requests: Requests,
        times: Histogram | None = None,
    ) -> None:
        self._flusher = flusher
        self._now = clock.monotonic
        self._requests = requests
        self.times = times or Histogram()
        self._on_done: OnDone | None = None
        self._begun: float | None = None  # of the flush in flight
        self._asked = self._now()
        self._busy_s = 0.0  # of flushes that ended since ``_asked``, without what was told before
        self._flushes_s = 0.0
        self._flushes = 0
        self._submits = 0
        self._depths = 0

    def start(self, on_done: OnDone) -> None:
        """See ``Flusher.start``."""
        self._on_done = on_done
        self._flusher.start(self._done)

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """See ``Flusher.submit``."""
        self._begun = self._now()
        self._submits += 1
        self._depths += self._requests.requests_waiting
        self._flusher.submit(tickets)

    def close(self) -> None:
        """See ``Flusher.close``."""
        self._flusher.close()

    def _done(self, tickets: Sequence[SyncTicket], outcome: Outcome) -> None:
        now, begun = self._now(), self._begun
        assert begun is not None, "a flush ended that was not begun"
        assert self._on_done is not None
        self._begun = None
        self._busy_s += now - max(begun, self._asked)
        self._flushes_s += now - begun
        self.times.observe(now - begun)
        self._flushes += 1
        self._on_done(tickets, outcome)

    @property
    def is_busy(self) -> bool:
        """Whether a flush is in flight."""
        return self._begun is not None

    def waits_s(self) -> float:
        """For how long the flush in flight has not got on; 0: there is none."""
        if self._begun is None:
            return 0.0
        return self._now() - max(self._begun, self._flusher.stepped_s())

    def stepped_s(self) -> float:
        """See ``Flusher.stepped_s``."""
        return self._flusher.stepped_s()

    def take(self) -> FlushTimes:
        """Return what was measured since the last call, and begin anew."""
        now, begun = self._now(), self._begun
        busy_s, flush_s = self._busy_s, None
        if self._flushes:
            flush_s = self._flushes_s / self._flushes
        if begun is not None:
            busy_s += now - max(begun, self._asked)
            flush_s = max(flush_s or 0.0, now - begun)  # one that hangs shows before it ends
        depth = (self._depths + self._requests.requests_waiting) / (self._submits + 1)
        self._asked, self._busy_s = now, 0.0
        self._flushes_s, self._flushes, self._submits, self._depths = 0.0, 0, 0, 0
        return FlushTimes(busy_s, flush_s, depth)
