"""Where the group goes on in a partition that its member has claimed.

Loop-bound. In here: what was committed, or where a group begins without that; an offset store that
does not answer is asked again. Not in here: whether the log still has the same messages there
(``stops``), and the reading that begins (the consumer).
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.progress import Handled, Progress, go_on_at
from vq.client.consumer.group.hold_states import Event, State
from vq.client.consumer.group.holds import Hold
from vq.client.consumer.group.membership import Membership
from vq.client.consumer.group.own_offsets import OwnOffsets
from vq.client.consumer.group.subscriptions import Subscriptions
from vq.client.consumer.place import places
from vq.client.consumer.reader import Reader
from vq.client.consumer.troubles import UNKNOWN_OFFSET, Troubles
from vq.coordination.groups import claims
from vq.errors import CoordinationError, VqError
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.tasks import begin_task

logger = get_logger(__name__)
#: Pauses before an offset store that did not answer is asked again.
_LEARN_AGAIN: Final = Backoff(first_s=0.5, most_s=10.0, jitter=0.5)


class Beginnings:
    """Where one consumer begins in its partitions.

    Args:
        cluster: Where the group is.
        config: Of the consumer.
        subscriptions: What it reads.
        own_offsets: Those of a broadcasting member; None: the group has the offsets.
        reader: Reads by position.
        troubles: Where it is told that a store does not answer.
        begin: Begins to read a partition at a place.

    Attributes:
        tasks: Of the partitions whose offset is not known yet.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        subscriptions: Subscriptions,
        own_offsets: OwnOffsets | None,
        reader: Reader,
        troubles: Troubles,
        begin: Callable[[Hold, Progress], None],
    ) -> None:
        self.tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._cluster = cluster
        self._config = config
        self._subscriptions = subscriptions
        self._own_offsets = own_offsets
        self._reader = reader
        self._troubles = troubles
        self._begin = begin
        self._handled: dict[TopicPartition, Handled] = {}  # of partitions that were lost

    def lost(self, hold: Hold, progress: Progress) -> None:
        """Remember what was handled of a partition that was lost, in case it comes back."""
        self._handled[hold.partition] = Handled(hold.claim, hold.attempted, progress)

    async def claimed(self, hold: Hold, membership: Membership) -> None:
        """Begin to consume a partition that was claimed."""
        if hold.unknown is None:
            await self._begin_at(hold, membership)
        else:
            self.tasks[hold.partition] = begin_task(self._learn(hold, membership))

    async def _learn(self, hold: Hold, membership: Membership) -> None:
        """Begin to consume a partition once its offset store says where; it waits meanwhile."""
        try:
            for tries in itertools.count(1):
                if hold.state is not State.STARTING:
                    return  # it is given up, or lost
                if hold.unknown is None:
                    break
                self._troubles.failed(hold.partition, UNKNOWN_OFFSET, hold.unknown)
                await asyncio.sleep(_LEARN_AGAIN.pause_s(tries, self._cluster.rng))
                try:
                    await membership.share.learn(hold)
                except CoordinationError as error:
                    logger.debug("offset cannot be learned, trying again", error=error)
            self._troubles.over(hold.partition)
            await self._begin_at(hold, membership)
        except VqError as error:
            logger.warning(
                "partition cannot begin, trying again",
                group=self._config.group,
                partition=hold.partition,
                error=error,
            )
            if hold.may(Event.GIVE_UP):
                membership.share.give_up([hold])
            membership.wake()
        finally:
            if self.tasks.get(hold.partition) is asyncio.current_task():
                del self.tasks[hold.partition]

    async def _begin_at(self, hold: Hold, membership: Membership) -> None:
        """Begin to consume a partition where the group is in it."""
        partition, committed = hold.partition, hold.claim.committed
        by_pattern = not self._subscriptions.names(partition.topic)
        elsewhere = ""
        if committed is not None:
            elsewhere = await places.why_elsewhere(self._cluster, partition, committed)
            if not (elsewhere and (by_pattern or self._own_offsets is not None)):
                hold.stopped = committed.stopped or elsewhere
                begin = go_on_at(hold.claim, committed, self._handled.pop(partition, None))
                hold.has_sought = begin.position < committed.offset
                if hold.state is State.STARTING:  # not given up meanwhile
                    self._begin(hold, begin)
                return
            hold.has_sought = True  # the offset is one of a topic that is not there any more
            self._handled.pop(partition, None)
        hold.stopped = ""
        offsets = await self._reader.partition(partition).bounds()
        start = membership.contract.start
        if self._own_offsets is not None:
            start = self._config.start_position  # each member begins by itself
        latest = start == "latest" and not elsewhere and not await self._is_new(partition)
        begin = Progress(offsets.latest if latest else offsets.earliest)
        # Committed at once: what arrives from now on must not be skipped after a crash.
        error = (await membership.share.commit({partition: begin}))[partition]
        if error is not None:
            raise error
        if hold.state is State.STARTING:
            self._begin(hold, begin)

    async def _is_new(self, partition: TopicPartition) -> bool:
        """Whether a partition was made after the group, or this member of it, began."""
        if self._own_offsets is not None:
            return await self._own_offsets.is_new(partition)
        return await claims.is_younger(
            self._cluster.coordinator,
            self._config.group,
            partition,
            by_pattern=not self._subscriptions.names(partition.topic),
        )
