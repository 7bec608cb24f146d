"""What requests keep in a broker's memory: bounds that all connections share."""

import asyncio
from typing import Any

import pytest
from support.broker import Client, message, strict

from vq.broker.partition import puts
from vq.broker.partition.channel import Channel
from vq.errors import InternalError, UnknownTopic
from vq.limits import MIB
from vq.remoting.format import COMMANDS, Command
from vq.remoting.messages import decode_error, decode_reply
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def test_reading_pauses_while_too_many_bytes_wait_for_a_flush(cluster):
    """A sender that outruns the disk is stopped by TCP, and goes on when the disk has caught up."""
    node, _ = await strict(cluster, put_bytes_in_flight_max=10_000)
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    cluster.flushers["b1"].held = True
    waiting = []
    for n in range(40):
        waiting.append(client.send_put("t", 0, [message(b"x" * 1_000, n)]))
        await asyncio.sleep(0)
    (session,) = node.parts.server.sessions
    await until(lambda: session in node.parts.server.paused)
    assert session.put_bytes < 12_000
    cluster.flushers["b1"].release()
    for frame in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S):
        decode_reply(frame)
    assert session not in node.parts.server.paused


async def _send_bodies(client: Client, topic: str, count: int) -> list[Any]:
    """Send PUTs of a little over 1 000 bytes each; return the futures of their replies."""
    waiting = []
    for n in range(count):
        waiting.append(client.send_put(topic, 0, [message(b"x" * 1_000, n)]))
        await asyncio.sleep(0)
    return waiting


async def test_reading_pauses_while_too_many_bytes_wait_for_a_look_up(cluster):
    """With ZooKeeper away, PUTs to a topic nobody knows do not pile up in the broker."""
    node, server = await strict(cluster, put_bytes_in_flight_max=10_000)
    client = await Client.connect(cluster.network, node.address)
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    waiting = await _send_bodies(client, "nowhere", 40)
    (session,) = server.sessions
    await until(lambda: session in server.paused)
    assert 10_000 <= session.put_bytes == server.put_bytes < 12_000
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    for frame in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S):
        assert isinstance(decode_error(frame.status, frame.header, frame.flags), UnknownTopic)
    assert session.put_bytes == server.put_bytes == 0
    assert session not in server.paused


#: Tag and length of a field of 500 000 bytes that no header has.
UNKNOWN_FIELD = b"\xc2\xa9\x07\xa0\xc2\x1e"


@pytest.mark.parametrize("command", [Command.PUT, Command.OFFSETS])
async def test_large_headers_of_requests_that_wait_count_as_bodies_do(cluster, command):
    """A request is kept with its header, which may have a thousand times what is needed."""
    node, server = await strict(cluster, put_bytes_in_flight_max=1 * MIB)
    client = await Client.connect(cluster.network, node.address)
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    needed = COMMANDS[command].request(topic="nowhere").SerializeToString()
    header = COMMANDS[command].request.FromString(needed + UNKNOWN_FIELD + b"x" * 500_000)
    waiting = [client.send(command, header) for _ in range(20)]
    (session,) = server.sessions
    await until(lambda: session in server.paused)
    assert MIB <= session.put_bytes == server.put_bytes < 2 * MIB
    assert server.requests_waiting <= 4
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    for frame in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S):
        assert frame.status
    assert session.put_bytes == server.put_bytes == 0


async def test_reading_pauses_while_too_many_bytes_wait_for_a_log(cluster):
    """PUTs whose partition is being opened are counted; then all are stored, in their order."""
    node, server = await strict(cluster, put_bytes_in_flight_max=10_000)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    async with node.parts.partitions.logs.changes.lock(("t", 0)):
        waiting = await _send_bodies(client, "t", 40)
        (session,) = server.sessions
        await until(lambda: session in server.paused)
        assert 10_000 <= session.put_bytes == server.put_bytes < 12_000
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    offsets = [decode_reply(frame).offset for frame in frames]
    assert offsets == sorted(set(offsets))
    assert session.put_bytes == server.put_bytes == 0


async def test_bodies_of_all_connections_share_a_budget(cluster):
    """Many connections that each send little are stopped, too; what one needs it gets later."""
    node, server = await strict(cluster, put_bytes_waiting_max=10_000)
    clients = [await Client.connect(cluster.network, node.address) for _ in range(8)]
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    waiting = []
    for client in clients:
        waiting += await _send_bodies(client, "nowhere", 5)
    await until(lambda: server.paused)
    await until(lambda: len(server.paused) == 7)  # the first one sends no more
    assert 7_500 <= server.put_bytes < 7_500 + 1_100  # one request goes beyond, not one of each
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert server.put_bytes == 0
    await until(lambda: not server.paused)


@pytest.mark.parametrize("ask", ["put", "offsets"])
async def test_large_bodies_of_many_connections_leave_room_for_those_that_send_little(cluster, ask):
    """A quarter of the bytes is kept for who uses little of it: one large PUT is not little."""
    node, server = await strict(cluster, put_bytes_waiting_max=8 * MIB)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    friend = await Client.connect(cluster.network, node.address)
    await friend.put("t", 0, [message(b"before")])
    greedy = [await Client.connect(cluster.network, node.address) for _ in range(12)]
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    waiting = [each.send_put("nowhere", 0, [message(b"x" * 1_000_000)]) for each in greedy]
    await until(lambda: len(server.paused) >= 6)
    async with asyncio.timeout(5.0):
        for _ in range(2):  # the first one finds out that the node is full
            if ask == "put":
                await friend.put("t", 0, [message(b"little")])
            else:
                await friend.offsets("t", 0)
    assert not any(each.done() for each in waiting)


async def test_requests_that_come_together_do_not_fill_what_is_kept(cluster):
    """Each piece of what a peer has sent holds many: the bound is looked at before each of them."""
    node, server = await strict(cluster, requests_waiting_max=64)
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(node.parts.partitions.channels) == 2)
    friend = await Client.connect(cluster.network, node.address)
    await friend.put("t", 1, [message(b"before")])
    greedy = [await Client.connect(cluster.network, node.address) for _ in range(4)]
    cluster.flushers["b1"].held = True
    waiting = [each.send_put("t", 0, [message(b"x", n)]) for each in greedy for n in range(40)]
    await until(lambda: server.held.addresses)
    async with asyncio.timeout(5.0):
        for _ in range(2):
            await friend.offsets("t", 1)
    assert server.requests_waiting <= 48 + 4  # one of each is little
    cluster.flushers["b1"].release()
    for frame in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S):
        decode_reply(frame)
    assert (server.requests_waiting, server.gathered_bytes) == (0, 0)
    await until(lambda: not server.paused and not server.held.addresses)


async def test_members_of_the_cluster_need_no_room(cluster):
    """Nodes and operators' commands prove themselves and are served, whatever waits."""
    node, server = await strict(cluster, requests_waiting_max=16)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    clients = [await Client.connect(cluster.network, node.address) for _ in range(16)]
    await clients[0].put("t", 0, [message(b"before")])
    cluster.flushers["b1"].held = True
    waiting = [each.send_put("t", 0, [message(b"x")]) for each in clients]
    await until(lambda: server.requests_waiting == 16)
    anyone = await Client.connect(cluster.network, node.address)
    asked = asyncio.ensure_future(anyone.offsets("t", 0))
    await until(lambda: server.held.addresses)
    async with asyncio.timeout(5.0):
        operator = await cluster.prove(await Client.connect(cluster.network, node.address))
        for _ in range(2):
            await operator.status()
    assert not asked.done()
    cluster.flushers["b1"].release()
    for frame in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S):
        decode_reply(frame)
    await asyncio.wait_for(asked, WAIT_S)


async def test_requests_that_wait_for_room_share_a_budget(cluster):
    """They are kept whole, and count like incomplete frames; a large one counts all its bytes."""
    node, server = await strict(
        cluster, put_bytes_waiting_max=840_000, gathered_bytes_max=1_260_000
    )
    cluster.ensemble.disconnect(cluster.coordinators["b1"])
    greedy = [await Client.connect(cluster.network, node.address) for _ in range(12)]
    for number, each in enumerate(greedy, start=1):
        each.send_put("nowhere", 0, [message(b"x" * 400_000)])
        kept = min(number, 5) * 400_000
        await until(lambda kept=kept: server.put_bytes + server.gathered_bytes >= kept)
        await until(
            lambda number=number: sum(each.closed.is_set() for each in greedy) == max(0, number - 5)
        )
    assert 800_000 <= server.put_bytes < 840_000
    assert 1_200_000 <= server.gathered_bytes <= 1_260_000
    for each in greedy:
        each.close()
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    await until(lambda: (server.put_bytes, server.gathered_bytes) == (0, 0))
    assert not server.held.addresses


async def test_bodies_that_wait_go_with_their_connection(cluster):
    """Who sends, hangs up and comes again leaves nothing behind, and nothing of it is stored."""
    node, server = await strict(cluster)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    async with node.parts.partitions.logs.changes.lock(("t", 0)):
        for topic in ("t", "nowhere"):
            client = await Client.connect(cluster.network, node.address)
            if topic == "nowhere":  # its look-up is to last
                cluster.ensemble.disconnect(cluster.coordinators["b1"])
            waiting = await _send_bodies(client, topic, 5)
            await until(lambda: server.put_bytes > 5_000)
            client.close()
            await until(lambda: not server.sessions)
            assert server.put_bytes == 0
            for future in waiting:
                assert isinstance(future.exception(), ConnectionError)
    cluster.ensemble.reconnect(cluster.coordinators["b1"])
    other = await Client.connect(cluster.network, node.address)
    await until(lambda: node.parts.partitions.channels["t", 0].log is not None)
    assert (await other.offsets("t", 0)).log_end_offset == 0


async def test_a_bug_met_by_one_that_waited_is_its_own(cluster, monkeypatch):
    """Those that waited for the same log are handled all the same."""
    node, _ = await strict(cluster)
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(node.parts.partitions.channels) == 2)
    client = await Client.connect(cluster.network, node.address)
    put = puts.put

    def broken(channel: Channel, session: Any, request_id: Any, header: Any, body: bytes) -> None:
        if header.producer_id == 13:
            raise RuntimeError("by the test")
        put(channel, session, request_id, header, body)

    monkeypatch.setattr(puts, "put", broken)
    async with node.parts.partitions.logs.changes.lock(("t", 0)):
        bad = client.send_put("t", 0, [message(b"x")], producer_id=13)
        good = client.send_put("t", 0, [message(b"y")])
        await until(lambda: node.parts.server.put_bytes)
    frame = await asyncio.wait_for(bad, WAIT_S)
    assert isinstance(decode_error(frame.status, frame.header, frame.flags), InternalError)
    assert decode_reply(await asyncio.wait_for(good, WAIT_S)).offset > 0
