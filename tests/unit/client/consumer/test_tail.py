"""The last messages: windows before the end, and several partitions in one order."""

import pytest

from vq.client.consumer.tail import check_count, merge_last, read_last, stored_ms
from vq.errors import InvalidArgument, OffsetNotBoundary
from vq.model import Message, OffsetBounds


class Log:
    """Records of given sizes, as a broker reads them; counts what it was asked for."""

    def __init__(self, sizes: list[int]) -> None:
        self.messages: list[Message] = []
        self.asked = 0
        end = 0
        for number, size in enumerate(sizes):
            content = b"%d" % number
            self.messages.append(Message("t", content, offset=end, next_offset=end + size))
            end += size
        self.bounds = OffsetBounds(0, end)

    async def get(self, offset: int, length: int) -> tuple[list[Message], int]:
        starts = [message.offset for message in self.messages]
        if offset not in starts:
            raise OffsetNotBoundary(
                "inside",
                details={"next": min([s for s in starts if s > offset] or [self.bounds[1]])},
            )
        self.asked += length
        found = [each for each in self.messages if each.offset >= offset]
        whole = [each for each in found if each.next_offset <= offset + length]
        batch = whole or found[:1]
        return batch, batch[-1].next_offset if batch else offset


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize(
    "sizes",
    [[40] * 8, [100_000] * 8, [40, 500_000, 40, 40, 70_000, 1_000_000, 65_536, 30]],
)
async def test_the_last_messages_come_oldest_first(sizes: list[int], count: int) -> None:
    log = Log(sizes)
    assert await read_last(log.get, log.bounds, count) == log.messages[-count:]


async def test_a_long_log_is_not_read_from_its_beginning() -> None:
    log = Log([1_000] * 20_000)
    assert len(await read_last(log.get, log.bounds, 10)) == 10
    assert log.asked < 200_000


async def test_an_empty_partition_has_none() -> None:
    log = Log([])
    assert await read_last(log.get, log.bounds, 10) == []


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
