"""Values of a topic's partitions: where each lies, and which changed recently."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.values.value import Value
from vq.errors import CoordinationError
from vq.model import PartitionState, Span

#: Changes in a topic's list; a reader that missed more reads all partitions again.
PLACEMENT_CHANGES_MAX: Final = 256
#: The most groups in the counts of a list. For a topic on more groups the list has no counts: every
#: client that tracks the topic reads the list at each change, so it must stay small.
OPEN_GROUPS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Value):
    """``topics/<topic>/partitions/<n>``: the spans of a partition and its state."""

    _what = "partition"
    spans: tuple[Span, ...]
    state: PartitionState = PartitionState.RW

    @staticmethod
    def parent(topic: str) -> str:
        """Return the path that holds the topic's partitions."""
        return join(TOPICS, topic, "partitions")

    @classmethod
    def path(cls, topic: str, partition: int) -> str:
        """Return the partition's path."""
        return join(cls.parent(topic), str(partition))

    def _to_json(self) -> dict[str, Any]:
        return {"placement": [_of_span(each) for each in self.spans], "state": self.state}

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        spans = tuple(_span(each) for each in document["placement"])
        return cls(spans=spans, state=PartitionState(document["state"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChanges(Value):
    """``topics/<topic>/partitions``: the recently changed partitions, the newest last.

    Every change of a partition's node writes this node in the same ``multi``. So one watch covers
    all partitions: a reader that knows version 7 of this node and reads version 9 has to read two
    partitions. It is a hint, like a watch; only the partitions' nodes have the placement.

    ``version`` is the version of the znode with this value. If they differ, another program wrote
    the node. Invariant: the last of ``partitions`` changed with that version, the one before it
    with the version before.

    ``open`` counts the open partitions of each group, under "" those that are open on none, so that
    a list of topics needs no reads of partitions. None, and left out: not known.
    """

    _what = "list of changed partitions"
    _omits = ("open",)
    version: int = 0
    partitions: tuple[int, ...] = ()
    open: Mapping[str, int] | None = None

    @staticmethod
    def path(topic: str) -> str:
        """Return the path of the topic's list."""
        return Partition.parent(topic)

    @classmethod
    def of_node(cls, path: str, data: bytes, version: int) -> Self:
        """Return a node's value; only its version if another program wrote the node."""
        try:
            value = cls.decode(path, data)
        except CoordinationError:
            return cls(version=version)
        return value if value.version == version else cls(version=version)

    def with_change(self, partition: int, opened: Mapping[str, int] | None = None) -> Self:
        """Return the list to write with a change of ``partition``.

        ``opened`` has the change of the number of open partitions of each group.
        """
        partitions = (*self.partitions, partition)[-PLACEMENT_CHANGES_MAX:]
        counts = self.open
        if counts is not None:
            names = sorted({*counts, *(opened or {})})
            sums = {name: counts.get(name, 0) + (opened or {}).get(name, 0) for name in names}
            counts = {name: count for name, count in sums.items() if count}
        return replace(self, version=self.version + 1, partitions=partitions, open=counts)

    def since(self, version: int) -> frozenset[int] | None:
        """Return the partitions that changed after ``version`` of this node; None: not known."""
        missed = self.version - version
        if not 0 <= missed <= len(self.partitions):
            return None
        return frozenset(self.partitions[len(self.partitions) - missed :])

    def _to_json(self) -> dict[str, Any]:
        values = Value._to_json(self)
        if len(self.open or ()) > OPEN_GROUPS_MAX:
            del values["open"]
        return values


def _of_span(span: Span) -> dict[str, Any]:
    document: dict[str, Any] = {"group": span.group, "start": span.start, "end": span.end}
    if span.number is not None:
        document["number"] = span.number
    return document


def _span(document: Mapping[str, Any]) -> Span:
    group, start, end = document["group"], document["start"], document.get("end")
    if not isinstance(group, str) or type(start) is not int or start < 0:
        raise TypeError(f"span {document!r}")
    if end is not None and (type(end) is not int or end < start):
        raise ValueError(f"span {document!r} ends before it starts")
    number = document.get("number")
    if number is not None and (type(number) is not int or number < 0):
        raise ValueError(f"span {document!r} has a number that is none")
    return Span(group, start, end, number)
