"""What this node says of itself to its group, put together from the parts that know it."""

from vq.broker.logs.partitions import Partitions
from vq.broker.replication.doubt import Doubt
from vq.broker.replication.soundness import Soundness
from vq.coordination.brokers.fitness import Fitness


class NodeFitness(Fitness):
    """See ``Fitness``. Loop-bound.

    Args:
        soundness: Whether it has damage, or a full disk.
        doubt: What a loss of power may have taken.
        partitions: Know where its logs end.
    """

    def __init__(self, soundness: Soundness, doubt: Doubt, partitions: Partitions) -> None:
        self._soundness = soundness
        self._doubt = doubt
        self._partitions = partitions

    @property
    def lost_power(self) -> bool:
        return self._doubt.lost

    @property
    def damaged(self) -> bool:
        return self._soundness.damaged

    @property
    def has_damage(self) -> bool:
        return self._soundness.has_damage()

    @property
    def full(self) -> bool:
        return self._soundness.disk_full

    def is_in_sync(self) -> None:
        """Not while it has damage: its next start may not find that again, as it reads no more than
        what follows a checkpoint.
        """
        if not self._soundness.damaged:
            self._doubt.end()

    def log_end_bytes(self) -> int:
        return self._partitions.log_end_bytes()
