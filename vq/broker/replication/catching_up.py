"""How far a node is behind the logs of its master, found by looks at what it told. Pure.

    compared   the partitions of which the node has told what it has; before that it asks where its
               log parts from the master's, and is not behind for that
    targets    where the logs ended at an earlier look; when the node is there in all partitions
               that it has compared, it was behind by the age of that look, and the next ones count

One rule serves both ways: a node in sync that stays behind leaves, and one that is not far behind
may join.
"""

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K")

#: A node in sync that was not where the logs ended so long ago leaves the set. Sends wait for it,
#: so this is less than the default deadline of ``send_sync``, 3 s, with a margin for the change.
LAG_MAX_S: Final = 1.5
#: One that is not further behind may join: less, so that it does not leave again.
NEAR_S: Final = 1.0
#: One that compares its logs leaves if it gets no further for ``LAG_MAX_S``, or after this time.
COMPARE_MAX_S: Final = 10.0
#: When an epoch begins, the other nodes have so much longer to find the new master.
ARRIVAL_S: Final = 1.5


class Pursuit(Generic[K]):
    """One node that comes after the logs of its master.

    Args:
        now: Monotonic, as all times here.
        ends: Where the logs ended at an earlier look; a log that is not among them is passed.
        ends_at: When that was.
        arrival_s: It has so much longer to tell of a first partition.

    Attributes:
        behind_s: How far it was behind when the last look found that it had come to the targets;
            None: that look found that it had not.
    """

    __slots__ = (
        "_compared",
        "_comparing_since",
        "_progress_at",
        "_targets",
        "_targets_at",
        "behind_s",
    )

    def __init__(
        self, now: float, ends: Mapping[K, int], ends_at: float, *, arrival_s: float = 0.0
    ) -> None:
        self._targets = ends
        self._targets_at = ends_at
        self._compared = 0
        self._progress_at = now + arrival_s
        self._comparing_since: float | None = None
        self.behind_s: float | None = None

    def look(
        self, now: float, ends: Mapping[K, int], compared: int, offset: Callable[[K], int]
    ) -> None:
        """Note how far the node is.

        Args:
            now: The time.
            ends: Where the logs end in which there is something.
            compared: Of how many of these it has told what it has.
            offset: Returns up to where it has a log; -1: it has not told.
        """
        if compared >= len(ends):
            self._comparing_since = None
        else:
            if self._comparing_since is None:
                self._comparing_since = now
                self._progress_at = max(self._progress_at, now)
            elif compared > self._compared:
                self._progress_at = max(self._progress_at, now)
        self._compared = compared
        self.behind_s = None
        # A log may end earlier by now, if another one was put in its place for a move.
        if all(
            (has := offset(log)) < 0 or has >= min(end, ends[log])
            for log, end in self._targets.items()
            if log in ends
        ):
            self.behind_s = now - self._targets_at
            self._targets, self._targets_at = ends, now

    @property
    def compares(self) -> bool:
        """Whether it compares logs yet."""
        return self._comparing_since is not None

    def stays_behind(self, now: float, most_s: float) -> bool:
        """Whether it has been behind for longer than ``most_s``, or gets no further."""
        if now - self._targets_at > most_s:
            return True
        since = self._comparing_since
        return since is not None and (
            now - self._progress_at > most_s or now - since > COMPARE_MAX_S
        )

    def is_near(self) -> bool:
        """Whether it may join: it came to the targets, and they were not old."""
        return not self.compares and self.behind_s is not None and self.behind_s <= NEAR_S

    def forgive(self, seconds: float) -> None:
        """Do not count a time in which the master stood still."""
        self._targets_at += seconds
        self._progress_at += seconds
        if self._comparing_since is not None:
            self._comparing_since += seconds
