"""Lines of cron. Pure, but for the local time zone."""

from datetime import UTC, datetime

from apscheduler.triggers.cron import CronTrigger

from vq.errors import InvalidArgument
from vq.shown import shown

__all__ = ["Cron"]


class Cron:
    """At the times of a line of cron, in the local time of this machine.

    Raises:
        InvalidArgument: It is none, or is never due.
    """

    def __init__(self, line: str) -> None:
        try:
            self._trigger = CronTrigger.from_crontab(line)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"cron = {shown(line)} is no line of five fields, such as '0 2 * * *': {error}"
            ) from error
        now = datetime.now(UTC)
        if self._trigger.get_next_fire_time(None, now) is None:
            raise InvalidArgument(f"cron = {shown(line)} is never due: there is no such day")

    def due_ms(self, last_ms: int, now_ms: int) -> int | None:
        """See ``Schedule``."""
        last = datetime.fromtimestamp(last_ms / 1_000, UTC)
        following = self._trigger.get_next_fire_time(last, last)
        if following is None or following.timestamp() * 1_000 > now_ms:
            return None
        return now_ms
