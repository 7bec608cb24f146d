"""Making an archive of a block, and checking one, in steps small enough to do beside other work.

``ArchiveWriter`` reads a block that does not change any more, verifies it batch by batch, and
writes the zip:

    block ──▶ batches verified ──▶ chunk of whole batches ──▶ deflated ──▶ zip, flushed
                                                                            │ read back
                                          stub ◀── digests are the same ◀── inflated

What is damaged is not archived. ``ArchiveCheck`` reads a zip as a whole: for the writer right
after, and for whoever wants to know later. ``BlockWriter`` makes a block file of an archive again.
A step blocks for one read, or for what it takes to compress a piece of a chunk; any thread may take
it.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from vq.errors import CorruptData, InvalidState
from vq.limits import KIB
from vq.store.archive.archive import (
    ARCHIVED_BLOCK_BYTES_MAX,
    CHUNK_BYTES,
    DESCRIPTION_NAME,
    DESCRIPTION_VERSION,
    EPOCHS_MAX,
    Archive,
    ArchiveFiles,
    Stub,
    ZipChunk,
    chunk_name,
)
from vq.store.archive.archive_place import ZipReader, ZipWriter, new_zip, open_zip
from vq.store.archive.archived_file import inflate, read_stub
from vq.store.archive.zip_format import ZipMember, directory, header
from vq.store.disk.disk import Disk, File
from vq.store.disk.new_block import NewBlock
from vq.store.records.batches import headers, verified
from vq.store.records.format import CONTROL_BYTES, BatchHeader, decode_control
from vq.store.records.scan import LogFacts

#: zlib's own choice. Level 3 takes two thirds of the time, and zips are a tenth larger (decision
#: 0058).
LEVEL: Final = 6
#: A chunk that does not shrink to this share is stored: every read of it would inflate it.
STORED_FROM: Final = 0.98
#: What one step compresses: a quarter of a millisecond, after which others get the processor.
PIECE_BYTES: Final = 64 * KIB
#: What one step verifies, unless a batch is larger: each batch takes about 3 µs of the interpreter.
STEP_BYTES: Final = 32 * KIB


class _Verified:
    """Verifies the batches of a block, one window of bytes after the other.

    Attributes:
        end: Of those verified so far.
    """

    def __init__(self, start_offset: int) -> None:
        self.facts = LogFacts()
        self.epochs: list[tuple[int, int]] = []
        self.end = start_offset
        self._batches: Iterator[BatchHeader] = iter(())

    def begin(self, data: bytes) -> None:
        """Have the next bytes of the block verified, from the end on."""
        self._batches = verified(data, self.end)

    def step(self) -> bool:
        """Verify some batches of the window; return whether there were any left.

        Raises:
            CorruptData: One is damaged.
        """
        facts, begin, end = self.facts, self.end, self.end
        epoch = self.epochs[-1][0] if self.epochs else -1
        for batch in self._batches:
            facts.take(batch)
            facts.messages += batch.record_count
            facts.batches += 1
            if batch.master_epoch > epoch:
                epoch = batch.master_epoch
                self.epochs.append((epoch, batch.start_offset))
            end = self.end = batch.end_offset
            if end - begin >= STEP_BYTES:
                return True
        return end > begin


class _Deflating:
    """Compresses a chunk piece by piece."""

    def __init__(self, data: bytes, level: int) -> None:
        self.data = data
        self.crc = 0
        self._at = 0
        self._packed: list[bytes] = []
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

    @property
    def done(self) -> bool:
        """Whether there is no further piece."""
        return self._at == len(self.data)

    def next(self) -> memoryview:
        """Compress the next piece, and return it."""
        piece = memoryview(self.data)[self._at : self._at + PIECE_BYTES]
        self._packed.append(self._deflater.compress(piece))
        self.crc = zlib.crc32(piece, self.crc)
        self._at += len(piece)
        return piece

    def end(self) -> bytes:
        """Return what is to be stored: the chunk as it is, if it hardly shrinks."""
        packed = b"".join([*self._packed, self._deflater.flush()])
        return self.data if len(packed) > len(self.data) * STORED_FROM else packed


class ArchiveWriter:
    """Writes the zip of one block; ``close`` it. Call ``step`` until ``done``, then ``place``.

    Args:
        disk: The disk.
        path: The block's file.
        start_offset, end_offset: Of the block.
        url: Where the zip goes; "": beside the block.
        about: What else the description in the zip tells.
        chunk_bytes: What a chunk has, unless a batch is larger; None: as much as is usual.
        level: Of zlib.

    Raises:
        InvalidState: The block is too large.
        OSError: A file cannot be opened or made.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        start_offset: int,
        end_offset: int,
        *,
        url: str = "",
        about: dict[str, Any] | None = None,
        chunk_bytes: int | None = None,
        level: int = LEVEL,
    ) -> None:
        length = end_offset - start_offset
        if not 0 < length <= ARCHIVED_BLOCK_BYTES_MAX:
            raise InvalidState(
                f"{path} has {length} bytes; blocks with 1 to {ARCHIVED_BLOCK_BYTES_MAX} are "
                "archived"
            )
        self.path = path
        self.done = False
        self.zip_bytes = 0
        self._disk = disk
        self._start = start_offset
        self._end = end_offset
        self._url = url
        self._about = about or {}
        self._chunk_bytes = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
        self._level = level
        self._verified = _Verified(start_offset)
        self._members: list[ZipMember] = []
        self._data = b""  # the window that is looked at,
        self._at = 0  # and its position in the block
        self._deflating: _Deflating | None = None
        self._block_sha = hashlib.sha256()
        self._zip_sha = hashlib.sha256()
        self._first = b""
        self.check: ArchiveCheck | None = None
        self._stub: Stub | None = None
        self._file: File | None = disk.open(path)
        try:
            self._zip: ZipWriter = new_zip(disk, path, url)
        except BaseException:
            self._file.close()
            raise

    @property
    def stub(self) -> Stub:
        """The stub, once all is written."""
        assert self._stub is not None
        return self._stub

    def step(self) -> int:
        """Do what comes next; return how many bytes of the block it was about.

        Raises:
            CorruptData: The block is damaged at ``details["offset"]``, or the zip is not what was
                written.
            OSError: A medium failed, or there is no space.
        """
        if self.check is not None:
            size = self.check.step()
            self.done = self.check.done
            return size
        if self._deflating is not None:
            return self._deflate(self._deflating)
        if self._at == self._end - self._start:
            self._end_zip()
            return 0
        return self._verify()

    def _read(self) -> None:
        """Read the next window, or a batch that is larger."""
        assert self._file is not None
        rest = self._end - self._start - self._at
        data = self._file.pread(self._at, min(rest, self._chunk_bytes))
        first = next(headers(data, self._start + self._at), None)
        if first is not None and len(data) < first.byte_length <= rest:
            data = self._file.pread(self._at, first.byte_length)
        self._data = data
        self._verified.begin(data)

    def _verify(self) -> int:
        """Verify the next batches of the window; compress them when there are no more."""
        try:
            if not self._data:
                self._read()
            if self._verified.step():
                return 0
            reached = self._verified.end - self._start - self._at
            if not reached:
                raise CorruptData("a batch goes on behind the end", details={"offset": self._at})
        except CorruptData as error:
            raise CorruptData(
                f"{self.path} is not archived: {error}",
                details={"offset": self._verified.end},
            ) from error
        self._deflating = _Deflating(self._data[:reached], self._level)
        return 0

    def _deflate(self, chunk: _Deflating) -> int:
        """Compress the next piece of a chunk; write the chunk when there is none."""
        if not chunk.done:
            self._block_sha.update(chunk.next())
            return 0
        if not self._members:
            self._first = chunk.data[:CONTROL_BYTES]
        self._add(chunk_name(self._at), chunk)
        self._at += len(chunk.data)
        self._data, self._deflating = b"", None
        return len(chunk.data)

    def _add(self, name: str, chunk: _Deflating) -> None:
        packed = chunk.end()
        member = ZipMember(name, self.zip_bytes, len(packed), len(chunk.data), chunk.crc)
        self._members.append(member)
        self._write(header(member))
        self._write(packed)

    def _write(self, data: bytes) -> None:
        self._zip.write(data)
        self._zip_sha.update(data)
        self.zip_bytes += len(data)

    def _end_zip(self) -> None:
        """Write what ends the zip, and begin to read it back."""
        facts, epochs = self._verified.facts, self._verified.epochs
        if len(epochs) > EPOCHS_MAX:
            raise InvalidState(f"{self.path} has batches of {len(epochs)} epochs: not archived")
        first = decode_control(self._first)
        assert first is not None, "it was verified"
        chunks = [
            ZipChunk(start, member.length, member.data_at, member.size, member.crc)
            for start, member in _with_starts(self._members)
        ]
        description = _Deflating(self._describe(first), self._level)
        while not description.done:
            description.next()
        self._add(DESCRIPTION_NAME, description)
        self._write(directory(self._members, self.zip_bytes))
        self._zip.sync()
        archive = Archive(
            start_offset=self._start,
            length=self._end - self._start,
            url=self._url,
            zip_bytes=self.zip_bytes,
            zip_sha256=self._zip_sha.hexdigest(),
            block_sha256=self._block_sha.hexdigest(),
            messages=facts.messages,
            last_ms=facts.append_time_ms,
            first=first,
            epochs=tuple(epochs),
        )
        self._stub = Stub(archive, chunks, self._first)
        self.check = ArchiveCheck(self._stub, self._zip.reader())

    def _describe(self, first: BatchHeader) -> bytes:
        facts = self._verified.facts
        told = {
            "v": DESCRIPTION_VERSION,
            **self._about,
            "start_offset": self._start,
            "end_offset": self._end,
            "messages": facts.messages,
            "batches": facts.batches,
            "first_append_ms": first.append_time_ms,
            "last_append_ms": facts.append_time_ms,
            "sha256": self._block_sha.hexdigest(),
        }
        return (json.dumps(told, indent=1) + "\n").encode()

    def place(self) -> Stub:
        """Give the zip its name, durably; return the stub, which is not written yet."""
        assert self.done
        self._zip.place()
        return self.stub

    def close(self) -> None:
        """Give the files back; remove a zip that got no name. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        if self.check is not None:
            self.check.close()
        self._zip.discard()


def _with_starts(members: list[ZipMember]) -> list[tuple[int, ZipMember]]:
    starts = accumulate((member.length for member in members), initial=0)
    return list(zip(starts, members, strict=False))


class ArchiveCheck:
    """Reads a zip from front to back and compares it with its stub; ``close`` it.

    Attributes:
        done: All of it was read, and is as it should be.
        batches: How many were found intact.
    """

    def __init__(self, stub: Stub, reader: ZipReader) -> None:
        self.done = False
        self._stub = stub
        self._reader = reader
        self._number = 0
        self._at = 0
        self._data = b""
        self._verified = _Verified(stub.archive.start_offset)
        self._zip_sha = hashlib.sha256()
        self._block_sha = hashlib.sha256()

    @classmethod
    def of(cls, disk: Disk, stub_path: Path) -> "ArchiveCheck":
        """Return one for an archive that is there.

        Raises:
            OSError: It is not, or its stub is damaged.
        """
        stub = read_stub(disk, stub_path)
        return cls(stub, open_zip(disk, stub_path, stub.archive.url))

    @property
    def batches(self) -> int:
        """How many were found intact."""
        return self._verified.facts.batches

    def step(self) -> int:
        """Read the next chunk, or verify some of its batches; return how many bytes that were.

        Raises:
            CorruptData: The zip is not what the stub says; with ``details["offset"]`` where a batch
                is concerned.
            OSError: The medium, or the place, cannot deliver it.
        """
        if self._data:
            return self._verify()
        if self._number == len(self._stub.chunks):
            self._end()
            return 0
        chunk = self._stub.chunks[self._number]
        try:
            self._data = inflate(self._take(chunk.at + chunk.size)[-chunk.size :], chunk)
        except CorruptData as error:
            offset = self._stub.archive.start_offset + chunk.start
            raise CorruptData(str(error), details={"offset": offset}) from error
        self._verified.begin(self._data)
        return 0

    def _verify(self) -> int:
        chunk, begin = self._stub.chunks[self._number], self._verified.end
        if not self._verified.step():
            raise CorruptData(
                f"no intact batch is at offset {begin} of an archive", details={"offset": begin}
            )
        size = self._verified.end - begin
        at = self._verified.end - self._stub.archive.start_offset - chunk.start
        self._block_sha.update(memoryview(self._data)[at - size : at])
        if at == chunk.length:
            self._number += 1
            self._data = b""
        return size

    def _take(self, end: int) -> bytes:
        """Read the zip up to ``end``."""
        data = self._reader.pread(self._at, end - self._at)
        self._zip_sha.update(data)
        self._at += len(data)
        return data

    def _end(self) -> None:
        archive = self._stub.archive
        self._take(archive.zip_bytes + 1)
        if self._at != archive.zip_bytes:
            raise CorruptData(f"a zip has {self._at} bytes, not {archive.zip_bytes}")
        if self._zip_sha.hexdigest() != archive.zip_sha256:
            raise CorruptData("a zip has another digest than its stub says")
        if self._block_sha.hexdigest() != archive.block_sha256:
            raise CorruptData("the block in a zip has another digest than its stub says")
        facts, epochs = self._verified.facts, tuple(self._verified.epochs)
        told = (archive.messages, archive.last_ms, archive.epochs)
        if (facts.messages, facts.append_time_ms, epochs) != told:
            raise CorruptData("the batches in a zip are not those that its stub tells of")
        self.done = True

    def close(self) -> None:
        """Give the file back. May be called twice."""
        self._reader.close()


class BlockWriter:
    """Writes the block file of an archive beside its place; ``close`` it.

    Call ``step`` until ``done``, then ``place``.
    """

    def __init__(self, disk: Disk, stub_path: Path) -> None:
        self.done = False
        self._number = 0
        self._stub = read_stub(disk, stub_path)
        self._reader = open_zip(disk, stub_path, self._stub.archive.url)
        self._sha = hashlib.sha256()
        self._new = NewBlock(disk, ArchiveFiles.of(stub_path).block, mark=".restored")
        self._is_placed = False

    def step(self) -> int:
        """Write the next chunk; return how many bytes that were.

        Raises:
            CorruptData: The archive is damaged.
            OSError: A medium failed, or there is no space.
        """
        archive = self._stub.archive
        if self._number == len(self._stub.chunks):
            if self._sha.hexdigest() != archive.block_sha256:
                raise CorruptData("the block in a zip has another digest than its stub says")
            self.done = True
            return 0
        chunk = self._stub.chunks[self._number]
        data = inflate(self._reader.pread(chunk.at, chunk.size), chunk)
        self._sha.update(data)
        self._new.add(data)
        self._number += 1
        return len(data)

    def place(self) -> None:
        """Give the block its name, durably."""
        self._new.finish()
        self._is_placed = True

    def close(self) -> None:
        """Give the files back; remove a block that got no name. May be called twice."""
        self._reader.close()
        if not self._is_placed:
            self._is_placed = True
            self._new.discard()
