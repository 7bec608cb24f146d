"""The alarm of a real broker: the asyncio scheduler of APScheduler.

It asks its time zone for the present. The zone here counts the seconds of a ``Clock`` that only
goes on, so a time of day that is set back or ahead makes no job late or early. Times of day are
computed from the wall clock in ``daily``.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

from vq.clock import Clock

_NO_TIME: Final = timedelta(0)
#: A ring ends at once, yet counts as under way for a turn of the loop; jobs see to overlaps.
_INSTANCES: Final = 1_000_000


class _SteadyZone(tzinfo):
    """A time zone in which it is as late as a clock says that nobody sets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def utcoffset(self, _: datetime | None) -> timedelta:
        return _NO_TIME

    def dst(self, _: datetime | None) -> timedelta:
        return _NO_TIME

    def tzname(self, _: datetime | None) -> str:
        return "steady"

    def fromutc(self, _: datetime) -> datetime:
        """Return the present, whatever the system takes for it; see ``datetime.now``."""
        now = datetime.fromtimestamp(self._clock.monotonic(), UTC)
        return now.replace(tzinfo=self)


class ScheduledAlarm:
    """An ``Alarm`` of APScheduler."""

    def __init__(self, clock: Clock) -> None:
        # It tells of every job and ring at INFO; jobs have lines of their own.
        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        self._zone = _SteadyZone(clock)
        self._scheduler = AsyncIOScheduler(timezone=self._zone)
        self._closed = False

    def set(self, name: str, delay_s: float, ring: Callable[[], None]) -> None:
        """See ``Alarm.set``."""
        if self._closed:
            return
        if not self._scheduler.running:
            self._scheduler.start()

        async def call() -> None:  # a coroutine function runs on the loop, a function on a thread
            ring()

        at = datetime.now(self._zone) + timedelta(seconds=delay_s)
        self._scheduler.add_job(
            call,
            DateTrigger(at, self._zone),
            id=name,
            replace_existing=True,
            misfire_grace_time=None,
            max_instances=_INSTANCES,
        )

    def cancel(self, name: str) -> None:
        """See ``Alarm.cancel``."""
        try:
            self._scheduler.remove_job(name)
        except JobLookupError:
            pass  # it was not set, or has rung

    def close(self) -> None:
        """See ``Alarm.close``."""
        self._closed = True
        if self._scheduler.running:
            self._scheduler.remove_all_jobs()
            self._scheduler.shutdown(wait=False)
