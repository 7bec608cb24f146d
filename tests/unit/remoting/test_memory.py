"""The in-memory network: latency, cuts, hosts that die, and runs that repeat from a seed."""

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
from typing import cast

import pytest
from support.interrupts import Interrupted, Interrupter

from vq.client.runtime import LoopThread
from vq.errors import Unreachable
from vq.model import Address
from vq.remoting.memory import MemoryNetwork
from vq.testing.waiting import WAIT_S, until

BROKER = Address("broker", 8123)


class End(asyncio.Protocol):
    """Remembers what it got."""

    def __init__(self) -> None:
        self.received = b""
        self.chunks: list[bytes] = []
        self.arrived = 0.0
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.chunks.append(data)
        self.arrived = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


async def connected(network: MemoryNetwork, host: str = "client") -> tuple[End, End]:
    """Client's and broker's end of a new connection."""
    served: list[End] = []

    def serve() -> End:
        served.append(End())
        return served[-1]

    listener = await network.at("broker").listen(BROKER, serve)
    _, client = await network.at(host).connect(BROKER, End)
    listener.close()
    return client, served[0]


async def turns(count: int = 10) -> None:
    """Let the loop run what is due."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_cut_holds_bytes_back_and_healing_delivers_them() -> None:
    """As with TCP, nothing is lost and neither end notices."""
    network = MemoryNetwork()
    client, server = await connected(network)
    network.cut("client", "broker")
    client.transport.write(b"one ")
    server.transport.write(b"reply")
    await turns()
    client.transport.write(b"two")
    await turns()
    assert (server.received, client.received) == (b"", b"")
    assert not client.lost
    network.heal("client", "broker")
    await turns()
    assert (server.received, client.received) == (b"one two", b"reply")


async def test_a_cut_one_way_leaves_the_other_way() -> None:
    """An asymmetric partition: requests arrive, replies do not."""
    network = MemoryNetwork()
    client, server = await connected(network)
    network.cut_one_way("broker", "client")
    client.transport.write(b"ask")
    server.transport.write(b"answer")
    await turns()
    assert (server.received, client.received) == (b"ask", b"")
    network.heal()
    await turns()
    assert client.received == b"answer"


async def test_connecting_over_a_cut_waits_until_it_heals() -> None:
    """Nobody answers a connection request that never arrives."""
    network = MemoryNetwork()
    await network.listen(BROKER, End)
    network.cut("client", "broker")
    attempt = asyncio.ensure_future(network.connect(BROKER, End))
    await turns()
    assert not attempt.done()
    network.heal()
    _, client = await attempt
    assert not client.lost


async def test_a_killed_host_resets_its_connections_and_frees_its_address() -> None:
    """The survivor sees a reset, and a new connection is refused."""
    network = MemoryNetwork()
    client, server = await connected(network)
    server.transport.write(b"lost with the host")
    network.kill("broker")
    await turns()
    assert [type(error) for error in client.lost] == [ConnectionResetError]
    assert [type(error) for error in server.lost] == [ConnectionResetError]
    assert network.connections == 0
    with pytest.raises(Unreachable, match="broker:8123"):
        await network.connect(BROKER, End)


async def test_a_host_killed_behind_a_cut_is_noticed_only_after_healing() -> None:
    """The half-open connection: only a time-out of the survivor's own would tell."""
    network = MemoryNetwork()
    client, _ = await connected(network)
    network.cut("client", "broker")
    network.kill("broker")
    await turns()
    assert not client.lost
    network.heal()
    await turns()
    assert len(client.lost) == 1


async def test_hosts_have_names_of_their_own() -> None:
    """A cut between two hosts does not touch a third."""
    network = MemoryNetwork()
    client, server = await connected(network, "other")
    assert server.transport.get_extra_info("peername")[0] == "other"
    network.cut("client", "broker")
    client.transport.write(b"hello")
    await turns()
    assert server.received == b"hello"


async def test_latency_delays_delivery() -> None:
    """A byte takes as long as it was told to, in the time of the loop."""
    network = MemoryNetwork(latency_s=0.05)
    loop = asyncio.get_running_loop()
    client, server = await connected(network)
    begun = loop.time()
    client.transport.write(b"x")
    await until(lambda: server.chunks)
    assert 0.05 <= server.arrived - begun < 2.0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_seed_repeats_the_same_chunks(seed: int) -> None:
    """Writes are cut at odd places, the same ones for the same seed, and order is kept."""

    async def run() -> list[bytes]:
        network = MemoryNetwork(rng=random.Random(seed))
        client, server = await connected(network)
        for number in range(50):
            client.transport.write(b"%03d" % number)
            await asyncio.sleep(0)
        while len(server.received) < 150:
            await asyncio.sleep(0)
        return server.chunks

    first, second = await run(), await run()
    assert first == second
    assert b"".join(first) == b"".join(b"%03d" % number for number in range(50))
    assert any(len(chunk) % 3 for chunk in first), "no write was cut inside"


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_in_a_blocking_stream_leaves_the_loop_going() -> None:
    """The loop shares no condition with the thread: one that is left locked would stop it."""
    runtime = LoopThread("test")
    network = MemoryNetwork()
    runtime.run(network.at("broker").listen(BROKER, Echo))

    def exchange() -> bytes:
        deadline = time.monotonic() + WAIT_S
        stream = network.open_stream(BROKER, deadline)
        stream.send(b"one", deadline)
        found = stream.receive(deadline)
        stream.close()
        return found

    for place in itertools.count():
        interrupter = Interrupter(
            place,
            *("remoting/memory.py", "remoting/memory_stream.py", "vq/waits.py"),
            *(f"{os.sep}threading.py", f"{os.sep}queue.py", "concurrent/futures"),
        )
        found = b""
        with contextlib.suppress(Interrupted):
            found = interrupter.run(exchange)
        goes_on = threading.Event()
        runtime.loop.call_soon_threadsafe(goes_on.set)
        assert goes_on.wait(WAIT_S), interrupter.reached
        if not interrupter.reached:
            break
    assert found == b"one"
    assert place > 20
    runtime.stop()
