"""When work that failed is tried again: each thing that it is about has pauses of its own."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from vq.backoff import Backoff, Draws

K = TypeVar("K", bound=Hashable)


class NextTry:
    """The failures of one thing, in a row.

    Attributes:
        at: When it is tried again, by the loop's time.
        pause_s: The pause until then, as it was drawn.
        failures: How many there were.
        kind: The class of the last one.
        told: Its text.
    """

    __slots__ = ("at", "failures", "kind", "pause_s", "told")

    def __init__(self) -> None:
        self.at = 0.0
        self.pause_s = 0.0
        self.failures = 0
        self.kind: type[BaseException] = Exception
        self.told = ""


class Retries(Generic[K]):
    """What failed and is tried again. Its owner drops from ``failed`` what goes well.

    Args:
        backoff: The pauses.
        rng: For their jitter.

    Attributes:
        failed: By what the work is about.
    """

    def __init__(self, backoff: Backoff, rng: Draws) -> None:
        self.failed: dict[K, NextTry] = {}
        self._backoff = backoff
        self._rng = rng

    def is_due(self, about: K, now: float) -> bool:
        """Return whether it is to be tried now, by the loop's time."""
        retry = self.failed.get(about)
        return retry is None or now >= retry.at

    def note(self, about: K, error: BaseException, now: float) -> tuple[NextTry, bool]:
        """Note a failure; return also whether it is to be told: another one than the last."""
        retry = self.failed.setdefault(about, NextTry())
        retry.failures += 1
        retry.pause_s = self._backoff.pause_s(retry.failures, self._rng)
        retry.at = now + retry.pause_s
        retry.kind = type(error)
        is_new = retry.told != str(error)
        retry.told = str(error)
        return retry, is_new
