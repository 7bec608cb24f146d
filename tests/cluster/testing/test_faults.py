"""Each fault of the kit strikes as it says, and what vq promises holds beside it."""

import asyncio
from collections import Counter

import pytest

from vq import aio
from vq.aio import MessageFactory
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.errors import InvalidArgument, VqError
from vq.model import Message
from vq.testing import Cluster, simulated, until

TEN = [Message("orders", b"%d" % number) for number in range(10)]


async def read_all(factory: MessageFactory, partitions: int = 1) -> Counter[bytes]:
    """Return what a topic holds, each content with its number."""
    async with await factory.create_consumer(ConsumerConfig(group="look")) as consumer:
        found: Counter[bytes] = Counter()
        for partition in range(partitions):
            bounds = await consumer.get_bounds("orders", partition)
            offset = bounds.earliest
            while offset < bounds.latest:
                for each in await consumer.get("orders", partition, offset, 1 << 20):
                    found[each.content] += 1
                    offset = each.next_offset
    return found


async def send_ten(factory: MessageFactory) -> None:
    async with await factory.create_producer() as producer:
        for each in TEN:
            await producer.send(each)


@simulated(seeds=3)
async def test_a_lost_acknowledgement_makes_no_duplicate(cluster: Cluster) -> None:
    """The producer cannot know, sends again, and the broker has the batch already."""
    await cluster.create_topic("orders")
    factory = await cluster.factory("sender")
    cluster.faults.lose_answer("sender", times=3)
    await send_ten(factory)
    assert await read_all(factory) == Counter(each.content for each in TEN)


@simulated(seeds=3)
async def test_a_lost_request_is_sent_again(cluster: Cluster) -> None:
    await cluster.create_topic("orders")
    factory = await cluster.factory("sender")
    cluster.faults.lose_request("sender", times=2)
    await send_ten(factory)
    assert await read_all(factory) == Counter(each.content for each in TEN)


@simulated(seeds=3)
async def test_what_a_crashed_client_did_not_commit_comes_to_another_one(cluster: Cluster) -> None:
    await cluster.create_topic("orders")
    await send_ten(await cluster.factory("sender"))
    seen: dict[str, list[bytes]] = {"first": [], "second": []}

    async def begin(name: str, *, stuck: bool) -> None:
        async def take(message: Message) -> None:
            seen[name].append(message.content)
            if stuck:
                await asyncio.get_running_loop().create_future()

        factory = await cluster.factory(name)
        settings = ConsumerConfig(group="g", start_position="earliest")
        consumer = await factory.create_consumer(settings)
        await consumer.subscribe("orders", listener=take).start()

    await begin("first", stuck=True)
    await until(lambda: seen["first"])
    cluster.faults.crash("first")
    await begin("second", stuck=False)
    await until(lambda: len(seen["second"]) == 10)
    assert seen["first"] == [b"0"]
    assert seen["second"] == [each.content for each in TEN]


@simulated(seeds=3)
async def test_a_session_that_expires_has_its_member_come_back(cluster: Cluster) -> None:
    await cluster.create_topic("orders")
    factory = await cluster.factory("reader")
    seen: list[bytes] = []

    async def take(message: Message) -> None:
        seen.append(message.content)

    settings = ConsumerConfig(group="g", start_position="earliest")
    async with await factory.create_consumer(settings) as consumer:
        await consumer.subscribe("orders", listener=take).start()
        await until(consumer.assignment)
        cluster.faults.expire("reader")
        await send_ten(await cluster.factory("sender"))
        await until(lambda: set(seen) == {each.content for each in TEN})


@simulated(seeds=3)
async def test_another_member_takes_its_share_and_gives_it_back(cluster: Cluster) -> None:
    """In the middle of a listener, too: it goes on, and its message counts or comes again."""
    await cluster.create_topic("orders", partitions=2)
    factory = await cluster.factory("reader")
    seen: list[bytes] = []

    async def take(message: Message) -> None:
        await asyncio.sleep(cluster.random.random())
        seen.append(message.content)

    settings = ConsumerConfig(group="g", start_position="earliest")
    async with await factory.create_consumer(settings) as consumer:
        await consumer.subscribe("orders", listener=take).start()
        await until(lambda: len(consumer.assignment()) == 2)
        await send_ten(await cluster.factory("sender"))
        async with cluster.faults.other_member("g", "orders"):
            assert len(consumer.assignment()) == 1
        await until(lambda: set(seen) == {each.content for each in TEN})
        assert len(consumer.assignment()) == 2


@simulated(seeds=2, nodes=2)
async def test_another_master_loses_nothing(cluster: Cluster) -> None:
    await cluster.create_topic("orders", min_insync=2)
    factory = await cluster.factory("sender")
    await send_ten(factory)
    master = await cluster.faults.change_master()
    assert master == "n2"
    await send_ten(factory)
    assert set((await read_all(factory)).values()) == {2}


@simulated(seeds=2, nodes=2)
async def test_a_master_that_loses_power_loses_nothing_that_was_acknowledged(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("orders", min_insync=2)
    factory = await cluster.factory("sender")
    await send_ten(factory)
    killed = await cluster.faults.kill_broker()
    await cluster.faults.start_broker("b1", killed)
    await send_ten(factory)
    assert set((await read_all(factory)).values()) == {2}


@simulated(seeds=2)
async def test_a_broker_alone_keeps_what_it_acknowledged_over_a_power_cut(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("orders")
    factory = await cluster.factory("sender")
    await send_ten(factory)
    killed = await cluster.faults.kill_broker()
    await cluster.faults.start_broker("b1", killed)
    assert await read_all(factory) == Counter(each.content for each in TEN)


@simulated(seeds=2)
async def test_a_full_disk_refuses_and_takes_again(cluster: Cluster) -> None:
    await cluster.create_topic("orders")
    factory = await cluster.factory("sender")
    async with await factory.create_producer(ProducerConfig(send_timeout_s=5.0)) as producer:
        await cluster.faults.fill_disk()
        large = [Message("orders", b"x" * 100_000)] * 50
        with pytest.raises(VqError):
            await producer.send_batch(large)
        cluster.faults.free_disk()
        await asyncio.sleep(60)
        await producer.send(Message("orders", b"fits"))


@simulated(seeds=2)
async def test_a_silent_link_and_a_zookeeper_that_is_away_end(cluster: Cluster) -> None:
    await cluster.create_topic("orders")
    factory = await cluster.factory("sender")
    await send_ten(factory)
    cluster.faults.cut("sender")
    cluster.faults.stop_zookeeper()
    sending = asyncio.ensure_future(send_ten(factory))
    await asyncio.sleep(3)
    assert not sending.done()
    cluster.faults.heal()
    cluster.faults.start_zookeeper()
    await sending
    assert set((await read_all(factory)).values()) == {2}


@simulated(seeds=2)
async def test_a_poisoned_message_stops_its_partition_or_is_skipped(cluster: Cluster) -> None:
    await cluster.create_topic("orders")
    factory = await cluster.factory("reader")
    await cluster.faults.poison("orders")
    await send_ten(factory)
    seen: list[bytes] = []

    async def take(message: Message) -> None:
        seen.append(message.content)

    for policy, expected in (("stop", 0), ("skip", 10)):
        config = ConsumerConfig(group=f"{policy}s", start_position="earliest", on_bad_record=policy)
        async with await factory.create_consumer(config) as consumer:
            await consumer.subscribe("orders", listener=take).start()
            await until(lambda: consumer.last_error is not None or consumer.bad_records)
            await asyncio.sleep(5)
            assert len(seen) == expected


@simulated(seeds=1)
async def test_what_a_fault_is_told_wrong_is_refused(cluster: Cluster) -> None:
    await cluster.factory("here")
    with pytest.raises(InvalidArgument, match="there is no factory 'gone'; made were: here"):
        cluster.faults.crash("gone")
    with pytest.raises(InvalidArgument, match="'wish' is not one of send, fetch, get"):
        cluster.faults.lose_answer("here", "wish")
    with pytest.raises(InvalidArgument, match="seconds = -1 is outside"):
        cluster.faults.slow(-1)
    with pytest.raises(InvalidArgument, match="seconds = 'x' is str; give a number"):
        cluster.faults.slow("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="times = 0 is outside"):
        cluster.faults.lose_answer("here", times=0)
    await cluster.create_topic("one")
    with pytest.raises(InvalidArgument, match=r"partition = 5 is outside \[0, 0\]"):
        await cluster.faults.poison("one", 5)
    with pytest.raises(InvalidArgument, match="broker b1/n1 is there already"):
        await cluster.add_broker("b1")
    with pytest.raises(InvalidArgument, match="seed = 'x' is str; give a whole number"):
        Cluster(seed="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="broker b1/n7 does not run; running are b1"):
        await cluster.faults.kill_broker("b1", "n7")
    with pytest.raises(InvalidArgument, match="taken are b1, here"):
        await cluster.factory("here")
    with pytest.raises(InvalidArgument, match=r"groups = 0 is outside \[1, 16\]"):
        Cluster(groups=0)


def test_it_is_the_asynchronous_api() -> None:
    assert MessageFactory is aio.MessageFactory
