"""A topic as one producer sees it: what was appended to it, and a queue per partition.

Messages are appended to one list per topic. Whoever holds the accumulator's lock next, mostly the
sender, *drains* it: hands all of them to the queues of their partitions at once. A message with a
key has its partition already; messages without one take turns.

The main thread may drain, and a signal handler may raise in it. CPython calls handlers when a call
returns, when a function begins and when a loop turns; so steps that belong together stand side by
side below, without any of these between them.
"""

import operator
from collections.abc import Callable, Sequence

from vq.client.future import ANY_PARTITION, SendFuture
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Partitioner, key_partition
from vq.errors import InvalidArgument
from vq.model import TopicPartition, TopicSettings


class TopicQueues:
    """A published topic. ``drain`` and ``next_turn`` are called under the accumulator's lock.

    The others are not: ``update`` runs on the loop, ``partition_of`` in any thread.

    Attributes:
        topic: Its name.
        topic_id: Which topic of that name; another id is another topic, made after a deletion.
        appended: Messages that wait to be drained, oldest first; any thread appends.
        shares: What a drain has yet to hand to queues; left behind by one that was interrupted.
        content_bytes_max: Largest payload the topic takes.
        queues: One per partition.
        directed: A message in ``appended`` may have its partition already.
    """

    __slots__ = (
        "_chosen",
        "_first_turn",
        "_make_queue",
        "_partitioner",
        "_turn",
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
        first_turn: int,
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
        self._first_turn = first_turn
        self._chosen: list[int] = []  # the partitions that take turns
        self._turn = 0

    def update(self, settings: TopicSettings, partitions: int, writable: Sequence[int]) -> None:
        """Follow the routes: partitions are only ever added; turns skip those without a master."""
        self.content_bytes_max = settings.max_message_bytes
        if len(self.queues) == partitions and self._writable == writable:
            return
        added: list[PartitionQueue] = []
        for number in range(len(self.queues), partitions):
            queue = self._make_queue(TopicPartition(self.topic, number))
            queue.topic_id = self.topic_id
            added.append(queue)
        self.queues += added  # at once: keys go by the number of partitions
        self._writable = writable
        self._chosen = list(writable) or list(range(partitions))
        self._turn = self._first_turn % len(self._chosen)

    def partition_of(self, key: str | None) -> int:
        """Return the partition for a message with this key, or ``ANY_PARTITION``.

        Any thread, without the lock: a partitioner of one's own may wait, or send messages.

        Raises:
            InvalidArgument: The partitioner chose a partition that there is not.
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
                f"the partitioner chose partition {chosen!r} of {self.topic}, which has {count}, "
                "from 0 on"
            )
        return number

    def next_turn(self) -> int:
        """Return the partition whose turn it is."""
        chosen = self._chosen  # ``update`` puts another list there at any time
        self._turn += 1
        return chosen[(self._turn - 1) % len(chosen)]

    def drain(self) -> None:
        """Hand what was appended to the queues, in order; first what an earlier drain left."""
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
        """Return what goes to each queue when every message takes its turn."""
        chosen, first, count = self._chosen, self._turn, len(items)
        turns = len(chosen)
        self._turn += count
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
            number = self.next_turn() if item.partition < 0 else item.partition
            share = shares.get(number)
            if share is None:
                shares[number] = [item]
            else:
                share.append(item)
        return [(self.queues[number], share) for number, share in shares.items()]
