"""Cutting a log back to where a newer master's log parts from it; what is cut is kept and told.

A node that led, or followed a master that is gone, may hold batches that its group never committed.
Before it follows the present master it cuts them (``broker.partition.replica_rules.common_end``
finds where). They go to files beside the log, each named by the offset of its first byte:

    0000000000004212.diverged        log bytes from offset 4212 on, as they were
    0000000000004212.diverged-1      the same, of a later cut at the same place

Such a file is part of no log. Retention does not delete it; an operator reads it and removes it.
So it is with what a start takes off the end of a log (``recovery``), which is listed here, too:

    0000000000000000.cut-4212        log bytes from offset 4212 on, of the block that begins at 0

``cut_back`` works on a log that nobody has open. A crash at any point leaves a log that opens: it
ends at the cut, or at a batch behind it, and cutting again does the rest. An archive that the cut
concerns is restored first.
"""

import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vq.errors import CorruptData, InvalidArgument
from vq.store.archive.archive import Archive, ArchiveFiles
from vq.store.archive.archive_place import drop_archive
from vq.store.archive.archive_writer import BlockWriter
from vq.store.archive.archived_file import open_stored, read_archive, stored_length
from vq.store.disk.disk import Disk
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.manifest import HeldAs, ManifestEntry
from vq.store.records.batches import read_headers
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    BLOCK_SUFFIX,
    CHECKPOINT_NAME,
    CUT_MARK,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    OFFSET_DIGITS,
    BatchHeader,
    block_name,
    parse_name,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.producers import ProducerTable, Records

DIVERGED_MARK: Final = ".diverged"
_CUT_NAME: Final = re.compile(
    rf"(?P<block>\d{{{OFFSET_DIGITS}}})"
    rf"(?:{re.escape(DIVERGED_MARK)}|{re.escape(CUT_MARK)}(?P<start>\d{{1,20}}))(?:-\d+)?"
)


@dataclass(frozen=True, slots=True)
class Diverged:
    """A file of bytes that were cut from a log.

    Attributes:
        path: The file.
        at_start: A start took them for the end of a write that a crash had cut short. They may be
            damaged.
        start_offset: Of its first byte, which begins a batch.
        end_offset: Behind its last whole batch; ``at_start`` without one: behind its last byte.
        batches: How many it has.
        messages: In these; control records not counted.
        first_epoch: Master epoch of the first batch.
        last_epoch: That of the last one.
        first_append_ms: Append time of the first batch (ms since 1970 UTC).
        last_append_ms: That of the last one.
    """

    path: Path
    at_start: bool
    start_offset: int
    end_offset: int
    batches: int
    messages: int
    first_epoch: int
    last_epoch: int
    first_append_ms: int
    last_append_ms: int


def diverged(directory: Path, disk: Disk, *, known: Collection[Diverged] = ()) -> list[Diverged]:
    """Return the files of cut bytes beside the log in ``directory``, by offset.

    Such a file never changes, so one that is ``known`` is not read again.

    Raises:
        OSError: The disk cannot deliver them.
    """
    try:
        names = disk.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in sorted(names):
        named = _CUT_NAME.fullmatch(name)
        if named is None:
            continue  # another file, or one that is written half
        path = directory / name
        before = next((each for each in known if each.path == path), None)
        at_start = named["start"] is not None
        offset = int(named["start"] if at_start else named["block"])
        found.append(before or _describe(path, offset, disk, at_start=at_start))
    return sorted(found, key=lambda each: each.start_offset)


def cut_back(directory: Path, offset: int, *, topic_id: str, disk: Disk) -> list[Diverged]:
    """Have the log in ``directory`` end at ``offset``; return files with what followed, by offset.

    It blocks, so call it on a lane. The headers of all batches before the offset are read once, to
    know who wrote the last ones; but not of archives that stay, the stubs of which tell enough.

    Args:
        directory: Of a log that was opened and closed since the last crash.
        offset: Where a batch begins, or where the log ends.
        topic_id: Of the topic.
        disk: The disk.

    Raises:
        InvalidArgument: No batch begins there; nothing was changed.
        CorruptData: A batch before the offset is damaged, or there is no checkpoint of this topic;
            nothing was changed.
        OSError: The disk failed, or is full. Open the log, close it, and cut again.
    """
    return _Cut(directory, topic_id, disk).run(offset)


class _Cut:
    """One cut of one log; ``run`` is called once."""

    def __init__(self, directory: Path, topic_id: str, disk: Disk) -> None:
        self.directory = directory
        self.disk = disk
        self.checkpoint = Checkpoint.from_bytes(disk.read_bytes(directory / CHECKPOINT_NAME))
        if self.checkpoint.topic_id != topic_id:
            raise CorruptData(
                f"the checkpoint in {directory} is of topic id {self.checkpoint.topic_id}, not "
                f"{topic_id}"
            )
        first = self.checkpoint.start_offset
        names = disk.listdir(directory)
        found = {parse_name(n, suffix) for n in names for suffix in (BLOCK_SUFFIX, ARCHIVE_SUFFIX)}
        self.starts = sorted(start for start in found if start is not None and start >= first)
        self.kinds = {each.start_offset: each.kind for each in self.checkpoint.manifest or ()}

    def run(self, offset: int) -> list[Diverged]:
        """See ``cut_back``."""
        checkpoint = self._checkpoint_at(offset)
        restored = [start for start in self._archives() if self._end(start) > offset]
        for start in restored:
            self._restore(start)
        if restored:  # the last block that stays is a file now
            checkpoint = replace(checkpoint, manifest=self._manifest(offset))
        # From here on, recovery needs nothing at or behind the offset.
        self.disk.write_atomic(self.directory / CHECKPOINT_NAME, checkpoint.to_bytes())
        for start in self.starts:
            if self.kinds.get(start) is not HeldAs.ARCHIVE:  # perhaps left over from a crash
                self._drop_archive(start)
        kept = [start for start in self.starts if start < offset]
        files: list[tuple[Path, int]] = []
        for start in reversed(self.starts[len(kept) :]):  # what is left has no gap at any time
            files += self._move_aside(start)
        if kept:
            files += self._cut_tail(kept[-1], offset)
        return [
            _describe(path, start, self.disk, at_start=False) for path, start in reversed(files)
        ]

    def _checkpoint_at(self, offset: int) -> Checkpoint:
        """Return the checkpoint of a log that ends at ``offset``."""
        was = self.checkpoint
        known = ProducerTable.from_bytes(was.producers)
        producers = known.before(was.start_offset)
        messages, epoch, time = was.start_messages, 0, 0
        position, index = was.start_offset, b""
        is_read = True
        for start in self.starts:
            if start >= offset or start != position:
                break
            archive = self._whole_archive(start, offset)
            if archive is not None:
                messages += archive.messages
                epoch, time = archive.epochs[-1][0], archive.last_ms
                position, index, is_read = archive.end_offset, b"", False
                for at, stamp, records in known.batches():
                    if start <= at < position:
                        producers.record(stamp, at, records)
                continue
            before = messages
            found = OffsetIndex(start, messages_before=messages)
            for header in self._headers(start):
                if header.start_offset >= offset:
                    break
                found.maybe_add(header.start_offset, messages - before, header.append_time_ms)
                if header.producer_id:
                    records = Records(header.record_count, header.records_mark)
                    producers.record(header.stamp, header.start_offset, records)
                messages += header.record_count
                epoch, time = header.master_epoch, header.append_time_ms
                position = header.end_offset
            index = found.to_bytes(end_offset=position, messages=messages - before)
        if not is_read and any(
            stamp.producer_id not in producers for _, stamp, _ in known.batches()
        ):
            producers.forgot = True  # what it wrote in archives is not known
        if position != offset:
            raise InvalidArgument(
                f"no batch of the log in {self.directory} begins at offset {offset}; the last one "
                f"before it ends at {position}; nothing was cut"
            )
        return Checkpoint(
            topic_id=was.topic_id,
            start_offset=was.start_offset,
            offset=offset,
            start_messages=was.start_messages,
            messages=messages,
            first_number=was.first_number,
            append_time_ms=time,
            epoch=epoch,
            sealed=was.sealed and offset >= was.offset,
            index=index,
            producers=producers.to_bytes(),
            manifest=self._manifest(offset),
        )

    def _manifest(self, offset: int) -> tuple[ManifestEntry, ...]:
        kinds = self.kinds
        return tuple(
            ManifestEntry(start, kinds.get(start, HeldAs.BLOCK))
            for start in self.starts
            if start < offset
        )

    # Archives -----------------------------------------------------------------------------------
    def _archives(self) -> list[int]:
        return [start for start, kind in self.kinds.items() if kind is HeldAs.ARCHIVE]

    def _end(self, start: int) -> int:
        return start + stored_length(self.disk, self._path(start))

    def _whole_archive(self, start: int, offset: int) -> Archive | None:
        """Return the archive of a block that stays as a whole: its stub tells enough.

        To read terabytes of archives, perhaps from another machine, takes hours, and the partition
        would not be copied meanwhile.

        Raises:
            CorruptData: It does not reach to the next block.
            OSError: The stub cannot be read.
        """
        if self.kinds.get(start) is not HeldAs.ARCHIVE:
            return None
        archive = read_archive(self.disk, ArchiveFiles.of(self._path(start)).stub)
        if archive.end_offset > offset:
            return None
        following = next((each for each in self.starts if each > start), self.checkpoint.offset)
        if archive.end_offset < following:
            raise CorruptData(
                f"the archive of {self._path(start)} ends at offset {archive.end_offset}; nothing "
                "was cut",
                details={"offset": archive.end_offset},
            )
        return archive

    def _restore(self, start: int) -> None:
        """Write the block file of an archive that is cut, beside it."""
        if not self.disk.exists(self._path(start)):
            writer = BlockWriter(self.disk, ArchiveFiles.of(self._path(start)).stub)
            try:
                while not writer.done:
                    writer.step()
                writer.place()
            finally:
                writer.close()
        self.kinds[start] = HeldAs.BLOCK

    def _drop_archive(self, start: int) -> None:
        drop_archive(self.disk, ArchiveFiles.of(self._path(start)).stub)

    def _headers(self, start: int) -> Iterator[BatchHeader]:
        """Yield the headers of a block.

        Raises:
            CorruptData: They stop before the next block begins, or before the checkpoint.
        """
        end = start
        for header in _headers_of(self._path(start), start, self.disk):
            yield header
            end = header.end_offset
        following = next((each for each in self.starts if each > start), self.checkpoint.offset)
        if end < following:
            raise CorruptData(
                f"{self._path(start)} has no batch at offset {end}; nothing was cut",
                details={"offset": end},
            )

    def _move_aside(self, start: int) -> list[tuple[Path, int]]:
        """Move a block aside, or delete one without a batch."""
        path = self._path(start)
        self._drop_index(start)
        moved = []
        if next(_headers_of(path, start, self.disk), None) is None:
            self.disk.unlink(path)
        else:
            moved = [(self._free_name(start), start)]
            self.disk.rename(path, moved[0][0])
        self.disk.sync_directory(self.directory)
        return moved

    def _cut_tail(self, start: int, offset: int) -> list[tuple[Path, int]]:
        """Keep what a block holds from ``offset`` on in a file of its own, and cut it off."""
        path = self._path(start)
        if self._end(start) == offset:
            return []
        size = self.disk.size(path)
        self._drop_index(start)
        self.disk.sync_directory(self.directory)
        file = self.disk.open(path)
        try:
            rest = file.pread(offset - start, size - (offset - start))
            rest = rest[: max(self._whole(path, start) - offset, len(rest.rstrip(b"\0")))]
            saved = []
            if rest:
                saved = [(self._free_name(offset, rest), offset)]
                self.disk.write_atomic(saved[0][0], rest)
            file.truncate(offset - start)
            file.datasync()
        finally:
            file.close()
        return saved

    def _whole(self, path: Path, start: int) -> int:
        """Return where the last batch of a block ends; it may end in zeros itself."""
        end = start
        for header in _headers_of(path, start, self.disk):
            end = header.end_offset
        return end

    def _drop_index(self, start: int) -> None:
        """Delete the indexes: other batches of the same lengths may follow; they would fit them."""
        for suffix in (INDEX_SUFFIX, KEYS_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(self._path(start).with_suffix(suffix))

    def _free_name(self, start: int, content: bytes | None = None) -> Path:
        """Return a name that is free, or that of a file with this very content."""
        base = f"{start:0{OFFSET_DIGITS}d}{DIVERGED_MARK}"
        number = 0
        while True:
            path = self.directory / (f"{base}-{number}" if number else base)
            if not self.disk.exists(path) or self.disk.read_bytes(path) == content:
                return path
            number += 1

    def _path(self, start: int) -> Path:
        return self.directory / block_name(start)


def _headers_of(path: Path, start: int, disk: Disk) -> Iterator[BatchHeader]:
    """Yield the headers of the batches in a file of log bytes, up to the first byte that is none.

    Args:
        path: The file.
        start: Offset of its first byte.
        disk: The disk.
    """
    file = open_stored(disk, path)
    try:
        with contextlib.suppress(CorruptData):
            yield from read_headers(file.pread, start, start, start + file.size(), path.name)
    finally:
        file.close()


def _describe(path: Path, start: int, disk: Disk, *, at_start: bool) -> Diverged:
    headers = list(_headers_of(path, start, disk))
    first = headers[0] if headers else None
    last = headers[-1] if headers else None
    end = start + disk.size(path) if at_start else start
    return Diverged(
        path=path,
        at_start=at_start,
        start_offset=start,
        end_offset=last.end_offset if last else end,
        batches=len(headers),
        messages=sum(each.record_count for each in headers),
        first_epoch=first.master_epoch if first else 0,
        last_epoch=last.master_epoch if last else 0,
        first_append_ms=first.append_time_ms if first else 0,
        last_append_ms=last.append_time_ms if last else 0,
    )
