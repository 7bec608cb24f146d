"""A compressed chunk is handed out in steps that bound what it expands to."""

import tracemalloc

import pytest
from support.delivery import endless, expanding
from support.inbox import Partition, nothing_comes, take

from vq import limits
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.reading import decode


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
        assert partition.delivery.progress()[:2] == (end, number or None)
        end = message.next_offset
        assert partition.consumed == 0
    assert await nothing_comes(inbox)
    assert partition.delivery.progress()[:2] == (chunk.next_offset, 20)
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
