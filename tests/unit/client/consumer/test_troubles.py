"""Troubles of a consumer: noted with their begin, logged once per cause, published."""

import asyncio
import contextlib
from collections.abc import Mapping

import pytest

from vq.client.consumer import troubles as module
from vq.client.consumer.troubles import Troubles
from vq.clock import ManualClock
from vq.errors import Busy, ConnectionCut, CoordinationError, CorruptData, ListenerFailed
from vq.model import PartitionTrouble, TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_cause_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Another cause, or another place, is another trouble."""
    clock = ManualClock(wall_ms=1_000)
    troubles = Troubles("g", "m", clock)
    for _ in range(3):
        troubles.failed(P0, 10, CorruptData("bad"))
        clock.advance(1)
    trouble = troubles.present()[P0]
    assert (trouble.offset, trouble.since_ms, trouble.tries) == (10, 1_000, 3)
    assert caplog.text.count('partition=t-0 offset=10 error="CorruptData: bad"') == 1
    troubles.failed(P0, 10, ConnectionCut("gone"))
    troubles.failed(P0, 20, ConnectionCut("gone"))
    assert len(caplog.records) == 3
    assert troubles.present()[P0].since_ms == 4_000
    troubles.over(P0)
    troubles.over(P0)
    assert len(caplog.records) == 4
    troubles.failed(P0, 20, ListenerFailed("mine"))
    troubles.over(P0)
    assert len(caplog.records) == 4, "the delivery says each try"
    assert troubles.present() == {}
    assert isinstance(troubles.last_error, ListenerFailed)


def test_what_passes_is_said_once_for_all_partitions(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that is away concerns thousands; the first one and the last one are logged."""
    troubles = Troubles("g", "m", ManualClock(wall_ms=20_000))
    for error in (Busy("5 reads wait"), ConnectionCut("gone"), Busy("6 reads wait")):
        for partition in (P0, P1):
            troubles.failed(partition, 10, error, delayed_s=10.0)
    assert set(troubles.present()) == {P0, P1}
    assert troubles.present()[P0] == PartitionTrouble(error, 10, 10_000, 3)
    (record,) = caplog.records
    assert "partitions do not go on, trying again" in record.getMessage()
    troubles.over(P0)
    assert len(caplog.records) == 1
    troubles.over(P1)
    assert len(caplog.records) == 2
    assert troubles.present() == {}
    troubles.failed(P0, 10, CorruptData("bad"))
    troubles.failed(P0, 10, ConnectionCut("gone"), delayed_s=10.0)
    assert isinstance(troubles.present()[P0].error, ConnectionCut)


async def test_what_passes_is_not_published_and_ends_what_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PUBLISH_S", 0.005)
    told: list[tuple[TopicPartition, PartitionTrouble | None]] = []

    async def tell(found: Mapping[TopicPartition, PartitionTrouble | None]) -> None:
        told.extend(found.items())

    troubles = Troubles("g", "m", ManualClock(wall_ms=20_000))
    task = asyncio.create_task(troubles.publish(tell))
    troubles.failed(P1, 5, Busy("many reads"), delayed_s=10.0)
    troubles.failed(P0, 10, CorruptData("bad"))
    await until(lambda: told)
    troubles.failed(P0, 10, Busy("many reads"), delayed_s=10.0)
    await until(lambda: len(told) == 2)
    assert [(where, trouble and trouble.offset) for where, trouble in told] == [
        (P0, 10),
        (P0, None),
    ]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_what_is_noted_at_the_end_stays(caplog: pytest.LogCaptureFixture) -> None:
    """Its partitions are given up after that, and what ends them tells of itself."""
    troubles = Troubles("g", "m", ManualClock(wall_ms=1_000))
    error = CoordinationError("given up")
    troubles.end({P0: 10, P1: 20}, error)
    troubles.end({}, CoordinationError("again"))
    troubles.forget(P0)
    troubles.over(P1)
    troubles.failed(P0, 30, ConnectionCut("gone"))
    assert troubles.last_error is error
    assert troubles.present() == {
        P0: PartitionTrouble(error, 10, 1_000, 1),
        P1: PartitionTrouble(error, 20, 1_000, 1),
    }
    assert len(caplog.records) == 1
    assert "partitions=t-0,t-1" in caplog.text


async def test_what_changes_is_published_and_what_was_over_in_time_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PUBLISH_S", 0.005)
    told: list[tuple[TopicPartition, PartitionTrouble | None]] = []
    fail = [ConnectionCut("away"), RuntimeError("a bug")]

    async def tell(found: Mapping[TopicPartition, PartitionTrouble | None]) -> None:
        if fail:
            raise fail.pop()
        told.extend(found.items())

    troubles = Troubles("g", "m", ManualClock())
    task = asyncio.create_task(troubles.publish(tell))
    troubles.failed(P1, 5, CorruptData("over soon"))
    troubles.over(P1)
    troubles.failed(P0, 10, CorruptData("first"))
    await until(lambda: len(fail) == 1)
    troubles.failed(P0, 20, CorruptData("second"))  # a bug costs one publication, no more
    await until(lambda: told)
    troubles.failed(P0, 20, CorruptData("the same"))
    troubles.forget(P0)
    await until(lambda: len(told) == 2)
    assert [(where, trouble and trouble.offset) for where, trouble in told] == [
        (P0, 20),
        (P0, None),
    ]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_is_held_is_published_in_a_bounded_way() -> None:
    """However often its listener fails: one write for all partitions, at most every few seconds."""
    loop = asyncio.get_running_loop()
    clock = ManualClock(wall_ms=1_000)
    told: list[tuple[float, dict[TopicPartition, PartitionTrouble | None]]] = []

    async def tell(found: Mapping[TopicPartition, PartitionTrouble | None]) -> None:
        told.append((loop.time() - begun, dict(found)))

    def fail(partition: TopicPartition, attempts: int, held: int) -> None:
        details = {"offset": 7, "message_id": 9, "attempts": attempts, "since_ms": 5}
        error = ListenerFailed("no", details={**details, "next_try_ms": 8, "held": held})
        troubles.failed(partition, 7, error)

    troubles = Troubles("g", "m", clock)
    task = asyncio.create_task(troubles.publish(tell))
    begun = loop.time()
    for attempts in (1, 2):
        fail(P0, attempts, 0)
        await asyncio.sleep(2)
        clock.advance(2)
    assert told == [], "it has tries left"
    assert troubles.present()[P0].tries == 2
    begun = loop.time()
    for attempts in range(3, 603):  # for a minute
        fail(P0, attempts, 2)
        fail(P1, attempts, 1)
        await asyncio.sleep(0.1)
        clock.advance(0.1)
    assert 10 <= len(told) <= 60 / 5 + 1
    assert all(found.keys() == {P0, P1} for _, found in told)
    last = told[-1][1][P0]
    assert last is not None
    assert last[1:] == (7, 5, last.tries, 9, 8, 2)
    assert last.tries >= 540, "with its tries"
    count = len(told)
    troubles.over(P0)
    await asyncio.sleep(2)
    assert [found for _, found in told[count:]] == [{P0: None}], "that it is over, at once"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
