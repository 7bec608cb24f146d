"""What a crash has delivered again is bounded: no more than the window is ahead of the commits."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.delivery import Partition, endless
from support.inbox import Partition as Pulled
from support.inbox import take

from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.listening import Listening
from vq.client.consumer.deliver.workers import Workers
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until, until

WAYS = [
    pytest.param({"mode": "orderly"}, id="orderly"),
    pytest.param({"mode": "keyed"}, id="keyed"),
    pytest.param({"mode": "concurrent"}, id="concurrent"),
    pytest.param({"mode": "orderly", "batch_size": 3}, id="lists"),
]


@pytest.fixture
def four() -> Iterator[Workers]:
    workers = Workers(4, name="test")
    yield workers
    assert workers.close(WAIT_S)


class Counting:
    """A listener that notes the messages that it was given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __call__(self, given: Message | list[Message]) -> None:
        messages = given if isinstance(given, list) else [given]
        self.given += [int(each.content) for each in messages]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [3, 10])
def test_no_more_than_the_window_is_handed_out_before_a_commit(
    four: Workers, way: dict[str, Any], most: int
) -> None:
    listener = Counting()
    partition = Partition(four, listener, window_messages=most, **way)
    for size in (1, 25, 4, 30):
        partition.add(size)
    block_until(lambda: partition.delivery.delivered == most)
    assert partition.told.owes == 1, "it is asked once"
    for step in range(1, 60 // most):
        assert sorted(listener.given) == list(range(step * most))
        partition.commit()
        block_until(lambda step=step: partition.delivery.delivered == (step + 1) * most)
    partition.commit()
    partition.commit_until(60)
    assert sorted(listener.given) == list(range(60))


@pytest.mark.parametrize("way", WAYS)
def test_a_commit_that_comes_when_half_of_it_is_handled_holds_up_nothing(
    four: Workers, way: dict[str, Any]
) -> None:
    listener = Counting()
    partition = Partition(four, listener, window_messages=20, **way)
    partition.add(10)
    block_until(lambda: partition.delivery.delivered == 10)
    assert not partition.told.owes
    partition.add(6)
    block_until(lambda: partition.told.owes == 1 and partition.delivery.delivered == 16)
    partition.commit()
    partition.add(10)
    block_until(lambda: partition.delivery.delivered == 26)
    assert partition.told.owes == 1


@pytest.mark.parametrize("way", WAYS)
def test_an_earlier_commit_than_the_one_that_was_asked_for_does_not_end_the_question(
    four: Workers, way: dict[str, Any]
) -> None:
    partition = Partition(four, Counting(), window_messages=4, **way)
    early = partition.delivery.count_of(partition.delivery.progress())
    partition.add(20)
    block_until(lambda: partition.delivery.delivered == 4)
    partition.delivery.committed(early)
    partition.delivery.add(partition.chunk(1))
    assert partition.delivery.delivered == 4
    assert partition.told.owes == 1
    partition.commit_until(21)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_handled_before_a_pause_counts_until_it_is_committed(
    four: Workers, way: dict[str, Any]
) -> None:
    before = Partition(four, Counting(), window_messages=10, **way)
    before.add(7)
    block_until(lambda: before.delivery.delivered == 7)
    owed = before.delivery.progress().owed
    assert owed == 7
    after = Partition(four, Counting(), window_messages=10, owed=owed, **way)
    after.add(20)
    block_until(lambda: after.delivery.delivered == 3)
    block_until(lambda: after.told.owes == 1)
    assert after.delivery.progress().owed == 10
    after.commit_until(20)


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_while_it_waits_for_a_commit_needs_none(four: Workers, way: dict[str, Any]) -> None:
    partition = Partition(four, Counting(), window_messages=3, **way)
    partition.add(20)
    block_until(lambda: partition.delivery.delivered == 3)
    partition.stop()
    assert partition.stopped.wait(WAIT_S)
    partition.commit()
    assert partition.delivery.delivered == 3


@pytest.mark.parametrize("mode", ["keyed", "concurrent"])
def test_a_message_that_takes_long_has_the_whole_window_behind_it(four: Workers, mode: str) -> None:
    gate, given = threading.Event(), Counting()

    def listener(message: Message) -> None:
        given(message)
        if message.content == b"5":
            assert gate.wait(WAIT_S)

    partition = Partition(four, listener, mode=mode, window_messages=10)
    partition.add(30)

    def is_full() -> bool:
        if partition.told.owes:
            partition.told.owes = 0
            partition.commit()
        return len(given.given) == 15

    block_until(is_full)
    assert sorted(given.given) == list(range(15))
    assert not partition.told.owes, "no commit gives it room"
    gate.set()
    partition.commit_until(30)


async def test_coroutines_wait_for_the_commit_too() -> None:
    given = Counting()

    async def listener(message: Message) -> None:
        given(message)

    executor = Listening(2, contextvars.copy_context())
    partition = Partition(executor, listener, window_messages=5)
    partition.add(12)
    for handled in (5, 10):
        await until(lambda handled=handled: partition.delivery.delivered == handled)
        await asyncio.sleep(0)
        assert given.given == list(range(handled))
        partition.commit()
    await until(lambda: partition.delivery.delivered == 12)
    await executor.close()


async def test_what_is_pulled_waits_for_the_commit_too() -> None:
    inbox = Inbox(endless())
    partition = Pulled(inbox, most=4)
    partition.add(9)
    assert len(await inbox.next_many(100)) == 3, "so that the commit is asked for in time"
    assert len(await inbox.next_many(100)) == 1
    assert partition.told.owes == 1
    asking = asyncio.ensure_future(inbox.next_many(100))
    await asyncio.sleep(0)
    assert not asking.done()
    delivery = partition.delivery
    delivery.committed(delivery.count_of(delivery.progress()))
    assert len(await asking) == 3
    assert await take(inbox, 1) == [b"0.7"]
