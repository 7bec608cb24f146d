"""Connections: bad input, deadlines, caps, back-pressure. Nothing a peer sends harms the others."""

import asyncio
import dataclasses
import math
import struct
from typing import Any
from unittest.mock import Mock

import pytest
from support.broker import Client, message, strict

from vq.broker.connections import broker_session
from vq.broker.connections.server import Server
from vq.broker.connections.shares import HASTENED_LEFT, REQUESTS_PER_TURN
from vq.broker.serving.dispatcher import Route
from vq.errors import Busy, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import MAGIC_VERSION, PREFIX, Command
from vq.remoting.frames import FrameParser
from vq.remoting.messages import decode_error, decode_reply
from vq.testing.waiting import WAIT_S, until


class Raw(asyncio.Protocol):
    """A peer that sends whatever bytes a test wants and keeps what comes back."""

    def __init__(self) -> None:
        self.parser = FrameParser()
        self.frames: list[Any] = []
        self.closed = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.frames += self.parser.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    async def refused(self) -> VqError:
        """Wait for the end of the connection; return the error that came before it."""
        await asyncio.wait_for(self.closed.wait(), WAIT_S)
        frame = self.frames[-1]
        return decode_error(frame.status, frame.header, frame.flags)


async def _raw(served) -> Raw:
    return (await served.cluster.network.connect(served.node.address, Raw))[1]


def _tighten(server: Server, **limits: Any) -> None:
    """Shorten deadlines of a server that runs, once the requests of a test have reached it.

    From the start they would also end those connections that a slow machine serves late.
    """
    server.limits = dataclasses.replace(server.limits, **limits)


def _frame(command: int, header: bytes = b"", body: bytes = b"", *, version: int = 1) -> bytes:
    length = PREFIX.size - 4 + len(header) + len(body)
    magic = MAGIC_VERSION[:2] + bytes([version])
    return PREFIX.pack(length, magic, 0, command, 0, 7, len(header)) + header + body


HELLO = _frame(Command.HELLO, wire.HelloRequest(version_min=1, version_max=1).SerializeToString())


@pytest.mark.parametrize(
    ("data", "expected", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "ProtocolError", "starts with"),
        (bytes(64), "ProtocolError", "starts with"),
        (_frame(Command.HELLO, version=9), "UnsupportedVersion", "version 9"),
        (_frame(Command.STATUS), "HelloRequired", "first command"),
        (struct.pack(">I", 1 << 20) + HELLO[4:], "FrameTooLarge", "4096"),
        (HELLO + _frame(999), "UnknownCommand", "999"),
        (HELLO + _frame(Command.PUT, b"\xff\xff\xff"), "InvalidRequest", "PUT"),
        (HELLO + struct.pack(">I", 1 << 28) + HELLO[4:], "FrameTooLarge", "16777216"),
        (HELLO + HELLO, "InvalidRequest", "HELLO comes once"),
    ],
    ids=[
        "http",
        "zeros",
        "version",
        "no hello",
        "large before hello",
        "unknown command",
        "no header",
        "oversize",
        "hello twice",
    ],
)
async def test_what_is_no_request_ends_the_connection_with_a_reason(served, data, expected, text):
    """The peer is told what is wrong before the connection is closed; others are not disturbed."""
    raw = await _raw(served)
    raw.transport.write(data)
    error = await raw.refused()
    assert type(error).__name__ == expected
    assert text in str(error)
    await served.client.put("t", 0, [message(b"x")])


async def test_a_cut_off_frame_leaves_no_trace(served):
    """Half a PUT and then the end of the connection stores nothing and keeps no memory."""
    raw = await _raw(served)
    raw.transport.write(HELLO + _frame(Command.PUT, b"", b"x" * 5_000)[:3_000])
    server = served.node.parts.server
    await until(lambda: server.gathered_bytes == 3_000)
    raw.transport.close()
    await until(lambda: len(server.sessions) == 1)
    assert server.gathered_bytes == 0
    assert (await served.client.offsets("t", 0)).log_end_offset == 0


async def test_a_request_delivered_byte_by_byte_is_answered(served):
    """How TCP cuts the stream makes no difference."""
    raw = await _raw(served)
    for byte in HELLO + _frame(Command.PING):
        raw.transport.write(bytes([byte]))
        await asyncio.sleep(0)
    await until(lambda: len(raw.frames) == 2)
    assert raw.frames[1].status == 0


@pytest.mark.virtual_time
async def test_who_says_nothing_is_disconnected(cluster):
    """No HELLO within the deadline: closed with a reason."""
    node, _ = await strict(cluster, hello_timeout_s=0.03)
    begun = asyncio.get_running_loop().time()
    raw = (await cluster.network.connect(node.address, Raw))[1]
    assert "no HELLO" in str(await raw.refused())
    assert asyncio.get_running_loop().time() - begun >= 0.03


@pytest.mark.virtual_time
async def test_a_dripping_frame_is_disconnected(cluster):
    """A frame that never becomes whole ends the connection while its bytes still drip."""
    node, _ = await strict(cluster, frame_timeout_s=0.1)
    raw = (await cluster.network.connect(node.address, Raw))[1]
    raw.transport.write(HELLO)
    await until(lambda: raw.frames)
    frame = _frame(Command.PUT, b"", bytes(1 << 20))
    begun = asyncio.get_running_loop().time()
    dripped = 0
    while len(raw.frames) < 2:  # a byte in every turn: no pause is ever as long as the deadline
        assert asyncio.get_running_loop().time() - begun < WAIT_S, "it drips on and is not closed"
        raw.transport.write(frame[dripped : dripped + 1])
        dripped += 1
        await asyncio.sleep(0.002)
    assert asyncio.get_running_loop().time() - begun >= 0.1, "not before its time is up"
    assert "not whole" in str(await raw.refused())


@pytest.mark.virtual_time
async def test_an_idle_connection_is_disconnected_and_a_waiting_one_is_not(cluster):
    """Waiting for data is not idleness."""
    node, server = await strict(cluster)
    await cluster.create_topic("t")
    waiting = await Client.connect(cluster.network, node.address)
    answer = waiting.send_get("t", 0, 0, max_wait_ms=20_000)
    await until(lambda: server.reads_waiting)
    _tighten(server, idle_timeout_s=0.05)
    idle = (await cluster.network.connect(node.address, Raw))[1]
    begun = asyncio.get_running_loop().time()
    idle.transport.write(HELLO)
    assert "no request" in str(await idle.refused())
    assert 0.05 <= asyncio.get_running_loop().time() - begun < 2.0
    await waiting.status()  # comes behind whatever the sweep has told it
    assert not waiting.closed.is_set()
    assert not answer.done()


@pytest.mark.virtual_time
async def test_a_connection_whose_request_waits_for_room_is_not_idle(cluster):
    """It has sent one, and is not read until there is room for it."""
    node, server = await strict(cluster, put_bytes_waiting_max=4_096)
    await cluster.create_topic("t")
    busy = await Client.connect(cluster.network, node.address)
    await busy.put("t", 0, [message(b"x")])
    cluster.flushers["b1"].held = True
    first = busy.send_put("t", 0, [message(b"x" * 4_000)])
    await until(lambda: server.put_bytes)
    other = await Client.connect(cluster.network, node.address)
    second = other.send_put("t", 0, [message(b"y" * 4_000)])
    await until(lambda: server.held.addresses)
    _tighten(server, idle_timeout_s=0.05)
    idle = (await cluster.network.connect(node.address, Raw))[1]
    idle.transport.write(HELLO)
    await idle.refused()
    assert not other.closed.is_set()
    cluster.flushers["b1"].release()
    for frame in await asyncio.wait_for(asyncio.gather(first, second), WAIT_S):
        decode_reply(frame)


async def test_connections_are_capped(cluster):
    """Beyond the caps a connection is told why and closed; the ones there go on."""
    node, server = await strict(cluster, connections_max=2)
    clients = [await Client.connect(cluster.network, node.address) for _ in range(2)]
    raw = (await cluster.network.connect(node.address, Raw))[1]
    error = await raw.refused()
    assert isinstance(error, Busy)
    assert "too many connections" in str(error)
    await until(lambda: len(server.sessions) == 2)
    clients[0].close()
    await until(lambda: len(server.sessions) == 1)
    await (await Client.connect(cluster.network, node.address)).status()


async def test_silent_connections_do_not_keep_clients_out(cluster):
    """They make room for newer ones, and a client that says HELLO stays."""
    node, server = await strict(cluster, before_hello_max=2)
    silent = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(3)]
    assert "oldest without a HELLO" in str(await silent[0].refused())
    await until(lambda: len(server.sessions) == 2)
    client = await Client.connect(cluster.network, node.address)
    assert "oldest without a HELLO" in str(await silent[1].refused())
    more = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(5)]
    await more[2].refused()
    await client.status()


@pytest.mark.parametrize(
    ("hosts", "counted", "other"),
    [
        (["2001:db8::1", "2001:db8::ffff:2", "2001:db8::3"], "2001:db8::/64", "2001:db8:0:1::1"),
        (["203.0.113.5", "::ffff:203.0.113.5"] * 2, "203.0.113.5", "203.0.113.6"),
    ],
    ids=["a network of IPv6", "IPv4 inside IPv6"],
)
async def test_connections_count_by_what_a_subscriber_has(cluster, hosts, counted, other):
    """By the /64 of IPv6: whoever has one address there has 2 to the power of 64."""
    node, _ = await strict(cluster, per_address_max=2)
    for host in hosts[:2]:
        await Client.connect(cluster.network.at(host), node.address)
    raw = (await cluster.network.at(hosts[2]).connect(node.address, Raw))[1]
    assert f"too many connections from {counted}: at most 2" in str(await raw.refused())
    await Client.connect(cluster.network.at(other), node.address)


class Stubborn(Raw):
    """A peer that does not close when the other end does."""

    def eof_received(self) -> bool:
        return True


async def test_connections_that_are_told_why_are_bounded(cluster, monkeypatch):
    """Peers that do not close after they were told do not pile up, and go in time."""
    monkeypatch.setattr(broker_session, "LINGERING_MAX", 3)
    monkeypatch.setattr(broker_session, "LINGER_S", math.inf)
    node, server = await strict(cluster)
    raws = [(await cluster.network.connect(node.address, Stubborn))[1] for _ in range(10)]
    for raw in raws:
        raw.transport.write(bytes(64))
    await until(lambda: len(server.sessions) <= 3)
    await until(lambda: all(raw.frames for raw in raws))
    assert len(server.lingering) == len(server.sessions) == 3
    monkeypatch.setattr(broker_session, "LINGER_S", 0.0)
    await until(lambda: not server.sessions)
    assert not server.lingering


async def test_silent_connections_make_room_when_descriptors_run_out(cluster):
    """Those that speak stay."""
    node, server = await strict(cluster)
    client = await Client.connect(cluster.network, node.address)
    silent = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(3)]
    server.end_silent()
    for raw in silent:
        assert "file descriptors" in str(await raw.refused())
    await client.status()


async def test_incomplete_frames_of_all_connections_share_a_budget(cluster):
    """Announcing large frames costs nothing; sending parts of many is bounded."""
    node, server = await strict(cluster, gathered_bytes_max=100_000)
    frame = HELLO + _frame(Command.PUT, b"", b"x" * 1_000_000)
    raws = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(3)]
    for raw in raws:
        raw.transport.write(frame[:40_000])
    await until(lambda: any(raw.closed.is_set() for raw in raws))
    await (await Client.connect(cluster.network, node.address)).status()
    assert [raw.closed.is_set() for raw in raws].count(True) == 1
    assert server.gathered_bytes == 2 * (40_000 - len(HELLO))


async def test_stalled_frames_end_before_one_that_arrives(cluster):
    """Whoever receives the last bytes is not the one that uses up the memory."""
    node, server = await strict(cluster, gathered_bytes_max=100_000)
    frame = HELLO + _frame(Command.PUT, b"", b"x" * 1_000_000)
    stalled = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(3)]
    for raw in stalled:
        raw.transport.write(frame[:30_000])
    await until(lambda: server.gathered_bytes > 80_000)
    server.sweep()
    client = (await cluster.network.connect(node.address, Raw))[1]
    client.transport.write(frame[:29_000])
    await until(lambda: any(raw.closed.is_set() for raw in stalled))
    assert "more than any other address" in str(await stalled[0].refused())
    assert not client.closed.is_set()
    assert server.gathered_bytes <= 100_000


async def test_requests_sent_at_once_do_not_hold_up_another_connection(cluster):
    """They are handled in turns of the loop; all are answered, each connection's in order."""
    node, server = await strict(cluster)
    client = await Client.connect(cluster.network, node.address)
    greedy = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(6)]
    count = 900
    pings = b"".join(
        PREFIX.pack(PREFIX.size - 4, MAGIC_VERSION, 0, Command.PING, 0, number, 0)
        for number in range(8, 8 + count)
    )
    for raw in greedy:
        raw.transport.write(HELLO + pings)
    await client.status()
    answered = sum(len(raw.frames) for raw in greedy)
    assert answered < 6 * count // 4
    await until(lambda: all(len(raw.frames) > count for raw in greedy))
    for raw in greedy:
        assert [frame.correlation_id for frame in raw.frames[1:]] == [*range(8, 8 + count)]
    assert (server.gathered_bytes, server.requests_waiting) == (0, 0)
    await until(lambda: not server.paused)


@pytest.mark.parametrize("what", ["look-up", "log"])
async def test_what_waited_for_one_look_up_or_log_is_carried_out_in_turns(cluster, what):
    """Thousands may have waited for the same; the order of each connection's stays."""
    node, server = await strict(cluster)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    clients = [await Client.connect(cluster.network, node.address) for _ in range(3)]
    counters, done, most = node.parts.context.counters, 0, 0

    def count() -> int:
        return counters.batches_in if what == "log" else sum(server.refusals.values())

    async with node.parts.partitions.logs.changes.lock(("t", 0)):
        cluster.ensemble.disconnect(cluster.coordinators["b1"])
        if what == "log":
            waiting = [
                each.send_put("t", 0, [message(b"x", n)]) for n in range(500) for each in clients
            ]
        else:
            request = wire.OffsetsRequest(topic="nowhere")
            waiting = [each.send(Command.OFFSETS, request) for _ in range(500) for each in clients]
        await until(lambda: server.requests_waiting == len(waiting))
        cluster.ensemble.reconnect(cluster.coordinators["b1"])
    async with asyncio.timeout(WAIT_S):
        while done < len(waiting):
            done = count()
            await asyncio.sleep(0)
            most = max(most, count() - done)
    assert 0 < most <= 256
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    if what == "log":
        offsets = [decode_reply(frame).offset for frame in frames]
        for number in range(3):
            assert offsets[number::3] == sorted(offsets[number::3])


async def test_sends_that_were_held_are_carried_out_in_turns(cluster):
    """A hand-over in vain held thousands; those that come meanwhile wait behind them."""
    node, server = await strict(cluster)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    clients = [await Client.connect(cluster.network, node.address) for _ in range(3)]
    context, most = node.parts.context, 0
    await clients[0].put("t", 0, [message(b"first", 0)])

    def send(count: int) -> list[asyncio.Future[Any]]:
        sent = [
            [each.send_put("t", 0, [message(b"x", n)]) for each in clients] for n in range(count)
        ]
        return [put for puts in sent for put in puts]

    context.role.hold()
    waiting = send(500)
    await until(lambda: server.requests_waiting == len(waiting))
    done = context.counters.batches_in
    context.role.let_go()
    most = context.counters.batches_in - done
    waiting += send(20)
    async with asyncio.timeout(WAIT_S):
        while done < 1 + len(waiting):
            done = context.counters.batches_in
            await asyncio.sleep(0)
            most = max(most, context.counters.batches_in - done)
    assert 0 < most <= 256
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    offsets = [decode_reply(frame).offset for frame in frames]
    for number in range(3):
        assert offsets[number::3] == sorted(offsets[number::3])


async def test_requests_that_wait_for_a_turn_go_with_their_connection(cluster):
    node, server = await strict(cluster)
    raws = [(await cluster.network.connect(node.address, Raw))[1] for _ in range(4)]
    pings = b"".join(
        PREFIX.pack(PREFIX.size - 4, MAGIC_VERSION, 0, Command.PING, 0, number, 0)
        for number in range(8, 5_000)
    )
    for raw in raws:
        raw.transport.write(HELLO + pings)
    await until(lambda: server.line.addresses)
    for raw in raws:
        raw.transport.abort()
    await until(lambda: not server.sessions and not server.line.addresses)
    assert (server.gathered_bytes, server.requests_waiting) == (0, 0)


async def test_reads_of_greedy_connections_leave_room_for_the_others(cluster):
    """Some that wait with many; one that reads a little is answered, also from the same address."""
    node, _ = await strict(cluster, reads_waiting_max=40)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    greedy = [await Client.connect(cluster.network, node.address) for _ in range(4)]
    waiting = [each.send_get("t", 0, 0, max_wait_ms=60_000) for each in greedy for _ in range(20)]
    await until(lambda: sum(each.done() for each in waiting) == 48)
    for each in waiting:
        if each.done():
            with pytest.raises(Busy, match="for connections with many"):
                decode_reply(await each)
    client = await Client.connect(cluster.network, node.address)
    mine = client.send_get("t", 0, 0, max_wait_ms=60_000)
    await client.put("t", 0, [message(b"x")])
    assert decode_reply(await mine).next_offset > 0


async def test_what_fetch_sessions_keep_is_shared_by_addresses(cluster):
    """The connections of one address get half of it."""
    node, _ = await strict(cluster, fetch_state_bytes_total_max=8 * 1024)
    await cluster.create_topic("t")
    fetches = node.parts.fetches
    client = await Client.connect(cluster.network, node.address)
    await client.offsets("t", 0)
    (session,) = node.parts.server.sessions
    size = 1_024
    assert [fetches.count_bytes(session, size) for _ in range(5)] == [True] * 4 + [False]
    other = Mock(address="another")
    assert [fetches.count_bytes(other, size) for _ in range(5)] == [True] * 4 + [False]
    for each in (session, other):
        for _ in range(4):
            fetches.uncount_bytes(each, size)
    assert not fetches.kept_bytes


async def test_a_full_window_is_refused_as_busy(cluster):
    """What a client sends beyond the window it was told is refused, not kept."""
    node, _ = await strict(cluster, requests_in_flight_max=2)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    assert client.hello.requests_in_flight_max == 2
    raw = (await cluster.network.connect(node.address, Raw))[1]
    get = wire.GetRequest(topic="t", max_bytes=1, max_wait_ms=20_000).SerializeToString()
    frames = b"".join(
        PREFIX.pack(16 + len(get), MAGIC_VERSION, 0, Command.GET, 0, n, len(get)) + get
        for n in range(3)
    )
    raw.transport.write(HELLO + frames)
    await until(lambda: len(raw.frames) == 2)
    frame = raw.frames[1]
    assert isinstance(decode_error(frame.status, frame.header, 0), Busy)
    assert frame.correlation_id == 2


async def test_a_bug_in_a_handler_is_answered_and_does_not_end_the_connection(served, monkeypatch):
    """An unexpected error becomes InternalError (outcome unknown) for that request only."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(served.node.parts.dispatcher.routes, Command.PING, Route(broken))
    frame = await served.client.send(Command.PING, wire.PingRequest())
    error = decode_error(frame.status, frame.header, frame.flags)
    assert type(error).__name__ == "InternalError"
    await served.client.status()


async def test_ping_tells_the_time(served):
    """PING answers with the broker's wall clock."""
    reply, _ = await served.client.call(Command.PING, wire.PingRequest())
    assert reply.wall_ms > 1_700_000_000_000


async def test_a_node_without_descriptors_says_so_in_its_status(served):
    """To those that are connected; others wait until there is room."""
    listener = served.cluster.network.listener(served.node.address)
    listener.set_full(True)
    (problem,) = (await served.client.status()).problems
    assert "no file descriptor" in problem
    waiting = asyncio.ensure_future(served.cluster.network.connect(served.node.address, Raw))
    await served.client.status()
    assert not waiting.done()
    listener.set_full(False)
    raw = (await waiting)[1]
    assert not (await served.client.status()).problems
    raw.transport.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_lone_request_needs_no_further_iteration_of_the_loop(cluster, flush):
    """What it begins begins at once; that so many are handled in a turn holds all the same."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1, flush=flush)
    await until(lambda: len(node.parts.partitions.channels) == 1)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    turn = node.parts.server.turn
    ends, call_soon = [], turn._call_soon

    def noted(call):
        ends.append(call)
        call_soon(call)

    turn._call_soon = noted
    node.parts.server.requests_left = REQUESTS_PER_TURN
    for _ in range(REQUESTS_PER_TURN - HASTENED_LEFT - 1):
        await client.put("t", 0, [message(b"x")])
    if flush == "async":
        assert not ends
        await client.put("t", 0, [message(b"x")])
        assert len(ends) == 1
        await until(lambda: node.parts.server.requests_left == REQUESTS_PER_TURN)
    assert not ends[1:]
