"""Putting intact batches of another copy where a log has damaged bytes; those are kept beside it.

    read_intact ──▶ network ──▶ check_intact ──▶ put_back ──▶ the block

``put_back`` and a crash within it: ``repair_file``. A block whose file is gone is written anew
(``new_block``).
"""

from collections.abc import Sequence
from pathlib import Path

from vq.errors import CorruptData
from vq.store.archive.archive import ArchiveFiles
from vq.store.archive.archived_file import open_stored, read_archive, read_stub
from vq.store.care.walk import BadRange, Walk
from vq.store.disk.disk import Disk
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.framing import check_frames
from vq.store.log.piece import Piece
from vq.store.records.batches import Order, read_batches, read_headers
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    BLOCK_SUFFIX,
    CHECKPOINT_NAME,
    CONTROL_BYTES,
    DROPPED_SUFFIX,
    BatchHeader,
    block_name,
    decode_control,
    parse_name,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.scan import LogFacts, verify


# On the side that has the bytes ------------------------------------------------------------------
def read_intact(
    disk: Disk, pieces: Sequence[Piece], start: int, max_bytes: int
) -> tuple[bytes, bytes]:
    """Return whole batches from ``start`` on, all of them verified, and the next control record.

    Args:
        disk: The disk.
        pieces: Where the bytes from ``start`` on lie; only the block that holds it is read.
        start: Where a batch begins.
        max_bytes: Return no more, but at least one batch.

    Returns:
        The batches, and the control record behind them; that is empty where the block ends.

    Raises:
        CorruptData: No intact batch begins there.
        OSError: The medium cannot deliver it.
    """
    piece = next((each for each in pieces if each.start <= start < each.end), None)
    if piece is None:
        raise CorruptData(f"offset {start} is not stored here", details={"offset": start})
    file = piece.open(disk)
    try:
        size = max(max_bytes, CONTROL_BYTES)
        data, found = read_batches(file.pread, piece.block_start, start, size, piece.end, Order())
    except CorruptData as error:
        raise CorruptData(f"{piece.path}: {error}", details=error.details) from error
    finally:
        file.close()
    end = found[-1].end_offset
    return data[: end - start], _control_behind(disk, piece.path, piece.block_start, end)


def _control_behind(disk: Disk, path: Path, block_start: int, offset: int) -> bytes:
    """Return the control record at ``offset``, in this block or the next one, if it is intact."""
    for start, block in ((block_start, path), (offset, path.with_name(block_name(offset)))):
        try:
            if start == offset:  # of an archive it is known without reading that
                return read_stub(disk, ArchiveFiles.of(block).stub).first
        except OSError:
            pass
        try:
            file = open_stored(disk, block)
        except OSError:
            continue
        try:
            record = file.pread(offset - start, CONTROL_BYTES)
            header = decode_control(record)
        except (OSError, CorruptData):
            continue
        finally:
            file.close()
        if header is not None and header.start_offset == offset:
            return record
    return b""


def batch_before(disk: Disk, path: Path, block_start: int, offset: int) -> tuple[int, bytes] | None:
    """Return where the batch that ends at ``offset`` of a block begins, and its control record.

    None: it is not in this block, or not intact.

    Raises:
        OSError: The medium cannot deliver what is before.
    """
    if offset == block_start:
        return None
    try:
        file = open_stored(disk, path)
    except FileNotFoundError:
        return None
    try:
        facts, index = LogFacts(), OffsetIndex(block_start)
        if verify(file, block_start, block_start, offset, facts, index) != offset:
            return None
        near = index.at_offset(offset - 1).offset
        *_, last = read_headers(file.pread, block_start, near, offset, path.name)
        return last.start_offset, file.pread(last.start_offset - block_start, CONTROL_BYTES)
    finally:
        file.close()


# On the side that lacks them ---------------------------------------------------------------------
def check_intact(
    disk: Disk, damage: BadRange, block_start: int, data: bytes, following: bytes, *, trusted: bool
) -> int:
    """Return where ``data`` ends, if it may replace the bytes from ``damage.start`` on.

    It may if it is whole intact batches that lie there, and joins what is around them. Two logs
    that have a batch of the same epoch at an offset are equal up to its end: at most one master
    leads in an epoch. So at the end of the damage, the control record that follows must be the same
    in both logs, or the checkpoint of this one ends there, too, with a batch of the same epoch.

    Args:
        disk: The disk.
        damage: The range; ``data`` begins where it begins and may end before it ends.
        block_start: Start offset of its block.
        data: Batches of another copy.
        following: The control record behind them in that copy.
        trusted: The other copy is known to be equal to this log up to the end of the damage.

    Raises:
        CorruptData: It may not.
        OSError: The medium cannot deliver what is around.
    """
    headers = check_frames(data, end_offset=damage.start, epoch=0, append_time_ms=0)
    end = headers[-1].end_offset if headers else damage.start
    if not headers or end > damage.end:
        raise CorruptData(
            f"{len(data)} bytes do not fit the damage [{damage.start}, {damage.end})",
            details={"offset": damage.start},
        )
    if end < damage.end:
        return end
    ours = _control_behind(disk, damage.path, block_start, damage.end)
    if ours and following and ours != following:
        raise CorruptData(
            f"behind offset {end} both copies differ", details={"offset": damage.start}
        )
    if not trusted and not (ours and ours == following) and not _is_promised(disk, damage, headers):
        raise CorruptData(
            f"nothing shows that both copies are equal up to {end}",
            details={"offset": damage.start},
        )
    return end


def _is_promised(disk: Disk, damage: BadRange, headers: Sequence[BatchHeader]) -> bool:
    """Whether the checkpoint of the log names the last of these batches as the last one of all."""
    checkpoint, last = _checkpoint_of(disk, damage.path.parent), headers[-1]
    if checkpoint is None or not checkpoint.epoch or checkpoint.offset != last.end_offset:
        return False
    was = checkpoint.epoch, checkpoint.append_time_ms
    return was == (last.master_epoch, last.append_time_ms)


def _checkpoint_of(disk: Disk, directory: Path) -> Checkpoint | None:
    try:
        return Checkpoint.from_bytes(disk.read_bytes(directory / CHECKPOINT_NAME))
    except (OSError, CorruptData):
        return None


# What a log in quarantine lacks ------------------------------------------------------------------
def find_damage(disk: Disk, directory: Path, x: int) -> list[BadRange]:
    """Return what is damaged, and what is gone, of a log that recovery could verify up to ``x``.

    Blocks before the one that holds ``x`` are compared by name and length only. The end of the log
    is known only from its checkpoint: what was appended later is not missed here.

    Raises:
        OSError: The medium cannot deliver it.
    """
    if not disk.exists(directory):
        return []
    names = disk.listdir(directory)
    found_names = [(parse_name(n, BLOCK_SUFFIX), parse_name(n, ARCHIVE_SUFFIX)) for n in names]
    starts = {s for pair in found_names for s in pair if s is not None}
    dropped = {start for n in names if (start := parse_name(n, DROPPED_SUFFIX)) is not None}
    needed = 0
    checkpoint = _checkpoint_of(disk, directory)
    if checkpoint is not None:
        needed = checkpoint.offset
        named = {entry.start_offset for entry in checkpoint.manifest or ()}
        starts = {s for s in starts if s in named or s >= needed} | (named - dropped)
    found: list[BadRange] = []
    ordered = sorted(starts)
    for at, start in enumerate(ordered):
        following = ordered[at + 1] if at + 1 < len(ordered) else None
        found += _damage_of(disk, directory / block_name(start), start, following, needed, x)
    return found


def _damage_of(
    disk: Disk, path: Path, start: int, following: int | None, needed: int, x: int
) -> list[BadRange]:
    """Return what is damaged of one block, which ends at ``following``, or at least ``needed``."""
    assert path.name.endswith(BLOCK_SUFFIX)
    end = max(needed, start) if following is None else following
    if not disk.exists(path):
        why = "its file is gone"
        try:
            read_archive(disk, ArchiveFiles.of(path).stub)
        except FileNotFoundError:
            pass
        except OSError as error:
            why = f"its archive cannot be used: {error}"
        else:
            return []
        return [BadRange(start, end, path, why)] if end > start else []
    size = disk.size(path)
    if following is not None and following <= x and size >= following - start:
        return []
    if following is None:
        end = max(end, start + size)
    begin = x if start < x < end else start
    walk = Walk(disk, [Piece(path, start, begin, end)])
    try:
        while not walk.done:
            walk.step()
    finally:
        walk.close()
    if following is not None:
        return walk.damage
    # Behind the last batch of a log there may be space taken ahead, or a torn tail.
    return [
        each._replace(end=min(each.end, needed)) if each.end == end else each
        for each in walk.damage
        if each.end < end or each.start < needed
    ]
