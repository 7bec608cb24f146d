"""Reads the blocks of a partition from its directory as docs/formats.md describes them.

It follows the document and does not use vq's code, so that independent code checks the files of a
fault run.
"""

import hashlib
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

_RECORD = struct.Struct(">I4sQI")  # length, checksum, id, flag
_COVERED_AT = 8
_CONTROL = struct.Struct(">BBHIQQIIQQQQI")
_TAG, _PROPERTIES, _CONTROL_BIT = 1, 2, 4


@dataclass
class PartitionFiles:
    """The content of the blocks of one partition.

    Attributes:
        messages: (offset, payload) in rising order.
        batches: (start, end) of every batch.
        end: The end of the last whole batch.
        damage: Descriptions of invalid bytes; space allocated ahead (zeros) is no damage.
        cut: Names of side files that recovery left.
    """

    messages: list[tuple[int, bytes]] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    damage: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)


def read_partition(directory: Path) -> PartitionFiles:
    """Return what the blocks in ``directory`` hold; an empty result if there are none.

    Archives beside the log count; where there is a block file, too, that one does.
    """
    found = PartitionFiles()
    if not directory.is_dir():
        return found
    found.cut = sorted(path.name for path in directory.iterdir() if ".cut-" in path.name)
    files = {
        path.stem: path for suffix in ("zip", "block") for path in directory.glob(f"*.{suffix}")
    }
    blocks = [path for _, path in sorted(files.items())]
    if blocks:
        found.end = int(blocks[0].stem)
    for path in blocks:
        start = int(path.stem)
        if start != found.end:
            found.damage.append(f"{path.name} begins at {start}, the log before ends {found.end}")
            found.end = start
        _read_block(_unzipped(path) if path.suffix == ".zip" else path.read_bytes(), start, found)
    return found


def _unzipped(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("block/"))
        return b"".join(map(archive.read, names))


def _read_block(data: bytes, start: int, found: PartitionFiles) -> None:
    position = 0
    while any(data[position : position + _RECORD.size]):
        size = _read_batch(data, position, start, found)
        if not size:
            found.damage.append(f"no batch at offset {start + position}")
            return
        found.batches.append((start + position, start + position + size))
        position += size
        found.end = start + position
    if any(data[position:]):
        found.damage.append(f"zeros at offset {start + position}, and more behind them")


def _read_batch(data: bytes, position: int, block_start: int, found: PartitionFiles) -> int:
    """Take one batch; return its size, 0 if there is none."""
    whole = _record(data, position)
    if whole is None or whole[1] != _CONTROL_BIT or len(whole[0]) != _CONTROL.size:
        return 0
    version, _, _, _, start, _, size, count, *_ = _CONTROL.unpack(whole[0])
    if version != 1 or start != block_start + position:
        return 0
    messages = []
    at = position + _RECORD.size + _CONTROL.size
    while at < position + size:
        record = _record(data, at)
        if record is None:
            return 0
        body, flag = record
        messages.append((block_start + at, _payload(body, flag)))
        at += _RECORD.size + len(body)
    if at != position + size or len(messages) != count:
        return 0
    found.messages += messages
    return int(size)


def _record(data: bytes, position: int) -> tuple[bytes, int] | None:
    """Return body and flag of the record at ``position`` if its checksum holds."""
    if position + _RECORD.size > len(data):
        return None
    length, checksum, _, flag = _RECORD.unpack_from(data, position)
    body = data[position + _RECORD.size : position + _RECORD.size + length]
    covered_at = position + (_RECORD.size if flag == _CONTROL_BIT else _COVERED_AT)
    covered = data[covered_at : position + _RECORD.size + length]
    if len(body) != length or hashlib.md5(covered).digest()[:4] != checksum:
        return None
    return body, flag


def _payload(body: bytes, flag: int) -> bytes:
    for bit in (_TAG, _PROPERTIES):
        if flag & bit:
            body = body[4 + int.from_bytes(body[:4], "big") :]
    return body
