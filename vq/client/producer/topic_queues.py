"""A topic as one producer sees it: a queue per partition, and whose turn it is.

Most messages have no key and are small. These are *taken in* (see ``intake``): appended to one list
without taking any lock, and whoever holds the producer's lock next, mostly the loop, spreads all of
them over the partitions at once.
"""

from collections.abc import Callable, Sequence

from vq.client.future import SendFuture
from vq.client.producer.batch import bytes_of
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Partitioner, key_partition
from vq.errors import InvalidArgument, VqError
from vq.model import TopicPartition, TopicSettings


class TopicQueues:
    """A published topic. Methods are called under the producer's lock, but for ``update``.

    Attributes:
        topic_id: Which topic of that name; another id is another topic, made after a deletion.
        message_bytes_max: Largest payload the topic takes.
        taken_in: Messages that wait to be spread; any thread appends.
        refusal: Why nothing is taken any more.
    """

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
        self.message_bytes_max = TopicSettings().max_message_bytes
        self.queues: list[PartitionQueue] = []
        self.taken_in: list[SendFuture] = []
        self.refusal: VqError | None = None
        self._writable: Sequence[int] = ()
        self._make_queue = make_queue
        self._partitioner = partitioner
        self._first_turn = first_turn
        self._chosen: list[PartitionQueue] = []  # those that take turns
        self._turn = 0

    def update(self, settings: TopicSettings, partitions: int, writable: Sequence[int]) -> None:
        """Follow the routes: partitions are only ever added; turns skip those without a master."""
        self.message_bytes_max = settings.max_message_bytes
        if len(self.queues) == partitions and self._writable == writable:
            return
        for number in range(len(self.queues), partitions):
            queue = self._make_queue(TopicPartition(self.topic, number))
            queue.topic_id = self.topic_id
            self.queues.append(queue)
        self._writable = writable
        self._chosen = [self.queues[number] for number in writable] or self.queues[:]
        self._turn = self._first_turn % len(self._chosen)

    def refuse(self, error: VqError) -> None:
        """Take nothing from now on: ``next_turn`` and ``for_key`` raise ``error``.

        A caller that looked the topic up before can then not append to a queue nobody empties.
        """
        self.refusal = error

    def refused(self) -> VqError:
        """Return what a caller is told after ``refuse``: an error of its own."""
        assert self.refusal is not None
        return type(self.refusal)(str(self.refusal))

    def next_turn(self) -> PartitionQueue:
        """Return the queue for the next message without a key.

        Raises:
            InvalidArgument: The partitioner chose a partition that there is not.
            VqError: See ``refuse``.
        """
        if self._partitioner is not None:
            return self.for_key(None)
        if self.refusal is not None:
            raise self.refused()
        chosen = self._chosen
        queue = chosen[self._turn % len(chosen)]
        self._turn += 1
        return queue

    def spread(self) -> tuple[int, int]:
        """Hand out what was taken in, in turns; return how many messages and bytes."""
        items = self.taken_in[:]
        del self.taken_in[: len(items)]  # callers append behind the slice at any time
        chosen = self._chosen
        count, queues = len(items), len(chosen)
        for number in range(min(count, queues)):
            queue = chosen[(self._turn + number) % queues]
            queue.pending += items[number::queues] if queues > 1 else items
        self._turn += count
        return count, bytes_of(items)

    def for_key(self, key: str | None) -> PartitionQueue:
        """Return the queue for a message with this key.

        Raises:
            InvalidArgument: The partitioner chose a partition that there is not.
            VqError: See ``refuse``.
        """
        if self.refusal is not None:
            raise self.refused()
        if self._partitioner is not None:
            number = self._partitioner.choose(key, len(self.queues), self._writable)
            if not 0 <= number < len(self.queues):
                raise InvalidArgument(
                    f"the partitioner chose partition {number} of {self.topic}, which has "
                    f"{len(self.queues)}, from 0 on"
                )
        else:
            number = key_partition(key or "", len(self.queues))
        return self.queues[number]
