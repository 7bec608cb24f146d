"""Delayed messages: which of them wait, and recalling them.

Loop-bound functions on a ``ClusterClient``. What waits is told by the log of the topic of delayed
messages, with its notes of what was sent or recalled: the same that its master goes by.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vq.bounds import check_between
from vq.broker.journal.notes import NOTE_TAG, Sent
from vq.broker.timers.notes import Cancelled, decode_note
from vq.client.cluster import ClusterClient
from vq.client.producer.send import cancelling
from vq.client.reading.partition_reader import PartitionReader, records_decoder
from vq.coordination.topics import topics
from vq.coordination.tree.reading import gather_all
from vq.errors import CorruptData, UnknownTopic, VqError
from vq.model import Cancellation, Key, SendResult, TopicPartition, check_name, check_timeout
from vq.reserved import DELAYED_TOPIC
from vq.store.records.record import Record, read_delivery, read_properties

#: Messages that are listed unless it is said, and at most.
DELAYED_MESSAGES: Final = 1_000
DELAYED_MESSAGES_MAX: Final = 100_000
#: How long the broker of a message that is to be cancelled is waited for, in seconds.
CANCEL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits.

    Attributes:
        topic, partition: Where it goes.
        due_ms: When, in milliseconds since 1970.
        waits: Where it waits: what its send returned, and ``cancel_delayed`` takes.
        key, tag, headers: Of the message.
        record_bytes: How long its record is.
    """

    topic: str
    partition: int
    due_ms: int
    waits: SendResult
    key: Key | None
    tag: str | None
    headers: Mapping[str, str] | None
    record_bytes: int


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """What waits, as the log told at the time of the call.

    Attributes:
        waiting: How many messages.
        first: Those that are due first, in the order of their times.
        unreadable: Records that cannot be read; what they are is not known.
    """

    waiting: int
    first: list[DelayedMessage]
    unreadable: int


async def list_delayed(
    cluster: ClusterClient, topic: str | None = None, *, limit: int = DELAYED_MESSAGES
) -> DelayedMessages:
    """Return which delayed messages wait, and how many; the log of all that waits is read twice.

    A message that its broker has begun to send waits no more. One that is sent, or recalled, while
    this reads may still be told. Memory: 8 bytes for each message that went from this log since
    the oldest one that waits, and what is listed.

    Args:
        topic: Only those for this topic, which need not be there any more; None: all.
        limit: List at most so many, 1 to 100,000; all are counted.

    Raises:
        InvalidArgument: ``limit`` is out of range.
        VqError: A broker does not answer.
    """
    found, silent = await look_at_delayed(cluster, topic, limit=limit)
    if silent:
        raise silent[0]
    return found


async def look_at_delayed(
    cluster: ClusterClient, topic: str | None, *, limit: int
) -> tuple[DelayedMessages, list[VqError]]:
    """Return what waits where brokers answer, and why other partitions of it were not read.

    Arguments: see ``list_delayed``.
    """
    check_between("limit", limit, 1, DELAYED_MESSAGES_MAX)
    if topic is not None:
        check_name("topic", topic)
    try:
        view = await topics.describe_topic(cluster.coordinator, DELAYED_TOPIC)
    except UnknownTopic:  # nobody has ever sent one
        return DelayedMessages(0, [], 0), []
    found = _Waiting(topic, limit)
    silent: list[VqError] = []

    async def read(number: int) -> None:
        try:
            await _Partition(cluster, number, view.id).read(found)
        except VqError as error:
            silent.append(error)

    await gather_all(read(each) for each in range(len(view.partitions)))  # silent ones take time
    return DelayedMessages(found.waiting, found.listed(), found.unreadable), silent


async def cancel_delayed(
    cluster: ClusterClient, waits: SendResult, *, timeout: float = CANCEL_S
) -> Cancellation:
    """Have a delayed message delivered to nobody; return what became of it.

    Args:
        waits: What its send returned, or ``list_delayed`` tells.
        timeout: How long to ask its broker, in seconds; then the outcome is ``UNKNOWN``.

    Raises:
        InvalidArgument: No delayed message is there.
        VqError: The broker could not be asked; the message is certainly not cancelled.
    """
    return await cancelling.cancel(cluster, waits, check_timeout(timeout))


@dataclass(slots=True)
class _Waiting:
    """What was found so far; of the messages, those that are due first."""

    topic: str | None
    limit: int
    waiting: int = 0
    unreadable: int = 0
    _first: list[tuple[int, int, int, int, Record, TopicPartition]] = field(default_factory=list)

    def add(self, number: int, due_ms: int, record: Record, to: TopicPartition) -> None:
        """Take a message that waits in a partition."""
        if self.topic is not None and to.topic != self.topic:
            return
        self.waiting += 1
        # The latest one is the first of the heap.
        entry = (-due_ms, -number, -record.offset, record.id, record, to)
        if len(self._first) < self.limit:
            heapq.heappush(self._first, entry)
        elif entry > self._first[0]:
            heapq.heapreplace(self._first, entry)

    def listed(self) -> list[DelayedMessage]:
        """Return the messages, the earliest first."""
        return [
            _message(-number, -due_ms, record, to)
            for due_ms, number, _, _, record, to in sorted(self._first, reverse=True)
        ]


def _message(number: int, due_ms: int, record: Record, to: TopicPartition) -> DelayedMessage:
    key, headers = read_properties(record.properties or b"") or (None, None)
    return DelayedMessage(
        topic=to.topic,
        partition=to.partition,
        due_ms=due_ms,
        waits=SendResult(number, record.offset, record.id),
        key=key,
        tag=None if record.tag is None else record.tag.decode(errors="replace"),
        headers=headers,
        record_bytes=record.next_offset - record.offset,
    )


class _Partition:
    """One partition of what waits."""

    def __init__(self, cluster: ClusterClient, number: int, topic_id: str) -> None:
        self._reader = PartitionReader(cluster, TopicPartition(DELAYED_TOPIC, number), topic_id)
        self._number = number
        self._gone = array("Q")  # offsets of messages that were sent or recalled

    async def read(self, found: _Waiting) -> None:
        """Add what waits here."""
        start, end = await self._reader.bounds()
        at = start
        while at < end:
            at = await self._pass(at, end, None)
        self._gone = array("Q", sorted(self._gone))
        at = start
        while at < end:
            at = await self._pass(at, end, found)

    async def _pass(self, at: int, end: int, found: _Waiting | None) -> int:
        """Read on from an offset; return where to go on, behind a record that cannot be read."""
        read = self._reader.read(at, records_decoder(), end)
        try:
            async for records in read:
                for record in records:
                    if found is None:
                        self._note(record)
                    else:
                        self._add(record, found)
        except CorruptData as error:
            if found is not None:
                found.unreadable += 1
            return await self._reader.behind(int(error.details.get("offset", at)), error)
        return end

    def _note(self, record: Record) -> None:
        if record.tag != NOTE_TAG:
            return
        try:
            note = decode_note(record.payload)
        except CorruptData:
            return  # of a later version
        if isinstance(note, Sent):
            self._gone.extend(each.offset for each in note.items)
        elif isinstance(note, Cancelled):
            self._gone.append(note.message.offset)

    def _add(self, record: Record, found: _Waiting) -> None:
        delivery = None if record.properties is None else read_delivery(record.properties)
        if record.tag == NOTE_TAG or delivery is None:
            return
        at = bisect_left(self._gone, record.offset)
        if at == len(self._gone) or self._gone[at] != record.offset:
            due_ms, to = delivery
            found.add(self._number, due_ms, record, to)
