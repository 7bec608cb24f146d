"""A topic of one producer: a list of appended messages, and a queue per partition.

Messages are appended to one list per topic. The next holder of the accumulator's lock, mostly the
sender, *drains* the list: it moves all messages to the queues of their partitions at once. A
message with a key has its partition already; messages without a key go round robin.

The main thread may drain, and a signal handler may raise in it. CPython runs signal handlers when a
call returns, when a function begins and when a loop repeats. So steps that must not be separated
have no call and no loop between them below.
"""

import operator
from collections.abc import Callable, Sequence

from vq.client.future import ANY_PARTITION, SendFuture
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Partitioner, key_partition
from vq.errors import InvalidArgument
from vq.model import TopicPartition, TopicSettings


class TopicQueues:
    """A published topic. ``drain`` and ``next_partition`` are called under the accumulator's lock.

    The others are not: ``update`` runs on the loop, ``partition_of`` in any thread.

    Attributes:
        topic: Its name.
        topic_id: Its id; a topic that is deleted and created again has another one.
        appended: Messages that wait to be drained, oldest first; any thread appends.
        shares: What a drain has yet to move to queues; an interrupted drain leaves some.
        content_bytes_max: Largest payload the topic takes.
        queues: One per partition.
        directed: A message in ``appended`` may have its partition already.
    """

    __slots__ = (
        "_chosen",
        "_first",
        "_make_queue",
        "_next",
        "_partitioner",
        "_writable",
        "appended",
        "content_bytes_max",
        "directed",
        "queues",
        "shares",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: str,
        make_queue: Callable[[TopicPartition], PartitionQueue],
        *,
        partitioner: Partitioner | None,
        first: int,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.appended: list[SendFuture] = []
        self.shares: list[tuple[PartitionQueue, list[SendFuture]]] = []
        self.content_bytes_max = TopicSettings().max_message_bytes
        self.queues: list[PartitionQueue] = []
        self.directed = False
        self._writable: Sequence[int] = ()
        self._make_queue = make_queue
        self._partitioner = partitioner
        self._first = first
        self._chosen: list[int] = []  # the partitions of the round robin
        self._next = 0

    def update(self, settings: TopicSettings, partitions: int, writable: Sequence[int]) -> None:
        """Follow the routes: add partitions; the round robin skips those without a master."""
        self.content_bytes_max = settings.max_message_bytes
        if len(self.queues) == partitions and self._writable == writable:
            return
        added: list[PartitionQueue] = []
        for number in range(len(self.queues), partitions):
            queue = self._make_queue(TopicPartition(self.topic, number))
            queue.topic_id = self.topic_id
            added.append(queue)
        self.queues += added  # in one step: the number of partitions decides where keys go
        self._writable = writable
        self._chosen = list(writable) or list(range(partitions))
        self._next = self._first % len(self._chosen)

    def partition_of(self, key: str | None) -> int:
        """Return the partition for a message with this key, or ``ANY_PARTITION``.

        Any thread, without the lock: an application's partitioner may block or send messages.

        Raises:
            InvalidArgument: The partitioner chose a partition that does not exist.
        """
        count = len(self.queues)
        if self._partitioner is None:
            return ANY_PARTITION if key is None else key_partition(key, count)
        chosen = self._partitioner.choose(key, count, self._writable)
        try:
            number = operator.index(chosen)
        except TypeError:
            number = -1
        if not 0 <= number < count:
            raise InvalidArgument(
                f"the partitioner chose partition {chosen!r} of {self.topic}, which has partitions "
                f"0 to {count - 1}"
            )
        return number

    def next_partition(self) -> int:
        """Return the next partition of the round robin."""
        chosen = self._chosen  # ``update`` may replace the list at any time
        self._next += 1
        return chosen[(self._next - 1) % len(chosen)]

    def drain(self) -> None:
        """Move appended messages to the queues in order; first those of an interrupted drain."""
        if self.shares:
            self._hand_out()
        items = self.appended[:]
        count = len(items)
        shares = self._directed_shares(items) if self.directed else self._shares(items)
        self.shares = shares
        del self.appended[:count]  # callers append behind the slice at any time
        if not self.appended:
            self.directed = False
        self._hand_out()

    def _hand_out(self) -> None:
        shares = self.shares
        while shares:
            queue, items = shares[-1]
            queue.pending += items
            del shares[-1]

    def _shares(self, items: list[SendFuture]) -> list[tuple[PartitionQueue, list[SendFuture]]]:
        """Return what goes to each queue when all messages go round robin."""
        chosen, first, count = self._chosen, self._next, len(items)
        turns = len(chosen)
        self._next += count
        if turns == 1:
            return [(self.queues[chosen[0]], items)]
        return [
            (self.queues[chosen[(first + number) % turns]], items[number::turns])
            for number in range(min(count, turns))
        ]

    def _directed_shares(
        self, items: list[SendFuture]
    ) -> list[tuple[PartitionQueue, list[SendFuture]]]:
        if len(items) == 1 and items[0].partition >= 0:  # mostly a blocking sender's
            return [(self.queues[items[0].partition], items)]
        shares: dict[int, list[SendFuture]] = {}
        for item in items:
            number = self.next_partition() if item.partition < 0 else item.partition
            share = shares.get(number)
            if share is None:
                shares[number] = [item]
            else:
                share.append(item)
        return [(self.queues[number], share) for number, share in shares.items()]
