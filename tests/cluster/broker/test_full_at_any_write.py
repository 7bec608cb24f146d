"""The disk of a broker becomes full at each of its writes in turn.

    start ── topic ── batches ── roll ── batches ── deletion ── stop ── start
              ▲ from the N-th operation that needs space on, there is none, until some is freed

Goal: a send is acknowledged or refused for certain, nothing acknowledged is lost or comes in
another order, nothing refused appears, and messages are taken again without a restart.
"""

import asyncio
import errno
from pathlib import PurePath

import pytest
from support.broker import Client, memory_cluster, message
from support.node_pair import settled, whole

from vq.errors import Busy, DiskFull, UnknownTopic, VqError
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

#: What takes space; ``open`` is of a file that is made, or one that is there.
NEEDS_SPACE = frozenset({"pwrite", "allocate", "mkdir"})


class FullDisk:
    """Says ENOSPC from the N-th operation on that needs space, until it is freed."""

    def __init__(self, disk, at: int) -> None:
        self.count = 0
        self.at: int | None = at
        self.strikes = 0
        self._real = disk.may_fail
        disk.may_fail = self.may_fail

    def may_fail(self, kind: str, path: PurePath) -> OSError | None:
        if kind in NEEDS_SPACE and PurePath(path).name != "@reserve":
            self.count += 1
            if self.at is not None and self.count >= self.at:
                self.strikes += 1
                return OSError(errno.ENOSPC, "no space here", str(path))
        return self._real(kind, path)

    def free(self) -> None:
        self.at = None


async def put(client: Client, number: int) -> bool:
    """Send one message; whether it is acknowledged. Anything else is a definite refusal."""
    try:
        await client.put("t", number % 2, [message(b"%d" % number)])
    except (DiskFull, Busy, UnknownTopic):  # each says that the message is not stored
        return False
    return True


def stored(log) -> list[bytes]:
    records = decode_records(whole(log, log.start_offset), log.start_offset)
    return [record.payload for record in records if record.payload.isdigit()]


async def one_run(at: int) -> int:
    """One life with a disk that is full from its ``at``-th operation on; how often that struck."""
    async with memory_cluster() as cluster:
        node = await cluster.start()
        full = FullDisk(cluster.disks["b1"], at)
        await cluster.create_topic("t", partitions=2)
        await until(lambda: len(node.parts.partitions.channels) == 2 or full.strikes)
        client = await Client.connect(cluster.network, node.address)
        acknowledged: list[int] = []
        numbers = iter(range(10_000))

        async def some(count: int) -> None:
            for _ in range(count):
                number = next(numbers)
                if await put(client, number):
                    acknowledged.append(number)

        logs = node.parts.partitions.channels
        await some(6)
        for channel in list(logs.values()):
            if channel.log is not None and channel.log.size_bytes:
                channel.log.roll()
                channel.flush_now()
        await some(6)
        dropped = set()
        for channel in list(logs.values()):
            log = channel.log
            if log is not None and log.closed_blocks:
                before = stored(log)
                try:
                    await node.parts.partitions.logs.drop_before(
                        channel, log.closed_blocks[-1].end_offset
                    )
                except (OSError, VqError):
                    pass
                dropped |= set(before) - set(stored(log))
        await some(4)
        full.free()
        async with asyncio.timeout(WAIT_S):
            for wanted in (0, 1):
                while True:
                    number = next(numbers)
                    done = await put(client, number)
                    if done:
                        acknowledged.append(number)
                    if done and number % 2 == wanted:
                        break
                    await asyncio.sleep(0.001)
        for channel in logs.values():
            await settled(channel)
        await node.stop()
        node = await cluster.start()
        await until(lambda: len(node.parts.partitions.channels) == 2)
        for number in (0, 1):
            channel = node.parts.partitions.channels["t", number]
            expected = [b"%d" % each for each in acknowledged if each % 2 == number]
            found = stored(channel.log)
            assert found == [each for each in expected if each not in dropped or each in found], at
        return full.strikes


@pytest.mark.slow
async def test_a_disk_that_is_full_at_any_write_loses_nothing_and_takes_messages_again() -> None:
    at = 0
    while True:
        at += 1
        if not await one_run(at):
            break
        assert at < 500
    assert at > 20


async def one_copy(at: int) -> int:
    """A copy whose disk is full from its ``at``-th operation on; how often that struck."""
    async with memory_cluster() as cluster:
        master = await cluster.start()
        await cluster.create_topic("t", partitions=2)
        await until(lambda: len(master.parts.partitions.channels) == 2)
        client = await Client.connect(cluster.network, master.address)
        for number in range(4):
            assert await put(client, number)
        copy = cluster.node(node="n2")
        full = FullDisk(cluster.disks["b1-n2"], at)
        full.at = None  # a start that cannot make its directory is refused
        await copy.start()
        full.count, full.at = 0, at
        for number in range(4, 10):
            assert await put(client, number), "whatever the copy does, its master takes messages"
        for channel in master.parts.partitions.channels.values():
            channel.log.roll()
            await settled(channel)
            start = channel.log.closed_blocks[-1].start_offset
            await master.parts.partitions.logs.drop_before(channel, start)
            channel.tell_deleted(start)
        for number in range(10, 16):
            assert await put(client, number)
        strikes = full.strikes
        full.free()

        def same() -> bool:
            for own, other in (logs_of(number) for number in (0, 1)):
                if own is None or other is None or own.end_offset != other.synced_offset:
                    return False
            return True

        def logs_of(number: int):
            return [node.parts.partitions.channels["t", number].log for node in (master, copy)]

        await until(same)
        await until(lambda: master.parts.context.role.named == 2)
        for number in (0, 1):
            own, other = logs_of(number)
            begin = max(own.start_offset, other.start_offset)
            assert whole(own, begin) == whole(other, begin), at
        return strikes


@pytest.mark.slow
async def test_a_copy_whose_disk_is_full_at_any_write_is_in_sync_again_and_equal() -> None:
    at = 0
    while True:
        at += 1
        if not await one_copy(at):
            break
        assert at < 500
    assert at > 8
