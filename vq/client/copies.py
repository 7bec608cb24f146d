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
from typing import Final, NamedTuple, TypeAlias

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.producer.intake.delays import waits_in
from vq.client.puts import put_batch
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.groups.groups import read_group, with_matches
from vq.coordination.topics.reserved_topics import ensure_reserved
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.errors import STAMP_REFUSED, OutcomeUnknown, SequenceStale, UnknownTopic, VqError
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
from vq.store.records.copies import encode_copy, was_compressed

#: What is sent next begins another stamp.
_STAMP_LOST: Final = (*STAMP_REFUSED, SequenceStale)

_Place: TypeAlias = tuple[MessageOrigin, int]
"""Of a message, and its id: a topic that was deleted and made again has others at its offsets."""


class _Copy(NamedTuple):
    """The place of a message, and the record of its copy."""

    of: _Place
    record: bytes


#: How long a broker is waited for that knows the number of a message, in seconds.
_NUMBER_S: Final = 1.0
#: So many of them are remembered; one more may be stored twice.
_STORED_MAX: Final = 10_000
#: Copies in one batch.
_BATCH_MAX: Final = 1_000


@dataclass(slots=True)
class _Line:
    """What is sent to one partition, one batch after the other.

    Attributes:
        producer_id, sequence: The stamp of the next batch; 0: none was sent.
        topic_id: Of the topic; another one of its name knows no stamps of ours.
        waiting: Copies whose callers wait for their turn. Whoever has it sends all of them.
        unsettled: The batch of copies of which it is not known whether it is stored. It is sent
            again, under the same stamp, before any other.
    """

    topic_id: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    producer_id: int = 0
    sequence: int = 0
    waiting: list[_Copy] = field(default_factory=list)
    unsettled: Sequence[_Copy] = ()

    def is_unsettled(self, place: _Place) -> bool:
        """Whether it is not known if the copy of this message is stored."""
        return any(each.of == place for each in self.unsettled)

    def next_batch(self, first: _Copy) -> list[_Copy]:
        """Take a copy and as many of the others that wait as there is room for in a batch."""
        others = [each for each in self.waiting if each is not first]
        size, count = len(first.record), 0
        for each in others[: _BATCH_MAX - 1]:
            size += len(each.record)
            if size > limits.BATCH_BYTES_MAX:
                break
            count += 1
        self.waiting = others[count:]
        return [first, *others[:count]]


class MessageCopies:
    """Copies messages into reserved topics of a group.

    Copies to one partition take turns; those that wait meanwhile go together in the next batch.

    If a call raises, or is cancelled, the copy may be stored. Call it again with the message: it is
    stored once. Only a process that ended meanwhile, a member that took over, and a broker that has
    forgotten thousands of producers since, make it two.
    """

    def __init__(self, cluster: ClusterClient, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._lines: dict[TopicPartition, _Line] = {}
        self._stored: dict[_Place, None] = {}  # by calls for other messages

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
        record = self.record(message, failure, await self._origin_of(message))
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
        name, origin = topic_of(Purpose.RETRY, self._group), await self._origin_of(message)
        partitions = await self.open(name, message.topic)
        to = TopicPartition(name, (origin.partition + redelivery) % partitions)
        routes = await cluster.track_internal(DELAYED_TOPIC)
        delay_ms = math.ceil(delay_s * 1000)
        waiting = waits_in(to, delay_ms, len(routes.topic(DELAYED_TOPIC).partitions))
        told = headers_of_copy(origin, self._all_failed(message, failure), redelivery)
        due = cluster.clock.wall_ms() + delay_ms, to
        record = encode_copy(message, told, due, is_compressed=was_compressed(message))
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

    def record(
        self, message: Message, failure: DeliveryFailure, origin: MessageOrigin | None = None
    ) -> bytes:
        """Return a copy of a message that no retry topic is to deliver again."""
        told = headers_of_copy(origin or origin_of(message), self._all_failed(message, failure))
        return encode_copy(message, told, is_compressed=was_compressed(message))

    def is_stored(self, message: Message, failure: DeliveryFailure) -> None:
        """Have the next call for a message return at once: its copy is stored."""
        self._are_stored([_Copy(_place_of(message, failure), b"")])

    async def _origin_of(self, message: Message) -> MessageOrigin:
        """Return where a message comes from, with its number there if a broker tells it."""
        origin = origin_of(message)
        if message.origin is not None:
            return origin
        reader = PartitionReader(self._cluster, TopicPartition(origin.topic, origin.partition))
        try:
            async with asyncio.timeout(_NUMBER_S):
                return origin._replace(number=await reader.number_at(origin.offset))
        except (TimeoutError, VqError):  # the copy is worth more than its number
            return origin

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
                        await self._settle(to, line, deadline)
                break
        return self._stored.pop(here, self) is None

    async def _store(
        self, here: _Place, to: TopicPartition, record: bytes, deadline: float
    ) -> None:
        """Store a copy, with those of other callers that wait for the same partition."""
        id = self._cluster.routes.topic(to.topic).id
        line = self._lines.get(to)
        if line is None or line.topic_id != id:
            line = self._lines[to] = _Line(id)
        copy = _Copy(here, record)
        line.waiting.append(copy)
        try:
            async with line.turn:
                if line.unsettled:
                    await self._settle(to, line, deadline)
                if self._stored.pop(here, self) is None:
                    return  # by whoever had the turn before
                await asyncio.sleep(0)  # those whose answers came together go together
                _, *others = line.unsettled = line.next_batch(copy)
                try:
                    await self._put(to, line, deadline)
                except VqError as error:
                    if line.unsettled or not (others or isinstance(error, _STAMP_LOST)):
                        raise
                    # It was refused, because of one of them perhaps, or of its stamp, which is
                    # another one now; each asks for itself.
                    line.waiting, others = others + line.waiting, []
                    line.unsettled = [copy]
                    await self._put(to, line, deadline)
                self._are_stored(others)
        finally:
            line.waiting = [each for each in line.waiting if each is not copy]

    async def _settle(self, to: TopicPartition, line: _Line, deadline: float) -> None:
        """Send the unsettled batch of a line again."""
        batch = line.unsettled
        await self._put(to, line, deadline, resend=True)
        self._are_stored(batch)

    def _are_stored(self, copies: Sequence[_Copy]) -> None:
        for each in copies:
            self._stored[each.of] = None
        while len(self._stored) > _STORED_MAX:
            self._stored.pop(next(iter(self._stored)))

    async def _put(
        self, partition: TopicPartition, line: _Line, deadline: float, *, resend: bool = False
    ) -> None:
        """Store the unsettled batch of a line, of which it is known then that it is stored.

        If it raises and nothing is unsettled, nothing of the batch is stored.
        """
        assert line.unsettled
        if not line.producer_id:
            line.producer_id = self._cluster.rng.getrandbits(63) | 1
        stamp = ProducerStamp(line.producer_id, 0, line.sequence)
        topic = self._cluster.routes.topics.get(partition.topic)
        if topic is None or topic.id != line.topic_id:
            line.unsettled = ()
            raise UnknownTopic(f"topic {partition.topic} was deleted while a copy was sent to it")
        try:
            await put_batch(
                self._cluster,
                partition,
                stamp,
                [each.record for each in line.unsettled],
                topic_id=line.topic_id,
                deadline=deadline,
                resend=resend,
            )
        except VqError as error:
            if isinstance(error, _STAMP_LOST):  # so it would be with the next batch: begin anew
                line.unsettled, line.producer_id, line.sequence = (), 0, 0
            elif not resend and not isinstance(error, OutcomeUnknown):
                line.unsettled = ()
            raise
        line.unsettled = ()
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
