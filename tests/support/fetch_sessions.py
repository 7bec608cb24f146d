"""Partitions that are read through fetch sessions, and brokers that answer as a test says."""

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

from vq import limits
from vq.client.broker_connections import ConnectFailures
from vq.client.consumer.fetch.fetch_sessions import Fetches
from vq.errors import ConnectionCut, VqError
from vq.message_filter import ALL
from vq.model import Address, TopicPartition
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import describe_error, encode_error
from vq.remoting.wire_pb2 import FetchRequest, FetchResponse, FetchResult

HERE, THERE = Address("b1", 1), Address("b2", 1)
KIB, MIB = limits.KIB, limits.MIB


class Connection:
    """Notes requests; the test answers them."""

    def __init__(self, address: Address = HERE) -> None:
        self.address = address
        self.requests: list[FetchRequest] = []
        self.waiting: list[Callable[[Frame | None], None]] = []
        self.closed = False
        self.refuse: VqError | None = None
        self.unflushed = 0

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> int:
        assert command == Command.FETCH
        if self.refuse is not None or self.closed:
            raise self.refuse or ConnectionCut()
        self.requests.append(FetchRequest.FromString(header))
        self.waiting.append(on_reply)
        self.unflushed += 1
        return len(self.requests)

    def flush(self) -> None:
        self.unflushed = 0

    @property
    def last(self) -> FetchRequest:
        return self.requests[-1]

    def answer(self, *results: FetchResult, body: bytes = b"") -> None:
        """Answer the request that has waited longest."""
        header = FetchResponse(results=results).SerializeToString()
        self.waiting.pop(0)(Frame(Command.FETCH, 0, 1, 0, header, body))

    def fail(self, error: VqError) -> None:
        status, header = encode_error(error)
        self.waiting.pop(0)(Frame(Command.FETCH, status, 1, 0, header, b""))

    def close(self) -> None:
        self.closed = True
        waiting, self.waiting = self.waiting, []
        for on_reply in waiting:
            on_reply(None)


class Cluster:
    """What fetches need of a client of the cluster."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.fetch_numbers = itertools.count(1)
        self.connections: dict[Address, Connection | None] = {
            HERE: Connection(HERE),
            THERE: Connection(THERE),
        }
        self.masters: dict[int, tuple[Address, int] | VqError] = {}
        self.listeners: list[Callable[[], None]] = []
        self.routes: object = object()
        self.lookups = 0
        self.unreachable: dict[Address, ConnectFailures] = {}

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        found = self.masters.get(partition.partition, (HERE, 3))
        if isinstance(found, VqError):
            raise found
        return found

    def live_connection(self, address: Address) -> Connection | None:
        self.lookups += 1
        return self.connections[address]

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def change(self) -> None:
        for listener in list(self.listeners):
            listener()


class Partition:
    """One that is read: asks when the test says so."""

    def __init__(self, world: "World", number: int, **fields: Any) -> None:
        self.world = world
        self.partition = TopicPartition("t", number)
        self.position = 0
        self.validate = False
        self.topic_id = "id-1"
        self.wanted = ALL
        self.asked = self.buffered = self.missing = 0
        self.went_on = 0
        self.behind = self.at_once = self.unsure = False
        self.last_epoch = 0
        self.took_bodies: list[bytes] = []
        self.errors: list[VqError] = []
        self.delays: list[VqError] = []
        vars(self).update(fields)
        world.fetches.join(self)

    def count(self) -> None:
        self.world.fetches.space.count(self)

    def ask(self, size: int = 1_000) -> None:
        self.asked = size
        self.count()
        self.world.fetches.ask(self)

    def go_on(self) -> None:
        self.went_on += 1
        if self.world.fetches.space.allowance(self) >= self.missing or (
            self.world.fetches.space.may_exceed(self)
        ):
            self.ask(self.missing)

    def took(self, result: FetchResult, body: bytes, *, again: bool = False) -> None:
        self.asked = 0
        self.took_bodies.append(body)
        self.count()

    def failed(self, error: VqError) -> None:
        self.asked = 0
        self.errors.append(error)
        self.count()

    def delayed(self, error: VqError, answered_at: float | None = None) -> None:
        self.delays.append(error)

    def leave(self) -> None:
        self.world.fetches.leave(self)


class World:
    def __init__(self, *, buffer_bytes: int = MIB) -> None:
        self.cluster = Cluster()
        cluster: Any = self.cluster
        self.fetches = Fetches(cluster, max_wait_s=5.0, buffer_bytes=buffer_bytes)

    @property
    def here(self) -> Connection:
        found = self.cluster.connections[HERE]
        assert found is not None
        return found

    @property
    def there(self) -> Connection:
        found = self.cluster.connections[THERE]
        assert found is not None
        return found

    def partitions(self, count: int) -> list[Partition]:
        return [Partition(self, number) for number in range(count)]


async def turn() -> None:
    """Let what was put off to the end of the turn happen."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def handles(request: FetchRequest) -> list[int]:
    return [item.handle for item in request.partitions]


def refusal(handle: int, error: VqError) -> FetchResult:
    result = FetchResult(handle=handle)
    describe_error(error, result)
    return result
