"""A broker finds its log shorter than it was at a clean stop, and no other node has the rest.

It says what is missing of which file, and serves what is whole. Nobody is told that a lost offset
does not exist, or was deleted.
"""

import logging
from typing import Any

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started
from support.store import SMALL

from vq.broker.node import BrokerNode
from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import change_placement, describe_topic
from vq.errors import PartitionQuarantined
from vq.operations.cluster.doctor import check_brokers
from vq.store.records.format import CONTROL_BYTES
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

LOG = DATA / "t" / "0"
MESSAGES = 60


async def start(cluster: MemoryCluster) -> tuple[BrokerNode, Client]:
    node = await cluster.start(log_config=SMALL)
    return node, await Client.connect(cluster.network, node.address)


class Stored:
    """A log of three blocks whose broker has stopped: where its batches and blocks begin."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.disk = cluster.disks["b1"]
        self.starts: list[int] = []
        self.end = 0
        self.blocks = sorted(int(name[:-6]) for name in self._names())

    def _names(self) -> list[str]:
        return [name for name in self.disk.listdir(LOG) if name.endswith(".block")]

    def damage(self, fault: str) -> tuple[int, int]:
        """Take something away; return the range that is missing then."""
        path = LOG / f"{self.blocks[-1]:016d}.block"
        file = self.disk.open(path)
        if fault == "cut":
            start = self.starts[-3]
            file.truncate(start - self.blocks[-1])
        elif fault.startswith("zeroed"):
            batches = {"zeroed a bit": 1, "zeroed": 5, "zeroed block": 1_000}[fault]
            start = max(self.starts[-min(batches, MESSAGES)], self.blocks[-1])
            first = start + CONTROL_BYTES + 20 if batches == 1 else start
            file.pwrite([bytes(self.end - first)], first - self.blocks[-1])
        else:
            number = ("first", "middle", "last").index(fault)
            start = self.blocks[number]
            self.disk.unlink(LOG / f"{start:016d}.block")
            file.close()
            return start, [*self.blocks, self.end][number + 1]
        file.close()
        return start, self.end


async def store(cluster: MemoryCluster) -> Stored:
    node, client = await start(cluster)
    await cluster.create_topic()
    offsets = [
        (await client.put("t", 0, [message(b"x" * (50 + number))])).offset
        for number in range(MESSAGES)
    ]
    log: Any = node.parts.partitions.channels["t", 0].log
    end = log.end_offset
    await node.stop()
    stored = Stored(cluster)
    stored.starts, stored.end = [offset - CONTROL_BYTES for offset in offsets], end
    assert len(stored.blocks) == 3
    return stored


FAULTS = ["cut", "zeroed a bit", "zeroed", "zeroed block", "first", "middle", "last"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_missing_is_told_and_not_served(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """In the broker's log, in STATUS, by doctor, and to whoever wants to read there."""
    stored = await store(cluster)
    begin, end = stored.damage(fault)
    caplog.clear()
    node, client = await start(cluster)

    missing = f"Missing or damaged: offsets [{begin}, {end})."
    (record,) = [each for each in caplog.records if "recovery finding" in each.getMessage()]
    assert record.levelno == logging.ERROR
    (told,) = (await client.status(with_partitions=True)).partitions
    assert told.state == "quarantined"
    async with started(cluster) as asking:
        findings = await check_brokers(asking)
    shown = [each.detail for each in findings if "t-0" in each.detail]
    assert shown
    for text in (record.getMessage(), told.reason, *shown):
        assert missing in text
        assert str(LOG) in text
        assert "t-0" in text
        assert f"{max(each for each in stored.blocks if each <= begin):016d}.block" in text

    inside = [each for each in stored.starts if begin <= each < end]
    for offset in (begin, *inside, end, stored.end, stored.end + 1_000):
        if fault != "first" or not end <= offset < stored.end:
            with pytest.raises(PartitionQuarantined):
                await client.get("t", 0, offset)
    with pytest.raises(PartitionQuarantined):
        await client.put("t", 0, [message(b"over old offsets")])
    whole = [each for each in stored.starts if each < begin]
    if fault == "first":
        whole = [each for each in stored.starts if each >= end]
    for offset in whole:
        assert (await client.get("t", 0, offset))[1]
    told = await client.offsets("t", 0, count=True, from_offset=0, to_offset=stored.end)
    assert (told.earliest, told.count_exact) == (0, False)
    await until(lambda: node.epoch > 0)


async def test_a_time_before_the_first_block_that_is_left_is_unknown(
    cluster: MemoryCluster,
) -> None:
    """The lost block may have had the first message since then."""
    stored = await store(cluster)
    stored.damage("first")
    _, client = await start(cluster)
    with pytest.raises(PartitionQuarantined, match="names 0000000000000000"):
        await client.offsets("t", 0, by_time=True, time_ms=0)
    assert (await client.offsets("t", 0, by_time=True, time_ms=1 << 50)).offset == stored.end


async def test_an_earlier_range_without_its_first_block_is_told(cluster: MemoryCluster) -> None:
    """As in the range that takes messages: no reader is sent past what is lost."""
    stored = await store(cluster)
    begin, end = stored.damage("first")
    stored.disk.rename(LOG, LOG.with_name("0.from-0"))  # as if put aside by an ADOPT
    async with cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        back = move(move(view.partitions[0], stored.end, "b2"), 90_000, "b1")
        await change_placement(admin, view, back)
    _, client = await start(cluster)
    for offset in (begin, end - 1):
        with pytest.raises(PartitionQuarantined, match=r"offsets \[0, "):
            await client.get("t", 0, offset)
    assert (await client.get("t", 0, end))[1]
    assert (await client.offsets("t", 0)).earliest == 0
