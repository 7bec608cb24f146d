"""The value of a decision node: which transaction with offsets was committed last by its means."""

from dataclasses import dataclass

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import DECISIONS
from vq.coordination.tree.values.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Value):
    """``decisions/<n>/<name>``: a node of one producer, for transactions of one journal.

    ``n`` is the partition of the journal. ``transaction`` is the number of the last transaction
    that was committed by means of this node; 0: none was. The version rises by one with each.
    ``group`` and ``member``, whose offsets that one moved, are for operators.
    """

    _what = "decision"
    transaction: int = 0
    group: str = ""
    member: str = ""

    @staticmethod
    def parent(journal: int) -> str:
        """Return the path that holds the nodes of a journal."""
        return join(DECISIONS, str(journal))

    @classmethod
    def path(cls, journal: int, name: str) -> str:
        """Return the node's path."""
        return join(cls.parent(journal), name)
