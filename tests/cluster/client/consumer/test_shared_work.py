"""Members of a shared group: each message is handled by any of them, and settled by itself."""

import asyncio
import contextvars
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, memory_cluster
from support.client import factory_of, started

from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.bad_records import BadRecords
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import Retry
from vq.client.consumer.shared.desk import SharedTerms
from vq.client.consumer.shared.receiver import SharedReceiver
from vq.client.consumer.shared.turns import SourceTurns
from vq.client.consumer.shared.work import SharedMessage, SharedWork
from vq.client.copies import MessageCopies
from vq.client.reading.nodes import Nodes
from vq.coordination.tree.values.group_terms import OnBadRecord
from vq.errors import LeaseLost
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition
from vq.store.disk.memory_disk import keep_all
from vq.store.records.record import encode_record
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: Members with the same random numbers would be one.
SEEDS = itertools.count(100)
Listener = Callable[[Any], Awaitable[Any]]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One node with topic ``t`` of four partitions."""
    async with memory_cluster() as found:
        await found.start()
        await found.create_topic("t", partitions=4)
        yield found


class SharedMember:
    """One member with its listener."""

    def __init__(
        self,
        client: ClusterClient,
        listener: Listener,
        *,
        workers: int = 3,
        lease_s: float = 10.0,
        open_max: int = 10_000,
        wanted: Filter = ALL,
        **settings: Any,
    ) -> None:
        config = ConsumerConfig(
            group="g", mode="concurrent", **{"on_failure": "dead-letter", **settings}
        )
        self.troubles: dict[TopicPartition, Any] = {}
        self.policy, copies = PolicyInForce(config), MessageCopies(client, "g")
        self.bad_records = BadRecords(client, "g", copies)
        self.wanted = wanted
        self.receiver = SharedReceiver(
            client,
            "g",
            SharedTerms(round(lease_s * 1_000), open_max, 100_000),
            nodes=Nodes(client),
            workers=workers,
            buffer_bytes=config.buffer_bytes,
            policy=self.policy,
            bad_records=self.bad_records,
            trouble=lambda partition, _, error: self.troubles.update({partition: error}),
        )
        self.work = SharedWork(
            self.receiver,
            "g",
            self.policy,
            copies,
            lambda _: listener,
            lambda *said: self.work.settle(*said),
            workers=workers,
            rng=client.rng,
            clock=client.clock,
            context=contextvars.copy_context(),
        )

    async def start(self) -> None:
        for number in range(4):
            await self.receiver.add(TopicPartition("t", number), self.wanted, latest=False)
        self.receiver.start()
        self.work.start()

    async def close(self, timeout_s: float = 30.0) -> None:
        await self.receiver.stop()
        await self.work.close(timeout_s)
        await self.receiver.close()


@asynccontextmanager
async def members(
    cluster: MemoryCluster, count: int, listener: Listener, **settings: Any
) -> AsyncIterator[list[SharedMember]]:
    """Provide members that work, each of a client of its own."""
    async with AsyncExitStack() as stack:
        made: list[SharedMember] = []
        for number in range(count):
            client = await stack.enter_async_context(
                started(cluster, seed=next(SEEDS), host=f"m{number}")
            )
            made.append(SharedMember(client, listener, **settings))
            await made[-1].start()
            stack.push_async_callback(made[-1].close)
        yield made


async def send(cluster: MemoryCluster, count: int, **fields: Any) -> None:
    async with factory_of(cluster, seed=random.randrange(2**30)) as factory:
        producer = await factory.create_producer()
        await producer.send_batch([Message("t", b"%d" % each, **fields) for each in range(count)])


def lows(member: SharedMember) -> int:
    return sum(low for _, low in member.receiver.lows().values())


async def test_each_message_is_handled_once_by_any_member(cluster: MemoryCluster) -> None:
    """More workers than partitions are all at work, and nothing stays open."""
    seen: Counter[bytes] = Counter()
    at_once, most = 0, 0

    async def listener(message: SharedMessage) -> None:
        nonlocal at_once, most
        assert message.attempts == 1
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        seen[message.content] += 1

    async with members(cluster, 3, listener, workers=8) as found:
        await send(cluster, 300)
        await until(lambda: len(seen) == 300)
        await send(cluster, 1)
        await until(lambda: seen[b"0"] == 2)
        await until(lambda: any(lows(each) == 301 for each in found))
    assert sum(seen.values()) == 301
    assert most > 12, "of 24 workers, at 4 partitions"


async def test_a_message_that_fails_is_delivered_again_and_becomes_a_dead_letter(
    cluster: MemoryCluster,
) -> None:
    """With the pauses of the policy; others do not wait for it. Its copy tells what failed."""
    tries: list[tuple[int, float]] = []
    seen: set[bytes] = set()

    async def listener(message: SharedMessage) -> Retry | None:
        if message.content == b"7":
            tries.append((message.attempts, cluster.ensemble.clock.monotonic()))
            if message.attempts == 2:
                return Retry(after_s=5.0)
            raise ValueError("seven")
        seen.add(message.content)
        return None

    settings = {"max_attempts": 3, "retry_backoff": (1.0, 1.0)}
    async with members(cluster, 2, listener, **settings) as found:
        await send(cluster, 20, headers={"a": "b"})
        await until(lambda: len(seen) == 19)
        await until(lambda: any(lows(each) == 20 for each in found))
    assert [each for each, _ in tries] == [1, 2, 3]
    first, second, third = (at for _, at in tries)
    assert 0.8 <= second - first < 3
    assert 5 <= third - second < 7
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer()
        letters = [
            each
            for number in range(4)
            for each in await consumer.get("_vq.dlq.g", number, 0, 1 << 20)
        ]
    (letter,) = letters
    assert (letter.content, letter.headers and letter.headers["a"]) == (b"7", "b")
    assert letter.failure is not None
    assert letter.failure.attempts == 3
    assert "seven" in letter.failure.reason


async def test_a_message_that_takes_its_members_along_is_not_tried_for_ever(
    cluster: MemoryCluster,
) -> None:
    """Nobody says what becomes of it; after so many deliveries no listener gets it any more."""
    deliveries: list[int] = []

    async def listener(message: SharedMessage) -> None:
        deliveries.append(message.attempts)
        await asyncio.Event().wait()

    for _ in range(2):
        async with started(cluster, host="dies") as client:
            member = SharedMember(client, listener, workers=1, lease_s=1.0, max_attempts=2)
            if not deliveries:
                await send(cluster, 1)
            await member.start()
            before = len(deliveries)
            await until(lambda: len(deliveries) > before)  # noqa: B023
            for task in [
                *member.work._tasks,
                member.receiver._receiving,
                member.receiver._settler._task,
            ]:
                assert task is not None
                task.cancel()  # as if it was killed
            for source in member.receiver._sources.values():
                if source.task is not None:
                    source.task.cancel()
        await asyncio.sleep(1.5)
    assert deliveries == [1, 2]
    async with members(cluster, 1, listener, max_attempts=2) as (member,):
        await until(lambda: lows(member) == 1)
    assert deliveries == [1, 2]
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer()
        letters = [await consumer.get("_vq.dlq.g", number, 0, 1 << 20) for number in range(4)]
    (letter,) = [each for found in letters for each in found]
    assert letter.content == b"0"
    assert letter.failure is not None
    assert letter.failure.attempts == 2
    assert "nobody acknowledged it" in letter.failure.reason


async def test_an_acknowledgement_that_is_late_is_told_so(cluster: MemoryCluster) -> None:
    """Whoever has extended its lease in time still has the message."""
    outcomes: list[object] = []

    async def listener(message: SharedMessage) -> None:
        if message.attempts > 1:
            return
        if message.content == b"0":
            await message.extend(30.0)
        await asyncio.sleep(5.0)
        try:
            await message.ack()
            outcomes.append(message.content)
        except LeaseLost as error:
            outcomes.append(type(error))

    async with members(cluster, 2, listener, lease_s=2.0) as found:
        await send(cluster, 2)
        await until(lambda: any(lows(each) == 2 for each in found) and len(outcomes) == 2)
    assert outcomes.count(LeaseLost) == 1
    assert b"0" in outcomes


async def test_what_a_listener_settles_is_not_settled_again(cluster: MemoryCluster) -> None:
    """It acknowledges, gives back for a time, or gives up; its return changes nothing then."""
    seen: Counter[bytes] = Counter()

    async def listener(message: SharedMessage) -> None:
        seen[message.content] += 1
        if message.content == b"0" and message.attempts == 1:
            await message.nack(delay_s=1.0)
        elif message.content == b"1":
            await message.reject()
            raise ValueError("after the end")
        elif message.content == b"2":
            await message.ack()

    async with members(cluster, 1, listener) as (member,):
        await send(cluster, 4)
        await until(lambda: lows(member) == 4)
    assert seen == {b"0": 2, b"1": 1, b"2": 1, b"3": 1}


async def test_what_a_filter_leaves_out_is_done(cluster: MemoryCluster) -> None:
    """No listener gets it, and it holds up nothing."""
    seen: list[bytes] = []

    async def listener(message: SharedMessage) -> None:
        seen.append(message.content)

    async with members(cluster, 1, listener, wanted=Filter.of("a")) as (member,):
        await send(cluster, 5, tag="b")
        await send(cluster, 3, tag="a")
        await until(lambda: lows(member) == 8)
    assert len(seen) == 3


async def test_a_member_that_is_closed_gives_back_what_nobody_has_seen(
    cluster: MemoryCluster,
) -> None:
    """Others get it at once, and as if it was not delivered before."""
    go_on = asyncio.Event()
    seen: Counter[bytes] = Counter()

    async def waits(message: SharedMessage) -> None:
        await go_on.wait()
        seen[message.content] += 1

    async def listener(message: SharedMessage) -> None:
        assert message.attempts == 1
        seen[message.content] += 1

    await send(cluster, 12)
    async with members(cluster, 1, waits, workers=2, lease_s=3_600.0) as (first,):
        first.receiver._room._least = 4  # as many as if they were quick
        await until(lambda: len(first.receiver._queue) == 2)
        closing = asyncio.create_task(first.close())
        async with members(cluster, 1, listener) as (_,):
            await until(lambda: len(seen) == 10)
            go_on.set()
            await closing
            await until(lambda: sum(seen.values()) == 12)
    assert set(seen.values()) == {1}


async def test_a_broker_that_dies_loses_nothing_of_a_shared_group(cluster: MemoryCluster) -> None:
    """Members go on with the next one; what they had in hand they can settle."""
    await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    seen: Counter[bytes] = Counter()

    async def listener(message: SharedMessage) -> None:
        await asyncio.sleep(0.05)
        seen[message.content] += 1

    async with members(cluster, 2, listener, workers=2, lease_s=60.0) as found:
        await send(cluster, 200)
        await until(lambda: len(seen) > 20)
        cluster.network.kill("b1")
        disk = cluster.disks["b1"].crash(keep_all)
        cluster.ensemble.crash(cluster.coordinators["b1"])
        cluster.flushers["b1"].release()
        await cluster.nodes["b1"].stop()
        cluster.disks["b1"] = disk
        await cluster.until_in_sync("n2")
        await until(lambda: len(seen) == 200)
        await until(lambda: any(lows(each) == 200 for each in found))
    assert set(seen.values()) == {1}


async def test_all_partitions_of_a_member_have_their_turn(cluster: MemoryCluster) -> None:
    """Also if a request has no room for all: whether there is much to do, or nothing at times."""
    seen: Counter[bytes] = Counter()

    async def listener(message: SharedMessage) -> None:
        seen[message.content] += 1

    async with started(cluster, seed=next(SEEDS), host="m") as client:
        member = SharedMember(client, listener)
        member.receiver._turns = SourceTurns(2)
        await member.start()
        for times in (1, 2):
            await send(cluster, 100)
            begin = cluster.ensemble.clock.monotonic()
            await until(lambda: sum(seen.values()) == 100 * times)  # noqa: B023
            assert cluster.ensemble.clock.monotonic() - begin < 10
            await until(lambda: lows(member) == 100 * times)  # noqa: B023
            await asyncio.sleep(30)
        await member.close()
    assert set(seen.values()) == {2}


@pytest.mark.parametrize("policy", ["stop", "skip", "dead-letter"])
async def test_a_record_that_nobody_can_read_goes_by_the_policy(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    """What is behind it does not wait for it; what was passed over never comes again."""
    seen: list[bytes] = []

    async def listener(message: SharedMessage) -> None:
        seen.append(message.content)

    wire = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    good = [encode_record(number, b"%d" % number) for number in range(4)]
    bad = good[0][:4] + bytes([good[0][4] ^ 1]) + good[0][5:]
    await wire.put("t", 0, [good[0], good[1], bad, good[2], bad, bad, good[3]])
    settings = {"on_bad_record": policy, "retry_backoff": (1.0, 30.0)}
    async with members(cluster, 1, listener, **settings) as (member,):
        await until(lambda: len(seen) == 4, timeout_s=600.0)
        if policy == "stop":
            await asyncio.sleep(120)
            assert member.troubles[TopicPartition("t", 0)] is not None
            assert lows(member) == 2
            assert caplog.text.count("does not pass over it") < 20
            assert member.bad_records.passed == 0
            now = member.policy.now
            member.policy.follow(dataclasses.replace(now, on_bad_record=OnBadRecord.SKIP))
        await until(lambda: lows(member) == 7, timeout_s=600.0)
        await until(lambda: member.troubles.get(TopicPartition("t", 0)) is None)
        assert member.bad_records.passed == 3
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]
    async with factory_of(cluster) as factory:
        found = []
        if policy == "dead-letter":
            found = [each async for each in factory.admin.read_dead_letters("g")]
    assert [each.message.content for each in found] == ([bad] * 3 if found else [])
    assert len(found) == (3 if policy == "dead-letter" else 0)
