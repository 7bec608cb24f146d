"""``on_failure = "skip"``: what fails is recorded on the member's machine, and run again."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.given_up import ten_messages

import vq
from vq import aio
from vq.client import failed_file
from vq.client.cluster import ClusterClient
from vq.client.failed_file import FailedMessage, directory_of
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import ConnectionCut, ContentUnreadable, InvalidState, OutcomeUnknown, SequenceStale
from vq.model import Message
from vq.operations.groups import failed
from vq.operations.groups.failed import FailedRun, RunTo, list_failed, run_failed
from vq.remoting.format import Command
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

BAD = {b"3", b"5"}
ALL = {b"%d" % number for number in range(10)}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VQ_FAILED_DIR", str(tmp_path))
    return directory_of("test", "g")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with ten_messages() as made:
        yield made


class Handler:
    """A listener that fails for some messages; what it handled."""

    def __init__(self, bad: set[bytes] = BAD) -> None:
        self.bad = bad
        self.handled: list[Message] = []
        self.tries: list[bytes] = []

    async def __call__(self, given: Message | list[Message]) -> None:
        messages = given if isinstance(given, list) else [given]
        self.tries += [each.content for each in messages if each.content in BAD]
        for each in messages:
            if each.content in self.bad:
                raise ValueError(f"no {each.content.decode()}")
        self.handled += messages

    @property
    def contents(self) -> list[bytes]:
        return sorted(each.content for each in self.handled)


async def member(
    factory: aio.MessageFactory, handler: Any, name: str = "m", **settings: Any
) -> aio.MessageConsumer:
    given = {
        "group": "g",
        "member_id": name,
        "on_failure": "skip",
        "retry_backoff": (0.1, 1.0),
        "max_wait_s": 0.5,
        **settings,
    }
    consumer = await factory.create_consumer(vq.ConsumerConfig(**given))
    return await consumer.subscribe("t", listener=handler).start()


def skipped() -> list[FailedMessage]:
    return list_failed("test", "g")[0]


async def test_messages_that_are_skipped_for_one_cause_share_its_traceback(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of a listener skips thousands of them; each has its line."""
    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await member(factory, Handler(), max_attempts=1),
    ):
        await until(lambda: len(skipped()) == 2)
    lines = [each for each in caplog.records if "message skipped" in each.message]
    assert [bool(each.exc_info) for each in lines] == [True, False]


async def lag(client: ClusterClient) -> int | None:
    return (await aio.MessageFactory.on_cluster(client).admin.describe_group("g")).lag_messages


MODES = pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "keyed"}, {"mode": "concurrent", "workers": 3}, {"batch_size": 4}],
    ids=["orderly", "keyed", "concurrent", "lists"],
)


@MODES
async def test_what_was_skipped_is_recorded_and_the_group_handles_it_later(
    cluster: MemoryCluster, client: ClusterClient, directory: Path, settings: dict[str, Any]
) -> None:
    handler = Handler()
    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await member(factory, handler, max_attempts=2, **settings) as consumer,
    ):
        await until(lambda: len(handler.handled) == 8 and len(skipped()) == 2)
        await consumer.commit()
        assert await lag(client) == 0
        first = {each.message.content: each for each in skipped()}
        assert first.keys() == BAD
        for content, each in first.items():
            assert each.member == "m"
            assert each.failure.attempts == 2
            assert each.failure.reason == f"ValueError('no {content.decode()}')"
            assert each.message[2:5] == ("red", f"k{content.decode()}", {"n": content.decode()})
            assert each.message.topic == "t"
        assert sorted(handler.tries).count(b"3") >= 2
        only = first[b"3"].message.id
        assert await run_failed(client, "g", ids={only}) == FailedRun(1, 0, 0)

        async def comes_again(count: int) -> bool:
            return {each.message.content for each in skipped() if each.failure.attempts > 2} == (
                {b"3"} if count == 1 else BAD
            )

        await until_true(lambda: comes_again(1))
        again = {each.message.content: each for each in skipped()}
        assert again[b"3"].failure.attempts == 4, "it failed twice once more"
        assert again[b"3"].origin == first[b"3"].origin
        handler.bad = set()
        assert await run_failed(client, "g") == FailedRun(2, 0, 0)
        await until(lambda: set(handler.contents) == ALL)
        redelivered = [each for each in handler.handled if each.content in BAD]
        for each in redelivered:
            assert each[:7] == first[each.content].message[:7], "as it was delivered first"
            assert each.attempts > 2
        await consumer.commit()
        assert await lag(client) == 0
    assert len(handler.contents) == 10
    assert skipped() == []
    assert not list(directory.glob("*.failed")), "a file without messages is removed"


async def test_it_may_go_where_it_comes_from(cluster: MemoryCluster, client: ClusterClient) -> None:
    handler, other = Handler(), Handler(set())
    async with factory_of(cluster, host="member", seed=31) as factory:
        async with await member(factory, handler, max_attempts=1, model="broadcasting"):
            await until(lambda: len(skipped()) == 2)
        places = {str(each.origin) for each in skipped()}
        with pytest.raises(InvalidState, match="broadcasting") as caught:
            await run_failed(client, "g")
        assert "--to origin" in caught.value.hint
        assert await run_failed(client, "g", to=RunTo.ORIGIN) == FailedRun(2, 0, 0)
        async with await member(factory, other, group="h", on_failure="hold"):
            await until(lambda: len(other.handled) == 12)
    resent = {(each.headers or {}).get("_vq.resent") for each in other.handled}
    assert resent == {None, *places}


async def test_large_headers_make_no_batch_that_nobody_takes(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """It would stay begun, and its messages would wait for good."""
    count = 200
    large = Message("t", bytes(10_000), "red", "one key", {"h": "x" * 32_500})

    async def refuse(_: Message) -> None:
        raise ValueError("no")

    async with factory_of(cluster, host="member", seed=31) as factory:
        async with await factory.create_producer() as producer:
            for _ in range(count):
                await producer.send(large)
        async with await member(factory, refuse, max_attempts=1):
            await until(lambda: len(skipped()) == count + 10, timeout_s=300)
    assert await run_failed(client, "g", to=RunTo.ORIGIN) == FailedRun(count + 10, 0, 0)
    assert not skipped()


@pytest.mark.parametrize("heir", ["m", "another"])
@pytest.mark.parametrize("step", ["before", "recorded", "committed"])
async def test_a_member_that_is_killed_while_it_skips_loses_nothing(
    cluster: MemoryCluster,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    heir: str,
) -> None:
    """Before the record is on disk; behind that, and before the offset moves on; behind both.

    The same member comes again, or another one of the machine gets the partition.
    """
    dead, handler = Handler(), Handler()
    with monkeypatch.context() as dying:
        whole = failed_file.write_all
        if step == "before":

            def torn(file: IO[bytes], data: bytes) -> None:
                file.write(data[: len(data) // 2])
                file.truncate = lambda _: None  # type: ignore[method-assign, assignment]
                raise OSError(errno.EIO, "killed")

            dying.setattr(failed_file, "write_all", torn)
        async with factory_of(cluster, host="dies", seed=31, session_timeout_s=2.0) as factory:
            often = 0.5 if step == "committed" else 600.0
            await member(factory, dead, max_attempts=1, commit_interval_s=often)
            await asyncio.sleep(2.0)
            assert len(skipped()) == (0 if step == "before" else 2)
            coordinator = factory.admin.cluster.coordinator
            assert isinstance(coordinator, MemoryCoordinator)
            cluster.ensemble.disconnect(coordinator)
            cluster.network.cut("dies", "b1")
            dying.setattr(failed_file, "write_all", whole)
            async with (
                factory_of(cluster, host="other", seed=32) as other,
                await member(other, handler, heir, max_attempts=1) as consumer,
            ):
                await asyncio.sleep(30.0)
                await consumer.commit()
                assert await lag(client) == 0
    assert set(dead.contents) | set(handler.contents) == ALL - BAD
    assert sorted(each.message.content for each in skipped()) == sorted(BAD), "once each"
    assert await run_failed(client, "g") == FailedRun(len(BAD), 0, 0)
    assert skipped() == []


@MODES
async def test_on_a_full_disk_the_message_is_held_and_told(
    cluster: MemoryCluster,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    handler = Handler()

    def full(file: IO[bytes], data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with factory_of(cluster, host="member", seed=31) as factory:
        with monkeypatch.context() as filled:
            filled.setattr(failed_file, "write_all", full)
            consumer = await member(factory, handler, max_attempts=2, **settings)
            await asyncio.sleep(60.0)
            [trouble, *_] = consumer.troubles().values()
            assert "No space left on device" in str(trouble.error)
            await consumer.commit()
            assert await lag(client) != 0
            assert skipped() == []
            # Of lists: at first together, then twice alone.
            assert 0 < len(handler.tries) <= 3 * len(BAD)
        async with consumer:
            await until(lambda: len(skipped()) == 2 and len(handler.handled) == 8)
            assert len(handler.tries) <= 3 * len(BAD), "only the record was missing"
            await until(lambda: not consumer.troubles())
            await consumer.commit()
            assert await lag(client) == 0


@pytest.mark.parametrize("to", list(RunTo))
async def test_a_run_that_was_cut_off_is_finished_and_sends_nothing_twice(
    cluster: MemoryCluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch, to: RunTo
) -> None:
    handler = Handler()
    async with factory_of(cluster, host="member", seed=31) as factory:
        consumer = await member(factory, handler, max_attempts=1)
        await until(lambda: len(skipped()) == 2)
        plain, is_cut, forgets = client.request, True, False

        async def request(address: Any, command: int, body: Any, *rest: Any, **named: Any) -> Any:
            if command == Command.PUT and forgets and body.resend:
                raise SequenceStale("forgotten")
            found = await plain(address, command, body, *rest, **named)
            if command == Command.PUT and is_cut:
                raise ConnectionCut("cut")  # it was stored
            return found

        client.request = request  # type: ignore[method-assign]
        monkeypatch.setattr(failed, "WAIT_S", 1.0)
        handler.bad = set()
        with pytest.raises(OutcomeUnknown):
            await run_failed(client, "g", to=to)
        states = [each.is_sending for each in skipped()]
        assert True in states, "what is in doubt stays in the file"
        is_cut, forgets = False, True
        with pytest.raises(SequenceStale) as caught:  # the broker has forgotten the stamp
            await run_failed(client, "g", to=to)
        assert "may have been sent" in caught.value.hint
        assert [each.is_sending for each in skipped()] == [True], "the other one is sent"
        forgets = False
        assert await run_failed(client, "g", to=to) == FailedRun(0, 1, 0)
        assert await run_failed(client, "g", to=to) == FailedRun(0, 0, 0)
        await until(lambda: set(handler.contents) == ALL)
        await asyncio.sleep(10.0)
        await consumer.close()
    assert len(handler.contents) == 10


async def test_a_content_that_nobody_can_read_goes_by_its_own_policy(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Also at a last try: it is not skipped where the group is to stop."""

    async def unreadable(message: Message) -> None:
        if message.content in BAD:
            raise ContentUnreadable("no content of ours")

    async with (
        factory_of(cluster, host="member", seed=31) as factory,
        await member(factory, unreadable, max_attempts=1) as consumer,
    ):
        await until(lambda: bool(consumer.troubles()))
        assert "on_bad_record = 'stop'" in str(next(iter(consumer.troubles().values())).error)
        assert skipped() == []
