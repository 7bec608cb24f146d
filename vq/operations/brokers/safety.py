"""What is unsafe in a broker group: what an operator should know before something else fails.

Plain values in and out: the group's record, its registered nodes, and what the brokers told.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from vq.coordination.tree.values.audit import UncleanElection
from vq.coordination.tree.values.brokers import GroupState
from vq.operations.base.sizes import bytes_text, duration_text
from vq.operations.brokers.brokers import DELETED_STATE

#: Names in one text; the list ``Unsafe.topics`` has all.
NAMES_TOLD_MAX: Final = 5


class UnsafeKind(StrEnum):
    """What is unsafe.

    Attributes:
        NO_MASTER: No node leads the group.
        NOT_REGISTERED: A node that is in sync is not registered: it does not run, or has lost
            ZooKeeper. Sends wait until it leaves the set.
        AWAY: A node was in sync once, and does not run.
        NOT_IN_SYNC: A node runs and could not take over.
        ALONE: One node is in sync although the group has others.
        MIN_INSYNC: Topics refuse messages, since too few nodes are in sync.
        NOT_COPIED: A node cannot copy a partition.
        DIVERGED: A node keeps messages that it had to cut from its logs.
        UNCLEAN: An operator had a node lead that may lack messages.
        WEAK: Topics whose settings let acknowledged messages be lost.
    """

    NO_MASTER = "no_master"
    NOT_REGISTERED = "not_registered"
    AWAY = "away"
    NOT_IN_SYNC = "not_in_sync"
    ALONE = "alone"
    MIN_INSYNC = "min_insync"
    NOT_COPIED = "not_copied"
    DIVERGED = "diverged"
    UNCLEAN = "unclean"
    WEAK = "weak"


#: These are for an operator to know; nothing is wrong.
_REMARKS: Final = frozenset({UnsafeKind.DIVERGED, UnsafeKind.UNCLEAN, UnsafeKind.WEAK})
#: Fields of a partition's status that say that its topic may lose acknowledged messages.
_WEAK: Final = (
    (
        "replication_async",
        "topics with replication = async may lose acknowledged messages with their master",
    ),
    (
        "flush_async",
        "topics with flush = async may lose acknowledged messages with the power of their machines",
    ),
)


@dataclass(frozen=True, slots=True)
class Unsafe:
    """One thing that is unsafe in a broker group.

    Attributes:
        kind: What it is.
        group: The group.
        node: The node; "": the group as a whole.
        topics: The topics that it concerns.
        text: For people.
    """

    kind: UnsafeKind
    group: str
    node: str
    topics: tuple[str, ...]
    text: str

    @property
    def wrong(self) -> bool:
        """Whether somebody has to do something; a remark otherwise."""
        return self.kind not in _REMARKS


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one registered node.

    Attributes:
        lag_bytes: What it lacks of its master's logs; None: not known.
        lag_s: Age of the oldest message of that.
        raw: Its status; None: it did not answer.
    """

    lag_bytes: int | None = None
    lag_s: float | None = None
    raw: Mapping[str, Any] | None = None


def unsafe(
    group: str,
    state: GroupState | None,
    nodes: Mapping[str, NodeFacts],
    elections: Sequence[UncleanElection] = (),
) -> tuple[Unsafe, ...]:
    """Return what is unsafe in a group, the worst first.

    Args:
        group: The group.
        state: Its record; None: nobody ever led it.
        nodes: The registered nodes, by name.
        elections: The unclean ones, the oldest first.
    """
    if state is None:
        return ()
    found = _Finder(group)
    answers = {node: facts.raw for node, facts in sorted(nodes.items()) if facts.raw is not None}
    master = answers.get(state.master)
    leads = master is not None and master["master"]
    others = sorted(set(nodes) - set(state.insync))
    without = not leads and (master is not None or state.master not in nodes)
    if without:
        names = [each if each in nodes else f"{each} (not registered)" for each in state.insync]
        text = f"no node leads it. In sync: {', '.join(names)}. "
        text += "`vq broker` of one of them starts it"
        if others:  # they have nobody to copy from, so no lag of theirs falls
            text += f". {', '.join(others)} cannot lead: not in sync"
        found.add(UnsafeKind.NO_MASTER, text)
    for node in state.insync:
        if node not in nodes and leads:
            found.add(
                UnsafeKind.NOT_REGISTERED,
                "is in sync and not registered; sends wait until it leaves the set",
                node,
            )
    for node in sorted({*state.left} - {*nodes} - {*state.insync}):
        if leads:  # else others have to be started first
            found.add(
                UnsafeKind.AWAY,
                f"{node} was in sync and does not run: start it, or take it away for good with "
                f"`vq broker remove {group}/{node}`",
            )
    # A group without partitions has nothing to copy: its nodes join with the first one.
    empty = master is not None and leads and not master["partitions"]
    for node in others:
        if not (empty or without):
            found.add(UnsafeKind.NOT_IN_SYNC, _behind_text(nodes[node]), node)
    alone = len(state.insync) == 1 and state.insync[0] in nodes and len(nodes) > 1
    if alone and not empty:
        found.add(
            UnsafeKind.ALONE, f"only {state.insync[0]} is in sync; nothing takes over from it"
        )
    if master is not None and leads:
        # A deleted topic refuses messages anyway.
        there = [each for each in master["partitions"] if each["state"] != DELETED_STATE]
        settings = {each["topic"]: each for each in there}
        short = {n: each for n, each in settings.items() if each["min_insync"] > len(state.insync)}
        if short:
            names = [f"{name} ({each['min_insync']})" for name, each in short.items()]
            found.add(
                UnsafeKind.MIN_INSYNC,
                f"{len(state.insync)} node(s) in sync; topics that need more refuse messages: "
                f"{_some(names)}",
                topics=short,
            )
        for field, text in _WEAK:
            weak = [name for name, each in settings.items() if each[field]]
            if weak:
                found.add(UnsafeKind.WEAK, f"{text}: {_some(weak)}", topics=weak)
    for node, raw in answers.items():
        _add_of_node(found, node, raw)
    for each in elections:
        when = datetime.fromtimestamp(each.time_ms / 1000, UTC).isoformat(timespec="seconds")
        found.add(
            UnsafeKind.UNCLEAN,
            f"{each.who} had {each.node} lead after epoch {each.epoch} at {when}, without "
            f"{', '.join(each.insync)}; acknowledged messages may be lost of: "
            f"{_some(each.topics) or 'no topic'}",
            topics=each.topics,
        )
    return tuple(sorted(found.all, key=lambda each: not each.wrong))


def _add_of_node(found: "_Finder", node: str, raw: Mapping[str, Any]) -> None:
    not_copied = [each for each in raw["partitions"] if each["not_copied"]]
    for each in not_copied[:NAMES_TOLD_MAX]:
        found.add(
            UnsafeKind.NOT_COPIED,
            f"cannot copy {each['topic']}-{each['partition']}: {each['not_copied']}",
            node,
            topics=[each["topic"]],
        )
    rest = not_copied[NAMES_TOLD_MAX:]
    if rest:
        names = {each["topic"]: None for each in rest}
        text = f"cannot copy {len(rest)} further partition(s)"
        found.add(UnsafeKind.NOT_COPIED, text, node, topics=names)
    if raw["diverged_files"]:
        found.add(
            UnsafeKind.DIVERGED,
            f"keeps {raw['diverged_files']} file(s) of messages that it had to cut from its logs, "
            f"{bytes_text(raw['diverged_bytes'])}; see `vq cluster diverged`",
            node,
        )


class _Finder:
    """Collects what is found in one group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.all: list[Unsafe] = []

    def add(
        self, kind: UnsafeKind, text: str, node: str = "", *, topics: Collection[str] = ()
    ) -> None:
        """Add one; ``text`` goes on behind the name of node or group."""
        name = f"{self._group}/{node} {text}" if node else f"{self._group}: {text}"
        self.all.append(Unsafe(kind, self._group, node, tuple(topics), name))


def _behind_text(facts: NodeFacts) -> str:
    if facts.lag_bytes is None:
        return "is not in sync and cannot take over; what it lacks is not known"
    lag = f"{bytes_text(facts.lag_bytes)}, {duration_text(facts.lag_s or 0.0)}"
    return f"is not in sync and cannot take over; it lacks {lag}"


def _some(names: Collection[str]) -> str:
    shown = [*names][:NAMES_TOLD_MAX]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
