"""Answers that a peer does not take: who asks and reads nothing costs little, and loses nothing.

Such a peer may be an attacker; or a slow one, one that a debugger has stopped, or one behind a
network that does not answer for a while. The broker cannot tell, and need not.
"""

import asyncio
import dataclasses
from typing import Any

import pytest
from support.access import believe_names, limit
from support.broker import Client, MemoryCluster, message, strict

from vq import limits
from vq.broker.connections.broker_session import BrokerSession
from vq.broker.connections.server import Server
from vq.broker.connections.shares import SMALL_PIECE_BYTES
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.memory import MemoryNetwork
from vq.remoting.messages import decode_reply, encode_header
from vq.testing.waiting import WAIT_S, until


def at_once(client: Client, *requests: tuple[Command, Any]) -> "list[asyncio.Future[Any]]":
    """Send requests so that they arrive together; return the futures of their frames."""
    buffers: list[Any] = []
    futures: list[asyncio.Future[Any]] = []
    for command, header in requests:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        encoded = encode_header(command, header)
        buffers += client.connection.request(command, encoded, context=future)[1]
        futures.append(future)
    client.transport.writelines(buffers)
    return futures


def unheard(sent: "asyncio.Future[Any]") -> None:
    """Nobody may wait for the answer."""
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())


def gets(count: int, **fields: Any) -> list[tuple[Command, Any]]:
    asked = wire.GetRequest(topic="t", max_bytes=limits.FETCH_BYTES_MAX, **fields)
    return [(Command.GET, asked)] * count


def _tighten(server: Server, **limits: Any) -> None:
    """Shorten deadlines of a server that runs, once the requests of a test have reached it."""
    server.limits = dataclasses.replace(server.limits, **limits)


@pytest.mark.virtual_time
async def test_a_peer_that_takes_nothing_is_stopped_and_then_disconnected(cluster):
    """Answers that are not taken make the broker stop reading, and end the connection in time."""
    node, server = await strict(cluster, write_buffer_bytes=10_000)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x" * 500_000)])
    silent = await Client.connect(cluster.network, node.address)
    session = list(server.sessions)[1]
    silent.transport.pause_reading()
    for _ in range(8):
        silent.send_get("t", 0, 0).add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0.001)
    await until(lambda: session.congested)
    assert node.parts.context.counters.bytes_out < 1_100_000
    _tighten(server, write_timeout_s=0.1)
    await until(lambda: session not in server.sessions)
    await client.put("t", 0, [message(b"x")])


@pytest.mark.parametrize("max_wait_ms", [0, 30_000])
async def test_many_large_reads_asked_at_once_are_answered_a_few_at_a_time(cluster, max_wait_ms):
    """Requests that arrive together must not pile up all their answers before the first is sent.

    Nor may those that could have waited for data wait for more of it: what they want is there.
    """
    node, server = await strict(cluster, write_buffer_bytes=10_000, write_timeout_s=60)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x" * 500_000)])
    client.transport.pause_reading()
    before = node.parts.context.counters.bytes_out
    waiting = [client.send_get("t", 0, 0, max_wait_ms=max_wait_ms) for _ in range(50)]
    (session,) = server.sessions
    await until(lambda: session.congested)
    await asyncio.sleep(0.1)
    assert node.parts.context.counters.bytes_out - before < 1_600_000
    client.transport.resume_reading()
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert {len(frame.body) for frame in frames} == {len(frames[0].body)}
    assert not session.congested


class SlowTransport(asyncio.Transport):
    """A transport whose peer takes as much as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.untaken = 1_000
        self.aborted = False
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True


async def test_a_slow_but_steady_peer_is_not_cut_off(served):
    """The deadline is for a peer that takes nothing, not for one that takes little."""
    server = served.node.parts.server
    session, transport = server.new_session(), SlowTransport()
    session.connection_made(transport)
    session.pause_writing()
    now = server.now()
    for _ in range(10):
        now += server.limits.write_timeout_s * 0.7
        transport.untaken -= 1
        session.sweep(now)
        assert not transport.aborted
    for elapsed, aborted in ((0.9, False), (0.2, True)):
        now += server.limits.write_timeout_s * elapsed
        session.sweep(now)
        assert transport.aborted is aborted
    session.connection_lost(None)


async def test_a_peer_that_has_taken_enough_is_read_again_at_once(served):
    """Its next request does not wait for the next look at all connections."""
    session, transport = served.node.parts.server.new_session(), SlowTransport()
    session.connection_made(transport)
    session.pause_writing()
    assert not transport.reads
    session.resume_writing()
    assert transport.reads
    session.connection_lost(None)


async def test_answers_wait_for_a_congested_peer_that_comes_back(cluster):
    """Data held back for a slow peer are sent when it reads on; none is lost."""
    node, server = await strict(cluster, write_buffer_bytes=10_000)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x" * 500_000)])
    client.transport.pause_reading()
    waiting = [client.send_get("t", 0, 0) for _ in range(4)]
    (session,) = server.sessions
    await until(lambda: session.congested)
    client.transport.resume_reading()
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert len({frame.body for frame in frames}) == 1


async def large_topic(cluster: MemoryCluster, **bounds: Any) -> tuple[Client, Server]:
    """A node with a topic of 500 kB whose peers may leave 10 kB; a client of it that reads."""
    node, server = await strict(cluster, write_buffer_bytes=10_000, **bounds)
    await cluster.create_topic("t")
    healthy = await Client.connect(cluster.network, node.address)
    await healthy.put("t", 0, [message(b"x" * 500_000)])
    return healthy, server


async def silent_peer(network: MemoryNetwork, server: Server) -> tuple[Client, BrokerSession]:
    """A client that takes no answers until it resumes reading, and its session."""
    client = await Client.connect(network, server.address)
    client.transport.pause_reading()
    return client, list(server.sessions)[-1]


@pytest.mark.virtual_time
async def test_requests_behind_answers_that_are_not_taken_wait_unread(cluster):
    """Nine hundred cost what few cost: they are not carried out, and nothing more is read."""
    healthy, server = await large_topic(cluster)
    silent, session = await silent_peer(cluster.network, server)
    sent = at_once(silent, *gets(900))
    await until(lambda: session.congested)
    await asyncio.sleep(1)
    assert server.reads_waiting == 0
    assert 0 < session.gathered < 100_000
    more = at_once(silent, *gets(100))
    before = session.gathered
    await asyncio.sleep(1)
    assert session.gathered == before, "nothing more is read"
    await healthy.put("t", 0, [message(b"y")])
    silent.transport.resume_reading()
    async with asyncio.timeout(WAIT_S):
        frames = await asyncio.gather(*sent, *more)
    assert {frame.status for frame in frames} == {0}
    assert (session.gathered, session.congested) == (0, False)


@pytest.mark.virtual_time
async def test_what_waited_behind_answers_is_carried_out_in_order(cluster):
    """Whoever reads again, as when a debugger goes on, has lost nothing."""
    _, server = await large_topic(cluster)
    slow, session = await silent_peer(cluster.network, server)
    puts = []
    reads = at_once(slow, *gets(2))
    await until(lambda: session.congested)
    for number in range(5):
        reads += at_once(slow, *gets(1, offset=0))
        puts.append(slow.send_put("t", 0, [message(b"%d" % number)]))
    await asyncio.sleep(5)
    assert not any(each.done() for each in puts)
    slow.transport.resume_reading()
    async with asyncio.timeout(WAIT_S):
        stored = [decode_reply(each).offset for each in await asyncio.gather(*puts)]
        await asyncio.gather(*reads)
    assert stored == sorted(stored)
    assert len(set(stored)) == 5


@pytest.mark.virtual_time
async def test_who_takes_no_answers_uses_none_of_its_quota(cluster):
    """Others who share its quota go on; what waits is charged when it is carried out."""
    _, server = await large_topic(cluster)
    await limit(cluster, "anonymous requests=100")
    silent, session = await silent_peer(cluster.network, server)
    other = await Client.connect(cluster.network, server.address)
    sent = at_once(silent, *gets(900))
    await until(lambda: session.congested)
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    for _ in range(20):
        await other.get("t", 0, 0, max_bytes=1)
    assert asyncio.get_running_loop().time() - begun < 0.25
    silent.transport.resume_reading()
    async with asyncio.timeout(WAIT_S):
        assert (await sent[100]).status == 0
    silent.close()
    await asyncio.gather(*sent, return_exceptions=True)


@pytest.mark.virtual_time
async def test_an_address_owes_for_answers_of_which_nothing_is_taken(cluster):
    """Once for each time; so its new connections begin more rarely. Nobody else's do."""
    _, server = await large_topic(cluster, write_timeout_s=60)
    network = cluster.network.at("many")
    silent = [await Client.connect(network, server.address) for _ in range(20)]
    for each in silent:
        each.transport.pause_reading()
        unheard(each.send_get("t", 0, 0))
    await until(lambda: sum(each.congested for each in server.sessions) == 20)
    assert not server.owes_much("many")
    await until(lambda: server.owes_much("many"))
    assert not server.owes_much("client")
    late = await Client.connect(network, server.address)
    await late.get("t", 0, 0, max_bytes=1)  # what it asks for does not wait
    await asyncio.sleep(2)
    assert not server.owes_much("many")
    silent[0].transport.resume_reading()
    await silent[0].get("t", 0, 0, max_bytes=1)


@pytest.mark.virtual_time
async def test_a_peer_that_takes_its_answers_slowly_owes_nothing(cluster):
    _, server = await large_topic(cluster, write_timeout_s=60)
    slow, session = await silent_peer(cluster.network.at("slow"), server)
    sent = at_once(slow, *gets(8))
    for _ in range(4):
        await asyncio.sleep(0.9)
        assert session.congested
        slow.transport.resume_reading()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        slow.transport.pause_reading()
    slow.transport.resume_reading()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*sent)
    assert server.debts.of("slow", server.now()) == 0


@pytest.mark.virtual_time
async def test_what_was_refused_behind_them_is_told_though_quotas_end_meanwhile(
    cluster, monkeypatch
):
    """The refusals wait until the peer takes what is before them."""
    believe_names(monkeypatch)
    healthy, server = await large_topic(cluster)
    await cluster.create_topic("u")
    await limit(cluster, "anonymous bytes-in=150000 bytes-out=1000")
    writer = await Client.connect(cluster.network, server.address, "user.writer")
    silent, session = await silent_peer(cluster.network, server)
    end = (await writer.get("t", 0, 0))[0].next_offset
    waits = silent.send_get("t", 0, end, max_wait_ms=30_000)
    await healthy.put("u", 0, [message(b"x" * 500_000)])  # as many as in three seconds
    refused = at_once(silent, *gets(5))
    await until(lambda: session.connection.holds)
    await writer.put("t", 0, [message(b"y" * 500_000)])
    await until(lambda: session.congested)
    await asyncio.sleep(limits.THROTTLE_S_MAX + 1)
    assert not any(each.done() for each in [waits, *refused])
    await limit(cluster)
    silent.transport.resume_reading()
    async with asyncio.timeout(WAIT_S):
        assert (await waits).status == 0
        assert all(each.status for each in await asyncio.gather(*refused))


async def test_small_requests_behind_a_large_one_are_cut_piece_by_piece(cluster):
    """Else a thousand and more would be cut, or refused as too many, before the next connection."""
    node, server = await strict(cluster)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    (session,) = server.sessions
    large = (Command.GET, wire.GetRequest(topic="t" * 600))
    sent = at_once(client, large, *gets(900, max_wait_ms=0))
    cut = []
    receive = session.connection.receive_data
    session.connection.receive_data = lambda data: cut.append(len(data)) or receive(data)
    async with asyncio.timeout(WAIT_S):
        frames = await asyncio.gather(*sent)
    assert len(frames) == 901
    assert max(cut) <= 700 + SMALL_PIECE_BYTES
