"""An inbox hands out messages in order, partitions in turns, while the permit lasts."""

import asyncio

import pytest
from support.delivery import endless
from support.inbox import ITERATIONS, Partition, nothing, nothing_comes, take, take_one

from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.client.consumer.deliver.permit import Permit
from vq.client.reading.chunk import Chunk
from vq.clock import ManualClock
from vq.store.records.record import encode_record
from vq.testing.waiting import WAIT_S


@pytest.fixture(autouse=True, params=ITERATIONS)
def _iteration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, and in Python."""
    monkeypatch.setitem(globals(), "Messages", request.param)


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


@pytest.mark.parametrize("bug", [False, True])
async def test_bytes_that_fail_a_check_are_fetched_again_while_others_go_on(
    bug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with threads: nothing is raised into the loop, nothing is skipped."""
    inbox = Inbox(endless())
    bad, good = Partition(inbox, 0), Partition(inbox, 1)
    if bug:

        def stumble() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(bad.delivery._decoder, "more", stumble)
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
