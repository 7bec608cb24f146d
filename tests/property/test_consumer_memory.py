"""A consumer's memory through random histories: its bound holds, and everything is delivered.

Real: memory, sessions, fetchers, decoding, deliveries. Played: the broker, and who consumes.
"""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vq.backoff import Backoff
from vq.client.config import ConsumerConfig, MessageFactoryConfig
from vq.client.consumer.deliver.delivery import DeliveryHooks, Executor
from vq.client.consumer.deliver.failures import Failures
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.fetch import fetch_sessions, fetcher
from vq.client.consumer.fetch.fetch_sessions import Fetches
from vq.client.consumer.fetch.fetcher import PartitionFetcher
from vq.clock import SystemClock
from vq.errors import ConnectionCut, NotMaster, OffsetOutOfRange, Unreachable, VqError
from vq.limits import KIB
from vq.message_filter import ALL
from vq.model import Address, Message, PartitionPlacement, Span, TopicPartition
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import describe_error
from vq.remoting.wire_pb2 import FetchRequest, FetchResponse, FetchResult, GetResponse
from vq.store.records.record import encode_record

BOUND = 64 * KIB
RECORD_MAX = 40 * KIB
#: What a flipped bit may add to the length of a record.
CLAIMED_MORE = 65 * KIB
PARTITIONS = 24
HERE = Address("b1", 1)
DEADLINE_S = 60.0


class Broker:
    """Has the logs; answers when the history says so."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.fetch_numbers = itertools.count(1)
        placed = PartitionPlacement("t", 0, (Span("b1", 0),))
        self.routes = SimpleNamespace(
            topics={},
            masters={},
            topic=lambda _: SimpleNamespace(id=""),
            placement=lambda _: placed,
        )
        self.clock = SystemClock()
        self.config = MessageFactoryConfig()
        self.unreachable: dict[Address, object] = {}
        self.logs: list[bytes] = []
        self.damage = 0.0  # how often an answer has a flipped bit
        self.refusals = 0.0
        self.connection: Connection | None = Connection(self)
        self.listeners: list[Callable[[], None]] = []

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        return HERE, 3

    def live_connection(self, address: Address) -> "Connection | None":
        return self.connection

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def connect(self) -> "Connection":
        """Return the connection, a new one after a cut."""
        if self.connection is None:
            self.connection = Connection(self)
            for listener in self.listeners:
                listener()
        return self.connection

    def refresh(self, topic: str, error: object = None) -> None:
        """Routes do not change."""

    async def track(self, topic: str) -> None:
        """They are known."""

    def read_copies(self) -> None:
        """There are none."""

    def read(self, partition: int, offset: int, size: int) -> bytes:
        body = bytearray(self.logs[partition][offset : offset + size])
        if body and self.rng.random() < self.damage:
            body[self.rng.randrange(len(body))] ^= 1
        return bytes(body)

    async def request(
        self, address: Address, command: int, message: Any, **how: Any
    ) -> tuple[Any, bytes]:
        await asyncio.sleep(0)
        if command != Command.GET or self.rng.random() < self.refusals:
            raise Unreachable("not now")
        body = self.read(message.partition, message.offset, message.max_bytes)
        end = len(self.logs[message.partition])
        return GetResponse(offset=message.offset, high_watermark=end), body


class Connection:
    """One connection, and what its session waits for."""

    def __init__(self, broker: Broker) -> None:
        self.address = HERE
        self.closed = False
        self.broker = broker
        self.partitions: dict[int, int] = {}
        self.asked: dict[int, tuple[int, int]] = {}
        self.waiting: deque[Callable[[Frame | None], None]] = deque()

    def flush(self) -> None:
        """What was sent is on its way already."""

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> int:
        if self.closed:
            raise ConnectionCut
        request = FetchRequest.FromString(header)
        if request.sequence == 0 or request.close:
            self.partitions, self.asked = {}, {}
        for handle in request.removed:
            self.partitions.pop(handle, None)
            self.asked.pop(handle, None)
        for item in request.partitions:
            if item.topic:
                self.partitions[item.handle] = item.partition
            self.asked[item.handle] = item.offset, item.max_bytes
        self.waiting.append(on_reply)
        return 1

    def answer(self) -> None:
        """Answer the oldest request with some of what is asked for."""
        if not self.waiting:
            return
        broker, results, parts = self.broker, [], []
        ready = [
            handle
            for handle, (offset, _) in self.asked.items()
            if offset < len(broker.logs[self.partitions[handle]])
        ]
        for handle in broker.rng.sample(ready, broker.rng.randrange(len(ready) + 1)):
            offset, size = self.asked.pop(handle)
            result = FetchResult(handle=handle, offset=offset)
            if broker.rng.random() < broker.refusals:
                error = broker.rng.choice([NotMaster("no"), OffsetOutOfRange("no")])
                describe_error(error, result)
                del self.partitions[handle]
            else:
                parts.append(broker.read(self.partitions[handle], offset, size))
                result.size = len(parts[-1])
                result.high_watermark = len(broker.logs[self.partitions[handle]])
            results.append(result)
        header = FetchResponse(results=results).SerializeToString()
        self.waiting.popleft()(Frame(Command.FETCH, 0, 1, 0, header, b"".join(parts)))

    def close(self) -> None:
        self.closed = True
        while self.waiting:
            self.waiting.popleft()(None)


class Nobody(Executor):
    """A test takes the messages."""

    def put(self, delivery: InTurn) -> None:
        """See ``Executor.put``."""


async def _read_again(_: int, __: VqError) -> None:
    """Pass over nothing."""


class Held:
    """One partition as the consumer holds it, from a position on."""

    def __init__(self, fetches: Fetches, number: int, position: int, length: int) -> None:
        self.partition = TopicPartition("t", number)
        self.length = length
        loop = asyncio.get_running_loop()
        hooks = DeliveryHooks(
            consumed=lambda size, rest: self.fetcher.finished(size, rest),
            stuck=lambda error: None,
            went_on=lambda: None,
            fetch_again=lambda offset: loop.call_soon(self.fetcher.fetch_again, offset),
            stop=lambda error: None,
            owes=lambda: None,
        )
        self.delivery = InTurn(
            self.partition,
            position,
            None,
            Failures(
                self.partition, "g", PolicyInForce(ConsumerConfig()), random.Random(0), lambda: 0
            ),
            executor=Nobody(),
            permit=Permit(loop.time),
            hooks=hooks,
            most=1_000_000,
        )
        self.fetcher = PartitionFetcher(
            fetches,
            self.partition,
            position,
            length=length,
            prefetch_bytes=BOUND,
            wanted=ALL,
            on_chunk=self.delivery.add,
            on_error=lambda error: None,
            on_new_epoch=lambda: None,
            on_bad_record=_read_again,
        )
        fetches.join(self.fetcher)
        self.fetcher._joined = True

    def consume(self) -> Message | None:
        if not self.delivery.more():
            return None
        window = self.delivery.window
        message = window.messages[window.finished]
        window.finish(window.finished)
        self.delivery.handled()
        return message

    def stop(self) -> None:
        self.fetcher.stop()
        self.delivery.stop(lambda: None)

    @property
    def memory(self) -> int:
        """Bytes that are here or may come; of copies made for delivery one counts."""
        decoder = self.delivery._decoder
        at_hand = len(decoder._data if self.delivery._open is not None else decoder._rest)
        queued = sum(len(chunk.body) for chunk in self.delivery._chunks)
        return self.fetcher.asked + at_hand + queued


class History:
    """A consumer of many partitions, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = Broker(self.rng)
        cluster: Any = self.broker
        self.broker.rng = self.rng
        self.fetches = Fetches(cluster, max_wait_s=5.0, buffer_bytes=BOUND)
        self.expected: list[int] = []
        self.got: list[set[int]] = [set() for _ in range(PARTITIONS)]
        for _ in range(PARTITIONS):
            largest = self.rng.choice([200, 2 * KIB, RECORD_MAX])
            sizes = [self.rng.randrange(largest // 2, largest - 64) for _ in range(12)]
            records = [encode_record(n + 1, bytes(size)) for n, size in enumerate(sizes)]
            self.broker.logs.append(b"".join(records))
            self.expected.append(len(records))
        self.held: dict[int, Held] = {}
        self.most = 0
        self.is_damaged = False
        self.used_permit = False

    def begin(self) -> None:
        """All join before any asks: what the first may have depends on how many there are."""
        for number in range(PARTITIONS):
            self.held[number] = Held(
                self.fetches, number, 0, self.rng.choice([100, 2 * KIB, 20 * KIB, BOUND])
            )
        for held in self.held.values():
            held.fetcher.start()

    def check(self) -> None:
        used = sum(held.memory for held in self.held.values())
        grower = self.fetches.space.grower
        self.used_permit = self.used_permit or grower is not None
        self.most = max(self.most, used)
        one_record = RECORD_MAX + (CLAIMED_MORE if self.is_damaged else 0)
        assert used <= BOUND + (one_record if grower is not None else 0)

    async def step(self, trouble: bool) -> None:
        rng, broker = self.rng, self.broker
        what = rng.random()
        if not trouble or what < 0.6:
            broker.connect().answer()
        elif what < 0.63:
            if broker.connection is not None:
                broker.connection.close()
            broker.connection = None
        elif what < 0.68 and self.held:
            held = self.held.pop(rng.choice(list(self.held)))
            held.stop()
            if rng.random() < 0.95:  # another member may have had it meanwhile
                number = held.partition.partition
                again = Held(self.fetches, number, held.delivery.position, held.length)
                self.held[number] = again
                again.fetcher.start()
        self.check()
        for held in rng.sample(list(self.held.values()), len(self.held) // 2):
            for _ in range(rng.randrange(3)):
                message = held.consume()
                if message is not None:
                    self.got[held.partition.partition].add(message.offset)
        await asyncio.sleep(0.0005 if broker.connection is None else 0)
        self.check()

    def is_done(self) -> bool:
        return all(len(self.got[number]) == self.expected[number] for number in self.held)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Backoff(first_s=0.0005, most_s=0.001, jitter=0.5)
    for module in (fetch_sessions, fetcher):
        monkeypatch.setattr(module, "BACKOFF", quick)
    monkeypatch.setattr(fetcher, "AGAIN", quick)
    monkeypatch.setattr(fetcher, "RECORD_BYTES_MAX", RECORD_MAX)


@pytest.mark.parametrize("seed", range(12))
async def test_the_bound_holds_and_everything_is_delivered(seed: int) -> None:
    """Whatever fails, is released, or is cut in the middle of a record."""
    print(f"seed={seed}")
    history = History(seed)
    history.begin()
    history.broker.damage = history.rng.choice([0.0, 0.02, 0.1])
    history.is_damaged = history.broker.damage > 0
    history.broker.refusals = history.rng.choice([0.0, 0.05, 0.2])
    for _ in range(history.rng.choice([0, 100, 400])):
        await history.step(trouble=True)
    history.broker.damage = history.broker.refusals = 0.0
    async with asyncio.timeout(DEADLINE_S):
        while not history.is_done():
            await history.step(trouble=False)
    for held in history.held.values():
        held.stop()
    fetches = history.fetches
    assert (fetches.space.grower, fetches.space.queue, fetches.space.extra_sum) == (None, {}, 0)


async def test_partitions_that_all_hold_half_a_record_go_on_one_after_the_other() -> None:
    """And the permit to go beyond the bound was needed for it."""
    history = History(1)
    records = [encode_record(n + 1, bytes(RECORD_MAX - 64)) for n in range(3)]
    history.broker.logs = [b"".join(records)] * PARTITIONS
    history.expected = [3] * PARTITIONS
    history.begin()
    async with asyncio.timeout(DEADLINE_S):
        while not history.is_done():
            await history.step(trouble=False)
    assert history.used_permit
    assert history.most > BOUND - RECORD_MAX
    for held in history.held.values():
        held.stop()
