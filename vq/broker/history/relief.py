"""Which disks need space: those of this node, and of the nodes that copy from it.

The master decides what is deleted, and the copies follow (decision 0056). So the master asks for
the pressure on their disks, too: each node publishes it with its load. Also that of a node that is
not in sync: a full disk may be why, and it hears of deletions all the same. What a copy has
published may be older than what was deleted since, so nothing more goes for it until it had time to
follow.

Not in here: what goes (``store.log.retention.relieve``), and when (``retaining``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from vq.broker.disks.data_disk import DataDisk
from vq.broker.partition.channel import Channel
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator, NoNode, Unreadable
from vq.coordination.tree.reading import children_or_none
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.store.log.retention import Kept

#: A copy deletes what its master has deleted, and publishes its load again, within this time.
FOLLOW_S: Final = 15.0


class Pressed(NamedTuple):
    """A disk that needs space.

    Attributes:
        name: Of the data directory, or of the node that copies.
        excess_bytes: How much must go.
        has: Returns whether a partition has bytes there.
        is_copy: It is that of a node that copies, whose blocks may be archives or not.
    """

    name: str
    excess_bytes: int
    has: Callable[[Channel], bool]
    is_copy: bool = False

    def seen(self, blocks: Sequence[Kept]) -> Sequence[Kept]:
        """Return blocks of this node as they are on that disk, as far as that is known.

        A block of a copy may be larger than the archive here. It counts as that: if it is not, the
        copy says so once it has followed.
        """
        if not self.is_copy:
            return blocks
        return [each._replace(archive_bytes=None) if each.frees else each for each in blocks]


class Relief:
    """Knows which disks need space. Loop-bound.

    Args:
        disks: Of this node.
        group, node: This node.
        coordinator: Has what the others have published.
        clock: For durations.

    Attributes:
        copies_wait_until: Nothing more goes for the copies until then, by the monotonic clock.
    """

    def __init__(
        self,
        disks: Sequence[DataDisk],
        coordinator: Coordinator,
        clock: Clock,
        *,
        group: str,
        node: str,
    ) -> None:
        self._disks = disks
        self._group = group
        self._node = node
        self._coordinator = coordinator
        self._clock = clock
        self.copies_wait_until = 0.0

    async def pressed(self) -> list[Pressed]:
        """Return the disks that need space now.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        for disk in self._disks:
            await disk.look()
        found = [
            Pressed(str(disk.path), disk.pressure_bytes, partial(_lies_on, disk))
            for disk in self._disks
            if disk.pressure_bytes
        ]
        if self._clock.monotonic() < self.copies_wait_until:
            return found
        for node in await children_or_none(self._coordinator, BrokerLoad.parent(self._group)):
            excess = 0 if node == self._node else await self._published(node)
            if excess > 0:
                found.append(Pressed(f"{self._group}/{node}", excess, _everything, is_copy=True))
        return found

    async def _published(self, node: str) -> int:
        path = BrokerLoad.path(self._group, node)
        try:
            found = await self._coordinator.get(path)
            return BrokerLoad.decode(path, found.data).disk_excess_bytes
        except (NoNode, Unreadable):
            return 0

    def note_deleted(self) -> None:
        """Have nothing more go for the copies until they have followed."""
        self.copies_wait_until = self._clock.monotonic() + FOLLOW_S


def _lies_on(disk: DataDisk, channel: Channel) -> bool:
    return channel.place is disk.place


def _everything(_: Channel) -> bool:
    """Every node of a group has all its partitions."""
    return True
