"""Bytes put back into a block, so that recovery can do the rest after a crash.

``put_back`` replaces whole batches of one block, in steps after each of which a crash may come:

1. The damaged bytes go to a file of their own, ``<offset>.damaged``.
2. The intact ones go to ``<offset>.repair``.
3. They are written to the block and made durable.
4. ``<offset>.repair`` is deleted.

Before step 2 is done the log has its old bytes. Behind it, recovery does steps 3 and 4 again
(``finish_repairs``).

A ``.repair`` file:

    | at | size | field                                     |
    |  0 |  4   | magic "vqrp"                              |
    |  4 |  4   | version, 1                                |
    |  8 |  8   | start offset of the block                 |
    | 16 |  8   | offset of the first byte                  |
    | 24 |      | whole batches                             |
    | .. |  4   | CRC-32C of everything before              |

A ``.damaged`` file has the bytes as they were; retention does not delete it.

Not in here: whether the bytes are the right ones (``repair``).
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import google_crc32c

from vq.store.archive.archive import ArchiveFiles
from vq.store.disk.disk import Disk
from vq.store.records.format import DAMAGED_MARK, OFFSET_DIGITS, block_name

REPAIR_SUFFIX: Final = ".repair"
_MAGIC: Final = b"vqrp"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # version
    "Q"  # start offset of the block
    "Q"  # offset of the first byte
)
_CRC_BYTES: Final = 4


def put_back(disk: Disk, path: Path, block_start: int, start: int, data: bytes) -> Path | None:
    """Write whole batches to ``start`` in a block; return the file with what was there before.

    None: nothing was there. See the module's text for what a crash leaves.

    Raises:
        OSError: The disk failed, or an archive has the block by now. Done again, it does the rest.
    """
    path = ArchiveFiles.of(path).block
    saved = _keep(disk, path, block_start, start, len(data))
    repair = path.with_name(f"{start:0{OFFSET_DIGITS}d}{REPAIR_SUFFIX}")
    body = _HEAD.pack(_MAGIC, _VERSION, block_start, start) + data
    crc: int = google_crc32c.value(body)
    disk.write_atomic(repair, body + crc.to_bytes(_CRC_BYTES, "big"))
    _apply(disk, repair, path, start - block_start, data)
    return saved


def _apply(disk: Disk, repair: Path, path: Path, position: int, data: bytes) -> None:
    file = disk.open(path)
    try:
        file.pwrite([data], position)
        file.datasync()
    finally:
        file.close()
    disk.unlink(repair)
    disk.sync_directory(repair.parent)


def _keep(disk: Disk, path: Path, block_start: int, start: int, length: int) -> Path | None:
    file = disk.open(path)
    try:
        was = file.pread(start - block_start, length)
    except OSError:
        return None  # the medium does not deliver them
    finally:
        file.close()
    if not was.strip(b"\0"):
        return None
    target = _free_name(disk, path.parent, start, was)
    if not disk.exists(target):
        disk.write_atomic(target, was)
    return target


def _free_name(disk: Disk, directory: Path, start: int, content: bytes) -> Path:
    """Return a name that is free, or that of a file with this very content."""
    base, number = f"{start:0{OFFSET_DIGITS}d}{DAMAGED_MARK}", 0
    while True:
        path = directory / (f"{base}-{number}" if number else base)
        if not disk.exists(path) or disk.read_bytes(path) == content:
            return path
        number += 1


def finish_repairs(disk: Disk, directory: Path, names: Sequence[str]) -> list[str]:
    """Do the rest of repairs that a crash interrupted; return sentences for the operator."""
    notes = []
    for name in names:
        if not name.endswith(REPAIR_SUFFIX):
            continue
        path = directory / name
        body = disk.read_bytes(path)
        found = _decoded(body)
        block = directory / block_name(found[0]) if found else None
        if found is None or block is None or not disk.exists(block):
            disk.unlink(path)
            notes.append(f"{path} was removed: it cannot be used")
            continue
        block_start, start, data = found
        _apply(disk, path, block, start - block_start, data)
        notes.append(f"{block}: [{start}, {start + len(data)}) was repaired from another copy")
    return notes


def _decoded(body: bytes) -> tuple[int, int, bytes] | None:
    head, crc = body[:-_CRC_BYTES], body[-_CRC_BYTES:]
    if len(head) < _HEAD.size or google_crc32c.value(head) != int.from_bytes(crc, "big"):
        return None
    magic, version, block_start, start = _HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION or not block_start <= start:
        return None
    return block_start, start, head[_HEAD.size :]
