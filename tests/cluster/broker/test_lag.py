"""What a master says of the nodes that copy its logs, and what these say of themselves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@dataclass
class Pair:
    """A master and a node that copies its logs, topic ``t`` with two partitions."""

    cluster: MemoryCluster
    master: BrokerNode
    copy: BrokerNode
    client: Client

    async def told(self, wanted: Callable[[wire.CopyStatus], bool]) -> wire.CopyStatus:
        """Return what the master says of the copy, once it says what is wanted."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for each in (await status(self.client)).copies:
                    if wanted(each):
                        return each
                await asyncio.sleep(0.02)


async def status(client: Client) -> wire.StatusResponse:
    answer, _ = await client.call(Command.STATUS, wire.StatusRequest(with_partitions=True))
    return answer  # type: ignore[no-any-return]


def nothing(copy: wire.CopyStatus) -> bool:
    """Whether a copy lacks nothing, for no time."""
    return (copy.bytes_behind, copy.ms_behind) == (0, 0)


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    master = await cluster.start()
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(master.parts.partitions.channels) == 2)
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, master.address)
    found = Pair(cluster, master, copy, client)
    await client.put("t", 0, [message(b"first")])
    await found.told(nothing)
    yield found
    client.close()


async def test_a_copy_that_has_everything_lacks_nothing_for_no_time(pair: Pair) -> None:
    told = await pair.told(lambda copy: copy.partitions == 2)
    assert (told.node, nothing(told)) == ("n2", True)


async def test_a_lag_has_the_age_of_the_oldest_message_that_is_missing(pair: Pair) -> None:
    """It grows although further messages come; once everything is there, there is none."""
    pair.cluster.flushers["b1-n2"].held = True
    pair.client.send_put("t", 0, [message(b"second")])
    lag = await pair.told(lambda copy: copy.bytes_behind > 0)
    await pair.told(lambda copy: copy.ms_behind > 1_500)
    pair.client.send_put("t", 1, [message(b"third")])
    await pair.told(lambda copy: copy.bytes_behind > lag.bytes_behind and copy.ms_behind > 2_500)
    pair.cluster.flushers["b1-n2"].release()
    await pair.told(nothing)


async def test_the_age_is_that_of_the_message_and_not_of_the_copy(pair: Pair) -> None:
    """A node that comes back lacks what is as old as its absence."""
    await pair.copy.stop()
    await pair.client.put("t", 0, [message(b"second")])
    clock = pair.cluster.ensemble.clock
    stored = clock.wall_ms()
    await until(lambda: clock.wall_ms() > stored + 2_000)
    copy = pair.cluster.node(node="n2")
    pair.cluster.flushers["b1-n2"].held = True
    await copy.start()
    await pair.told(lambda copy: copy.ms_behind > 2_000)
    pair.cluster.flushers["b1-n2"].release()
    await pair.told(nothing)


async def test_a_partition_that_cannot_be_copied_says_why(pair: Pair) -> None:
    pair.cluster.disks["b1-n2"].capacity_bytes = 0
    pair.client.send_put("t", 1, [message(b"x" * 100_000)])
    client = await Client.connect(pair.cluster.network, pair.copy.address)

    async def causes(*, some: bool) -> list[str]:
        async with asyncio.timeout(WAIT_S):
            while True:
                found = [each.not_copied for each in (await status(client)).partitions]
                if any(found) == some:
                    return found
                await asyncio.sleep(0.02)

    first, second = await causes(some=True)
    assert first == ""
    assert "full" in second or "space" in second
    pair.cluster.disks["b1-n2"].capacity_bytes = None
    await causes(some=False)
    client.close()
