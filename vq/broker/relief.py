"""Which disks need space: those of this node, and of the nodes that copy from it.

The master decides what is deleted, and the copies follow (decision 0056). So the master asks for
the pressure on their disks, too: each node publishes it with its load. What a copy has published
may be older than what was deleted since, so nothing more goes for it until it had time to follow.

Not in here: what goes (``store.retention.relieve``), and when (``retaining``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from vq.broker.channel import Channel
from vq.broker.context import Role
from vq.broker.data_disk import DataDisk
from vq.clock import Clock
from vq.coordination.coordinator import Coordinator, NoNode
from vq.coordination.paths import BrokerLoad, Unreadable

__all__ = ["Pressed", "Relief"]

#: A copy deletes what its master has deleted, and publishes its load again, within this time.
FOLLOW_S: Final = 15.0


class Pressed(NamedTuple):
    """A disk that needs space.

    Attributes:
        name: Of the data directory, or of the node that copies.
        excess_bytes: How much must go.
        has: Returns whether a partition has bytes there.
    """

    name: str
    excess_bytes: int
    has: Callable[[Channel], bool]


class Relief:
    """Knows which disks need space. Loop-bound.

    Args:
        disks: Of this node.
        role: Of this node: who copies from it.
        coordinator: Has what the others have published.
        clock: For durations.
    """

    def __init__(
        self, disks: Sequence[DataDisk], role: Role, coordinator: Coordinator, clock: Clock
    ) -> None:
        self._disks = disks
        self._role = role
        self._coordinator = coordinator
        self._clock = clock
        self._waits: dict[str, float] = {}  # until when, by node

    async def pressed(self) -> list[Pressed]:
        """Return the disks that need space now.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        for disk in self._disks:
            disk.look()
        found = [
            Pressed(str(disk.path), disk.pressure_bytes, partial(_lies_on, disk))
            for disk in self._disks
            if disk.pressure_bytes
        ]
        now = self._clock.monotonic()
        self._waits = {node: until for node, until in self._waits.items() if until > now}
        for node in sorted(self._role.insync - self._waits.keys()):
            excess = await self._published(node)
            if excess:
                found.append(Pressed(f"{self._role.group}/{node}", excess, _everything))
        return found

    async def _published(self, node: str) -> int:
        path = BrokerLoad.path(self._role.group, node)
        try:
            found = await self._coordinator.get(path)
            return BrokerLoad.decode(path, found.data).disk_excess_bytes
        except (NoNode, Unreadable):
            return 0

    def note_deleted(self) -> None:
        """Have nothing more go for the copies until they have followed."""
        until = self._clock.monotonic() + FOLLOW_S
        self._waits = dict.fromkeys(self._role.insync, until)


def _lies_on(disk: DataDisk, channel: Channel) -> bool:
    return channel.place is disk.place


def _everything(_: Channel) -> bool:
    """Every node of a group has all its partitions."""
    return True
