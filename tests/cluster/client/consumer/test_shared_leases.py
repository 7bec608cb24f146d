"""Members of a shared group through the API: what counts as a delivery, and what is never lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of

from vq import ConsumerConfig, Message, aio
from vq.client.consumer.shared.desk import SharedDesk
from vq.client.consumer.shared.handles import SettleKind
from vq.client.reading.partition_reader import PartitionReader
from vq.errors import PartitionFailed
from vq.remoting.wire_pb2 import GetRequest, GetResponse
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One node with topic ``t`` of one partition."""
    async with memory_cluster() as found:
        await found.start()
        await found.create_topic("t", partitions=1)
        yield found


@pytest.fixture
async def factories(cluster: MemoryCluster) -> AsyncIterator[list[aio.MessageFactory]]:
    """Two of two clients."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(factory_of(cluster, seed=seed, host=f"m{seed}"))
            for seed in (21, 22)
        ]


async def member(factory: aio.MessageFactory, listener: Any, **settings: Any) -> Any:
    config = {"group": "g", "model": "shared", "retry_backoff": (0.1, 0.1), **settings}
    consumer = await factory.create_consumer(ConsumerConfig(**config))
    return await consumer.subscribe("t", listener=listener).start()


async def send(factory: aio.MessageFactory, count: int) -> None:
    producer = await factory.create_producer()
    await producer.send_batch([Message("t", b"%d" % each) for each in range(count)])
    await producer.close()


async def letters(factory: aio.MessageFactory) -> list[bytes]:
    found = factory.admin.read_dead_letters("g")
    return sorted([each.message.content async for each in found])


async def test_a_message_that_cannot_be_read_for_a_while_is_not_given_up(
    factories: list[aio.MessageFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No listener had it, so no delivery of it is counted."""
    get, failed = PartitionReader.get, 0

    async def fail(self: PartitionReader, request: GetRequest, *more: Any, **options: Any) -> Any:
        nonlocal failed
        if request.max_bytes > 1 and failed < 6:
            failed += 1
            raise PartitionFailed("its disk failed")
        return await get(self, request, *more, **options)

    monkeypatch.setattr(PartitionReader, "get", fail)
    seen: list[int] = []

    async def listener(message: Any) -> None:
        seen.append(message.attempts)

    await send(factories[0], 1)
    consumer = await member(factories[0], listener, max_deliveries=2)
    await until(lambda: bool(seen), timeout_s=120.0)
    assert (seen, failed) == ([1], 6)
    await consumer.close()


async def test_a_master_that_shows_less_for_a_while_costs_no_message(
    factories: list[aio.MessageFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has just begun to lead does not know at once how much its predecessor has shown."""
    get, hidden = PartitionReader.get, 0

    async def hide(self: PartitionReader, request: GetRequest, *more: Any, **options: Any) -> Any:
        nonlocal hidden
        answer, body = await get(self, request, *more, **options)
        if request.max_bytes > 1 and hidden < 3:
            hidden += 1
            await asyncio.sleep(1.0)
            return GetResponse(offset=request.offset, next_offset=request.offset), b""
        return answer, body

    monkeypatch.setattr(PartitionReader, "get", hide)
    seen: Counter[bytes] = Counter()

    async def listener(message: Any) -> None:
        seen[message.content] += 1

    await send(factories[0], 5)
    consumer = await member(factories[0], listener)
    await until(lambda: len(seen) == 5)
    assert hidden == 3
    assert set(seen.values()) == {1}
    await consumer.close()


async def test_what_waits_behind_a_long_listener_goes_to_another_member(
    factories: list[aio.MessageFactory],
) -> None:
    """Before its lease is over, and it does not count as delivered."""
    seen: list[tuple[str, bytes, int]] = []
    go_on = asyncio.Event()

    async def long(message: Any) -> None:
        seen.append(("long", message.content, message.attempts))
        while not go_on.is_set():
            await message.extend(2.0)
            await asyncio.sleep(1.0)

    async def short(message: Any) -> None:
        seen.append(("short", message.content, message.attempts))

    await send(factories[0], 2)
    first = await member(factories[0], long, lease_s=2.0)
    await until(lambda: len(seen) == 1)
    await asyncio.sleep(5.0)  # several leases
    second = await member(factories[1], short, lease_s=2.0)
    await until(lambda: len(seen) == 2)
    go_on.set()
    assert seen == [("long", b"0", 1), ("short", b"1", 1)]
    for each in (first, second):
        await each.close()


@pytest.mark.parametrize("kind", [SettleKind.EXTEND, SettleKind.RELEASE])
async def test_no_listener_begins_whose_lease_was_over_when_the_journal_answered(
    factories: list[aio.MessageFactory], monkeypatch: pytest.MonkeyPatch, kind: SettleKind
) -> None:
    """A starved process learns late that a lease has begun anew, or what it said before.

    Another member has the message then, and may be done with it.
    """
    settle, get = SharedDesk.settle, PartitionReader.get
    seen: list[tuple[str, int]] = []
    slow: list[SettleKind] = []

    async def answer_late(self: SharedDesk, sources: Any, runs: Any) -> Any:
        answer = await settle(self, sources, runs)
        if not slow and runs[0].kind is kind:
            slow.append(kind)
            await asyncio.sleep(5.0)
        return answer

    async def read_late(self: PartitionReader, request: GetRequest, *more: Any, **how: Any) -> Any:
        answer = await get(self, request, *more, **how)
        if request.max_bytes > 1 and kind is SettleKind.EXTEND and not slow:
            await asyncio.sleep(0.1)
        return answer

    monkeypatch.setattr(SharedDesk, "settle", answer_late)
    monkeypatch.setattr(PartitionReader, "get", read_late)

    def listener(name: str) -> Any:
        async def listen(message: Any) -> None:
            seen.append((name, message.attempts))
            if kind is SettleKind.RELEASE and message.attempts == 1:
                raise OSError("try again")

        return listen

    await send(factories[0], 1)
    first = await member(factories[0], listener("first"), lease_s=0.5)
    await until(lambda: bool(slow))
    second = await member(factories[1], listener("second"), lease_s=0.5)
    await asyncio.sleep(10.0)
    assert seen[-1] == ("second", 2 if kind is SettleKind.EXTEND else 3)
    assert len(seen) == (1 if kind is SettleKind.EXTEND else 2)
    for each in (first, second):
        await each.close()


async def test_no_message_waits_behind_long_ones_while_another_member_is_idle(
    factories: list[aio.MessageFactory],
) -> None:
    """Also if the member was quick before, and has many messages ahead for that."""
    seen: list[tuple[str, int]] = []
    go_on = asyncio.Event()

    async def begin(name: str) -> Any:
        async def listener(message: Any) -> None:
            if name == "first" and int(message.content) in {98, 99}:
                await go_on.wait()
            seen.append((name, int(message.content)))

        return await member(factories[name == "second"], listener, workers=2)

    await send(factories[0], 150)
    first = await begin("first")
    await until(lambda: len(seen) >= 98)
    second = await begin("second")
    begun = asyncio.get_running_loop().time()
    await until(lambda: len(seen) == 148)
    assert asyncio.get_running_loop().time() - begun < 3.0  # of a lease of 30 s
    await send(factories[0], 10)
    await until(lambda: len(seen) == 158)
    assert asyncio.get_running_loop().time() - begun < 5.0
    assert {name for name, _ in seen[98:]} == {"second"}
    go_on.set()
    for each in (first, second):
        await each.close()


async def test_a_lease_begins_when_the_message_is_given_and_not_when_it_is_asked_for(
    factories: list[aio.MessageFactory],
) -> None:
    """A request that waits longer than the lease lasts has it all the same."""
    seen: list[int] = []

    async def listener(message: Any) -> None:
        seen.append(message.attempts)

    consumer = await member(factories[0], listener, lease_s=0.3)
    await asyncio.sleep(1.2)  # the present request began a while ago
    for count in range(1, 5):
        await asyncio.sleep(0.6)
        await send(factories[0], 1)
        await until(lambda: len(seen) >= count)  # noqa: B023
    assert seen == [1] * 4
    await consumer.close()


async def test_a_member_that_waits_and_is_closed_gets_nothing_more(
    factories: list[aio.MessageFactory],
) -> None:
    """Its factory stays open: what is sent next goes to another one, as its first delivery."""
    seen: list[tuple[bytes, int]] = []

    async def listener(message: Any) -> None:
        seen.append((message.content, message.attempts))

    idle = await member(factories[0], listener)
    await asyncio.sleep(1.2)
    other = await member(factories[1], listener)
    await asyncio.sleep(1.2)
    await idle.close()
    before = asyncio.get_running_loop().time()
    await send(factories[0], 1)
    await until(lambda: bool(seen))
    assert seen == [(b"0", 1)]
    assert asyncio.get_running_loop().time() - before < 1.0
    await other.close()


async def test_a_listener_that_fails_after_its_lease_makes_no_dead_letter(
    factories: list[aio.MessageFactory],
) -> None:
    """Somebody else has given the message up, or will."""
    calls: list[str] = []

    async def late(_: Message) -> None:
        calls.append("late")
        await asyncio.sleep(3.0)
        raise ValueError("it took too long")

    async def other(_: Message) -> None:
        calls.append("other")

    await send(factories[0], 1)
    settings: dict[str, Any] = {"lease_s": 1.0, "max_deliveries": 1}
    consumers = [await member(factories[0], late, **settings)]
    await until(lambda: bool(calls))
    consumers.append(await member(factories[1], other, **settings))
    await asyncio.sleep(6.0)
    assert calls == ["late"]
    assert await letters(factories[0]) == [b"0"]
    for each in consumers:
        await each.close()


async def test_what_a_coroutine_says_without_await_is_said(
    factories: list[aio.MessageFactory], caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be lost by a forgotten word; that the lease was over is in the log then."""
    seen: list[tuple[int, int]] = []

    async def listener(message: Any) -> None:
        number = int(message.content)
        seen.append((number, message.attempts))
        if number == 0:
            message.reject()
        elif number == 1 and message.attempts == 1:
            message.nack(0.5)
        elif number == 2:
            message.extend(5.0)
            await asyncio.sleep(3.0)
        elif number == 3 and message.attempts == 1:
            await asyncio.sleep(3.0)
            message.ack()

    await send(factories[0], 4)
    consumer = await member(factories[0], listener, workers=4, lease_s=2.0)
    await asyncio.sleep(6.0)
    assert sorted(seen) == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (3, 2)]
    lost = [each for each in caplog.messages if "lease ended before the listener" in each]
    assert len(lost) == 1
    await consumer.close()
