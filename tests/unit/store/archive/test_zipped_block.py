"""The block in a zip, read by who has no stub: every damage is found, and no other zip is taken."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import case
from support.store import append, blocks_of, flush, memory_disk, open_log, write_archive

from vq.errors import CorruptData
from vq.store.archive import zipped_block
from vq.store.archive.archive import ArchiveFiles
from vq.store.archive.zip_format import (
    LOCAL_HEADER_BYTES,
    ZipMember,
    directory,
    directory_in,
    members,
)
from vq.store.archive.zipped_block import WantedBlock, ZippedBlock

PAYLOADS = [b"%d" % n * 300 for n in range(10)]


class Zip:
    """A zip in memory; ``reads`` has what was read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def pread(self, position: int, length: int) -> bytes:
        self.reads.append((position, length))
        return self.data[position : position + length]

    def close(self) -> None:
        """Nothing is held."""


def made() -> tuple[bytes, bytes, WantedBlock]:
    """The bytes of a block of ten batches, those of its zip, and what is wanted."""
    disk = memory_disk()
    log = open_log(disk)
    for payload in PAYLOADS:
        append(log, payload)
    log.roll()
    flush(log)
    block = blocks_of(log)[0]
    raw = disk.read_bytes(block.path)
    write_archive(disk, block, topic_id="t1", partition=0)
    zipped = disk.read_bytes(ArchiveFiles.of(block.path).zip)
    return raw, zipped, WantedBlock("x.zip", len(zipped), "orders", 0, "t1", 0, len(raw))


RAW, ZIPPED, WANTED = made()


def test_a_range_is_read_in_whole_chunks() -> None:
    """From the chunk of its first byte up to that of its last one."""
    found = ZippedBlock(Zip(ZIPPED), WANTED)
    starts = [*found.starts, len(RAW)]
    assert len(starts) > 4
    for offset in range(0, len(RAW), 97):
        for size in (1, 500, 3_000, len(RAW)):
            start, data = found.read(offset, size)
            assert data == RAW[start : start + len(data)]
            assert start == max(each for each in starts if each <= offset)
            assert start + len(data) == min(
                each for each in starts if each >= min(offset + size, len(RAW))
            )
    for offset in (-1, len(RAW)):
        with pytest.raises(CorruptData, match="outside"):
            found.read(offset, 1)


def test_reading_on_takes_one_read_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one for the directory, if that is not large: an object store takes some time for each."""
    zipped = Zip(ZIPPED)
    found = ZippedBlock(zipped, WANTED)
    found.read(0, len(RAW))
    assert len(zipped.reads) == 2  # the end, with the description; the chunks
    monkeypatch.setattr(zipped_block, "END_READ_BYTES", 30)
    zipped = Zip(ZIPPED)
    assert ZippedBlock(zipped, WANTED).read(0, len(RAW)) == (0, RAW)
    assert len(zipped.reads) == 4


def test_damage_at_any_place_gives_an_error_or_the_right_bytes() -> None:
    """Fields that nobody needs, such as times, may be anything."""
    for at in range(len(ZIPPED)):
        data = bytearray(ZIPPED)
        data[at] ^= 0x41
        with case(at), contextlib.suppress(CorruptData):
            assert ZippedBlock(Zip(bytes(data)), WANTED).read(0, len(RAW)) == (0, RAW)


def test_a_zip_that_is_cut_short_or_longer_is_refused() -> None:
    for data in (b"", ZIPPED[:-1], ZIPPED[: len(ZIPPED) // 2], ZIPPED[1:]):
        for size in (len(data), len(ZIPPED)):
            with pytest.raises(CorruptData):
                ZippedBlock(Zip(data), replace(WANTED, zip_bytes=size)).read(0, len(RAW))


@pytest.mark.parametrize(
    "other",
    [
        {"topic": "other"},
        {"partition": 1},
        {"topic_id": "t2"},
        {"start": 1, "end": len(RAW) + 1},
        {"end": len(RAW) - 1},
    ],
)
def test_the_zip_of_another_block_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(CorruptData):
        ZippedBlock(Zip(ZIPPED), replace(WANTED, **other))


names = st.text(st.characters(codec="ascii"), min_size=1, max_size=20)
sizes = st.integers(0, 2**32 - 1)


@given(st.lists(st.builds(ZipMember, names, sizes, sizes, sizes, sizes), max_size=5), st.binary())
def test_a_directory_is_read_as_it_was_written(found: list[ZipMember], before: bytes) -> None:
    data = directory(found, len(before))
    position, count = directory_in(data[-22:], len(before) + len(data))
    assert (position, count) == (len(before), len(found))
    assert members(data[:-22], count) == found
    for wrong in (count - 1, count + 1):
        with pytest.raises(CorruptData):
            members(data[:-22], wrong)
    assert all(each.data_at == each.at + LOCAL_HEADER_BYTES + len(each.name) for each in found)
