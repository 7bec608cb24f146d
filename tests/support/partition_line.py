"""A producer's line in one partition, played case by case."""

import itertools
from types import SimpleNamespace
from typing import Any

from support.queues import QueueHost, meter_of

from vq import errors
from vq.client.config import ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.queue.batch import Batch
from vq.client.producer.queue.partition_queue import PartitionQueue
from vq.model import TopicPartition
from vq.store.records.record import decode_records

BACKOFF_S = 0.5


class Line:
    """A queue, its time, and what it told whoever counts the buffer."""

    def __init__(self, **settings: int | float) -> None:
        bounds: dict[str, Any] = {"retry_backoff_s": BACKOFF_S, "retry_backoff_max_s": 2}
        config = ProducerConfig(**{"batch_records": 2, **bounds, **settings})
        self.now = 100.0
        host = QueueHost(config)
        self.ended = host.ended
        clock: Any = SimpleNamespace(monotonic=lambda: self.now)
        self.meter = meter_of(clock)
        self.queue = PartitionQueue(TopicPartition("t", 3), host, self.meter)
        self._ids = itertools.count(1)

    def submit(self, *contents: bytes, within: float = 30.0) -> list[SendFuture]:
        futures = [
            SendFuture(content, None, None, self.now + within, appended_at=self.now)
            for content in contents
        ]
        self.queue.pending += futures
        return futures

    def send(self) -> list[Batch]:
        def take_ids(count: int) -> list[int]:
            return list(itertools.islice(self._ids, count))

        return list(iter(lambda: self.queue.next_to_send(self.now, take_ids), None))

    @property
    def idle(self) -> bool:
        return not (self.queue.pending or self.queue.in_flight or self.queue.owner)

    def refuse(self, batch: Batch, error: errors.VqError) -> None:
        self.queue.on_refused(batch, error, self.now)

    def answer(self, batch: Batch, error: errors.VqError) -> None:
        self.queue.apply_answer(batch, error, self.now)

    def cut(self, *batches: Batch) -> None:
        self.queue.on_unanswered(batches, self.now)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.queue.on_tick(self.now)


def numbers(batches: list[Batch]) -> list[tuple[int, int]]:
    """Epoch and sequence of batches."""
    return [(batch.stamp.producer_epoch, batch.stamp.sequence) for batch in batches]


def contents(batch: Batch) -> list[bytes]:
    return [record.payload for record in decode_records(batch.body, 0)]


def outcomes(futures: list[SendFuture]) -> list[str]:
    return [
        type(each.outcome).__name__ if each.outcome is not None else "pending" for each in futures
    ]


def waited(line: Line, content: bytes = b"x") -> BlockingSendFuture:
    future = BlockingSendFuture(content, None, None, line.now + 30)
    future.partition = line.queue.partition.partition
    future.leads = True
    line.queue.pending.append(future)
    return future
