"""Which tracebacks are logged: of each cause one a minute, however many messages fail for it."""

from collections.abc import Callable
from typing import Final, NamedTuple

#: A traceback is logged once in this time, also for other messages with the same cause; of so many
#: causes.
TRACEBACK_AGAIN_MS: Final = 60_000
_CAUSES_MAX: Final = 100


class Tracebacks:
    """What was logged lately."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._shown: dict[_Cause, int] = {}  # when a traceback was logged

    def new(self, error: BaseException | None) -> BaseException | None:
        """Return the error if its traceback is logged now; None: one of the same cause was."""
        if error is None:
            return None
        cause, now_ms = _cause_of(error), self._now_ms()
        shown_ms = self._shown.get(cause)
        if shown_ms is not None and 0 <= now_ms - shown_ms < TRACEBACK_AGAIN_MS:
            return None
        if len(self._shown) >= _CAUSES_MAX:
            self._shown.clear()
        self._shown[cause] = now_ms
        return error


class _Cause(NamedTuple):
    """What was raised, and where; not the frames, which refer to the message."""

    kind: type[BaseException]
    path: str
    line: int


def _cause_of(error: BaseException) -> _Cause:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return _Cause(type(error), "", 0)
    return _Cause(type(error), at.tb_frame.f_code.co_filename, at.tb_lineno)
