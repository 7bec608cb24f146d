"""A power cut, or kill -9, at every step of a deletion.

| after this step | the log begins | files of the block | the next start |
| --- | --- | --- | --- |
| the open block is cut to its length | where it did | there | appends to it again |
| the block is dropped in memory | where it did | there | brings it back |
| a checkpoint without it is written | where it did | there | brings it back |
| and renamed | behind the block | there | deletes the files |
| the block is deleted | behind the block | its index | deletes the index |
| the index is deleted | behind the block | none | nothing |

After none of them is the log in quarantine, lacks a message that was not deleted, or has forgotten
who wrote the last ones.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.store import (
    DIRECTORY,
    append,
    blocks_of,
    flush,
    memory_disk,
    open_log,
    patiently,
    records,
)

from vq.broker.logs.logs import Logs
from vq.broker.logs.reserve import Reserve
from vq.clock import ManualClock
from vq.model import ProducerStamp, TopicPartition
from vq.store.directory.directories import DataDirectories
from vq.store.directory.directory import DataDirectory
from vq.store.disk.disk import Disk
from vq.store.disk.memory_disk import MemoryDisk, keep_all, keep_none
from vq.store.disk.memory_names import RandomChance
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogConfig, LogState

WHERE = TopicPartition("t", 0)
CONFIG = LogConfig(
    block_bytes=4096,
    checkpoint_bytes=4096,
    checkpoint_batches=1000,
    allocate_bytes_min=4096,
    allocate_bytes_max=4096,
)


def crashes(before: MemoryDisk, disk: MemoryDisk) -> Iterator[tuple[str, MemoryDisk]]:
    """Every state that a crash can leave of what was done to ``disk`` since it was ``before``."""
    operations = list(disk.operations)
    chances = [keep_none, keep_all, *(RandomChance(random.Random(seed)) for seed in range(6))]
    for number, chance in enumerate(chances):
        yield f"at the begin, {number}", before.crash(keep_all).crash(chance)
    for at, _ in enumerate(before.replay(operations), 1):
        for number, chance in enumerate(chances):
            name = f"after operation {at} of {len(operations)} ({operations[at - 1]}), {number}"
            yield name, before.crash(chance)


def filled(disk: Disk, count: int = 45) -> Log:
    log = open_log(disk)
    for number in range(count):
        append(log, b"%04d" % number + bytes(300), stamp=ProducerStamp(7, 0, number))
    flush(log)
    return log


def drop_two(log: Log) -> None:
    log.drop_before(log.closed_blocks[1].end_offset)


def drop_all(log: Log) -> None:
    log.roll()
    flush(log)
    log.drop_before(log.end_offset)


def drop_one_by_one(log: Log) -> None:
    for block in list(log.closed_blocks):
        log.drop_before(block.end_offset)
        flush(log)


def drop_while_appending(log: Log) -> None:
    log.drop_before(log.closed_blocks[0].end_offset)
    ticket = log.begin_sync()
    assert ticket is not None
    append(log, b"while it is deleted", stamp=ProducerStamp(7, 0, 45))
    ticket.run()
    log.finish_sync(ticket)


@pytest.mark.parametrize("act", [drop_two, drop_all, drop_one_by_one, drop_while_appending])
def test_a_crash_at_any_step_leaves_a_whole_log(act: Callable[[Log], None]) -> None:
    disk = memory_disk()
    filled(disk).close()
    disk = disk.crash(keep_none)
    log = open_log(disk)
    before, old_start = disk.crash(keep_all), log.start_offset
    content, boundaries = records(log), {block.start_offset for block in blocks_of(log)}
    disk.operations.clear()
    act(log)
    flush(log)
    boundaries.add(log.end_offset)
    newest = records(log)[-1:]
    seen = set()
    for name, crashed in crashes(before, disk):
        again = open_log(crashed)
        assert again.state is LogState.OK, f"{name}: {again.reason}"
        start = again.start_offset
        assert old_start <= start <= log.start_offset, name
        assert start in boundaries, name
        kept = [each for each in content if each.offset >= start]
        found = records(again)
        assert found in (kept, [*kept, *(each for each in newest if each not in kept)]), name
        assert again.messages == len(found), name
        counted, _ = patiently(
            lambda again=again, start=start: again.reader.count(start, again.end_offset)
        )
        assert counted == (len(found), True), name
        assert again.producers.check(ProducerStamp(7, 0, 44)) is not None, name
        seen.add(start)
        # The next pass deletes the rest, and leaves no file behind.
        again.drop_before(log.start_offset)
        flush(again)
        files = [each for each in crashed.listdir(DIRECTORY) if each != "checkpoint"]
        assert all(int(each[:16]) >= again.start_offset for each in files), f"{name}: {files}"
        append(again, b"on", stamp=ProducerStamp(8, 0, 0))
        flush(again)
        assert [each.payload for each in records(open_log(crashed.crash(keep_none)))][-1] == b"on"
    assert {old_start, log.start_offset} <= seen


def logs_of(disk: MemoryDisk) -> Logs:
    disk.release_locks()
    data = DataDirectory.open(Path("/data"), "c", "b1", "n1", disk)
    reserve = Reserve(Path("/data"), disk)
    return Logs(
        DataDirectories([data], disk),
        disk=disk,
        clock=ManualClock(),
        config=CONFIG,
        reserves={Path("/data"): reserve},
    )


def test_a_crash_while_an_earlier_range_is_removed_loses_nothing_else() -> None:
    """The next start finds it empty, and removes it; or does not find it. It never misses it."""
    disk = MemoryDisk()
    logs = logs_of(disk)
    logs.prepare(WHERE, "id")
    log = logs.open(WHERE, "id")
    for number in range(30):
        append(log, b"%04d" % number + bytes(300))
    flush(log)
    end = log.end_offset
    aside = logs.put_aside(WHERE, log)
    assert aside is not None
    log = logs.open(WHERE, "id", begin=LogBegin(end + 5_000))
    append(log, b"the range that is there now")
    flush(log)
    log.close()
    logs.save_begun()
    before = disk.crash(keep_all)
    logs = logs_of(disk)
    older = logs.open(WHERE, "id", path=aside)
    disk.operations.clear()
    before = disk.crash(keep_all)
    older.roll()
    flush(older)
    older.drop_before(end)
    flush(older)
    logs.remove_aside(WHERE, older)
    assert logs.prepare(WHERE, "id") == (True, [])
    seen = set()
    for name, crashed in crashes(before, disk):
        again = logs_of(crashed)
        is_there, ranges = again.prepare(WHERE, "id")
        assert is_there, name
        for path in ranges:
            found = again.open(WHERE, "id", path=path)
            assert found.state is LogState.OK, f"{name}: {found.reason}"
            assert found.end_offset == end, name
            seen.add("empty" if not found.size_bytes else "there")
            if not found.size_bytes:
                again.remove_aside(WHERE, found)
                assert again.prepare(WHERE, "id") == (True, []), name
        if not ranges:
            seen.add("gone")
            assert [each for each in crashed.listdir(Path("/data/t")) if "from" in each] == [], name
        now = again.open(WHERE, "id")
        assert [each.payload for each in records(now)] == [b"the range that is there now"], name
    assert seen == {"there", "empty", "gone"}
