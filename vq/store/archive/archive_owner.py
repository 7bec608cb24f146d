"""Which data directory owns an archive at a URL: only that one ever writes or removes it.

A copy of a data directory (a backup that is tried out, a disk that was cloned) has the stubs of the
original, and so the URLs of its zips. It may read them. So the directory of a node below a place
has an *owner* in its name, ``<node>.<owner>``, and a file says which owner a data directory is:

    @archives    {"v": 2, "owner": "8f0c…", "also": [], "before": [], "born": "4d1e…", "crc": "…"}

``born`` tells this file from each copy of it (``Disk.born``). A start that finds another value has
a directory that was copied or moved. Then it owns no archive that is there: its next zip gets a new
owner, and what it owned is in ``before``. An operator who knows that the original is gone says so
(``adopt``): what it owned is its own again, in ``also`` if the owner is new.

The file is written with the first zip at a URL. Threads: any.
"""

import contextlib
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from vq.errors import CorruptData, DirectoryRefused
from vq.log_lines import get_logger
from vq.store.archive.archive import owner_of
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk
from vq.store.records.checked_text import decode_text, encode_text

logger = get_logger(__name__)

ARCHIVES_NAME: Final = "@archives"  # no topic can have this name
_VERSION: Final = 2
#: What the zips of before this file belong to, whose URLs name no owner.
_NOBODY: Final = ""


@dataclass(frozen=True, slots=True)
class _Owned:
    """What the file says. ``owner`` is "" before there is one."""

    owner: str = ""
    also: Sequence[str] = field(default_factory=tuple)
    before: Sequence[str] = field(default_factory=tuple)

    def to_bytes(self, born: str) -> bytes:
        values: dict[str, Any] = {
            "owner": self.owner,
            "also": list(self.also),
            "before": list(self.before),
            "born": born,
        }
        return encode_text(_VERSION, values)

    def adopted(self) -> "_Owned":
        """Return it with all that was owned ever."""
        also = dict.fromkeys((*self.also, *self.before, _NOBODY))
        return replace(self, also=tuple(also), before=())

    def copied(self) -> "_Owned":
        """Return that of a copy, which owns nothing."""
        before = dict.fromkeys((*self.before, *self.also, self.owner))
        return _Owned(before=tuple(each for each in before if each))


class ArchiveOwner:
    """Which archives at URLs one data directory owns.

    Args:
        path: Of the file.
        disk: Where it is.
        owned: What it says of this directory.
    """

    def __init__(self, path: Path, disk: Disk, owned: _Owned) -> None:
        """Use ``ArchiveOwner.load``."""
        self._path = path
        self._disk = disk
        self._owned = owned
        self._lock = threading.Lock()

    @classmethod
    def load(cls, data: Path, disk: Disk, *, adopt: bool = False) -> "ArchiveOwner":
        """Return that of the data directory ``data``.

        Args:
            data: The directory.
            disk: Where it is.
            adopt: If it was copied or moved, the original is gone: it owns what that has owned.

        Raises:
            DirectoryRefused: A newer vq wrote the file.
            OSError: It cannot be read; or not be written, to ``adopt``.
        """
        path = data / ARCHIVES_NAME
        owned, is_own = _read(path, disk)
        if adopt:
            found = cls(path, disk, owned.adopted())
            if not is_own or owned != found._owned:
                found._save(found._owned)
            return found
        if not is_own:
            owned = owned.copied()
        if owned.before:
            logger.warning(
                "data directory was copied or moved, so the archives that it has at URLs are read "
                "and never removed; if the original is gone for good, start once with "
                "--adopt-archives",
                path=data,
                owners=owned.before,
            )
        return cls(path, disk, owned)

    def owns(self, url: str) -> bool:
        """Whether the zip at a URL may be written over, or removed."""
        owned = self._owned
        return owner_of(url) in {*owned.also, owned.owner or None}

    def own(self) -> str:
        """Return the owner in the URL of the next zip; durable before it is returned.

        Raises:
            OSError: It cannot be made durable.
        """
        with self._lock:
            if not self._owned.owner:
                self._save(replace(self._owned, owner=secrets.token_hex(8)))
            return self._owned.owner

    def _save(self, owned: _Owned) -> None:
        owned = owned if owned.owner else replace(owned, owner=secrets.token_hex(8))
        path, disk = self._path, self._disk
        # The file names what it is itself, so it is made before its bytes are known.
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(temporary)
        file = disk.open(temporary, create=True)
        try:
            file.pwrite([owned.to_bytes(disk.born(temporary))], 0)
            file.datasync()
        finally:
            file.close()
        disk.rename(temporary, path)
        disk.sync_directory(path.parent)
        self._owned = owned


def _read(path: Path, disk: Disk) -> tuple[_Owned, bool]:
    """Return what a file says, and whether it is that of this directory, not a copy."""
    if not disk.exists(path):
        return _Owned(), True
    try:
        version, values = decode_text(disk.read_bytes(path), version_max=_VERSION)
        if version > _VERSION:
            raise DirectoryRefused(
                f"{path} has version {version}; this vq knows up to {_VERSION}: run a newer vq"
            )
        lists = [tuple(map(str, values[name])) for name in ("also", "before")]
        owned, born = _Owned(str(values["owner"]), *lists), values["born"]
    except (CorruptData, KeyError, TypeError) as error:
        logger.warning(
            "cannot tell which archives this data directory owns, none of them is removed",
            path=path,
            error=error,
        )
        return _Owned(), True
    return owned, born == disk.born(path)
