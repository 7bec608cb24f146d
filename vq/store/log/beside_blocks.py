"""What lies beside the blocks of a log at a start: checkpoint, marks, files of a killed process."""

from pathlib import Path

from vq.errors import CorruptData, DirectoryRefused
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk
from vq.store.log.checkpoint import Checkpoint
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    BLOCK_SUFFIX,
    CHECKPOINT_NAME,
    DROPPED_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    parse_block_name,
)
from vq.store.records.producers import ProducerTable
from vq.store.records.scan import LogFacts


def remove_leftovers(disk: Disk, directory: Path) -> list[str]:
    """Remove half-written files and indexes without a block; return the other names."""
    names = disk.listdir(directory)
    kept = set(names)
    for name in names:
        bare = name.removesuffix(INDEX_SUFFIX)
        lost_index = bare != name and not kept & {bare + BLOCK_SUFFIX, bare + ARCHIVE_SUFFIX}
        if name.endswith(TEMPORARY_SUFFIX) or lost_index:
            disk.unlink(directory / name)
            kept.discard(name)
    # What is left of a block, wherever its bytes are, has a name with its digits.
    blocks = {name.partition(".")[0] for name in kept if not name.endswith(KEYS_SUFFIX)}
    for name in [each for each in kept if each.endswith(KEYS_SUFFIX)]:
        if name.removesuffix(KEYS_SUFFIX) not in blocks:
            disk.unlink(directory / name)
            kept.discard(name)
    return sorted(kept)


def marked(names: list[str]) -> set[int]:
    """Return the start offsets of blocks that are marked as dropped by retention."""
    bare = [name.removesuffix(DROPPED_SUFFIX) for name in names if name.endswith(DROPPED_SUFFIX)]
    starts = [parse_block_name(name + BLOCK_SUFFIX) for name in bare]
    return {start for start in starts if start is not None}


def read_checkpoint(
    disk: Disk, directory: Path, topic_id: str
) -> tuple[Checkpoint | None, list[str]]:
    path = directory / CHECKPOINT_NAME
    if not disk.exists(path):
        return None, []
    try:
        checkpoint = Checkpoint.from_bytes(disk.read_bytes(path))
    except CorruptData as error:
        return None, [
            f"{path} is unusable ({error}): the whole log was verified instead, but that the first "
            "blocks are there cannot be proved"
        ]
    if checkpoint.topic_id != topic_id:
        raise DirectoryRefused(
            f"{directory} belongs to topic id {checkpoint.topic_id}, not {topic_id}: another topic "
            "had this name; move the directory away"
        )
    return checkpoint, []


def first_number_of(checkpoint: Checkpoint) -> int | None:
    """Return the number of the log's first message ever; None: not known."""
    return checkpoint.first_number if checkpoint.start_offset else 0


def facts_of(checkpoint: Checkpoint) -> LogFacts:
    try:
        producers = ProducerTable.from_bytes(checkpoint.producers)
    except CorruptData:  # cannot happen: the checkpoint's own CRC held
        producers = ProducerTable()
    return LogFacts(
        epoch=checkpoint.epoch,
        append_time_ms=checkpoint.append_time_ms,
        messages=checkpoint.messages,
        producers=producers,
    )
