"""When periodic tasks are due: every so many seconds, or at the times of a line of cron.

A line means what crontab(5) says, in the local time of this machine. APScheduler finds the times;
its days of the week begin with Monday, and it wants both days where cron takes either, so the line
is told to it in its own words.
"""

from datetime import UTC, datetime
from typing import Final, Protocol

from apscheduler.triggers.cron import CronTrigger

from vq.errors import InvalidArgument
from vq.shown import shown

_FIELDS: Final = ("minute", "hour", "day", "month", "day_of_week")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Schedule(Protocol):
    """Says when a task is due."""

    def due_ms(self, last_ms: int, now_ms: int) -> int | None:
        """Return the time to write down if it is due now, after ``last_ms``; None: it is not."""
        ...


class EverySeconds:
    """Every so many seconds; what was missed is not made up for, and the phase stays."""

    def __init__(self, seconds: float) -> None:
        self._ms = max(1, round(seconds * 1_000))

    def due_ms(self, last_ms: int, now_ms: int) -> int | None:
        """See ``Schedule``."""
        periods = (now_ms - last_ms) // self._ms
        return last_ms + periods * self._ms if periods > 0 else None


class Cron:
    """At the times of a line of cron, in the local time of this machine.

    Raises:
        InvalidArgument: It is none, or it has no time.
    """

    def __init__(self, line: str) -> None:
        try:
            self._triggers = [CronTrigger(**fields) for fields in _fields_of(line)]
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"cron = {shown(line)} is no line of five fields, such as '0 2 * * *': {error}"
            ) from error
        if self._following(datetime.now(UTC)) is None:
            raise InvalidArgument(f"cron = {shown(line)} has no time: there is no such day")

    def due_ms(self, last_ms: int, now_ms: int) -> int | None:
        """See ``Schedule``."""
        following = self._following(datetime.fromtimestamp(last_ms / 1_000, UTC))
        if following is None or following.timestamp() * 1_000 > now_ms:
            return None
        return now_ms

    def _following(self, last: datetime) -> datetime | None:
        found = [each.get_next_fire_time(last, last) for each in self._triggers]
        return min((each for each in found if each is not None), default=None)


def _fields_of(line: str) -> list[dict[str, str]]:
    """Return the fields of a line, once more if it has two kinds of days: either is due.

    Raises:
        ValueError: It has not five fields, or its days of the week are none.
        AttributeError: It is no text.
    """
    words = line.split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"it has {len(words)} fields")
    fields = dict(zip(_FIELDS, words, strict=True))
    fields["day_of_week"] = _days_of_week(fields["day_of_week"])
    if fields["day"].startswith("*") or fields["day_of_week"] == "*":
        return [fields]
    return [{**fields, "day_of_week": "*"}, {**fields, "day": "*"}]


def _days_of_week(field: str) -> str:
    """Return the days by their names: 0 and 7 are Sunday.

    Raises:
        ValueError: They are none.
    """
    if field == "*":
        return field
    days: dict[str, None] = {}
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0", "-", "6") if span == "*" else span.partition("-")
        begin, end = _day(first), _day(last or (first if not step else "6"))
        if end < begin == len(_DAYS):
            begin = 0  # 7-2: Sunday comes first
        if last and end == 0 < begin:
            end = len(_DAYS)  # fri-sun
        if end < begin or (step and int(step) < 1):
            raise ValueError(f"{part!r} is no day of the week, nor a range of them")
        for day in range(begin, end + 1, int(step or 1)):
            days[_DAYS[day % len(_DAYS)]] = None
    return ",".join(days)


def _day(word: str) -> int:
    if word.lower() in _DAYS:
        return _DAYS.index(word.lower())
    if word.isdecimal() and int(word) <= len(_DAYS):
        return int(word)
    raise ValueError(f"{word!r} is no day of the week; give 0 to 7, or sun to sat")


def schedule_of(every_s: float | None, cron: str | None) -> Schedule:
    """Return when a task is due that has one of them.

    Raises:
        InvalidArgument: ``cron`` is no such line.
    """
    if cron is not None:
        return Cron(cron)
    assert every_s is not None
    return EverySeconds(every_s)
