"""The manifest of a log: which files its bytes lie in, written down in every checkpoint.

A directory alone does not show whether a file is missing, was deleted by retention, or never
existed. The manifest does. It names every place in rising order: each ends where the next one
begins, the first begins at the log's start and the last holds the byte before the checkpoint's
offset, or is a log's first block of which no byte is vouched for yet.

    | size | field                                                            |
    |  1   | kind: 0 a block file in the log's directory, 1 an archive        |
    |  8   | start offset                                                     |

A checkpoint that names an archive has another version: an older vq does not know what that is.
Any other block that holds no bytes yet is not named: nothing is lost with it.
"""

import enum
import itertools
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from vq.errors import CorruptData

_ENTRY: Final = struct.Struct(">BQ")
MANIFEST_ENTRY_BYTES: Final = _ENTRY.size


class HeldAs(enum.IntEnum):
    """What holds the bytes of a place."""

    BLOCK = 0
    ARCHIVE = 1  # a zip, described by a stub in the log's directory (``archive``)


class ManifestEntry(NamedTuple):
    """One place: it holds the bytes from ``start_offset`` to that of the next entry."""

    start_offset: int
    kind: HeldAs = HeldAs.BLOCK


def pack_manifest(entries: Iterable[ManifestEntry]) -> bytes:
    """Return the bytes that the module's table shows."""
    return b"".join(_ENTRY.pack(entry.kind, entry.start_offset) for entry in entries)


def unpack_manifest(data: bytes) -> tuple[ManifestEntry, ...]:
    """Return what ``pack_manifest`` was given.

    Raises:
        CorruptData: It has a kind that this vq does not know, or its offsets do not rise.
    """
    try:
        fields = _ENTRY.iter_unpack(data)
        entries = tuple(ManifestEntry(start, HeldAs(kind)) for kind, start in fields)
    except (struct.error, ValueError) as error:
        raise CorruptData(f"a manifest cannot be read: {error}") from error
    for (before, _), (after, _) in itertools.pairwise(entries):
        if before >= after:
            raise CorruptData(f"a manifest falls from {before} to {after}")
    return entries
