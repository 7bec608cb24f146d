"""Copies of messages that a consumer group gave up, into the group's topic of dead letters.

Loop-bound. Before the first copy nothing is made, asked or kept. A copy has the id, key, tag,
headers and content of its message, and tells where that was and why it failed: see ``reserved``.

    caller ─▶ topic (made if there is none) ─▶ partition ─▶ put, until it is answered
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from vq.client.cluster import ClusterClient
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
    DeliveryFailure,
    MessageOrigin,
    Purpose,
    headers_of_copy,
    topic_of,
)
from vq.store.records.copies import encode_copy

#: The broker has forgotten what was sent under a stamp, or somebody else has used it.
_FORGOTTEN = (ProducerFenced, SequenceGap, SequenceStale, SequenceTaken, UnknownProducer)


@dataclass(slots=True)
class _Line:
    """What is sent to one partition, one copy after the other.

    Attributes:
        producer_id, sequence: The stamp of the next batch; 0: none was sent.
        unsettled: The copy of which it is not known whether it is stored: the place of its message,
            and its record. It is sent again, under the same stamp, before any other.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    producer_id: int = 0
    sequence: int = 0
    unsettled: tuple[MessageOrigin, bytes] | None = None


class DeadLetterCopies:
    """Copies messages into a group's topic of dead letters; copies to one partition take turns."""

    def __init__(self, cluster: ClusterClient, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._topic_id = ""
        self._lines: defaultdict[int, _Line] = defaultdict(_Line)

    async def give_up(self, message: Message, failure: DeliveryFailure, *, timeout: float) -> None:
        """Return once a copy of a message is stored, as its topic's settings promise.

        If that raises, or is cancelled, the copy may be stored. Call it again with the message: it
        is stored once. Only a process that ended meanwhile, a member that took over, and a broker
        that has forgotten thousands of producers since, make it two.

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
        name = topic_of(Purpose.DEAD_LETTERS, self._group)
        await self._open(name, message.topic)
        partitions = len(self._cluster.routes.topic(name).partitions)
        number = message.partition % partitions
        here = MessageOrigin(message.topic, message.partition, message.offset)
        line = self._lines[number]
        async with line.turn:
            partition = TopicPartition(name, number)
            before = line.unsettled
            if before is not None:
                await self._put(partition, line, deadline, resend=True)
                if before[0] == here:
                    return
            told = headers_of_copy(message.origin or here, failure)
            line.unsettled = here, encode_copy(message, told)
            await self._put(partition, line, deadline)

    async def _open(self, name: str, origin: str) -> None:
        """Have the topic, and its routes."""
        cluster = self._cluster
        known = cluster.routes.topics.get(name)
        if known is None:
            contract = await read_group(cluster.coordinator, self._group) or ConsumerGroup()
            origins = {origin, *(await with_matches(cluster.coordinator, contract)).topics}
            await ensure_reserved(
                cluster.coordinator, name, sorted(origins), cluster.origin(auto=True)
            )
            await cluster.track(name)
            known = cluster.routes.topic(name)
        if known.id != self._topic_id:  # another topic has the name: it knows no stamps of ours
            self._topic_id = known.id
            self._lines.clear()

    async def _put(
        self, partition: TopicPartition, line: _Line, deadline: float, *, resend: bool = False
    ) -> None:
        """Store the unsettled copy of a line."""
        assert line.unsettled is not None
        if not line.producer_id:
            line.producer_id = self._cluster.rng.getrandbits(63) | 1
        stamp = ProducerStamp(line.producer_id, 0, line.sequence)
        topic = self._cluster.routes.topics.get(partition.topic)
        if topic is None or topic.id != self._topic_id:
            raise UnknownTopic(f"topic {partition.topic} was deleted while a copy was sent to it")
        try:
            await put_batch(
                self._cluster,
                partition,
                stamp,
                [line.unsettled[1]],
                topic_id=self._topic_id,
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
