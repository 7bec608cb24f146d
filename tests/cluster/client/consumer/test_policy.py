"""The failure policy of a group's contract counts in all members, as it is now."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import send

from vq import aio
from vq.client.config import ConsumerConfig
from vq.coordination.groups.groups import known_group
from vq.coordination.tree.values.group_terms import MAX_ATTEMPTS_MAX, FailurePolicy
from vq.errors import ConnectionCut, InvalidArgument, UnknownTopic
from vq.model import Message
from vq.remoting.format import Command
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

#: So long a change may take to be seen by members, in seconds.
SEEN_S = 1.0


class Bad:
    """A listener that fails for the message ``bad``, and notes when it is called for it."""

    def __init__(self) -> None:
        self.tries: list[float] = []
        self.handled: list[bytes] = []
        self.is_mended = False

    async def __call__(self, given: Message | list[Message]) -> None:
        for message in given if isinstance(given, list) else [given]:
            if message.content == b"bad" and not self.is_mended:
                self.tries.append(asyncio.get_running_loop().time())
                raise ValueError("no")
        for message in given if isinstance(given, list) else [given]:
            self.handled.append(message.content)


async def member(factory: aio.MessageFactory, listener: Any, **settings: Any) -> Any:
    config = ConsumerConfig(**{"group": "g", "max_wait_s": 0.5, "commit_interval_s": 1, **settings})
    consumer = await factory.create_consumer(config)
    return await consumer.subscribe("t", listener=listener).start()


async def stand_still(factory: aio.MessageFactory, bad: Bad) -> None:
    """Have a message that fails, and one behind it, wait for an hour."""
    await send(factory, *(Message("t", text, key="k") for text in (b"bad", b"behind")))
    await until(lambda: len(bad.tries) == 1)
    await asyncio.sleep(60)
    assert len(bad.tries) == 1
    assert not bad.handled


@pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "keyed"}, {"batch_size": 4, "batch_wait_ms": 50.0}],
    ids=["orderly", "keyed", "lists"],
)
async def test_another_policy_frees_what_is_held(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """At once, though the next try was an hour away: its pause ends when the policy changes."""
    bad = Bad()
    hourly = {"on_failure": "hold", "max_attempts": 1, "retry_backoff": (3600.0, 3600.0)}
    async with await member(factory, bad, **hourly, **settings) as consumer:
        await stand_still(factory, bad)
        changed_at = asyncio.get_running_loop().time()
        await factory.admin.alter_group("g", on_failure="dead-letter")
        await until(lambda: bad.handled == [b"behind"])
        assert bad.tries[-1] - changed_at < SEEN_S
        letters = [each async for each in factory.admin.read_dead_letters("g")]
        assert [(each.message.content, each.failure.attempts) for each in letters] == [(b"bad", 2)]
        assert consumer.troubles() == {}
        # And back: the next one is held again, and copied no more.
        await factory.admin.alter_group("g", on_failure="hold")
        await asyncio.sleep(SEEN_S)
        await send(factory, Message("t", b"bad", key="k"))
        await until(lambda: len(bad.tries) >= 3)
        await asyncio.sleep(60)
        assert len(bad.tries) == 3
        assert len([each async for each in factory.admin.read_dead_letters("g")]) == 1
        bad.is_mended = True
        await factory.admin.alter_group("g", retry_backoff_s=(0.5, 1.0))
        await until(lambda: bad.handled == [b"behind", b"bad"])


async def test_attempts_and_pauses_follow(factory: aio.MessageFactory) -> None:
    bad = Bad()
    async with await member(factory, bad, max_attempts=1000, retry_backoff=(3600.0, 3600.0)):
        await stand_still(factory, bad)
        await factory.admin.alter_group("g", retry_backoff_s=(1.0, 10.0))
        await asyncio.sleep(65)
        pauses = [b - a for a, b in zip(bad.tries[2:], bad.tries[3:], strict=False)]
        assert len(pauses) >= 4
        assert all(8.0 <= each <= 12.5 for each in pauses), "the last one repeats, with jitter"
        with pytest.raises(InvalidArgument, match="retry_backoff_s"):
            await factory.admin.alter_group("g", retry_backoff_s=())
        count = len(bad.tries)
        await factory.admin.alter_group("g", on_failure="stop", max_attempts=count)

        async def is_stopped() -> bool:
            group = await factory.admin.describe_group("g")
            return any("on_failure = 'stop'" in (each.stopped or "") for each in group.partitions)

        await until_true(is_stopped)
        assert len(bad.tries) == count + 1


@pytest.mark.parametrize("settings", [{}, {"mode": "keyed"}], ids=["orderly", "keyed"])
async def test_what_is_held_is_held_for_ever(
    factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """Also in a group that copies bad records, and after more tries than a setting may name."""
    bad = Bad()
    given = {
        "on_failure": "hold",
        "max_attempts": 1,
        "retry_backoff": (0.01, 0.01),
        "on_bad_record": "dead-letter",
        **settings,
    }
    async with await member(factory, bad, **given):
        await send(factory, *(Message("t", text, key="k") for text in (b"bad", b"behind")))
        await asyncio.sleep(60)
        assert len(bad.tries) > MAX_ATTEMPTS_MAX + 10
        assert not bad.handled
        with pytest.raises(UnknownTopic):
            _ = [each async for each in factory.admin.read_dead_letters("g")]


async def test_a_copy_that_is_missing_falls_under_the_new_policy(cluster: MemoryCluster) -> None:
    """What was to be a dead letter, and could not be stored, is held after a change to that."""
    bad, is_away = Bad(), True
    async with factory_of(cluster, host="member", seed=31) as factory:
        await send(factory, Message("t", b"bad"), Message("t", b"behind"))
        inner = factory.admin.cluster
        plain = inner.request

        async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
            if command == Command.PUT and is_away:
                raise ConnectionCut("cut")
            return await plain(address, command, *rest, **named)

        inner.request = request  # type: ignore[method-assign]
        given = {"on_failure": "dead-letter", "on_bad_record": "dead-letter", "max_attempts": 2}
        async with await member(factory, bad, retry_backoff=(1.0, 1.0), **given):
            await asyncio.sleep(60)
            assert len(bad.tries) == 2, "only the copy is missing"
            await factory.admin.alter_group("g", on_failure="hold")
            await asyncio.sleep(30)  # a copy that is under way may be stored
            is_away = False
            await asyncio.sleep(60)
            assert len(bad.tries) > 10
            assert not bad.handled
            await factory.admin.alter_group("g", on_failure="dead-letter")
            await until(lambda: bad.handled == [b"behind"])
        letters = [each async for each in factory.admin.read_dead_letters("g")]
        assert [each.message.content for each in letters] == [b"bad"], "its copy is one"


async def test_what_is_held_is_described(factory: aio.MessageFactory) -> None:
    """With its message, tries and error, and until it is over; not before its attempts are used."""
    clock, admin = factory.admin.cluster.clock, factory.admin
    is_mended = False

    async def listener(message: Message) -> None:
        if message.key in {"b", "c"} and not is_mended:
            raise ValueError("no " * 1_000)

    async def seen() -> Any:
        return (await admin.describe_group("g")).partitions[0]

    begun_ms = clock.wall_ms()
    settings = {"mode": "keyed", "workers": 4, "max_attempts": 3, "retry_backoff": (10.0, 40.0)}
    async with await member(factory, listener, **settings) as consumer:
        sent = await send(factory, *(Message("t", b"x", key=key) for key in "abcd"))
        await asyncio.sleep(20)
        assert ((await seen()).stopped, (await seen()).held) == (None, 0)
        assert consumer.troubles() == {}
        await asyncio.sleep(30)
        told = await seen()
        assert (told.held, told.stopped_at, told.attempts) == (2, sent[1].offset, 3)
        assert told.message_id == sent[1].id
        assert begun_ms <= told.stopped_since_ms <= begun_ms + 2_000, "its first try"
        assert clock.wall_ms() < told.next_try_ms <= clock.wall_ms() + 48_000
        assert told.stopped.startswith("ListenerFailed: the listener raised for the message at")
        assert len(told.stopped) <= 500
        [trouble] = consumer.troubles().values()
        assert trouble[1:] == (
            told.stopped_at,
            told.stopped_since_ms,
            told.attempts,
            told.message_id,
            told.next_try_ms,
            told.held,
        )
        is_mended = True
        await admin.alter_group("g", max_attempts=4)

        async def is_over() -> bool:
            return (await seen()).stopped is None and (await seen()).held == 0

        await until_true(is_over)
        assert consumer.troubles() == {}


async def test_the_first_member_founds_it_and_others_are_told(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is refused for it; who says nothing takes what is there."""
    caplog.set_level("INFO")
    bad = Bad()
    async with factory_of(cluster, host="one", seed=1) as one, factory_of(cluster) as other:
        first = await member(one, bad, on_failure="skip", max_attempts=2, retry_backoff=(1.0, 3.0))
        contract = await known_group(one.admin.cluster.coordinator, "g")
        founded = FailurePolicy(on_failure="skip", max_attempts=2, retry_backoff_s=(1.0, 2.0, 3.0))
        assert contract.failure == founded
        silent = await member(other, bad, member_id="silent")
        assert "policy of the group counts" not in caplog.text
        loud = await member(
            other, bad, member_id="loud", on_failure="hold", retry_backoff=(1.0, 3.0)
        )
        [told] = [each for each in caplog.messages if "policy of the group counts" in each]
        assert "on_failure of the group is skip, of this member hold" in told
        assert "retry_backoff" not in told
        assert "vq group alter g" in told
        assert (await known_group(one.admin.cluster.coordinator, "g")).failure == founded
        await one.admin.alter_group("g", on_failure="hold", max_attempts=9)
        await until(lambda: caplog.text.count("policy of the group has changed") == 3)
        for each in (first, silent, loud):
            await each.close()
