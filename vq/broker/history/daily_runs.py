"""The daily run of the archive: made by the node that holds the lease, once for each time.

In here: holding the lease, and making the run that is due. Not in here: when one is due, and
whether one was missed (``daily``), what rings (``jobs``), and what nodes do of a run
(``archive_runs``).
"""

import random
from datetime import tzinfo

from vq.broker.base.daily import DailyTime, due_now
from vq.broker.base.jobs import Daily, Jobs, While
from vq.broker.logs.topics_view import TopicsView
from vq.clock import Clock
from vq.coordination.leases.leases import ARCHIVE, JobLease, LeaseNotHeld
from vq.coordination.leases.runs import begin_runs, forget_runs, make_run, read_runs
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.runs import RunOrder
from vq.log_lines import get_logger

logger = get_logger(__name__)


class DailyRuns:
    """Makes the daily run while this node holds the lease. Loop-bound.

    Args:
        jobs: Has it looked whether a run is due.
        coordinator: A started coordinator.
        clock: Tells the time.
        at: When the run is due.
        by: This node: "b1/n1".
        view: The topics: without one that archives no run is made.
        rng: For nonces.
        zone: The local time; None: that of the system.
    """

    def __init__(
        self,
        jobs: Jobs,
        coordinator: Coordinator,
        clock: Clock,
        *,
        at: DailyTime,
        by: str,
        view: TopicsView,
        rng: random.Random,
        zone: tzinfo | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._at = at
        self._by = by
        self._view = view
        self._rng = rng
        self._zone = zone
        self._job = jobs.add(
            "daily archive", self._look, Daily(at, zone), While.HOLDING, at_once=True
        )
        self.lease = JobLease(
            coordinator,
            clock,
            job=ARCHIVE,
            holder=by,
            rng=rng,
            on_change=self._lease_changed,
        )

    def start(self) -> None:
        """Try to hold the lease, and make runs while it is held."""
        self.lease.start()

    async def stop(self) -> None:
        """End that, and give the lease back."""
        self._job.stop()
        await self.lease.stop()

    def _lease_changed(self, fence: int | None) -> None:
        if fence is None:
            self._job.stop()
        else:
            self._job.start()

    async def _look(self) -> None:
        """Make the run that is due, if this node may."""
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
