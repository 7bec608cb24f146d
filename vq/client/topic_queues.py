"""A topic as one producer sees it: a queue per partition, and whose turn it is."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from vq.client.partition_queue import PartitionQueue
from vq.client.partitioner import Partitioner, key_partition
from vq.errors import InvalidArgument, VqError
from vq.model import TopicPartition, TopicSettings


class TopicQueues:
    """A published topic. ``turns`` and ``for_key`` are used under the producer's lock.

    Attributes:
        topic_id: Which topic of that name; another id is another topic, made after a deletion.
        turns: Yields for ever the queue of the next message without a key.
        message_bytes_max: Largest payload the topic takes.
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
        self.turns: Iterator[PartitionQueue] = iter(())
        self._writable: Sequence[int] = ()
        self._make_queue = make_queue
        self._partitioner = partitioner
        self._first_turn = first_turn
        self._refusal: VqError | None = None

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
        if self._refusal is not None:
            return
        if self._partitioner is None:
            # itertools instead of a counter: a turn is taken for every message.
            chosen = [self.queues[number] for number in writable] or self.queues
            start = self._first_turn % len(chosen)
            self.turns = itertools.cycle(chosen[start:] + chosen[:start])
        else:
            self.turns = iter(lambda: self.for_key(None), None)

    def refuse(self, error: VqError) -> None:
        """Have ``turns`` and ``for_key`` raise from now on; the producer's lock is held.

        A caller that looked the topic up before can then not append to a queue nobody empties.
        """
        self._refusal = error
        self.turns = iter(self._refuse, None)

    def _refuse(self) -> PartitionQueue:
        assert self._refusal is not None
        raise type(self._refusal)(str(self._refusal))

    def for_key(self, key: str | None) -> PartitionQueue:
        """Return the queue for a message with this key.

        Raises:
            InvalidArgument: The partitioner chose a partition that there is not.
            VqError: See ``refuse``.
        """
        if self._refusal is not None:
            self._refuse()
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
