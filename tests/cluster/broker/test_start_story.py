"""The log of a start: what was recovered, log by log and in sum, and what the node is then."""

import logging

import pytest
from support.broker import Client, MemoryCluster, memory_cluster, message

from vq.broker.base import start_story
from vq.broker.base.start_story import LINES_MAX, StartStory
from vq.model import TopicPartition
from vq.store.log.recovered import Case, RecoveryReport

pytestmark = pytest.mark.virtual_time


async def restart(cluster: MemoryCluster) -> None:
    """Start a broker again after it was killed, without a checkpoint of what it has."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=2)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"one")])
    await client.put("t", 1, [message(b"two")])
    client.close()
    await node.stop()
    await cluster.start()


async def test_a_start_tells_what_it_opened_and_what_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "vq.broker")
    async with memory_cluster() as cluster:
        await restart(cluster)
        lines = [record.getMessage() for record in caplog.records]
    opened = [line for line in lines if line.startswith("logs opened ")][-1]
    assert "topics=1 logs=2 " in opened
    assert opened.endswith("names=t")
    started = [line for line in lines if line.startswith("broker started ")][-1]
    assert "leads=true follows=- epoch=2 partitions=2 topics=1" in started


def test_many_logs_are_told_in_sum(caplog: pytest.LogCaptureFixture) -> None:
    """A line each for the first ones, the sums over all, the slowest by name."""
    caplog.set_level(logging.INFO, start_story.__name__)
    story = StartStory()
    for number in range(LINES_MAX * 3):
        report = RecoveryReport(Case.TORN_TAIL, verified_bytes=10, batches=1, cut_bytes=2)
        story.opened(TopicPartition("t", number), report, 0.5 if number == 7 else 0.1)
    story.opened(TopicPartition("new", 0), RecoveryReport(), 0.1)
    story.end()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_MAX + 1
    assert lines[0] == (
        'log recovered partition=t-0 case="torn tail" verified_bytes=10 batches=1 cut_bytes=2 '
        "cut_messages=- took_s=0.1"
    )
    assert lines[-1] == (
        f"logs opened topics=1 logs={LINES_MAX * 3} verified_bytes={LINES_MAX * 30} "
        f"cut_logs={LINES_MAX * 3} cut_bytes={LINES_MAX * 6} took_s=6.4 slowest=t-7 slowest_s=0.5 "
        "names=t"
    )


def test_what_is_opened_after_the_start_is_no_part_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, start_story.__name__)
    story = StartStory()
    story.end()
    caplog.clear()
    story.opened(TopicPartition("t", 0), RecoveryReport(Case.CLEAN, verified_bytes=9), 0.1)
    assert not caplog.records
