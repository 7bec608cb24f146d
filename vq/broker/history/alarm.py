"""The alarm of a real broker: APScheduler rings every day at a local time.

It knows the local time and its changes. It only rings: whether something is to be done then, or was
missed, is decided by ``daily`` from times, so that the same holds on a virtual clock, where nothing
of this module runs.
"""

import logging
from collections.abc import Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

from vq.broker.base.daily import DailyTime

__all__ = ["ring_daily"]


def ring_daily(at: DailyTime, ring: Callable[[], None]) -> Callable[[], None]:
    """Call ``ring`` on the running loop every day at ``at``; return what ends that.

    A ring that comes late, after a pause of the machine, comes once.
    """
    # It tells of every job and ring at INFO; the runs themselves have lines.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    scheduler = AsyncIOScheduler()

    async def call() -> None:  # a coroutine function runs on the loop, a function on a thread
        ring()

    scheduler.add_job(
        call,
        CronTrigger(hour=at.hour, minute=at.minute),
        misfire_grace_time=None,
        coalesce=True,
        max_instances=1,
    )
    scheduler.start()
    return lambda: scheduler.shutdown(wait=False)
