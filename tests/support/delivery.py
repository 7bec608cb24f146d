"""What a delivery is given, the listeners that it calls, and the calls of its hooks."""

import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.by_mode import delivery_for
from vq.client.consumer.deliver.delivery import DeliveryHooks, Executor
from vq.client.consumer.deliver.giving_up import Copied, FailedTries, Spent, calling
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.workers import AnyDelivery, Workers
from vq.client.reading.chunk import NO_REST, Chunk, Rest
from vq.coordination.tree.values.group_terms import OnFailure
from vq.errors import VqError
from vq.model import Key, Message, TopicPartition
from vq.store.records.compression import compress
from vq.store.records.format import COMPRESSION_ZLIB
from vq.store.records.record import Properties, encode_properties, encode_record
from vq.testing.waiting import block_until


class Told:
    """Hooks that record their calls, from any thread."""

    def __init__(self) -> None:
        self.consumed = 0
        self.rest = NO_REST
        self.errors: list[VqError] = []
        self.went_on = 0
        self.again: list[int] = []
        self.stops: list[VqError] = []
        self.owes = 0
        self.hooks = DeliveryHooks(
            consumed=self._consumed,
            stuck=self.errors.append,
            went_on=self._went_on,
            fetch_again=self.again.append,
            stop=self.stops.append,
            owes=self._owes,
        )

    def _consumed(self, size: int, rest: Rest) -> None:
        self.consumed += size
        self.rest = rest

    def _owes(self) -> None:
        self.owes += 1

    def _went_on(self) -> None:
        self.went_on += 1


def endless() -> Permit:
    """Return a permit that never lapses by itself."""
    permit = Permit(time.monotonic)
    permit.until = math.inf
    return permit


class NotedWorkers(Workers):
    """Threads that call listeners; which partitions they left for a pause, and how long."""

    def __init__(self, count: int = 1) -> None:
        self.pauses: list[tuple[AnyDelivery, float]] = []
        super().__init__(count, name="test")

    def put_later(
        self, delivery: AnyDelivery, pause_s: float, message: Message | None = None
    ) -> None:
        super().put_later(delivery, pause_s, message)
        self.pauses.append((delivery, pause_s))

    def has_left(self, delivery: AnyDelivery) -> bool:
        return any(each is delivery for each, _ in self.pauses)


class Partition:
    """A line of chunks of one partition; message contents are numbers from 0.

    Attributes:
        copied: Messages that were skipped.
    """

    def __init__(
        self,
        workers: Executor,
        listener: Callable[[Any], Any],
        number: int = 0,
        *,
        owed: int = 0,
        **settings: Any,
    ) -> None:
        self.offset = 0
        self.count = 0
        self.told = Told()
        self.permit = endless()
        self.now_ms = 1_000
        self.stopped = threading.Event()
        config = ConsumerConfig(
            **{"group": "g", "retry_backoff": (0.001, 30.0), "max_attempts": 3, **settings}
        )
        policy = PolicyInForce(config)
        self.copied: list[Spent] = []
        if policy.now.on_failure == OnFailure.SKIP:
            listener = calling(listener, FailedTries(policy, lambda: 1_000), self._copy)
        self.delivery: Any = delivery_for(
            TopicPartition("t", number),
            0,
            listener,
            config,
            policy,
            random.Random(number),
            lambda: self.now_ms,
            hooks=self.told.hooks,
            executor=workers,
            permit=self.permit,
            owed=owed,
        )

    def _copy(self, spent: Sequence[Spent]) -> Copied:
        self.copied += spent
        return len(spent), None

    @property
    def consumed(self) -> int:
        return self.told.consumed

    def chunk(
        self, count: int, *, picked: bool = False, gap: int = 0, keys: Sequence[Key | None] = ()
    ) -> Chunk:
        """The next ``count`` messages; with ``picked`` as a filtered answer, ``gap`` bytes long.

        They have ``keys`` in turn, or none.
        """
        begin, offsets, body = self.offset, [], b""
        for number in range(count):
            key = keys[number % len(keys)] if keys else None
            properties = None if key is None else encode_properties(Properties(key))
            record = encode_record(self.count + 1, b"%d" % self.count, None, properties)
            offsets.append(self.offset)
            self.offset += len(record)
            self.count += 1
            body += record
        self.offset += gap
        return Chunk(begin, self.offset, body, offsets if picked else None)

    def add(self, count: int, **how: Any) -> Chunk:
        chunk = self.chunk(count, **how)
        self.delivery.add(chunk)
        return chunk

    def stop(self) -> None:
        self.delivery.stop(self.stopped.set)

    def commit(self) -> None:
        """Have what is handled now known as committed."""
        self.delivery.committed(self.delivery.count_of(self.delivery.progress()))

    def commit_until(self, handled: int) -> None:
        """Commit whenever it is asked for, until so many messages are handled."""

        def is_reached() -> bool:
            if self.told.owes:
                self.told.owes = 0
                self.commit()
            return bool(self.delivery.delivered == handled)

        block_until(is_reached)


class Listener:
    """Notes what it was called with, and by which thread; raises what it is told to."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.threads: dict[int, set[int]] = defaultdict(set)
        self.fail: Callable[[int, int], BaseException | None] = lambda content, nth: None

    def __call__(self, message: Message) -> None:
        content = int(message.content)
        self.calls.append(content)
        self.threads[message.partition].add(threading.get_ident())
        error = self.fail(content, self.calls.count(content))
        if error is not None:
            raise error


def expanding(contents: list[bytes]) -> Chunk:
    """A chunk of compressed messages."""
    body = b"".join(
        encode_record(number, compress(content, COMPRESSION_ZLIB), None, None, COMPRESSION_ZLIB)
        for number, content in enumerate(contents, 1)
    )
    return Chunk(0, len(body), body, None)
