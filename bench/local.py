"""A local queue beside other queues inside one process, in turns, on one disk.

    python -m bench.local DIRECTORY [--peers PATH] [--rounds N]

``--peers`` is a directory that pip has installed persist-queue, litequeue and huey into
(``pip install --no-deps --target PATH persist-queue litequeue huey``); without it only vq and
``queue.Queue`` run. Each has its durable setting, which its row names. Contents have 100 bytes. A
row is the median of the rounds, with the least and the most; whoever shares the machine is in it.
"""

import argparse
import os
import queue
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.figures import markdown_table
from vq.local import LocalQueue, LocalQueueConfig

_BODY: Final = b"x" * 100
_ROUND_S: Final = 1.0
_IDLE_S: Final = 5.0
_TAKERS: Final = 64

Rate = float


def alone(act: Callable[[], object]) -> Rate:
    """Return how often one thread acts in a second."""
    count, begin = 0, time.perf_counter()
    while (took := time.perf_counter() - begin) < _ROUND_S:
        for _ in range(16):
            act()
        count += 16
    return count / took


def together(
    opened: LocalQueue, threads: int, put: Callable[[int], object], messages: int, *, at_once: int
) -> Rate:
    """Return the messages a second that so many threads put while as many take and complete."""

    def take_all() -> None:
        while True:
            items = opened.take_many(at_once, 0.5)
            if not items:
                return
            opened.complete_many(items)
            ended.append(time.perf_counter())

    ended: list[float] = []
    begin = time.perf_counter()
    share = messages // threads
    workers = [threading.Thread(target=put, args=(share,)) for _ in range(threads)]
    workers += [threading.Thread(target=take_all) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return share * threads / (max(ended) - begin)


@contextmanager
def vq_queue(path: Path | None, **settings: Any) -> Iterator[LocalQueue]:
    """Give a new queue."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
    with LocalQueue(path, LocalQueueConfig(**settings)) as opened:
        yield opened


def rows(base: Path, *, peers: bool) -> dict[str, Callable[[], Rate]]:
    """Return what is measured, by the name of its row."""

    def memory() -> Rate:
        with vq_queue(None) as opened:

            def act() -> None:
                opened.put(_BODY)
                item = opened.take()
                assert item is not None
                opened.complete(item)

            return alone(act)

    def standard() -> Rate:
        opened: queue.Queue[bytes] = queue.Queue()

        def act() -> None:
            opened.put(_BODY)
            opened.get()
            opened.task_done()

        return alone(act)

    def unwaited() -> Rate:
        with vq_queue(base / "vq") as opened:

            def put(share: int) -> None:
                for number in range(share):
                    opened.put(_BODY, wait=False)
                    if number % 1000 == 999:
                        opened.flush()
                opened.flush()

            return together(opened, 4, put, 200_000, at_once=1)

    def batches() -> Rate:
        with vq_queue(base / "vq") as opened:

            def put(share: int) -> None:
                for _ in range(share // 100):
                    opened.put_many([_BODY] * 100)

            return together(opened, 4, put, 100_000, at_once=100)

    def waited() -> Rate:
        with vq_queue(base / "vq") as opened:

            def put(share: int) -> None:
                for _ in range(share):
                    opened.put(_BODY)

            return together(opened, 8, put, 4_000, at_once=1)

    def one_by_one() -> Rate:
        with vq_queue(base / "vq") as opened:

            def act() -> None:
                opened.put(_BODY)
                item = opened.take()
                assert item is not None
                opened.complete(item, wait=True)

            return alone(act)

    found = {
        "memory: vq, 1 thread": memory,
        "memory: queue.Queue, 1 thread": standard,
        "vq, 4 + 4 threads, `put(wait=False)`, `flush` after 1,000": unwaited,
        "vq, 4 + 4 threads, `put_many` of 100": batches,
        "vq, 8 + 8 threads, each put waits for its flush": waited,
        "vq, 1 thread, put and complete wait for their flush": one_by_one,
    }
    return {**found, **(_peers(base) if peers else {})}


def _peers(base: Path) -> dict[str, Callable[[], Rate]]:
    import huey  # type: ignore[import-not-found]
    import litequeue  # type: ignore[import-not-found]
    import persistqueue  # type: ignore[import-not-found]

    def fresh(name: str) -> str:
        path = base / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return str(path)

    def persist() -> Rate:
        opened = persistqueue.SQLiteAckQueue(
            fresh("persist"), auto_commit=True, multithreading=True
        )

        def act() -> None:
            opened.put(_BODY)
            opened.ack(opened.get())

        try:
            return alone(act)
        finally:
            opened.close()

    def lite() -> Rate:
        opened = litequeue.LiteQueue(fresh("lite") + "/queue.db")
        opened.conn.execute("PRAGMA synchronous = FULL")

        def act() -> None:
            opened.put(_BODY)
            opened.done(opened.pop().message_id)

        try:
            return alone(act)
        finally:
            opened.conn.close()

    def huey_() -> Rate:
        opened = huey.SqliteHuey("q", filename=fresh("huey") + "/queue.db", fsync=True)

        def act() -> None:
            opened.storage.enqueue(_BODY)
            opened.storage.dequeue()

        return alone(act)

    return {
        "persist-queue, 1 thread, SQLiteAckQueue, auto_commit": persist,
        "litequeue, 1 thread, synchronous = FULL": lite,
        "huey, 1 thread, SqliteHuey, fsync = True (a take is the end: nothing is completed)": huey_,
    }


def put_beside_fdatasync(base: Path) -> tuple[float, float]:
    """Return the medians, in µs, of one put and of a bare write with fdatasync, in turns."""
    puts, syncs = list[float](), list[float]()
    with vq_queue(base / "vq") as opened:
        fd = os.open(base / "bare", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 1 << 20)
        try:
            for number in range(400):
                begin = time.perf_counter()
                os.pwrite(fd, _BODY * 2, number * 200)
                os.fdatasync(fd)
                middle = time.perf_counter()
                opened.put(_BODY)
                syncs.append(middle - begin)
                puts.append(time.perf_counter() - middle)
        finally:
            os.close(fd)
            (base / "bare").unlink()
    return statistics.median(puts) * 1e6, statistics.median(syncs) * 1e6


def idle_share(base: Path) -> float:
    """Return the share of a core, in percent, that an idle queue with takers uses."""
    with vq_queue(base / "vq") as opened:
        takers = [
            threading.Thread(target=lambda: opened.take(_IDLE_S + 1), daemon=True)
            for _ in range(_TAKERS)
        ]
        for taker in takers:
            taker.start()
        time.sleep(0.5)
        begin = time.process_time()
        time.sleep(_IDLE_S)
        used = time.process_time() - begin
        for taker in takers:
            taker.join()
    return 100 * used / _IDLE_S


def main() -> int:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    if asked.peers is not None:
        sys.path.append(str(asked.peers))
    measured = rows(asked.directory, peers=asked.peers is not None)
    rates: dict[str, list[float]] = {name: [] for name in measured}
    beside = []
    for _ in range(asked.rounds):
        for name, measure in measured.items():
            rates[name].append(measure())
        beside.append(put_beside_fdatasync(asked.directory))
    table = [
        [name, f"{statistics.median(each):,.0f}", f"{min(each):,.0f} to {max(each):,.0f}"]
        for name, each in rates.items()
    ]
    print(markdown_table(["put + take + complete", "a second", "rounds"], table))
    for put, bare in beside:
        print(f"one put: {put:.0f} µs, a bare fdatasync: {bare:.0f} µs, {put / bare:.2f} times")
    share = idle_share(asked.directory)
    print(f"idle with {_TAKERS} takers: {share:.3f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
