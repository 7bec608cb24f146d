"""The last messages: windows before the end, and several partitions in one order."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from vq.client.reading.tail import (
    LAST_BYTES_MAX,
    check_count,
    merge_last,
    read_last,
    stored_ms,
)
from vq.errors import InvalidArgument
from vq.model import Message, OffsetBounds


class Log:
    """Records of given sizes; counts the bytes that are read of it."""

    def __init__(self, sizes: list[int]) -> None:
        self.messages: list[Message] = []
        self.asked = 0
        end = 0
        for number, size in enumerate(sizes):
            content = b"%d" % number
            self.messages.append(Message("t", content, offset=end, next_offset=end + size))
            end += size
        self.bounds = OffsetBounds(0, end)

    def window(self, start: int, end: int) -> "ForwardRange":
        return ForwardRange(self, start, end)

    async def last(self, count: int, **more: Any) -> list[Message]:
        return await read_last(self.window, self.bounds, count, lambda each: each, **more)


class ForwardRange:
    """From the first record at or behind ``start`` on, up to one that ends at or behind ``end``."""

    def __init__(self, log: Log, start: int, end: int) -> None:
        self.first = start
        self._log, self._start, self._end = log, start, end

    async def __aiter__(self) -> AsyncIterator[list[Message]]:
        found = [each for each in self._log.messages if each.offset >= self._start]
        self.first = found[0].offset if found else self._log.bounds.latest
        for each in found:
            if each.offset >= self._end:
                break
            self._log.asked += each.next_offset - each.offset
            yield [each]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize(
    "sizes",
    [[40] * 8, [100_000] * 8, [40, 500_000, 40, 40, 70_000, 1_000_000, 65_536, 30]],
)
async def test_the_last_messages_come_oldest_first(sizes: list[int], count: int) -> None:
    log = Log(sizes)
    assert await log.last(count) == log.messages[-count:]


async def test_a_long_log_is_not_read_from_its_beginning() -> None:
    log = Log([1_000] * 20_000)
    assert len(await log.last(10)) == 10
    assert log.asked < 200_000


async def test_nothing_is_read_twice() -> None:
    log = Log([1_000] * 2_000)
    assert len(await log.last(1_500)) == 1_500
    assert log.asked <= log.bounds.latest


async def test_messages_that_are_too_large_together_are_left_out() -> None:
    """The newest ones stay, and one is always there."""
    log = Log([1_000] * 10)
    half = LAST_BYTES_MAX // 2
    assert await log.last(10, size_of=lambda _: half) == log.messages[-2:]
    assert await log.last(10, size_of=lambda _: 3 * half) == log.messages[-1:]


async def test_an_empty_partition_has_none() -> None:
    assert await Log([]).last(10) == []


def test_partitions_are_merged_by_append_time() -> None:
    """Messages of a partition keep their order, also where a time is not known."""

    def at(ms: int | None, name: bytes, id: int = 1) -> Message:
        return Message("t", name, id=id, append_time_ms=ms)

    one = [at(2_000_000_000_000, b"a"), at(2_000_000_000_005, b"d")]
    two = [at(2_000_000_000_001, b"b"), at(None, b"c"), at(2_000_000_000_006, b"e")]
    assert [each.content for each in merge_last([one, two], 10, stored_ms)] == [
        b"a",
        b"b",
        b"c",
        b"d",
        b"e",
    ]
    assert [each.content for each in merge_last([one, two], 2, stored_ms)] == [b"d", b"e"]


@pytest.mark.parametrize("count", [0, 10_001, "5"])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgument):
        check_count(count)
