"""The line for space in the buffer: who waits, who is woken, and that no place is left unused."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vq.client.future import SendFuture
from vq.client.producer.intake.space_line import LATE_S, SpaceLine
from vq.errors import BufferFull, NotSent
from vq.model import Message, SendResult
from vq.testing.waiting import WAIT_S


class Space:
    """What a line asks of an accumulator; no message is plain."""

    full = BufferFull

    def __init__(self, count: Callable[[], int] = lambda: 0) -> None:
        self.places = 0
        self.waits: list[float] = []
        self.count_wait = self.waits.append
        self.count = count
        accumulator: Any = self
        self.line = SpaceLine(accumulator)

    @property
    def places_left(self) -> int:
        return self.count()

    def end_linger(self) -> None:
        """Nothing lingers."""

    def hurry_sender(self) -> None:
        """Nothing lingers."""

    def append(self, message: Message, callback: None, timeout_s: float) -> SendFuture | None:
        return None


class Buffer(Space):
    """Counts places; tasks take one each, in turn."""

    def __init__(self) -> None:
        super().__init__(self.look)
        self.looks = 0
        self.taken: list[int] = []

    def look(self) -> int:
        self.looks += 1
        return self.places

    async def take(self, number: int) -> None:
        await self.line.wait(WAIT_S)
        self.places -= 1
        self.taken.append(number)

    def give_back(self, places: int) -> None:
        self.places += places
        self.line.wake()

    async def waiting(self, count: int) -> list[asyncio.Task[None]]:
        """Return tasks that wait."""
        tasks = [asyncio.create_task(self.take(number)) for number in range(count)]
        await settle()
        return tasks


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_whoever_comes_first_has_the_first_place() -> None:
    buffer = Buffer()
    tasks = await buffer.waiting(5)
    for places, taken in ((2, [0, 1]), (1, [0, 1, 2]), (9, [0, 1, 2, 3, 4])):
        buffer.give_back(places)
        await settle()
        assert buffer.taken == taken
    await asyncio.gather(*tasks)
    assert not buffer.line.waiting


async def test_a_place_wakes_no_more_tasks_than_it_serves() -> None:
    """Otherwise n tasks cost n² wake-ups."""
    buffer, count = Buffer(), 500
    tasks = await buffer.waiting(count)
    for _ in range(count):
        buffer.give_back(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks)
    assert buffer.looks < 10 * count


async def test_places_that_come_together_wake_each_task_once() -> None:
    buffer = Buffer()
    tasks = await buffer.waiting(6)
    for _ in range(3):
        buffer.give_back(1)  # before any of them runs
    looks = buffer.looks
    await settle()
    assert buffer.taken == [0, 1, 2]
    assert buffer.looks - looks <= 3 + 3
    buffer.give_back(3)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("woken_first", [True, False])
async def test_a_task_that_is_cancelled_leaves_its_place_to_the_next(woken_first: bool) -> None:
    buffer = Buffer()
    first, second = await buffer.waiting(2)
    if woken_first:
        buffer.give_back(1)
        first.cancel()
    else:
        first.cancel()
        buffer.give_back(1)
    async with asyncio.timeout(WAIT_S):
        await second
    assert buffer.taken == [1]
    (third,) = await buffer.waiting(1)
    buffer.give_back(1)
    async with asyncio.timeout(WAIT_S):
        await third


async def test_a_task_that_does_not_use_its_place_leaves_it_to_the_next() -> None:
    """Its message is refused, for example."""
    buffer = Buffer()
    unused = asyncio.create_task(buffer.line.wait(WAIT_S))
    await asyncio.sleep(0)
    tasks = await buffer.waiting(1)
    buffer.give_back(1)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(unused, *tasks)
    assert buffer.taken == [0]


async def test_a_task_whose_place_was_taken_stays_the_first() -> None:
    buffer = Buffer()
    tasks = await buffer.waiting(2)
    buffer.give_back(1)
    buffer.places -= 1  # by a send that found space at once
    await settle()
    assert buffer.taken == []
    buffer.give_back(1)
    await settle()
    assert buffer.taken == [0]
    buffer.give_back(1)
    await asyncio.gather(*tasks)


async def test_space_between_the_look_and_the_wait_wakes_a_task() -> None:
    """Another thread may give it back."""
    given = False

    def count() -> int:
        nonlocal given
        if not given:
            given = True
            asyncio.get_running_loop().call_soon(line.wake)
            return 0
        return 1

    line = Space(count).line
    async with asyncio.timeout(WAIT_S):
        await line.wait(WAIT_S)


@pytest.mark.virtual_time
async def test_each_wait_ends_at_its_own_deadline() -> None:
    """Whatever the order in which they came, though one timer serves all."""
    line, loop = Space().line, asyncio.get_running_loop()
    ended: dict[float, float] = {}

    async def wait(timeout_s: float) -> None:
        begin = loop.time()
        with pytest.raises(BufferFull, match="no space"):
            await line.wait(timeout_s)
        ended[timeout_s] = loop.time() - begin

    await asyncio.gather(*map(wait, (5.0, 1.0, 9.0, 1.0, 0.001)))
    for timeout_s, took in ended.items():
        assert timeout_s - 1e-6 <= took <= timeout_s + LATE_S, timeout_s
    assert not line.waiting


async def test_an_empty_line_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, timers = Buffer(), list[asyncio.TimerHandle]()
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def noted(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*arguments, **options))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", noted)
    tasks = await buffer.waiting(3)
    assert [timer.cancelled() for timer in timers] == [False]
    tasks[0].cancel()
    buffer.give_back(2)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert buffer.taken == [1, 2]
    assert all(timer.cancelled() for timer in timers)


class Appended(Space):
    """A buffer into which the line appends the messages that wait in it."""

    def __init__(self) -> None:
        super().__init__(lambda: self.places)
        self.messages: dict[bytes, SendFuture] = {}

    def append(self, message: Message, callback: None, timeout_s: float) -> SendFuture | None:
        if message.tag == "not plain":
            return None
        self.places -= 1
        made = self.messages[message.content] = SendFuture(message.content, None, None, timeout_s)
        return made

    def join(self, *contents: bytes) -> list[asyncio.Future[SendResult | None]]:
        return [self.line.join(Message("t", content), WAIT_S) for content in contents]

    def give_back(self, places: int) -> None:
        self.places += places
        self.line.wake()


async def test_the_line_appends_its_messages_in_their_order() -> None:
    """Messages in it and tasks that append by themselves have their turns in one order."""
    buffer = Appended()

    async def append_itself() -> None:
        await buffer.line.wait(WAIT_S)
        buffer.append(Message("t", b"3"), None, WAIT_S)

    first, second = buffer.join(b"1", b"2")
    task = asyncio.create_task(append_itself())
    await settle()
    (last,) = buffer.join(b"4")
    for places, appended in ((1, [b"1"]), (2, [b"1", b"2", b"3"]), (1, [b"1", b"2", b"3", b"4"])):
        buffer.give_back(places)
        await settle()
        assert list(buffer.messages) == appended
    await task
    assert not any(turn.done() for turn in (first, second, last))
    assert len(buffer.waits) == 4


async def test_whoever_joined_gets_the_outcome_of_the_message() -> None:
    buffer = Appended()
    stored, refused = buffer.join(b"1", b"2")
    buffer.give_back(2)
    result = SendResult(0, 17, 4)
    buffer.messages[b"1"].succeed(result)
    buffer.messages[b"2"].fail(NotSent("no broker"))
    assert await stored == result
    with pytest.raises(NotSent, match="no broker"):
        await refused


async def test_a_thread_may_end_what_waited_in_the_line() -> None:
    buffer = Appended()
    (turn,) = buffer.join(b"1")
    buffer.give_back(1)
    result = SendResult(0, 17, 4)
    await asyncio.to_thread(buffer.messages[b"1"].succeed, result)
    async with asyncio.timeout(WAIT_S):
        assert await turn == result


async def test_a_message_whose_task_is_cancelled_is_not_appended() -> None:
    buffer = Appended()
    first, _ = buffer.join(b"1", b"2")
    first.cancel()
    buffer.line.leave(first)
    buffer.give_back(1)
    assert list(buffer.messages) == [b"2"]


async def test_a_message_that_the_line_cannot_append_is_given_to_its_task() -> None:
    buffer = Appended()
    odd = buffer.line.join(Message("t", b"1", tag="not plain"), WAIT_S)
    (plain,) = buffer.join(b"2")
    buffer.give_back(1)
    assert await odd is None
    assert list(buffer.messages) == [b"2"]
    assert not plain.done()


@pytest.mark.virtual_time
async def test_a_message_that_waits_for_too_long_is_refused() -> None:
    buffer, loop = Appended(), asyncio.get_running_loop()
    begin = loop.time()
    turns = [buffer.line.join(Message("t", b"1"), timeout_s) for timeout_s in (2.0, 1.0)]
    for turn, timeout_s in zip(reversed(turns), (1.0, 2.0), strict=True):
        with pytest.raises(BufferFull, match=f"within {timeout_s:g} s"):
            await turn
        buffer.line.leave(turn)
        assert timeout_s - 1e-6 <= loop.time() - begin <= timeout_s + LATE_S
    assert buffer.waits == [1.0, 2.0]
    assert not buffer.line.waiting
