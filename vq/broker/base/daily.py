"""When a job is due that runs once a day at a local time, and whether one was missed; no I/O.

The job is due on each date of the local calendar once. On a day that has the time twice (clocks go
back) the first one counts. On a day without it (clocks go forward) the job is due when they have
gone forward.

*Missed.* A job whose time has passed and that was not done is done once, however many times were
missed. A time that lies more than a day ahead was noted by a clock that was wrong, and does not
count: otherwise nothing would be done until then.

*Example*, at 02:00: the job of Monday was done. On Thursday at 09:00 that of Thursday is due; those
of Tuesday and Wednesday never are.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple, Self

from vq.clock import DAY_MS
from vq.errors import InvalidArgument
from vq.shown import shown

_ONE_DAY: Final = timedelta(days=1)


class DailyTime(NamedTuple):
    """A time of day, by the local clock."""

    hour: int
    minute: int

    def __str__(self) -> str:
        return f"{self.hour:02}:{self.minute:02}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the time that ``HH:MM`` says.

        Raises:
            InvalidArgument: It says none.
        """
        given: object = text
        if isinstance(given, str):
            hour, colon, minute = given.partition(":")
            digits = len(hour) == len(minute) == 2 and (hour + minute).isdecimal()
            if colon and digits and given.isascii() and int(hour) < 24 and int(minute) < 60:
                return cls(int(hour), int(minute))
        raise InvalidArgument(f"{shown(given)} is not a time of day; give HH:MM, such as 02:00")


def last_due(now_ms: int, at: DailyTime, zone: tzinfo | None = None) -> int:
    """Return when the job was due last, at ``now_ms`` or before, in ms since 1970.

    ``zone`` is the local time; None: that of the system.
    """
    day = _local(now_ms, zone).date() + _ONE_DAY  # a clock may go back over midnight
    while (moment := _moment(day, at, zone)) > now_ms:
        day -= _ONE_DAY
    return moment


def next_due(now_ms: int, at: DailyTime, zone: tzinfo | None = None) -> int:
    """Return when the job is due next, after ``now_ms``."""
    day = _local(now_ms, zone).date() - _ONE_DAY
    while (moment := _moment(day, at, zone)) <= now_ms:
        day += _ONE_DAY
    return moment


def due_now(
    now_ms: int,
    at: DailyTime,
    *,
    done: Iterable[int],
    since_ms: int,
    zone: tzinfo | None = None,
) -> int | None:
    """Return the time for which the job must be done now; None: nothing is to be done.

    Args:
        now_ms: The time now.
        at: When it is due each day.
        done: The times for which it was done, as far as they are remembered.
        since_ms: What was due before, or at this time, was not missed.
        zone: As for ``last_due``.
    """
    latest = last_due(now_ms, at, zone)
    believed = (each for each in (*done, since_ms) if each <= now_ms + DAY_MS)
    return latest if latest > max(believed, default=0) else None


def _local(time_ms: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(zone)


def _moment(day: date, at: DailyTime, zone: tzinfo | None) -> int:
    # Without a zone this is a local time of the system, of which ``timestamp`` knows the rules.
    local = datetime.combine(day, time(at.hour, at.minute), zone)
    return int(local.timestamp() * 1000)
