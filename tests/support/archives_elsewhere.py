"""Blocks of topic ``t`` of a node in memory, and their archives at a place elsewhere."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.archive_places import URL, Failing
from support.broker import DATA, Client, message
from support.node_pair import settled

from vq.broker.logs import archiving
from vq.broker.partition.channel import Channel
from vq.store.archive import archive_writer
from vq.store.log.block import Block
from vq.store.log.log import Log


@contextlib.contextmanager
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place that answers; small chunks, so that a small block has several."""
    monkeypatch.setattr(archive_writer, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(archiving, "DISCARD_S", 0.1)
    Failing.reset()
    yield
    Failing.reset()


def channel_of(served: Any) -> Channel:
    return served.node.parts.partitions.channels["t", 0]


def log_of(served: Any) -> Log:
    return channel_of(served).log


async def fill(served: Any, blocks: int = 3) -> list[Block]:
    """Write closed blocks."""
    for number in range(blocks):
        for each in range(10):
            await served.client.put("t", 0, [message(b"%02d-%02d " % (number, each) * 60)])
        log_of(served).roll()
    await settled(channel_of(served))
    return list(log_of(served).closed_blocks)


async def archive(served: Any, block: Block, to: str = URL) -> None:
    await served.node.parts.partitions.logs.archiving.archive(channel_of(served), block, to)


async def read_all(client: Client, begin: int = 0) -> bytes:
    found, offset = b"", begin
    while True:
        answer, body = await client.get("t", 0, offset)
        found += body
        if not body:
            return found
        offset = answer.next_offset


def names(served: Any, suffix: str) -> list[str]:
    return [n for n in served.disk.listdir(DATA / "t" / "0") if n.endswith(suffix)]
