"""Moving a partition to another group: SEAL at its old place, ADOPT at its new one.

    mover              old group                  ZooKeeper        new group
      │── SEAL(v) ───▶ no appends, flush;
      │◀─ E, table ─── its end E is durable
      │── ADOPT(E, table) ───────────────────────────────────────▶ an empty log from E on
      │── old span ends at E, new one begins ──▶ compare-and-set on v
                       reads only                                  takes appends

A mover that dies after SEAL must not stop the partition for ever, and one that merely sleeps must
not wake up and end the span below messages acknowledged meanwhile. So before a sealed log takes
appends again the version of the partition's node is raised: from then on the mover's
compare-and-set fails. The seal itself is on disk, hence that holds across a restart too.
"""

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from vq.broker.channel import Channel
from vq.broker.context import Context
from vq.broker.partitions import Partitions
from vq.broker.session import Session
from vq.broker.tasks import Tasks
from vq.coordination.coordinator import BadVersion, Coordinator, NoNode, Set
from vq.coordination.paths import Partition, Topic
from vq.errors import (
    CoordinationError,
    InvalidRequest,
    PartitionReadOnly,
    StorageFailed,
    UnknownTopic,
    VqError,
)
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import Ticket
from vq.remoting.messages import Header

logger = logging.getLogger(__name__)

#: Pause before an attempt to take appends again that failed for want of ZooKeeper is repeated.
RETRY_S = 1.0


class Mover:
    """Carries out SEAL and ADOPT, and ends seals that came to nothing."""

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
        self._unsealing: set[Channel] = set()
        partitions.on_sealed = self.unseal

    # SEAL ---------------------------------------------------------------------------------------
    def seal(self, session: Session, ticket: Ticket, channel: Channel, version: int) -> None:
        """Carry out a SEAL; asked again, it answers the same."""
        self._tasks.start(self._answer(session, ticket, self._seal(channel, version)))

    async def _seal(self, channel: Channel, version: int) -> wire.SealResponse:
        if version != channel.placement_version:
            await self._refresh(channel.partition.topic)
        if version != channel.placement_version:
            raise PartitionReadOnly(
                f"partition {channel} has placement version {channel.placement_version}, "
                f"not {version}; read it again and repeat the move"
            )
        if channel.placement.writer_group != self._context.group:
            raise PartitionReadOnly(f"partition {channel} takes appends elsewhere, not here")
        if not channel.sealed:
            channel.sealed = True
            channel.update_refusal()
            self._context.call_later(self._seal_timeout_s, partial(self._expire, channel, version))
        log = await self._partitions.seal_log(channel)
        end_offset = log.end_offset
        logger.info("partition %s is sealed at %d", channel, end_offset)
        return wire.SealResponse(end_offset=end_offset, producers=log.producers.to_bytes())

    def _expire(self, channel: Channel, version: int) -> None:
        """The time of a seal is up: if nobody changed the placement, take appends again."""
        if channel.sealed and channel.placement_version == version:
            channel.sealed = False
            channel.update_refusal()
            if channel.needs_unseal:
                self.unseal(channel)

    def unseal(self, channel: Channel) -> None:
        """Have a sealed log take appends again, as soon as no mover can count on its end."""
        if channel not in self._unsealing:
            self._unsealing.add(channel)
            self._tasks.start(self._unseal(channel))

    async def _unseal(self, channel: Channel) -> None:
        try:
            await self._raise_version(channel)
        except (BadVersion, NoNode):
            pass  # changed meanwhile: what the refresh finds decides
        except CoordinationError as error:
            logger.warning("partition %s stays sealed for now: %s", channel, error)
            self._context.call_later(RETRY_S, partial(self._partitions.view.hint, None))
        else:
            if channel.needs_unseal and channel.log is not None:
                channel.log.unseal()
                channel.update_refusal()
                logger.info("partition %s takes appends again", channel)
        finally:
            self._unsealing.discard(channel)
            self._partitions.view.hint(channel.partition.topic)

    async def _raise_version(self, channel: Channel) -> None:
        """Write the partition's node, and its topic's, with the values they have."""
        topic, number = channel.partition
        path, topic_path = Partition.path(topic, number), Topic.path(topic)
        topic_node = await self._coordinator.get(topic_path)
        node = await self._coordinator.get(path)
        if node.stat.version != channel.placement_version:
            raise BadVersion(path)
        await self._coordinator.multi(
            [
                Set(path, node.data, node.stat.version),
                Set(topic_path, topic_node.data, topic_node.stat.version),
            ]
        )

    # ADOPT --------------------------------------------------------------------------------------
    def adopt(self, session: Session, ticket: Ticket, header: wire.AdoptRequest) -> None:
        """Carry out an ADOPT; asked again, it answers the same."""
        self._tasks.start(self._answer(session, ticket, self._adopt(header)))

    async def _adopt(self, header: wire.AdoptRequest) -> wire.AdoptResponse:
        partition = TopicPartition(header.topic, header.partition)
        await self._refresh(partition.topic)
        topic = self._partitions.view.topics.get(partition.topic)
        if topic is None or topic.id != header.topic_id:
            raise UnknownTopic(f"there is no topic {partition.topic!r} with id {header.topic_id!r}")
        if partition.partition >= len(topic.partitions):
            raise InvalidRequest(
                f"topic {partition.topic!r} has no partition {partition.partition}"
            )
        placement = topic.partitions[partition.partition]
        if placement.writer_group == self._context.group:
            raise InvalidRequest(
                f"group {self._context.group} takes appends of {partition} already"
            )
        channel = self._partitions.channels.get(partition)
        if channel is None:
            version = topic.partition_versions[partition.partition]
            channel = await self._partitions.add(topic, placement, version)
        channel.adopted = True
        await self._partitions.adopt_log(channel, header.start_offset, header.producers)
        if channel.failure is not None:
            raise StorageFailed(f"partition {partition} cannot be prepared: {channel.failure}")
        logger.info("partition %s is prepared from offset %d on", partition, header.start_offset)
        return wire.AdoptResponse()

    # Shared -------------------------------------------------------------------------------------
    async def _refresh(self, topic: str) -> None:
        self._partitions.view.hint(topic)
        await self._partitions.view.refresh()

    async def _answer(
        self, session: Session, ticket: Ticket, work: Coroutine[Any, Any, Header]
    ) -> None:
        try:
            session.reply(ticket, await work)
        except VqError as error:
            session.refuse(ticket, error)
        except OSError as error:
            session.refuse(ticket, StorageFailed(str(error)))
