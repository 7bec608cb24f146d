"""Several messages of a partition in hand: order by key, lists, lost claims, hand-overs, stops."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.consumers import client_of_factory, send, texts

from vq import aio
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.tries import RETRY, Retry
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.values.consumers import AHEAD_MAX, CommittedOffset
from vq.errors import GroupStopped, InvalidArgument, ListenerFailed
from vq.model import Message, TopicPartition
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)
KEYS = ("a", "b", "c", "d")


#: Every way in which a listener may get its messages.
WAYS: dict[str, dict[str, Any]] = {
    f"{mode}, {'lists' if size > 1 else 'one by one'}": {"mode": mode, "batch_size": size}
    for mode in ("orderly", "keyed", "concurrent")
    for size in (1, 3)
}
every_way = pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)


def for_each(listener: Callable[[Message], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Return a listener that takes lists, too."""

    async def handle(given: Message | list[Message]) -> None:
        for message in given if isinstance(given, list) else [given]:
            await listener(message)

    return handle


async def member(
    factory: aio.MessageFactory, listener: Any, topic: str = "t", **settings: Any
) -> aio.MessageConsumer:
    """Return a started consumer whose messages go to a listener."""
    config = {"group": "g", "max_wait_s": 0.5, "workers": 8, "commit_interval_s": 600.0, **settings}
    consumer = await factory.create_consumer(ConsumerConfig(**config))
    return await consumer.subscribe(topic, listener=listener).start()


async def send_keyed(factory: aio.MessageFactory, count: int) -> list[Any]:
    """Store messages of topic ``t`` with the keys in turn."""
    messages = [Message("t", b"%d" % each, key=KEYS[each % len(KEYS)]) for each in range(count)]
    return await send(factory, *messages)


async def committed(consumer: aio.MessageConsumer) -> int:
    await consumer.commit()
    return (await consumer.get_offset("t"))[T0]


async def test_keys_are_side_by_side_and_each_is_in_order(factory: aio.MessageFactory) -> None:
    await send_keyed(factory, 40)
    order: defaultdict[Any, list[int]] = defaultdict(list)
    running: list[Any] = []
    most = 0
    rng = random.Random(7)

    async def listener(message: Message) -> None:
        nonlocal most
        assert message.key not in running
        running.append(message.key)
        most = max(most, len(running))
        await asyncio.sleep(rng.random())
        running.remove(message.key)
        order[message.key].append(int(message.content))

    async with await member(factory, listener, mode="keyed"):
        await until(lambda: sum(map(len, order.values())) == 40)
    assert most == len(KEYS)
    assert all(order[key] == list(range(number, 40, 4)) for number, key in enumerate(KEYS))


@pytest.mark.parametrize("workers", [1, 3])
async def test_so_many_messages_are_in_hand_at_a_time(
    factory: aio.MessageFactory, workers: int
) -> None:
    await send(factory, *texts(*range(12)))
    got: list[bytes] = []
    running = most = 0

    async def listener(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1.0)
        running -= 1
        got.append(message.content)

    async with await member(factory, listener, mode="concurrent", workers=workers):
        await until(lambda: len(got) == 12)
    assert most == workers


async def test_a_crash_delivers_again_from_the_lowest_unfinished_message(
    factory: aio.MessageFactory,
) -> None:
    sent = await send(factory, *texts(*range(6)))
    got: list[bytes] = []

    async def listener(message: Message) -> None:
        if message.content == b"2":
            await asyncio.sleep(1e6)
        got.append(message.content)

    consumer = await member(factory, listener, mode="concurrent")
    await until(lambda: len(got) == 5)
    assert sent[1].offset < await committed(consumer) <= sent[2].offset
    assert consumer.troubles() == {}


@every_way
async def test_a_result_of_an_earlier_claim_counts_for_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """Also when the same member claims again: its listener runs under both generations."""
    sent = await send(factory, *texts(0, 1, 2))
    calls: list[asyncio.Event] = []

    async def listener(message: Message) -> None:
        if message.content != b"0":
            return
        calls.append(asyncio.Event())
        mine = calls[-1]
        while not mine.is_set():
            try:
                await mine.wait()
            except asyncio.CancelledError:
                continue  # it goes on beyond its limit, as a thread does

    consumer = await member(factory, for_each(listener), listener_timeout_s=5.0, **settings)
    await until(lambda: len(calls) == 1)
    coordinator: Any = client_of_factory(factory).coordinator
    session = coordinator.session_id
    cluster.ensemble.expire(coordinator)
    await until(lambda: coordinator.session_id not in {0, session})
    await until(lambda: len(calls) == 2)
    calls[0].set()
    await asyncio.sleep(1.0)
    assert await committed(consumer) <= sent[0].offset
    calls[1].set()
    await until(lambda: not consumer.troubles())
    await asyncio.sleep(1.0)
    assert await committed(consumer) > sent[2].offset
    assert len(calls) == 2
    await consumer.close()


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
async def test_a_hand_over_waits_for_a_listener_no_longer_than_its_limit(
    cluster: MemoryCluster, factory: aio.MessageFactory, mode: str
) -> None:
    """And delays no other partition."""
    await send(factory, *(Message("wide", b"%d" % each, key=each) for each in range(4)))
    stuck = asyncio.Event()
    here: list[int] = []
    there: list[int] = []

    async def hangs(message: Message) -> None:
        here.append(message.partition)
        while not stuck.is_set():
            try:
                await stuck.wait()
            except asyncio.CancelledError:
                continue

    async def works(message: Message) -> None:
        there.append(message.partition)

    first = await member(factory, hangs, "wide", mode=mode, listener_timeout_s=20.0)
    await until(lambda: len(set(here)) == 4)
    second = await member(factory, works, "wide", mode=mode)
    began = asyncio.get_running_loop().time()
    await until(lambda: len(there) == 2, timeout_s=60.0)
    assert 19.0 <= asyncio.get_running_loop().time() - began <= 30.0
    assert sorted(there) == sorted(each.partition for each in second.assignment())
    stuck.set()
    await first.close()
    await second.close()


async def test_a_coroutine_is_cancelled_at_its_limit_and_tried_again(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(0, 1))
    attempts: list[int] = []
    got: list[bytes] = []

    async def listener(message: Message) -> None:
        if message.content == b"0":
            attempts.append(message.attempts)
            if message.attempts < 3:
                await asyncio.sleep(1e6)
        got.append(message.content)

    settings = {"listener_timeout_s": 2.0, "max_attempts": 2, "on_failure": "hold"}
    async with await member(factory, listener, mode="concurrent", **settings) as consumer:
        await until(lambda: T0 in consumer.troubles())
        trouble = consumer.troubles()[T0]
        assert isinstance(trouble.error, ListenerFailed)
        assert "took longer than 2.0 s" in str(trouble.error)
        await until(lambda: len(got) == 2)
        await until(lambda: not consumer.troubles())
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
async def test_the_group_stops_at_a_message_until_it_is_reset(
    cluster: MemoryCluster, factory: aio.MessageFactory, mode: str
) -> None:
    """The other partitions go on, and a member that comes later is stopped there, too."""
    sent = await send(factory, *texts(0, 1, 2))
    await send(factory, Message("wide", b"9"))
    got: list[bytes] = []

    async def listener(message: Message) -> object:
        if message.content == b"1":
            return Retry  # the class, without parentheses, asks for another try as ``RETRY`` does
        got.append(message.content)
        return None

    settings: dict[str, Any] = {"mode": mode, "on_failure": "stop", "max_attempts": 2, "workers": 1}
    config = ConsumerConfig(group="g", max_wait_s=0.5, commit_interval_s=600.0, **settings)
    for _ in range(2):
        consumer = await factory.create_consumer(config)
        consumer.subscribe("t", listener=listener).subscribe("wide", listener=listener)
        await consumer.start()
        await until(lambda consumer=consumer: T0 in consumer.troubles())
        await until(
            lambda consumer=consumer: isinstance(consumer.troubles()[T0].error, GroupStopped)
        )
        trouble = consumer.troubles()[T0]
        assert sent[0].offset < trouble.offset <= sent[1].offset, "not up to where it has fetched"
        told = str(trouble.error)
        assert "on_failure = 'stop'" in told
        assert "Messages were lost" not in told
        await until(lambda: b"9" in got)
        await consumer.close()
    async with cluster.admin() as coordinator:
        await ZooKeeperOffsets(coordinator).reset("g", T0, CommittedOffset(offset=sent[2].offset))
    async with await factory.create_consumer(config) as consumer:
        await consumer.subscribe("t", listener=listener).start()
        await until(lambda: b"2" in got)


@every_way
async def test_listeners_that_fail_at_once_lose_nothing(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """At several partitions, keys or messages: two at least are failing at some moment."""
    sent = [Message("wide", b"%d" % each, key=KEYS[each % 4]) for each in range(40)]
    await send(factory, *sent)
    got: set[int] = set()
    failing = most = 0
    rng = random.Random(3)

    async def listener(message: Message) -> None:
        nonlocal failing, most
        if message.attempts < 3 and rng.random() < 0.5:
            failing += 1
            most = max(most, failing)
            await asyncio.sleep(rng.random() / 10)
            failing -= 1
            raise OSError("busy")
        await asyncio.sleep(rng.random() / 10)
        got.add(int(message.content))

    each = for_each(listener)
    async with await member(factory, each, "wide", max_attempts=9, **settings) as consumer:
        await until(lambda: len(got) == 40)
        await until_true(lambda: is_all_committed(consumer, "wide"))
    assert most > 1


async def is_all_committed(consumer: aio.MessageConsumer, topic: str) -> bool:
    """Whether a commit has the group behind all messages of a topic."""
    await consumer.commit()
    offsets = await consumer.get_offset(topic)
    ends = [(await consumer.get_bounds(topic, each.partition)).latest for each in offsets]
    return list(offsets.values()) == ends


async def cancel_by_a_timer() -> None:
    """Be cancelled by what is not vq, such as the time-out of a library."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.1, task.cancel)
    await asyncio.sleep(1e6)


async def hang() -> None:
    """Go beyond any limit."""
    await asyncio.sleep(1e6)


@every_way
async def test_a_listener_that_hangs_is_cancelled_or_raises_anything_loses_nothing(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """The message is tried again; what was in another call is handled once."""
    await send_keyed(factory, 8)
    wrongs = (
        *(asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()),
        *(cancel_by_a_timer, hang),
    )
    for number, wrong in enumerate(wrongs):
        got: list[bytes] = []
        tries: list[int] = []

        async def handle(
            given: Message | list[Message],
            wrong: Any = wrong,
            got: list[bytes] = got,
            tries: list[int] = tries,
        ) -> None:
            messages = given if isinstance(given, list) else [given]
            found = {each.content: each for each in messages}
            if b"2" in found:
                tries.append(found[b"2"].attempts)
                if len(tries) == 1:
                    if isinstance(wrong, BaseException):
                        raise wrong
                    await wrong()
            got += found

        named = {"group": f"g{number}", "listener_timeout_s": 2.0, **settings}
        with case(wrong):
            async with await member(factory, handle, **named) as consumer:
                await until(lambda got=got: len(got) >= 8)
                assert await is_all_committed(consumer, "t")
                assert consumer.troubles() == {}
            assert sorted(got) == [b"%d" % each for each in range(8)]
            assert tries == [1, 2]


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
async def test_a_coroutine_may_get_lists(factory: aio.MessageFactory, mode: str) -> None:
    """One message of them is skipped, and no other."""
    await send_keyed(factory, 10)
    calls: list[list[int]] = []
    got: list[int] = []

    async def listener(messages: list[Message]) -> None:
        calls.append([int(message.content) for message in messages])
        await asyncio.sleep(0.01)
        if 5 in calls[-1]:
            raise OSError("poison")
        got.extend(calls[-1])

    settings = {"batch_size": 4, "batch_wait_ms": 50.0, "on_failure": "skip", "workers": 1}
    async with await member(factory, listener, mode=mode, **settings):
        await until(lambda: len(got) == 9 and calls.count([5]) == 2)
    assert sorted(got) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert max(map(len, calls)) == 4


@pytest.mark.parametrize("settings", [{"mode": "keyed"}, {"mode": "concurrent"}, {"batch_size": 2}])
async def test_without_a_listener_messages_come_one_by_one_in_order(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    consumer = await factory.create_consumer(ConsumerConfig(group="g", **settings))
    with pytest.raises(InvalidArgument, match="are for listeners"):
        consumer.subscribe("t")


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
@pytest.mark.parametrize("seed", range(3))
async def test_members_come_and_go_while_listeners_work(
    factory: aio.MessageFactory, mode: str, seed: int
) -> None:
    """Every message is handled, none by two at once, and those of a key in order over all members.

    With keys, what was finished behind an unfinished message comes again at a hand-over.
    """
    rng = random.Random(seed)
    total = 240
    handled: list[tuple[int, Any]] = []
    running: set[int] = set()

    async def listener(message: Message) -> None:
        number = int(message.content)
        assert number not in running
        running.add(number)
        await asyncio.sleep(rng.random() / 4)
        running.discard(number)
        handled.append((number, message.key))

    members: list[aio.MessageConsumer] = []
    sent = 0
    async with await factory.create_producer() as producer:
        while sent < total:
            for _ in range(20):
                await producer.send(Message("wide", b"%d" % sent, key=sent % 24))
                sent += 1
            if members and rng.random() < 0.4:
                await members.pop(rng.randrange(len(members))).close()
            if len(members) < 3:
                members.append(await member(factory, listener, "wide", mode=mode))
            await asyncio.sleep(rng.random())
    await until(lambda: len({number for number, _ in handled}) == total)
    for each in members:
        await each.close()
    if mode != "keyed":
        assert sorted(number for number, _ in handled) == list(range(total))
    if mode != "concurrent":
        for key in range(24):
            found = list(dict.fromkeys(number for number, theirs in handled if theirs == key))
            assert found == sorted(found)


class Ahead:
    """A listener that fails for one key while it is told to, and counts what it handles."""

    def __init__(self) -> None:
        self.fails = True
        self.handled: list[bytes] = []

    async def __call__(self, given: Message | list[Message]) -> object:
        messages = given if isinstance(given, list) else [given]
        if self.fails and any(each.key == "b" for each in messages):
            return Retry  # the class, as above
        self.handled += [each.content for each in messages]
        return None


@pytest.mark.parametrize(
    "settings",
    [{"mode": "keyed"}, {"mode": "concurrent"}, {"mode": "keyed", "batch_size": 4}],
    ids=["keyed", "concurrent", "lists"],
)
async def test_a_clean_hand_over_delivers_no_finished_message_again(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """Those finished ahead of the lowest unfinished one go with the last commit."""
    await send_keyed(factory, 40)
    listener = Ahead()
    settings = {"on_failure": "hold", "max_attempts": 1, "retry_backoff": (60.0, 60.0), **settings}
    first = await member(factory, listener, **settings)
    await until(lambda: len(listener.handled) == 30)
    await first.commit()
    stored = await factory.admin.cluster.offsets.at("g", T0)
    assert stored is not None
    assert stored.ahead == (), "it may be much: it goes only with the last one"
    await first.close()
    stored = await factory.admin.cluster.offsets.at("g", T0)
    assert stored is not None
    assert len(stored.ahead) == 29, "all but the one before the place"
    second = await member(factory, listener, **settings)
    await asyncio.sleep(10)
    assert len(listener.handled) == 30
    second.pause("t")  # nor after a pause, by the same member
    second.resume("t")
    await asyncio.sleep(10)
    assert len(listener.handled) == 30
    await second.close()
    listener.fails = False
    third = await member(factory, listener, **settings)
    await until(lambda: len(listener.handled) == 40)
    assert await committed(third) == (await factory.admin.describe_group("g")).partitions[0].end
    await third.close()
    assert sorted(map(int, listener.handled)) == list(range(40))


@every_way
async def test_a_seek_to_the_lowest_unfinished_message_is_for_the_next_owner_too(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """It has everything delivered again behind that, also if its member finishes nothing more."""
    sent = await send_keyed(factory, 8)
    listener = Ahead()
    listener.fails = False
    holding = {"on_failure": "hold", "max_attempts": 1, "retry_backoff": (60.0, 60.0)}
    offsets = factory.admin.cluster.offsets

    async def nothing(_: Any) -> Retry:
        return RETRY

    first = await member(factory, for_each(listener), **holding, **settings)
    await until(lambda: len(listener.handled) == 8)
    await first.close()
    stored = await offsets.at("g", T0)
    assert stored is not None
    ahead = tuple((each.offset, each.id) for each in sent[1:])
    await offsets.reset("g", T0, replace(stored, offset=0, message_id=None, epoch=0, ahead=ahead))
    listener.handled.clear()
    second = await member(factory, nothing, **holding, **settings)
    await until(lambda: T0 in second.troubles())
    await second.seek(T0, 0)
    await second.close()
    async with await member(factory, for_each(listener), **holding, **settings):
        await until(lambda: len(listener.handled) == 8)


async def test_a_message_at_the_place_of_a_finished_one_is_delivered(
    factory: aio.MessageFactory,
) -> None:
    """The log lost its end, and has another one: an offset alone proves nothing."""
    results = await send_keyed(factory, 8)
    listener = Ahead()
    listener.fails = False
    first = await member(factory, listener, mode="keyed")
    await until(lambda: len(listener.handled) == 8)
    await first.close()
    offsets = factory.admin.cluster.offsets
    stored = await offsets.at("g", T0)
    assert stored is not None
    # Of every second message the id is another one.
    ahead = tuple((each.offset, each.id + number % 2) for number, each in enumerate(results))[1:]
    place = replace(stored, offset=0, message_id=None, epoch=0, ahead=ahead)
    await offsets.reset("g", T0, place)
    listener.handled.clear()
    async with await member(factory, listener, mode="keyed") as again:
        await until(lambda: len(listener.handled) == 5)
        assert sorted(map(int, listener.handled)) == [0, 1, 3, 5, 7]
        assert await committed(again) == stored.offset


async def test_a_commit_names_so_many_finished_messages_and_no_more(
    factory: aio.MessageFactory,
) -> None:
    """The others are delivered again."""
    many = [Message("t", b"%d" % n, key="a" if n else "b") for n in range(AHEAD_MAX + 50)]
    await send(factory, *many)
    listener = Ahead()
    settings = {"mode": "keyed", "max_attempts": 1, "retry_backoff": (60.0, 60.0)}
    first = await member(factory, listener, **settings)
    await until(lambda: len(listener.handled) == AHEAD_MAX + 49)
    await first.close()
    stored = await factory.admin.cluster.offsets.at("g", T0)
    assert stored is not None
    assert len(stored.ahead) == AHEAD_MAX
    listener.fails = False
    async with await member(factory, listener, **settings):
        await until(lambda: len(listener.handled) == AHEAD_MAX + 49 + 50)
    assert {int(each) for each in listener.handled} == set(range(AHEAD_MAX + 50))
