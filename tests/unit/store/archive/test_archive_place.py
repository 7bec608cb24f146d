"""Zips at URLs, through fsspec: a directory, a store in memory, and places that do not answer."""

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from support.archive_places import Buckets, Failing, stored
from support.broker import PLACES
from support.store import (
    DIRECTORY,
    SMALL,
    append,
    archive,
    blocks_of,
    flush,
    memory_disk,
    open_log,
    payloads,
    restore,
    write_archive,
)

from vq.broker.logs.logs import Logs
from vq.clock import ManualClock
from vq.errors import Busy, InvalidArgument, InvalidState, VqError
from vq.model import TopicPartition
from vq.store.archive import archive_place
from vq.store.archive.archive import ArchiveFiles, url_of
from vq.store.archive.archive_place import (
    ZipUnreachable,
    discard,
    discard_all,
    lies_on_disk,
    open_zip,
    url_in,
)
from vq.store.archive.archive_writer import ArchiveCheck
from vq.store.archive.archived_file import NotInMemory
from vq.store.care.walk import Walk
from vq.store.directory.directory import DataDirectory
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.block import BlockCache
from vq.store.log.log import Log
from vq.store.log.log_config import LogState

OWNER = "0123456789abcdef"
PARTS = ("c", "g", f"n.{OWNER}", "orders.t1", "0")
PARTITION = TopicPartition("orders", 0)
PAYLOADS = [b"%d" % n * 400 for n in range(9)]


@pytest.fixture(params=["file", "memory", "failing"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a place, which answers."""
    Failing.reset()
    if request.param == "file":
        yield f"file://{tmp_path}/archives"
        return
    yield f"{request.param}://bucket/archives"
    fsspec.filesystem("memory").store.clear()


def three_blocks(disk: MemoryDisk) -> Log:
    log = open_log(disk)
    for number, payload in enumerate(PAYLOADS):
        append(log, payload)
        if number % 3 == 2:
            log.roll()
    flush(log)
    return log


def archive_at(disk: MemoryDisk, log: Log, place: str, count: int = 3) -> None:
    for block in blocks_of(log)[:count]:
        archive(disk, log, block, url=url_of(place, PARTS, block.start_offset))


def every(url: str) -> bool:
    return True


def logs_of(disk: MemoryDisk) -> Logs:
    """The logs of a node on this disk; only what makes archives of them."""
    directory = SimpleNamespace(
        identity=SimpleNamespace(cluster="c", group="g", node="n"),
        begun=None,
        paths=[DIRECTORY.parent.parent],
        archives=SimpleNamespace(own=lambda: OWNER, owns=every),
    )
    return Logs(
        directory,  # type: ignore[arg-type]
        disk=disk,
        clock=ManualClock(),
        config=SMALL,
        reserves={},
        archive_places=PLACES,
    )


def reopened(disk: MemoryDisk) -> Log:
    return open_log(disk, cache=BlockCache(waits=True))


def test_a_url_names_cluster_node_topic_partition_and_block() -> None:
    assert (
        url_of("s3://bucket/vq/", PARTS, 4711)
        == "s3://bucket/vq/c/g/n.0123456789abcdef/orders.t1/0/0000000000004711.zip"
    )


def test_blocks_are_read_from_elsewhere(place: str) -> None:
    """After a restart, too; only stubs and indexes are here."""
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, place)
    assert len(stored(place)) == 3
    assert [n for n in disk.listdir(DIRECTORY) if n.endswith((".zip", ".block"))] == []
    log.close()
    log = reopened(disk)
    assert payloads(log) == PAYLOADS
    stub = blocks_of(log)[1].path
    check = ArchiveCheck.of(disk, stub)
    while not check.done:
        check.step()
    assert check.batches == 3


def test_a_block_is_restored_from_elsewhere(place: str) -> None:
    disk = memory_disk()
    log = three_blocks(disk)
    raw = disk.read_bytes(blocks_of(log)[0].path)
    archive_at(disk, log, place)
    restore(disk, log, blocks_of(log)[0])
    flush(log)
    assert disk.read_bytes(blocks_of(log)[0].path) == raw
    assert len(log.flushing.discards) == 1
    assert payloads(reopened(disk)) == PAYLOADS


def test_a_dropped_block_leaves_a_mark_until_its_zip_is_removed(place: str) -> None:
    """The flusher does not speak to another machine; a restart knows of it, too."""
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, place)
    log.drop_before(blocks_of(log)[1].end_offset)
    flush(log)
    marks = [name for name in disk.listdir(DIRECTORY) if name.endswith(".discard")]
    assert len(marks) == 2
    assert [path.name for path in log.flushing.discards] == marks
    assert len(stored(place)) == 3
    log.close()
    log = reopened(disk)
    assert [path.name for path in log.flushing.discards] == marks
    for path in log.flushing.discards:
        discard(disk, path, every)
        discard(disk, path, every)
    assert len(stored(place)) == 1
    assert not any(name.endswith(".discard") for name in disk.listdir(DIRECTORY))
    assert payloads(log) == PAYLOADS[6:]


def test_a_place_that_does_not_answer_harms_nothing_else() -> None:
    """The log opens, takes appends and reads what is here; what is there can be tried again."""
    Failing.reset()
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, "failing://bucket", 2)
    Failing.down = True
    log.close()
    log = open_log(disk)
    assert log.state is LogState.OK
    append(log, b"live")
    flush(log)
    told: list[int] = []
    log.reader.on_unreadable = told.append
    for _ in range(3):
        with pytest.raises(NotInMemory) as caught:
            log.reader.read(0, 100, log.end_offset)
        caught.value.fetch()
        with pytest.raises(Busy, match="nobody answers"):
            log.reader.read(0, 100, log.end_offset)
    assert told == [], "nothing is known to be damaged"
    assert bytes(log.reader.read(blocks_of(log)[2].start_offset, 100, log.end_offset))
    walk = Walk(disk, log.reader.pieces(0, log.end_offset))
    while not walk.done:
        walk.step()
    assert walk.damage == []
    assert "nobody answers" in walk.unreachable[0].why
    assert 0 < walk.read_bytes < log.size_bytes
    log.drop_before(blocks_of(log)[0].end_offset)
    flush(log)
    (mark,) = log.flushing.discards
    with pytest.raises(ZipUnreachable):
        discard(disk, mark, every)
    assert disk.exists(mark)
    Failing.down = False
    discard(disk, mark, every)
    assert stored("failing://bucket") == ["0000000000001524.zip"]
    log.close()
    assert payloads(reopened(disk)) == [*PAYLOADS[3:], b"live"]


def test_a_medium_error_under_a_zip_is_damage_and_not_a_place_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would repair it: a place that is away is only waited for."""
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, f"file://{tmp_path}/mnt", 1)
    log.close()
    log = open_log(disk)

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LocalFileSystem, "cat_file", fail)
    with pytest.raises(OSError, match="the medium failed") as raised:
        open_zip(disk, blocks_of(log)[0].path, blocks_of(log)[0].archive.url).pread(0, 10)
    assert not isinstance(raised.value, ZipUnreachable)
    told: list[int] = []
    log.reader.on_unreadable = told.append
    with pytest.raises(NotInMemory) as caught:
        log.reader.read(0, 100, log.end_offset)
    caught.value.fetch()
    with pytest.raises(VqError) as refused:
        log.reader.read(0, 100, log.end_offset)
    assert not isinstance(refused.value, Busy)
    assert told == [0]


def test_a_log_without_a_checkpoint_opens_though_the_place_does_not_answer() -> None:
    """Its stubs are believed; the blocks behind them are verified."""
    Failing.reset()
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, "failing://bucket", 2)
    log.close()
    Failing.down = True
    disk.unlink(DIRECTORY / "checkpoint")
    log = reopened(disk)
    assert log.state is LogState.OK
    assert (log.messages, log.epoch) == (9, 1)
    assert log.producers.forgot
    append(log, b"live")
    flush(log)
    Failing.down = False
    assert payloads(log) == [*PAYLOADS, b"live"]


def test_a_place_that_does_not_answer_takes_no_archive() -> None:
    Failing.reset()
    Failing.down = True
    disk = memory_disk()
    log = three_blocks(disk)
    with pytest.raises(ZipUnreachable, match="nobody answers"):
        archive_at(disk, log, "failing://bucket", 1)
    assert payloads(log) == PAYLOADS
    assert not any(name.endswith(".upload") for name in disk.listdir(DIRECTORY))


def test_a_mount_that_is_missing_is_no_lost_zip(tmp_path: Path) -> None:
    """A zip that is gone from its directory is one."""
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, f"file://{tmp_path}/mnt", 1)
    stub = blocks_of(log)[0].path
    url = blocks_of(log)[0].archive.url  # type: ignore[union-attr]
    (tmp_path / "mnt").rename(tmp_path / "elsewhere")
    with pytest.raises(ZipUnreachable):
        open_zip(disk, stub, url).pread(0, 10)
    (tmp_path / "elsewhere").rename(tmp_path / "mnt")
    assert open_zip(disk, stub, url).pread(0, 2) == b"PK"
    next((tmp_path / "mnt").rglob("*.zip")).unlink()
    with pytest.raises(FileNotFoundError):
        open_zip(disk, stub, url).pread(0, 10)


def test_a_zip_in_a_new_directory_is_durable_with_all_names_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody but the broker's user and group may read it."""
    synced: list[Path] = []
    monkeypatch.setattr(archive_place, "fsync", synced.append)
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, f"file://{tmp_path}/mnt", 1)
    path = next(tmp_path.rglob("*.zip"))
    wanted = {path, *path.parents} - set(tmp_path.parents)
    assert set(synced) == wanted
    assert path.stat().st_mode & 0o777 == 0o640
    synced.clear()
    archive(disk, log, blocks_of(log)[1], url=url_of(f"file://{tmp_path}/mnt", PARTS, 1524))
    assert set(synced) == {path.with_name("0000000000001524.zip"), path.parent}


@pytest.mark.parametrize("url", ["nosuch://place/x", "s3//", "file:"])
def test_a_url_that_means_nothing_is_told(url: str) -> None:
    disk = memory_disk()
    log = three_blocks(disk)
    with pytest.raises(OSError):
        write_archive(disk, blocks_of(log)[0], url=url)


def test_without_fsspec_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(ZipUnreachable, match=r"pip install 'fsspec>="):
        open_zip(memory_disk(), DIRECTORY, "s3://bucket/x.zip").pread(0, 1)


def test_a_zip_that_was_written_in_vain_is_removed(place: str) -> None:
    disk = memory_disk()
    log = three_blocks(disk)
    disk.open(blocks_of(log)[0].path).pwrite([b"\xff"], 1000)
    with pytest.raises(Exception, match="intact"):
        archive_at(disk, log, place, 1)
    assert stored(place) == []


def test_the_trash_goes_with_its_archives_elsewhere() -> None:
    """While their place does not answer, it stays."""
    Failing.reset()
    data, clock = DIRECTORY.parent.parent, ManualClock()
    disk = MemoryDisk()
    directory = DataDirectory.open(data, "c", "g", "n", disk)
    directory.claim_topic("orders", "t1")
    log = three_blocks(disk)
    parts = ("c", "g", f"n.{directory.archives.own()}", "orders.t1", "0")
    for block in blocks_of(log)[:2]:
        archive(disk, log, block, url=url_of("failing://bucket", parts, block.start_offset))
    log.close()
    directory.move_topic("orders", "t1", clock, keep=False)
    [trashed] = directory.due_trash(clock, 0.0)
    Failing.down = True
    assert trashed.places
    assert not directory.remove_trash(trashed)
    Failing.down = False
    assert directory.remove_trash(trashed)
    assert directory.due_trash(clock, 0.0) == []
    assert stored("failing://bucket") == []
    directory.close()


def test_all_zips_below_a_directory_are_found(place: str) -> None:
    """Those with a mark, too."""
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, place)
    log.drop_before(blocks_of(log)[0].end_offset)
    flush(log)
    discard_all(disk, DIRECTORY.parent, every)
    assert stored(place) == []


def test_a_crash_while_a_zip_elsewhere_is_dropped_leaves_it_known(place: str) -> None:
    """After every operation a zip elsewhere has a stub or a mark."""
    from vq.store.disk.memory_disk import keep_all, keep_none

    base = memory_disk()
    disk = base.crash(keep_all)
    log = three_blocks(disk)
    archive_at(disk, log, place)
    begin = len(disk.operations)
    log.drop_before(blocks_of(log)[1].end_offset)
    flush(log)
    for count in range(begin, len(disk.operations) + 1):
        for chance in (keep_all, keep_none):
            after = base.crash(keep_all)
            for _ in after.replay(disk.operations[:count]):
                pass
            after = after.crash(chance)
            log = reopened(after)
            left = [n for n in after.listdir(DIRECTORY) if n.endswith((".archive", ".discard"))]
            assert len(left) == 3
            assert payloads(log) in (PAYLOADS, PAYLOADS[6:])


@pytest.mark.parametrize("is_quarantined", [False, True])
def test_a_log_opens_without_a_word_to_a_place_though_an_index_is_lost(
    is_quarantined: bool,
) -> None:
    """A lane that opens logs must not wait there: the place may hang for ever."""
    Failing.reset()
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, "failing://bucket", 2)
    log.close()
    for block in blocks_of(log)[:2]:
        disk.unlink(block.index_path)
    path = blocks_of(log)[2].path
    if is_quarantined:
        disk.unlink(path)
    asked: list[object] = []
    Failing.asked = asked.append
    try:
        log = reopened(disk)
    finally:
        Failing.asked = lambda _: None
    assert asked == []
    assert (log.state is LogState.QUARANTINED) == is_quarantined
    assert log.messages == (6 if is_quarantined else 9)


def test_in_a_store_of_buckets_a_directory_ends_with_its_last_file() -> None:
    """There, too, a file that is gone is gone; unless the bucket is."""
    Buckets.reset()
    disk = memory_disk()
    log = three_blocks(disk)
    archive_at(disk, log, "buckets://b/archives", 1)
    stub = blocks_of(log)[0].path
    url = blocks_of(log)[0].archive.url  # type: ignore[union-attr]
    assert open_zip(disk, stub, url).pread(0, 2) == b"PK"
    Buckets.files.clear()
    with pytest.raises(FileNotFoundError):
        open_zip(disk, stub, url).pread(0, 2)
    log.drop_before(blocks_of(log)[0].end_offset)
    flush(log)
    (mark,) = log.flushing.discards
    discard(disk, mark, every)  # a kill may have come between both removals
    assert not disk.exists(mark)
    Buckets.names.clear()
    with pytest.raises(ZipUnreachable):
        open_zip(disk, stub, url).pread(0, 2)


def test_a_bucket_that_is_not_there_is_not_made() -> None:
    """Its name may be misspelt, or another account's; nothing is written, and nothing noted."""
    Buckets.reset()
    disk = memory_disk()
    log = three_blocks(disk)
    with pytest.raises(ZipUnreachable, match="bucket, is not there: misspelt"):
        archive_at(disk, log, "buckets://misspelt/archives", 1)
    assert Buckets.names == {"b"}
    assert not disk.exists(ArchiveFiles.of(blocks_of(log)[0].path).upload)


def test_a_kill_at_any_step_leaves_no_zip_elsewhere_unknown(place: str) -> None:
    """It has a stub, a mark or a note; the next start makes a mark of a note that has no stub."""
    from vq.store.disk.memory_disk import keep_all, keep_none

    base = memory_disk()
    disk = base.crash(keep_all)
    log = three_blocks(disk)
    block = blocks_of(log)[0]
    begin = len(disk.operations)
    logs, run = logs_of(disk), []
    writer = logs.new_archive(PARTITION, "t1", block.path, 0, block.end_offset, place=place)
    opened = len(disk.operations)
    while not writer.done:
        writer.step()
    run.append(writer.place())
    writer.close()
    logs.save_stub(block.path, run[0])
    log.use_archive(block, run[0].archive)
    flush(log)
    assert not any(name.endswith((".upload", ".discard")) for name in disk.listdir(DIRECTORY))
    for count in range(begin, len(disk.operations) + 1):
        for chance in (keep_all, keep_none):
            after = base.crash(keep_all)
            for _ in after.replay(disk.operations[:count]):
                pass
            after = after.crash(chance)
            log = reopened(after)
            known = [url_in(after, each) for each in log.flushing.discards]
            stubs = [name for name in after.listdir(DIRECTORY) if name.endswith(".archive")]
            known += [url_in(after, DIRECTORY / name) for name in stubs]
            assert len(known) <= 1
            assert known or count < opened
            assert not any(name.endswith(".upload") for name in after.listdir(DIRECTORY))
            assert payloads(log) == PAYLOADS


def test_a_zip_elsewhere_whose_stub_cannot_be_written_is_removed_later(place: str) -> None:
    """The disk may be full; and what is removed is not what a later try has written."""
    disk = memory_disk()
    log = three_blocks(disk)
    logs, block = logs_of(disk), blocks_of(log)[0]
    for _ in range(2):
        writer = logs.new_archive(PARTITION, "t1", block.path, 0, block.end_offset, place=place)
        while not writer.done:
            writer.step()
        stub = writer.place()
        writer.close()
        (mark,) = logs.drop_archive(block.path)
        assert len(stored(place)) == 1
    discard(disk, mark, every)
    assert stored(place) == []
    del stub
    writer = logs.new_archive(PARTITION, "t1", block.path, 0, block.end_offset, place=place)
    while not writer.done:
        writer.step()
    logs.save_stub(block.path, writer.place())
    writer.close()
    assert len(stored(place)) == 1
    assert not any(name.endswith((".upload", ".discard")) for name in disk.listdir(DIRECTORY))


def test_a_dropped_block_takes_along_what_could_not_be_removed_elsewhere() -> None:
    """The try to archive it failed with its place."""
    Failing.reset()
    disk = memory_disk()
    log = three_blocks(disk)
    logs, block = logs_of(disk), blocks_of(log)[0]
    writer = logs.new_archive(
        PARTITION, "t1", block.path, 0, block.end_offset, place="failing://bucket"
    )
    while not writer.done:
        writer.step()
    Failing.down = True
    writer.close()
    assert len(stored("failing://bucket")) == 1
    log.drop_before(block.end_offset)
    flush(log)
    (mark,) = log.flushing.discards
    Failing.down = False
    discard(disk, mark, every)
    assert stored("failing://bucket") == []


@pytest.mark.parametrize("below", ["", "/orders", "/../data/x"])
def test_archives_do_not_go_into_a_data_directory(below: str) -> None:
    """The directory of the cluster there would be that of a topic with its name."""
    disk = memory_disk()
    log = three_blocks(disk)
    logs, block = logs_of(disk), blocks_of(log)[0]
    place = f"file://{DIRECTORY.parent.parent}{below}"
    with pytest.raises((InvalidState, InvalidArgument), match=r"lies in the data directory|'\.\.'"):
        logs.new_archive(PARTITION, "t1", block.path, 0, block.end_offset, place=place)
    assert not any(name.endswith(".upload") for name in disk.listdir(DIRECTORY))


def test_sizes_are_those_of_a_small_log() -> None:
    """The offsets above rely on it."""
    log = three_blocks(memory_disk())
    assert SMALL.block_bytes == 4096
    assert blocks_of(log)[1].start_offset == 1524
    assert ArchiveFiles.of(blocks_of(log)[1].path).zip.name == "0000000000001524.zip"


def test_whether_an_archive_takes_space_of_a_disk(tmp_path: Path) -> None:
    """Only one whose files the operating system has may; also where nothing can be told."""
    assert not lies_on_disk("memory://archive", tmp_path)
    assert not lies_on_disk("s3://bucket/vq", tmp_path)
    assert lies_on_disk(f"file://{tmp_path}/to/be/made", tmp_path)
    assert lies_on_disk("file:///nowhere", tmp_path / "gone")
    other = Path("/proc")
    if other.is_dir() and other.stat().st_dev != tmp_path.stat().st_dev:
        assert not lies_on_disk("file:///proc/archive", tmp_path)
