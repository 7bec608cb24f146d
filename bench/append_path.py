"""Compares ways to append to a block file: mapped store, pwrite, pwrite with RWF_DSYNC, in turns.

    python bench/append_path.py [--directory DIR] [--rounds 300]

For each kind of file (growing; allocated ahead by ``fallocate``; filled with zeros ahead) and each
way of writing, it makes appends of one size, each durable before the next. It prints medians in
microseconds: *store* is the time for which the event loop is busy, *durable* the time until the
bytes are on the disk. All ways take turns append by append, in random order, so that other load on
the machine affects all of them. Every measurement runs twice, and the second run counts. Files are
small: in a virtual machine the first use of a page of memory costs the host a fault of about 15 µs,
which is not a part of an append.

docs/decisions/0002-append-path.md has the figures of the decision.
"""

import argparse
import mmap
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SIZES = (256, 4096, 65536, 262144)
FILE_BYTES_MAX = 24 << 20
PREPARATIONS = ("grown", "fallocated", "zeroed")
WAYS = ("mapped", "pwrite", "dsync")


class Cell(NamedTuple):
    """One way to append to one kind of file."""

    preparation: str
    way: str
    append: Callable[[bytes], tuple[float, float]]


def open_file(path: Path, preparation: str, length: int) -> int:
    """Return a descriptor of a file prepared for ``length`` bytes of appends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if preparation != "grown":
        os.posix_fallocate(fd, 0, length)
    if preparation == "zeroed":
        block = bytes(1 << 20)
        for position in range(0, length, len(block)):
            os.pwrite(fd, block[: length - position], position)
    os.fsync(fd)
    return fd


def mapped(fd: int, length: int, *, grown: bool) -> Callable[[bytes], tuple[float, float]]:
    """Store through a mapping, then fdatasync; a grown file is lengthened append by append."""
    if grown:
        os.ftruncate(fd, length)
    view = mmap.mmap(fd, length)
    if grown:
        os.ftruncate(fd, 0)
    position = 0

    def append(data: bytes) -> tuple[float, float]:
        nonlocal position
        begin = time.perf_counter()
        if grown:
            os.ftruncate(fd, position + len(data))
        view[position : position + len(data)] = data
        stored = time.perf_counter()
        os.fdatasync(fd)
        position += len(data)
        return stored - begin, time.perf_counter() - begin

    return append


def written(fd: int, *, flags: int) -> Callable[[bytes], tuple[float, float]]:
    """Write with ``pwritev``, then fdatasync unless ``flags`` did it."""
    position = 0

    def append(data: bytes) -> tuple[float, float]:
        nonlocal position
        begin = time.perf_counter()
        os.pwritev(fd, [data], position, flags)
        stored = time.perf_counter()
        if not flags:
            os.fdatasync(fd)
        position += len(data)
        return stored - begin, time.perf_counter() - begin

    return append


def make_cells(directory: Path, length: int) -> list[Cell]:
    """Prepare one file for every pair of preparation and way."""
    cells = []
    for preparation in PREPARATIONS:
        for way in WAYS:
            fd = open_file(directory / f"{preparation}-{way}", preparation, length)
            if way == "mapped":
                append = mapped(fd, length, grown=preparation == "grown")
            else:
                append = written(fd, flags=os.RWF_DSYNC if way == "dsync" else 0)
            cells.append(Cell(preparation, way, append))
    return cells


def measure(directory: Path, size: int, rounds: int) -> list[tuple[Cell, float, float]]:
    """Return the medians, in microseconds, of every cell for appends of ``size`` bytes."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="append-path-") as place:
        cells = make_cells(Path(place), size * rounds)
        data = os.urandom(size)
        times: list[list[tuple[float, float]]] = [[] for _ in cells]
        turns = list(zip(cells, times, strict=True))
        rng = random.Random(size)
        for _ in range(rounds):
            rng.shuffle(turns)
            for cell, found in turns:
                found.append(cell.append(data))
        return [
            (
                cell,
                statistics.median(stored for stored, _ in found) * 1e6,
                statistics.median(durable for _, durable in found) * 1e6,
            )
            for cell, found in zip(cells, times, strict=True)
        ]


def main() -> None:
    """Measure all ways and print one table per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="on the disk in question"
    )
    parser.add_argument("--rounds", type=int, default=300, help="appends per cell and size")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, Linux {platform.release()}, {options.rounds} rounds; medians, µs"
    )
    for size in SIZES:
        rounds = min(options.rounds, FILE_BYTES_MAX // size)
        print(f"\n{size} bytes ({rounds} rounds)")
        print(f"{'file':<12}{'way':<8}{'store':>9}{'durable':>9}")
        measure(options.directory, size, rounds)
        for cell, stored, durable in measure(options.directory, size, rounds):
            print(f"{cell.preparation:<12}{cell.way:<8}{stored:9.1f}{durable:9.1f}")


if __name__ == "__main__":
    main()
