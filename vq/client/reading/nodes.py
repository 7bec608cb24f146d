"""Which node of a broker group a consumer reads a partition from.

Loop-bound. ``candidates`` decides by what ZooKeeper says, ``Nodes`` leaves out for a while what did
not answer. The master is always the last choice, so a copy can delay a consumer, and not stop it.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from vq.client.cluster import ClusterClient
from vq.client.config import ReadFrom
from vq.coordination.topics.routes import Master
from vq.errors import InternalError, NotMaster, OutcomeUnknown, VqError
from vq.model import Address, TopicPartition

#: A copy that refused, or could not be reached, is asked again after this time.
AVOID_S: Final = 10.0


def passes(error: VqError) -> bool:
    """Whether asking again, perhaps another broker, can succeed."""
    cut = isinstance(error, OutcomeUnknown) and not isinstance(error, InternalError)
    return error.retriable or error.refresh_routes or cut


def candidates(master: Master, read_from: ReadFrom, rack: str) -> list[Address]:
    """Return the nodes that may be read from, in the order of their names; at least one.

    Args:
        master: Of the broker group, with its copies that are in sync.
        read_from: What the consumer wants.
        rack: Of the consumer; for ``nearest``. Without a node in it, the master is read from.
    """
    if read_from is ReadFrom.MASTER:
        return [master.address]
    nodes = sorted(
        [(master.node, master.rack, master.address)]
        + [(copy.node, copy.rack, copy.address) for copy in master.copies]
    )
    if read_from is ReadFrom.NEAREST:
        nodes = [node for node in nodes if node[1] == rack]
    return [address for _, _, address in nodes] or [master.address]


class Nodes:
    """The choice of one consumer.

    Its partitions are spread over the nodes of a group, and those of several consumers differently.

    Attributes:
        at: Returns the address of the node to ask for an offset of a partition, and the epoch to
            ask with; raises what ``ClusterClient.master_at`` raises.
        from_copy: Whether the answer of a copy may be taken.
    """

    def __init__(
        self, cluster: ClusterClient, read_from: ReadFrom = ReadFrom.MASTER, rack: str = ""
    ) -> None:
        self.from_copy = read_from is not ReadFrom.MASTER
        self.at: Callable[[TopicPartition, int], tuple[Address, int]] = cluster.master_at
        self._cluster = cluster
        self._read_from = read_from
        self._rack = rack
        self._avoided: dict[tuple[Address, TopicPartition | None], float] = {}  # until when
        if self.from_copy:
            self.at = self._choose
            self._salt = cluster.rng.randrange(1 << 16)
            cluster.read_copies()

    def another(self, partition: TopicPartition, offset: int, reading: int) -> tuple[Address, int]:
        """Return the node for the n-th reading, from 1 on, of bytes that failed a check.

        The master, then its copies, and so on. The copies are read from ZooKeeper after the first
        call, whatever the consumer reads from usually.

        Raises:
            VqError: As ``at``.
        """
        self._cluster.read_copies()
        _, epoch = self._cluster.master_at(partition, offset)
        found = self.holders(partition, offset)
        return found[(reading - 1) % len(found)], epoch

    def holders(self, partition: TopicPartition, offset: int) -> list[Address]:
        """Return the master, and then the copies in sync, as far as they are known.

        Raises:
            VqError: As ``at``.
        """
        address, _ = self._cluster.master_at(partition, offset)
        master = self._master(partition, offset)
        copies = [] if master is None else candidates(master, ReadFrom.ANY, "")
        return [address, *(each for each in copies if each != address)]

    def damaged(self, partition: TopicPartition, offset: int) -> Address | None:
        """Return the copy whose bytes of a partition failed a check; None: they are the master's.

        The copy is left out for a while.
        """
        with contextlib.suppress(VqError):
            address, _ = self.at(partition, offset)
            master, _ = self._cluster.master_at(partition, offset)
            if address != master:
                self.avoid(address, partition)
                return address
        return None

    def _master(self, partition: TopicPartition, offset: int) -> Master | None:
        routes = self._cluster.routes
        span = routes.placement(partition).span_at(offset)
        return None if span is None else routes.masters.get(span.group)

    def _choose(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        address, epoch = self._cluster.master_at(partition, offset)
        master = self._master(partition, offset)
        if master is None:
            return address, epoch
        found = candidates(master, self._read_from, self._rack)
        first = (self._salt + partition.partition) % len(found)
        for candidate in found[first:] + found[:first]:
            if self._is_avoided(candidate, partition):
                continue
            if candidate == address or candidate not in self._cluster.unreachable:
                return candidate, epoch
            self.avoid(candidate)
            self._cluster.live_connection(candidate)  # tries again, for the next time
        return address, epoch

    def _is_avoided(self, address: Address, partition: TopicPartition) -> bool:
        now = self._cluster.clock.monotonic()
        for key in ((address, None), (address, partition)):
            until = self._avoided.get(key)
            if until is None:
                continue
            if now < until:
                return True
            del self._avoided[key]
        return False

    def is_copy(self, partition: TopicPartition, offset: int, address: Address) -> bool:
        """Return whether an answer came from a copy that was chosen, and not from the master."""
        if not self.from_copy:
            return False
        with contextlib.suppress(VqError):
            return self._cluster.master_at(partition, offset)[0] != address
        return False

    def avoid(self, address: Address, partition: TopicPartition | None = None) -> None:
        """Read from other nodes for a while, if there are any; None: all partitions."""
        if self.from_copy:
            until = self._cluster.clock.monotonic() + AVOID_S
            self._avoided[address, partition] = until

    def refused(
        self, partition: TopicPartition, offset: int, address: Address, error: VqError
    ) -> VqError:
        """Return what an error of a node means for the partition.

        What a copy says is not final: it may be behind. The master is asked next.
        """
        try:
            master, _ = self._cluster.master_at(partition, offset)
        except VqError:
            return error
        if address == master:
            return error
        self.avoid(address, partition)
        return NotMaster(f"{address} does not lead {partition}, and gives nothing of it: {error}")
