"""Values below ``audit``: what operators did that may have cost messages."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import AUDIT
from vq.coordination.tree.values.value import Value

#: Unclean elections of a group that are remembered.
UNCLEAN_ELECTIONS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElections(Value):
    """``audit/unclean/<group>``: when operators had a node lead that may lack messages.

    Attributes:
        elections: The newest ones, the oldest first; see ``UncleanElection``.
    """

    _what = "list of unclean elections"
    elections: tuple["UncleanElection", ...] = ()

    @staticmethod
    def path(group: str) -> str:
        """Return the path of the list."""
        return join(AUDIT, "unclean", group)

    def with_election(self, election: "UncleanElection") -> Self:
        """Return the list with one more, and without the oldest ones beyond the bound."""
        return replace(self, elections=(*self.elections, election)[-UNCLEAN_ELECTIONS_MAX:])

    def _to_json(self) -> dict[str, Any]:
        return {"elections": [asdict(each) for each in self.elections]}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            elections=tuple(
                UncleanElection(
                    time_ms=int(each["time_ms"]),
                    who=str(each["who"]),
                    node=str(each["node"]),
                    epoch=int(each["epoch"]),
                    insync=tuple(map(str, each["insync"])),
                    topics=tuple(map(str, each["topics"])),
                )
                for each in document["elections"]
            )
        )


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """An operator had a node lead that may lack acknowledged messages.

    Attributes:
        time_ms: When, by the clock of the operator's machine.
        who: The operator's user and machine.
        node: The node.
        epoch: The last one before; what was acknowledged in it, or earlier, may be lost.
        insync: The nodes that were in sync, and have it.
        topics: Whose messages may be lacking.
    """

    time_ms: int
    who: str
    node: str
    epoch: int
    insync: tuple[str, ...]
    topics: tuple[str, ...]
