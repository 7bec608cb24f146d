"""Which nodes the tree may have: the pattern of a path, the class of its value, how long it lives.

``vq.coordination.tree.paths`` has the same at one glance. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vq.coordination.leases.writes import WriteTask, WriteTopic
from vq.coordination.tree.values.access import AccessList
from vq.coordination.tree.values.allocations import (
    AllocationCancel,
    AllocationOrder,
    AllocationProgress,
)
from vq.coordination.tree.values.audit import ActOutcome, ActRecord, UncleanElections
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    BrokerLoad,
    GroupState,
    OpenPartitions,
    Registration,
)
from vq.coordination.tree.values.cluster import ClusterSecret, ClusterSettings
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.tree.values.decisions import Decision
from vq.coordination.tree.values.identities import Identities
from vq.coordination.tree.values.leases import LeaseFence, LeaseHolder, LeaseTimes
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.quotas import QuotaList
from vq.coordination.tree.values.runs import RunCounter, RunOrder, RunResult
from vq.coordination.tree.values.slots import Slot, SlotCounter, SlotMark
from vq.coordination.tree.values.topics import (
    DeletedTopics,
    DeletionFence,
    GraceClock,
    TopicNode,
)
from vq.coordination.tree.values.users import StoredUser
from vq.coordination.tree.values.value import Value


@dataclass(frozen=True, slots=True)
class NodeKind:
    """One kind of node.

    Attributes:
        pattern: Of its path; a part in angle brackets is a name, ``<n>`` a number.
        value: The class of its value; None: it has none.
        is_ephemeral: It lives as long as a session.
        may_be_empty: It may be there before its value is, as a parent.
        is_derived: Its value says what other nodes say, and vq makes it anew if it is missing.
        is_secret: No copy has it unless somebody asks for that.
    """

    pattern: str
    value: type[Value] | None = None
    is_ephemeral: bool = False
    may_be_empty: bool = False
    is_derived: bool = False
    is_secret: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the pattern."""
        return tuple(self.pattern.split("/"))


#: Every kind of node.
KINDS: Final = (
    NodeKind("settings", ClusterSettings),
    NodeKind("security"),
    NodeKind("security/secret", ClusterSecret, is_secret=True),
    NodeKind("security/identities", Identities),
    NodeKind("security/acls", AccessList),
    NodeKind("security/quotas", QuotaList),
    NodeKind("security/users"),
    NodeKind("security/users/<user>", StoredUser, is_secret=True),
    NodeKind("brokers"),
    NodeKind("brokers/<group>", BrokerGroup, may_be_empty=True),
    NodeKind("brokers/<group>/state", GroupState),
    NodeKind("brokers/<group>/nodes"),
    NodeKind("brokers/<group>/nodes/<node>", Registration, is_ephemeral=True),
    NodeKind("brokers/<group>/load"),
    NodeKind("brokers/<group>/load/<node>", BrokerLoad, is_ephemeral=True),
    NodeKind("brokers/<group>/partitions", OpenPartitions, is_derived=True),
    NodeKind("topics"),
    NodeKind("topics/<topic>", TopicNode),
    NodeKind("topics/<topic>/partitions", PlacementChanges, is_derived=True),
    NodeKind("topics/<topic>/partitions/<n>", Partition),
    NodeKind("topics/<topic>/<fence>", DeletionFence),
    NodeKind("audit"),
    NodeKind("audit/unclean"),
    NodeKind("audit/unclean/<group>", UncleanElections),
    NodeKind("audit/acts"),
    NodeKind("audit/acts/<act>", ActRecord, is_secret=True),
    NodeKind("audit/acts/<act>/end", ActOutcome, is_secret=True),
    NodeKind("deleted", DeletedTopics),
    NodeKind("grace", GraceClock),
    NodeKind("consumers"),
    NodeKind("consumers/<group>", ConsumerGroup, may_be_empty=True),
    NodeKind("consumers/<group>/members"),
    NodeKind("consumers/<group>/members/<member>", Member, is_ephemeral=True),
    NodeKind("consumers/<group>/assignment"),
    NodeKind("consumers/<group>/assignment/<topic>"),
    NodeKind("consumers/<group>/assignment/<topic>/<n>", Assignment),
    NodeKind("consumers/<group>/owners"),
    NodeKind("consumers/<group>/owners/<topic>"),
    NodeKind("consumers/<group>/owners/<topic>/<n>", Owner, is_ephemeral=True),
    NodeKind("consumers/<group>/offsets"),
    NodeKind("consumers/<group>/offsets/<topic>"),
    NodeKind("consumers/<group>/offsets/<topic>/<n>", CommittedOffset),
    NodeKind("slots", SlotCounter, may_be_empty=True),
    NodeKind("slots/<n>", Slot, is_ephemeral=True),
    NodeKind("slot_marks"),
    NodeKind("slot_marks/<n>", SlotMark),
    NodeKind("leases"),
    NodeKind("leases/<job>", LeaseFence, may_be_empty=True),
    NodeKind("leases/<job>/holder", LeaseHolder, is_ephemeral=True),
    NodeKind("leases/<job>/times", LeaseTimes),
    NodeKind("decisions"),
    NodeKind("decisions/<n>"),
    NodeKind("decisions/<n>/<name>", Decision),
    NodeKind("archive"),
    NodeKind("archive/runs", RunCounter, may_be_empty=True),
    NodeKind("archive/runs/<n>", RunOrder),
    NodeKind("archive/runs/<n>/<result>", RunResult),
    NodeKind("allocations"),
    NodeKind("allocations/<plan>", AllocationOrder),
    NodeKind("allocations/<plan>/progress", AllocationProgress),
    NodeKind("allocations/<plan>/cancel", AllocationCancel),
    NodeKind("writes"),
    NodeKind("writes/<write>"),
    NodeKind("writes/<write>/tasks"),
    NodeKind("writes/<write>/tasks/<n>", WriteTask),
    NodeKind("writes/<write>/topics"),
    NodeKind("writes/<write>/topics/<topic>", WriteTopic),
)
#: What the name of a fence of a deletion begins with.
_FENCE: Final = DeletionFence.path("t", "").removeprefix("topics/t/")
#: What ends the name of a node that keeps the place of a member.
_PLACE: Final = "~"
#: That node may be of no session: the member was closed, and comes again.
PLACE_KIND: Final = NodeKind("consumers/<group>/members/<member>~", Member)

_BY_TOP: Final = {
    (top, length): tuple(
        each for each in KINDS if (each.parts[0], len(each.parts)) == (top, length)
    )
    for top, length in {(each.parts[0], len(each.parts)) for each in KINDS}
}


def kind_of(path: str) -> NodeKind | None:
    """Return the kind of the node at a path; None: this vq makes no such node."""
    parts = tuple(path.split("/"))
    likely = _BY_TOP.get((parts[0], len(parts)), ())
    found = next((each for each in likely if _fits(each.parts, parts)), None)
    if found is not None and found.value is Member and parts[-1].endswith(_PLACE):
        return PLACE_KIND
    return found


def names_in(path: str) -> tuple[str, ...]:
    """Return the parts of a path."""
    return tuple(path.split("/"))


def _fits(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(pattern) == len(parts) and all(_part_fits(*each) for each in _pairs(pattern, parts))


def _pairs(pattern: tuple[str, ...], parts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return zip(pattern, parts, strict=True)


def _part_fits(pattern: str, part: str) -> bool:
    if not pattern.startswith("<"):
        return pattern == part
    match pattern:
        case "<n>":
            return part.isascii() and part.isdecimal()
        case "<fence>":
            return part.startswith(_FENCE)
        case "<result>":
            return ":" in part
    return bool(part)
