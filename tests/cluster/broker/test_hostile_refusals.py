"""Whoever brings much that is refused is read slowly; other connections are not."""

import asyncio
import contextlib
from typing import Any, Final

import pytest
from support.access import connect_as
from support.broker import Client, MemoryCluster, message, strict
from support.fetch_requests import add

from vq.broker.node import BrokerNode
from vq.broker.serving.broker_session import REFUSED_BYTES
from vq.broker.serving.server import ENDED_COST, REFUSED_BURST_S, REFUSED_PAUSE_S
from vq.limits import BATCH_BYTES_MAX
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command

pytestmark = pytest.mark.virtual_time

#: What may be refused in a second of an address, and at once.
PER_S: Final = 40
MUCH: Final = int(REFUSED_BURST_S * PER_S)
SECONDS: Final = 3


async def served(cluster: MemoryCluster) -> BrokerNode:
    node, _ = await strict(cluster, refused_per_s=PER_S)
    await cluster.create_topic("t")
    client = await connect_as(cluster, node)
    await client.put("t", 0, [message(b"x")])  # the topic is known from here on
    client.close()
    return node


async def refusals_in(seconds: float, client: Client, request: tuple[Command, Any, bytes]) -> int:
    """Send one request after the other for so long; return how many are answered."""
    answered = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                assert (await client.send(*request)).status
                answered += 1
    return answered


@pytest.mark.parametrize(
    ("command", "header", "size"),
    [
        (Command.PUT, wire.PutRequest(topic="t", record_count=1, crc=1), 100),
        (Command.PUT, wire.PutRequest(topic="t", record_count=1, crc=1), BATCH_BYTES_MAX),
        (Command.PUT, wire.PutRequest(topic="no"), 0),
        (Command.GET, wire.GetRequest(topic="no"), 0),
        (Command.SEAL, wire.SealRequest(topic="t"), 0),
    ],
    ids=["damaged", "damaged and large", "put of no topic", "get of no topic", "for members"],
)
async def test_whoever_is_refused_much_is_read_slowly(
    cluster: MemoryCluster, command: Command, header: Any, size: int
) -> None:
    """Others at the same address, who are refused nothing, do not wait."""
    node = await served(cluster)
    greedy, other = [await connect_as(cluster, node) for _ in range(2)]
    refusing = asyncio.ensure_future(refusals_in(SECONDS, greedy, (command, header, bytes(size))))
    sent = 0
    while not refusing.done():
        async with asyncio.timeout(0.1):
            await other.put("t", 0, [message(b"x")])
        sent += 1
        await asyncio.sleep(0.01)
    cost = 1 + size / REFUSED_BYTES
    assert 1 < await refusing <= (MUCH + PER_S * SECONDS) / cost + 2
    assert sent > 50 * SECONDS


async def test_a_fetch_of_topics_that_nobody_has_counts_each(cluster: MemoryCluster) -> None:
    node = await served(cluster)
    client = await connect_as(cluster, node)
    many = [add(0, topic=f"no-{number}", handle=number) for number in range(MUCH + 1)]
    await client.send(Command.FETCH, wire.FetchRequest(session=0, partitions=many))
    assert len(node.parts.server.paused) == 1
    async with asyncio.timeout(REFUSED_PAUSE_S + 1):
        await client.status()


async def test_what_passes_by_itself_slows_nobody_down(cluster: MemoryCluster) -> None:
    """A master that has changed is no fault of clients."""
    node = await served(cluster)
    client = await connect_as(cluster, node)
    asked = wire.GetRequest(topic="t", epoch=99, max_bytes=100)
    for _ in range(3 * MUCH):
        frame = await client.send(Command.GET, asked)
        assert frame.status
    assert not node.parts.server.paused


async def test_one_refusal_beside_a_greedy_neighbour_slows_nobody_down(
    cluster: MemoryCluster,
) -> None:
    node = await served(cluster)
    greedy, other = [await connect_as(cluster, node) for _ in range(2)]
    request = Command.GET, wire.GetRequest(topic="no"), b""
    await refusals_in(SECONDS, greedy, request)
    refusing = asyncio.ensure_future(refusals_in(SECONDS, greedy, request))
    assert (await other.send(*request)).status
    async with asyncio.timeout(0.1):
        await other.put("t", 0, [message(b"x")])
    await refusing


async def test_whoever_owes_does_not_begin_anew_on_another_connection(
    cluster: MemoryCluster,
) -> None:
    """What ends a connection is owed, too. Who is refused nothing gets in all the same."""
    node = await served(cluster)
    ended = 0
    while node.parts.server.debts.of("client", node.parts.server.now()) < MUCH:
        greedy = await connect_as(cluster, node)
        greedy.transport.write(b"this is no frame, and has more than 20 bytes")
        await greedy.closed.wait()
        ended += 1
    assert ended <= MUCH / ENDED_COST + 1
    greedy, other = [await connect_as(cluster, node) for _ in range(2)]
    answered = await refusals_in(SECONDS, greedy, (Command.SEAL, wire.SealRequest(topic="t"), b""))
    assert 0 < answered <= PER_S * SECONDS + 2
    async with asyncio.timeout(0.1):
        await other.put("t", 0, [message(b"x")])


async def test_addresses_of_one_network_of_ipv6_owe_together(cluster: MemoryCluster) -> None:
    """Another address of a /64 costs nobody anything, so it is no new beginning."""
    node = await served(cluster)
    request = (Command.SEAL, wire.SealRequest(topic="t"), b"")
    per_connection = MUCH // 4
    answered = 0
    for number in range(20):
        greedy = await connect_as(cluster, node, host=f"2001:db8::{number:x}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                for _ in range(per_connection):
                    assert (await greedy.send(*request)).status
                    answered += 1
    assert answered < 2 * MUCH < 20 * per_connection
    elsewhere = await connect_as(cluster, node, host="2001:db8:0:1::1")
    async with asyncio.timeout(0.1):
        for _ in range(per_connection):
            assert (await elsewhere.send(*request)).status


async def test_members_of_the_cluster_owe_nothing(cluster: MemoryCluster) -> None:
    node = await served(cluster)
    member = await cluster.prove(await connect_as(cluster, node), "b1", "n2")
    for _ in range(3 * MUCH):
        assert (await member.send(Command.PUT, wire.PutRequest(topic="no"))).status
        assert not node.parts.server.paused
