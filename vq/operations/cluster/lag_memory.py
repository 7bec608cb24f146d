"""What looks at the lags of groups found, and the next look need not ask again."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vq.coordination.groups.groups import KnownMembers
from vq.coordination.tree.reading import TopicView
from vq.model import TopicPartition
from vq.operations.partitions.offsets import PartitionEnds


class FirstBehind(NamedTuple):
    """The first message behind a group's place in a partition.

    Attributes:
        offset: Where the place is.
        epoch: Of the master that told it.
        created: The czxid of its topic: another topic of the name has other messages there.
        number: Of the message; None: not known, or not asked for.
        sent_ms: When it was sent, in milliseconds since 1970; None: not known.
        counted: How many messages a broker counted from here on, where numbers are not known; of
            that look alone.
    """

    offset: int
    epoch: int
    created: int
    number: int | None
    sent_ms: int | None
    counted: int | None = None

    def messages_to(self, ends: PartitionEnds) -> int | None:
        """Return how many messages there are from here to the end; None: numbers are not known."""
        if self.number is None or ends.latest_number is None:
            return None
        return max(0, ends.latest_number - self.number)


@dataclass(slots=True)
class LagMemory:
    """What looks found that the next one need not ask again. Loop-bound.

    It is bounded by what the cluster has: each look forgets the groups and topics that are gone.
    What it has of each partition that a group reads is plain numbers in one tuple: the collector of
    garbage has nothing to follow there, which took it 100 ms each time for 10 000 groups.

    Attributes:
        members: Of each group that has some.
        topics: Each topic that a group reads.
        told: How many partitions each broker group told last.
        reads: The topics that each group read last; a topic that none of them reads is forgotten.
    """

    members: dict[str, KnownMembers] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _firsts: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def keep(self, groups: Collection[str]) -> None:
        """Forget the groups that are not there any more, and the topics that no group reads."""
        by_group: tuple[dict[str, Any], ...] = (self._firsts, self.members, self.reads)
        for found in by_group:
            for name in found.keys() - groups:
                del found[name]
        for topic in self.topics.keys() - set().union(*self.reads.values()):
            del self.topics[topic]

    def keep_firsts(self, group: str, firsts: Mapping[TopicPartition, FirstBehind]) -> None:
        """Keep the first message behind a group's place, by partition."""
        self._firsts[group] = tuple(each for key, first in firsts.items() for each in key + first)

    def take_firsts(self, group: str) -> dict[TopicPartition, FirstBehind]:
        """Return what was kept of a group, and forget it."""
        flat = self._firsts.pop(group, ())
        of_key = len(TopicPartition._fields)
        size = of_key + len(FirstBehind._fields)
        rows = (flat[begin : begin + size] for begin in range(0, len(flat), size))
        return {TopicPartition(*row[:of_key]): FirstBehind(*row[of_key:]) for row in rows}
