"""A topic as one producer sees it: what was appended to it, and a queue per partition.

Messages are appended to one list per topic. Whoever holds the accumulator's lock next, mostly the
sender, *drains* it: hands all of them to the queues of their partitions at once. A message with a
key has its partition already; messages without one take turns.
"""

from collections.abc import Callable, Sequence

from vq.client.future import ANY_PARTITION, SendFuture
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Partitioner, key_partition
from vq.errors import InvalidArgument
from vq.model import TopicPartition, TopicSettings


class TopicQueues:
    """A published topic. Methods are called under the accumulator's lock, but for ``update``.

    Attributes:
        topic: Its name.
        topic_id: Which topic of that name; another id is another topic, made after a deletion.
        appended: Messages that wait to be drained, oldest first; any thread appends.
        content_bytes_max: Largest payload the topic takes.
        queues: One per partition.
        directed: A message that was appended since the last drain has its partition already.
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
        for number in range(len(self.queues), partitions):
            queue = self._make_queue(TopicPartition(self.topic, number))
            queue.topic_id = self.topic_id
            self.queues.append(queue)
        self._writable = writable
        self._chosen = list(writable) or list(range(partitions))
        self._turn = self._first_turn % len(self._chosen)

    def partition_of(self, key: str | None) -> int:
        """Return the partition for a message with this key, or ``ANY_PARTITION``.

        Raises:
            InvalidArgument: The partitioner chose a partition that there is not.
        """
        count = len(self.queues)
        if self._partitioner is None:
            return ANY_PARTITION if key is None else key_partition(key, count)
        number = self._partitioner.choose(key, count, self._writable)
        if not 0 <= number < count:
            raise InvalidArgument(
                f"the partitioner chose partition {number} of {self.topic}, which has {count}, "
                "from 0 on"
            )
        return number

    def next_turn(self) -> int:
        """Return the partition whose turn it is."""
        self._turn += 1
        return self._chosen[(self._turn - 1) % len(self._chosen)]

    def drain(self) -> None:
        """Hand what was appended to the queues, in order."""
        items = self.appended[:]
        del self.appended[: len(items)]  # callers append behind the slice at any time
        if self.directed:
            self.directed = False
            for item in items:
                number = self.next_turn() if item.partition < 0 else item.partition
                self.queues[number].pending.append(item)
            return
        count, turns = len(items), len(self._chosen)
        for number in range(min(count, turns)):
            queue = self.queues[self._chosen[(self._turn + number) % turns]]
            queue.pending += items[number::turns] if turns > 1 else items
        self._turn += count
