"""The queues of a topic, without a producer and its cluster."""

from typing import Any

from vq.client.config import ProducerConfig
from vq.client.producer.metrics import Meter
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Keys
from vq.client.producer.spread import Ring
from vq.client.producer.topic_queues import TopicQueues
from vq.model import TopicSettings

CONTENT_BYTES_MAX = 100


def queues_of(topic: str = "t", **options: Any) -> TopicQueues:
    """A topic of two partitions."""
    queues = TopicQueues(
        topic,
        "id",
        lambda partition: PartitionQueue(
            partition,
            lambda: 7,
            ProducerConfig(),
            lambda _: None,
            Meter(lambda: 0.0).topic("t"),
        ),
        keys=Keys.DIRECT,
        spread=lambda _: Ring(first=0),
        **options,
    )
    queues.update(TopicSettings(max_message_bytes=CONTENT_BYTES_MAX), 2, [0, 1])
    return queues
