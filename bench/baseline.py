"""The baseline: a bare uvloop server that stores and answers, and a blocking client.

It uses no code of vq. A frame is ``length u32 | bytes``; the server stores its bytes into a mapped
file and answers 17 bytes. Run alone, it prints its figures::

    python -m bench.baseline [DIRECTORY]
"""

import asyncio
import contextlib
import ctypes
import mmap
import multiprocessing as mp
import multiprocessing.connection
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

_LENGTH = struct.Struct(">I")
_ANSWER = b"\x00\x00\x00\x0d" + b"a" * 13
_FILE_BYTES = 64 << 20
#: Of a log in which no place is written twice.
_LOG_BYTES = 4 << 30
_LARGE_BYTES = 16_384


class _Log:
    """A file as a place for bytes, which are written with a system call."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __setitem__(self, place: slice, content: memoryview) -> None:
        os.pwrite(self._file, content, place.start)


class _Server(asyncio.Protocol):
    def __init__(self, store: mmap.mmap | _Log, length: int) -> None:
        self._store = store
        self._length = length
        self._position = 0
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        if buffer:
            buffer += data
            data = bytes(buffer) if len(buffer) < 1 << 16 else buffer  # type: ignore[assignment]
        size, position, answers = len(data), 0, 0
        store, at, most = self._store, self._position, self._length
        unpack = _LENGTH.unpack_from
        view = memoryview(data)
        while size - position >= 4:
            end = position + 4 + unpack(data, position)[0]
            if end > size:
                break
            length = end - position - 4
            if at + length > most:
                at = 0
            store[at : at + length] = view[position + 4 : end]
            at += length
            position = end
            answers += 1
        self._position = at
        rest = bytes(view[position:])
        view.release()
        self._buffer = bytearray(rest)
        if answers:
            self._transport.writelines([_ANSWER] * answers)  # type: ignore[attr-defined]


def _serve(
    path: str, ready: multiprocessing.connection.Connection, cores: set[int], *, log: bool
) -> None:
    os.sched_setaffinity(0, cores)

    async def main() -> None:
        length = _LOG_BYTES if log else _FILE_BYTES
        file = os.open(path, os.O_RDWR)
        os.posix_fallocate(file, 0, length)
        store = _Log(file) if log else mmap.mmap(file, length)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Server(store, length), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


@contextlib.contextmanager
def _connected(
    directory: str | None, *, apart: bool = False, log: bool = False
) -> Iterator[socket.socket]:
    """Start the server in a process of its own and connect to it.

    ``apart``: on another core. ``log``: it stores into a log, no place of which is written twice.
    """
    ours_only, theirs_only = _cores(apart=apart)
    with tempfile.TemporaryDirectory(dir=directory, prefix="vq-baseline-") as scratch:
        path = Path(scratch) / "baseline"
        path.touch()
        ours, theirs = mp.Pipe()
        # Spawned, because a fork of a process with threads is not reliable.
        process = mp.get_context("spawn").Process(
            target=_serve, args=(str(path), theirs, theirs_only), kwargs={"log": log}
        )
        process.start()
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, ours_only)
        try:
            with socket.create_connection(("127.0.0.1", ours.recv())) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield sock
        finally:
            os.sched_setaffinity(0, before)
            process.terminate()
            process.join()


def _cores(*, apart: bool) -> tuple[set[int], set[int]]:
    """Return the cores for client and server: one each, or all for both."""
    allowed = sorted(os.sched_getaffinity(0))
    if apart and len(allowed) > 1:
        return {allowed[0]}, {allowed[1]}
    return set(allowed), set(allowed)


def _read_answers(sock: socket.socket, count: int) -> None:
    left = count * len(_ANSWER)
    while left:
        left -= len(sock.recv(min(left, 1 << 18)))


def _pipeline(sock: socket.socket, body: bytes, depth: int, seconds: float) -> float:
    block = (_LENGTH.pack(len(body)) + body) * (depth // 2)
    half = depth // 2
    done = 0
    start = time.perf_counter()
    sock.sendall(block)
    while (elapsed := time.perf_counter() - start) < seconds:
        sock.sendall(block)
        _read_answers(sock, half)
        done += half
    _read_answers(sock, half)
    return done / elapsed


def _round_trips(sock: socket.socket, seconds: float) -> list[float]:
    frame = _LENGTH.pack(128) + bytes(128)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        sock.sendall(frame)
        _read_answers(sock, 1)
        times.append(time.perf_counter() - start)
    return times


# One figure at a time -------------------------------------------------------------------------
def one_at_a_time(
    directory: str | None, seconds: float, *, apart: bool = False
) -> tuple[float, float]:
    """Return requests a second, each waiting for its answer, and the median seconds of one.

    The kernel may put client and server on one core. Then a round trip wakes no other core and
    takes a quarter of the time. ``apart`` gives each a core of its own.
    """
    with _connected(directory, apart=apart) as sock:
        times = _round_trips(sock, seconds)
    return len(times) / sum(times), statistics.median(times)


def pipelined(directory: str | None, seconds: float) -> float:
    """Return frames of 128 bytes a second, 512 under way."""
    with _connected(directory) as sock:
        return _pipeline(sock, bytes(128), 512, seconds)


def large_bytes(directory: str | None, seconds: float, *, log: bool = False) -> float:
    """Return bytes a second in frames of 16 KiB, 64 under way.

    With ``log`` they go into a log: the kernel has to find a page for each 4 KiB, as for a broker.
    Otherwise the same 64 MiB are written again and again.
    """
    with _connected(directory, log=log) as sock:
        return _pipeline(sock, bytes(_LARGE_BYTES), 64, seconds) * _LARGE_BYTES


def fdatasync_s(directory: str | None, size: int = 128, count: int = 500) -> float:
    """Return the median seconds of an fdatasync after writing ``size`` bytes."""
    with _allocated(directory, 1, 64 << 20) as (files, _):
        times = []
        for number in range(count):
            os.pwrite(files[0], bytes(size), number * size % (60 << 20))
            times.append(_timed(lambda: os.fdatasync(files[0])))
    return statistics.median(times)


def mapped_store_s(directory: str | None, count: int = 200_000) -> float:
    """Return the mean seconds of storing 200 bytes into a mapped file."""
    record = bytes(200)
    with _allocated(directory, 1, _FILE_BYTES) as (files, _):
        store = mmap.mmap(files[0], _FILE_BYTES)
        begin = time.perf_counter()
        for at in range(0, count * 200, 200):
            store[at : at + 200] = record
        took = time.perf_counter() - begin
        store.close()
    return took / count


@dataclass(frozen=True)
class FlushCycle:
    """Median seconds until ``files`` files with 500 dirty bytes each are durable."""

    files: int
    fdatasync_s: float
    syncfs_s: float | None


def flush_cycle(directory: str | None, files: int, count: int = 30) -> FlushCycle:
    """Measure both ways to flush several files: one after the other, and the whole file system.

    The latter on ext4 only: elsewhere it need not flush the device.
    """
    record = bytes(500)
    with _allocated(directory, files, 1 << 20) as (opened, root):

        def dirty(number: int) -> None:
            for file in opened:
                os.pwrite(file, record, number * 500 % (1 << 19))

        def in_turn() -> None:
            for file in opened:
                os.fdatasync(file)

        def median(flush: Callable[[], object]) -> float:
            times = []
            for number in range(count):
                dirty(number)
                times.append(_timed(flush))
            return statistics.median(times)

        kind = ["stat", "-f", "-c", "%T", f"/proc/self/fd/{root}"]
        ext4 = subprocess.check_output(kind, pass_fds=[root]) == b"ext2/ext3\n"
        syncfs = getattr(ctypes.CDLL(None), "syncfs", None) if ext4 else None
        return FlushCycle(
            files, median(in_turn), None if syncfs is None else median(lambda: syncfs(root))
        )


@contextlib.contextmanager
def _allocated(directory: str | None, count: int, size: int) -> Iterator[tuple[list[int], int]]:
    """Yield descriptors of files with ``size`` allocated bytes, and one of their directory."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="vq-baseline-") as scratch:
        opened = [os.open(scratch, os.O_RDONLY)]
        try:
            for number in range(count):
                opened.append(os.open(Path(scratch) / str(number), os.O_RDWR | os.O_CREAT))
                os.posix_fallocate(opened[-1], 0, size)
                os.fsync(opened[-1])
            yield opened[1:], opened[0]
        finally:
            for each in opened:
                os.close(each)


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# All of it ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Baseline:
    """The figures of the bare machine.

    Attributes:
        one_at_a_time: Requests a second, each waiting for its answer.
        round_trip_s: Median time of one.
        apart: The same rate with client and server on a core each.
        pipelined: 128-byte frames a second, 512 under way.
        large_bytes: Bytes a second in frames of 16 KiB, 64 under way.
        fdatasync_s: Median fdatasync after writing 128 bytes into allocated space.
        mapped_store_s: Storing 200 bytes into a mapped file.
    """

    one_at_a_time: float
    round_trip_s: float
    apart: float
    pipelined: float
    large_bytes: float
    fdatasync_s: float
    mapped_store_s: float


def measure(directory: str | None = None, *, seconds: float = 1.5) -> Baseline:
    """Measure the baseline once. It takes about five times ``seconds``."""
    rate, round_trip = one_at_a_time(directory, seconds)
    return Baseline(
        one_at_a_time=rate,
        round_trip_s=round_trip,
        apart=one_at_a_time(directory, seconds, apart=True)[0],
        pipelined=pipelined(directory, seconds),
        large_bytes=large_bytes(directory, seconds),
        fdatasync_s=fdatasync_s(directory),
        mapped_store_s=mapped_store_s(directory),
    )


if __name__ == "__main__":
    baseline = measure(sys.argv[1] if len(sys.argv) > 1 else None)
    print(f"one at a time    {baseline.one_at_a_time:12,.0f} requests/s")
    print(f"round trip       {baseline.round_trip_s * 1e6:12,.1f} µs (median)")
    print(f"… on two cores   {baseline.apart:12,.0f} requests/s")
    print(f"pipelined        {baseline.pipelined:12,.0f} frames/s of 128 bytes")
    print(f"large frames     {baseline.large_bytes / 1e6:12,.0f} MB/s")
    print(f"fdatasync        {baseline.fdatasync_s * 1e6:12,.1f} µs (median, 128 bytes)")
    print(f"mapped store     {baseline.mapped_store_s * 1e6:12,.2f} µs (200 bytes)")
