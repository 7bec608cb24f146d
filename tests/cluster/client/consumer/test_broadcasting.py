"""Every member of a broadcasting group gets everything, and keeps its progress by itself."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import client_of_factory, coordinator_of, send, texts

import vq
from vq import aio
from vq.client.config import ConsumerConfig
from vq.coordination.topics import topics
from vq.coordination.topics.needs import NO_GROUP, read_needs
from vq.errors import GroupStopped, InvalidArgument, InvalidState, OffsetStoreFailed
from vq.model import Message, TopicPartition
from vq.operations.groups.groups import describe_group
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time

WHERE = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where members keep their progress."""
    monkeypatch.setenv("VQ_OFFSETS_DIR", str(tmp_path / "offsets"))
    return tmp_path / "offsets"


def file_of(directory: Path, member: str) -> Path:
    return directory / "test" / "g" / f"{member}.json"


class Member:
    """A member and what it took, as texts."""

    def __init__(self, consumer: aio.MessageConsumer) -> None:
        self.consumer = consumer
        self.taken: list[str] = []
        self.error: Exception | None = None

    async def take(self, message: Message) -> object:
        if self.error is not None:
            raise self.error
        self.taken.append(message.content.decode())
        return None

    async def until(self, *numbers: int) -> None:
        await until(lambda: sorted(self.taken, key=int) == [str(each) for each in numbers])


@asynccontextmanager
async def member(
    factory: aio.MessageFactory, name: str, *, topic: str = "t", **settings: Any
) -> AsyncIterator[Member]:
    """Run a member of group ``g``."""
    given = {"group": "g", "member_id": name, "model": "broadcasting", "max_wait_s": 0.5}
    consumer = await factory.create_consumer(ConsumerConfig(**{**given, **settings}))
    found = Member(consumer)
    consumer.subscribe(topic, listener=found.take)
    try:
        await consumer.start()
        yield found
    finally:
        await consumer.close()


async def test_all_get_everything_and_go_on_where_each_of_them_was(
    cluster: MemoryCluster, factory: aio.MessageFactory, directory: Path
) -> None:
    """Nothing of it is in ZooKeeper but the contract and the members."""
    await send(factory, *texts(0, 1))
    async with factory_of(cluster) as other, member(factory, "a") as first:
        async with member(other, "b") as second:
            await first.until(0, 1)
            await second.until(0, 1)
            found = await describe_group(client_of_factory(factory), "g")
            assert (found.model, [each.member for each in found.members]) == (
                "broadcasting",
                ["a", "b"],
            )
            assert [each.topics for each in found.members] == [("t",), ("t",)]
            assert [each.lag_bytes for each in found.partitions] == [None]
        await send(factory, *texts(2))
        await first.until(0, 1, 2)
        async with member(other, "b") as second:
            await second.until(2)
            await second.consumer.commit()
            assert await second.consumer.get_offset("t") == {
                WHERE: found.partitions[0].end * 3 // 2
            }  # type: ignore[operator]
    async with cluster.admin() as coordinator:
        assert await coordinator.children("consumers/g") == ["members"]
        view = await topics.describe_topic(coordinator, "t")
        needs = await read_needs(coordinator, "t", view.id)
        assert needs.of(0) == {NO_GROUP: 0}, "retention knows of no group here"
    assert file_of(directory, "a").exists()


async def test_a_member_without_a_name_begins_at_the_end_each_time(
    cluster: MemoryCluster, factory: aio.MessageFactory, directory: Path
) -> None:
    """It keeps no file; new partitions and topics are read from their start."""
    await send(factory, *texts(0))
    for _ in range(2):
        async with member(factory, "", topic="*", start_position="latest") as one:
            await until(lambda: WHERE in one.consumer.assignment())
            await send(factory, *texts(1))
            await one.until(1)
            async with cluster.admin() as coordinator:
                name = f"new{len(await topics.list_topics(coordinator))}"
            await cluster.create_topic(name, partitions=1)
            await send(factory, Message(name, b"7"))
            await one.until(1, 7)
    assert not directory.exists()


async def test_partitions_that_come_and_topics_made_anew_are_followed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Also while the member is away, and with ``latest``."""
    await send(factory, *texts(0))
    latest = {"start_position": "latest"}
    async with member(factory, "a", **latest) as one:
        await until(lambda: one.consumer.assignment() == [WHERE])
    async with cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 3)
    await send(factory, *texts(1, 2, 3))
    async with member(factory, "a", **latest) as one:
        await one.until(1, 2, 3)
        async with cluster.admin() as coordinator:
            await topics.delete_topic(coordinator, "t")
        await cluster.create_topic("t", partitions=1)
        await send(factory, *texts(4))
        await one.until(1, 2, 3, 4)
    async with member(factory, "a", **latest) as one:
        await send(factory, *texts(5))
        await one.until(5)


async def test_delivery_goes_on_while_zookeeper_and_the_session_are_gone(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Nobody else could have what this member has."""
    async with member(factory, "a") as one:
        await until(lambda: one.consumer.assignment() == [WHERE])
        async with factory_of(cluster) as writer:
            await send(writer, *texts(0))
            await one.until(0)
            coordinator = coordinator_of(factory)
            cluster.ensemble.disconnect(coordinator)
            await asyncio.sleep(2.5)
            await send(writer, *texts(1))
            await one.until(0, 1)
            cluster.ensemble.reconnect(coordinator)
            await send(writer, *texts(2))
            await one.until(0, 1, 2)

            async def is_back() -> bool:
                found = await describe_group(client_of_factory(writer), "g")
                return [each.member for each in found.members] == ["a"]

            await until_true(is_back)
    assert one.taken == ["0", "1", "2"]


async def test_members_of_another_model_are_refused(factory: aio.MessageFactory) -> None:
    """The model is a term of the group."""
    async with member(factory, "a"):
        with pytest.raises(
            InvalidArgument,
            match="the group has model = 'broadcasting', this member 'clustering'",
        ):
            async with member(factory, "b", model="clustering"):
                pass


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"on_failure": "dead-letter"}, "would copy the message for the whole group"),
        ({"on_failure": "retry-topic", "order": "relaxed"}, "would copy the message for the whole"),
        ({"member_id": ""}, "give member_id = '...'"),
        ({"strategy": "circle"}, "every member has every partition"),
        ({"restart_s": 5.0}, "every member has every partition"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(
    settings: dict[str, Any], what: str
) -> None:
    """Before anything is opened."""
    given = {"group": "g", "member_id": "a", "model": "broadcasting", **settings}
    with pytest.raises(InvalidArgument, match=what):
        vq.ConsumerConfig(**given)


async def test_two_processes_never_share_a_name(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The second one is refused at once, and does not wait for a session."""
    async with member(factory, "a"), factory_of(cluster) as other:
        with pytest.raises(InvalidState, match="runs in another process of this machine already"):
            async with asyncio.timeout(WAIT_S), member(other, "a"):
                pass


async def test_damage_and_loss_of_the_file_are_never_taken_for_no_offset(
    factory: aio.MessageFactory, directory: Path
) -> None:
    """The member does not start, and the error says what to do."""
    await send(factory, *texts(0))
    async with member(factory, "a") as one:
        await one.until(0)
    path = file_of(directory, "a")
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(InvalidState, match=f"Put a backup back, or remove {path}"):
            async with member(factory, "a"):
                pass
    path.unlink()
    with pytest.raises(InvalidState, match=f"had its progress in {path}, and the file is gone"):
        async with member(factory, "a"):
            pass
    path.write_bytes(good)
    async with member(factory, "a") as one:
        await send(factory, *texts(1))
        await one.until(1)


async def test_a_full_disk_keeps_nothing_from_being_delivered(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is written when there is room; until then a crash repeats messages."""
    async with member(factory, "a", commit_interval_s=0.05) as one:
        await send(factory, *texts(0))
        await one.until(0)
        await one.consumer.commit()
        fsync, full = os.fsync, True

        def failing(file: int) -> None:
            if full:
                raise OSError(28, "No space left on device")
            fsync(file)

        monkeypatch.setattr(os, "fsync", failing)
        await send(factory, *texts(1))
        await one.until(0, 1)
        with pytest.raises(OffsetStoreFailed, match="No space left on device"):
            await one.consumer.commit()
        full = False
        await one.consumer.commit()
        await send(factory, *texts(2))
    async with member(factory, "a") as one:
        await send(factory, *texts(3))
        await until(lambda: "3" in one.taken)
        assert set(one.taken) <= {"2", "3"}


@pytest.mark.parametrize("settings", [{"mode": "keyed"}, {"mode": "concurrent", "workers": 3}])
async def test_it_has_the_working_modes_and_skips_what_fails(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """RocketMQ never tries again in this model; here a member tries by itself."""
    tried: list[str] = []
    consumer = await factory.create_consumer(
        ConsumerConfig(
            group="g",
            member_id="a",
            model="broadcasting",
            on_failure="skip",
            retry_backoff=(0.01, 0.01),
            max_wait_s=0.5,
            **settings,
        )
    )

    async def take(message: Message) -> None:
        tried.append(message.content.decode())
        if message.content == b"1":
            raise ValueError("no")

    await consumer.subscribe("t", listener=take).start()
    await send(factory, *texts(0, 1, 2))
    await until(lambda: sorted(tried) == ["0", "1", "1", "1", "2"])
    await consumer.close()


async def test_a_member_that_stopped_goes_on_where_it_seeks(
    factory: aio.MessageFactory,
) -> None:
    """No operator can reset a file of another machine: the member decides, or a restart tries."""
    await send(factory, *texts(0))
    settings = {"on_failure": "stop", "max_attempts": 1}
    async with member(factory, "a", **settings) as one:
        await one.until(0)
        one.error = ValueError("no")
        await send(factory, *texts(1))
        await until(lambda: WHERE in one.consumer.troubles())
        await until(lambda: isinstance(one.consumer.last_error, GroupStopped))
        assert "seek of the consumer" in str(one.consumer.last_error)
    async with member(factory, "a", **settings) as one:
        await one.until(1)
        one.error = ValueError("no")
        await send(factory, *texts(2))
        await until(lambda: isinstance(one.consumer.last_error, GroupStopped))
        one.error = None
        await one.consumer.seek(WHERE, "earliest")
        await one.until(0, 1, 1, 2)
        assert one.consumer.troubles() == {}


async def test_a_retry_topic_of_earlier_days_is_not_for_each_of_them(
    factory: aio.MessageFactory,
) -> None:
    """What the group has handled there would come to every member again."""

    async def fail_once(message: Message) -> None:
        failed.append(message.attempts)
        if message.attempts == 1:
            raise ValueError("no")

    failed: list[int] = []
    given = {"group": "g", "mode": "concurrent", "max_wait_s": 0.5}
    retries = {"max_attempts": 1, "retry_schedule": (0.2, 1)}
    consumer = await factory.create_consumer(ConsumerConfig(**{**given, **retries}))
    await consumer.subscribe("t", listener=fail_once).start()
    await send(factory, *texts(1))
    await until(lambda: failed == [1, 2])
    await consumer.close()
    await factory.admin.alter_group("g", model="broadcasting", on_failure="hold")
    async with (
        member(factory, "a", mode="concurrent", start_position="latest") as one,
        member(factory, "b", mode="concurrent") as other,
    ):
        await until(lambda: WHERE in one.consumer.assignment())
        await asyncio.sleep(1.0)
        await send(factory, *texts(2))
        await other.until(1, 2)
        await until(lambda: "2" in one.taken)
        assert (sorted(other.taken), one.taken) == (["1", "2"], ["2"])
        assert {each.topic for each in one.consumer.assignment()} == {"t"}
    await factory.admin.alter_group("g", model="clustering")
    assert "_vq.retry.g" in (await factory.admin.describe_group("g")).topics
