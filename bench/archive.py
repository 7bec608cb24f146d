"""Archiving without a broker: speed, size, and what the first read of a chunk costs.

    python -m bench.archive [DIRECTORY]

For each content and level of zlib: one block of 64 MiB is archived in DIRECTORY (a temporary one
otherwise), read back, restored, and chunks of it are read for the first time. MB are 10**6 bytes,
times those of one processor, so that other work on the machine matters little. With the package
`isal` its deflate is shown beside zlib's. Takes a minute.
"""

import asyncio
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import google_crc32c

from bench.contents import KINDS
from bench.figures import markdown_table
from vq.broker.base.runner import Lane, ThreadRunner
from vq.broker.logs.archiving import PAUSE_SHARE
from vq.clock import ManualClock
from vq.limits import MIB
from vq.store.archive.archive import CHUNK_BYTES, ArchiveFiles
from vq.store.archive.archive_writer import ArchiveCheck, ArchiveWriter, BlockWriter
from vq.store.archive.archived_file import ArchivedFile
from vq.store.disk.real_disk import RealDisk
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig
from vq.store.records.record import encode_record

try:
    from isal import isal_zlib
except ImportError:
    isal_zlib = None

BLOCK_BYTES: Final = 64 * MIB
MESSAGE_BYTES: Final = 1024
BATCH_MESSAGES: Final = 64
LEVELS: Final = (1, 2, 3, 6)


def fill(
    directory: Path,
    kind: str,
    batch_messages: int = BATCH_MESSAGES,
    message_bytes: int = MESSAGE_BYTES,
) -> Log:
    """Return a log with one closed block."""
    config = LogConfig(block_bytes=2 * BLOCK_BYTES)
    disk = RealDisk()
    log = Log.open(directory, topic_id="t", config=config, disk=disk, clock=ManualClock())
    seed = 0
    while log.end_offset < BLOCK_BYTES:
        contents = [KINDS[kind](seed + n, message_bytes) for n in range(batch_messages)]
        seed += batch_messages
        body = b"".join(encode_record(n, each) for n, each in enumerate(contents, start=1))
        crc = google_crc32c.value(body)
        log.append(body, record_count=batch_messages, records_crc=crc, epoch=1)
    log.roll()
    ticket = log.begin_sync()
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)
    return log


def run(steps: ArchiveWriter | ArchiveCheck | BlockWriter) -> tuple[float, float]:
    """Take all steps; return how long that took, and the longest one."""
    begin, longest = time.thread_time(), 0.0
    while not steps.done:
        before = time.thread_time()
        steps.step()
        longest = max(longest, time.thread_time() - before)
    return time.thread_time() - begin, longest


def measure(log: Log, level: int) -> list[str]:
    """Archive the log's block; return a line of the table."""
    disk, (block,) = RealDisk(), log.closed_blocks
    size = block.length / 1e6
    writer = ArchiveWriter(disk, block.path, block.start_offset, block.end_offset, level=level)
    took, longest = run(writer)
    stub = writer.place()
    writer.close()
    files = ArchiveFiles.of(block.path)
    disk.write_atomic(files.stub, stub.to_bytes())
    check = ArchiveCheck.of(disk, files.stub)
    checked, _ = run(check)
    check.close()
    firsts = []
    for number in range(0, len(stub.chunks), 2):
        file = ArchivedFile(disk, files.stub)
        begin = time.thread_time()
        file.fetch(stub.chunks[number].start, 1)
        firsts.append(time.thread_time() - begin)
        file.close()
    disk.rename(files.block, files.block.with_suffix(".kept"))
    back = BlockWriter(disk, files.stub)
    restored, _ = run(back)
    back.place()
    back.close()
    disk.unlink(files.block.with_suffix(".kept"))
    disk.unlink(files.stub)
    disk.unlink(files.zip)
    return [
        str(level),
        f"{size / took:.0f}",
        f"{stub.archive.zip_bytes / stub.archive.length:.1%}",
        f"{size / checked:.0f}",
        f"{size / restored:.0f}",
        f"{statistics.median(firsts) * 1e3:.1f}",
        f"{max(firsts) * 1e3:.1f}",
        f"{longest * 1e3:.0f}",
    ]


async def lags_ms(log: Log | None, seconds: float = 6.0) -> list[float]:
    """Return by how much a timer of 1 ms is late on a loop beside which a block is archived.

    As a broker does it: on a lane, with pauses. None: nothing is done beside it.
    """
    loop, found = asyncio.get_running_loop(), list[float]()
    end = loop.time() + seconds
    task = None if log is None else loop.create_task(_archive_again(log))
    while loop.time() < end:
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        found.append((loop.time() - due) * 1e3)
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return sorted(found)


async def _archive_again(log: Log) -> None:
    runner, disk, (block,) = ThreadRunner(), RealDisk(), log.closed_blocks
    try:
        while True:
            writer = ArchiveWriter(disk, block.path, block.start_offset, block.end_offset)
            try:
                begun = time.perf_counter()
                while not writer.done:
                    if await runner.run(writer.step, Lane.ARCHIVE):
                        await asyncio.sleep(PAUSE_SHARE * (time.perf_counter() - begun))
                        begun = time.perf_counter()
            finally:
                writer.close()
    finally:
        await runner.close()


def lag_table(place: Path) -> list[list[str]]:
    """Return lines with percentiles of the loop's lag, without and with archiving beside it."""
    lines = []
    for name, batch_messages, size in (
        ("nothing", 0, 0),
        ("64 x 1 KiB", 64, 1024),
        ("1 x 100 B", 1, 100),
    ):
        log = (
            fill(place / name.replace(" ", "") / "0", "orders", batch_messages, size)
            if size
            else None
        )
        found = asyncio.run(lags_ms(log))
        if log is not None:
            log.close()
        at = [found[int(len(found) * share)] for share in (0.5, 0.99, 0.999)]
        lines.append([name, *(f"{each:.2f}" for each in (*at, found[-1]))])
    return lines


def deflate(kind: str) -> list[list[str]]:
    """Compare ways to deflate one chunk, without anything else."""
    data = b"".join(
        KINDS[kind](seed, MESSAGE_BYTES) for seed in range(CHUNK_BYTES // MESSAGE_BYTES)
    )

    def with_zlib(level: int) -> Callable[[], Any]:
        return lambda: zlib.compress(data, level)

    ways = {f"zlib {level}": with_zlib(level) for level in LEVELS}
    if isal_zlib is not None:
        for level in (0, 1, 2, 3):
            ways[f"isal {level}"] = lambda level=level: isal_zlib.compress(data, level)  # type: ignore[misc]
    found = []
    for name, work in ways.items():
        times = []
        for _ in range(5):
            begin = time.thread_time()
            packed = work()
            times.append(time.thread_time() - begin)
        ratio = len(packed) / len(data)
        found.append([name, f"{len(data) / 1e6 / min(times):.0f}", f"{ratio:.1%}"])
    return found


def main(arguments: list[str]) -> int:
    """Print the tables."""
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as place:
        for kind in KINDS:
            log = fill(Path(place) / kind / "0", kind)
            lines = [measure(log, level) for level in LEVELS]
            log.close()
            head = ["level", "archived MB/s", "zip / block", "verified MB/s", "restored MB/s"]
            head += ["first read of a chunk, ms", "slowest", "longest step, ms"]
            print(f"\n{kind}\n")
            print(markdown_table(head, lines))
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as place:
        print("\nlag of a loop of 1 ms timers, ms, by the batches of what is archived beside it\n")
        print(markdown_table(["batches", "p50", "p99", "p99.9", "most"], lag_table(Path(place))))
    for kind in KINDS:
        print(f"\ndeflate alone, {kind}\n")
        print(markdown_table(["way", "MB/s", "size"], deflate(kind)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
