"""Consumers with an expression or a filter of their own: what comes, and what is committed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import send, take, until_committed
from support.node_pair import settled

import vq
from vq import aio
from vq.broker.replication import insync_set
from vq.client.config import ConsumerConfig
from vq.errors import FilterFailed, InvalidArgument
from vq.message_filter import Filter
from vq.model import Message, TopicPartition
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)
DEAR = vq.Where("price > 10 AND region IN ('hz', 'sh') AND NOT (vip = TRUE)")
#: Of these the third one, and the last one, are dear; the others are not, or it is not known.
ORDERS = [
    {"price": "9", "region": "hz", "vip": "false"},
    {"price": "11", "region": "hz", "vip": "true"},
    {"price": "11", "region": "sh", "vip": "false"},
    {"price": "11", "region": "sh"},
    {"price": "dear", "region": "sh", "vip": "false"},
    {"price": "12", "region": "bj", "vip": "false"},
    {"price": "12.5", "region": "hz", "vip": "False"},
]


class Odd(vq.MessageFilter):
    """Passes odd numbers; fails for those that it is told."""

    def __init__(self, *bad: bytes) -> None:
        self.bad = set(bad)
        self.asked: Counter[bytes] = Counter()

    def matches(self, message: Message) -> bool:
        self.asked[message.content] += 1
        if message.content in self.bad:
            raise ValueError(f"{message.content!r} again")
        return int(message.content) % 2 == 1


def orders() -> list[Message]:
    return [Message("t", b"%d" % n, headers=each) for n, each in enumerate(ORDERS)]


async def reading(
    factory: aio.MessageFactory, wanted: Any, group: str = "g", **settings: Any
) -> aio.MessageConsumer:
    """Return a consumer of ``t`` with a filter; it starts with its first use."""
    config = ConsumerConfig(**{"group": group, "max_wait_s": 0.2, **settings})
    consumer = await factory.create_consumer(config)
    return consumer.subscribe("t", message_filter=wanted)


def bytes_out(cluster: MemoryCluster) -> int:
    return sum(node.parts.context.counters.bytes_out for node in cluster.nodes.values())


@pytest.fixture
async def end(factory: aio.MessageFactory) -> AsyncIterator[int]:
    """Seven orders are stored; the offset behind them."""
    await send(factory, *orders())
    async with await factory.create_consumer() as consumer:
        yield (await consumer.get_bounds("t", 0)).latest


# Expressions ------------------------------------------------------------------------------------
async def test_only_messages_of_which_it_is_true_come(
    factory: aio.MessageFactory, end: int
) -> None:
    """What was left out is behind the group, also what comes last and does not pass."""
    await send(factory, Message("t", b"no"))
    async with await reading(factory, DEAR) as consumer:
        assert await take(consumer, 2) == [b"2", b"6"]
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await until_committed(consumer, (await consumer.get_bounds("t", 0)).latest)
        waiting.cancel()


async def test_the_broker_sends_what_passes_and_no_more(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    bulk = [Message("t", b"x" * 1_000, headers={"n": str(n % 100)}) for n in range(400)]
    await send(factory, *bulk)
    before = bytes_out(cluster)
    async with await reading(factory, vq.Where("n = 7")) as consumer:
        assert len(await take(consumer, 4)) == 4
    assert bytes_out(cluster) - before < 6_000


@pytest.mark.parametrize("wanted", [DEAR, Odd()])
async def test_a_broker_that_knows_no_expressions_sends_all_and_the_client_picks(
    factory: aio.MessageFactory, end: int, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    """As a broker of an earlier version does: it passes over a field that it does not know."""
    of_request = Filter.of_request
    monkeypatch.setattr(Filter, "of_request", lambda tags, where="": of_request(tags))
    expected = [b"2", b"6"] if wanted is DEAR else [b"1", b"3", b"5"]
    async with await reading(factory, wanted, commit_interval_s=0.1) as consumer:
        assert await take(consumer, len(expected)) == expected
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await until_committed(consumer, end)
        waiting.cancel()
    async with await reading(factory, wanted) as consumer:  # it goes on at its place
        await consumer.start()
        await send(factory, Message("t", b"7", headers=ORDERS[2]))
        assert await take(consumer, 1) == [b"7"]
        assert consumer.troubles() == {}


@pytest.mark.parametrize("wanted", [DEAR, "*"])
async def test_a_client_that_picks_more_than_its_broker_keeps_its_places(
    factory: aio.MessageFactory, end: int, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    """The answer has records that its broker took for matches; a listener fails in between."""
    loose = Filter.of_request([], "price IS NOT NULL")
    monkeypatch.setattr(Filter, "of_request", lambda tags, where="": loose)
    got: list[bytes] = []
    failures = [2]

    async def listener(message: Message) -> None:
        if message.content == b"6" and failures[0]:
            failures[0] -= 1
            raise ZeroDivisionError
        got.append(message.content)

    config = ConsumerConfig(group="g", max_wait_s=0.2, retry_backoff=(0.1, 30.0))
    consumer = await factory.create_consumer(config)
    await consumer.subscribe("t", listener=listener, message_filter=wanted).start()
    async with consumer:
        await until(lambda: b"6" in got)
        await until_committed(consumer, end)
    assert got == ([b"2", b"6"] if wanted is DEAR else [b"%d" % n for n in range(7)])


async def test_get_and_get_last_take_the_same_filters(
    factory: aio.MessageFactory, end: int
) -> None:
    async with await factory.create_consumer() as consumer:
        for wanted, expected in (
            (DEAR, [b"2", b"6"]),
            (Odd(), [b"1", b"3", b"5"]),
            ("*", [b"%d" % n for n in range(7)]),
        ):
            offset, found = 0, []
            while offset < end:
                some = await consumer.get("t", 0, offset, 1 << 20, message_filter=wanted)
                assert some.next_offset > offset
                found += [each.content for each in some]
                offset = some.next_offset
            assert found == expected
            last = await consumer.get_last("t", 2, message_filter=wanted)
            assert [each.content for each in last] == expected[-2:]
            if wanted is not DEAR:
                continue
            nothing = await consumer.get("t", 0, end, 100, message_filter=wanted)
            assert (list(nothing), nothing.next_offset) == ([], end)
        with pytest.raises(InvalidArgument, match="message_filter = 7 is int"):
            await consumer.get("t", 0, 0, 100, message_filter=7)  # type: ignore[arg-type]


async def test_get_waits_for_a_message_that_passes(factory: aio.MessageFactory, end: int) -> None:
    async with await factory.create_consumer() as consumer:
        waiting = asyncio.ensure_future(consumer.get("t", 0, end, 1 << 20, 10.0, DEAR))
        await send(factory, Message("t", b"no"), Message("t", b"yes", headers=ORDERS[2]))
        assert [each.content for each in await waiting] == [b"yes"]


async def test_compressed_messages_are_picked_by_their_headers(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Headers are not compressed, so the broker need not decompress anything."""
    settings = vq.ProducerConfig(compression="zlib", compression_threshold=0)
    async with await factory.create_producer(settings) as producer:
        for number in range(20):
            await producer.send(Message("t", b"%d " % number * 2_000, headers={"n": str(number)}))
    before = bytes_out(cluster)
    async with await reading(factory, vq.Where("n IN (3, 17)")) as consumer:
        assert [each.split()[0] for each in await take(consumer, 2)] == [b"3", b"17"]
    assert bytes_out(cluster) - before < 500


async def test_a_filter_reads_archives(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    parts = cluster.nodes["b1"].parts
    for _ in range(3):
        await send(factory, *orders())
        channel = parts.partitions.channels["t", 0]
        assert channel.log is not None
        channel.log.roll()
    await settled(channel)
    for block in channel.log.closed_blocks:
        await parts.partitions.logs.archiving.archive(channel, block)
    assert all(block.is_archived for block in channel.log.closed_blocks)
    for group, wanted, expected in (("g", DEAR, [b"2", b"6"]), ("h", Odd(), [b"1", b"3", b"5"])):
        async with await reading(factory, wanted, group) as consumer:
            assert await take(consumer, 3 * len(expected)) == expected * 3


async def test_a_copy_that_takes_over_filters(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    monkeypatch.setattr(insync_set, "TICK_S", 0.02)
    await cluster.create_topic("many", partitions=1)
    await cluster.start(node="n2")
    await until(lambda: cluster.nodes["b1"].parts.context.role.named == 2)
    async with await reading(factory, DEAR) as consumer:
        assert await take(consumer, 2) == [b"2", b"6"]
        await cluster.nodes["b1"].stop()
        await send(factory, Message("t", b"no"), Message("t", b"yes", headers=ORDERS[2]))
        assert await take(consumer, 1) == [b"yes"]
        assert consumer.troubles() == {}


# Groups -----------------------------------------------------------------------------------------
async def test_members_with_another_filter_are_refused_with_both(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    async with await reading(factory, DEAR) as consumer:
        await consumer.start()
        same = vq.Where("price>10 and region in('hz','sh') and not(vip=true)")
        async with await reading(factory, same) as another:
            await another.start()
        for wanted, said in (
            (vq.Where("price > 11"), "this member 'WHERE price > 11'"),
            ("hz || sh", "this member 'hz || sh'"),
            (None, "this member all messages"),
            (Odd(), "this member 'MessageFilter .*Odd'"),
        ):
            other = await reading(factory, wanted)
            said = said.replace("|", r"\|")
            with pytest.raises(InvalidArgument, match=f"reads .WHERE price > 10 AND .*{said}"):
                await other.start()
            await other.close()


async def test_the_lag_of_a_filtered_group_is_an_upper_bound(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    for group, wanted, text in (
        ("g", DEAR, Filter.of(DEAR).text),
        ("h", Odd(), f"MessageFilter {__name__}.Odd"),
    ):
        async with await reading(factory, wanted, group) as consumer:
            await consumer.start()
            found = await factory.admin.describe_group(group)
            assert found.topics == {"t": text}
            assert [each.filter for each in found.partitions] == [text]
            assert found.lag_is_upper_bound


# Filters of the application ---------------------------------------------------------------------
async def test_a_filter_of_the_application_is_asked_once_a_message(
    factory: aio.MessageFactory, end: int
) -> None:
    wanted = Odd()
    async with await reading(factory, wanted) as consumer:
        assert await take(consumer, 3) == [b"1", b"3", b"5"]
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await until_committed(consumer, end)  # also behind the last one, which does not pass
        waiting.cancel()
    assert wanted.asked == Counter(b"%d" % n for n in range(7))


async def test_a_filter_that_fails_holds_its_partition_and_skips_nothing(
    factory: aio.MessageFactory, end: int
) -> None:
    """What comes before the message is delivered; the error names it, and is over by itself."""
    wanted = Odd(b"3")
    async with await reading(factory, wanted) as consumer:
        assert await take(consumer, 1) == [b"1"]
        following = asyncio.ensure_future(take(consumer, 2))
        await until(lambda: T0 in consumer.troubles())
        error = consumer.troubles()[T0].error
        assert isinstance(error, FilterFailed)
        assert "Odd failed for the message at offset" in str(error)
        assert "ValueError" in str(error)
        await until(lambda: wanted.asked[b"3"] >= 3)
        assert not following.done()
        wanted.bad.clear()
        assert await asyncio.wait_for(following, WAIT_S) == [b"3", b"5"]
        assert consumer.troubles() == {}
        assert consumer.bad_reads == 0


async def test_get_raises_what_a_filter_raises(factory: aio.MessageFactory, end: int) -> None:
    """Behind what comes before it."""
    async with await factory.create_consumer() as consumer:
        found = await consumer.get("t", 0, 0, 1 << 20, message_filter=Odd(b"3"))
        assert [each.content for each in found] == [b"1"]
        with pytest.raises(FilterFailed, match="ValueError"):
            await consumer.get("t", 0, found.next_offset, 1 << 20, message_filter=Odd(b"3"))


async def _until_second(consumer: aio.MessageConsumer) -> AsyncIterator[Message]:
    """Yield the first message; the second one stays unhandled."""
    messages = aiter(consumer)
    yield await anext(messages)
    await consumer.commit()


async def test_a_factory_of_its_own_reads_the_contract(
    cluster: MemoryCluster, factory: aio.MessageFactory, end: int
) -> None:
    """A member on another machine goes on where the first one was."""
    async with await reading(factory, DEAR) as consumer:
        async with asyncio.timeout(WAIT_S):
            found = [each.content async for each in _until_second(consumer)]
        assert found == [b"2"]
    async with (
        factory_of(cluster, host="other", seed=5) as second,
        await reading(second, DEAR) as consumer,
    ):
        assert await take(consumer, 1) == [b"6"]
