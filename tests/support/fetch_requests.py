"""Requests of a fetch session, and what their answers have."""

import asyncio
from collections.abc import Iterable

from support.broker import Client, fetched, message

from vq import limits
from vq.remoting import wire_pb2 as wire
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S

MIB = limits.MIB


def add(partition: int, offset: int = 0, *, handle: int | None = None, **fields):
    """Add a partition to the session, by default under its own number."""
    values = {"topic": "t", "max_bytes": MIB, **fields}
    number = partition if handle is None else handle
    return wire.FetchPartition(handle=number, partition=partition, offset=offset, **values)


def again(handle: int, offset: int, **fields):
    """Ask for a partition of the session again."""
    return wire.FetchPartition(handle=handle, offset=offset, **{"max_bytes": MIB, **fields})


def payloads(found, handle: int) -> list[bytes]:
    """The messages that an answer has of one partition."""
    result, body = found[handle]
    return [record.payload for record in decode_records(body, result.offset)]


def parked(served) -> list[int]:
    """The partitions that somebody waits for."""
    channels = served.node.parts.partitions.channels.values()
    return sorted(each.partition.partition for each in channels if each.parked)


async def answer(waiting) -> dict:
    """What a FETCH that waited brought."""
    return fetched(await asyncio.wait_for(waiting, WAIT_S))


async def fill(client: Client, partitions: Iterable[int], count: int = 3, size: int = 10) -> None:
    """Put a batch into each of these partitions of topic ``t``."""
    for number in partitions:
        batch = [message(b"%d" % number * size, n + 1) for n in range(count)]
        await client.put("t", number, batch)
