"""Client works of the benchmark that read; others are ``vq.cli.bench.workload``'s.

Same form: plain values in, plain values out, ``ready`` called when set up.
"""

import asyncio
import itertools
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import uvloop

import vq
from bench.contents import orders
from vq.cli.bench.workload import (
    Audit,
    Ready,
    WorkFailed,
    receive,
)
from vq.model import Address
from vq.remoting.broker_connection import BrokerConnection, connect
from vq.remoting.format import (
    LENGTH_BYTES,
    PREFIX,
    PREFIX_BYTES,
    VERSION_MAX,
    VERSION_MIN,
    Command,
)
from vq.remoting.frames import encode_frame
from vq.remoting.transport import TcpNetwork
from vq.remoting.wire_pb2 import GetRequest, GetResponse, HelloRequest
from vq.security.tls import TlsContexts
from vq.store.records.record import decode_into

_READ_BYTES: Final = 1 << 20
_DEPTH: Final = 2
_SPAN_BYTES: Final = 8 << 20
_HOLD_MS: Final = 15_000
_SHARE_KEPT_S: Final = 1.0


# Raw bytes ------------------------------------------------------------------------------------
class RawReader:
    """A blocking socket that fetches ranges of a partition without decoding records.

    Like the baseline's client, it costs little itself, so that it measures the broker and the wire.
    """

    def __init__(self, address: Address, cluster: str, topic: str, depth: int = _DEPTH) -> None:
        """Connect. With more than one request under way, replies must come in order.

        They do while the blocks are in memory; a read that waits for the disk is overtaken.
        """
        self._topic = topic
        self._depth = depth
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (files := vq.MessageFactoryConfig().tls) is not None:
            context = TlsContexts(files).client()
            self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        hello = HelloRequest(
            version_min=VERSION_MIN, version_max=VERSION_MAX, client_id="bench", cluster=cluster
        )
        self._asked = self._received = 0
        self._head = bytearray(1 << 16)
        self._send(Command.HELLO, hello.SerializeToString())
        self._receive(memoryview(bytearray(1 << 16)))

    def read(self, target: memoryview, start: int) -> None:
        """Fill ``target`` with the bytes from ``start`` on, with ``depth`` requests in flight."""
        size = len(target)
        wanted = deque((at, min(_READ_BYTES, size - at)) for at in range(0, size, _READ_BYTES))
        asked: deque[tuple[int, int]] = deque()
        while wanted or asked:
            while wanted and len(asked) < self._depth:
                at, length = wanted.popleft()
                asked.append((at, length))
                self._ask(start + at, length)
            at, length = asked.popleft()
            got = self._receive(target[at : at + length])
            if got == 0:
                raise WorkFailed(f"no bytes at offset {start + at}")
            if got < length:  # the end of a block file
                wanted.appendleft((at + got, length - got))

    def _ask(self, offset: int, length: int) -> None:
        header = GetRequest(topic=self._topic, partition=0, offset=offset, max_bytes=length)
        self._send(Command.GET, header.SerializeToString())

    def _send(self, command: Command, header: bytes) -> None:
        self._asked += 1
        self._socket.sendall(encode_frame(command, 0, self._asked, 0, header))

    def _receive(self, target: memoryview) -> int:
        """Receive one reply and put its body into ``target``; return the body's size."""
        head = memoryview(self._head)
        self._fill(head[:PREFIX_BYTES])
        length, _, _, _, status, correlation_id, header_bytes = PREFIX.unpack(head[:PREFIX_BYTES])
        self._fill(head[:header_bytes])
        self._received += 1
        if status or correlation_id != self._received:
            raise WorkFailed(
                f"status {status} for request {correlation_id}, {self._received} was next: "
                f"{bytes(head[:header_bytes])!r}"
            )
        body: int = length + LENGTH_BYTES - PREFIX_BYTES - header_bytes
        self._fill(target[:body])
        return body

    def _fill(self, target: memoryview) -> None:
        while len(target):
            got = self._socket.recv_into(target)
            if not got:
                raise WorkFailed("the broker closed the connection")
            target = target[got:]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def raw_fetch(
    ready: Ready,
    *,
    client: dict[str, Any],
    address: str,
    topic: str,
    passes: int,
    size: int,
    sent: dict[str, int],
) -> dict[str, Any]:
    """Fetch the whole partition ``passes`` times without decoding; compare the bytes afterwards."""
    with vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
        bounds = factory.create_consumer().get_bounds(topic, 0)
    data = bytearray(bounds.latest - bounds.earliest)
    view = memoryview(data)
    reader = RawReader(Address.parse(address), client["cluster"], topic)
    reader.read(view, bounds.earliest)  # the buffer's pages are touched here, not in the measure
    ready()
    begin = time.perf_counter()
    for _ in range(passes):
        reader.read(view, bounds.earliest)
    seconds = time.perf_counter() - begin
    reader.close()
    records: list[Any] = []
    decode_into(bytes(data), bounds.earliest, records)
    audit = Audit(size)
    for record in records:
        audit.take(record.payload)
    audit.check({int(stream): count for stream, count in sent.items()})
    return {"bytes": len(data) * passes, "seconds": seconds, "messages": audit.messages}


# A reader far behind ----------------------------------------------------------------------------
def read_raw(
    ready: Ready, *, client: dict[str, Any], address: str, topic: str, seconds: float
) -> dict[str, Any]:
    """Fetch the partition from its beginning, repeatedly for so long, without decoding records."""
    with vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
        bounds = factory.create_consumer().get_bounds(topic, 0)
    view = memoryview(bytearray(_SPAN_BYTES))
    reader = RawReader(Address.parse(address), client["cluster"], topic, depth=1)
    ready()
    read, offset, end = 0, bounds.earliest, time.monotonic() + seconds
    while time.monotonic() < end:
        size = min(_SPAN_BYTES, bounds.latest - offset)
        reader.read(view[:size], offset)
        read += size
        offset = offset + size if offset + size < bounds.latest else bounds.earliest
    reader.close()
    return {"bytes": read}


def read_files(
    ready: Ready, *, client: dict[str, Any], paths: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Read files repeatedly for so long, without a broker."""
    view = memoryview(bytearray(_SPAN_BYTES))
    ready()
    read, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while time.monotonic() < end and (size := file.readinto(view)):
                    read += size
        if not read:
            raise WorkFailed(f"{len(paths)} files are empty")
    return {"bytes": read}


# Idle consumers ---------------------------------------------------------------------------------
def idle_consumers(
    ready: Ready,
    *,
    client: dict[str, Any],
    address: str,
    topic: str,
    partitions: int,
    consumers: int,
) -> dict[str, Any]:
    """Let ``consumers`` connections wait for data in all partitions; the second ``ready`` ends it.

    Each partition has one waiting GET, held 15 s and asked again, as a consumer's fetcher does.
    """
    return uvloop.run(_idle(ready, client["cluster"], address, topic, partitions, consumers))


async def _idle(
    ready: Ready, cluster: str, address: str, topic: str, partitions: int, consumers: int
) -> dict[str, Any]:
    network, broker = TcpNetwork(), Address.parse(address)
    connections = [
        await connect(
            network,
            broker,
            client_id=f"idle-{number}",
            cluster=cluster,
            timeout=10.0,
            on_close=lambda _: None,
        )
        for number in range(consumers)
    ]
    answers = itertools.count()
    first: set[int] = set()

    async def wait(connection: BrokerConnection, partition: int) -> None:
        offset = (await _get(connection, topic, partition, 0, 0)).high_watermark
        first.add(partition)
        while True:
            await _get(connection, topic, partition, offset, _HOLD_MS)
            next(answers)

    waits = [
        asyncio.create_task(wait(connections[partition % consumers], partition))
        for partition in range(partitions)
    ]
    while len(first) < partitions:
        for task in waits:
            if task.done():
                task.result()
        await asyncio.sleep(0.05)
    await asyncio.to_thread(ready)
    await asyncio.to_thread(ready)
    failed = [task.exception() for task in waits if task.done() and not task.cancelled()]
    if failed:
        raise WorkFailed(f"{len(failed)} of {partitions} waits ended: {failed[0]}")
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    for connection in connections:
        connection.close()
    return {"answers": next(answers)}


async def _get(
    connection: BrokerConnection, topic: str, partition: int, offset: int, wait_ms: int
) -> GetResponse:
    request = GetRequest(
        topic=topic, partition=partition, offset=offset, max_bytes=_READ_BYTES, max_wait_ms=wait_ms
    )
    response, _ = await connection.request(Command.GET, request, timeout=60.0)
    assert isinstance(response, GetResponse)
    return response


def consume_orders(
    ready: Ready, *, client: dict[str, Any], topic: str, group: str, count: int, size: int
) -> dict[str, Any]:
    """Receive what ``send_orders`` sent, and compare it."""
    audit = Audit(size, orders(0, size))
    options: dict[str, Any] = {"client": client, "topic": topic, "group": group}
    return receive(ready, audit, size=size, expected={0: count}, **options)


# A long backlog ---------------------------------------------------------------------------------
def read_from(
    ready: Ready, *, client: dict[str, Any], topic: str, offset: int, count: int, size: int
) -> dict[str, Any]:
    """Read ``count`` messages from ``offset`` on, by position, decoded and verified.

    They are read a second time when the clock has stopped, and their contents compared.
    """
    begin_offset = offset
    with vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
        reader = factory.create_consumer()
        if not reader.get(topic, 0, offset, _READ_BYTES):
            raise WorkFailed(f"nothing at offset {offset}")
        ready()
        read = 0
        begin = time.perf_counter()
        while read < count:
            messages = reader.get(topic, 0, offset, _READ_BYTES)
            if not messages:
                raise WorkFailed(f"the partition ends after {read} messages")
            read += len(messages)
            offset = messages[-1].next_offset
        seconds = time.perf_counter() - begin
        audit = Audit(size)
        while begin_offset < offset:
            messages = reader.get(topic, 0, begin_offset, _READ_BYTES)
            for message in messages:
                audit.take(message.content)
            begin_offset = messages[-1].next_offset
    audit.check({0: count})
    return {"messages": read, "seconds": seconds}


def end_offset(ready: Ready, *, client: dict[str, Any], topic: str) -> dict[str, Any]:
    """Return the end offset of partition 0."""
    with vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
        ready()
        return {"offset": factory.create_consumer().get_bounds(topic, 0).latest}


def be_member(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    group: str,
    partitions: int,
    members: Sequence[int],
) -> dict[str, Any]:
    """Be a member of a group that has so many members, one number after the other.

    Calls ``ready`` each time its share is that of the next number. Returns when it got them, on the
    monotonic clock that all processes share.
    """
    times = []
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_consumer(vq.ConsumerConfig(group=group)) as consumer,
    ):
        consumer.subscribe(topic, _READ_BYTES, lambda _: None)
        ready()
        consumer.start()
        for count in members:
            share = range(partitions // count, -(-partitions // count) + 1)
            times.append(_share_held_at(consumer, share))
            ready()
    return {"times": times}


def _share_held_at(consumer: vq.MessageConsumer, share: range) -> float:
    """Wait until the consumer has held a share for a while; return since when."""
    held, since = -1, 0.0
    while held not in share or time.monotonic() < since + _SHARE_KEPT_S:
        if len(consumer.assignment()) != held:
            held, since = len(consumer.assignment()), time.monotonic()
        time.sleep(0.01)
    return since


WORKS: Final = {
    work.__name__: work
    for work in (
        raw_fetch,
        read_raw,
        read_files,
        idle_consumers,
        consume_orders,
        read_from,
        end_offset,
        be_member,
    )
}
