"""A log is cut back to where a newer master's log parts from it; nothing that is cut is lost."""

import random

import pytest
from support.archive_places import Failing
from support.store import (
    DIRECTORY,
    append,
    archive,
    blocks_of,
    flush,
    memory_disk,
    open_log,
    payloads,
)

from vq.clock import ManualClock
from vq.errors import CorruptData, InvalidArgument
from vq.model import ProducerStamp
from vq.store.archive.archive import url_of
from vq.store.care.divergence import Diverged, cut_back, diverged
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.log.block import BlockCache
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.recovered import Case
from vq.store.records.format import INDEX_SUFFIX, KEYS_SUFFIX, block_name

COUNT = 12  # batches of about 1,200 bytes in blocks of 4,096 bytes: four blocks


def content(number: int) -> bytes:
    """Return the payload of one batch; it ends in zeros, as an allocated block does."""
    return b"%04d" % number + bytes(1100)


def stamp(number: int) -> ProducerStamp:
    return ProducerStamp(7 + number % 2, 0, number // 2)


def fill(disk: MemoryDisk, count: int = COUNT, *, epoch: int = 1) -> list[int]:
    """Make a log of so many batches and close it; return where each begins, and the end."""
    clock = ManualClock(wall_ms=1_000_000)
    log = open_log(disk, clock=clock)
    starts = []
    for number in range(count):
        clock.advance(1)
        starts.append(append(log, content(number), epoch=epoch, stamp=stamp(number)))
        flush(log)
    starts.append(log.end_offset)
    log.close()
    return starts


def cut(disk: MemoryDisk, offset: int) -> list[Diverged]:
    return cut_back(DIRECTORY, offset, topic_id="t1", disk=disk)


def contents_of(disk: MemoryDisk, files: list[Diverged]) -> list[bytes]:
    """Return what was cut, read as log bytes: copied into a log of its own."""
    found: list[bytes] = []
    for each in files:
        data = disk.read_bytes(each.path)[: each.end_offset - each.start_offset]
        other = open_log(memory_disk(), start_offset=each.start_offset)
        other.append_framed(data)
        found += payloads(other)
    return found


@pytest.mark.parametrize("kept", range(COUNT + 1))
def test_the_log_ends_at_the_cut_and_the_rest_is_kept(kept: int) -> None:
    """At every batch: what is before stays, what is behind is in files, in order."""
    disk = memory_disk()
    starts = fill(disk)
    files = cut(disk, starts[kept])
    log = open_log(disk)
    assert (log.state, log.recovery.case) == (LogState.OK, Case.CLEAN)
    assert log.end_offset == starts[kept]
    assert payloads(log) == [content(number) for number in range(kept)]
    assert log.messages == kept
    assert contents_of(disk, files) == [content(number) for number in range(kept, COUNT)]
    assert diverged(DIRECTORY, disk) == files
    log.close()
    assert disk.open_files == 0


def test_a_file_says_what_it_holds() -> None:
    disk = memory_disk()
    starts = fill(disk, 2, epoch=3)
    assert cut(disk, starts[1]) == [
        Diverged(
            path=DIRECTORY / f"{starts[1]:016d}.diverged",
            at_start=False,
            start_offset=starts[1],
            end_offset=starts[2],
            batches=1,
            messages=1,
            first_epoch=3,
            last_epoch=3,
            first_append_ms=1_002_000,
            last_append_ms=1_002_000,
        )
    ]


@pytest.mark.parametrize("kept", range(COUNT))
def test_the_producers_of_what_is_left_are_known(kept: int) -> None:
    """A resend of what was kept gets its first offset; what was cut is new again."""
    disk = memory_disk()
    starts = fill(disk)
    cut(disk, starts[kept])
    log = open_log(disk)
    for number in range(max(0, kept - 10), kept):
        assert log.producers.check(stamp(number)) == starts[number]
    remembered = open_log(memory_disk())
    for number in range(kept):
        append(remembered, content(number), stamp=stamp(number))
    assert log.producers.to_bytes() == remembered.producers.to_bytes()
    assert log.producers.check(stamp(kept)) is None
    assert append(log, b"next", epoch=2, stamp=stamp(kept)) == starts[kept]


def test_a_log_that_begins_later_remembers_who_wrote_before() -> None:
    """A partition that moved here: its table came along and is in no batch."""
    disk = memory_disk()
    before = open_log(memory_disk())
    append(before, b"elsewhere", stamp=stamp(0))
    begin = before.end_offset
    log = open_log(disk, start_offset=begin, producers=before.producers.to_bytes())
    append(log, b"here", stamp=stamp(1))
    log.close()
    cut(disk, begin)
    again = open_log(disk)
    assert (again.start_offset, again.end_offset) == (begin, begin)
    assert again.producers.check(stamp(0)) == 0
    assert again.producers.check(stamp(1)) is None


@pytest.mark.parametrize("beside", [-1, 1])
def test_a_cut_inside_a_batch_is_refused_and_changes_nothing(beside: int) -> None:
    disk = memory_disk()
    starts = fill(disk)
    before = len(disk.operations)
    for start in starts:
        with pytest.raises(InvalidArgument, match=f"begins at offset {start + beside}"):
            cut(disk, start + beside)
    assert len(disk.operations) == before


def test_a_log_with_a_damaged_batch_before_the_cut_is_left_alone() -> None:
    """What is below is not known to be a log: another copy repairs it first."""
    disk = memory_disk()
    starts = fill(disk)
    file = disk.open(DIRECTORY / block_name(0))
    file.pwrite([b"damage"], starts[1] + 10)
    file.close()
    before = len(disk.operations)
    with pytest.raises((CorruptData, InvalidArgument), match="nothing was cut"):
        cut(disk, starts[8])
    assert len(disk.operations) == before


def test_a_log_of_another_topic_is_left_alone() -> None:
    disk = memory_disk()
    starts = fill(disk)
    before = len(disk.operations)
    with pytest.raises(CorruptData, match="of topic id t1, not t2"):
        cut_back(DIRECTORY, starts[1], topic_id="t2", disk=disk)
    assert len(disk.operations) == before
    assert diverged(DIRECTORY, disk) == []


def test_two_cuts_at_one_place_keep_both() -> None:
    """A node that leads twice may have other batches at the same offset."""
    disk = memory_disk()
    starts = fill(disk, 2)
    cut(disk, starts[1])
    log = open_log(disk)
    append(log, b"other", epoch=2)
    log.close()
    cut(disk, starts[1])
    names = [each.path.name for each in diverged(DIRECTORY, disk)]
    assert names == [f"{starts[1]:016d}.diverged", f"{starts[1]:016d}.diverged-1"]
    assert contents_of(disk, diverged(DIRECTORY, disk)) == [content(1), b"other"]


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, KEYS_SUFFIX])
def test_no_index_of_cut_batches_is_used_again(suffix: str) -> None:
    """Batches of the same lengths and other times, or keys, take their place."""
    disk = memory_disk()
    starts = fill(disk)
    index = (DIRECTORY / block_name(0)).with_suffix(suffix)
    if suffix == KEYS_SUFFIX:
        disk.write_atomic(index, b"keys")
    assert disk.exists(index)
    cut(disk, starts[1])
    assert not disk.exists(index)


def test_a_seal_goes_with_the_end_that_it_marked() -> None:
    disk = memory_disk()
    starts = fill(disk)
    log = open_log(disk)
    log.seal()
    log.save_seal()
    log.close()
    cut(disk, starts[-1])
    log = open_log(disk)
    assert log.state is LogState.SEALED
    log.close()
    cut(disk, starts[3])
    assert open_log(disk).state is LogState.OK


def judge(disk: MemoryDisk, starts: list[int], kept: int) -> Log:
    """Check a log after a crash in the middle of a cut."""
    log = open_log(disk)
    assert log.state is LogState.OK, log.reason
    assert log.end_offset in starts[kept:]
    ends = starts.index(log.end_offset)
    assert payloads(log) == [content(number) for number in range(ends)]
    saved = contents_of(disk, diverged(DIRECTORY, disk))
    for number in range(ends, COUNT):
        assert content(number) in saved, f"batch {number} is nowhere"
    return log


@pytest.mark.parametrize("kept", range(COUNT))
def test_a_crash_in_the_middle_leaves_a_log_that_can_be_cut_again(kept: int) -> None:
    """At every operation, with whatever was not synced lost or not."""
    disk = memory_disk()
    starts = fill(disk)
    stage = disk.crash(keep_all)
    running = disk.crash(keep_all)
    cut(running, starts[kept])
    for at, _ in enumerate(stage.replay(list(running.operations))):
        for number in range(4):
            seed = at * 10 + number
            crashed = stage.crash(RandomChance(random.Random(seed)))
            judge(crashed, starts, kept).close()
            cut(crashed, starts[kept])
            log = judge(crashed, starts, kept)
            assert log.end_offset == starts[kept], f"seed {seed}, operation {at}"


@pytest.mark.parametrize("kept", range(COUNT))
def test_a_cut_that_returned_survives_a_loss_of_power(kept: int) -> None:
    """The next master's batches are acknowledged at these offsets."""
    disk = memory_disk()
    starts = fill(disk)
    cut(disk, starts[kept])
    log = judge(disk.crash(keep_none), starts, kept)
    assert log.end_offset == starts[kept]


def archive_blocks(disk: MemoryDisk, count: int, *, place: str = "") -> None:
    """Have the first blocks of a closed log be archives."""
    log = open_log(disk)
    log.roll()
    flush(log)
    for block in blocks_of(log)[:count]:
        url = url_of(place, ("t",), block.start_offset) if place else ""
        archive(disk, log, block, url=url)
    log.close()


@pytest.mark.parametrize("archives", [1, 3])
@pytest.mark.parametrize("kept", range(9, COUNT + 1))
def test_what_stays_archived_is_not_read_for_a_cut(kept: int, archives: int) -> None:
    """It may lie in a place that does not answer, and be terabytes; the outcome is the same.

    Of a producer, fewer of its last batches may be known than are usually.
    """
    Failing.reset()
    disk, plain = memory_disk(), memory_disk()
    starts = fill(disk)
    assert fill(plain) == starts
    archive_blocks(disk, archives, place="failing://bucket")
    archive_blocks(plain, 0)
    Failing.down = True
    files = cut(disk, starts[kept])
    assert contents_of(disk, files) == [content(number) for number in range(kept, COUNT)]
    cut(plain, starts[kept])
    found, expected = open_log(disk), open_log(plain)
    assert (found.state, found.end_offset) == (LogState.OK, starts[kept])
    for name in ("messages", "epoch", "last_append_time_ms"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.producers.forgot == expected.producers.forgot
    for log in (found, expected):
        for number in (kept - 2, kept - 1):
            assert log.producers.check(stamp(number)) == starts[number]
            assert log.producers.check(stamp(number + 2)) is None
    Failing.down = False
    assert payloads(open_log(disk, cache=BlockCache(waits=True))) == [
        content(number) for number in range(kept)
    ]


def test_who_wrote_in_archives_alone_and_was_cut_is_known_as_forgotten() -> None:
    """The resend of a first batch by somebody unknown may be of one that is in an archive."""
    disk = memory_disk()
    clock = ManualClock(wall_ms=1_000_000)
    log = open_log(disk, clock=clock)
    append(log, content(0), stamp=ProducerStamp(9, 0, 0))
    log.roll()
    at = append(log, content(1), stamp=ProducerStamp(5, 0, 0))
    end = 0
    for sequence in range(1, 8):  # more than are remembered
        end = end or log.end_offset
        append(log, content(sequence), stamp=ProducerStamp(9, 0, sequence))
    flush(log)
    log.close()
    archive_blocks(disk, 1)
    cut(disk, end)
    log = open_log(disk)
    assert (9 in log.producers, 5 in log.producers, log.producers.forgot) == (False, True, True)
    assert at < log.end_offset == end


@pytest.mark.parametrize("archives", [1, 3, 4])
@pytest.mark.parametrize("kept", range(COUNT + 1))
def test_a_log_with_archives_is_cut_anywhere(kept: int, archives: int) -> None:
    """Archives that the cut concerns are restored first; the others stay what they are."""
    disk = memory_disk()
    starts = fill(disk)
    archive_blocks(disk, archives)
    files = cut(disk, starts[kept])
    log = open_log(disk, cache=BlockCache(waits=True))
    assert (log.state, log.end_offset) == (LogState.OK, starts[kept])
    assert payloads(log) == [content(number) for number in range(kept)]
    assert contents_of(disk, files) == [content(number) for number in range(kept, COUNT)]
    whole = [block.is_archived for block in blocks_of(log)]
    assert whole == [at < archives and at < kept // 3 for at in range(len(whole))]
    append(log, b"new", epoch=2)
    flush(log)
    log.close()
    log = open_log(disk, cache=BlockCache(waits=True))
    assert payloads(log)[-1] == b"new"
    stubs = [name for name in disk.listdir(DIRECTORY) if name.endswith((".archive", ".zip"))]
    assert len(stubs) == 2 * sum(whole)


@pytest.mark.parametrize("kept", [0, 4, 6, 11])
def test_a_crash_while_archives_are_cut_leaves_a_log_that_opens(kept: int) -> None:
    """And cutting again does the rest."""
    base = memory_disk()
    disk = base.crash(keep_all)
    starts = fill(disk)
    archive_blocks(disk, 4)
    begin = len(disk.operations)
    cut(disk, starts[kept])
    for count in range(begin, len(disk.operations) + 1):
        for chance in (keep_all, keep_none):
            after = base.crash(keep_all)
            for _ in after.replay(disk.operations[:count]):
                pass
            after = after.crash(chance)
            log = open_log(after, cache=BlockCache(waits=True))
            assert log.state is LogState.OK
            found = payloads(log)
            assert found == [content(number) for number in range(len(found))]
            assert len(found) >= kept
            log.close()
            cut(after, starts[kept])
            log = open_log(after, cache=BlockCache(waits=True))
            assert payloads(log) == found[:kept]
