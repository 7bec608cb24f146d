"""A local queue beside other queues inside one process, in turns, on one disk.

    python -m bench.local DIRECTORY [--quick] [--peers PATH] [--rounds N] [--waiting N]

Others take part if they are there; a row that is left out says why. They are installed with
``pip install --target PATH persist-queue litequeue huey 'dramatiq[rabbitmq]'``, and RabbitMQ with
the system's packages. Each has its durable setting, and the row says what that means. Contents have
100 bytes. A row is the median of the rounds, with the least and the most; whoever shares the
machine is in it.
"""

import argparse
import contextlib
import importlib
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figures import markdown_table
from bench.peers import Missing, rabbitmq
from vq.local import LocalQueue, LocalQueueConfig
from vq.store.records.format import CONTROL_BYTES, RECORD_HEADER_BYTES

_BODY: Final = b"x" * 100
_TAKERS: Final = 64
_BATCH: Final = 10_000
_NOT_DURABLE: Final = "nothing: it is in memory"

Rate = float


@dataclass(frozen=True, slots=True)
class Load:
    """How much is done.

    Attributes:
        round_s: One round of a row with one thread.
        part: Of the messages of a row with several threads.
        pairs: Puts, each beside a bare flush.
        idle_s: How long takers wait.
        waiting: Messages that wait when a queue is opened.
    """

    round_s: float
    part: float
    pairs: int
    idle_s: float
    waiting: int


FULL: Final = Load(1.0, 1.0, 400, 5.0, 10_000_000)
QUICK: Final = Load(0.1, 0.02, 40, 1.0, 50_000)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row: its name, what durable means in it, and its rate."""

    name: str
    durable: str
    rate: Callable[[], Rate]


class Bench:
    """What is measured, below one directory.

    Args:
        base: The directory.
        load: How much is done.
    """

    def __init__(self, base: Path, load: Load) -> None:
        self.base = base
        self.load = load

    # vq -------------------------------------------------------------------------------------------
    @contextmanager
    def opened(self, *, in_memory: bool = False) -> Iterator[LocalQueue]:
        """Give a new queue."""
        path = None if in_memory else self.fresh("vq")
        with LocalQueue(path, LocalQueueConfig()) as found:
            yield found

    def fresh(self, name: str) -> Path:
        """Return a path with nothing there."""
        path = self.base / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def alone(self, act: Callable[[], object]) -> Rate:
        """Return how often one thread acts in a second."""
        count, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < self.load.round_s:
            for _ in range(16):
                act()
            count += 16
        return count / took

    def together(
        self,
        opened: LocalQueue,
        threads: int,
        put: Callable[[int], object],
        messages: int,
        *,
        at_once: int,
    ) -> Rate:
        """Return the messages a second that so many threads put, and as many complete."""

        def take_all() -> None:
            while True:
                items = opened.take_many(at_once, 0.5)
                if not items:
                    return
                opened.complete_many(items)
                ended.append(time.perf_counter())

        ended: list[float] = []
        begin = time.perf_counter()
        share = max(int(messages * self.load.part) // threads // at_once, 1) * at_once
        workers = [threading.Thread(target=put, args=(share,)) for _ in range(threads)]
        workers += [threading.Thread(target=take_all) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return share * threads / (max(ended) - begin)

    def memory(self) -> Rate:
        """Put, take and complete in memory."""
        with self.opened(in_memory=True) as opened:

            def act() -> None:
                opened.put(_BODY)
                item = opened.take()
                assert item is not None
                opened.complete(item)

            return self.alone(act)

    def standard(self) -> Rate:
        """The same with the queue of the standard library."""
        opened: queue.Queue[bytes] = queue.Queue()

        def act() -> None:
            opened.put(_BODY)
            opened.get()
            opened.task_done()

        return self.alone(act)

    def unwaited(self) -> Rate:
        """Puts that do not wait, and a flush now and then."""
        with self.opened() as opened:

            def put(share: int) -> None:
                for number in range(share):
                    opened.put(_BODY, wait=False)
                    if number % 1000 == 999:
                        opened.flush()
                opened.flush()

            return self.together(opened, 4, put, 200_000, at_once=1)

    def batches(self) -> Rate:
        """Batches that wait."""
        with self.opened() as opened:

            def put(share: int) -> None:
                for _ in range(share // 100):
                    opened.put_many([_BODY] * 100)

            return self.together(opened, 4, put, 100_000, at_once=100)

    def waited(self) -> Rate:
        """Single puts that wait, of several threads."""
        with self.opened() as opened:

            def put(share: int) -> None:
                for _ in range(share):
                    opened.put(_BODY)

            return self.together(opened, 8, put, 4_000, at_once=1)

    def one_by_one(self) -> Rate:
        """One thread, which waits for both."""
        with self.opened() as opened:

            def act() -> None:
                opened.put(_BODY)
                item = opened.take()
                assert item is not None
                opened.complete(item, wait=True)

            return self.alone(act)

    # Others ---------------------------------------------------------------------------------------
    def persist_queue(self) -> Rate:
        """See its row."""
        opened = importlib.import_module("persistqueue").SQLiteAckQueue(
            str(self.fresh("persist")), auto_commit=True, multithreading=True
        )

        def act() -> None:
            opened.put(_BODY)
            opened.ack(opened.get())

        try:
            return self.alone(act)
        finally:
            opened.close()

    def litequeue(self) -> Rate:
        """See its row."""
        path = self.fresh("lite")
        path.mkdir()
        opened = importlib.import_module("litequeue").LiteQueue(str(path / "queue.db"))
        opened.conn.execute("PRAGMA synchronous = FULL")

        def act() -> None:
            opened.put(_BODY)
            opened.done(opened.pop().message_id)

        try:
            return self.alone(act)
        finally:
            opened.conn.close()

    def huey(self) -> Rate:
        """See its row."""
        path = self.fresh("huey")
        path.mkdir()
        opened = importlib.import_module("huey").SqliteHuey(
            "q", filename=str(path / "queue.db"), fsync=True
        )

        def act() -> None:
            opened.storage.enqueue(_BODY)
            opened.storage.dequeue()

        return self.alone(act)

    def dramatiq(self, port: int) -> Rate:
        """See its row."""
        dramatiq = importlib.import_module("dramatiq")
        brokers = importlib.import_module("dramatiq.brokers.rabbitmq")
        broker = brokers.RabbitmqBroker(
            url=f"amqp://guest:guest@127.0.0.1:{port}/", confirm_delivery=True, max_priority=None
        )
        done = threading.Semaphore(0)

        def handle(_: str) -> None:
            done.release()

        actor = dramatiq.actor(handle, broker=broker, queue_name="bench", actor_name="handle")
        worker = dramatiq.Worker(broker, worker_threads=1)
        worker.start()
        text, sent, begin = _BODY.decode(), 0, time.perf_counter()
        try:
            while time.perf_counter() - begin < self.load.round_s:
                actor.send(text)
                sent += 1
            for _ in range(sent):
                done.acquire()
            return sent / (time.perf_counter() - begin)
        finally:
            worker.stop()
            broker.close()

    # Figures of vq alone --------------------------------------------------------------------------
    def put_beside_fdatasync(self) -> tuple[float, float]:
        """Return the medians, in µs, of one put and of a bare write with fdatasync, in turns.

        The bare one writes as many bytes as the log gets, behind the last ones, into space that the
        file has already, as the log does: neither changes the size of its file.
        """
        puts, syncs = list[float](), list[float]()
        framed = bytes(CONTROL_BYTES + RECORD_HEADER_BYTES + len(_BODY))
        with self.opened() as opened:
            fd = os.open(self.base / "bare", os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, 1 << 20)
            try:
                for number in range(self.load.pairs):
                    begin = time.perf_counter()
                    os.pwrite(fd, framed, number * len(framed))
                    os.fdatasync(fd)
                    middle = time.perf_counter()
                    opened.put(_BODY)
                    syncs.append(middle - begin)
                    puts.append(time.perf_counter() - middle)
            finally:
                os.close(fd)
                (self.base / "bare").unlink()
        return statistics.median(puts) * 1e6, statistics.median(syncs) * 1e6

    def idle_share(self) -> float:
        """Return the share of a core, in percent, that an idle queue with takers uses."""
        with self.opened() as opened:
            takers = [
                threading.Thread(target=lambda: opened.take(self.load.idle_s + 1), daemon=True)
                for _ in range(_TAKERS)
            ]
            for taker in takers:
                taker.start()
            time.sleep(0.5)
            begin = time.process_time()
            time.sleep(self.load.idle_s)
            used = time.process_time() - begin
            for taker in takers:
                taker.join()
        return 100 * used / self.load.idle_s

    def open_waiting(self) -> str:
        """Return what a process says that opens a queue of many messages after a kill."""
        path = self.fresh("waiting")
        try:
            filled = _child("fill", path, self.load.waiting)
            assert filled.returncode == -signal.SIGKILL, filled.stderr
            return _child("open", path, self.load.waiting).stdout.strip()
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _child(act: str, path: Path, count: int) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "bench.local",
        str(path),
        "--act",
        act,
        "--waiting",
        f"{count}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _act(act: str, path: Path, count: int) -> None:
    """Fill a queue and be killed, or open it; in a process of its own."""
    if act == "fill":
        opened = LocalQueue(path)
        for begin in range(0, count, _BATCH):
            opened.put_many([_BODY] * min(_BATCH, count - begin), wait=False)
        opened.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    before = _resident_mb()
    begin_s = time.perf_counter()
    with LocalQueue(path) as opened:
        opened_s = time.perf_counter() - begin_s
        assert opened.take(0) is not None
        print(
            f"{len(opened):,} messages wait after kill -9: open {opened_s:.2f} s, first message "
            f"{time.perf_counter() - begin_s:.2f} s, {_resident_mb()} MB ({before} before)"
        )


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") >> 20


def rows(bench: Bench, stack: ExitStack) -> tuple[list[Measured], list[str]]:
    """Return what is measured, and what is left out, with reasons; servers end with the stack."""
    put_flushed = "`fdatasync` before `put` returns"
    found = [
        Measured("memory: vq, 1 thread", _NOT_DURABLE, bench.memory),
        Measured("memory: `queue.Queue`, 1 thread", _NOT_DURABLE, bench.standard),
        Measured(
            "vq, 4 + 4 threads, `put(wait=False)`, `flush` after 1,000",
            "`fdatasync` before `flush` returns",
            bench.unwaited,
        ),
        Measured("vq, 4 + 4 threads, `put_many` of 100", put_flushed, bench.batches),
        Measured("vq, 8 + 8 threads, each put waits", put_flushed, bench.waited),
        Measured(
            "vq, 1 thread, put and complete wait",
            "`fdatasync` before each of the two returns",
            bench.one_by_one,
        ),
    ]
    left_out: list[str] = []
    for name, module, durable, rate in (
        (
            "persist-queue, SQLiteAckQueue, `auto_commit`, 1 thread",
            "persistqueue",
            "SQLite's full sync of put, take and acknowledgement",
            bench.persist_queue,
        ),
        (
            "litequeue, `synchronous = FULL`, 1 thread",
            "litequeue",
            "SQLite's full sync of put, take and completion",
            bench.litequeue,
        ),
        (
            "huey, SqliteHuey, `fsync=True`, 1 thread",
            "huey",
            "SQLite's full sync of put and take; a crash loses what was taken",
            bench.huey,
        ),
    ):
        try:
            importlib.import_module(module)
        except ImportError as error:
            left_out.append(f"{name}: {error}; give --peers")
        else:
            found.append(Measured(name, durable, rate))
    name = "Dramatiq on RabbitMQ, 1 + 1 threads, `confirm_delivery`"
    try:
        port = _rabbitmq(bench.fresh("rabbitmq"), stack)
    except (ImportError, Missing) as error:
        left_out.append(f"{name}: {error}")
    else:
        durable = (
            "persistent message, durable queue: confirmed once it is synced; acknowledged singly"
        )
        found.append(Measured(name, durable, lambda: bench.dramatiq(port)))
    return found, left_out


def _rabbitmq(path: Path, stack: ExitStack) -> int:
    """Start RabbitMQ until the stack ends; return its port.

    Raises:
        ImportError, Missing: It, or Dramatiq, is not there.
    """
    importlib.import_module("dramatiq.brokers.rabbitmq")
    rabbitmq.server_program()
    path.mkdir(parents=True)
    port: int = stack.enter_context(rabbitmq.broker(path))["port"]
    return port


def main() -> int:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--quick", action="store_true", help="small loads, one round")
    parser.add_argument("--peers", type=Path, help="where pip has installed others")
    parser.add_argument("--rounds", type=int, default=0, help="3, or 1 with --quick")
    parser.add_argument("--waiting", type=int, default=0, help="messages that wait at an open")
    parser.add_argument("--act", choices=("fill", "open"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.act is not None:
        _act(asked.act, asked.directory, asked.waiting)
        return 0
    load = QUICK if asked.quick else FULL
    if asked.waiting:
        load = Load(load.round_s, load.part, load.pairs, load.idle_s, asked.waiting)
    asked.directory.mkdir(parents=True, exist_ok=True)
    if asked.peers is not None:
        sys.path.append(str(asked.peers))
    bench = Bench(asked.directory.resolve(), load)
    with ExitStack() as stack:
        measured, left_out = rows(bench, stack)
        rates: dict[str, list[float]] = {each.name: [] for each in measured}
        beside = []
        for _ in range(asked.rounds or (1 if asked.quick else 3)):
            for each in measured:
                rates[each.name].append(each.rate())
            beside.append(bench.put_beside_fdatasync())
    table = []
    for each in measured:
        found = rates[each.name]
        middle, most = f"{statistics.median(found):,.0f}", f"{max(found):,.0f}"
        table.append([each.name, middle, f"{min(found):,.0f} to {most}", each.durable])
    print(markdown_table(["put + take + complete", "a second", "rounds", "durable means"], table))
    for reason in left_out:
        print(f"left out: {reason}")
    for put, bare in beside:
        print(
            f"one put: {put:.0f} µs, a bare pwrite of as many bytes and fdatasync: {bare:.0f} µs, "
            f"{put / bare:.2f} times"
        )
    print(f"idle with {_TAKERS} takers: {bench.idle_share():.3f} % of a core")
    print(bench.open_waiting())
    if asked.quick:
        print("--quick: the loads are small; these figures are meaningless")
    with contextlib.suppress(OSError):
        asked.directory.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
