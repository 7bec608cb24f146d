"""Answers of a master that cannot be: they are refused, and the node goes on."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.replication import copying
from vq.broker.replication.copying import CopySession
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.format import Command
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

NUMBERS = [0, 1, 5, 87, 88, 89, 1000, 2**31, 2**32 - 1, 10**18, 2**63 - 1, 2**63, 2**64 - 1]


async def start_pair(cluster: MemoryCluster) -> tuple[BrokerNode, BrokerNode, Client]:
    """A master, a copy in sync, a client; topic ``t`` with two partitions and some messages."""
    master = await cluster.start()
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(master.parts.partitions.channels) == 2)
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, master.address)
    for number in range(4):
        await client.put("t", number % 2, [message(b"%d" % number * 40)])
    await until(lambda: master.parts.context.role.named == 2)
    return master, copy, client


def change_ends(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Change every answer to EPOCH_END."""
    request = BrokerConnection.request

    async def changed(self, command, *arguments, **options):
        answer, body = await request(self, command, *arguments, **options)
        if command == Command.EPOCH_END:
            change(answer)
        return answer, body

    monkeypatch.setattr(BrokerConnection, "request", changed)


def cut_copies(master: BrokerNode) -> None:
    """End the connections of copies, which then compare all logs again."""
    for session in list(master.parts.server.sessions):
        if session.client_id.startswith("copy"):
            session.abort()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"end_epoch": 1000}, "names the later epoch 1000"),
        ({"log_start_offset": 2**63}, "an offset above"),
        ({"end_offset": 2**64 - 1}, "an offset above"),
        ({"next_start": 2**64 - 1}, "an offset above"),
        ({"log_start_offset": 50, "end_offset": 49}, "ends at 49, before it begins at 50"),
        ({"epoch": 7}, "answers in epoch 7"),
    ],
)
async def test_an_answer_that_cannot_be_changes_no_log(
    cluster, monkeypatch, caplog, fields, reason
):
    """An epoch after the one asked for would have both logs compared without end."""
    master, copy, client = await start_pair(cluster)
    log = copy.parts.partitions.channels["t", 0].log
    lies, told = [True], list[int]()

    def change(answer: Any) -> None:
        told.append(1)
        for name, value in fields.items() if lies else ():
            setattr(answer, name, value)

    change_ends(monkeypatch, change)
    before = log.start_offset, log.end_offset
    cut_copies(master)
    await until(lambda: reason in caplog.text)
    await asyncio.sleep(10)
    assert len(told) < 100
    assert copy.parts.partitions.channels["t", 0].log is log
    assert (log.start_offset, log.end_offset) == before
    lies.clear()
    await client.put("t", 0, [message(b"x")])
    await until(
        lambda: log.synced_offset == master.parts.partitions.channels["t", 0].log.end_offset
    )


@pytest.mark.parametrize("seed", range(10))
async def test_random_nonsense_stops_nothing(cluster, monkeypatch, caplog, seed):
    """Fields, bytes and lengths: no exception that is no error of vq, and pauses between tries."""
    rng = random.Random(seed)
    master, copy, client = await start_pair(cluster)
    calls = list[int]()

    def mutate(answer: Any) -> None:
        for field in answer.DESCRIPTOR.fields:
            if field.is_repeated or field.message_type is not None or rng.random() > 0.1:
                continue
            if field.cpp_type in {field.CPPTYPE_UINT64, field.CPPTYPE_UINT32}:
                bits = 64 if field.cpp_type == field.CPPTYPE_UINT64 else 32
                setattr(answer, field.name, rng.choice([n for n in NUMBERS if n < 2**bits]))
            elif field.cpp_type == field.CPPTYPE_BOOL:
                setattr(answer, field.name, rng.random() < 0.5)
            elif field.type == field.TYPE_BYTES:
                setattr(answer, field.name, rng.randbytes(rng.choice([0, 1, 8, 100])))

    def ends(answer: Any) -> None:
        calls.append(1)
        if rng.random() < 0.5:
            mutate(answer)

    decode, take = copying.decode_reply, CopySession.take_answer

    def decodes(frame):
        calls.append(1)
        answer = decode(frame)
        for result in answer.results if rng.random() < 0.5 else ():
            mutate(result)
        return answer

    def takes(self, response, body):
        if body and rng.random() < 0.3:
            changed = bytearray(body)
            changed[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
            body = bytes(changed[: rng.choice([len(body), rng.randrange(len(body))])])
        take(self, response, body)

    change_ends(monkeypatch, ends)
    monkeypatch.setattr(copying, "decode_reply", decodes)
    monkeypatch.setattr(CopySession, "take_answer", takes)
    for number in range(20):
        await client.put("t", number % 2, [message(b"%d" % number * 40)])
        if rng.random() < 0.3:
            cut_copies(master)
        await asyncio.sleep(rng.random())
    assert len(calls) < 2000
    assert not [each for each in caplog.records if each.exc_info]
    assert not copy.parts.tasks.closed
