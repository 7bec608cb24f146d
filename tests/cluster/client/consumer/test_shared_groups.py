"""``model = "shared"`` through the API: members, failures, and what others see of the group."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, memory_cluster
from support.client import factory_of
from support.late_clock import later

from vq import ConsumerConfig, GroupModel, Message, MessageFilter, SharedMessage, aio
from vq.coordination.topics.topics import change_settings
from vq.errors import InvalidArgument, InvalidState, LeaseLost
from vq.model import TopicPartition, TopicSettings
from vq.store.records.record import encode_record
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One node with topic ``t`` of two partitions."""
    async with memory_cluster() as found:
        await found.start()
        await found.create_topic("t", partitions=2)
        yield found


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """An open factory."""
    async with factory_of(cluster) as found:
        yield found


def shared(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(**{"group": "g", "model": "shared", "commit_interval_s": 1.0, **settings})


async def send(factory: aio.MessageFactory, topic: str, count: int) -> None:
    producer = await factory.create_producer()
    await producer.send_batch([Message(topic, b"%d" % each, key=each) for each in range(count)])
    await producer.close()


async def test_more_workers_than_partitions_share_them(factory: aio.MessageFactory) -> None:
    """Each message goes to one of them; where the group is, is known to others."""
    seen: Counter[bytes] = Counter()
    busy = most = 0

    async def listener(message: Message) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.05)
        busy -= 1
        seen[message.content] += 1

    consumers = [await factory.create_consumer(shared(workers=4)) for _ in range(3)]
    for each in consumers:
        await each.subscribe("t", listener=listener).start()
    await send(factory, "t", 100)
    await until(lambda: len(seen) == 100)
    assert set(seen.values()) == {1}
    assert most > 4
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert consumers[0].assignment() == partitions
    for each in consumers:
        await each.close()
    committed = await consumers[0].get_offset("t")
    ends = {each: (await consumers[0].get_bounds(*each)).latest for each in partitions}
    assert committed == ends
    found = await factory.admin.describe_group("g")
    assert (found.model, found.terms.failure.on_failure) == (GroupModel.SHARED, "dead-letter")
    assert [each.lag_bytes for each in found.partitions] == [0, 0]
    told = await factory.admin.describe_shared_group("g")
    assert [(e.low, e.cursor, e.open) for e in told.partitions] == [(50, 50, 0), (50, 50, 0)]


async def test_a_shared_group_begins_where_it_says_and_follows_patterns(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """With ``latest``, what was there is not for it; a topic that comes later is read whole."""
    seen: list[tuple[str, bytes]] = []

    async def listener(message: Message) -> None:
        seen.append((message.topic, message.content))

    await send(factory, "t", 5)
    consumer = await factory.create_consumer(shared(start_position="latest"))
    await consumer.subscribe("t*", listener=listener).start()
    await until(lambda: len(consumer.assignment()) == 2)
    await send(factory, "t", 1)
    await until(lambda: seen == [("t", b"0")])
    await cluster.create_topic("t-more", partitions=1)
    await send(factory, "t-more", 2)
    await until(lambda: len(seen) == 3)


async def test_a_message_is_settled_by_itself(factory: aio.MessageFactory) -> None:
    """Its methods are awaited; a failure comes again; one that is late is told so."""
    seen: Counter[bytes] = Counter()
    late: list[type[Exception]] = []

    async def listener(message: Any) -> None:
        seen[message.content] += 1
        assert message.attempts == seen[message.content]
        if message.content == b"0" and message.attempts == 1:
            await message.nack(delay_s=0.5)
        elif message.content == b"1" and message.attempts < 3:
            raise ValueError("not yet")
        elif message.content == b"2" and message.attempts == 1:
            await asyncio.sleep(3)
            try:
                await message.ack()
            except LeaseLost as error:
                late.append(type(error))

    settings = {"lease_s": 2.0, "max_deliveries": 3, "retry_backoff": (0.2, 0.2), "workers": 2}
    consumer = await factory.create_consumer(shared(**settings))
    await consumer.subscribe("t", listener=listener).start()
    await send(factory, "t", 3)
    await until(lambda: seen == {b"0": 2, b"1": 3, b"2": 2} and bool(late))

    async def is_done() -> bool:
        found = await factory.admin.describe_group("g")
        return [each.lag_bytes for each in found.partitions] == [0, 0]

    await until_true(is_done)
    await consumer.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lease_s": 0.0}, "lease_s"),
        ({"max_deliveries": 0}, "max_deliveries"),
        ({"max_deliveries": 2, "max_attempts": 3}, "say the same"),
        ({"batch_size": 2}, "batch_size"),
        ({"on_failure": "retry-topic"}, "retry-topic"),
        ({"on_failure": "stop"}, "stop"),
        ({"strategy": "average"}, "average"),
        ({"model": "clustering", "max_deliveries": 2}, "max_deliveries"),
    ],
)
def test_what_does_not_go_with_a_shared_group_is_refused(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        shared(**settings)


async def test_members_of_another_model_are_refused(factory: aio.MessageFactory) -> None:
    """And so is what a shared group cannot do."""

    async def listener(message: Message) -> None:
        pass

    consumer = await factory.create_consumer(shared())
    await consumer.subscribe("t", listener=listener).start()
    other = await factory.create_consumer(ConsumerConfig(group="g"))
    with pytest.raises(InvalidArgument, match="shared"):
        await other.subscribe("t", listener=listener).start()
    with pytest.raises(InvalidState):
        await consumer.seek("t", "earliest")
    with pytest.raises(InvalidState, match="shared"):
        await factory.admin.plan_reset("g", aio_target())


def aio_target() -> Any:
    from vq.admin import Goal, Target

    return Target(goal=Goal.EARLIEST)


async def test_a_deleted_group_begins_anew(factory: aio.MessageFactory) -> None:
    """Its journal forgets it, too."""
    seen: Counter[bytes] = Counter()

    async def listener(message: Message) -> None:
        seen[message.content] += 1

    await send(factory, "t", 4)
    for times in (1, 2):
        consumer = await factory.create_consumer(shared())
        await consumer.subscribe("t", listener=listener).start()
        await until(lambda: sum(seen.values()) == 4 * times)  # noqa: B023
        await consumer.close()
        await factory.admin.delete_group("g")
    assert set(seen.values()) == {2}


async def test_a_group_that_becomes_shared_begins_where_it_is(
    factory: aio.MessageFactory,
) -> None:
    """And one that is clustering again begins at its lowest message that is not done."""
    seen: Counter[bytes] = Counter()

    async def listener(message: Message) -> None:
        seen[message.content] += 1

    await send(factory, "t", 4)
    first = ConsumerConfig(group="g", mode="concurrent", on_failure="dead-letter")
    for config, model in ((first, "shared"), (shared(), "clustering"), (first, "shared")):
        consumer = await factory.create_consumer(config)
        await consumer.subscribe("t", listener=listener).start()
        await until(lambda: all(seen[b"%d" % each] for each in range(4)))
        await asyncio.sleep(2)
        await consumer.close()
        await factory.admin.alter_group("g", model=model)
    assert set(seen.values()) == {1}


async def test_a_record_that_nobody_can_read_goes_by_the_term_of_the_group(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its first member sets ``on_bad_record``, as in other groups, and an operator changes it."""
    seen: list[bytes] = []

    async def listener(message: Message) -> None:
        seen.append(message.content)

    wire = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    good = [encode_record(number, b"%d" % number) for number in range(3)]
    bad = good[0][:4] + bytes([good[0][4] ^ 1]) + good[0][5:]
    await wire.put("t", 0, [good[0], bad, good[1]])
    config = shared(on_bad_record="stop", retry_backoff=(1.0, 2.0))
    consumer = await factory.create_consumer(config)
    await consumer.subscribe("t", listener=listener).start()
    await until(lambda: TopicPartition("t", 0) in consumer.troubles() and len(seen) == 2)
    assert (await factory.admin.describe_group("g")).terms.failure.on_bad_record == "stop"
    await factory.admin.alter_group("g", on_bad_record="skip")
    await wire.put("t", 0, [bad, good[2]])
    await until(lambda: consumer.bad_records == 2 and len(seen) == 3, timeout_s=600.0)
    await until(lambda: not consumer.troubles())
    await consumer.close()
    (told, _) = (await factory.admin.describe_shared_group("g")).partitions
    assert (told.low, told.open) == (5, 0)


async def test_retention_keeps_what_lies_behind_the_lowest_open_message(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Messages behind it may be done: with the policy ``keep`` it goes by the lowest one."""
    await cluster.create_topic("kept", partitions=1)
    async with cluster.admin() as coordinator:
        await change_settings(
            coordinator, "kept", TopicSettings(partitions=1, retention_policy="keep")
        )
    node = cluster.nodes["b1"]
    go_on = asyncio.Event()
    seen: list[bytes] = []

    async def listener(message: Message) -> None:
        if message.content == b"0" and len(seen) >= 4:
            await go_on.wait()
        seen.append(message.content)

    consumer = await factory.create_consumer(shared(workers=4, lease_s=3_600.0))
    await consumer.subscribe("kept", listener=listener).start()
    starts = []
    for _ in range(2):
        before = len(seen)
        await send(factory, "kept", 4)
        await until(lambda: len(seen) >= before + (4 if before == 0 else 3))  # noqa: B023
        log = node.parts.partitions.channels["kept", 0].log
        assert log is not None
        log.roll()
        starts.append(log.end_offset)
    partition = TopicPartition("kept", 0)

    async def is_behind(offset: int) -> bool:
        found = await consumer.get_offset("kept")
        return found.get(partition, 0) >= offset

    await until_true(lambda: is_behind(starts[0]))
    await later(node, 72.1).look()
    assert log.start_offset == starts[0]
    go_on.set()
    await until_true(lambda: is_behind(starts[1]))
    await later(node, 72.1).look()
    assert log.start_offset == starts[1]


async def is_all_done(factory: aio.MessageFactory) -> bool:
    told = await factory.admin.describe_shared_group("g")
    return bool(told.partitions) and not any(each.open for each in told.partitions)


async def test_tasks_take_messages_and_acknowledge_each_by_itself(
    factory: aio.MessageFactory,
) -> None:
    """By calls and by iterations, any number at a time; no call settles those of an earlier one."""
    await send(factory, "t", 100)
    consumer = await factory.create_consumer(shared())
    consumer.subscribe("t")
    first = await consumer.get_many(10)
    seen: Counter[bytes] = Counter()

    async def iterate() -> None:
        async for message in consumer:
            assert isinstance(message, SharedMessage)
            seen[message.content] += 1
            await asyncio.sleep(0.01)
            await message.ack()

    async def call() -> None:
        while not consumer.closed:
            for message in await consumer.get_many(7, timeout=1.0):
                assert isinstance(message, SharedMessage)
                seen[message.content] += 1
                await message.ack()

    tasks = [asyncio.create_task(each()) for each in (iterate, iterate, call, call)]
    await until(lambda: len(seen) == 100 - len(first))
    assert not {each.content for each in first} & set(seen)
    assert await consumer.get_many(1, timeout=0.0) == []

    async def is_held() -> bool:
        told = await factory.admin.describe_shared_group("g")
        return sum(each.held for each in told.partitions) == len(first)

    await until_true(is_held)
    for message in first:
        await message.ack()  # type: ignore[attr-defined]
    await until_true(lambda: is_all_done(factory))
    await consumer.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set(seen.values()) == {1}
    with pytest.raises(InvalidState, match="closed"):
        await consumer.get_many(1)
    with pytest.raises(InvalidState, match="closed"):
        await first[0].ack()  # type: ignore[attr-defined]


async def test_what_is_taken_and_not_settled_comes_again(factory: aio.MessageFactory) -> None:
    """When its lease is over, or at once if the consumer is closed; it counts as delivered."""
    await send(factory, "t", 2)
    settings = {"lease_s": 5.0, "max_deliveries": 3}
    consumer = await factory.create_consumer(shared(**settings))
    consumer.subscribe("t")
    (first,) = await consumer.get_many(1)
    for steer in (consumer.pause, consumer.resume):
        with pytest.raises(InvalidState, match=r"shared group .* no partitions"):
            steer()
    await first.extend(60.0)  # type: ignore[attr-defined]
    (second,) = await consumer.get_many(1)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    (again,) = await consumer.get_many(5)
    assert (again.content, again.attempts) == (second.content, 2)
    assert 4 < loop.time() - begun < 7
    with pytest.raises(LeaseLost):
        await second.ack()  # type: ignore[attr-defined]
    other = await factory.create_consumer(shared(**settings))
    other.subscribe("t")
    assert await other.get_many(5, timeout=0.5) == []
    begun = loop.time()
    await consumer.close()
    found = await other.get_many(1) + await other.get_many(1)
    assert loop.time() - begun < 2
    assert {each.content: each.attempts for each in found} == {b"0": 2, b"1": 2} | {
        again.content: 3
    }
    begun = loop.time()
    await other.close()  # a third delivery of one of them, and the fourth of the other
    last = await factory.create_consumer(shared(**settings))
    last.subscribe("t")
    (left,) = await last.get_many(5)
    assert (left.content, left.attempts) == (first.content, 3)
    await left.nack()  # type: ignore[attr-defined]
    assert await last.get_many(5, timeout=2.0) == []
    assert await is_all_done(factory)
    letters = await factory.create_consumer()
    found = await letters.get_last("_vq.dlq.g", 10)
    assert {each.content for each in found} == {b"0", b"1"}


async def test_a_call_that_is_cancelled_has_taken_none(factory: aio.MessageFactory) -> None:
    consumer = await factory.create_consumer(shared())
    consumer.subscribe("t")
    for _ in range(3):
        assert await consumer.get_many(4, timeout=0.1) == []
    call = asyncio.create_task(consumer.get_many(4))
    await asyncio.sleep(1)
    call.cancel()
    await asyncio.wait([call])
    await send(factory, "t", 4)
    found: list[Message] = []
    while len(found) < 4:
        found += await consumer.get_many(4)
    assert {each.attempts for each in found} == {1}
    assert len({each.content for each in found}) == 4


async def test_what_waits_behind_long_listeners_does_not_count_as_delivered(
    factory: aio.MessageFactory,
) -> None:
    """A member has more in hand than it is at; their leases are given back before they end."""
    seen: list[tuple[bytes, int]] = []

    async def listener(message: Any) -> None:
        if not seen:
            seen.append((message.content, message.attempts))
            for _ in range(20):
                await message.extend(4.0)
                await asyncio.sleep(2.0)
        else:
            seen.append((message.content, message.attempts))

    consumer = await factory.create_consumer(shared(lease_s=4.0, max_deliveries=2))
    await consumer.subscribe("t", listener=listener).start()
    await send(factory, "t", 6)
    await until(lambda: len(seen) == 6, timeout_s=600.0)
    assert {each for _, each in seen} == {1}
    await consumer.close()


async def test_a_keyed_shared_group_keeps_the_order_of_each_key(
    factory: aio.MessageFactory,
) -> None:
    """Over all members, and while a message waits for its next try; other keys go on meanwhile."""
    begun: list[tuple[object, int]] = []
    at_work: set[object] = set()
    failed_s = [0.0]
    loop = asyncio.get_running_loop()

    async def listener(message: Any) -> None:
        assert message.key is None or message.key not in at_work
        at_work.add(message.key)
        await asyncio.sleep(0.03)
        at_work.discard(message.key)
        number = int(message.content)
        if number == 8 and message.attempts == 1:
            failed_s[0] = loop.time()
            raise ValueError("not yet")
        begun.append((message.key, number))

    settings = {"mode": "keyed", "workers": 4, "retry_backoff": (5.0, 5.0)}
    consumers = [await factory.create_consumer(shared(**settings)) for _ in range(3)]
    for each in consumers:
        await each.subscribe("t", listener=listener).start()
    producer = await factory.create_producer()
    keys = ["a", b"a", 1, "b", None]
    await producer.send_batch([Message("t", b"%d" % n, key=keys[n % 5]) for n in range(100)])
    await until(lambda: len(begun) == 100, timeout_s=600.0)
    for key in keys[:-1]:
        numbers = [number for of, number in begun if of == key and type(of) is type(key)]
        assert numbers == sorted(numbers)
    last_of_others = max(begun.index((keys[n % 5], n)) for n in range(100) if n % 5 != 3)
    assert begun.index(("b", 8)) > last_of_others, "they did not wait for its pause"
    await until_true(lambda: is_all_done(factory))
    for each in consumers:
        await each.close()
    found = await factory.admin.describe_group("g")
    assert found.terms.mode == "keyed"
    other = await factory.create_consumer(shared())
    with pytest.raises(InvalidArgument, match="mode"):
        await other.subscribe("t", listener=listener).start()


async def test_a_message_that_is_held_is_tried_for_ever(factory: aio.MessageFactory) -> None:
    attempts: list[int] = []

    async def listener(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 5:
            raise ValueError("not yet")

    settings = {"max_deliveries": 2, "retry_backoff": (0.1, 0.1), "on_failure": "hold"}
    consumer = await factory.create_consumer(shared(**settings))
    await consumer.subscribe("t", listener=listener).start()
    await send(factory, "t", 1)
    await until(lambda: attempts == [1, 2, 3, 4, 5])
    await until_true(lambda: is_all_done(factory))


@pytest.mark.parametrize("lease_s", [0.2, 30.0])
async def test_a_listener_begins_with_a_whole_lease(
    factory: aio.MessageFactory, lease_s: float
) -> None:
    """One that takes less than that never has its message taken away, however many wait here."""
    seen: list[tuple[bytes, int]] = []

    async def listener(message: Message) -> None:
        await asyncio.sleep(0.7 * lease_s)
        seen.append((message.content, message.attempts))

    consumer = await factory.create_consumer(shared(lease_s=lease_s, workers=1))
    await consumer.subscribe("t", listener=listener).start()
    await send(factory, "t", 12)
    await until(lambda: len(seen) >= 12, timeout_s=3_600.0)  # before, nothing may be open yet
    await until_true(lambda: is_all_done(factory), timeout_s=3_600.0)
    assert sorted(seen) == sorted((b"%d" % each, 1) for each in range(12))


BAD_TIMES = [
    ("nack", -1.0),
    ("nack", 41 * 86_400.0),
    ("nack", float("nan")),
    ("nack", "soon"),
    ("extend", 0),
    ("extend", 13 * 3_600.0),
    ("extend", True),
]


@pytest.mark.parametrize(("method", "value"), BAD_TIMES)
async def test_a_time_out_of_its_bounds_costs_only_its_own_message(
    factory: aio.MessageFactory, method: str, value: Any
) -> None:
    acked: list[bytes] = []

    async def listener(message: SharedMessage) -> None:
        if message.content == b"3" and message.attempts == 1:
            await getattr(message, method)(value)
        await message.ack()
        acked.append(message.content)

    consumer = await factory.create_consumer(shared(workers=8, retry_backoff=(0.1, 0.1)))
    await consumer.subscribe("t", listener=listener).start()
    await send(factory, "t", 10)
    await until(lambda: len(acked) == 10)
    assert acked[-1] == b"3"
    assert len(set(acked)) == 10


class Fails(MessageFilter):
    """Fails twice for one message."""

    def __init__(self) -> None:
        self.failed = 0

    def matches(self, message: Message) -> bool:
        """See ``MessageFilter``."""
        if message.content == b"5" and self.failed < 2:
            self.failed += 1
            raise ValueError("a bug")
        return True


async def test_a_filter_that_fails_holds_up_one_message(factory: aio.MessageFactory) -> None:
    """It is tried again; those before and behind it are handled once."""
    seen: list[bytes] = []

    async def listener(message: Message) -> None:
        seen.append(message.content)

    await send(factory, "t", 10)
    consumer = await factory.create_consumer(shared(workers=4, max_deliveries=2))
    await consumer.subscribe("t", listener=listener, message_filter=Fails()).start()
    await until(lambda: len(seen) == 10)
    assert seen[-1] == b"5"
    assert len(set(seen)) == 10
    await until_true(lambda: is_all_done(factory))


async def test_a_message_that_is_settled_twice_counts_once(factory: aio.MessageFactory) -> None:
    """Else the member would take more and more, and their leases would end here."""
    lost: list[bytes] = []

    async def listener(message: SharedMessage) -> None:
        await message.ack()
        try:
            await message.nack()
        except LeaseLost:
            lost.append(message.content)

    consumer = await factory.create_consumer(shared(workers=2))
    await consumer.subscribe("t", listener=listener).start()
    await send(factory, "t", 100)
    await until(lambda: len(lost) == 100)
    await send(factory, "t", 100)
    held = 0
    while len(lost) < 200:
        told = await factory.admin.describe_shared_group("g")
        held = max(held, sum(each.held for each in told.partitions))
    assert held <= 20


async def test_what_a_member_fetches_ahead_has_a_bound_of_bytes(
    factory: aio.MessageFactory,
) -> None:
    """All workers are at work; beside that, few of these large messages are with the member."""
    at_work = 0

    async def listener(message: Message) -> None:
        nonlocal at_work
        at_work += 1
        await asyncio.sleep(60)

    producer = await factory.create_producer()
    for key in range(100):
        await producer.send(Message("t", bytes(100 * 1024), key=key))
    config = shared(workers=40, lease_s=600, buffer_bytes=1 << 20, start_position="earliest")
    consumer = await factory.create_consumer(config)
    await consumer.subscribe("t", listener=listener).start()
    await until(lambda: at_work == 40)
    await asyncio.sleep(5)
    told = await factory.admin.describe_shared_group("g")
    assert 40 <= sum(each.held for each in told.partitions) <= 50
    assert at_work == 40
    await consumer.close()
