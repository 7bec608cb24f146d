"""Values below ``audit``: what operators did, and what of that may have cost messages."""

from dataclasses import dataclass, replace
from typing import Final, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import ACTS, AUDIT
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecord(Value):
    """``audit/acts/<act>``: an act of an operator, written before it begins; never changed.

    Attributes:
        time_ms: When, by the clock of the operator's machine.
        who: User and machine, as the process says.
        user: Its user at brokers; "": none.
        identity: The name by which ZooKeeper knows it; "": none.
        person: For whom a console acts, and from which address; "": for nobody.
        act: The operation.
        subject: The topic, group, user or node that it is about.
        arguments: All of them, as JSON, without secrets; perhaps cut.
        before: What was there, as JSON; "": not known, or nothing.
        charged: The user whose quota ``metadata`` it counts for; "": nobody's.
        partitions: How many it makes or moves, where that counts.
    """

    _what = "record of an act"
    time_ms: int
    who: str
    act: str
    user: str = ""
    identity: str = ""
    person: str = ""
    subject: str = ""
    arguments: str = ""
    before: str = ""
    charged: str = ""
    partitions: int = 0

    @staticmethod
    def path(act: str) -> str:
        """Return the path of the record of an act."""
        return join(ACTS, act)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOutcome(Value):
    """``audit/acts/<act>/end``: what became of it; never changed.

    Attributes:
        time_ms: When it ended.
        outcome: "done", "failed" (certainly not done as a whole) or "unknown".
        error: Why not; "": it is done.
        after: What was there then, as JSON; "": not known, or nothing.
        refused: It ended when its quota ``metadata`` was looked at, before anything was done: so it
            does not count for that. An earlier vq does not write this.
    """

    _what = "outcome of an act"
    time_ms: int
    outcome: str
    error: str = ""
    after: str = ""
    refused: bool = False

    @staticmethod
    def path(act: str) -> str:
        """Return the path of the outcome of an act."""
        return join(ACTS, act, "end")


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
