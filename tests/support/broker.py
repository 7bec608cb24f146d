"""A whole broker in memory, and a client that awaits replies, for tests of the broker alone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import google_crc32c
import pytest

from vq.broker.base.config import ConnectionLimits
from vq.broker.base.runner import InlineRunner, Lane, Runner
from vq.broker.connections.server import Server
from vq.broker.node import BrokerNode
from vq.broker.partition.context import LaterCall
from vq.coordination.brokers.registry import read_state
from vq.coordination.brokers.secret import read_secret
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import InvalidState
from vq.model import ARCHIVE_PLACES, Address
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import ClientConnection, Closing, Opened, Reply
from vq.remoting.format import Command
from vq.remoting.membership import Exchange, Principal, Side, is_proof, proof
from vq.remoting.messages import decode_reply, encode_header
from vq.remoting.transport import Network
from vq.store.commit.flusher import FlushRunner, LoopFlusher
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log_config import LogConfig
from vq.store.records.record import encode_record
from vq.testing.machines import DATA as DATA
from vq.testing.machines import Machines, host_of
from vq.testing.waiting import WAIT_S

T = TypeVar("T")

#: Where archives may lie: places of tests, too.
PLACES = (*ARCHIVE_PLACES, "failing://", "buckets://", "memory://")


class HeldFlusher(LoopFlusher):
    """A flusher that can hold flushes back, so that a test can examine the waiting requests."""

    def __init__(self, runner: FlushRunner) -> None:
        super().__init__(runner, delay_s=0)
        self.held = False
        self.submissions = 0
        self._submitted: list[Any] = []

    def submit(self, tickets: Sequence[Any]) -> None:
        """Flush at once, or when ``release`` is called."""
        self.submissions += 1
        if self.held:
            self._submitted.append(tickets)
        else:
            super().submit(tickets)

    def release_one(self) -> None:
        """Flush the present submission, and hold the next one back again."""
        (tickets,) = self._submitted
        self._submitted.clear()
        super().submit(tickets)

    def release(self) -> None:
        """Flush the submissions held back, and hold no more back."""
        self.held = False
        submitted, self._submitted = self._submitted, []
        for tickets in submitted:
            super().submit(tickets)


class HeldRunner(InlineRunner):
    """A runner that can hold calls back, so that a test can examine the state meanwhile."""

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._free.set()
        self.waiting = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold calls back inside the block."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS, place: str = "") -> T:
        """See ``Runner.run``."""
        self.waiting += 1
        try:
            await self._free.wait()
        finally:
            self.waiting -= 1
        return await super().run(call, lane, place)


@dataclass
class MemoryCluster(Machines):
    """A cluster in memory whose flushes and blocking calls a test can hold back."""

    flushers: dict[str, HeldFlusher] = field(default_factory=dict)
    runners: dict[str, HeldRunner] = field(default_factory=dict)

    def node(
        self,
        group: str = "b1",
        node: str = "n1",
        *,
        log_config: LogConfig | None = None,
        runner: Runner | None = None,
        **settings: Any,
    ) -> BrokerNode:
        """See ``Machines.node``; its disk keeps each operation."""
        self.disks.setdefault(host_of(group, node), MemoryDisk())
        wanted = {"archive_places": PLACES, **settings}
        return super().node(group, node, log_config=log_config, runner=runner, **wanted)

    def runner_of(self, host: str) -> HeldRunner:
        """See ``Machines.runner_of``."""
        self.runners[host] = HeldRunner()
        return self.runners[host]

    def flusher_of(self, host: str) -> HeldFlusher:
        """See ``Machines.flusher_of``."""
        self.flushers[host] = HeldFlusher(FlushRunner(self.ensemble.clock))
        return self.flushers[host]

    async def group_state(self) -> GroupState:
        """Return the record of group b1, which has a master."""
        async with self.admin() as coordinator:
            state = await read_state(coordinator, "b1")
        assert state is not None
        return state

    async def until_in_sync(self, *names: str) -> None:
        """Return once the record of group b1 names just these nodes."""
        async with self.admin() as coordinator, asyncio.timeout(WAIT_S):
            while True:
                state = await read_state(coordinator, "b1")
                if state is not None and {*state.insync} == {*names}:
                    return
                await asyncio.sleep(0.02)

    async def prove(self, client: "Client", group: str = "", node: str = "") -> "Client":
        """Have a connection prove that it is a node's, or that of a command; return it."""
        async with self.admin() as coordinator:
            await client.prove(await read_secret(coordinator), Principal(group, node))
        return client


@asynccontextmanager
async def memory_cluster() -> AsyncIterator[MemoryCluster]:
    """Provide a cluster in memory whose nodes are stopped at the end."""
    cluster = MemoryCluster()
    try:
        yield cluster
    finally:
        for flusher in cluster.flushers.values():
            flusher.release()
        await cluster.stop()


class Client(asyncio.Protocol):
    """One connection; every call waits for its reply and raises the error it carries."""

    def __init__(self) -> None:
        self.connection = ClientConnection()
        self.transport: Any = None
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.closing: Exception | None = None
        self.hello: Any = None

    @classmethod
    async def connect(cls, network: Network, address: Address, client_id: str = "test") -> "Client":
        """Return a client that said HELLO."""
        _, client = await network.connect(address, cls)
        client.transport.writelines(client.connection.hello(client_id=client_id))
        async with asyncio.timeout(WAIT_S):
            await client.opened.wait()
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        for event in self.connection.receive_data(data):
            if isinstance(event, Opened):
                self.hello = event.hello
                self.opened.set()
            elif isinstance(event, Reply):
                if not event.context.done():
                    event.context.set_result(event.frame)
            elif isinstance(event, Closing):
                self.closing = event.error

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.closed.set()
        for future in self.connection.abandon():
            if not future.done():
                future.set_exception(self.closing or ConnectionError("connection lost"))

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()

    def send(self, command: Command, message: Any, body: bytes = b"") -> "asyncio.Future[Any]":
        """Send a request; the future gets the reply's frame."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        header = encode_header(command, message)
        _, buffers = self.connection.request(command, header, body, context=future)
        self.transport.writelines(buffers)
        return future

    async def call(self, command: Command, message: Any, body: bytes = b"") -> tuple[Any, bytes]:
        """Send a request; return header and body of its reply."""
        async with asyncio.timeout(WAIT_S):
            frame = await self.send(command, message, body)
        return decode_reply(frame), frame.body

    async def prove(self, secret: bytes, asker: Principal, nonce: bytes = b"n" * 32) -> None:
        """Prove to be a member of the cluster."""
        first = wire.ProveRequest(group=asker.group, node=asker.node, nonce=nonce)
        challenge, _ = await self.call(Command.PROVE, first)
        broker = Principal(self.hello.group, self.hello.node)
        exchange = Exchange(self.hello.cluster, asker, broker, nonce, challenge.nonce)
        given = proof(secret, Side.ASKER, exchange)
        answer, _ = await self.call(Command.PROVE, wire.ProveRequest(proof=given))
        assert is_proof(answer.proof, secret, Side.BROKER, exchange)

    def send_put(
        self, topic: str, partition: int, records: Sequence[bytes], **fields: Any
    ) -> "asyncio.Future[Any]":
        """Send a PUT without waiting."""
        body = b"".join(records)
        values = {"record_count": len(records), "crc": google_crc32c.value(body), **fields}
        request = wire.PutRequest(topic=topic, partition=partition, **values)
        return self.send(Command.PUT, request, body)

    async def put(self, topic: str, partition: int, records: Sequence[bytes], **fields: Any) -> Any:
        """PUT a batch of encoded records; returns the response header."""
        async with asyncio.timeout(WAIT_S):
            return decode_reply(await self.send_put(topic, partition, records, **fields))

    def send_get(
        self, topic: str, partition: int, offset: int, **fields: Any
    ) -> "asyncio.Future[Any]":
        """Send a GET without waiting."""
        values = {"max_bytes": 1 << 20, **fields}
        request = wire.GetRequest(topic=topic, partition=partition, offset=offset, **values)
        return self.send(Command.GET, request)

    async def get(
        self, topic: str, partition: int, offset: int, **fields: Any
    ) -> tuple[Any, bytes]:
        """GET bytes; returns response header and body."""
        async with asyncio.timeout(WAIT_S):
            frame = await self.send_get(topic, partition, offset, **fields)
        return decode_reply(frame), frame.body

    def send_fetch(
        self, sequence: int, *partitions: wire.FetchPartition, **fields: Any
    ) -> "asyncio.Future[Any]":
        """Send a FETCH without waiting, by default for session 1."""
        values = {"session": 1, "max_wait_ms": 20_000, **fields}
        request = wire.FetchRequest(sequence=sequence, partitions=partitions, **values)
        return self.send(Command.FETCH, request)

    async def fetch(
        self, sequence: int, *partitions: wire.FetchPartition, **fields: Any
    ) -> dict[int, tuple[Any, bytes]]:
        """FETCH; returns result and bytes of each handle answered."""
        async with asyncio.timeout(WAIT_S):
            return fetched(await self.send_fetch(sequence, *partitions, **fields))

    async def offsets(self, topic: str, partition: int, **fields: Any) -> Any:
        """OFFSETS; returns the response header."""
        request = wire.OffsetsRequest(topic=topic, partition=partition, **fields)
        return (await self.call(Command.OFFSETS, request))[0]

    async def status(self, *, with_partitions: bool = False) -> Any:
        """STATUS; returns the response header."""
        request = wire.StatusRequest(with_partitions=with_partitions)
        return (await self.call(Command.STATUS, request))[0]


async def strict(cluster: MemoryCluster, **limits: Any) -> tuple[BrokerNode, Server]:
    """Start a node with given bounds of connections; return it and its server."""
    node = await cluster.start(connections=ConnectionLimits(sweep_interval_s=0.01, **limits))
    return node, node.parts.server


def fetched(frame: Any) -> dict[int, tuple[Any, bytes]]:
    """Result and bytes of each handle in an answer to FETCH, in its order."""
    found, position = {}, 0
    for result in decode_reply(frame).results:  # type: ignore[attr-defined]
        assert result.handle not in found
        found[result.handle] = result, frame.body[position : position + result.size]
        position += result.size
    assert position == len(frame.body)
    return found


def has_parts(node: BrokerNode) -> bool:
    """Whether a node that starts has its parts: its data directories are open."""
    try:
        return node.parts is not None
    except InvalidState:
        return False


def noted_timers(node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> list[LaterCall]:
    """Return a list to which the timers of the node's requests are added from now on."""
    context, timers = node.parts.context, list[LaterCall]()
    call_later = context.call_later

    def note(delay_s: float, then: Callable[[], None]) -> LaterCall:
        timer = call_later(delay_s, then)
        timers.extend([timer] * (delay_s > 0))
        return timer

    monkeypatch.setattr(context, "call_later", note)
    return timers


def message(payload: bytes, id: int = 1, tag: str | None = None) -> bytes:
    """Return one encoded record."""
    return encode_record(id, payload, tag.encode() if tag is not None else None)
