"""Which files hold the blocks of a log that is opened: block files or archives; a table.

A block is archived, and restored, in steps after each of which a crash may come:

    archive:  zip beside its name → zip → stub → checkpoint that says "archive" → block file goes
    restore:  block beside its name → block file → checkpoint that says "block" → stub, zip go

So what the manifest of the last checkpoint says decides, if it is there and whole:

    | manifest | block file | archive | the block is in | what goes              |
    |----------|------------|---------|-----------------|------------------------|
    | block    | yes        | any     | the block file  | stub and zip           |
    | block    | no         | whole   | the archive     | –                      |
    | block    | no         | no      | nothing: gone   | –                      |
    | archive  | any        | whole   | the archive     | the block file         |
    | archive  | yes        | no      | the block file  | –                      |
    | archive  | no         | no      | nothing: gone   | –                      |
    | –        | yes        | any     | the block file  | –                      |
    | –        | no         | whole   | the archive     | –                      |
    | –        | no         | damaged | nothing: gone   | –                      |

An archive is *whole* if its stub is intact and its zip has the size that the stub says; a zip at a
URL is not looked at. A block file has its name only when it is whole; one that the medium has cut
counts as none where there is a whole archive. A zip without a stub is left over from the first
steps of archiving, and goes if the block is elsewhere. So does one at a URL: a note, written before
it, names it until the stub does.
"""

import contextlib
import enum
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from vq.store.archive import Archive, ArchiveFiles
from vq.store.archive_place import drop_archive, end_upload
from vq.store.archived_file import read_archive
from vq.store.disk import Disk
from vq.store.format import (
    ARCHIVE_SUFFIX,
    BLOCK_SUFFIX,
    DISCARD_SUFFIX,
    KEYS_SUFFIX,
    UPLOAD_SUFFIX,
    ZIP_SUFFIX,
    block_name,
    parse_name,
)
from vq.store.manifest import Kind

__all__ = ["Holder", "Holdings", "holder"]


class Holder(enum.Enum):
    """What holds the bytes of a block."""

    BLOCK = "the block file"
    ARCHIVE = "the archive"
    NOTHING = "nothing"


def holder(named: Kind | None, *, has_block: bool, has_archive: bool) -> Holder:
    """Return what holds a block, by the module's table.

    Args:
        named: What the manifest says; None: nothing.
        has_block: There is a block file.
        has_archive: There is a whole archive.
    """
    if has_archive and (named is Kind.ARCHIVE or not has_block):
        return Holder.ARCHIVE
    return Holder.BLOCK if has_block else Holder.NOTHING


class Holdings:
    """What lies in one directory, looked at once.

    Attributes:
        starts: Start offsets of all blocks of which a block file or a stub is there; rising.
        archives: Those that an archive holds; filled by ``settle``.
        why_gone: Why blocks are not there, by start offset.
        discards: Marks of zips elsewhere that are still to be removed.
        changed: What holds a block is not what the manifest says.
    """

    def __init__(self, disk: Disk, directory: Path, names: Sequence[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._blocks = _starts(names, BLOCK_SUFFIX)
        self._stubs = _starts(names, ARCHIVE_SUFFIX)
        self._zips = _starts(names, ZIP_SUFFIX)
        self._uploads = _starts(names, UPLOAD_SUFFIX)
        self.starts = sorted(self._blocks | self._stubs)
        self.archives: dict[int, Archive] = {}
        self.why_gone: dict[int, str] = {}
        self.discards = [directory / name for name in names if name.endswith(DISCARD_SUFFIX)]
        self.changed = False

    def settle(self, named: Mapping[int, Kind] | None) -> None:
        """Decide what holds each block; remove what is superfluous.

        Args:
            named: What the manifest says, by start offset; None: there is none.
        """
        for start in self._stubs:
            kind = None if named is None else named.get(start)
            archive = self._whole_archive(start)
            has_block = start in self._blocks and not self._is_cut(start, archive)
            found = holder(kind, has_block=has_block, has_archive=archive is not None)
            if found is Holder.ARCHIVE and archive is not None:
                self.archives[start] = archive
                if start in self._blocks and kind is Kind.ARCHIVE:
                    self._disk.unlink(self._files(start).block)
            elif found is Holder.NOTHING:
                self._blocks.discard(start)
            elif kind is Kind.BLOCK:
                self.remove_archive(start)
            self.changed |= kind is not None and found is not _EXPECTED[kind]
        for start, kind in (named or {}).items():
            if kind is Kind.ARCHIVE and start not in self._stubs:
                self.changed |= start in self._blocks
                self.why_gone[start] = self._files(start).stub.name
        for start in self._zips - self._stubs:
            if start in self._blocks or named is None or start not in named:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._files(start).zip)

        for start in self._uploads:
            files = self._files(start)
            if end_upload(self._disk, files.upload):
                self.discards.append(files.discard)

    def present(self) -> set[int]:
        """Return the blocks whose bytes are there, once it is settled."""
        return self._blocks | set(self.archives)

    def size(self, start: int) -> int:
        """Return how many bytes are there of a block; a block file may have more than the block."""
        archive = self.archives.get(start)
        return self._disk.size(self._files(start).block) if archive is None else archive.length

    def remove(self, start: int) -> None:
        """Remove all files of a block."""
        files = self._files(start)
        for path in (files.block, files.index, files.index.with_suffix(KEYS_SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
        self.remove_archive(start)
        for starts in (self._blocks, self._stubs, self._zips):
            starts.discard(start)

    def remove_archive(self, start: int) -> None:
        """Remove stub and zip of a block."""
        files = self._files(start)
        if drop_archive(self._disk, files.stub):
            self.discards.append(files.discard)

    def names_of(self, starts: Collection[int]) -> str:
        """Return the names of what should hold blocks and does not."""
        return ", ".join(self.why_gone.get(start, block_name(start)) for start in starts)

    def _whole_archive(self, start: int) -> Archive | None:
        path = self._files(start).stub
        try:
            archive = read_archive(self._disk, path)
        except OSError as error:
            self.why_gone[start] = f"{path.name} (it cannot be used: {error})"
            return None
        if archive.start_offset != start:
            self.why_gone[start] = f"{path.name} (it is of a block at {archive.start_offset})"
            return None
        return archive

    def _is_cut(self, start: int, archive: Archive | None) -> bool:
        """Whether a block file is shorter than its block: then the archive is all there is."""
        return archive is not None and self._disk.size(self._files(start).block) < archive.length

    def _files(self, start: int) -> ArchiveFiles:
        return ArchiveFiles.of(self._directory / block_name(start))


_EXPECTED = {Kind.BLOCK: Holder.BLOCK, Kind.ARCHIVE: Holder.ARCHIVE}


def _starts(names: Sequence[str], suffix: str) -> set[int]:
    return {start for start in (parse_name(name, suffix) for name in names) if start is not None}
