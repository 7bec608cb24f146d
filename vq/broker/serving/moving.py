"""Moving a partition to another group: SEAL at its old place, ADOPT at its new one.

    mover              old group                  ZooKeeper        new group
      │── SEAL(v) ───▶ no appends, flush;
      │◀─ E, table ─── its end E is durable
      │── ADOPT(v, E, table) ────────────────────────────────────▶ an empty log from E on
      │── old span ends at E, new one begins ──▶ compare-and-set on v
                       reads only                                  takes appends

A mover that dies after SEAL must not stop the partition for ever, and one that merely sleeps must
not wake up and end the span below messages acknowledged meanwhile. So before a sealed log takes
appends again the version of the partition's node is raised: from then on the mover's ADOPT and its
compare-and-set fail. The seal itself is on disk, hence that holds across a restart too.

ADOPT puts a log aside that does not end where the span begins. So it is refused unless the
placement has the version of the SEAL, as of now and not as last heard. That is checked once more
when its turn at the files has come: this group may take appends by then.
"""

import asyncio
from functools import partial

from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.partition_state import ChannelState, check_placement_version
from vq.coordination.topics.topics import touch_partition
from vq.coordination.tree.coordinator import BadVersion, Coordinator, NoNode
from vq.coordination.tree.values.topics import READY
from vq.errors import (
    CoordinationError,
    InvalidRequest,
    PartitionReadOnly,
    StorageFailed,
    UnknownTopic,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.store.log.log_config import LogBegin

logger = get_logger(__name__)

#: Pause before an attempt to take appends again that failed for want of ZooKeeper is repeated.
RETRY_S = 1.0


class Mover:
    """Carries out SEAL and ADOPT, and ends seals of abandoned moves.

    Attributes:
        being_unsealed: The channels whose logs are to take appends again.
    """

    def __init__(
        self,
        context: Context,
        coordinator: Coordinator,
        partitions: Partitions,
        *,
        tasks: Tasks,
        seal_timeout_s: float,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._partitions = partitions
        self._tasks = tasks
        self._seal_timeout_s = seal_timeout_s
        self.being_unsealed: set[Channel] = set()
        # One at a time: all of a topic's partitions write its list of changes.
        self._raising = asyncio.Lock()
        partitions.unsealing.listen(self.unseal)

    # SEAL ---------------------------------------------------------------------------------------
    async def seal(
        self,
        channel: Channel,
        _session: Session,
        _request_id: RequestId,
        header: wire.SealRequest,
    ) -> wire.SealResponse:
        """Carry out a SEAL; asked again, it answers the same."""
        version = header.placement_version
        if version != channel.placement_version:
            await self._refresh(channel.partition.topic)
        check_placement_version(channel.partition, channel.placement_version, version)
        if channel.placement.writer_group != self._context.group:
            raise PartitionReadOnly(f"partition {channel} takes appends elsewhere, not here")
        if not channel.rules.seal:
            raise channel.why_refused()
        if channel.state is not ChannelState.SEALED:
            channel.begin_move()
            self._context.call_later(self._seal_timeout_s, partial(self.expire, channel, version))
        epoch = channel.role.epoch
        try:
            begin = await self._partitions.logs.seal_log(channel, version)
        finally:
            self._unseal_if_over(channel)
        if channel.role.epoch != epoch or not channel.role.acts:  # perhaps not all is committed
            raise channel.acks.mastership_lost()
        logger.info("partition is sealed", partition=channel, end_offset=begin.offset)
        return wire.SealResponse(
            end_offset=begin.offset,
            producers=begin.producers,
            next_number=begin.number or 0,
            number_known=begin.number is not None,
        )

    def expire(self, channel: Channel, version: int) -> None:
        """The time of a seal is up: if nobody changed the placement, take appends again."""
        if channel.state is ChannelState.SEALED and channel.placement_version == version:
            channel.end_move()
            self._unseal_if_over(channel)

    def _unseal_if_over(self, channel: Channel) -> None:
        if channel.state is ChannelState.UNSEALING:
            self.unseal(channel)

    def unseal(self, channel: Channel) -> None:
        """Have a sealed log take appends again, as soon as no mover can count on its end."""
        if channel not in self.being_unsealed:
            self.being_unsealed.add(channel)
            self._tasks.start(self._unseal(channel))

    async def _unseal(self, channel: Channel) -> None:
        topic, number = channel.partition
        try:
            async with self._raising:
                version = channel.placement_version
                await touch_partition(self._coordinator, topic, number, version)
            if await self._partitions.logs.unseal_log(channel):
                logger.info("partition takes appends again", partition=channel)
        except (BadVersion, NoNode, UnknownTopic):
            pass  # changed meanwhile: the refresh applies what it finds
        except Exception as error:  # it would stay sealed for ever
            if not isinstance(error, CoordinationError):
                logger.exception("unsealing failed", partition=channel)
            logger.warning(
                "partition stays sealed, trying again",
                partition=channel,
                retry_s=RETRY_S,
                error=error,
            )
            self._context.call_later(RETRY_S, partial(self._unseal_if_over, channel))
        finally:
            self.being_unsealed.discard(channel)
            self._partitions.view.hint(topic)

    # ADOPT --------------------------------------------------------------------------------------
    async def adopt(
        self, _session: Session, _request_id: RequestId, header: wire.AdoptRequest
    ) -> wire.AdoptResponse:
        """Carry out an ADOPT; asked again, it answers the same."""
        partition = TopicPartition(header.topic, header.partition)
        # A server that lags behind must not confirm a placement that is over.
        await self._coordinator.sync()
        await self._refresh(partition.topic)
        topic = self._partitions.view.topics.get(partition.topic)
        if topic is None or topic.id != header.topic_id or topic.phase != READY:
            raise UnknownTopic(f"there is no topic {partition.topic!r} with id {header.topic_id!r}")
        if partition.partition >= len(topic.partitions):
            raise InvalidRequest(
                f"topic {partition.topic!r} has no partition {partition.partition}"
            )
        if topic.partitions[partition.partition].writer_group == self._context.group:
            raise InvalidRequest(
                f"group {self._context.group} takes appends of {partition} already"
            )
        version = header.placement_version
        check_placement_version(partition, topic.partition_versions[partition.partition], version)
        channel = await self._partitions.add_for_move(partition, topic.id, version)
        number = header.number if header.number_known else None
        begin = LogBegin(header.start_offset, header.producers, number)
        await self._partitions.logs.adopt_log(channel, begin, version=version)
        if channel.state in {ChannelState.FAILED, ChannelState.UNREADABLE}:
            raise StorageFailed(f"partition {partition} cannot be prepared: {channel.cause}")
        logger.info("partition is prepared", partition=partition, start_offset=header.start_offset)
        return wire.AdoptResponse()

    # Shared -------------------------------------------------------------------------------------
    async def _refresh(self, topic: str) -> None:
        self._partitions.view.hint(topic)
        await self._partitions.view.refresh()
        problem = self._partitions.view.why_not_followed(topic)
        if problem is not None:
            raise problem
