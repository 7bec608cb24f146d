"""The daily run of the archive: made by the node that holds the lease, once for each time.

In here: holding the lease, and making the run that is due. Not in here: when one is due
(``daily``), what rings at that time (``alarm``; without it the slow timer here does), and what
nodes do of a run (``archive_runs``).
"""

import asyncio
import random
from collections.abc import Callable
from datetime import tzinfo
from typing import Final

from vq.backoff import Backoff
from vq.broker.base.daily import DailyTime, due_now
from vq.broker.partition.topics_view import TopicsView
from vq.clock import Clock
from vq.coordination.leases.leases import ARCHIVE, JobLease, LeaseNotHeld
from vq.coordination.leases.runs import begin_runs, forget_runs, make_run, read_runs
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.values.runs import RunOrder
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: How often it is looked whether a run is due, whatever rings: a clock may be set.
AUDIT_S: Final = 300.0
_BACKOFF: Final = Backoff(first_s=0.5, most_s=30.0)

#: Calls a function every day at a time, by the local clock, until what it returned is called.
Alarm = Callable[[DailyTime, Callable[[], None]], Callable[[], None]]


def no_alarm(_at: DailyTime, _ring: Callable[[], None]) -> Callable[[], None]:
    """Never rings: the slow timer is enough."""
    return lambda: None


class DailyRuns:
    """Makes the daily run while this node holds the lease. Loop-bound.

    Args:
        coordinator: A started coordinator.
        clock: Tells the time.
        at: When the run is due.
        by: This node: "b1/n1".
        view: The topics: without one that archives no run is made.
        alarm: Rings at that time.
        rng: For nonces and back-off.
        zone: The local time; None: that of the system.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        *,
        at: DailyTime,
        by: str,
        view: TopicsView,
        alarm: Alarm,
        rng: random.Random,
        zone: tzinfo | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._at = at
        self._by = by
        self._view = view
        self._alarm = alarm
        self._rng = rng
        self._zone = zone
        self._keeper = Keeper(
            coordinator,
            self._look,
            what="daily run of the archive",
            audit_s=AUDIT_S,
            backoff=_BACKOFF,
            rng=rng,
        )
        self.lease = JobLease(
            coordinator,
            clock,
            job=ARCHIVE,
            holder=by,
            rng=rng,
            on_change=lambda _: self._keeper.wake(),
        )

    async def run(self) -> None:
        """Try to hold the lease, and make runs while it is held, for ever."""
        silence = self._set_alarm()
        self.lease.start()
        self._keeper.start()
        try:
            await asyncio.Event().wait()
        finally:
            silence()
            await self._keeper.stop()
            await self.lease.stop()

    def _set_alarm(self) -> Callable[[], None]:
        """Have the alarm ring; return what ends that. Without one, the slow timer is enough."""
        try:
            return self._alarm(self._at, self._keeper.wake)
        except Exception as error:  # noqa: BLE001  it knows not all local times: TZ=CET-1CEST
            logger.warning(
                "no alarm for the daily run, it may start some minutes late",
                error=error,
                hint="give the broker a TZ such as Europe/Berlin",
            )
            return no_alarm(self._at, self._keeper.wake)

    async def _look(self, _: bool) -> None:
        """Make the run that is due, if this node may; see ``Keeper``."""
        if self.lease.fence is None:
            return
        await begin_runs(self._coordinator, self._clock.wall_ms())
        topics = self._view.topics.values()
        if all(each.settings.archived_after_hours is None for each in topics):
            return
        runs = await read_runs(self._coordinator)
        now_ms = self._clock.wall_ms()
        done = [each.due_ms for each in runs.known.values() if each.due_ms is not None]
        done.append(runs.daily_ms)  # it may be forgotten
        due_ms = due_now(now_ms, self._at, done=done, since_ms=runs.since_ms, zone=self._zone)
        if due_ms is None:
            return
        run = RunOrder(
            as_of_ms=now_ms,
            started_ms=now_ms,
            by=self._by,
            nonce=f"{self._rng.getrandbits(64):016x}",
            due_ms=due_ms,
            fence=self.lease.fence,
        )
        try:
            number = await make_run(self._coordinator, run, lease=self.lease.check)
        except LeaseNotHeld as error:
            logger.info("daily run is left to another node", error=error)
            self.lease.wake()
            return
        logger.info(
            "daily run of the archive made", number=number, late_s=(now_ms - due_ms) // 1000
        )
        await forget_runs(self._coordinator)
