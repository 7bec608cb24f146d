"""The messages of a transaction, by partition, and the requests that take them to the journal."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import google_crc32c

from vq import limits
from vq.client.future import ANY_PARTITION, SendFuture
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.errors import BatchTooLarge, InvalidState, VqError
from vq.model import SendResult, TopicPartition
from vq.remoting.wire_pb2 import TransactionPart
from vq.store.records.codec import encode_records, places
from vq.store.records.format import RECORD_HEADER_BYTES

#: Ids of messages are taken so many at a time.
_IDS_MAX: Final = 100


@dataclass(slots=True)
class _PartitionPart:
    """What goes to one partition.

    Attributes:
        to: The partition.
        queues: Of its topic.
        items, ids: The messages.
        size: Bytes of their records.
    """

    to: TopicPartition
    queues: TopicQueues
    items: list[SendFuture] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    size: int = 0


class Collected:
    """The messages of one transaction, in the order in which they were added. Not for two threads.

    Args:
        take_ids: Returns so many ids for messages.

    Attributes:
        messages: How many there are.
        size: Bytes of their records.
    """

    def __init__(self, take_ids: Callable[[int], list[int]]) -> None:
        self._take_ids = take_ids
        self._ids: list[int] = []  # for the next messages, the last one first
        self._is_adding = False
        self.messages = 0
        self.size = 0
        self._parts: dict[TopicPartition, _PartitionPart] = {}
        self._keyless: dict[str, int] = {}  # by topic: where messages without a key go
        self._order: list[tuple[_PartitionPart, int]] = []
        self._sizes: dict[TopicPartition, list[int]] = {}

    def add(self, messages: Sequence[tuple[SendFuture, TopicQueues]]) -> list[int]:
        """Add messages, each with its topic, and tell each its partition; return their ids.

        Raises:
            BatchTooLarge: There would be too much; the messages before that were added.
            InvalidState: A finalizer or a signal handler has interrupted the adding of others.
        """
        if self._is_adding:
            raise InvalidState(
                "a finalizer or signal handler sends while its thread adds a message to the same "
                "transaction; send it behind that, or with another producer"
            )
        self._is_adding = True
        try:
            if len(self._ids) < len(messages):  # twice as many: most transactions have few
                count = max(len(messages), min(self.messages, _IDS_MAX))
                self._ids = self._take_ids(count)[::-1]
            ids: list[int] = []
            for item, queues in messages:
                ids.append(self._ids.pop())
                item.partition = self._add(item, ids[-1], queues)
            return ids
        finally:
            self._is_adding = False

    def _add(self, item: SendFuture, id: int, queues: TopicQueues) -> int:
        """Add a message; return the partition to which it goes.

        Args:
            item: Its future.
            id: Its id.
            queues: Of its topic.

        Raises:
            BatchTooLarge: There would be too much; nothing was added.
        """
        number, topic = item.partition, queues.topic
        if number == ANY_PARTITION:
            number = self._keyless.get(topic, ANY_PARTITION)
            if number == ANY_PARTITION:
                number = queues.next_partition()
        size = item.size + RECORD_HEADER_BYTES
        part = self._parts.get((topic, number))  # type: ignore[call-overload]  # as its named twin
        if part is None:
            part = _PartitionPart(TopicPartition(topic, number), queues)
        items = part.items
        if len(items) >= limits.BATCH_RECORDS_MAX or part.size + size > limits.BATCH_BYTES_MAX:
            raise _too_large(part, size)
        if not items or self.size + size > limits.TRANSACTION_BYTES_MAX:
            self._check_all(part, size)
            if item.partition == ANY_PARTITION:
                self._keyless[topic] = number
            self._parts[part.to] = part
        self._order.append((part, len(items)))
        items.append(item)
        part.ids.append(id)
        part.size += size
        self.messages += 1
        self.size += size
        return number

    def place_of(self, item: SendFuture) -> SendResult:
        """Return what is known of the place of a message: all but its offset, which is -1."""
        for part, index in reversed(self._order):  # mostly it is the last one
            if part.items[index] is item:
                return SendResult(part.to.partition, -1, part.ids[index])
        raise AssertionError("it is no message of this transaction")

    def _check_all(self, part: _PartitionPart, size: int) -> None:
        parts = len(self._parts) + (not part.items)
        if parts > limits.TRANSACTION_PARTS_MAX or self.size + size > limits.TRANSACTION_BYTES_MAX:
            raise BatchTooLarge(
                f"a transaction of {parts} partitions and {self.size + size} bytes; at most "
                f"{limits.TRANSACTION_PARTS_MAX} and {limits.TRANSACTION_BYTES_MAX} are allowed",
                hint="commit it, and begin another one",
            )

    @property
    def first(self) -> TopicPartition | None:
        """The partition of the first message."""
        return self._order[0][0].to if self._order else None

    def only_part(self) -> tuple[TopicPartition, str, bytes, int] | None:
        """Return partition, id of its topic, records and their number if all go to one partition.

        None: they go to several.
        """
        if len(self._parts) != 1:
            return None
        ((to, part),) = self._parts.items()
        body = self._encoded(to, part)
        return to, part.queues.topic_id, body, len(part.items)

    def _encoded(self, to: TopicPartition, part: _PartitionPart) -> bytes:
        contents, heads = [e.content for e in part.items], [e.head for e in part.items]
        body, self._sizes[to] = encode_records(contents, heads, part.ids)
        return body

    def requests(self) -> list[tuple[list[TransactionPart], bytes]]:
        """Return the parts and the bodies of as many requests as are needed, at least one."""
        requests: list[tuple[list[TransactionPart], bytes]] = []
        parts: list[TransactionPart] = []
        bodies: list[bytes] = []
        room = limits.TRANSACT_BYTES_MAX
        for index, (to, part) in enumerate(self._parts.items()):
            body, sizes = self._encoded(to, part), self._sizes[to]
            begin, first = 0, 0
            while first < len(sizes):
                end, last = begin, first
                while last < len(sizes) and end + sizes[last] - begin <= room:
                    end += sizes[last]
                    last += 1
                if last == first:  # the next one has no room in this request
                    requests.append((parts, b"".join(bodies)))
                    parts, bodies, room = [], [], limits.TRANSACT_BYTES_MAX
                    continue
                data = body[begin:end]
                parts.append(_part_of(to, part, index, last - first, data))
                bodies.append(data)
                room -= len(data)
                begin, first = end, last
        requests.append((parts, b"".join(bodies)))
        return requests

    def results(self, offsets: Sequence[int]) -> list[SendResult]:
        """Return where the messages are, in the order in which they were added.

        Args:
            offsets: Of the first message of each partition; -1, or missing: it is not known.
        """
        found: dict[TopicPartition, list[SendResult]] = {}
        known = [*offsets, *[-1] * (len(self._parts) - len(offsets))]
        for (to, part), offset in zip(self._parts.items(), known, strict=True):
            if offset < 0:
                found[to] = [SendResult(to.partition, -1, id) for id in part.ids]
            else:
                found[to] = places(to.partition, offset, self._sizes[to], part.ids)
        return [found[part.to][index] for part, index in self._order]

    def succeed(self, results: Sequence[SendResult]) -> None:
        """Give each message its place."""
        waiting = self._waiting()
        for (part, index), result in zip(self._order, results, strict=True):
            item = part.items[index]
            if item.outcome is None:
                item.succeed(result)
        for part in waiting:
            since = part.items[0].appended_at
            part.queues.meter.stored(len(part.items), part.size, since)

    def fail(self, error: VqError) -> None:
        """Give each message an error."""
        waiting = self._waiting()
        for item in self._items():
            if item.outcome is None:
                item.fail(error)
        for part in waiting:
            part.queues.meter.failed(len(part.items), part.size, error)

    def abandon(self, error: VqError) -> None:
        """Give each message an error in the child of a fork, and tell nobody."""
        for item in self._items():
            if item.outcome is None:
                item.outcome = error

    def _waiting(self) -> list[_PartitionPart]:
        """Return the parts whose messages have no outcome; they are counted once."""
        return [each for each in self._parts.values() if each.items[0].outcome is None]

    def _items(self) -> Iterator[SendFuture]:
        for part, index in self._order:
            yield part.items[index]


def _too_large(part: _PartitionPart, size: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"a transaction has {len(part.items) + 1} messages of {part.size + size} bytes for "
        f"{part.to}; what it has for one partition is stored as one batch, of at most "
        f"{limits.BATCH_RECORDS_MAX} messages and {limits.BATCH_BYTES_MAX} bytes",
        hint="commit it, and begin another one; or use more partitions",
    )


def _part_of(
    to: TopicPartition, part: _PartitionPart, index: int, messages: int, data: bytes
) -> TransactionPart:
    return TransactionPart(
        topic=to.topic,
        partition=to.partition,
        topic_id=part.queues.topic_id,
        record_count=messages,
        size=len(data),
        crc=google_crc32c.value(data),
        index=index,
    )
