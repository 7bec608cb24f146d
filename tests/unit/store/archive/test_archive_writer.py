"""Zips of blocks: what they hold, that others can read them, and that damage is not archived."""

import hashlib
import io
import json
import subprocess
import zipfile
import zlib
from pathlib import Path

import pytest
from support.cases import case
from support.store import (
    DIRECTORY,
    append,
    blocks_of,
    flush,
    memory_disk,
    open_log,
    write_archive,
)

from vq.errors import CorruptData, InvalidState
from vq.store.archive import archive_writer
from vq.store.archive.archive import ArchiveFiles, Stub
from vq.store.archive.archive_writer import STEP_BYTES, ArchiveCheck, ArchiveWriter, BlockWriter
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.disk.real_disk import RealDisk
from vq.store.log.block import Block
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig


def closed_block(
    disk: MemoryDisk, *payloads: bytes, config: LogConfig | None = None
) -> tuple[Log, Block]:
    log = open_log(disk, config=config or LogConfig())
    for number, payload in enumerate(payloads):
        append(log, payload, epoch=1 + number // 4)
    log.roll()
    flush(log)
    return log, blocks_of(log)[0]


def check(disk: MemoryDisk, stub_path: Path) -> ArchiveCheck:
    found = ArchiveCheck.of(disk, stub_path)
    try:
        while not found.done:
            found.step()
    finally:
        found.close()
    return found


def run(steps: ArchiveWriter | BlockWriter) -> None:
    while not steps.done:
        steps.step()


PAYLOADS = [b"%d" % n * 300 for n in range(10)]


def test_no_step_compresses_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get the processor between steps; the zip is the same."""
    zips, steps = [], []
    for piece_bytes in (1 << 20, 500):
        monkeypatch.setattr(archive_writer, "PIECE_BYTES", piece_bytes)
        disk = memory_disk()
        _, block = closed_block(disk, *PAYLOADS)
        writer = ArchiveWriter(disk, block.path, block.start_offset, block.end_offset)
        steps.append(0)
        while not writer.done:
            writer.step()
            steps[-1] += 1
        writer.place()
        writer.close()
        zips.append(disk.read_bytes(ArchiveFiles.of(block.path).zip))
    with zipfile.ZipFile(io.BytesIO(zips[0])) as one, zipfile.ZipFile(io.BytesIO(zips[1])) as two:
        assert one.namelist() == two.namelist()
        assert [one.read(name) for name in one.namelist()] == [
            two.read(name) for name in two.namelist()
        ]
    assert steps[1] - steps[0] == -(-block.length // 500) - 1


def test_a_zip_has_the_bytes_of_the_block_in_chunks_of_whole_batches() -> None:
    """Python's own module reads it, and names sort as the chunks lie."""
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    raw = disk.read_bytes(block.path)
    stub = write_archive(disk, block)
    opened = zipfile.ZipFile(io.BytesIO(disk.read_bytes(ArchiveFiles.of(block.path).zip)))
    assert opened.testzip() is None
    chunks = [name for name in opened.namelist() if name.startswith("block/")]
    assert chunks == sorted(chunks)
    assert len(chunks) > 3
    assert b"".join(map(opened.read, chunks)) == raw
    assert [int(name.removeprefix("block/")) for name in chunks] == [c.start for c in stub.chunks]
    starts = {header.start_offset for header in block.headers(0)}
    assert {each.start for each in stub.chunks} <= starts
    told = json.loads(opened.read("description.json"))
    assert told == {
        "v": 1,
        "topic": "orders",
        "start_offset": 0,
        "end_offset": len(raw),
        "messages": 10,
        "batches": 10,
        "first_append_ms": block.header_at(0).append_time_ms,
        "last_append_ms": stub.archive.last_ms,
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def test_unzip_gives_the_block(tmp_path: Path) -> None:
    """As docs/formats.md says."""
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    write_archive(disk, block)
    path = tmp_path / "x.zip"
    path.write_bytes(disk.read_bytes(ArchiveFiles.of(block.path).zip))
    try:
        found = subprocess.run(
            ["unzip", "-p", path, "block/*"], capture_output=True, check=True
        ).stdout
    except FileNotFoundError:
        pytest.skip("unzip is not installed")
    assert found == disk.read_bytes(block.path)


def test_a_stub_comes_back_from_its_bytes() -> None:
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    stub = write_archive(disk, block)
    data = disk.read_bytes(ArchiveFiles.of(block.path).stub)
    found = Stub.from_bytes(data)
    assert (found.archive, found.chunks) == (stub.archive, stub.chunks)
    assert found.to_bytes() == data
    headers = list(block.headers(0))
    assert found.archive.first == headers[0]
    assert found.archive.messages == 10
    assert found.archive.epochs == (
        (1, 0),
        (2, headers[4].start_offset),
        (3, headers[8].start_offset),
    )
    assert found.archive.epoch_up_to(0) is None
    assert found.archive.epoch_up_to(2) == (2, headers[8].start_offset)
    assert found.archive.epoch_up_to(9) == (3, block.end_offset)


def test_a_stub_with_a_changed_byte_is_refused() -> None:
    """Whatever it says then: no other block's bytes are served for it."""
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    write_archive(disk, block)
    stub = disk.read_bytes(ArchiveFiles.of(block.path).stub)
    for at in range(len(stub)):
        data = bytearray(stub)
        data[at] ^= 4
        with case(at), pytest.raises(CorruptData):
            Stub.from_bytes(bytes(data))


def test_the_same_block_gives_the_same_zip() -> None:
    found = []
    for _ in range(2):
        disk = memory_disk()
        _, block = closed_block(disk, *PAYLOADS)
        write_archive(disk, block)
        found.append(disk.read_bytes(ArchiveFiles.of(block.path).zip))
    assert found[0] == found[1]


def test_a_chunk_that_does_not_shrink_is_stored() -> None:
    disk = memory_disk()
    random = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(2000))
    _, block = closed_block(disk, random, b"a" * 60_000)
    stub = write_archive(disk, block, chunk_bytes=40_000)
    sizes = [(each.size, each.length) for each in stub.chunks]
    assert sizes[0][0] == sizes[0][1] > 64_000
    assert sizes[1][0] < sizes[1][1] / 100
    check(disk, ArchiveFiles.of(block.path).stub)


def test_a_batch_that_is_larger_than_a_step_and_a_chunk_is_one_chunk() -> None:
    disk = memory_disk()
    large = b"b" * (3 * STEP_BYTES)
    _, block = closed_block(disk, b"a", large, b"c")
    stub = write_archive(disk, block, chunk_bytes=STEP_BYTES)
    assert [each.length > 3 * STEP_BYTES for each in stub.chunks] == [False, True, False]
    assert check(disk, ArchiveFiles.of(block.path).stub).batches == 3


@pytest.mark.parametrize("at", [5, 40, 100, 1000, -2])
def test_a_damaged_block_is_not_archived(at: int) -> None:
    """The error says where, and no zip is left."""
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    file = disk.open(block.path)
    position = at % block.length
    file.pwrite([bytes([file.pread(position, 1)[0] ^ 1])], position)
    with pytest.raises(CorruptData) as caught:
        write_archive(disk, block)
    offset = int(caught.value.details["offset"])
    assert offset <= position < offset + 500
    assert [name for name in disk.listdir(DIRECTORY) if "zip" in name or "arch" in name] == []


def test_a_block_that_is_shorter_than_it_should_be_is_not_archived() -> None:
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    disk.open(block.path).truncate(block.length - 3)
    with pytest.raises(CorruptData):
        write_archive(disk, block)


def test_a_zip_that_is_not_what_was_written_is_found_before_it_gets_its_name() -> None:
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    writer = ArchiveWriter(disk, block.path, 0, block.end_offset, chunk_bytes=1024)
    while writer.check is None:
        writer.step()
    path = ArchiveFiles.of(block.path).zip
    file = disk.open(path.with_name(path.name + ".tmp"))
    file.pwrite([b"\xff"], 60)
    with pytest.raises(CorruptData):
        run(writer)
    writer.close()
    assert not any("zip" in name for name in disk.listdir(DIRECTORY))


def test_a_changed_byte_anywhere_in_a_zip_is_found() -> None:
    """In a chunk, a header, the description or the directory."""
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    write_archive(disk, block)
    files = ArchiveFiles.of(block.path)
    check(disk, files.stub)
    file = disk.open(files.zip)
    for part in range(0, 100, 3):
        at = disk.size(files.zip) * part // 100
        right = file.pread(at, 1)
        file.pwrite([bytes([right[0] ^ 16])], at)
        with case(part), pytest.raises(CorruptData):
            check(disk, files.stub)
        file.pwrite([right], at)
    check(disk, files.stub)


def test_a_zip_that_is_too_short_or_too_long_is_found() -> None:
    for change in (-1, 1):
        disk = memory_disk()
        _, block = closed_block(disk, *PAYLOADS)
        write_archive(disk, block)
        files = ArchiveFiles.of(block.path)
        disk.open(files.zip).truncate(disk.size(files.zip) + change)
        with pytest.raises(CorruptData):
            check(disk, files.stub)


def test_a_stub_of_another_block_does_not_fit() -> None:
    """Its numbers are compared with those of the batches."""
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    stub = write_archive(disk, block)
    path = ArchiveFiles.of(block.path).stub
    values = json.loads(stub.to_bytes())
    values["messages"] += 1
    values.pop("crc")
    text = json.dumps(values)
    from vq.store.records.checked_text import checksum

    disk.write_atomic(path, json.dumps({**values, "crc": checksum(text)}).encode())
    with pytest.raises(CorruptData, match="not those"):
        check(disk, path)


def test_a_block_is_written_from_its_archive_again() -> None:
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    raw = disk.read_bytes(block.path)
    write_archive(disk, block)
    files = ArchiveFiles.of(block.path)
    disk.unlink(files.block)
    writer = BlockWriter(disk, files.stub)
    while not writer.done:
        writer.step()
    assert not disk.exists(files.block)
    writer.place()
    writer.close()
    assert disk.read_bytes(files.block) == raw


def test_a_block_of_a_damaged_archive_is_not_written() -> None:
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    write_archive(disk, block)
    files = ArchiveFiles.of(block.path)
    disk.unlink(files.block)
    disk.open(files.zip).pwrite([b"\0\0\0"], 70)
    writer = BlockWriter(disk, files.stub)
    with pytest.raises(CorruptData):
        run(writer)
    writer.close()
    assert disk.listdir(DIRECTORY) == sorted(
        ["checkpoint", files.index.name, files.stub.name, files.zip.name]
    )


def test_an_empty_or_a_huge_block_is_refused() -> None:
    disk = memory_disk()
    _, block = closed_block(disk, *PAYLOADS)
    for end in (0, 4 << 30):
        with pytest.raises(InvalidState, match="bytes"):
            ArchiveWriter(disk, block.path, 0, end)


def test_a_real_disk_does_the_same(tmp_path: Path) -> None:
    disk = RealDisk()
    log = open_log(disk, tmp_path / "orders" / "0", config=LogConfig())
    for payload in PAYLOADS:
        append(log, payload)
    log.roll()
    flush(log)
    block = blocks_of(log)[0]
    write_archive(disk, block)
    files = ArchiveFiles.of(block.path)
    assert check(disk, files.stub).batches == 10
    assert zipfile.ZipFile(files.zip).testzip() is None
    assert zlib.crc32(files.block.read_bytes()) == zlib.crc32(
        b"".join(
            zipfile.ZipFile(files.zip).read(name)
            for name in zipfile.ZipFile(files.zip).namelist()
            if name.startswith("block/")
        )
    )
    log.close()
