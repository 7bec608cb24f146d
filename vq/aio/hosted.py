"""A member of a group for somebody who has no client of vq: what a gateway hosts.

Loop-bound. Its messages are finished by their positions, whenever their user says so, and nothing
else commits them. It is no part of the public API: a program that has vq iterates, or gives a
listener.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from vq import limits
from vq.aio.factory import MessageFactory
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.by_position import ByPosition
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.group.share import stale
from vq.errors import InvalidState, VqError
from vq.message_filter import Wanting
from vq.model import Message, PartitionTrouble, TopicPartition

#: Fetched at a time: a hosted member shares the memory of its process with many others.
_LENGTH: Final = 256 * limits.KIB


def cluster_of(factory: MessageFactory) -> ClusterClient:
    """Return what an open factory knows of its cluster.

    Raises:
        InvalidState: It is not open, or belongs to another loop.
    """
    return factory._here()


class HostedConsumer:
    """One member.

    Args:
        factory: An open one. Close the member before it.
        config: Of its group; ``mode`` must be ``orderly``.
    """

    def __init__(self, factory: MessageFactory, config: ConsumerConfig) -> None:
        cluster = cluster_of(factory)
        self._core = ConsumerCore(cluster, config, permit=Permit(cluster.clock.monotonic))
        self._given = ByPosition()

    @property
    def member(self) -> str:
        """Its name inside its group."""
        return self._core.member

    @property
    def count(self) -> int:
        """How many messages are given out and not committed."""
        return self._given.count

    @property
    def size(self) -> int:
        """Bytes of their contents."""
        return self._given.size

    @property
    def error(self) -> VqError | None:
        """Why no message follows ever again; None: some may."""
        return self._given.error

    def troubles(self) -> dict[TopicPartition, PartitionTrouble]:
        """Return the partitions that do not go on now; see ``MessageConsumer.troubles``."""
        return self._core.troubles()

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that it holds now."""
        return self._core.held()

    def subscribe(self, topic_or_pattern: str, message_filter: Wanting = None) -> None:
        """Add a topic, or those of a pattern, before ``start``; see ``MessageConsumer``.

        Raises:
            InvalidArgument: An argument is wrong.
        """
        self._core.subscribe(topic_or_pattern, _LENGTH, message_filter, self._given)

    async def start(self) -> None:
        """Join the group.

        Raises:
            VqError: See ``MessageConsumer.start``.
        """
        await self._core.start()

    def take_now(self, most: int, most_bytes: int) -> list[Message]:
        """Return messages that were not given out before, without a wait; see ``take``."""
        return self._given.take_now(most, most_bytes)

    async def take(self, most: int, most_bytes: int, wait_s: float) -> list[Message]:
        """Return messages that were not given out before; none if none came within ``wait_s``.

        A call that is cancelled has taken none.

        Raises:
            InvalidState: It was closed.
            VqError: No message follows.
        """
        try:
            async with asyncio.timeout(wait_s):
                return await self._given.take(most, most_bytes)
        except TimeoutError:
            return []

    def again(self) -> list[Message]:
        """Return the messages that are given out and not committed, in the same order."""
        return self._given.again()

    async def commit(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, VqError | None]:
        """Finish what was given out before these positions, and store that.

        Returns:
            For each partition None, if its position or a later one is stored; otherwise why not:
            ``GenerationStale`` if another member has the partition, ``InvalidState`` if that was
            not given out, or was given back.

        Raises:
            CoordinationError: It is not known whether it is stored. The messages count as finished;
                another call tells.
        """
        outcomes: dict[TopicPartition, VqError | None] = {}
        expected: dict[TopicPartition, int] = {}  # what is to be stored then
        for partition, position in positions.items():
            try:
                finished = self._given.finish(partition, position)
                expected[partition] = position if finished is None else finished
            except VqError as error:
                outcomes[partition] = error
        await self._core.commit()
        doubtful = [each for each in expected if not self._is_stored(each, expected[each])]
        stored: dict[TopicPartition, int] = {}
        for topic in {each.topic for each in doubtful}:  # as when it was given up meanwhile
            stored |= await self._core.committed(topic)
        for partition, position in expected.items():
            is_stored = partition not in doubtful or stored.get(partition, -1) >= position
            outcomes[partition] = None if is_stored else self._why_not(partition, positions)
        return outcomes

    def _why_not(
        self, partition: TopicPartition, positions: Mapping[TopicPartition, int]
    ) -> VqError:
        if partition not in self._core.held():
            return stale(partition)
        return InvalidState(
            f"{partition}: of what is before {positions[partition]} nothing is given out; it was "
            "given back, or never given"
        )

    def _is_stored(self, partition: TopicPartition, position: int) -> bool:
        hold = self._core.holds.get(partition)
        committed = None if hold is None else hold.claim.committed
        return committed is not None and committed.offset >= position

    async def close(self) -> None:
        """Leave the group; what is not committed is delivered again. May be called again."""
        self._given.close()
        await self._core.close()
