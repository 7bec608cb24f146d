"""A message is consumed when the task that took it asks for the next one."""

import asyncio
import contextlib
import gc
import sys

import pytest
from support.delivery import endless
from support.inbox import ITERATIONS, Partition, nothing, nothing_comes, take, take_one

from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.errors import InvalidState
from vq.testing.waiting import WAIT_S


@pytest.fixture(autouse=True, params=ITERATIONS)
def _iteration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, and in Python."""
    monkeypatch.setitem(globals(), "Messages", request.param)


async def test_a_message_is_consumed_when_the_next_one_is_asked_for() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    chunk = partition.add(2)
    assert await take(inbox, 1) == [b"0.0"]
    assert (partition.delivery.position, partition.delivery.delivered) == (0, 0)
    assert partition.delivery.progress()[:2] == (0, None)
    await take(inbox, 1)
    assert (partition.delivery.position, partition.delivery.delivered) == (
        chunk.next_offset // 2,
        1,
    )
    assert partition.delivery.progress()[:2] == (chunk.next_offset // 2, 1)
    assert await nothing_comes(inbox)
    assert (partition.delivery.position, partition.delivery.delivered) == (chunk.next_offset, 2)
    assert partition.delivery.progress()[:2] == (chunk.next_offset, 2)
    assert partition.consumed == chunk.size


async def test_a_message_in_hand_at_a_failure_is_not_consumed() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    await take(inbox, 1)
    partition.stop()
    assert not partition.stopped
    inbox.close(consumed=False)
    assert (partition.delivery.position, partition.stopped) == (0, True)


async def test_leaving_the_loop_consumes_nothing() -> None:
    """By ``break``, by an error or by ``aclosing``: only the next one, or the end, counts."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(4)
    async for _ in Messages(inbox, nothing):
        break
    with contextlib.suppress(ZeroDivisionError):
        async for _ in Messages(inbox, nothing):
            raise ZeroDivisionError
    async with contextlib.aclosing(Messages(inbox, nothing)) as messages:
        return await take_one(messages)
    gc.collect()
    await asyncio.sleep(0)
    assert partition.delivery.delivered == 2, "those before the one that is in hand"
    with pytest.raises(StopAsyncIteration):
        return await take_one(messages)
    inbox.close()
    assert partition.delivery.delivered == 3


async def test_a_loop_that_was_left_is_seen_although_a_frame_of_it_is_kept() -> None:
    """As an exception that was met while it began may do, from Python 3.12 on."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(2)
    frames: list[object] = []

    async def begin() -> None:
        frames.append(sys._getframe(1))

    async for _ in Messages(inbox, begin):
        break
    other = asyncio.create_task(take_one(Messages(inbox, nothing)))
    assert await other == b"0.1"
    assert len(frames) == 1


async def test_a_cancelled_wait_takes_no_message() -> None:
    """Whenever it is cancelled, and the same iteration goes on afterwards."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    messages = Messages(inbox, nothing)
    found: list[bytes] = []
    for turns in range(6):
        waiting = asyncio.ensure_future(anext(messages))
        for turn in range(6):
            if turn == 2:
                partition.add(1)
            if turn == turns:
                waiting.cancel()
            await asyncio.sleep(0)
        with contextlib.suppress(asyncio.CancelledError):
            found.append((await waiting).content)
    assert 0 < len(found) < 6, "some were cancelled, some were not"
    async with asyncio.timeout(WAIT_S):
        while len(found) < 6:
            found.append((await anext(messages)).content)
    assert found == [b"0.%d" % number for number in range(6)]
    assert partition.delivery.delivered == 5
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(messages)
    partition.add(1)
    async with asyncio.timeout(WAIT_S):
        assert (await anext(messages)).content == b"0.6"


async def test_closing_inside_the_loop_counts_its_message_and_waits_for_nobody() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    async for _ in Messages(inbox, nothing):
        inbox.close()
        partition.stop()
    assert (partition.stopped, partition.delivery.delivered) == (True, 1)


@pytest.mark.parametrize("way", ["child", "handed on", "single"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_close_elsewhere_leaves_a_message_to_the_task_that_took_it(
    way: str, fails: bool
) -> None:
    """Whoever closes: a task that the handler began, or one that had the iterator before."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(3)
    inside, leave = asyncio.Event(), asyncio.Event()
    messages = Messages(inbox, nothing)
    closing: list[asyncio.Task[None]] = []

    async def close() -> None:
        inbox.close()
        partition.stop()

    async def handle() -> None:
        if way == "single":  # the iterator is gone; the task is not
            await anext(Messages(inbox, nothing))
        else:
            await anext(messages)
        if way == "child":
            closing.append(asyncio.create_task(close()))
        inside.set()
        await leave.wait()
        if fails:
            raise ZeroDivisionError
        if way != "single":
            assert await anext(messages, None) is None

    if way == "handed on":
        await asyncio.wait([asyncio.create_task(take_one(messages))])
    task = asyncio.create_task(handle())
    await inside.wait()
    if way == "child":
        await asyncio.wait(closing)
    else:
        await close()
    before = 1 if way == "handed on" else 0
    assert partition.delivery.delivered == before, "the close counted what another task is at"
    assert partition.stopped == (way == "single"), "a loop that was left is not waited for"
    leave.set()
    await asyncio.wait([task])
    inbox.close()
    partition.stop()
    counts = 0 if fails or way == "single" else 1
    assert (partition.stopped, partition.delivery.delivered) == (True, before + counts)
    assert fails == isinstance(task.exception(), ZeroDivisionError)


@pytest.mark.parametrize("iterators", ["one", "several"])
@pytest.mark.parametrize("at", ["a message", "a wait"])
async def test_a_task_cannot_ask_while_another_is_at_a_message_or_waits(
    iterators: str, at: str
) -> None:
    """It would count the other's message as consumed, which may fail yet."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    if at == "a message":
        partition.add(3)
    shared = Messages(inbox, nothing)
    leave = asyncio.Event()

    async def handle() -> None:
        own = shared if iterators == "one" else Messages(inbox, nothing)
        assert (await anext(own)).content == b"0.0"
        await leave.wait()
        raise ZeroDivisionError

    task = asyncio.create_task(handle())
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(InvalidState, match="another task iterates"):
            async with asyncio.timeout(WAIT_S):
                await anext(shared)
    if at == "a wait":
        partition.add(3)
    leave.set()
    await asyncio.wait([task])
    assert isinstance(task.exception(), ZeroDivisionError)
    assert partition.delivery.delivered == 0
    async with asyncio.timeout(WAIT_S):
        found = [(await anext(shared)).content for _ in range(3)]
    assert found == [b"0.0", b"0.1", b"0.2"], "what failed comes again, first and once"
    assert partition.delivery.delivered == 2
    inbox.close()
    assert partition.delivery.position == partition.offset


async def test_an_iterator_that_was_replaced_asks_like_a_new_one() -> None:
    """Its wait was cancelled, then another task's iterator took a message, and is at it."""
    inbox = Inbox(endless())
    earlier, later = Messages(inbox, nothing), Messages(inbox, nothing)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(earlier)
    partition = Partition(inbox)
    partition.add(3)
    leave = asyncio.Event()

    async def handle() -> None:
        assert (await anext(later)).content == b"0.0"
        await leave.wait()

    task = asyncio.create_task(handle())
    await asyncio.sleep(0)
    with pytest.raises(InvalidState, match="another task iterates"):
        await anext(earlier)
    assert partition.delivery.delivered == 0
    leave.set()
    await task
    assert (await anext(earlier)).content == b"0.1"


async def test_a_task_that_is_done_hands_its_iterator_on() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(3)
    messages = Messages(inbox, nothing)
    found = [await asyncio.create_task(take_one(messages)) for _ in range(3)]
    assert found == [b"0.0", b"0.1", b"0.2"]
    assert partition.delivery.delivered == 2


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("stop_first", [False, True])
async def test_the_message_of_a_task_that_failed_is_not_consumed(
    cancelled: bool, stop_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a hand-over wait for it."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    inside, leave = asyncio.Event(), asyncio.Event()

    async def handle() -> None:
        async for _ in Messages(inbox, nothing):
            inside.set()
            await leave.wait()
            raise ZeroDivisionError

    task = asyncio.create_task(handle())
    await inside.wait()
    if stop_first:
        partition.stop()
    if cancelled:
        task.cancel()
    leave.set()
    await asyncio.wait([task])
    if not stop_first:
        partition.stop()
    inbox.close()
    assert (partition.stopped, partition.delivery.delivered) == (True, 0)
    assert "offset=0 reason=" in caplog.text
    assert cancelled or isinstance(task.exception(), ZeroDivisionError)


async def test_a_loop_that_is_entered_again_with_a_message_in_hand_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody knows whether its handler failed; an iterator that goes on is no new loop."""
    inbox = Inbox(endless())
    Partition(inbox).add(8)
    messages = Messages(inbox, nothing)
    assert (await anext(messages)).content == b"0.0"
    assert (await anext(messages)).content == b"0.1"
    assert not caplog.records
    for number in range(2, 5):
        with contextlib.suppress(ZeroDivisionError):
            async for message in Messages(inbox, nothing):
                assert message.content == b"0.%d" % number
                raise ZeroDivisionError
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert "offset=" in told.getMessage()
    assert "subscribe with a listener" in told.getMessage()
