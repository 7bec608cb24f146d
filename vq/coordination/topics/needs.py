"""Which messages of a topic its consumer groups still need.

In here: what the groups have committed, read once. Not in here: what is deleted because nobody
needs it (the broker's ``retaining``).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from vq.coordination.groups.groups import list_groups, read_group
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.group_terms import GroupModel

#: Who needs the messages of a topic that no group reads: somebody who is to come.
NO_GROUP: Final = "no consumer group"


class Needs(NamedTuple):
    """What consumer groups need of one topic.

    Attributes:
        groups: For each group, what it has committed in which partition.
    """

    groups: Mapping[str, Mapping[int, int]]

    def of(self, partition: int) -> dict[str, int]:
        """Return from which offset on somebody needs a partition, by name.

        A group that has committed nothing there needs all of it.
        """
        if not self.groups:
            return {NO_GROUP: 0}
        return {f"group {name}": offsets.get(partition, 0) for name, offsets in self.groups.items()}


async def read_needs(coordinator: Coordinator, topic: str, topic_id: str) -> Needs:
    """Return what the groups that read a topic have committed.

    Raises:
        VqError: That cannot be read, so nobody knows what is needed.
    """
    names = await list_groups(coordinator)
    found = await gather_all(_read_group(coordinator, name, topic, topic_id) for name in names)
    pairs = zip(names, found, strict=True)
    return Needs({name: offsets for name, offsets in pairs if offsets is not None})


async def _read_group(
    coordinator: Coordinator, name: str, topic: str, topic_id: str
) -> dict[int, int] | None:
    """Return what a group has committed in each partition; None: nothing is kept for it."""
    contract = await read_group(coordinator, name)
    if contract is None or contract.model == GroupModel.BROADCASTING:
        return None  # each member has its own progress, and that is not in the tree
    if contract.filter_of(topic) is None:
        return None
    offsets = await ZooKeeperOffsets(coordinator).read(name, [topic])
    return {
        partition.partition: committed.offset
        for partition, committed in offsets.items()
        if committed.topic_id in {"", topic_id}  # not of a namesake that was deleted
    }
