"""``MessageFactoryConfig(local="dir")``: producers and consumers of queues of this process.

Each topic is a ``LocalQueue`` in a directory of its name. Code that sends and receives moves to a
cluster by another configuration; what only a cluster has is refused, with its name.
"""

import contextlib
import threading
from pathlib import Path

from vq.client.config import ConsumerConfig, ProducerConfig
from vq.local.factory.consumer import LocalMessageConsumer
from vq.local.factory.producer import LocalMessageProducer
from vq.local.factory.queues import LocalQueues


class LocalFactory:
    """Producers and consumers of the queues below one directory.

    Args:
        directory: Has a directory for each topic.

    Attributes:
        queues: Those queues.
    """

    def __init__(self, directory: str | Path) -> None:
        self.queues = LocalQueues(directory)
        self._lock = threading.Lock()
        self._consumers: list[LocalMessageConsumer] = []

    def producer(self, config: ProducerConfig) -> LocalMessageProducer:
        """Return a producer.

        Raises:
            InvalidArgument: A setting needs a cluster.
        """
        return LocalMessageProducer(self.queues, config)

    def consumer(self, config: ConsumerConfig) -> LocalMessageConsumer:
        """Return a consumer.

        Raises:
            InvalidArgument: A setting needs a cluster.
        """
        consumer = LocalMessageConsumer(self.queues, config)
        with self._lock:
            self._consumers.append(consumer)
        return consumer

    def put_down(self) -> None:
        """Give to others what consumers have in hand of ``get_many``: its handling failed."""
        for consumer in list(self._consumers):
            consumer.put_down()

    def shutdown(self) -> None:
        """Close all consumers, then all queues. May be called again.

        In the child of a fork it does nothing.

        Raises:
            InvalidState: A listener called it, which would wait for itself. All goes on.
        """
        if self.queues.forked:
            return
        for consumer in list(self._consumers):
            consumer.check_outside()
        queues = self.queues.refuse()
        with self._lock:
            consumers, self._consumers = self._consumers, []
        with contextlib.ExitStack() as last_first:  # if a step fails, the others are done
            for queue in queues:
                last_first.callback(queue.close)
            for consumer in consumers:
                last_first.callback(consumer.close)
