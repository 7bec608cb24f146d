"""How often somebody may try to log in: a bound for each name and for each address."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FAILURES_MAX: Final = 8
WINDOW_S: Final = 300.0
_KEYS_MAX: Final = 10_000


class Attempts:
    """Failed tries to log in, of the last minutes. Loop-bound.

    Args:
        clock: Seconds of a clock that does not go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, *keys: str) -> float:
        """Return how long to wait before the next try; 0: it may be made."""
        return max((self._wait_of(key) for key in keys), default=0.0)

    def _wait_of(self, key: str) -> float:
        now = self._clock()
        recent = [each for each in self._failures.get(key, ()) if now - each < WINDOW_S]
        return 0.0 if len(recent) < FAILURES_MAX else WINDOW_S - (now - recent[-FAILURES_MAX])

    def failed(self, *keys: str) -> None:
        """Note a try that failed."""
        now = self._clock()
        for key in keys:
            found = self._failures.setdefault(key, [])
            found.append(now)
            del found[:-FAILURES_MAX]
            self._failures.move_to_end(key)
        while len(self._failures) > _KEYS_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, *keys: str) -> None:
        """Take back what was noted last of a try that did not fail; forget those of the first."""
        self._failures.pop(keys[0], None)
        for key in keys[1:]:
            found = self._failures.get(key)
            if found:
                found.pop()
