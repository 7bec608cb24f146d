"""Records that no node has so that anybody can read them: passed over, or kept as dead letters.

Loop-bound. A fetcher has read such a record from every node by then, and a node has found the
damage on its own disk: what only this reader, or its network, gets wrong is never passed over.
Not in here: how a group is stopped there, which is the consumer's business.
"""

from typing import Final

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.copies import MessageCopies
from vq.client.reading.partition_reader import PartitionReader
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.model import Message
from vq.remoting.wire_pb2 import GetRequest
from vq.reserved import DeliveryFailure

logger = get_logger(__name__)
#: Most bytes of a record that its dead letter has; damage may hide where the record ends.
RAW_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX
#: How long one try to keep a record waits for the broker.
_COPY_S: Final = 10.0


class BadRecords:
    """What becomes of the bad records of one consumer.

    Attributes:
        passed: How many were passed over.
    """

    def __init__(self, cluster: ClusterClient, group: str, copies: MessageCopies) -> None:
        self.passed = 0
        self._cluster = cluster
        self._group = group
        self._copies = copies

    async def settle(
        self, reader: PartitionReader, offset: int, damage: VqError, *, keep: bool
    ) -> int:
        """Return where to go on behind a bad record; with ``keep``, a dead letter has its bytes.

        Raises:
            VqError: A broker does not answer, or the dead letter is not stored: call it again.
        """
        following = await reader.behind(offset, damage)
        if keep:
            await self._keep(reader, offset, following, damage)
        self.passed += 1
        logger.error(
            "record cannot be read from any node, passed over",
            group=self._group,
            partition=reader.partition,
            start=offset,
            end=following,
            dead_letter=keep,
            error=damage,
        )
        return following

    async def _keep(
        self, reader: PartitionReader, offset: int, following: int, damage: VqError
    ) -> None:
        size = following - offset
        request = GetRequest(offset=offset, max_bytes=min(size, RAW_BYTES_MAX))
        _, body = await reader.get(request)
        await self._cluster.lease_slot()
        (message_id,) = self._cluster.take_ids(1)
        topic, partition = reader.partition
        raw = Message(
            topic,
            body[: min(size, RAW_BYTES_MAX)],
            partition=partition,
            offset=offset,
            next_offset=following,
            id=message_id,
        )
        failure = DeliveryFailure(0, self._cluster.clock.wall_ms(), str(damage), size)
        await self._copies.give_up(raw, failure, timeout=_COPY_S)
