"""``on_failure = "retry-topic"``: a message that fails comes again later, and holds up nobody."""

import asyncio
import dataclasses
import itertools
from collections import Counter, defaultdict
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
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import ConnectionCut, InvalidArgument, InvalidState
from vq.model import Message, TopicPartition
from vq.remoting.format import Command
from vq.reserved import GROUP_CHARS_MAX
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

BAD = {b"3", b"5"}
COUNT = 10


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with ten_messages() as made:
        yield made


def config(**settings: Any) -> vq.ConsumerConfig:
    given = {
        "group": "g",
        "mode": "concurrent",
        "retry_backoff": (0.1, 1.0),
        "max_attempts": 1,
        "max_wait_s": 0.5,
        **settings,
    }
    return vq.ConsumerConfig(**given)


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 3},
        {"mode": "orderly", "order": "relaxed", "on_failure": "retry-topic"},
        {"mode": "keyed", "order": "relaxed", "on_failure": "retry-topic"},
        {"batch_size": 4, "workers": 2},
    ],
    ids=["concurrent", "orderly", "keyed", "lists"],
)
async def test_a_failed_message_comes_again_by_the_schedule_as_it_was(
    cluster: MemoryCluster, client: ClusterClient, settings: dict[str, Any]
) -> None:
    """The others do not wait for it; its last failure makes it a dead letter."""
    clock = cluster.ensemble.clock
    first: dict[bytes, Message] = {}
    tries: defaultdict[bytes, list[tuple[int, Message]]] = defaultdict(list)

    async def handle(given: Message | list[Message]) -> None:
        messages = given if isinstance(given, list) else [given]
        for message in messages:
            first.setdefault(message.content, message)
            tries[message.content].append((clock.wall_ms(), message))
        for message in messages:
            if message.content in BAD:
                raise ValueError(f"no {message.content.decode()}")

    async with factory_of(cluster, host="member", seed=31) as factory:
        consumer = await factory.create_consumer(
            config(max_attempts=2, retry_schedule=(10, 300), **settings)
        )
        async with consumer:
            await consumer.subscribe("t", listener=handle, message_filter="red").start()
            await until(lambda: len(first) == COUNT, timeout_s=5)

            async def is_done() -> bool:
                return len(await letters(client)) == 2

            await until_true(is_done, timeout_s=600)
            assert consumer.troubles() == {}
        assert await lag(client) == 0
    for content in BAD:
        times = [at for at, _ in tries[content]]
        tried = [message for _, message in tries[content]]
        assert [each.attempts for each in tried] == [1, 2, 3, 4, 5, 6]
        assert 10_000 <= times[2] - times[1] < 12_000
        assert 300_000 <= times[4] - times[3] < 302_000
        for message in tried[2:]:
            assert message._replace(next_offset=0, append_time_ms=None) == first[content]._replace(
                next_offset=0, append_time_ms=None
            )
            assert message.timestamp == first[content].timestamp
            assert message.origin is not None
            assert message.origin[:3] == first[content][0:1] + first[content][5:7]
            assert message.failure is not None
            assert message.failure.reason == f"ValueError('no {content.decode()}')"
    for letter in await letters(client):
        assert letter.failure is not None
        assert letter.failure.attempts == 6
        assert letter.origin is not None
        assert letter.origin.topic == "t"
        assert letter.message.headers is not None
        assert letter.message.headers["n"] == letter.message.content.decode()


class Failing:
    """A listener that fails for some contents so many times; what it got, and when."""

    def __init__(self, cluster: MemoryCluster, times: int = 1, contents: set[bytes] = BAD) -> None:
        self.got: list[bytes] = []
        self.tries: defaultdict[bytes, list[int]] = defaultdict(list)
        self.answer: Any = None
        self._clock = cluster.ensemble.clock
        self._times = times
        self._contents = contents

    async def __call__(self, message: Message) -> Any:
        tries = self.tries[message.content]
        tries.append(self._clock.wall_ms())
        if message.content in self._contents and len(tries) <= self._times:
            if self.answer is not None:
                return self.answer
            raise ValueError("no")
        self.got.append(message.content)
        return None

    def pauses_s(self, content: bytes) -> list[int]:
        times = self.tries[content]
        return [round((b - a) / 1000) for a, b in itertools.pairwise(times)]


async def member(
    factory: aio.MessageFactory, listener: Any, topic: str = "t", **settings: Any
) -> aio.MessageConsumer:
    consumer = await factory.create_consumer(config(**settings))
    return await consumer.subscribe(topic, listener=listener).start()


async def test_an_unknown_outcome_is_sent_again_and_the_copy_comes_once(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """The offset waits for the answer; nothing is given up meanwhile, and others go on."""
    listener = Failing(cluster)
    async with factory_of(cluster, host="member", seed=31) as factory:
        inner = factory.admin.cluster
        plain, answers = inner.request, False

        async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
            found = await plain(address, command, *rest, **named)
            if command == Command.PUT and not answers:
                raise ConnectionCut("cut")  # it was stored
            return found

        inner.request = request  # type: ignore[method-assign]
        async with await member(factory, listener, commit_interval_s=1, workers=4):
            await until(lambda: len(listener.got) >= COUNT - 2, timeout_s=5)
            await asyncio.sleep(60)
            assert (await lag(client) or 0) >= 2
            answers = True
            await until(lambda: len(listener.got) >= COUNT, timeout_s=60)
            await asyncio.sleep(60)
    assert sorted(listener.got) == [b"%d" % each for each in range(COUNT)]
    assert {len(listener.tries[each]) for each in BAD} == {2}, "the copies came once"
    assert await lag(client) == 0


@pytest.mark.parametrize("step", ["before", "stored", "committed"])
async def test_a_member_that_is_killed_while_it_copies_loses_nothing(
    cluster: MemoryCluster, client: ClusterClient, step: str
) -> None:
    """Before the copy is stored; behind that, and before the offset moves on; and behind that."""
    listener, dead = Failing(cluster), Failing(cluster, times=99)
    async with factory_of(cluster, host="dies", seed=31, session_timeout_s=2.0) as factory:
        inner = factory.admin.cluster
        plain, puts = inner.request, 0

        async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
            nonlocal puts
            if command == Command.PUT and step == "before":
                puts += 1
                await asyncio.sleep(1e6)
            found = await plain(address, command, *rest, **named)
            puts += command == Command.PUT
            return found

        inner.request = request  # type: ignore[method-assign]
        often = 0.5 if step == "committed" else 600.0
        await member(factory, dead, commit_interval_s=often, retry_schedule=(60, 60), workers=4)
        await until(lambda: puts >= 1, timeout_s=5)
        await asyncio.sleep(2.0)
        kill(cluster, factory)
        async with (
            factory_of(cluster, host="other", seed=32) as other,
            await member(other, listener, retry_schedule=(60, 60)),
        ):
            await until(lambda: set(listener.got) >= BAD, timeout_s=200)
            await asyncio.sleep(100)
        handled = set(listener.got) | set(dead.got)
        assert handled == {b"%d" % each for each in range(COUNT)}
        again = {each: len(listener.tries[each]) for each in BAD}
        assert set(again.values()) == {{"before": 2, "stored": 3, "committed": 2}[step]}
    assert await lag(client) == 0
    assert await letters(client) == []


def kill(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    """End a member as SIGKILL does: it says and stores nothing more."""
    coordinator = factory.admin.cluster.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.disconnect(coordinator)
    cluster.network.cut("dies", "b1")


async def test_the_listener_says_when_and_a_long_pause_is_not_waited_for_in_place(
    cluster: MemoryCluster,
) -> None:
    """A short one is, while there are tries."""
    for after_s, max_attempts, pauses in ((600, 3, [600, 600]), (0.5, 2, [0, 60])):
        listener = Failing(cluster, times=2)
        listener.answer = vq.Retry(after_s=after_s)
        if after_s == 0.5:
            listener = Failing(cluster, times=2)
        group = f"g{max_attempts}"
        async with (
            factory_of(cluster, host="member", seed=31) as factory,
            await member(
                factory, listener, group=group, max_attempts=max_attempts, retry_schedule=(60,) * 3
            ),
        ):
            await until(lambda: len(listener.got) == COUNT, timeout_s=2_000)  # noqa: B023
        for content in BAD:
            assert listener.pauses_s(content) == pauses


async def test_members_that_were_there_before_share_the_retry_topic_and_take_it_over(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Also with ``start_position="latest"``: what failed is never too old for its group."""
    listeners = [Failing(cluster, times=99), Failing(cluster, times=99)]
    async with factory_of(cluster, host="a", seed=31) as one, factory_of(cluster, host="b") as two:
        settings = {"start_position": "latest", "retry_schedule": (60, 600)}
        first = await member(one, listeners[0], **settings)
        second = await member(two, listeners[1], **settings)
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
        async with await one.create_producer() as producer:
            for number in range(COUNT):
                await producer.send(Message("t", b"%d" % number, key=f"k{number}"))
        await until(lambda: sum(len(each.tries) for each in listeners) == COUNT, timeout_s=10)
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, timeout_s=60)
        owned = {each.topic for each in first.assignment() + second.assignment()}
        assert owned == {"t", "_vq.retry.g"}
        described = await aio.MessageFactory.on_cluster(client).admin.describe_group("g")
        assert {each.topic for each in described.partitions} == {"t", "_vq.retry.g"}
        assert described.retry_topic == "_vq.retry.g"
        listed = await aio.MessageFactory.on_cluster(client).admin.list_topics()
        assert [each.name for each in listed] == ["t"]
        redelivered = [each for each in listeners if any(len(v) > 1 for v in each.tries.values())]
        assert not redelivered
        await first.close()
        handled = Failing(cluster, times=0)
        third = await member(one, handled, **settings)
        await second.close()
        await until(lambda: set(handled.got) >= BAD, timeout_s=200)
        await third.close()


async def test_a_member_without_the_topic_passes_a_message_on(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """To one that has it; and if there is none, it becomes a dead letter that says why."""
    await cluster.create_topic("other", partitions=1)
    for others in (0, 1):
        group = f"g{others}"
        listener, stranger = Failing(cluster), Failing(cluster)
        settings = {"group": group, "retry_schedule": (5,) * 6}
        async with factory_of(cluster, host="a", seed=41 + others) as factory:
            first = await member(factory, listener, **settings)
            second = await member(factory, stranger, topic="other", **settings)
            await until(lambda: len(listener.tries) == COUNT, timeout_s=10)  # noqa: B023
            if not others:
                await first.close()
            await asyncio.sleep(120)
            assert not stranger.got
            found = await letters(client, group)
            if others:
                assert set(listener.got) >= BAD
                await first.close()
            assert len(found) == (0 if others else len(BAD))
            for letter in found:
                assert letter.failure is not None
                assert "subscribes to no topic 't'" in letter.failure.reason
            await second.close()


@pytest.mark.parametrize("policy", ["hold", "skip", "stop", "dead-letter"])
async def test_a_member_without_the_topic_decides_nothing_about_a_message(
    cluster: MemoryCluster, client: ClusterClient, policy: str
) -> None:
    """Whatever the policy has become: no listener of its topic has failed for it since."""
    await cluster.create_topic("other", partitions=1)
    listener, stranger = Failing(cluster), Failing(cluster)
    settings = {"retry_schedule": (5, 30, 30), "retry_backoff": (1, 1)}
    async with factory_of(cluster, host="a", seed=41) as factory:
        first = await member(factory, listener, **settings)
        second = await member(factory, stranger, topic="other", **settings)
        await until(lambda: len(listener.tries) == COUNT, timeout_s=10)
        await asyncio.sleep(1)
        await first.close()
        admin = aio.MessageFactory.on_cluster(client).admin
        await admin.alter_group("g", on_failure=policy)
        await asyncio.sleep(15)
        assert not stranger.tries
        assert (second.troubles(), await letters(client)) == ({}, [])
        first = await member(factory, listener, **settings)
        await until(lambda: set(listener.got) >= BAD, timeout_s=120)
        await first.close()
        await second.close()


async def test_the_topic_is_made_when_it_is_needed_and_read_when_the_policy_changes(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    admin = aio.MessageFactory.on_cluster(client).admin
    listener = Failing(cluster, times=4)
    async with factory_of(cluster, host="member", seed=31) as factory:
        consumer = await member(factory, listener, on_failure="hold", max_attempts=1)
        async with consumer:
            await until(lambda: len(listener.got) == COUNT - 2, timeout_s=10)
            listed = await admin.list_topics(reserved=True)
            assert [each.name for each in listed] == ["t"]
            await admin.alter_group("g", on_failure="retry-topic", retry_topic_s=(60,))
            await until(lambda: consumer.troubles() == {}, timeout_s=5)
            await admin.alter_group("g", on_failure="hold")
            await until(lambda: set(listener.got) >= BAD, timeout_s=200)
    settings = (await admin.describe_topic("_vq.retry.g")).topic.settings
    assert (settings.retention_policy, settings.retention_hours) == ("keep", 72)
    assert settings.partitions == 2


async def test_what_no_member_has_begun_to_read_is_lag(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Also of a group that begins at the end of other topics; and its next member reads it."""
    admin = aio.MessageFactory.on_cluster(client).admin
    async with factory_of(cluster, host="member", seed=31) as factory:
        settings = {"start_position": "latest", "retry_schedule": (5,)}
        consumer = await member(factory, Failing(cluster, times=99), **settings)
        await until(lambda: len(consumer.assignment()) == 2)
        async with await factory.create_producer() as producer:
            await producer.send(Message("t", b"3"))

        async def is_made() -> bool:
            return "_vq.retry.g" in (await admin.describe_group("g")).topics

        await until_true(is_made)
        kill(cluster, factory)
        await asyncio.sleep(60)
        described = await admin.describe_group("g")
        due = [each.lag_messages for each in described.partitions if each.topic != "t"]
        assert sum(each or 0 for each in due) == 1
        assert {each.committed for each in described.partitions if each.topic != "t"} == {None}
        step = vq.admin.Target(goal="shift", value=1)
        assert sum(each.skips or 0 for each in await admin.plan_reset("g", step)) >= 1
        asked = vq.admin.GroupTopic(group="g", topic="_vq.retry.g", partitions=2, with_younger=True)
        assert all(each.younger for each in await admin.read_places([asked]))
        async with factory_of(cluster, host="next", seed=32) as other:
            handled = Failing(cluster, times=0)
            async with await member(other, handled, **settings):
                await until(lambda: b"3" in handled.got, timeout_s=60)


async def test_a_retry_topic_belongs_to_no_clone(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """It would read what its model has failed for, and keep it, though no member asks for it."""
    admin = aio.MessageFactory.on_cluster(client).admin
    listener = Failing(cluster)
    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await member(factory, listener, retry_schedule=(5,)),
    ):
        await until(lambda: len(listener.got) == COUNT, timeout_s=60)
    await admin.make_group(await admin.plan_clone_group("g", "clone"))
    exported = await admin.export_group("g")
    assert "_vq.retry.g" in exported.topics
    for name in ("imported", "clone", "g"):
        planned = await admin.plan_import_group(exported, name)
        assert {each.partition.topic for each in planned.offsets} == (
            {"t", "_vq.retry.g"} if name == "g" else {"t"}
        )
        await admin.make_group(planned)
    for name in ("imported", "clone"):
        described = await admin.describe_group(name)
        assert set(described.topics) == {"t"}
        assert described.lag_messages == 0


@pytest.mark.parametrize("policy", ["retry-topic", "dead-letter"])
async def test_copies_of_a_list_go_in_one_batch(
    cluster: MemoryCluster, client: ClusterClient, policy: str
) -> None:
    """One for each partition; with the numbers of their messages there."""
    puts = 0

    async def fail(messages: list[Message]) -> Any:
        return vq.RETRY

    async with factory_of(cluster, host="member", seed=31) as factory:
        inner = factory.admin.cluster
        plain = inner.request

        async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
            nonlocal puts
            puts += command == Command.PUT
            return await plain(address, command, *rest, **named)

        inner.request = request  # type: ignore[method-assign]
        settings = {"batch_size": COUNT, "batch_wait_ms": 100.0, "on_failure": policy}
        async with await member(factory, fail, **settings, retry_schedule=(600,)):
            await asyncio.sleep(60)
            assert puts in {2, 3}, "a copy that waits for nobody goes alone"
        name = "_vq.delayed" if policy == "retry-topic" else "_vq.dlq.g"
        admin = aio.MessageFactory.on_cluster(client).admin
        count = len((await admin.describe_topic(name)).partitions)
        found = [m for at in range(count) for m in (await admin.read_range(name, at, 0)).messages()]
    numbers = sorted((each.origin.partition, each.origin.number) for each in found if each.origin)
    sizes = Counter(partition for partition, _ in numbers)
    assert sum(sizes.values()) == COUNT
    assert numbers == [(part, at) for part in (0, 1) for at in range(sizes[part])]


async def test_an_operator_takes_nothing_out_of_a_retry_topic(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """A filter on it would leave messages untried, and shut the group's members out."""
    admin = aio.MessageFactory.on_cluster(client).admin
    listener = Failing(cluster)
    async with factory_of(cluster, host="member", seed=31) as factory:
        async with await member(factory, listener, retry_schedule=(5,)):
            await until(lambda: len(listener.got) == COUNT, timeout_s=60)
        exported = await admin.export_group("g")
        told = "retry topic of group 'g', with the filter 'red': its members read all of it"
        with case("alter"), pytest.raises(InvalidArgument, match=told):
            await admin.alter_group("g", filters={"_vq.retry.g": "red"})
        with case("roll"), pytest.raises(InvalidArgument, match=told):
            await admin.roll_group("g", for_s=60, filters={"_vq.retry.g": "red"})
        await admin.alter_group("g", filters={"_vq.retry.g": "*"})
        with case("forget"), pytest.raises(InvalidState, match="delete it first"):
            await admin.forget_topic("g", "_vq.retry.g")
        await admin.delete_topic("_vq.retry.g", now=True)
        await admin.forget_topic("g", "_vq.retry.g")
        assert set((await admin.describe_group("g")).topics) == {"t"}
        await admin.delete_group("g")
        topics = {"t": "*", "_vq.retry.g": "red"}
        exported = dataclasses.replace(exported, topics=topics, offsets=())
        with case("import"), pytest.raises(InvalidArgument, match=told):
            await admin.plan_import_group(exported, "g")
        await cluster.create_topic("_vq.retry.g", partitions=1)
        await cluster.create_topic("_vq.dlq.g", partitions=1)
        target = vq.admin.Target(goal="earliest")
        with case("create"), pytest.raises(InvalidArgument, match=told):
            await admin.plan_create_group("g", topics, target)
        other = await admin.plan_create_group("h", topics, target)
        assert set(other.topics) == set(topics), "to another group it is a topic like others"
        for group in ("g", "h"):
            planning = admin.plan_create_group(group, {"_vq.dlq.g": "*"}, target)
            if group == "h":
                await admin.make_group(await planning)
                planning = admin.plan_clone_group("h", "g")
            with case(group), pytest.raises(InvalidArgument, match="would copy its dead letters"):
                await planning
        with case("stream"), pytest.raises(InvalidArgument, match="would copy its dead letters"):
            await admin.commit_progress("g", {TopicPartition("_vq.dlq.g", 0): 0}, topic_ids={})
        async with await member(factory, listener):
            pass


async def test_what_cannot_work_is_refused(cluster: MemoryCluster) -> None:
    for mode in ("orderly", "keyed"):
        with case(mode), pytest.raises(InvalidArgument, match="give order = 'relaxed', or"):
            config(mode=mode, on_failure="retry-topic")
    with pytest.raises(InvalidArgument, match="at most"):
        config(group="g" * (GROUP_CHARS_MAX + 1))
    with pytest.raises(InvalidArgument, match="retry_schedule has -1; give numbers of seconds"):
        config(retry_schedule=(10, -1))
    for mode in ("orderly", "keyed"):
        with case(mode), pytest.raises(InvalidArgument, match="has only with order = 'relaxed'"):
            config(mode=mode, retry_schedule=(10,))
    config(mode="orderly", order="relaxed", retry_schedule=(10,))

    async def handle(_: Message) -> None: ...

    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await factory.create_consumer(config()) as consumer,
        await factory.create_consumer(
            config(mode="orderly", order="relaxed", on_failure="retry-topic")
        ) as pulling,
    ):
        with case("its own copies"), pytest.raises(InvalidArgument, match="read it by themselves"):
            consumer.subscribe("_vq.retry.g", listener=handle)
        with case("no listener"), pytest.raises(InvalidArgument, match="is for listeners"):
            pulling.subscribe("t")
