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
    | archive  | right      | not so  | the block file  | –                      |
    | archive  | yes        | no      | the block file  | –                      |
    | archive  | no         | no      | nothing: gone   | –                      |
    | –        | yes        | any     | the block file  | –                      |
    | –        | no         | whole   | the archive     | –                      |
    | –        | no         | damaged | nothing: gone   | –                      |

An archive is *whole* if its stub is intact and its zip has the size that the stub says; a zip at a
URL is not looked at. A block file has its name only when it is whole; one that the medium has cut
counts as none where there is a whole archive. Where both are there, digests are compared: somebody
may have put a block file back for a zip that is damaged. A block file is *right* if it has the
digest in the stub; it holds the block then, *not so* being a zip that has not its own digest, or
lies at a URL. Of two that are there and whole, one goes for good only if the block file is right;
else it is put aside, as ``….damaged``.

A zip without a stub is left over from the first steps of archiving, and goes if the block is
elsewhere. So does one at a URL: a note, written before it, names it until the stub does. If nothing
else has its block, it stays, and the block counts as gone until somebody unpacks it.
"""

import contextlib
import enum
import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from vq.limits import MIB
from vq.store.archive.archive import Archive, ArchiveFiles
from vq.store.archive.archive_place import drop_archive, end_upload
from vq.store.archive.archived_file import read_archive
from vq.store.disk.disk import Disk
from vq.store.log.block import PASSING_ERRNOS
from vq.store.log.manifest import HeldAs
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    BLOCK_SUFFIX,
    DAMAGED_MARK,
    DISCARD_SUFFIX,
    KEYS_SUFFIX,
    UPLOAD_SUFFIX,
    ZIP_SUFFIX,
    block_name,
    parse_name,
)

#: Bytes of a block file that are read at once for its digest.
_STEP_BYTES: Final = 1 * MIB


class Holder(enum.Enum):
    """What holds the bytes of a block."""

    BLOCK = "the block file"
    ARCHIVE = "the archive"
    NOTHING = "nothing"


def holder(
    named: HeldAs | None, *, has_block: bool, has_archive: bool, only_block: bool = False
) -> Holder:
    """Return what holds a block, by the module's table.

    Args:
        named: What the manifest says; None: nothing.
        has_block: There is a block file.
        has_archive: There is a whole archive.
        only_block: The block file is known to be right, and the archive is not.
    """
    if has_archive and not only_block and (named is HeldAs.ARCHIVE or not has_block):
        return Holder.ARCHIVE
    return Holder.BLOCK if has_block else Holder.NOTHING


class Holdings:
    """What lies in one directory, looked at once.

    Attributes:
        starts: Start offsets of all blocks of which a block file, a stub or a zip is there; rising.
        archives: Those that an archive holds; filled by ``settle``.
        why_gone: Why blocks are not there, by start offset.
        discards: Marks of zips elsewhere that are still to be removed.
        changed: What holds a block is not what the manifest says.
        notes: What was put aside.
    """

    def __init__(self, disk: Disk, directory: Path, names: Sequence[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._blocks = _starts(names, BLOCK_SUFFIX)
        self._stubs = _starts(names, ARCHIVE_SUFFIX)
        self._zips = _starts(names, ZIP_SUFFIX)
        self._uploads = _starts(names, UPLOAD_SUFFIX)
        self.starts = sorted(self._blocks | self._stubs | self._zips)
        self.notes: list[str] = []
        self.archives: dict[int, Archive] = {}
        self.why_gone: dict[int, str] = {}
        self.discards = [directory / name for name in names if name.endswith(DISCARD_SUFFIX)]
        self.changed = False

    def settle(self, named: Mapping[int, HeldAs] | None) -> None:
        """Decide what holds each block; remove what is superfluous.

        Args:
            named: What the manifest says, by start offset; None: there is none.
        """
        for start in self._stubs:
            kind = None if named is None else named.get(start)
            archive = self._whole_archive(start)
            has_block = start in self._blocks and not self._is_cut(start, archive)
            is_right = has_block and kind is not None and self._is_right(start, archive)
            found = holder(
                kind,
                has_block=has_block,
                has_archive=archive is not None,
                only_block=is_right
                and kind is HeldAs.ARCHIVE
                and not self._has_right_zip(start, archive),
            )
            if found is Holder.ARCHIVE and archive is not None:
                self.archives[start] = archive
                if start in self._blocks and kind is HeldAs.ARCHIVE:
                    block = self._files(start).block
                    if is_right:
                        self._disk.unlink(block)
                    else:
                        self._put_aside(block)
            elif found is Holder.NOTHING:
                self._blocks.discard(start)
            elif kind is HeldAs.BLOCK:
                if archive is not None and not is_right:
                    files = self._files(start)
                    self._put_aside(files.stub)
                    if not archive.url:
                        self._put_aside(files.zip)
                self.remove_archive(start)
            self.changed |= kind is not None and found is not _EXPECTED[kind]
        for start, kind in (named or {}).items():
            if kind is HeldAs.ARCHIVE and start not in self._stubs:
                self.changed |= start in self._blocks
                self.why_gone[start] = self._files(start).stub.name
        for start in self._zips - self._stubs:
            files = self._files(start)
            if start in self._blocks or (named is not None and start not in named):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(files.zip)
            else:
                self.why_gone[start] = (
                    f"{files.block.name} (its archive lacks its stub; to have it back: `unzip -p "
                    f"{files.zip.name} 'block/*' > {files.block.name}`)"
                )

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

    def _is_right(self, start: int, archive: Archive | None) -> bool:
        """Whether a block file has just the bytes that its archive was made of."""
        path = self._files(start).block
        return archive is not None and self._has(path, archive.length, archive.block_sha256)

    def _has_right_zip(self, start: int, archive: Archive | None) -> bool:
        """Whether a zip is proved to be as it was written; one at a URL is not looked at."""
        if archive is None or archive.url:
            return False
        return self._has(self._files(start).zip, archive.zip_bytes, archive.zip_sha256)

    def _has(self, path: Path, length: int, sha256: str) -> bool:
        """Whether a file begins with so many bytes of this digest."""
        digest, at = hashlib.sha256(), 0
        try:
            file = self._disk.open(path)
            try:
                while at < length:
                    data = file.pread(at, min(_STEP_BYTES, length - at))
                    if not data:
                        return False
                    digest.update(data)
                    at += len(data)
            finally:
                file.close()
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                raise
            return False
        return digest.hexdigest() == sha256

    def _put_aside(self, path: Path) -> None:
        target = put_aside(self._disk, path)
        self.notes.append(
            f"block file and archive differ: {path} was put aside as {target.name}; remove it when "
            "you have looked at it"
        )

    def _files(self, start: int) -> ArchiveFiles:
        return ArchiveFiles.of(self._directory / block_name(start))


_EXPECTED = {HeldAs.BLOCK: Holder.BLOCK, HeldAs.ARCHIVE: Holder.ARCHIVE}


def put_aside(disk: Disk, path: Path) -> Path:
    """Give a file or directory a name that nothing reads or removes; return it."""
    target, number = path.with_name(path.name + DAMAGED_MARK), 0
    while disk.exists(target):
        number += 1
        target = path.with_name(f"{path.name}{DAMAGED_MARK}-{number}")
    disk.rename(path, target)
    return target


def _starts(names: Sequence[str], suffix: str) -> set[int]:
    return {start for start in (parse_name(name, suffix) for name in names) if start is not None}
