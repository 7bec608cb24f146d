"""What is logged of messages whose outcome nobody hears of.

Not in here: how messages are sent; a one-way message has the same deadline, batches and resends as
any other. Nor are they counted here: ``metrics`` counts them with all others. Who notices that the
program ends is ``client/exits.py``.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from vq.client.future import FailureCallback, SendCallback, SendFuture
from vq.clock import Clock
from vq.errors import OutcomeUnknown, VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)
#: Pause between two lines of the same topic and cause.
LOG_EVERY_S: Final = 10.0
#: Topics whose callback is kept; beyond it, callbacks are made anew.
_TOPICS_MAX = 1_024

Cause = tuple[str, type[VqError]]


class UnheardFailures:
    """What failed of one topic for one cause since its last line.

    Attributes:
        count: Messages.
        last: The newest error.
        next_line_at: Monotonic time of the next line at the earliest.
    """

    __slots__ = ("count", "last", "next_line_at")

    def __init__(self) -> None:
        self.count = 0
        self.last: VqError | None = None
        self.next_line_at = 0.0


class _Callbacks(dict[str, SendCallback]):
    """The callback of each topic, made when it is first looked up: a look-up is no call then."""

    def __init__(self, log: "OnewayLog") -> None:
        super().__init__()
        self._log = log

    def __missing__(self, topic: str) -> SendCallback:
        ended = FailureCallback(functools.partial(self._log.failed, topic))
        if len(self) >= _TOPICS_MAX:
            self.clear()
        self[topic] = ended
        return ended


class OnewayLog:
    """Logs the one-way messages of one producer that are not known to be stored.

    A failure is logged once for each topic and cause, with the number of messages. The same topic
    and cause has its next line after ten seconds at the earliest, with all that failed since.

    Callbacks run where all callbacks of the producer run.

    Args:
        loop: Runs the one timer that writes lines.
        clock: Says when a line is due.

    Attributes:
        callbacks: The callbacks of one-way messages that were made so far, by topic.
        callback_for: Returns the callback of one-way messages to a topic; for any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._failures: dict[Cause, UnheardFailures] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.callbacks: dict[str, SendCallback] = _Callbacks(self)
        self.callback_for: Callable[[str], SendCallback] = self.callbacks.__getitem__

    def failed(self, topic: str, error: VqError) -> None:
        """Note a message that is not known to be stored; any line comes later."""
        failures = self._failures.setdefault((topic, type(error)), UnheardFailures())
        failures.count += 1
        failures.last = error
        if self._closed:
            self._log()
        elif self._timer is None:  # after the rest of this batch, to log it in one line
            self._timer = self._loop.call_later(0, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._log()
        if self._failures:
            now = self._clock.monotonic()
            next_line_at = min(each.next_line_at for each in self._failures.values())
            self._timer = self._loop.call_later(max(0.0, next_line_at - now), self._on_timer)

    def _log(self, *, everything: bool = False) -> None:
        """Log the failures that are due, and forget causes that did not come again."""
        now = self._clock.monotonic()
        for (topic, cause), failures in list(self._failures.items()):
            if not everything and now < failures.next_line_at:
                continue
            if not failures.count:
                del self._failures[topic, cause]
                continue
            logger.warning(
                "one-way messages are not known to be stored",
                topic=topic,
                count=failures.count,
                outcome="unknown" if issubclass(cause, OutcomeUnknown) else "refused",
                cause=cause.__name__,
                error=failures.last,
            )
            failures.count = 0
            failures.next_line_at = now + LOG_EVERY_S

    def close(self) -> None:
        """Log what is left, and stop the timer. Failures that follow are logged when they come."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log(everything=True)


logger = get_logger(__name__)
#: A last flush that takes longer than this says so: somebody waits for the program to end.
SAY_AFTER_S: Final = 1.0
AT_EXIT: Final = "the program ended before they were sent"


def log_lost(futures: Iterable[SendFuture], reason: str) -> None:
    """Log how many of these messages have an error for an outcome, if any has."""
    errors = [each.outcome for each in futures if isinstance(each.outcome, VqError)]
    if errors:
        unknown = sum(isinstance(each, OutcomeUnknown) for each in errors)
        logger.error(
            "messages are not stored",
            reason=reason,
            refused=len(errors) - unknown,
            unknown=unknown,
            first_error=errors[0],
        )


def nobody_learns(future: SendFuture) -> bool:
    """Whether neither a callback nor a waiting caller gets the outcome of a message."""
    return future.callback is None and not future.waiters


def log_wait(futures: Sequence[SendFuture], timeout_s: float) -> None:
    """Log that the end of the program waits for messages, at most so long."""
    logger.warning(
        "the program ends, waiting for messages to be sent",
        messages=sum(not each.done() for each in futures),
        timeout_s=timeout_s,
    )
