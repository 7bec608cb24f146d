"""The queues of a topic, without a producer and its cluster."""

import contextvars
import itertools
from collections.abc import Callable
from typing import Any

from vq.client.config import ProducerConfig
from vq.client.producer.metrics import Meter, TopicMeter
from vq.client.producer.queue.batch import Ended
from vq.client.producer.queue.partition_queue import PartitionQueue
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.client.producer.spread.spread import Ring, Spread
from vq.clock import Clock, ManualClock
from vq.model import TopicPartition, TopicSettings

CONTENT_BYTES_MAX = 100


def ring(_: Callable[[int], bool]) -> Spread:
    """Round robin from partition 0 on."""
    return Ring(first=0)


def meter_of(clock: Clock | None = None) -> TopicMeter:
    return Meter(clock or ManualClock()).topic("t")


class QueueHost:
    """What queues ask of a producer; ``ended`` notes count and size of what has its outcome."""

    def __init__(
        self,
        config: ProducerConfig | None = None,
        *,
        spread: Callable[[Callable[[int], bool]], Spread] = ring,
        on_ended: Callable[[Ended], None] | None = None,
        **settings: Any,
    ) -> None:
        self.config = config or ProducerConfig(**settings)
        self.context = contextvars.Context()
        self.make_spread = spread
        self.ended: list[tuple[int, int]] = []
        self.on_ended = on_ended or self._note
        self.new_producer_id = itertools.count(7).__next__

    def _note(self, ended: Ended) -> None:
        self.ended.append((ended.count, ended.size))

    def why_waiting(self, _: TopicPartition) -> str:
        return ""

    def queue(self, partition: int = 3) -> PartitionQueue:
        return PartitionQueue(TopicPartition("t", partition), self, meter_of())

    def topic(self, topic: str = "t") -> TopicQueues:
        """A topic without partitions."""
        return TopicQueues(topic, "id", self, meter_of())


def queues_of(topic: str = "t", **settings: Any) -> TopicQueues:
    """A topic of two partitions."""
    queues = QueueHost(**settings).topic(topic)
    queues.update(TopicSettings(max_message_bytes=CONTENT_BYTES_MAX), 2, [0, 1])
    return queues
