"""A member of a group for somebody who has no client of vq: what a gateway hosts.

Loop-bound. Its messages are finished by their positions, whenever their user says so, and nothing
else commits them. It is no part of the public API: a program that has vq iterates, or gives a
listener.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from vq import limits
from vq.aio.factory import MessageFactory
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.by_position import ByPosition
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.group.share import stale
from vq.client.consumer.shared.by_request import SharedByRequest
from vq.client.consumer.shared.desk import SharedDesk, SharedSeat
from vq.client.consumer.shared.handles import (
    MessageHandle,
    PlacedHandle,
    SaidOfMessage,
    SettleKind,
)
from vq.client.consumer.shared.place import record_lows
from vq.client.consumer.shared.settler import settle_all
from vq.errors import InvalidState, VqError
from vq.log_lines import get_logger
from vq.message_filter import Wanting
from vq.model import Message, PartitionTrouble, TopicPartition

logger = get_logger(__name__)

#: Fetched at a time: a hosted member shares the memory of its process with many others.
_LENGTH: Final = 256 * limits.KIB


def cluster_of(factory: MessageFactory) -> ClusterClient:
    """Return what an open factory knows of its cluster.

    Raises:
        InvalidState: It is not open, or belongs to another loop.
    """
    return factory._here()


class Hosted:
    """A member of a group.

    Args:
        factory: An open one. Close the member before it.
        config: Of its group; ``mode`` must be ``orderly`` unless the group is shared.
    """

    def __init__(self, factory: MessageFactory, config: ConsumerConfig) -> None:
        cluster = cluster_of(factory)
        permit = Permit(cluster.clock.monotonic)
        self._core = ConsumerCore(cluster, config, permit=permit, by_request=True)
        self._given = ByPosition()

    @property
    def member(self) -> str:
        """Its name inside its group."""
        return self._core.member

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

    async def close(self) -> None:
        """Leave the group; what is not committed is delivered again. May be called again."""
        self._given.close()
        await self._core.close()


class HostedConsumer(Hosted):
    """A member that has partitions."""

    @property
    def count(self) -> int:
        """How many messages are given out and not committed."""
        return self._given.count

    @property
    def size(self) -> int:
        """Bytes of their contents."""
        return self._given.size

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


class SharedDelivery(NamedTuple):
    """A message of a shared group.

    Attributes:
        message: It.
        handle: With which anybody settles it.
        deliveries: How often it was delivered, with this time.
    """

    message: Message
    handle: PlacedHandle
    deliveries: int


class HostedShared(Hosted):
    """A member of a shared group, for any number of those who ask for its messages."""

    @property
    def _requested(self) -> SharedByRequest:
        assert self._core.shared is not None
        assert self._core.shared.requested is not None
        return self._core.shared.requested

    @property
    def size(self) -> int:
        """Bytes of the contents of messages that are being read."""
        return self._requested.reading_bytes

    async def receive(
        self,
        seat: SharedSeat,
        most: int,
        room: Callable[[], int],
        *,
        lease_s: float,
        wait_s: float,
        repeats: bool,
        over: "asyncio.Future[None]",
    ) -> list[SharedDelivery]:
        """Return messages; see ``SharedByRequest.receive``.

        Raises:
            VqError: The journal does not answer, or refuses; or the member was closed.
        """
        requested = self._requested
        found = await requested.receive(
            seat,
            most,
            room,
            lease_ms=round(lease_s * 1_000),
            wait_s=wait_s,
            repeats=repeats,
            over=over,
        )
        return [
            SharedDelivery(each.message, requested.placed(each.handle), each.deliveries)
            for each in found
        ]


async def settle_shared(
    factory: MessageFactory,
    group: str,
    seat: SharedSeat,
    handles: Sequence[PlacedHandle],
    kind: SettleKind,
    time_s: float = 0.0,
    *,
    is_member: bool,
) -> list[bool]:
    """Say what becomes of messages of a shared group, whoever has received them.

    Args:
        factory: An open one.
        group: Theirs.
        seat: Who asks; nobody else uses it meanwhile.
        handles: Up to 1,000, each message once.
        kind: What becomes of them.
        time_s: Of a release: after how long they are due. Of an extension: for how long.
        is_member: This process has a member of the group, which writes where that is. Without one
            it is written here.

    Returns:
        For each whether that is so now; if not, it was not with the holder of the handle any more.

    Raises:
        OutcomeUnknown: There is no answer.
        VqError: A broker refuses.
    """
    places = list(dict.fromkeys((each.partition, each.topic_id) for each in handles))
    at = {place: index for index, place in enumerate(places)}
    named = [
        MessageHandle(at[each.partition, each.topic_id], each.number, each.grant)
        for each in handles
    ]
    desk = SharedDesk(cluster_of(factory), group, None, seat)
    said = [SaidOfMessage(each, kind, round(time_s * 1_000)) for each in named]
    lost, lows = await settle_all(desk, said, places.__getitem__)
    if not is_member:  # of a partition without a settled message it may not be known
        settled = dict.fromkeys(each.source for each in named if each not in lost)
        found = {places[each][0]: (places[each][1], lows[each]) for each in settled}
        try:
            await record_lows(cluster_of(factory), group, "", found)
        except VqError as error:  # the messages are settled; the next member writes it
            logger.warning("place of shared group is not written", group=group, error=error)
    return [each not in lost for each in named]
