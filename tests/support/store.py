"""Short ways to make logs and batches for tests of the store and of what stands on it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import google_crc32c

from vq.clock import Clock, ManualClock
from vq.model import ProducerStamp
from vq.store.archive.archive import ArchiveFiles, Stub
from vq.store.archive.archive_writer import ArchiveWriter, BlockWriter
from vq.store.archive.archived_file import NotInMemory
from vq.store.disk.disk import Disk
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.store.log.block import Block, BlockCache
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogConfig
from vq.store.log.ticket import SyncTicket
from vq.store.records.record import Record, decode_into, encode_record

T = TypeVar("T")
DIRECTORY = Path("/data/orders/0")
#: Small sizes, so that a few appends roll, checkpoint and allocate.
SMALL = LogConfig(
    block_bytes=4096,
    checkpoint_bytes=4096,
    checkpoint_batches=1000,
    allocate_bytes_min=4096,
    allocate_bytes_max=4096,
)


def memory_disk(directory: Path = DIRECTORY, *, syncfs_flushes: bool | None = None) -> MemoryDisk:
    """Return a disk on which the topic's directory exists, durably."""
    disk = MemoryDisk(syncfs_flushes=syncfs_flushes)
    for parent in disk.mkdir(directory.parent):
        disk.sync_directory(parent)
    return disk.crash(keep_all)


def open_log(
    disk: Disk,
    directory: Path = DIRECTORY,
    *,
    config: LogConfig = SMALL,
    clock: Clock | None = None,
    topic_id: str = "t1",
    start_offset: int = 0,
    producers: bytes = b"",
    number: int | None = None,
    cache: BlockCache | None = None,
) -> Log:
    """Open a log with defaults for everything."""
    return Log.open(
        directory,
        topic_id=topic_id,
        config=config,
        disk=disk,
        clock=clock or ManualClock(),
        begin=LogBegin(start_offset, producers, number),
        cache=cache,
    )


def append(
    log: Log,
    *payloads: bytes,
    epoch: int = 1,
    stamp: ProducerStamp | None = None,
    tag: bytes | None = None,
) -> int:
    """Append one batch of these payloads (ids count from 1); return its start offset."""
    body = b"".join(encode_record(i, p, tag) for i, p in enumerate(payloads, start=1))
    return log.append(
        body,
        record_count=len(payloads),
        records_crc=google_crc32c.value(body),
        epoch=epoch,
        stamp=stamp,
    )


def flush(log: Log) -> SyncTicket | None:
    """Make everything appended durable."""
    ticket = log.begin_sync()
    if ticket is not None:
        ticket.run()
        log.finish_sync(ticket)
    return ticket


def records(log: Log, start: int | None = None) -> list[Record]:
    """Read and verify everything from ``start`` (default: the log's start) to the end."""
    found: list[Record] = []
    offset = log.start_offset if start is None else start
    while offset < log.end_offset:
        offset = decode_into(log.reader.read(offset, 1 << 23, log.end_offset), offset, found)
    return found


def payloads(log: Log) -> list[bytes]:
    """Return the payload of every record in the log."""
    return [record.payload for record in records(log)]


def patiently(call: Callable[[], T]) -> tuple[T, int]:
    """Do what the broker does: fetch what is not in memory, and call again; with the fetches."""
    for fetches in range(40):
        try:
            return call(), fetches
        except NotInMemory as error:
            error.fetch()
    raise AssertionError("it is never in memory")


def write_archive(
    disk: Disk, block: Block, *, url: str = "", chunk_bytes: int = 1024, **about: object
) -> Stub:
    """Write zip and stub of a block beside its file, in small chunks; the log is not told."""
    writer = ArchiveWriter(
        disk,
        block.path,
        block.start_offset,
        block.end_offset,
        url=url,
        about={"topic": "orders", **about},
        chunk_bytes=chunk_bytes,
    )
    try:
        while not writer.done:
            writer.step()
        stub = writer.place()
    finally:
        writer.close()
    disk.write_atomic(ArchiveFiles.of(block.path).stub, stub.to_bytes())
    return stub


def archive(disk: Disk, log: Log, block: Block, *, url: str = "", chunk_bytes: int = 1024) -> Stub:
    """Archive a closed block of an open log, whole."""
    stub = write_archive(disk, block, url=url, chunk_bytes=chunk_bytes)
    log.use_archive(block, stub.archive)
    flush(log)
    return stub


def restore(disk: Disk, log: Log, block: Block) -> None:
    """Make the file of an archived block of an open log again."""
    writer = BlockWriter(disk, block.path)
    while not writer.done:
        writer.step()
    writer.place()
    writer.close()
    log.use_file(block)


def blocks_of(log: Log) -> list[Block]:
    """Return the blocks of a log."""
    last = log.open_block
    return [*log.closed_blocks, *([] if last is None else [last])]
