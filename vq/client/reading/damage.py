"""Bytes of a partition that fail a check: what every reader does about them.

Loop-bound. A group member, a read by position and the readers of ``vq.admin`` do the same:

1. Read the bytes again: after a pause, on a connection of their own, from the master and its copies
   in turn. So damage on the way, or on one of several disks, costs a moment.
2. Report them to the node that gave them, from the second bad reading on: by then they came over
   two connections. The node checks its disk, shows operators what it found, and repairs it from
   another node. A copy is told at once, because the reader leaves it.
3. Go by the policy of the caller: a group member goes by ``on_bad_record`` once every node gave bad
   bytes and one has found them so on its disk, and reads on until then; all others raise after
   ``READS_MAX`` readings.
"""

import asyncio
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.reading.nodes import Nodes
from vq.errors import CorruptData, PartitionQuarantined, VqError
from vq.log_lines import get_logger
from vq.model import Address, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest, VerifyResponse

logger = get_logger(__name__)
#: So many bad readings of one place end a read by position.
READS_MAX: Final = 4
#: An idle copy knows only after it has asked its master that all readers may have the bytes.
AGAIN_WAIT_S: Final = 2.0
#: Pauses of a read by position.
_PAUSES: Final = Backoff(first_s=0.1, most_s=2.0)
#: The master hears of damage from this reading on.
_REPORT_FROM_READ: Final = 2
_HINT: Final = (
    "the broker was told; `vq topic describe` shows the damaged range. Read on behind it; "
    "docs/howto/repair-damage.md says how to repair it"
)


def bad_record_in(error: VqError) -> int | None:
    """Return where the record is that an error says nobody can read; None: it says no such thing.

    A broker refuses such a record where it filters, and sends its bytes otherwise.
    """
    offset = error.details.get("offset")
    is_bad = isinstance(error, CorruptData | PartitionQuarantined) and isinstance(offset, int)
    return offset if is_bad and isinstance(offset, int) else None


class Damaged:
    """The place of one partition whose bytes fail a check.

    Attributes:
        reads: How many readings of it in a row were bad; 0: there is no such place now.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        partition: TopicPartition,
        nodes: Nodes,
        *,
        pauses: Backoff = _PAUSES,
    ) -> None:
        self.reads = 0
        self._cluster = cluster
        self._partition = partition
        self._nodes = nodes
        self._pauses = pauses
        self._at = -1
        self._given_by: Address | None = None  # the bytes that were read last; None: the master
        self._bad_at: set[Address] = set()  # nodes that gave bad bytes

    def note(self, at: int) -> None:
        """Note a bad reading from an offset on, behind which nothing was good."""
        self.reads = self.reads + 1 if at == self._at else 1
        self._at = at
        if self.reads == 1:
            self._given_by = self._nodes.damaged(self._partition, at)
            self._bad_at.clear()
        if self._given_by is not None:
            self._bad_at.add(self._given_by)

    def refused(self, error: VqError) -> None:
        """Note that the node asked last gave an error instead of bytes."""
        if bad_record_in(error) is not None and self._given_by is not None:
            self._bad_at.add(self._given_by)

    def over(self) -> None:
        """Note that the bytes are good."""
        self.reads = 0
        self._at = -1

    @property
    def is_everywhere(self) -> bool:
        """Whether it was read often, and each node that has it gave bytes that fail a check.

        Raises:
            VqError: The nodes are not known now.
        """
        holders = self._nodes.holders(self._partition, self._at)
        return self.reads >= READS_MAX and self._bad_at.issuperset(holders)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next reading."""
        return self._pauses.pause_s(self.reads, self._cluster.rng)

    def node(self, offset: int, tries: int = 1) -> tuple[Address, int]:
        """Return the node to read from, and the epoch to ask with.

        ``tries``: of this reading; a node that does not answer is no reason to wait for it.

        Raises:
            VqError: See ``Nodes.another``.
        """
        address, epoch = self._nodes.another(self._partition, offset, self.reads + tries - 1)
        self._given_by = address
        return address, epoch

    async def report(self, offset: int) -> bool:
        """Report the bytes to the node that gave them, if it is time; no error if that fails.

        Returns whether the node has the damage on its disk, as far as is known.
        """
        if self.reads < _REPORT_FROM_READ and self._given_by is None:
            return False
        try:
            address = self._given_by or self._cluster.master_at(self._partition, offset)[0]
            end = await report_damage(self._cluster, address, self._partition, offset)
        except VqError as error:
            logger.info("damage cannot be reported", partition=self._partition, error=error)
            return False
        logger.debug(
            "damage was reported",
            partition=self._partition,
            offset=offset,
            on_disk=end is not None,
        )
        return end is not None

    async def again(self, at: int, error: VqError) -> None:
        """Note a bad reading from ``at`` on, report it, and wait until it is time to read again.

        Raises:
            CorruptData: There were ``READS_MAX`` of them.
        """
        self.note(at)
        offset = int(error.details.get("offset", at))
        await self.report(offset)
        if self.reads >= READS_MAX:
            text, name = str(error), f"{self._partition}: "
            raise CorruptData(
                text if text.startswith(name) else name + text,
                details={**error.details, "offset": offset},
                hint=_HINT,
            ) from error
        await asyncio.sleep(self.pause_s)


async def report_damage(
    cluster: ClusterClient, address: Address, partition: TopicPartition, offset: int
) -> int | None:
    """Report to a broker that the bytes it sent for ``offset`` fail a check.

    The broker checks them on its disk, and shows the result to operators.

    Returns:
        Where the damage ends that the broker has at that offset; None: it has none, so the bytes
        changed on their way.

    Raises:
        Busy: It had many reports lately; try again later.
        Unreachable, TimedOut: It does not answer.
        VqError: It refuses, for example since the offset is gone.
    """
    request = VerifyRequest(topic=partition.topic, partition=partition.partition, offset=offset)
    response, _ = await cluster.request(address, Command.VERIFY, request)
    assert isinstance(response, VerifyResponse)
    return next((each.end for each in response.damage if each.start <= offset < each.end), None)
