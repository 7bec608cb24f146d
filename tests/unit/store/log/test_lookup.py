"""Counting over blocks whose index was lost, and the message before an offset."""

import pytest
from support.store import DIRECTORY, append, flush, memory_disk, open_log, patiently

from vq.errors import CorruptData, OffsetOutOfRange
from vq.message_filter import ALL, Filter
from vq.store.disk.memory_disk import keep_all
from vq.store.log import lookup
from vq.store.log.log_config import LogConfig
from vq.store.log.lookup import EpochEnd
from vq.store.records import batches
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import encode_record


def test_counts_before_a_block_are_found_from_the_blocks_behind() -> None:
    """Whichever indexes are missing."""
    disk = memory_disk()
    log = open_log(disk)
    for number in range(30):
        append(log, *[bytes(300)] * (number % 3 + 1))
    flush(log)
    blocks, total = log.blocks, log.messages_appended
    right = [lookup.before_block(blocks, at, messages_appended=total) for at in range(len(blocks))]
    log.close()
    indexes = [n for n in disk.listdir(DIRECTORY) if n.endswith(".index")]
    assert len(indexes) == len(right) - 1
    for lost in (indexes, indexes[1:3], indexes[-1:]):
        copy = disk.crash(keep_all)
        for name in lost:
            copy.unlink(DIRECTORY / name)
        again = open_log(copy)
        for at, expected in enumerate(right):
            found, _ = patiently(
                lambda again=again, at=at: lookup.before_block(
                    again.blocks, at, messages_appended=total
                )
            )
            assert found == expected


def test_a_batch_that_cannot_be_found_is_damage() -> None:
    """An offset behind the block's end holds none."""
    log = open_log(memory_disk())
    append(log, b"x")
    with pytest.raises(CorruptData):
        lookup.batch_at(log.blocks[0], log.end_offset)


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("damaged", [(1,), (1, 2), (1, 3), (0,), (4,)])
def test_damage_hides_only_the_records_of_its_batches(
    damaged: tuple[int, ...], with_index: bool
) -> None:
    """Those behind it are found, although the index has no entry between."""
    disk = memory_disk()
    log = open_log(disk, config=LogConfig(block_bytes=1 << 20))
    starts = [append(log, b"x" * 200, b"y" * 200) for _ in range(5)]
    end = log.end_offset
    flush(log)
    block = log.blocks[0]
    bounds = {start: lookup.records_of(block, block.header_at(start)) for start in starts}
    file = disk.open(block.path)
    for number in damaged:
        file.pwrite([b"damage"], starts[number] + 30)
    file.close()
    if not with_index:
        block.index = None

    def boundary(offset: int) -> int:
        return patiently(lambda: lookup.next_boundary(block, offset))[0]

    for number, start in enumerate(starts):
        for at in bounds[start][:-1]:
            if number in damaged and at > 0:
                with pytest.raises(CorruptData):
                    boundary(at)
            else:
                assert boundary(at) == at
                assert at == 0 or boundary(at + 1) > at
    assert bounds[starts[-1]][-1] == end


def test_the_message_before_an_offset_is_found_at_every_boundary() -> None:
    """Across batches and blocks; control records are no messages."""
    log = open_log(memory_disk())
    places: list[tuple[int, int | None]] = [(0, None)]
    last: int | None = None
    for number in range(12):
        payloads = [b"x" * 200] * (number % 3 + 1)
        offset = append(log, *payloads)
        assert offset == places[-1][0]
        offset += CONTROL_BYTES
        places.append((offset, last))
        for message_id in range(1, len(payloads) + 1):
            offset += 220
            last = message_id
            places.append((offset, last))
    assert len(log.blocks) > 1
    for offset, message_id in places:
        assert log.reader.message_before(offset) == message_id, offset


@pytest.mark.parametrize("wanted", [ALL, Filter(("a",))])
def test_the_message_before_an_offset_is_not_told_from_damaged_bytes(wanted: Filter) -> None:
    """A flipped bit of its id would make another message of it."""
    disk = memory_disk()
    log = open_log(disk)
    append(log, b"first", b"second", tag=b"a")
    block = log.blocks[0]
    file = disk.open(block.path)
    at = log.end_offset - len(encode_record(2, b"second", b"a")) + 15
    file.pwrite([b"\x07"], at)
    file.close()
    with pytest.raises(CorruptData):
        log.reader.message_before(log.end_offset, wanted)


def test_the_message_before_an_offset_may_be_asked_for_by_tag() -> None:
    """Others do not count; nor does one too far back."""
    log = open_log(memory_disk(), config=LogConfig())
    append(log, b"first", tag=b"a")
    middle = append(log, b"second", b"third", tag=b"b")
    end = log.end_offset
    assert log.reader.message_before(end, Filter(("b",))) == 2
    assert log.reader.message_before(end, Filter(("a", "c"))) == 1
    assert log.reader.message_before(middle, Filter(("b",))) is None
    for _ in range(lookup.BATCHES_BACK_MAX):
        append(log, b"x")
    assert log.reader.message_before(log.end_offset, Filter(("b",))) is None
    with pytest.raises(OffsetOutOfRange):
        log.reader.message_before(log.end_offset + 1)


def test_the_end_of_an_epoch_is_found_by_a_search() -> None:
    """Of 20 000 batches, some hundred headers are looked at."""
    log = open_log(memory_disk(), config=LogConfig(block_bytes=1 << 20))
    ends = {}
    for number in range(20_000):
        append(log, b"x", epoch=number // 700 + 1)
        ends[number // 700 + 1] = log.end_offset
    assert len(log.blocks) > 1
    for epoch, end in ends.items():
        looked: list[int] = []
        for block in log.blocks:
            block.load_index()
        with pytest.MonkeyPatch.context() as patch:
            decode = batches.decode_control
            patch.setattr(
                batches,
                "decode_control",
                lambda view, at, decode=decode, looked=looked: (
                    looked.append(at) or decode(view, at)
                ),
            )
            assert lookup.epoch_end(log.blocks, epoch) == EpochEnd(epoch, end)
        assert len(looked) < 65_536 // (CONTROL_BYTES + 21) + 40
