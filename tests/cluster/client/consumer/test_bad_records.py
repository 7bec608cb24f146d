"""``on_bad_record``: a record that no node has so that it can be read stops, or is passed over."""

import asyncio
import contextlib
from typing import Any

import pytest
from support.broker import Client, MemoryCluster
from support.cases import case
from support.client import factory_of

import vq
from vq import aio
from vq.broker.health.repairing import Repairer
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import (
    ConnectionCut,
    ContentUnreadable,
    CorruptData,
    GroupStopped,
    InvalidArgument,
    UnknownTopic,
)
from vq.model import Message, TopicPartition
from vq.operations.groups.resets import Goal, Target, plan_reset, reset
from vq.remoting.format import Command
from vq.store.records.format import COMPRESSION_ZLIB
from vq.store.records.record import encode_record
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)
CONTENTS = [b"first", b"second", b"third"]
_WRONG = encode_record(2, b"wrong", tag=b"a")
BAD = {
    "checksum": _WRONG[:4] + bytes([_WRONG[4] ^ 1]) + _WRONG[5:],
    "compression": encode_record(2, b"no zlib", tag=b"a", compression=COMPRESSION_ZLIB),
    "properties": encode_record(2, b"bad", tag=b"a", properties=b"\xff\xff\xff"),
}
MODES: dict[str, dict[str, Any]] = {
    "orderly": {},
    "concurrent": {"mode": "concurrent", "workers": 2},
    "lists": {"batch_size": 3},
}


@pytest.fixture
async def wire(cluster: MemoryCluster) -> Client:
    return await Client.connect(cluster.network, cluster.nodes["b1"].address)


def record(number: int) -> bytes:
    return encode_record(number, b"%d" % number, tag=b"a")


async def put(wire: Client, *bad: bytes) -> list[tuple[int, bytes]]:
    """Store a batch of each bad record, between good ones; return where they begin."""
    found = []
    for number, each in enumerate(bad):
        good = record(10 + 2 * number), record(11 + 2 * number)
        result = await wire.put("t", 0, [good[0], each, good[1]])
        found.append((result.offset + len(good[0]), each))
    return found


def config(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(**{"group": "g", "max_wait_s": 0.5, "commit_interval_s": 0.2, **settings})


class Handled:
    """A member that handles what comes."""

    def __init__(self, consumer: aio.MessageConsumer, wanted: Any = None) -> None:
        self.contents: list[bytes] = []
        self.consumer = consumer
        consumer.subscribe("t", listener=self.handle, message_filter=wanted)

    async def handle(self, given: Message | list[Message]) -> None:
        messages = given if isinstance(given, list) else [given]
        self.contents += [each.content for each in messages]


async def letters(factory: aio.MessageFactory) -> list[vq.admin.DeadLetter]:
    with contextlib.suppress(UnknownTopic):
        return [each async for each in factory.admin.read_dead_letters("g")]
    return []


async def is_at_end(factory: aio.MessageFactory) -> bool:
    return (await factory.admin.describe_group("g")).lag_bytes == 0


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
@pytest.mark.parametrize("tag", [None, "a"])
async def test_bad_records_are_passed_over_and_nothing_else_is(
    factory: aio.MessageFactory,
    wire: Client,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    policy: str,
    tag: str | None,
) -> None:
    bad = await put(wire, *BAD.values(), BAD["checksum"])
    good = [b"%d" % number for number in range(10, 18)]
    consumer = await factory.create_consumer(config(on_bad_record=policy, **settings))
    member = Handled(consumer, tag)
    async with consumer:
        await consumer.start()
        await until(lambda: len(member.contents) == len(good), timeout_s=600.0)
        await until(lambda: not consumer.troubles())
        assert (sorted(member.contents), consumer.bad_records) == (good, len(bad))

        async def is_done() -> bool:
            return await is_at_end(factory)

        await until_true(is_done)
    assert caplog.text.count("record cannot be read from any node, passed over") == len(bad)
    found = await letters(factory)
    if policy == "skip":
        assert not found
        return
    assert [each.message.content for each in found] == [each for _, each in bad]
    for letter, (offset, raw) in zip(found, bad, strict=True):
        assert letter.origin is not None
        assert letter.origin[:3] == ("t", 0, offset)
        assert letter.failure is not None
        assert (letter.failure.attempts, letter.failure.raw_bytes) == (0, len(raw))
        assert letter.failure.reason
    done = await factory.admin.resend_dead_letters("g")
    assert (done.resent, done.homeless) == (0, len(bad)), "bytes are no message"
    assert await is_at_end(factory)
    again = await factory.create_consumer(config(on_bad_record=policy, **settings))
    Handled(again, tag)
    async with again:  # the place behind a bad record is known as one of this log
        await again.start()
        await asyncio.sleep(5.0)
        assert not again.troubles()


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
async def test_the_group_stops_at_a_bad_record_unless_it_is_told_otherwise(
    factory: aio.MessageFactory, client: ClusterClient, wire: Client, settings: dict[str, Any]
) -> None:
    """All before it is handled, later members stop there, too, and a reset past it goes on."""
    ((offset, raw),) = await put(wire, BAD["compression"])
    consumer = await factory.create_consumer(config(**settings))
    member = Handled(consumer)
    async with consumer:
        await consumer.start()

        async def is_stopped() -> bool:
            found = (await client.offsets.read("g", ["t"])).get(T0)
            return found is not None and found.stopped.startswith("on_bad_record = 'stop'")

        await until_true(is_stopped, timeout_s=600.0)
        assert member.contents == [b"10"]
        assert isinstance(consumer.troubles()[T0].error, GroupStopped)
        assert "Messages were lost" not in str(consumer.troubles()[T0].error)
    consumer = await factory.create_consumer(config(**settings))
    member = Handled(consumer)
    async with consumer:
        await consumer.start()
        await until(lambda: T0 in consumer.troubles())
        terms = await factory.admin.alter_group("g", on_bad_record="skip")
        assert terms.failure.on_bad_record == "skip"
        await put(wire, BAD["properties"])
        (planned,) = await plan_reset(client, "g", Target(goal=Goal.PAST_DAMAGE))
        assert planned.after.offset == offset + len(raw)
        await reset(client, "g", [planned], fence=True)
        await until(lambda: member.contents == [b"11", b"10", b"11"], timeout_s=600.0)
        assert consumer.bad_records == 1, "the members follow"


def change_on_disk(cluster: MemoryCluster, node: str, content: bytes) -> int:
    """Change a stored message of ``t-0`` behind the back of a node; return the byte's offset."""
    log = cluster.nodes[node].parts.partitions.channels["t", 0].log
    assert log is not None
    (piece,) = log.reader.pieces(0, log.end_offset)
    at = bytes(log.reader.read(0, 1 << 20, log.end_offset)).index(content)
    file = cluster.disks[node].open(piece.path)
    file.pwrite([b"#"], at)
    file.close()
    return at


async def test_a_record_that_another_node_has_is_no_bad_record(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once that one has it damaged, too, the others of its batch are still delivered."""

    async def no_repair(*_: object) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setattr(Repairer, "_try", no_repair)
    await cluster.start(node="n2")
    await until(lambda: cluster.nodes["b1"].parts.context.role.named == 2)
    producer = await factory.create_producer()
    async with producer:
        await producer.send_batch([Message("t", each) for each in CONTENTS])
    change_on_disk(cluster, "b1", b"second")
    consumer = await factory.create_consumer(config(on_bad_record="dead-letter"))
    member = Handled(consumer)
    async with consumer:
        await consumer.start()
        await until(lambda: len(member.contents) == 3, timeout_s=600.0)
    assert (member.contents, consumer.bad_records) == (CONTENTS, 0)

    change_on_disk(cluster, "b1-n2", b"second")
    consumer = await factory.create_consumer(config(group="h", on_bad_record="skip"))
    member = Handled(consumer)
    async with consumer:
        await consumer.start()
        await until(lambda: len(member.contents) == 2, timeout_s=600.0)
    assert (member.contents, consumer.bad_records) == ([b"first", b"third"], 1)


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
async def test_a_content_that_its_serializer_does_not_read_meets_the_same_policy(
    factory: aio.MessageFactory, client: ClusterClient, settings: dict[str, Any]
) -> None:
    """At the first try, since none reads it; other errors go by ``on_failure``."""
    async with await factory.create_producer() as producer:
        for content in (b"[1]", b"no json", b"[2]"):
            await producer.send(Message("t", content))
    json = vq.serializers.Json()
    for policy, handled in (("skip", [1, 2]), ("dead-letter", [1, 2]), ("stop", [1])):
        with case(policy):
            tries: list[bytes] = []
            done: list[int] = []

            async def handle(
                given: Any, tries: list[bytes] = tries, done: list[int] = done
            ) -> None:
                for message in given if isinstance(given, list) else [given]:
                    tries.append(message.content)
                    done.extend(json.loads(message.content))

            consumer = await factory.create_consumer(
                config(group=f"g-{policy}", on_bad_record=policy, on_failure="hold", **settings)
            )
            consumer.subscribe("t", listener=handle)
            async with consumer:
                await consumer.start()
                if policy == "stop":
                    await until(
                        lambda c=consumer: isinstance(c.last_error, GroupStopped),  # type: ignore[misc]
                        timeout_s=60,
                    )
                else:
                    await until(
                        lambda done=done: set(done) == {1, 2},  # type: ignore[misc]
                        timeout_s=60,
                    )
            assert set(handled) <= set(done)
            assert tries.count(b"no json") <= 1 + bool(settings.get("batch_size"))
    found = [each async for each in factory.admin.read_dead_letters("g-dead-letter")]
    assert [each.message.content for each in found] == [b"no json"]
    assert found[0].failure is not None
    assert found[0].failure.raw_bytes is None, "it is a message, and may be sent again"


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
@pytest.mark.parametrize("policy", ["skip", "stop"])
async def test_a_content_that_nobody_reads_is_no_failure_to_try_again(
    factory: aio.MessageFactory, settings: dict[str, Any], policy: str
) -> None:
    """Also where its only try is the last one that the group allows before it copies."""
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b"no json"))
    tries: list[int] = []

    async def handle(given: Any) -> None:
        tries.append(1)
        raise ContentUnreadable("no json")

    consumer = await factory.create_consumer(
        config(
            **settings,
            order="relaxed",
            on_failure="retry-topic",
            retry_schedule=(1,),
            max_attempts=1,
            on_bad_record=policy,
        )
    )
    consumer.subscribe("t", listener=handle)
    async with consumer:
        await consumer.start()
        await asyncio.sleep(30.0)
        assert tries == [1]
        assert isinstance(consumer.last_error, GroupStopped) == (policy == "stop")
        assert await is_at_end(factory) == (policy == "skip")
    assert not await letters(factory)


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
@pytest.mark.parametrize("policy", ["skip", "stop", "hold"])
async def test_what_is_to_be_kept_waits_until_it_is(
    factory: aio.MessageFactory, settings: dict[str, Any], policy: str
) -> None:
    """A dead letter that cannot be stored yet is no failure of a listener, to be skipped, say."""
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b"no json"))
    inner = factory.admin.cluster
    plain, is_away = inner.request, True

    async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
        if command == Command.PUT and is_away:
            raise ConnectionCut("cut")
        return await plain(address, command, *rest, **named)

    inner.request = request  # type: ignore[method-assign]

    async def handle(given: Any) -> None:
        raise ContentUnreadable("no json")

    pauses = {"retry_backoff": (0.5, 1.0), "max_attempts": 2}
    consumer = await factory.create_consumer(
        config(on_failure=policy, on_bad_record="dead-letter", **pauses, **settings)
    )
    async with consumer.subscribe("t", listener=handle):
        await consumer.start()
        await asyncio.sleep(60.0)
        assert not await is_at_end(factory)
        is_away = False
        await asyncio.sleep(60.0)
        assert await is_at_end(factory)
        assert not consumer.troubles()
    assert [each.message.content for each in await letters(factory)] == [b"no json"]


@pytest.mark.parametrize("end", ["closed", "killed"])
async def test_a_bad_record_behind_a_held_message_becomes_one_dead_letter(
    cluster: MemoryCluster, wire: Client, end: str
) -> None:
    """Whoever has the partition next reads it again, and knows what became of it."""
    bad = await put(wire, BAD["compression"], BAD["checksum"])

    async def fail(message: Message) -> None:
        seen.append(message.content)
        if message.content == b"10":
            raise ValueError("held")

    settings = {"mode": "keyed", "on_failure": "hold", "max_attempts": 1}
    for owner in range(3):
        seen: list[bytes] = []
        last = [b"10", b"11", b"12", b"13"]
        async with factory_of(cluster, host=f"o{owner}", session_timeout_s=2.0) as factory:
            if owner == 2:  # what was passed over stays so
                await factory.admin.alter_group("g", on_bad_record="stop")
            consumer = await factory.create_consumer(
                config(on_bad_record="dead-letter", **settings)
            )
            await consumer.subscribe("t", listener=fail).start()
            await until(lambda: consumer.bad_records == len(bad), timeout_s=600.0)  # noqa: B023
            await until(lambda: seen.count(b"10") >= 2, timeout_s=60.0)  # noqa: B023
            await asyncio.sleep(1.0)
            if end == "killed":
                coordinator = factory.admin.cluster.coordinator
                assert isinstance(coordinator, MemoryCoordinator)
                cluster.ensemble.disconnect(coordinator)
                cluster.network.cut(f"o{owner}", "b1")
            else:
                await consumer.close()
        handled = sorted(each for each in seen if each != b"10")
        assert handled == (last[1:] if end == "killed" or not owner else [])
    async with factory_of(cluster, host="operator") as factory:
        found = await letters(factory)
        assert [each.message.content for each in found] == [each for _, each in bad]
        consumer = await factory.create_consumer(config(mode="keyed", on_failure="hold"))
        member = Handled(consumer)
        async with consumer:
            await consumer.start()
            await until(lambda: b"10" in member.contents, timeout_s=600.0)

            async def is_done() -> bool:
                return await is_at_end(factory)

            await until_true(is_done, timeout_s=60.0)
        assert len(await letters(factory)) == len(bad)


async def test_a_listener_that_reads_damage_elsewhere_fails_as_any_other(
    factory: aio.MessageFactory,
) -> None:
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b"1"))
    tries: list[int] = []

    async def handle(message: Message) -> None:
        tries.append(message.attempts)
        if len(tries) < 3:
            raise CorruptData("of another topic")

    consumer = await factory.create_consumer(config(retry_backoff=(0.1, 0.2)))
    async with consumer.subscribe("t", listener=handle):
        await consumer.start()
        await until(lambda: len(tries) == 3)


async def test_what_the_group_says_counts_and_changes_while_members_run(
    factory: aio.MessageFactory, wire: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Of records, and of contents that no serializer reads; a member that differs is told."""
    first = await factory.create_consumer(config(on_bad_record="dead-letter"))
    member = Handled(first)
    async with first:
        await first.start()
        ((_, raw),) = await put(wire, BAD["checksum"])
        await until(lambda: member.contents == [b"10", b"11"], timeout_s=600.0)
        assert [each.message.content for each in await letters(factory)] == [raw]
        await factory.admin.alter_group("g", on_bad_record="skip")
        await asyncio.sleep(1.0)
        await put(wire, BAD["checksum"])
        await until(lambda: member.contents == [b"10", b"11"] * 2, timeout_s=600.0)
        assert first.bad_records == 2
    assert len(await letters(factory)) == 1, "it was skipped"
    tries: list[bytes] = []

    async def handle(message: Message) -> None:
        tries.append(message.content)
        if message.content == b"10":
            raise ContentUnreadable("no")

    other = await factory.create_consumer(config(on_bad_record="stop"))
    async with other.subscribe("t", listener=handle):
        await other.start()
        await put(wire, BAD["checksum"])
        await until(lambda: tries == [b"10", b"11"], timeout_s=600.0)
        assert other.troubles() == {}
        await factory.admin.alter_group("g", on_bad_record="dead-letter")
        await asyncio.sleep(1.0)
        await wire.put("t", 0, [record(10), record(12)])
        await until(lambda: tries[-1] == b"12")
    assert tries == [b"10", b"11", b"10", b"12"]
    assert [each.message.content for each in await letters(factory)] == [raw, b"10"]
    told = [each for each in caplog.messages if "policy of the group counts" in each]
    assert "on_bad_record of the group is skip, of this member stop" in told[1]


async def test_a_broadcasting_group_has_no_dead_letters_of_bad_records(
    factory: aio.MessageFactory,
) -> None:
    admin = factory.admin
    planned = await admin.plan_create_group(
        "g", {"t": "*"}, Target(goal=Goal.EARLIEST), model="broadcasting"
    )
    await admin.make_group(planned)
    with pytest.raises(InvalidArgument, match="on_bad_record = 'dead-letter' does not go with"):
        await admin.alter_group("g", on_bad_record="dead-letter")
    assert (await admin.alter_group("g", on_bad_record="skip")).failure.on_bad_record == "skip"
    with pytest.raises(InvalidArgument, match="on_bad_record"):
        await admin.alter_group("g", on_bad_record="hold")
    with pytest.raises(InvalidArgument, match="on_bad_record = 'dead-letter' does not go with"):
        ConsumerConfig(group="g", member_id="a", model="broadcasting", on_bad_record="dead-letter")


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="on_bad_record"):
        ConsumerConfig(group="g", on_bad_record="hold")  # type: ignore[arg-type]
    assert issubclass(ContentUnreadable, CorruptData)
