"""A program that archives blocks of a log, restores and drops them, as a process that may die.

    python -m support.archiving_process DIRECTORY CYCLES

Each cycle appends three messages, ends the block, and archives it; every second one restores an
archive, and every fourth one drops the first block. A message says how many were sent before it.
Standard output has the number of messages that are durable, a line for each flush.
"""

import sys
from pathlib import Path

from support.store import append, archive, blocks_of, flush, open_log, payloads

from vq.store.archive.archive_writer import BlockWriter
from vq.store.disk.disk import Disk
from vq.store.disk.real_disk import RealDisk
from vq.store.log.block import Block, BlockCache
from vq.store.log.log import Log


def content(number: int) -> bytes:
    """Return a message."""
    return b"%08d " % number * 100


def number_of(payload: bytes) -> int:
    """Return which message it is."""
    assert payload == content(int(payload[:8]))
    return int(payload[:8])


def opened(directory: Path, disk: Disk) -> Log:
    """Open the log; whoever reads it may wait."""
    return open_log(disk, directory, cache=BlockCache(waits=True))


def restore(disk: Disk, log: Log, block: Block) -> None:
    """Make a block file of an archive."""
    writer = BlockWriter(disk, block.path)
    try:
        while not writer.done:
            writer.step()
        writer.place()
    finally:
        writer.close()
    log.use_file(block)
    flush(log)


def main(directory: str, cycles: str) -> None:
    """Do what the module says."""
    disk = RealDisk()
    log = opened(Path(directory), disk)
    found = payloads(log)
    number = number_of(found[-1]) + 1 if found else 0
    for cycle in range(int(cycles)):
        for _ in range(3):
            append(log, content(number))
            number += 1
        flush(log)
        print(number, flush=True)
        log.roll()
        flush(log)
        for block in [each for each in log.closed_blocks if not each.is_archived]:
            archive(disk, log, block, chunk_bytes=1000)
        blocks = blocks_of(log)
        if cycle % 2:
            restore(disk, log, blocks[len(blocks) // 2])
        if cycle % 4 == 3:
            log.drop_before(blocks[0].end_offset)
            flush(log)
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
