"""What copies told belongs to an epoch: a link that fell silent in one says nothing in the next."""

import asyncio

import pytest
from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply, described_error
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: Of a producer whose batches are recognised when they are sent again.
PRODUCER = 7


class Trio:
    """Three nodes in sync: ``n1``, which leads, ``n2``, ``n3``; topic ``t`` with one message."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, BrokerNode] = {}

    async def start(self) -> "Trio":
        for name in ("n1", "n2", "n3"):
            self.nodes[name] = await self.cluster.start(node=name)
        await self.cluster.create_topic("t", partitions=1, min_insync=1)
        await until(lambda: ("t", 0) in self.nodes["n1"].parts.partitions.channels)
        await self.cluster.until_in_sync("n1", "n2", "n3")
        await self.put("n1", b"first", 0)
        await until(lambda: {self.end(name) for name in self.nodes} == {self.end("n1")} != {0})
        return self

    def channel(self, name: str) -> Channel:
        return self.nodes[name].parts.partitions.channels["t", 0]

    def end(self, name: str) -> int:
        channel = self.nodes[name].parts.partitions.channels.get(("t", 0))
        return channel.log.end_offset if channel is not None and channel.log is not None else 0

    @staticmethod
    def host(name: str) -> str:
        return "b1" if name == "n1" else f"b1-{name}"

    def cut(self, one: str, other: str) -> None:
        self.cluster.network.cut(self.host(one), self.host(other))

    def heal(self, one: str, other: str) -> None:
        self.cluster.network.heal(self.host(one), self.host(other))

    async def put(self, name: str, text: bytes, sequence: int, **fields: object) -> object:
        client = await Client.connect(self.cluster.network, self.nodes[name].address)
        try:
            return await client.put(
                "t",
                0,
                [message(text * 20)],
                producer_id=PRODUCER,
                sequence=sequence,
                **fields,
            )
        finally:
            client.close()

    async def begin_put(self, name: str, text: bytes, sequence: int) -> "asyncio.Task[object]":
        """Send a message that is not acknowledged for now; return once this node has it."""
        end = self.end(name)
        task = asyncio.create_task(self.put(name, text, sequence))
        await until(lambda: self.end(name) > end)
        return task

    async def has_lead(self, heir: str, *, instead_of: str, deaf: str) -> None:
        """End the session of the master; ``deaf`` hears of it when ``heir`` leads."""
        ensemble, coordinators = self.cluster.ensemble, self.cluster.coordinators
        ensemble.hold_events(coordinators[self.host(deaf)])
        ensemble.expire(coordinators[self.host(instead_of)])
        await until(lambda: self.nodes[heir].epoch > 0)
        ensemble.release_events(coordinators[self.host(deaf)])

    async def kill(self, name: str) -> None:
        """Take a node away for good; its session has ended."""
        self.cluster.network.kill(self.host(name))
        self.cluster.ensemble.crash(self.cluster.coordinators[self.host(name)])
        for other in set(self.nodes) - {name}:
            self.cut(name, other)


@pytest.fixture
async def trio(cluster: MemoryCluster) -> Trio:
    return await Trio(cluster).start()


async def test_what_a_copy_told_two_masters_ago_acknowledges_nothing(trio):
    """n2 told n1 more than it has since n3 led, over a link that is silent; n1 leads again."""
    shown = trio.end("n1")
    trio.cut("n1", "n3")  # so that n3 lacks what n1 and n2 have
    waiting = [await trio.begin_put("n1", b"second", 1)]
    await until(lambda: trio.end("n2") == trio.end("n1"))
    told = trio.end("n2")
    await until(lambda: trio.channel("n1").copies.positions["n2"].offset == told)
    trio.cut("n1", "n2")
    waiting.append(await trio.begin_put("n1", b"third", 2))  # the answer to n2 never arrives
    # Epoch 2: n2 is cut to what n3 has, n1 takes more of n3 than n2 had told before.
    await trio.has_lead("n3", instead_of="n1", deaf="n2")
    trio.heal("n1", "n3")
    await until(lambda: trio.end("n2") == shown)
    trio.cut("n2", "n3")
    waiting.append(await trio.begin_put("n3", b"second", 1))
    await until(lambda: trio.end("n1") == trio.end("n3") > shown)
    await trio.cluster.until_in_sync("n1", "n2", "n3")
    # Epoch 3: n1 leads again. It counts n2 as in sync, and has heard nothing of it.
    ensemble, coordinators = trio.cluster.ensemble, trio.cluster.coordinators
    ensemble.hold_events(coordinators["b1-n2"])
    ensemble.expire(coordinators["b1-n3"])
    await trio.kill("n3")
    await until(lambda: trio.nodes["n1"].epoch > 0)
    assert trio.end("n2") == shown
    waiting.append(asyncio.create_task(trio.put("n1", b"second", 1, resend=True)))
    await asyncio.sleep(1.0)
    assert not waiting[-1].done(), "acknowledged, and n2 lacks it: it may be the next master"
    assert trio.channel("n1").high_watermark == shown
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_request_of_an_earlier_epoch_tells_nothing_in_a_later_one(cluster):
    """It waits for the next message when this node begins to lead anew, and is refused then."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    channel = node.parts.partitions.channels["t", 0]
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"first")])
    copy = await cluster.prove(await Client.connect(cluster.network, node.address), "b1", "n2")
    request = wire.ReplicateRequest(
        session=1, max_bytes=1 << 20, max_wait_ms=60_000, node="n2", incarnation=1, epoch=node.epoch
    )
    request.partitions.add(handle=1, topic="t", partition=0, offset=channel.high_watermark)
    parked = copy.send(Command.REPLICATE, request)
    await until(lambda: "n2" in channel.copies.positions)

    epoch = node.epoch
    cluster.ensemble.expire(cluster.coordinators["b1"])
    await until(lambda: node.epoch > epoch)
    assert channel.copies.positions == {}
    assert node.parts.lags.told() == {}
    answer = decode_reply(await parked)
    assert [type(described_error(each)).__name__ for each in answer.results] == ["NotMaster"]
    client.close()
    again = await Client.connect(cluster.network, node.address)
    await again.put("t", 0, [message(b"second")])
    assert channel.copies.positions == {}
    again.close()
    copy.close()
