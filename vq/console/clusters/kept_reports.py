"""The last reports of a cluster, as long as the console runs."""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

KEPT_REPORTS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report.

    Attributes:
        number: Of the act that made it.
        kind: lag, capacity or audit.
        person: Who had it made.
        made_ms: Milliseconds since 1970.
        text: JSON, as ``vq report`` prints it; as text it is small.
    """

    number: int
    kind: str
    person: str
    made_ms: int
    text: str

    def read(self) -> dict[str, Any]:
        """Return the report."""
        found: dict[str, Any] = json.loads(self.text)
        return found


class KeptReports:
    """Reports of a cluster, the newest first; the oldest of too many are forgotten."""

    def __init__(self) -> None:
        self._kept: deque[KeptReport] = deque(maxlen=KEPT_REPORTS_MAX)

    def keep(self, report: KeptReport) -> None:
        """Keep one."""
        self._kept.appendleft(report)

    def all(self) -> list[KeptReport]:
        """Return those that are kept."""
        return list(self._kept)

    def find(self, number: str) -> KeptReport | None:
        """Return the report of an act; None: it is not kept."""
        return next((each for each in self._kept if str(each.number) == number), None)
