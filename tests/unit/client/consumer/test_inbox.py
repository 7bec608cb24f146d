"""Messages for ``async for``: consumed when the next one is asked for, partitions in turns."""

import asyncio
import contextlib
import gc
import tracemalloc

import pytest
from support.delivery import Told, endless
from support.waiting import WAIT_S

from vq import limits
from vq.client.consumer import decode
from vq.client.consumer.fetcher import Chunk
from vq.client.consumer.inbox import Inbox, InboxDelivery, Messages
from vq.client.consumer.permit import Permit
from vq.clock import ManualClock
from vq.errors import InvalidState
from vq.model import TopicPartition
from vq.store.compression import compress
from vq.store.format import COMPRESSION_ZLIB
from vq.store.record import encode_record


class Partition:
    """A held partition; message contents are its number and a count from 0."""

    def __init__(self, inbox: Inbox, number: int = 0) -> None:
        self.number, self.offset, self.count = number, 0, 0
        self.stopped = False
        self.told = Told()
        self.delivery = InboxDelivery(TopicPartition("t", number), 0, inbox, self.told.hooks)

    @property
    def consumed(self) -> int:
        return self.told.consumed

    def add(self, count: int, *, picked: bool = False, gap: int = 0, damage: bool = False) -> Chunk:
        begin, offsets, body = self.offset, [], b""
        for _ in range(count):
            record = encode_record(self.count + 1, b"%d.%d" % (self.number, self.count))
            offsets.append(self.offset)
            self.offset += len(record)
            self.count += 1
            body += record
        if damage:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.offset += gap
        chunk = Chunk(begin, self.offset, body, offsets if picked else None)
        self.delivery.add(chunk)
        return chunk

    def stop(self) -> None:
        self.delivery.stop(lambda: setattr(self, "stopped", True))


async def take(inbox: Inbox, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        async with asyncio.timeout(WAIT_S):
            message = await inbox.next()
        assert message is not None
        found.append(message.content)
    return found


async def nothing_comes(inbox: Inbox) -> bool:
    waiting = asyncio.ensure_future(inbox.next())
    for _ in range(5):
        await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not done


async def test_a_message_is_consumed_when_the_next_one_is_asked_for() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    chunk = partition.add(2)
    assert await take(inbox, 1) == [b"0.0"]
    assert (partition.delivery.position, partition.delivery.delivered) == (0, 0)
    assert partition.delivery.progress() == (0, None)
    await take(inbox, 1)
    assert (partition.delivery.position, partition.delivery.delivered) == (
        chunk.next_offset // 2,
        1,
    )
    assert partition.delivery.progress() == (chunk.next_offset // 2, 1)
    assert await nothing_comes(inbox)
    assert (partition.delivery.position, partition.delivery.delivered) == (chunk.next_offset, 2)
    assert partition.delivery.progress() == (chunk.next_offset, 2)
    assert partition.consumed == chunk.size


async def test_the_position_passes_what_a_filter_left_out() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1, picked=True, gap=100)
    partition.add(0, picked=True, gap=50)
    await take(inbox, 1)
    assert partition.delivery.position == 0
    assert await nothing_comes(inbox)
    assert partition.delivery.position == partition.offset


async def test_partitions_take_turns_chunk_by_chunk() -> None:
    """One with a long backlog does not keep the others waiting."""
    inbox = Inbox(endless())
    first, second = Partition(inbox, 0), Partition(inbox, 1)
    for _ in range(3):
        first.add(2)
    second.add(1)
    second.add(1)
    assert await take(inbox, 8) == [
        b"0.0", b"0.1", b"1.0", b"0.2", b"0.3", b"1.1", b"0.4", b"0.5",
    ]  # fmt: skip
    assert await nothing_comes(inbox)
    first.add(1)
    assert await take(inbox, 1) == [b"0.6"]


async def test_a_waiting_reader_is_woken() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    waiting = asyncio.create_task(take(inbox, 1))
    await asyncio.sleep(0)
    partition.add(1)
    assert await waiting == [b"0.0"]


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


async def test_a_message_in_hand_at_a_failure_is_not_consumed() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    await take(inbox, 1)
    partition.stop()
    assert not partition.stopped
    inbox.close(consumed=False)
    assert (partition.delivery.position, partition.stopped) == (0, True)


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


async def nothing() -> None:
    """Begin an iteration that needs no beginning."""


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


async def take_one(messages: Messages) -> bytes:
    return (await anext(messages)).content


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
    assert partition.delivery.progress() == (2 * size, 2)


@pytest.mark.parametrize("bug", [False, True])
async def test_bytes_that_fail_a_check_are_fetched_again_while_others_go_on(
    bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with threads: nothing is raised into the loop, nothing is skipped."""
    inbox = Inbox(endless())
    bad, good = Partition(inbox, 0), Partition(inbox, 1)
    if bug:

        def stumble(_: Chunk) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(bad.delivery._decoder, "decode", stumble)
    chunk = bad.add(2, damage=not bug)
    bad.add(1)
    good.add(1)
    first = [] if bug else [b"0.0"]
    assert await take(inbox, len(first) + 1) == [*first, b"1.0"]
    assert await nothing_comes(inbox)
    begin = 0 if bug else chunk.next_offset // 2
    assert (bad.delivery.position, bad.delivery.delivered) == (begin, len(first))
    assert (bad.told.again, len(bad.told.errors), bad.consumed) == ([begin], 1, 0)
    bad.add(1)
    assert await nothing_comes(inbox), "these were asked for before the damage was seen"
    again = b"".join(encode_record(n, b"0.%d" % (n - 1)) for n in range(len(first) + 1, 4))
    bad.delivery.add(Chunk(begin, begin + len(again), again, None))
    assert await take(inbox, 1) == [b"0.%d" % len(first)]
    assert bad.told.went_on == 0, "it is in hand"
    await take(inbox, 1)
    assert (bad.told.went_on, bad.delivery.error) == (1, None)
    bad.stop()
    inbox.close()
    assert bad.stopped


@pytest.mark.parametrize("one_task", [False, True])
async def test_nothing_is_handed_out_once_the_permit_has_lapsed(one_task: bool) -> None:
    """Also in the middle of a chunk; what was in hand is done when the next one is asked for."""
    clock = ManualClock()
    permit = Permit(clock.monotonic)
    permit.until = 3.0
    inbox = Inbox(permit)
    partition = Partition(inbox)
    partition.add(4)
    messages = Messages(inbox, nothing)
    asked = asyncio.Event()

    async def take_three() -> bytes:
        assert await take_one(messages) == b"0.0"
        assert await take_one(messages) == b"0.1"
        clock.advance(4.0)
        asked.set()
        return await take_one(messages)

    if one_task:
        waiting = asyncio.ensure_future(take_three())
        await asked.wait()
    else:
        found = [await asyncio.create_task(take_one(messages)) for _ in range(2)]
        assert found == [b"0.0", b"0.1"]
        clock.advance(4.0)
        waiting = asyncio.ensure_future(take_one(messages))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert partition.delivery.delivered == 2
    partition.stop()
    assert partition.stopped, "nobody is at a message"
    other = Partition(inbox, 1)
    other.add(1)
    permit.until = 10.0
    async with asyncio.timeout(WAIT_S):
        assert await waiting == b"1.0"


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


# Compressed messages ------------------------------------------------------------------------------
def expanding(contents: list[bytes]) -> Chunk:
    body = b"".join(
        encode_record(number, compress(content, COMPRESSION_ZLIB), None, None, COMPRESSION_ZLIB)
        for number, content in enumerate(contents, 1)
    )
    return Chunk(0, len(body), body, None)


async def test_what_a_chunk_expands_to_does_not_fill_the_memory() -> None:
    """40 MiB come of 180 KB."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    chunk = expanding([bytes(limits.MESSAGE_BYTES_MAX)] * 40)
    tracemalloc.start()
    try:
        partition.delivery.add(chunk)
        for _ in range(40):
            message = await inbox.next()
            assert message is not None
            assert len(message.content) == limits.MESSAGE_BYTES_MAX
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * limits.MIB
    assert await nothing_comes(inbox)
    assert partition.consumed == chunk.size
    assert partition.delivery._decoder._data == b""


async def test_steps_of_a_chunk_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Position and progress are those of the message before."""
    monkeypatch.setattr(decode, "STEP_BYTES", 5)
    inbox = Inbox(endless())
    partition = Partition(inbox)
    chunk = expanding([b"%d" % number for number in range(20)])
    partition.delivery.add(chunk)
    end = 0
    for number in range(20):
        message = await inbox.next()
        assert message is not None
        assert (int(message.content), message.offset) == (number, end)
        assert partition.delivery.progress() == (end, number or None)
        end = message.next_offset
        assert partition.consumed == 0
    assert await nothing_comes(inbox)
    assert partition.delivery.progress() == (chunk.next_offset, 20)
    assert partition.consumed == chunk.size


async def test_a_stop_between_two_steps_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "STEP_BYTES", 1)
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.delivery.add(expanding([b"%d" % number for number in range(20)]))
    first, second = await take(inbox, 2)
    assert (first, second) == (b"0", b"1")
    partition.stop()
    assert await nothing_comes(inbox)
    assert partition.stopped
    assert partition.delivery.delivered == 2


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
