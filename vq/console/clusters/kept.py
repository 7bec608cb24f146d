"""The last reports and plans of a cluster, as long as the console runs."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from vq.operations.cluster.definitions import DefinitionStep, PlannedDefinitions
from vq.operations.groups.resets import Reset

KEPT_REPORTS_MAX: Final = 10
#: A plan of a large cluster has megabytes.
KEPT_PLANS_MAX: Final = 5
KEPT_RESETS_MAX: Final = 20


class Numbered(Protocol):
    """Something with a number."""

    @property
    def number(self) -> int:
        """Of this console since its start."""


N = TypeVar("N", bound=Numbered)


class Recent(Generic[N]):
    """Things by their numbers, the newest first; the oldest of too many are forgotten.

    Args:
        most: How many are kept.
    """

    def __init__(self, most: int) -> None:
        self._kept: deque[N] = deque(maxlen=most)
        self._made = 0

    def next_number(self) -> int:
        """Return a number that nothing had yet, for what has none of its own."""
        self._made += 1
        return self._made

    def keep(self, one: N) -> None:
        """Keep one."""
        self._kept.appendleft(one)

    def all(self) -> list[N]:
        """Return those that are kept."""
        return list(self._kept)

    def find(self, number: str) -> N | None:
        """Return the one of a number; None: it is not kept."""
        return next((each for each in self._kept if str(each.number) == number), None)


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


@dataclass(frozen=True, slots=True)
class KeptReset:
    """A plan of a reset that was shown.

    Attributes:
        number: Of the plan.
        group: Whose it is.
        question: What it answers: the fields of the form.
        plan: The plan.
    """

    number: int
    group: str
    question: Sequence[str]
    plan: Sequence[Reset]


@dataclass(slots=True)
class KeptDefinitions:
    """A plan of an import of definitions, and what came of it.

    Attributes:
        number: Of the plan.
        person: Who made it.
        made_ms: Milliseconds since 1970.
        planned: The plan.
        job: Number of the act that carries it out; None: nobody did.
        outcome: The steps as they were taken; None: not yet, or it failed.
        error: Why it failed; "": it did not.
    """

    number: int
    person: str
    made_ms: int
    planned: PlannedDefinitions
    job: int | None = None
    outcome: Sequence[DefinitionStep] | None = None
    error: str = ""

    @property
    def state(self) -> str:
        """draft, running, done or failed."""
        if self.job is None:
            return "draft"
        if self.error:
            return "failed"
        return "running" if self.outcome is None else "done"
