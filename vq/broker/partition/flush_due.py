"""When appends that nobody waits for are flushed: after so many messages, or after so much time."""

from collections.abc import Callable

from vq.broker.partition.context import Context, LaterCall
from vq.model import TopicSettings


class FlushDue:
    """Counts the messages of one partition that no flush was asked for yet, and holds the timer.

    Args:
        context: Has the timers.
        flush: Asks for a flush; it calls ``clear``.
    """

    __slots__ = ("_context", "_flush", "_messages", "_timer")

    def __init__(self, context: Context, flush: Callable[[], None]) -> None:
        self._context = context
        self._flush = flush
        self._messages = 0
        self._timer: LaterCall | None = None

    def appended(self, count: int, settings: TopicSettings) -> None:
        """Note an append; have it flushed now, or when the time is up."""
        self._messages += count
        if self._messages >= settings.flush_interval_messages:
            self._flush()
        elif self._timer is None:
            self._timer = self._context.call_later(settings.flush_interval_ms / 1000, self._flush)

    def settings_changed(self) -> None:
        """Have what waits flushed now: its timer runs for the interval of before."""
        if self._timer is not None:
            self._flush()

    def clear(self) -> None:
        """Begin anew: a flush was asked for, or there will be none."""
        self._messages = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
