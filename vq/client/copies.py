"""Copies of messages that failed, into a consumer group's retry topic or that of dead letters.

Loop-bound. Before the first copy nothing is made, asked or kept. A copy has the id, key, tag,
headers and content of its message, and tells where that was and why it failed: see ``reserved``.

    caller ─▶ topic (made if there is none) ─▶ partition ─▶ put, until it is answered
                                                  └ of a retry topic: as a delayed message
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from vq.client.cluster import ClusterClient
from vq.client.producer.intake.delays import waits_in
from vq.client.puts import put_batch
from vq.coordination.groups.groups import read_group, with_matches
from vq.coordination.topics.reserved_topics import ensure_reserved
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.errors import (
    OutcomeUnknown,
    ProducerFenced,
    SequenceGap,
    SequenceStale,
    SequenceTaken,
    UnknownProducer,
    UnknownTopic,
    VqError,
)
from vq.model import Message, ProducerStamp, TopicPartition
from vq.reserved import (
    DELAYED_TOPIC,
    DeliveryFailure,
    MessageOrigin,
    Purpose,
    group_of,
    headers_of_copy,
    is_reserved,
    topic_of,
)
from vq.store.records.copies import encode_copy

#: The broker has forgotten what was sent under a stamp, or somebody else has used it.
_FORGOTTEN = (ProducerFenced, SequenceGap, SequenceStale, SequenceTaken, UnknownProducer)

_Place: TypeAlias = tuple[MessageOrigin, int]
"""Of a message, and its id: a topic that was deleted and made again has others at its offsets."""
#: So many of them are remembered; one more may be stored twice.
_STORED_MAX: Final = 10_000


@dataclass(slots=True)
class _Line:
    """What is sent to one partition, one copy after the other.

    Attributes:
        producer_id, sequence: The stamp of the next batch; 0: none was sent.
        topic_id: Of the topic; another one of its name knows no stamps of ours.
        unsettled: The copy of which it is not known whether it is stored: the place of its message,
            and its record. It is sent again, under the same stamp, before any other.
    """

    topic_id: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    producer_id: int = 0
    sequence: int = 0
    unsettled: tuple[_Place, bytes] | None = None

    def is_unsettled(self, place: _Place) -> bool:
        """Whether it is not known if the copy of this message is stored."""
        return self.unsettled is not None and self.unsettled[0] == place


class MessageCopies:
    """Copies messages into reserved topics of a group; copies to one partition take turns.

    If a call raises, or is cancelled, the copy may be stored. Call it again with the message: it is
    stored once. Only a process that ended meanwhile, a member that took over, and a broker that has
    forgotten thousands of producers since, make it two.
    """

    def __init__(self, cluster: ClusterClient, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._lines: dict[TopicPartition, _Line] = {}
        self._stored: dict[_Place, None] = {}  # settled by calls for other messages

    async def give_up(self, message: Message, failure: DeliveryFailure, *, timeout: float) -> None:
        """Return once a copy of a message is a dead letter, stored as its topic's settings promise.

        Args:
            message: As it was received; a copy of a copy tells the origin of the first one.
            failure: Why.
            timeout: How long to wait for the broker, in seconds.

        Raises:
            InvalidArgument: The name of the group is too long for a topic of dead letters.
            OutcomeUnknown: It may be stored.
            VqError: The topic could not be made, or its broker refuses the copy.
        """
        deadline = self._cluster.clock.monotonic() + timeout
        if await self._settled_before(_place_of(message, failure), deadline):
            return
        name = topic_of(Purpose.DEAD_LETTERS, self._group)
        partitions = await self.open(name, message.topic)
        to = TopicPartition(name, message.partition % partitions)
        record = self.record(message, failure)
        await self._store(_place_of(message, failure), to, record, deadline)

    async def retry_later(
        self,
        message: Message,
        failure: DeliveryFailure,
        *,
        redelivery: int,
        delay_s: float,
        timeout: float,
    ) -> None:
        """Return once a copy of a message is stored that comes to the retry topic after a delay.

        Each redelivery is in another partition, so perhaps another member tries it.

        Args:
            message, failure, timeout: As of ``give_up``.
            redelivery: Which one it will be, from 1 on.
            delay_s: In seconds, from now on.

        Raises:
            InvalidArgument, OutcomeUnknown, VqError: As of ``give_up``.
        """
        cluster = self._cluster
        deadline = cluster.clock.monotonic() + timeout
        if await self._settled_before(_place_of(message, failure), deadline):
            return
        name, origin = topic_of(Purpose.RETRY, self._group), origin_of(message)
        partitions = await self.open(name, message.topic)
        to = TopicPartition(name, (origin.partition + redelivery) % partitions)
        routes = await cluster.track_internal(DELAYED_TOPIC)
        delay_ms = math.ceil(delay_s * 1000)
        waiting = waits_in(to, delay_ms, len(routes.topic(DELAYED_TOPIC).partitions))
        told = headers_of_copy(origin, self._all_failed(message, failure), redelivery)
        record = encode_copy(message, told, (cluster.clock.wall_ms() + delay_ms, to))
        waits_there = TopicPartition(DELAYED_TOPIC, waiting)
        await self._store(_place_of(message, failure), waits_there, record, deadline)

    async def open(self, name: str, origin: str) -> int:
        """Have a reserved topic of the group, and its routes; return how many partitions it has.

        Args:
            name: As ``vq.reserved.topic_of`` returns it.
            origin: A topic whose messages it is to keep, beside all that the group reads.

        Raises:
            VqError: It could not be made.
        """
        cluster = self._cluster
        if name not in cluster.routes.topics:
            contract = await read_group(cluster.coordinator, self._group) or ConsumerGroup()
            await make_topic(cluster, contract, name, [origin])
            await cluster.track(name)
        return len(cluster.routes.topic(name).partitions)

    def record(self, message: Message, failure: DeliveryFailure) -> bytes:
        """Return a copy of a message that no retry topic is to deliver again."""
        return encode_copy(
            message, headers_of_copy(origin_of(message), self._all_failed(message, failure))
        )

    def _all_failed(self, message: Message, failure: DeliveryFailure) -> DeliveryFailure:
        """Return how a message failed in all its deliveries, if it is from the retry topic."""
        earlier = message.failure
        if earlier is None or group_of(message.topic, Purpose.RETRY) != self._group:
            return failure
        attempts = earlier.attempts + failure.attempts
        return failure._replace(attempts=attempts, first_ms=earlier.first_ms)

    async def _settled_before(self, here: _Place, deadline: float) -> bool:
        """Have a copy of a message stored that may be; False: none may be."""
        for to, line in self._lines.items():
            if line.is_unsettled(here):
                async with line.turn:
                    if line.is_unsettled(here):
                        await self._put(to, line, deadline, resend=True)
                        return True
                break
        return self._stored.pop(here, self) is None

    async def _store(
        self, here: _Place, to: TopicPartition, record: bytes, deadline: float
    ) -> None:
        id = self._cluster.routes.topic(to.topic).id
        line = self._lines.get(to)
        if line is None or line.topic_id != id:
            line = self._lines[to] = _Line(id)
        async with line.turn:
            if line.unsettled is not None:
                before, _ = line.unsettled
                await self._put(to, line, deadline, resend=True)
                self._stored[before] = None
                while len(self._stored) > _STORED_MAX:
                    self._stored.pop(next(iter(self._stored)))
            line.unsettled = here, record
            await self._put(to, line, deadline)

    async def _put(
        self, partition: TopicPartition, line: _Line, deadline: float, *, resend: bool = False
    ) -> None:
        """Store the unsettled copy of a line."""
        assert line.unsettled is not None
        if not line.producer_id:
            line.producer_id = self._cluster.rng.getrandbits(63) | 1
        stamp = ProducerStamp(line.producer_id, 0, line.sequence)
        topic = self._cluster.routes.topics.get(partition.topic)
        if topic is None or topic.id != line.topic_id:
            line.unsettled = None
            raise UnknownTopic(f"topic {partition.topic} was deleted while a copy was sent to it")
        try:
            await put_batch(
                self._cluster,
                partition,
                stamp,
                [line.unsettled[1]],
                topic_id=line.topic_id,
                deadline=deadline,
                resend=resend,
            )
        except VqError as error:
            is_settled = not resend and not isinstance(error, OutcomeUnknown)
            if is_settled:
                line.unsettled = None
            elif isinstance(error, _FORGOTTEN):  # nobody will ever know; begin anew
                line.unsettled, line.producer_id, line.sequence = None, 0, 0
            raise
        line.unsettled = None
        line.sequence += 1


async def make_topic(
    cluster: ClusterClient, contract: ConsumerGroup, name: str, origins: Sequence[str]
) -> None:
    """Have a reserved topic of a group, which keeps messages of ``origins`` and of all it reads.

    Raises:
        VqError: It could not be made.
    """
    read = (await with_matches(cluster.coordinator, contract)).topics
    kept = {each for each in (*origins, *read) if not is_reserved(each)}
    await ensure_reserved(cluster.coordinator, name, sorted(kept), cluster.origin(auto=True))


def _place_of(message: Message, failure: DeliveryFailure) -> _Place:
    id = message.id if failure.raw_bytes is None else 0  # the bytes have none, each try another
    return MessageOrigin(message.topic, message.partition, message.offset), id


def origin_of(message: Message) -> MessageOrigin:
    """Return the place of the message that all copies are of."""
    here = MessageOrigin(message.topic, message.partition, message.offset)
    return message.origin or here
