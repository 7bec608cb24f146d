"""Whoever brings much that is refused is read slowly; other connections are not."""

import asyncio
import contextlib
from itertools import pairwise
from typing import Any, Final

import pytest
from support.access import believe_names, connect_as
from support.broker import Client, MemoryCluster, message, strict
from support.fetch_requests import add

from vq.broker.connections.owing import FREE_BYTES, REFUSED_BYTES
from vq.broker.connections.server import ENDED_COST, REFUSED_BURST_S, REFUSED_PAUSE_S
from vq.broker.connections.shares import GATHERED_PER_TURN
from vq.broker.node import BrokerNode
from vq.limits import BATCH_BYTES_MAX, MIB
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import MAGIC_VERSION, PREFIX, Command
from vq.remoting.memory import CHUNK_BYTES_MAX
from vq.testing.waiting import until

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
    assert 0 < await refusing <= (MUCH + PER_S * SECONDS) / cost + 2
    assert sent > 50 * SECONDS


@pytest.mark.parametrize("what", ["topics that nobody has", "handles that are not in the session"])
async def test_a_fetch_counts_each_partition_that_it_names_in_vain(
    cluster: MemoryCluster, what: str
) -> None:
    node = await served(cluster)
    client = await connect_as(cluster, node)
    name = "no-{}" if what.startswith("topics") else ""
    many = [add(0, topic=name.format(number), handle=number) for number in range(MUCH + 1)]
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


# Bytes that are read in vain ----------------------------------------------------------------------
def without_end(size: int) -> bytes:
    """Return a PUT with a body of so many bytes, without the last one."""
    fields = (PREFIX.size - 4 + size, MAGIC_VERSION, 0, Command.PUT, 0, 1, 0)
    return PREFIX.pack(*fields) + bytes(size - 1)


def taken(size: int, clients: list[Client]) -> int:
    """Return how much the broker has read of what each of some clients has sent: so many bytes."""
    return sum(size - each.transport.get_write_buffer_size() for each in clients)


async def leave_in_the_middle(
    cluster: MemoryCluster, node: BrokerNode, size: int, name: str = ""
) -> None:
    """Send most of a large request, and go."""
    server = node.parts.server
    client = await connect_as(cluster, node, name)
    client.transport.write(without_end(size))
    await until(lambda: server.gathered_bytes >= size)
    client.close()
    await until(lambda: not server.gathered_bytes)


async def test_requests_that_never_end_are_read_as_debts_are_paid(cluster: MemoryCluster) -> None:
    """Whoever goes in the middle of them owes their bytes; they wait, and get in one day."""
    node = await served(cluster)
    server = node.parts.server
    while not server.owes_much("client"):
        await leave_in_the_middle(cluster, node, MIB)
    data = without_end(2 * MIB)
    many = [await connect_as(cluster, node) for _ in range(5)]
    for each in many:
        each.transport.write(data)
    small = await connect_as(cluster, node)
    for _ in range(SECONDS):
        async with asyncio.timeout(0.1):
            await small.put("t", 0, [message(b"x")])
        await asyncio.sleep(1)
    at_once = len(many) * (FREE_BYTES + CHUNK_BYTES_MAX)
    assert taken(len(data), many) <= at_once + SECONDS * PER_S * REFUSED_BYTES
    async with asyncio.timeout(len(many) * len(data) / REFUSED_BYTES / PER_S + REFUSED_PAUSE_S):
        await until(lambda: taken(len(data), many) == len(many) * len(data))
    assert not any(each.closed.is_set() for each in many)


async def test_large_requests_of_many_connections_take_turns(cluster: MemoryCluster) -> None:
    """Nobody waits in a turn of the loop until each of them was read, but in the first one."""
    node, server = await strict(cluster)
    data = without_end(MIB)
    many = [await connect_as(cluster, node, host=f"host{number % 5}") for number in range(80)]
    for each in many:
        each.transport.write(data)
    read = [0]
    while read[-1] < len(many) * len(data):
        await asyncio.sleep(0)
        read.append(taken(len(data), many))
    grown = [after - before for before, after in pairwise(read) if after > before]
    assert max(grown) <= len(many) * CHUNK_BYTES_MAX
    assert sorted(grown)[-2] <= 2 * GATHERED_PER_TURN < len(many) * CHUNK_BYTES_MAX
    assert not server.debts.of("host0", server.now())
    for each in many:
        each.transport.write(b"\0")
    await until(lambda: not server.gathered_bytes)
    assert sum(server.refusals.values()) == len(many)


async def test_what_is_ended_at_the_bound_of_gathered_bytes_is_owed(
    cluster: MemoryCluster,
) -> None:
    """And the others that are as large wait with it: they are not read up to the bound again."""
    node, server = await strict(cluster, refused_per_s=PER_S, gathered_bytes_max=10 * MIB)
    data = without_end(4 * MIB)
    many = [await connect_as(cluster, node) for _ in range(6)]
    for each in many:
        each.transport.write(data)
    await until(lambda: server.owes_much("client"))
    read = taken(len(data), many)
    await asyncio.sleep(SECONDS)
    most = len(many) * CHUNK_BYTES_MAX + SECONDS * PER_S * REFUSED_BYTES
    assert taken(len(data), many) - read <= most


async def test_what_comes_behind_the_end_of_a_connection_is_owed(cluster: MemoryCluster) -> None:
    """It is read and thrown away, so that the peer gets the reason; but not whatever comes."""

    class Deaf(asyncio.Protocol):
        """It does not take the end for an end."""

        def eof_received(self) -> bool:
            return True

    node = await served(cluster)
    transport, _ = await cluster.network.at("client").connect(node.address, Deaf)
    data = bytes(20 * MIB)
    transport.write(data)
    await until(lambda: node.parts.server.owes_much("client"))
    read = len(data) - transport.get_write_buffer_size()
    assert read <= MUCH * REFUSED_BYTES + CHUNK_BYTES_MAX
    await until(lambda: not node.parts.server.sessions)  # it has had time to read why
    assert len(data) - transport.get_write_buffer_size() <= read + CHUNK_BYTES_MAX


async def test_a_large_request_that_is_whole_costs_nothing(cluster: MemoryCluster) -> None:
    """Also of a connection of which large ones are owed while they come."""
    node = await served(cluster)
    server = node.parts.server
    while not server.owes_much("client"):
        await leave_in_the_middle(cluster, node, MIB)
    client = await connect_as(cluster, node)
    await asyncio.sleep(REFUSED_PAUSE_S)
    owed = server.debts.of("client", server.now())
    records = [message(bytes(MIB // 8))] * 7
    for _ in range(3 * MUCH * REFUSED_BYTES // MIB):
        async with asyncio.timeout(0.1):
            await client.put("t", 0, records)
    assert server.debts.of("client", server.now()) <= owed


async def test_users_do_not_pay_for_others_at_their_address(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They owe what they bring themselves, over whichever connection from there."""
    believe_names(monkeypatch)
    node = await served(cluster)
    server = node.parts.server
    while not server.owes_much("client"):
        await leave_in_the_middle(cluster, node, MIB)
    request = (Command.SEAL, wire.SealRequest(topic="t"), b"")
    anna, bert = [await connect_as(cluster, node, name) for name in ("anna", "bert")]
    async with asyncio.timeout(0.1):
        await anna.put("t", 0, [message(bytes(MIB // 8))] * 7)
    assert await refusals_in(1, anna, request) >= MUCH
    again = await connect_as(cluster, node, "anna")
    assert await refusals_in(1, again, request) <= PER_S + 2
    async with asyncio.timeout(0.1):
        await bert.put("t", 0, [message(bytes(MIB // 8))] * 7)
        assert (await bert.send(*request)).status
