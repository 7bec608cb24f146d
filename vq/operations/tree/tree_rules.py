"""What must hold in the tree: node by node, and among them. Pure.

``TreeRules`` is fed the nodes in the order of ``walk_tree``: brokers, topics, groups, the rest.

A repair is safe and unambiguous, or there is none: it removes what no vq of any version makes where
it lies, or what a deleted topic left, and sets what can be counted. Each is written under the
version at which the node was read.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState, OpenPartitions
from vq.coordination.tree.values.cluster import ClusterSecret
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Owner,
)
from vq.coordination.tree.values.group_terms import GroupModel
from vq.coordination.tree.values.partitions import OPEN_GROUPS_MAX, Partition, PlacementChanges
from vq.coordination.tree.values.runs import RunCounter, RunOrder
from vq.coordination.tree.values.topics import (
    CREATING,
    DELETING,
    IN_GRACE,
    READY,
    DeletedTopics,
    TopicNode,
)
from vq.coordination.tree.values.users import StoredUser
from vq.coordination.tree.values.value import Value
from vq.errors import CoordinationError
from vq.limits import is_valid_name
from vq.model import PartitionState
from vq.operations.tree.findings import Severity, TreeFinding, TreeRepair
from vq.operations.tree.layout import NodeKind, kind_of, names_in
from vq.operations.tree.walking import StoredNode

#: So many findings are kept; all are counted.
FINDINGS_MAX: Final = 10_000
_V = TypeVar("_V", bound=Value)


@dataclass(slots=True)
class _TopicState:
    """What is known of a topic while its nodes are fed."""

    value: TopicNode | None = None
    version: int = -1
    czxid: int = 0
    partitions: set[int] = field(default_factory=set)
    open: Counter[str] = field(default_factory=Counter)
    groups: set[str] = field(default_factory=set)
    changes: StoredNode | None = None
    fences: list[StoredNode] = field(default_factory=list)


@dataclass(slots=True)
class _GroupSeen:
    """What is known of the group of consumers whose nodes are fed."""

    name: str = ""
    node: StoredNode | None = None
    contract: ConsumerGroup | None = None
    sessions: dict[str, int] = field(default_factory=dict)
    has_more: bool = False


class TreeRules:
    """Takes nodes, and has the findings at the end. Memory: the topics, and what was found."""

    def __init__(self) -> None:
        self.nodes = 0
        self.counts: Counter[Severity] = Counter()
        self.findings: list[TreeFinding] = []
        self._brokers: dict[str, GroupState | None] = {}
        self._open: dict[str, StoredNode] = {}
        self._topics: dict[str, _TopicState] = {}
        self._deleted: Mapping[str, str] = {}
        self._group = _GroupSeen()
        self._leftovers: list[tuple[StoredNode, str]] = []  # offsets of missing topics, with ids
        self._missing: set[tuple[str, str]] = set()
        self._runs: dict[int, str] = {}
        self._next_run: int | None = None
        self._topics_done = False

    def feed(self, node: StoredNode) -> None:
        """Take the next node."""
        self.nodes += 1
        top = names_in(node.path)[0]
        if not self._topics_done and top not in {"brokers", "topics"}:
            self._topics_done = True
            self._check_topics()
        kind = kind_of(node.path)
        if kind is None:
            self._add(
                node, "unknown_node", Severity.WARNING, "no vq of this version makes such a node"
            )
            return
        if node.data is None:
            self._add(
                node,
                "not_allowed",
                Severity.ERROR,
                "its ACL does not let vq read it; give vq's clients all rights to it (setAcl of "
                "zkCli)",
            )
            return
        self._check_life(kind, node)
        value = self._decode(kind, node)
        look = self._looks.get(kind.pattern)
        if look is not None:
            look(self, node, value)

    def end(self) -> None:
        """Judge what only the whole shows; call it once, after the last node."""
        if not self._topics_done:
            self._topics_done = True
            self._check_topics()
        self._end_group()
        for node, topic_id in self._leftovers:
            self._check_leftover(node, topic_id)
        if self._next_run is not None:
            for number, path in self._runs.items():
                if number >= self._next_run:
                    self._add(
                        path,
                        "run_ahead",
                        Severity.ERROR,
                        f"the next run of the archive would be {self._next_run}, and this one is "
                        "there already",
                    )

    # Single nodes -------------------------------------------------------------------------------
    def _check_life(self, kind: NodeKind, node: StoredNode) -> None:
        owner = node.stat.ephemeral_owner
        if kind.is_ephemeral and not owner:
            self._add(
                node,
                "not_ephemeral",
                Severity.ERROR,
                "it belongs to no session, so it never goes: others take it for a process that "
                "runs",
                repair=TreeRepair(node.path, node.stat.version, None),
            )
        elif owner and not kind.is_ephemeral and not kind.pattern.endswith("~"):
            self._add(
                node,
                "ephemeral",
                Severity.ERROR,
                "it belongs to a session, and goes when that ends; write it anew without one",
            )

    def _decode(self, kind: NodeKind, node: StoredNode) -> Value | None:
        data = node.data or b""
        if kind.value is None:
            return None
        if not data and kind.may_be_empty:
            return None
        try:
            return kind.value.decode(node.path, data)
        except CoordinationError as error:
            is_newer = isinstance(error, Unreadable) and "upgrade vq" in error.message
            repair = None
            if kind.value is OpenPartitions and not is_newer:
                repair = TreeRepair(node.path, node.stat.version, None)  # vq counts anew
            self._add(
                node,
                "newer_format" if is_newer else "unreadable",
                Severity.WARNING if is_newer else Severity.ERROR,
                error.message,
                () if is_newer else self._mends(kind, node),
                repair=repair,
            )
            return None

    def _mends(self, kind: NodeKind, node: StoredNode) -> tuple[str, ...]:
        """Return the commands that mend a value that cannot be read."""
        if kind.value is ClusterSecret:
            return ("vq cluster replace-secret --yes",)
        if kind.value is StoredUser:
            return (f"vq user remove {shlex.quote(names_in(node.path)[-1])} --yes",)
        return ()

    # Brokers ------------------------------------------------------------------------------------
    def _broker_group(self, node: StoredNode, value: Value | None) -> None:
        name = names_in(node.path)[1]
        self._brokers.setdefault(name, None)
        self._check_name(node, name)
        if isinstance(value, BrokerGroup) and value.draining:
            self._add(
                node,
                "draining",
                Severity.INFO,
                "no new partitions are placed on it",
                (f"vq broker undrain {name}",),
            )

    def _group_state(self, node: StoredNode, value: Value | None) -> None:
        if not isinstance(value, GroupState):
            return
        self._brokers[names_in(node.path)[1]] = value
        if value.master not in value.insync:
            self._add(
                node,
                "master_not_in_sync",
                Severity.ERROR,
                f"its master {value.master} is not among the nodes in sync "
                f"({', '.join(value.insync)})",
                ("vq cluster status",),
            )

    def _open_partitions(self, node: StoredNode, value: Value | None) -> None:
        if isinstance(value, OpenPartitions):
            self._open[names_in(node.path)[1]] = node

    # Topics -------------------------------------------------------------------------------------
    def _topic(self, node: StoredNode, value: Value | None) -> None:
        name = names_in(node.path)[1]
        state = self._topics.setdefault(name, _TopicState())
        state.version, state.czxid = node.stat.version, node.stat.czxid
        self._check_name(node, name)
        if not isinstance(value, TopicNode):
            return
        state.value = value
        if value.phase in {CREATING, DELETING}:
            self._add(
                node,
                "half_made" if value.phase == CREATING else "half_deleted",
                Severity.WARNING,
                f"it is {value.phase}: that takes a moment. If it stays so, who did it was "
                "interrupted",
                (f"vq topic delete {name} --now --yes",),
            )

    def _placement_changes(self, node: StoredNode, value: Value | None) -> None:
        self._topics.setdefault(names_in(node.path)[1], _TopicState()).changes = node

    def _partition(self, node: StoredNode, value: Value | None) -> None:
        _, name, _, number = names_in(node.path)
        state = self._topics.setdefault(name, _TopicState())
        state.partitions.add(int(number))
        if not isinstance(value, Partition):
            return
        groups = {each.group for each in value.spans}
        state.groups |= groups
        last = value.spans[-1] if value.spans else None
        state.open[last.group if last is not None and last.end is None else ""] += 1
        missing = sorted(groups - self._brokers.keys())
        if missing:
            self._add(
                node,
                "unknown_broker_group",
                Severity.ERROR,
                f"it lies on broker group {', '.join(missing)}, which is not in the tree: a broker "
                "of it makes its node when it starts",
                ("vq cluster status",),
            )
        for before, after in zip(value.spans, value.spans[1:], strict=False):
            if before.end != after.start:
                self._add(
                    node,
                    "gap",
                    Severity.ERROR,
                    f"its ranges do not follow one another: {before.group} ends at {before.end}, "
                    f"{after.group} begins at {after.start}",
                )
        if value.state is PartitionState.RW and last is not None and last.end is not None:
            self._add(
                node,
                "no_end",
                Severity.ERROR,
                "no broker group takes its messages, although its state is rw",
            )

    def _fence(self, node: StoredNode, value: Value | None) -> None:
        self._topics.setdefault(names_in(node.path)[1], _TopicState()).fences.append(node)

    def _check_topics(self) -> None:
        """Judge the topics as a whole, and the counts that rest on all of them."""
        counted: Counter[str] = Counter()
        certain = True
        for name, state in self._topics.items():
            self._check_topic(name, state)
            value = state.value
            if value is None:
                certain = False
            elif value.phase == READY:
                counted += state.open
                certain = certain and state.open.total() == len(state.partitions)
            elif state.partitions:
                certain = False  # it is made or deleted, and its counts with it
        for group, node in self._open.items():
            told = OpenPartitions.decode(node.path, node.data or b"").open
            if certain and told != counted[group]:
                self._add(
                    node,
                    "wrong_count",
                    Severity.WARNING,
                    f"it says that {told} partitions are open on {group}, and {counted[group]} "
                    "are: new ones are spread less evenly",
                    repair=TreeRepair(
                        node.path, node.stat.version, OpenPartitions(open=counted[group]).encode()
                    ),
                )

    def _check_topic(self, name: str, state: _TopicState) -> None:
        path, value = TopicNode.path(name), state.value
        for fence in state.fences:
            topic_id = names_in(fence.path)[2].removeprefix("deleting-")
            if value is None or (value.phase == DELETING and value.id == topic_id):
                continue
            self._add(
                fence,
                "fence_left",
                Severity.WARNING,
                f"it guards the deletion of topic {topic_id}, and the topic here is "
                f"{value.id} in phase {value.phase}",
            )
        if value is None:
            return
        wanted = value.settings.partitions
        if value.phase in {READY, IN_GRACE}:
            missing = sorted(set(range(wanted)) - state.partitions)
            if missing:
                self._add(
                    path,
                    "partitions_missing",
                    Severity.ERROR,
                    f"it has {wanted} partitions, and the nodes of {len(missing)} are missing, the "
                    f"first one is {missing[0]}: restore them from a copy of the tree",
                    (f"vq zk import FILE --below topics/{name} --yes",),
                )
            beyond = sorted(each for each in state.partitions if each >= wanted)
            if beyond:
                self._add(
                    path,
                    "partitions_beyond",
                    Severity.WARNING,
                    f"it has {wanted} partitions, and there are nodes of {len(beyond)} more, from "
                    f"{beyond[0]} on",
                )
        self._check_changes(name, state, value)

    def _check_changes(self, name: str, state: _TopicState, value: TopicNode) -> None:
        node = state.changes
        if node is None or value.phase != READY:
            return
        found = PlacementChanges.of_node(node.path, node.data or b"", node.stat.version)
        counted = {group: count for group, count in sorted(state.open.items()) if count}
        is_whole = state.open.total() == value.settings.partitions == len(state.partitions)
        if not is_whole or found.open is None or dict(found.open) == counted:
            return
        anew = replace(
            found,
            version=node.stat.version + 1,
            partitions=(),
            open=counted if len(counted) <= OPEN_GROUPS_MAX else None,
        )
        self._add(
            node,
            "wrong_count",
            Severity.WARNING,
            f"it says that its partitions are open on {dict(found.open)}, and they are on "
            f"{counted}",
            repair=TreeRepair(node.path, node.stat.version, anew.encode()),
        )

    # Groups of consumers ------------------------------------------------------------------------
    def _consumer_group(self, node: StoredNode, value: Value | None) -> None:
        self._end_group()
        name = names_in(node.path)[1]
        contract = value if isinstance(value, ConsumerGroup) else None
        self._group = _GroupSeen(name, node, contract)
        self._check_name(node, name)
        if contract is None:
            return
        for topic in contract.topics:
            if topic not in self._topics:
                self._add(
                    node,
                    "topic_missing",
                    Severity.INFO,
                    f"it reads topic {topic}, which does not exist",
                    (f"vq group forget {name} --topic {topic} --yes",),
                )

    def _member(self, node: StoredNode, value: Value | None) -> None:
        self._group.sessions[names_in(node.path)[3]] = node.stat.ephemeral_owner
        self._group.has_more = True

    def _assignment(self, node: StoredNode, value: Value | None) -> None:
        self._group.has_more = True
        if isinstance(value, Assignment) and value.generation != node.stat.version:
            self._add(
                node,
                "wrong_generation",
                Severity.INFO,
                f"its value has generation {value.generation}, and its version, which counts, is "
                f"{node.stat.version}: another program wrote it, or it was imported",
            )

    def _owner(self, node: StoredNode, value: Value | None) -> None:
        if not isinstance(value, Owner) or not node.stat.ephemeral_owner:
            return
        session = self._group.sessions.get(value.member)
        if session is None:
            self._add(
                node,
                "owner_without_member",
                Severity.INFO,
                f"member {value.member} owns it, and is no member now: it ends, or comes; its node "
                "goes with its session",
                (f"vq group describe {self._group.name}",),
            )

    def _offset(self, node: StoredNode, value: Value | None) -> None:
        self._group.has_more = True
        _, group, _, topic, number = names_in(node.path)
        if not isinstance(value, CommittedOffset):
            return
        state = self._topics.get(topic)
        if state is None:
            self._leftovers.append((node, value.topic_id))
            return
        if state.value is None:
            return
        if int(number) >= state.value.settings.partitions and state.value.phase == READY:
            self._add(
                node,
                "partition_missing",
                Severity.WARNING,
                f"topic {topic} has {state.value.settings.partitions} partitions; the tree may "
                "come from a backup",
            )
        is_shared = (
            self._group.contract is None or self._group.contract.model != GroupModel.BROADCASTING
        )
        if is_shared and value.topic_id and value.topic_id != state.value.id:
            self._add(
                node,
                "other_topic",
                Severity.ERROR,
                f"it is of another topic {topic} ({value.topic_id}, now {state.value.id}): the "
                "group stops there",
                (
                    f"vq group reset {group} --topic {topic} --partition {number} --to-earliest "
                    "--yes",
                ),
            )

    def _end_group(self) -> None:
        seen, self._group = self._group, _GroupSeen()
        if seen.node is not None and not seen.node.data and seen.has_more:
            self._add(
                seen.node,
                "group_half_made",
                Severity.WARNING,
                "it has no contract: who made or deleted it was interrupted, or its first member "
                "is just coming",
                (f"vq group delete {seen.name} --yes",),
            )

    def _check_leftover(self, node: StoredNode, topic_id: str) -> None:
        _, group, _, topic, _ = names_in(node.path)
        is_deleted = bool(topic_id) and self._deleted.get(topic_id) == topic
        text = f"topic {topic} does not exist"
        if is_deleted:
            text += ": it was deleted, and this is left"
        else:
            text += (
                ", and is not among the topics that were deleted lately: the tree may come from "
            )
            text += "a backup"
        self._add(
            node,
            "offset_left",
            Severity.WARNING,
            text,
            (f"vq group forget {group} --topic {topic} --yes",),
            repair=TreeRepair(node.path, node.stat.version, None) if is_deleted else None,
        )

    # The rest -----------------------------------------------------------------------------------
    def _deleted_topics(self, node: StoredNode, value: Value | None) -> None:
        if isinstance(value, DeletedTopics):
            self._deleted = value.topics

    def _run_counter(self, node: StoredNode, value: Value | None) -> None:
        if isinstance(value, RunCounter):
            self._next_run = value.next

    def _run(self, node: StoredNode, value: Value | None) -> None:
        self._runs[int(names_in(node.path)[2])] = node.path
        if isinstance(value, RunOrder) and value.topic and value.topic not in self._topics:
            self._add(
                node,
                "topic_missing",
                Severity.INFO,
                f"the run is for topic {value.topic}, which does not exist",
            )

    def _check_name(self, node: StoredNode, name: str) -> None:
        if not is_valid_name(name):
            self._add(
                node,
                "impossible_name",
                Severity.ERROR,
                f"{name!r} is a name that nothing can have: another program made it",
            )

    def _add(
        self,
        at: StoredNode | str,
        problem: str,
        severity: Severity,
        text: str,
        commands: Sequence[str] = (),
        *,
        repair: TreeRepair | None = None,
    ) -> None:
        path = at if isinstance(at, str) else at.path
        self.counts[severity] += 1
        if any(shlex.quote(each) != each for each in names_in(path)):
            commands = ()  # no command takes a name that another program has made up
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(
                TreeFinding(
                    path=path,
                    problem=problem,
                    severity=severity,
                    text=text,
                    commands=tuple(commands),
                    repair=repair,
                )
            )

    #: What else is looked at in a node of a kind.
    _looks: Final[Mapping[str, Callable[["TreeRules", StoredNode, Value | None], None]]] = {
        "brokers/<group>": _broker_group,
        "brokers/<group>/state": _group_state,
        "brokers/<group>/partitions": _open_partitions,
        "topics/<topic>": _topic,
        "topics/<topic>/partitions": _placement_changes,
        "topics/<topic>/partitions/<n>": _partition,
        "topics/<topic>/<fence>": _fence,
        "consumers/<group>": _consumer_group,
        "consumers/<group>/members/<member>": _member,
        "consumers/<group>/members/<member>~": _member,
        "consumers/<group>/assignment/<topic>/<n>": _assignment,
        "consumers/<group>/owners/<topic>/<n>": _owner,
        "consumers/<group>/offsets/<topic>/<n>": _offset,
        "deleted": _deleted_topics,
        "archive/runs": _run_counter,
        "archive/runs/<n>": _run,
    }
