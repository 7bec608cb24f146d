"""A partition stops, and an inbox closes, once the message in hand is done with."""

import asyncio
import contextlib

import pytest
from support.delivery import endless
from support.inbox import ITERATIONS, Partition, nothing, nothing_comes, take, take_one

from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.client.consumer.deliver.permit import Permit
from vq.clock import ManualClock
from vq.testing.waiting import WAIT_S


@pytest.fixture(autouse=True, params=ITERATIONS)
def _iteration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, and in Python."""
    monkeypatch.setitem(globals(), "Messages", request.param)


async def test_close_ends_a_waiting_reader_and_counts_the_message_in_hand() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    await take(inbox, 1)
    inbox.close()
    assert partition.delivery.position == partition.offset
    assert await inbox.next() is None
    other = Inbox(endless())
    waiting = asyncio.create_task(other.next())
    await asyncio.sleep(0)
    other.close()
    assert await waiting is None


async def test_a_failure_that_cannot_be_shown_lets_its_partition_go() -> None:
    class Failure(Exception):
        def __repr__(self) -> str:
            raise GeneratorExit

    async def handle() -> None:
        async for _ in Messages(inbox, nothing):
            raise Failure

    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(2)
    handling = asyncio.create_task(handle())
    await asyncio.wait([handling])
    partition.stop()
    assert (partition.delivery.position, partition.stopped) == (0, True)
    assert isinstance(handling.exception(), Failure)


async def test_closing_waits_for_the_task_that_is_at_a_message() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    inside, leave = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        async for _ in Messages(inbox, nothing):
            inside.set()
            await leave.wait()

    task = asyncio.create_task(handle())
    await inside.wait()
    inbox.close()
    partition.stop()
    assert not partition.stopped
    leave.set()
    await task
    assert (partition.stopped, partition.delivery.delivered) == (True, 1)


@pytest.mark.parametrize("stop_first", [False, True])
async def test_a_hand_over_does_not_wait_for_a_loop_that_was_left(stop_first: bool) -> None:
    """Nobody can say whether the message was handled, so it comes again."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    async for _ in Messages(inbox, nothing):
        if stop_first:
            partition.stop()
        break
    await asyncio.sleep(0)
    if not stop_first:
        partition.stop()
    assert (partition.stopped, partition.delivery.delivered) == (True, 0)


async def test_a_hand_over_goes_on_when_the_iteration_is_closed() -> None:
    """As ``contextlib.aclosing`` does, while somebody still refers to the iterator."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(2)
    async with contextlib.aclosing(Messages(inbox, nothing)) as messages:
        assert await take_one(messages) == b"0.0"
        partition.stop()
        assert not partition.stopped
    assert (partition.stopped, partition.delivery.delivered) == (True, 0)


async def test_stopping_waits_for_the_message_in_hand() -> None:
    inbox = Inbox(endless())
    held, idle = Partition(inbox, 0), Partition(inbox, 1)
    held.add(3)
    idle.add(1)
    await take(inbox, 1)
    idle.stop()
    held.stop()
    assert (idle.stopped, held.stopped) == (True, False)
    assert await nothing_comes(inbox), "neither delivers anything further"
    assert held.stopped
    assert held.delivery.delivered == 1
    assert idle.delivery.delivered == 0


@pytest.mark.parametrize("picked", [False, True])
async def test_what_was_not_handed_out_before_a_stop_is_the_next_owners(picked: bool) -> None:
    """The reader asks on before the position is committed."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    chunk = partition.add(4, picked=picked, gap=100 if picked else 0)
    size = len(chunk.body) // 4
    await take(inbox, 2)
    partition.stop()
    assert await nothing_comes(inbox)
    assert partition.stopped
    assert partition.delivery.progress()[:2] == (2 * size, 2)


async def test_close_ends_a_reader_that_waits_for_the_permit() -> None:
    """It is told so although it does not wait for an arrival at that moment."""
    permit = Permit(ManualClock(monotonic=9.0).monotonic)
    inbox = Inbox(permit)
    Partition(inbox).add(1)
    waiting = asyncio.ensure_future(inbox.next())
    for _ in range(5):
        await asyncio.sleep(0)
    inbox.close()
    async with asyncio.timeout(WAIT_S):
        assert await waiting is None


@pytest.mark.parametrize("in_hand", [False, True])
async def test_what_is_called_at_a_stop_may_call_back_in(in_hand: bool) -> None:
    """It is called once, whatever it calls."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(2)
    told: list[int] = []

    def stopped() -> None:
        told.append(partition.delivery.progress().position)
        inbox.close()
        partition.stop()

    if in_hand:
        await take(inbox, 1)
    partition.delivery.stop(stopped)
    if in_hand:
        assert told == []
        inbox.close()
    assert told == [partition.delivery.position]
    assert partition.stopped
