"""``on_failure = "dead-letter"``: a message that nobody can handle is kept, and stops nobody."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import factory_of
from support.given_up import lag, letters, ten_messages

import vq
from vq import aio
from vq.client.cluster import ClusterClient
from vq.errors import ConnectionCut, InvalidArgument
from vq.model import Message
from vq.remoting.format import Command
from vq.reserved import GROUP_CHARS_MAX
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

BAD = {b"3", b"5"}


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with ten_messages() as made:
        yield made


def config(**settings: Any) -> vq.ConsumerConfig:
    given = {"group": "g", "on_failure": "dead-letter", "retry_backoff": (0.1, 1.0), **settings}
    return vq.ConsumerConfig(**given)


@pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "keyed"}, {"mode": "concurrent", "workers": 3}, {"batch_size": 4}],
    ids=["orderly", "keyed", "concurrent", "lists"],
)
async def test_bad_messages_become_dead_letters_and_the_others_are_handled(
    cluster: MemoryCluster, client: ClusterClient, settings: dict[str, Any]
) -> None:
    handled: list[bytes] = []
    tries: list[bytes] = []

    async def handle(given: Message | list[Message]) -> None:
        for message in given if isinstance(given, list) else [given]:
            if message.content in BAD:
                tries.append(message.content)
                raise ValueError(f"no {message.content.decode()}")
        handled.extend(each.content for each in (given if isinstance(given, list) else [given]))

    async with factory_of(cluster, host="member", seed=31) as factory:
        consumer = await factory.create_consumer(config(max_attempts=2, **settings))
        async with consumer:
            await consumer.subscribe("t", listener=handle).start()
            await until(lambda: len(handled) == 8, timeout_s=60)

            async def is_done() -> bool:
                return len(await letters(client)) == 2

            await until_true(is_done, timeout_s=60)
        assert await lag(client) == 0
    found = await letters(client)
    assert sorted(handled) == sorted(b"%d" % n for n in range(10) if b"%d" % n not in BAD)
    assert {each.message.content for each in found} == BAD
    assert sorted(tries) == sorted([*BAD, *BAD])
    for each in found:
        assert each.failure is not None
        assert each.failure.attempts == 2
        assert each.failure.reason == f"ValueError('no {each.message.content.decode()}')"
        assert each.origin is not None
        assert each.origin.topic == "t"
        assert each.message.key == f"k{each.message.content.decode()}"


async def test_the_offset_moves_on_only_when_the_copy_is_stored(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """While its broker does not answer, the message holds its partition, and the other goes on."""
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.content in BAD:
            raise ValueError("no")
        handled.append(message.content)

    async with factory_of(cluster, host="member", seed=31) as factory:
        member = factory.admin.cluster
        plain, answers = member.request, True

        async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
            found = await plain(address, command, *rest, **named)
            if command == Command.PUT and not answers:
                raise ConnectionCut("cut")  # it was stored
            return found

        answers = False
        member.request = request  # type: ignore[method-assign]
        consumer = await factory.create_consumer(config(max_attempts=1, commit_interval_s=1))
        async with consumer:
            await consumer.subscribe("t", listener=handle).start()
            await asyncio.sleep(60)
            stopped = {each.content for each in await stored(client)} - set(handled) - BAD
            assert (await lag(client) or 0) >= len(BAD & {b"3", b"5"}) - 1 > 0
            troubles = consumer.troubles()
            assert troubles
            answers = True

            async def is_done() -> bool:
                return len(handled) == 8 and await lag(client) == 0

            await until_true(is_done, timeout_s=60)
            assert stopped <= set(handled)
    found = await letters(client)
    assert sorted(each.message.content for each in found) == sorted(BAD)


async def stored(client: ClusterClient) -> list[Message]:
    admin = aio.MessageFactory.on_cluster(client).admin
    return [m for n in range(2) for m in (await admin.read_range("t", n, 0)).messages()]


async def test_a_listener_that_is_cancelled_has_not_failed(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Its consumer is closed: the next member has the message again, and nobody gives it up."""
    entered = asyncio.Event()

    async def hang(_: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with factory_of(cluster, host="member", seed=31) as factory:
        consumer = await factory.create_consumer(config(max_attempts=1))
        await consumer.subscribe("t", listener=hang).start()
        await entered.wait()
        await consumer.close()
    assert not await letters(client)
    assert await lag(client) == 10


async def test_the_reason_of_a_listener_that_takes_too_long_is_its_limit(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    async def hang(_: Message) -> None:
        await asyncio.Event().wait()

    async with factory_of(cluster, host="member", seed=31) as factory:
        consumer = await factory.create_consumer(config(max_attempts=1, listener_timeout_s=1))
        async with consumer:
            await consumer.subscribe("t", listener=hang).start()

            async def is_done() -> bool:
                return len(await letters(client)) == 10

            await until_true(is_done, timeout_s=60)
    reasons = {each.failure.reason for each in await letters(client) if each.failure is not None}
    assert reasons == {"TimeoutError('the listener took longer than 1 s')"}


async def test_without_failures_nothing_is_made(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        handled.append(message.content)

    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await factory.create_consumer(config()) as consumer,
    ):
        await consumer.subscribe("t", listener=handle).start()
        await until(lambda: len(handled) == 10, timeout_s=60)
    topics = await aio.MessageFactory.on_cluster(client).admin.list_topics(reserved=True)
    assert [each.name for each in topics] == ["t"]


async def test_what_cannot_work_is_refused(cluster: MemoryCluster) -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        config(group="g" * (GROUP_CHARS_MAX + 5))

    async def handle(_: Message) -> None: ...

    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await factory.create_consumer(config()) as consumer,
    ):
        with case("its own letters"), pytest.raises(InvalidArgument, match="another group"):
            consumer.subscribe("_vq.dlq.g", listener=handle)
