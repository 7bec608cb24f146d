"""The room there is: a bare uvloop server that stores and answers, and a blocking client.

Nothing of vq is in here. A frame is ``length u32 | bytes``; the server stores its bytes into a
mapped file and answers 17 bytes. What vq loses against this is vq's to explain. Run alone it prints
its figures::

    python bench/room.py
"""

import asyncio
import mmap
import multiprocessing as mp
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

_LENGTH = struct.Struct(">I")
_ANSWER = b"\x00\x00\x00\x0d" + b"a" * 13
_FILE_BYTES = 64 << 20


class _Server(asyncio.Protocol):
    def __init__(self, store: mmap.mmap) -> None:
        self._store = store
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
        store, at = self._store, self._position
        unpack = _LENGTH.unpack_from
        view = memoryview(data)
        while size - position >= 4:
            end = position + 4 + unpack(data, position)[0]
            if end > size:
                break
            length = end - position - 4
            if at + length > _FILE_BYTES:
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


def _serve(path: str, ready: "mp.connection.Connection") -> None:
    async def main() -> None:
        with Path(path).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, _FILE_BYTES)
            store = mmap.mmap(file.fileno(), _FILE_BYTES)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Server(store), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


@dataclass(frozen=True)
class Room:
    """What the bare machine does.

    Attributes:
        one_at_a_time: Requests a second, each waiting for its answer.
        round_trip_s: Median time of one.
        pipelined: 128-byte frames a second, 512 under way.
        large_bytes: Bytes a second in frames of 16 KiB, 64 under way.
        fdatasync_s: Median fdatasync after writing 128 bytes into allocated space.
    """

    one_at_a_time: float
    round_trip_s: float
    pipelined: float
    large_bytes: float
    fdatasync_s: float


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


def measure(directory: str | None = None, *, seconds: float = 1.5) -> Room:
    """Measure the room once. Takes about four times ``seconds``."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        path = Path(scratch) / "room"
        path.touch()
        ours, theirs = mp.Pipe()
        process = mp.get_context("fork").Process(target=_serve, args=(str(path), theirs))
        process.start()
        try:
            port = ours.recv()
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                times = _round_trips(sock, seconds)
                pipelined = _pipeline(sock, bytes(128), 512, seconds)
                large = _pipeline(sock, bytes(16384), 64, seconds) * 16384
        finally:
            process.terminate()
            process.join()
        return Room(
            one_at_a_time=len(times) / sum(times),
            round_trip_s=statistics.median(times),
            pipelined=pipelined,
            large_bytes=large,
            fdatasync_s=_fdatasync(scratch),
        )


def _round_trips(sock: socket.socket, seconds: float) -> list[float]:
    frame = _LENGTH.pack(128) + bytes(128)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        sock.sendall(frame)
        _read_answers(sock, 1)
        times.append(time.perf_counter() - start)
    return times


def _fdatasync(scratch: str, count: int = 500) -> float:
    with (Path(scratch) / "sync").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        times = []
        for number in range(count):
            os.pwrite(file.fileno(), bytes(128), number * 128)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    room = measure(sys.argv[1] if len(sys.argv) > 1 else None)
    print(f"one at a time    {room.one_at_a_time:12,.0f} requests/s")
    print(f"round trip       {room.round_trip_s * 1e6:12,.1f} µs (median)")
    print(f"pipelined        {room.pipelined:12,.0f} frames/s of 128 bytes")
    print(f"large frames     {room.large_bytes / 1e6:12,.0f} MB/s")
    print(f"fdatasync        {room.fdatasync_s * 1e6:12,.1f} µs (median, 128 bytes)")
