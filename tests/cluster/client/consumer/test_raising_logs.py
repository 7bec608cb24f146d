"""A consumer of an application whose logging raises: none of its tasks ends by that."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.consumers import coordinator_of, core_of
from support.raising_logs import raising_logs

from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer import troubles
from vq.client.consumer.place import places
from vq.coordination.groups import claims
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import CorruptData, VqError
from vq.model import Message, TopicPartition
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time
P0 = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, and topic ``t`` of two partitions: a member that claims both."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        yield cluster


def fail_first(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, make_error: Callable[[], VqError]
) -> list[int]:
    """Have a function fail twice; return a list with how many failures are left."""
    work, left = getattr(owner, name), [2]

    async def fail(*arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise make_error()
        return await work(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)
    return left


async def test_a_consumer_goes_on_when_every_log_line_raises(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its tasks meets errors that it logs: members, commits, places, what is published."""
    monkeypatch.setattr(troubles, "PUBLISH_S", 0.01)

    async def send(text: bytes) -> None:
        async with await factory.create_producer(ProducerConfig(batch_records=1)) as producer:
            await producer.send(Message("t", text, key="one"))

    async with factory_of(cluster, session_timeout_s=2.0) as factory:
        config = ConsumerConfig(group="g", member_id="a", commit_interval_s=0.05, max_wait_s=0.5)
        found: list[bytes] = []

        async def consume() -> None:
            consumer = (await factory.create_consumer(config)).subscribe("t")
            consumers.append(consumer)
            async for message in consumer:
                text = message.content
                found.append(text)

        consumers: list[Any] = []
        first = asyncio.create_task(consume())
        await send(b"1")
        await until(lambda: found == [b"1"])
        await consumers[0].close()
        await first

        faults = {
            "claim": fail_first(monkeypatch, claims, "claim_together", lambda: ConnectionLost("")),
            "commit": fail_first(
                monkeypatch, ZooKeeperOffsets, "commit", lambda: ConnectionLost("not now")
            ),
            "place": fail_first(monkeypatch, places, "why_another", lambda: CorruptData("bad")),
            "report": fail_first(
                monkeypatch, claims, "report_stopped", lambda: ConnectionLost("not now")
            ),
        }
        with raising_logs() as handler:
            second = asyncio.create_task(consume())
            await until(lambda: len(consumers) == 2 and len(consumers[1].assignment()) == 2)
            await send(b"2")
            await until(lambda: found == [b"1", b"2"])
            await send(b"3")
            await until(lambda: found == [b"1", b"2", b"3"])
            await until(lambda: all(left == [0] for left in faults.values()))
            coordinator = coordinator_of(factory)
            assert isinstance(coordinator, MemoryCoordinator)
            session = coordinator.session_id
            cluster.ensemble.expire(coordinator)
            await until(lambda: coordinator.session_id not in {0, session})
            await send(b"4")
            await until(lambda: b"4" in found)
            core = core_of(consumers[1])
            for task in (core._membership._task, *core._tasks):
                assert not task.done()
            async with asyncio.timeout(WAIT_S):
                await consumers[1].close()
                await second
        for line in (
            "rebalance failed, trying again",
            "commit failed, trying again later",
            "errors of partitions cannot be published, trying again later",
            "partition does not go on, trying again without skipping",
        ):
            assert any(each.startswith(line) for each in handler.lines), line

    async def is_committed() -> bool:
        async with cluster.admin() as admin:
            offsets = await ZooKeeperOffsets(admin).read("g", ["t"])
        return max(each.offset for each in offsets.values()) > 0

    await until_true(is_committed)
