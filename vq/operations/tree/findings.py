"""What a check of the tree finds.

severity   means
error      something does not work, or will not: an operator has to act
warning    a leftover, or something that only looks wrong to others
info       for an operator to know
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is; see the module's text."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class TreeRepair:
    """What a repair writes: the value of a node, or None to delete it, under this version."""

    path: str
    version: int
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFinding:
    """Something that does not hold.

    Attributes:
        path: The node.
        problem: In one word, for programs.
        severity: ``error``, ``warning`` or ``info``.
        text: For people.
        commands: The commands that mend it; empty: there is none.
        repair: What ``repair_tree`` writes; None: nothing.
    """

    path: str
    problem: str
    severity: Severity
    text: str
    commands: tuple[str, ...] = ()
    repair: TreeRepair | None = None

    @property
    def repair_text(self) -> str:
        """What a repair does, for people; "": nothing."""
        if self.repair is None:
            return ""
        return "deletes the node" if self.repair.data is None else "writes the value anew"
