"""The parent of a worker's processes: starts, looks at, replaces and stops them. Loop-bound.

    a process ends by itself        another one starts, after a pause that grows while none lasts
    it cannot start                 the same; ``start_failures_max`` times in a row end the worker
    the system cannot begin it      the same, while no other process works: otherwise it goes on
    its handlers cannot be used     the worker ends; after a reload the process of before goes on
    a message is too long in hand   its process ends within seconds, another one starts at once
    it has handled enough, is large another one starts, then it finishes what it has in hand
    SIGHUP, a file changed          the same for all, one after the other
    SIGTERM, SIGINT                 all finish what they have in hand, within ``stop_timeout_s``
    the same once more              all commit what is handled, and end at once

It has no client of vq and none of the application's code, so nothing of theirs can stop it.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from vq.backoff import Backoff
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.exposition import metrics_page
from vq.remoting.http import HttpServer, Page, text_page
from vq.remoting.transport import TcpNetwork
from vq.tasks import begin_task
from vq.worker.config import RunnerConfig
from vq.worker.process import WorkerProcess
from vq.worker.suspects import MessageKey, Suspects

logger = get_logger(__name__)

#: How often the parent looks at its processes, in seconds; a tenth of a time limit if that is less.
LOOK_S: Final = 0.5
LOOK_S_MIN: Final = 0.02
#: A process over its time limit has so long to finish the others, then to commit and leave.
OVERDUE_FINISH_S: Final = 3.0
LEAVE_S: Final = 5.0
#: A process that ran for so long has lasted: the next pause is the first one again.
LASTED_S: Final = 30.0
#: A process that is to replace one that works joins its group within so long, or is ended.
JOIN_S: Final = 600.0
AGAIN: Final = Backoff(first_s=0.2, most_s=30.0, jitter=0.2)
RELOAD_LOOK_S: Final = 0.5
_FILES_MAX: Final = 20_000


class Supervisor:
    """A worker's processes.

    Args:
        config: Of the worker.
        command: Starts a process.
        environment: Of the processes.
        workers: Messages that a process has in hand at most.
        code: Directories whose files are looked at with ``config.reload``.
    """

    def __init__(
        self,
        config: RunnerConfig,
        command: Sequence[str],
        environment: Mapping[str, str],
        workers: int,
        code: Sequence[Path] = (),
        rng: random.Random | None = None,
    ) -> None:
        self._config = config
        self._command = command
        self._environment = environment
        self._workers = workers
        self._code = code
        self._rng = rng or random.Random()  # nosec B311
        self._suspects = Suspects()
        self._running: dict[int, WorkerProcess] = {}  # by place
        self._alive: set[WorkerProcess] = set()  # also those that begin, and those that end
        self._replace: dict[int, asyncio.Event] = {}
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._failure: Exception | None = None
        self._clean = True
        self._is_large_told = False
        self._ended_counts = [0, 0]  # of processes that have ended
        self._counts = dict.fromkeys(("started", "died", "overdue", "replaced"), 0)
        self._background: set[asyncio.Task[None]] = set()
        self._server = HttpServer(
            {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}
        )

    # Signals ----------------------------------------------------------------------------------
    def stop(self) -> None:
        """Have all processes finish; called again: at once."""
        if self._stop.is_set():
            logger.warning("stopping at once, what is in hand is delivered again")
            self._now.set()
            for process in self._alive:
                if process.stopping:
                    process.leave()
        else:
            logger.info("stopping, handlers finish", timeout_s=self._config.stop_timeout_s)
            self._stop.set()

    def reload(self) -> None:
        """Replace all processes, one after the other."""
        logger.info("replacing all processes")
        for event in self._replace.values():
            event.set()

    # The run ----------------------------------------------------------------------------------
    async def run(self, started: Callable[[], object] = lambda: None) -> bool:
        """Run until ``stop``; return whether everything that was in hand was finished.

        Args:
            started: Called once, when all processes have joined their group.

        Raises:
            AddressUnavailable: It cannot listen at the address of health.
            InvalidArgument: The handlers cannot be used.
            InvalidState: Processes could not start, several times in a row.
        """
        config = self._config
        if config.health_port:
            address = Address(config.health_host, config.health_port)
            await self._server.listen(TcpNetwork(), address)
        replacing = asyncio.Lock()
        for place in range(config.processes):
            self._replace[place] = asyncio.Event()
        looking = [begin_task(self._look()), begin_task(self._tell(started))]
        if config.reload:
            looking.append(begin_task(self._watch_files()))
        try:
            async with asyncio.TaskGroup() as tasks:
                for place in range(config.processes):
                    tasks.create_task(self._keep(place, replacing))
            while self._background:
                await asyncio.wait(self._background)
        finally:
            for task in looking:
                task.cancel()
            for process in self._alive:
                process.kill()
            await self._server.close()
        if self._failure is not None:
            raise self._failure
        return self._clean

    async def _keep(self, place: int, replacing: asyncio.Lock) -> None:
        """Keep a process at a place until the stop, and end it then."""
        try:
            await self._keep_up(place, replacing)
        except Exception as error:  # the others have messages in hand: they finish them
            logger.exception("a worker cannot go on, its processes finish", process=place)
            self._fail(error)
        process = self._running.get(place)
        if process is not None and not process.ended.is_set():
            await self._end(process)

    async def _keep_up(self, place: int, replacing: asyncio.Lock) -> None:
        failures = 0
        while not self._stop.is_set():
            process = await self._start(place)
            self._running[place] = process
            while not await self._until(process, place):
                if process.stopping:  # it ends in any case
                    process = await self._refilled(place)
                else:
                    process = await self._replaced_in_turn(place, process, replacing)
            if self._stop.is_set():
                break
            was_ready = process.ready.is_set()
            if process.refused:
                self._fail(InvalidArgument(process.refused))
                break
            lasted = was_ready and time.monotonic() - process.begun_s >= LASTED_S
            failures = 0 if lasted or process.stopping else failures + 1
            is_tried = process.has_begun or not self._ready_count()
            if not was_ready and is_tried and failures >= self._config.start_failures_max:
                why = process.error or f"exit code {process.exit_code}"
                self._fail(
                    InvalidState(
                        f"process {place} could not start {failures} times in a row: {why}",
                        hint="the lines above tell more",
                    )
                )
                break
            if failures:
                await self._pause(AGAIN.pause_s(failures, self._rng))

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stop.set()

    async def _pause(self, seconds: float) -> None:
        stopped = begin_task(self._stop.wait())
        await asyncio.wait({stopped}, timeout=seconds)
        stopped.cancel()

    async def _start(self, place: int) -> WorkerProcess:
        process = WorkerProcess(place, self._workers, self._handled)
        self._alive.add(process)
        await process.start(self._command, self._environment)
        if not process.has_begun:
            self._alive.discard(process)
            logger.error("process does not begin", process=place, error=process.error)
            return process
        process.tell_suspects(self._suspects.items())
        self._counts["started"] += 1
        logger.info("process starts", process=place, pid=process.pid)
        task = begin_task(self._account(process))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return process

    async def _account(self, process: WorkerProcess) -> None:
        """See to the end of a process."""
        await process.ended.wait()
        self._alive.discard(process)
        for place, count in enumerate(process.counts()):
            self._ended_counts[place] += count
        if process.stopping:
            logger.info("process ended", process=process.number, exit_code=process.exit_code)
            return
        self._counts["died"] += 1
        if process.refused:  # it had no messages, and whoever started it tells why
            return
        keys = [each.key for each in process.in_hand()]
        self._suspects.died(keys)
        self._tell_suspects()
        logger.error(
            "process died",
            process=process.number,
            pid=process.pid,
            exit_code=process.exit_code,
            error=process.refused or process.error,
            in_hand=[f"{key.topic}-{key.partition}@{key.offset}" for key in keys],
        )

    async def _until(self, process: WorkerProcess, place: int) -> bool:
        """Wait for the end of a process, or of the worker; False: it is to be replaced."""
        replace = self._replace[place]
        await self._first(process.ended, self._stop, replace)
        if process.ended.is_set() or self._stop.is_set():
            replace.clear()
            return True
        return False

    @staticmethod
    async def _waited(event: asyncio.Event) -> None:
        await event.wait()

    async def _first(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        """Return when the first of these is set, or the time is over."""
        waits = [begin_task(self._waited(event)) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _refilled(self, place: int) -> WorkerProcess:
        """Start another process at a place whose process ends."""
        self._replace[place].clear()
        made = self._running[place] = await self._start(place)
        self._counts["replaced"] += made.has_begun
        return made

    async def _replaced_in_turn(
        self, place: int, before: WorkerProcess, replacing: asyncio.Lock
    ) -> WorkerProcess:
        """Replace a process that works: one after the other, so that most of them work.

        It is returned itself if it has ended before its turn, or at the stop.
        """
        turn = begin_task(replacing.acquire())
        ended = begin_task(self._first(before.ended, self._stop))
        try:
            await asyncio.wait({turn, ended}, return_when=asyncio.FIRST_COMPLETED)
            if before.ended.is_set() or self._stop.is_set() or not turn.done():
                return before
            return await self._replaced(place, before)
        finally:
            ended.cancel()
            if turn.done():
                replacing.release()
            else:
                turn.cancel()

    async def _replaced(self, place: int, before: WorkerProcess) -> WorkerProcess:
        """Start another process at a place; return it, or the one before if it does not start."""
        self._replace[place].clear()
        made = await self._start(place)
        await self._first(made.ready, made.ended, self._stop, timeout_s=JOIN_S)
        if made.ready.is_set():
            self._counts["replaced"] += 1
            self._running[place] = made
            self._let_end(before, self._config.stop_timeout_s)
            return made
        if before.ended.is_set():
            self._running[place] = made
            return made
        if not self._stop.is_set():
            late = f"it has not joined its group within {JOIN_S:g} s"
            code = "" if made.exit_code is None else f"exit code {made.exit_code}"
            logger.error(
                "the new process does not start, the one before goes on",
                process=place,
                error=made.refused or made.error or code or late,
            )
        if made.has_had_messages():
            self._let_end(made, self._config.stop_timeout_s)
        else:
            made.kill()
        return before

    def _let_end(
        self, process: WorkerProcess, finish_s: float, *, is_overdue: bool = False
    ) -> None:
        """Have a process end beside the others; one that is overdue is not expected to finish."""
        if process.stopping:
            return
        process.stopping = True

        async def end() -> None:
            if not await process.end_within(finish_s, LEAVE_S) and not is_overdue:
                logger.warning("process did not finish in time", process=process.number)
                self._clean = self._clean and not self._stop.is_set()

        task = begin_task(end())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _end(self, process: WorkerProcess) -> None:
        """End a process at the stop of the worker."""
        if not process.ready.is_set() and not process.has_had_messages():
            process.kill()  # it may wait for ZooKeeper for long
            await process.ended.wait()
            self._clean = self._clean and not process.has_had_messages()
            return
        finishing = begin_task(process.end_within(self._config.stop_timeout_s, LEAVE_S))
        now = begin_task(self._waited(self._now))
        await asyncio.wait({finishing, now}, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        if finishing.done():
            self._clean = self._clean and finishing.result()
            return
        finishing.cancel()
        self._clean = False
        await process.end_within(0.0, LEAVE_S)

    # Looks ------------------------------------------------------------------------------------
    async def _look(self) -> None:
        """Look at the processes again and again: time limits, and what is replaced."""
        config = self._config
        limit_s = config.time_limit_s
        pause_s = max(LOOK_S_MIN, min(LOOK_S, limit_s / 10)) if limit_s else LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            for place, process in list(self._running.items()):
                if process.stopping or process.ended.is_set():
                    continue
                if limit_s:
                    self._end_overdue(process, limit_s)
                if not process.ready.is_set() or self._replace[place].is_set():
                    continue
                enough = config.messages_max and process.counts()[0] >= config.messages_max
                if enough or self._is_large(process):
                    why = "messages" if enough else "memory"
                    logger.info("process is replaced", process=place, because=why)
                    self._replace[place].set()

    def _is_large(self, process: WorkerProcess) -> bool:
        """Whether a process is to be replaced for its memory.

        One that has so much from the start is replaced no sooner than after ``LASTED_S``: the next
        one will have as much.
        """
        most = self._config.memory_mb_max
        if not most or process.memory_mb() < most:
            return False
        if process.ready_mb < most or time.monotonic() - process.begun_s >= LASTED_S:
            return True
        if not self._is_large_told:
            self._is_large_told = True
            logger.warning(
                "the limit of memory is below what a process begins with, set a higher one",
                process=process.number,
                memory_mb=round(process.ready_mb),
                limit_mb=most,
            )
        return False

    def _end_overdue(self, process: WorkerProcess, limit_s: float) -> None:
        late_s = time.monotonic() - limit_s
        overdue = [each.key for each in process.in_hand() if each.begun_s <= late_s]
        if not overdue:
            return
        self._counts["overdue"] += 1
        self._suspects.overdue(overdue)
        self._tell_suspects()
        logger.error(
            "time limit, the process ends",
            process=process.number,
            pid=process.pid,
            limit_s=limit_s,
            in_hand=[f"{key.topic}-{key.partition}@{key.offset}" for key in overdue],
        )
        self._let_end(process, OVERDUE_FINISH_S, is_overdue=True)
        self._replace[process.number].set()

    def _handled(self, key: MessageKey) -> None:
        self._suspects.handled(key)
        self._tell_suspects()

    def _tell_suspects(self) -> None:
        for process in self._alive:
            process.tell_suspects(self._suspects.items())

    async def _tell(self, started: Callable[[], object]) -> None:
        while not self._is_ready():  # noqa: ASYNC110  of several processes, which change
            await asyncio.sleep(LOOK_S_MIN)
        started()

    def _ready_count(self) -> int:
        """Return how many processes have joined their group, and run."""
        return sum(
            each.ready.is_set() and not each.ended.is_set() for each in self._running.values()
        )

    def _is_ready(self) -> bool:
        return self._ready_count() == self._config.processes

    async def _watch_files(self) -> None:
        """Replace all processes when a file of the code has changed."""
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(None, self._files)
        while True:
            await asyncio.sleep(RELOAD_LOOK_S)
            found = await loop.run_in_executor(None, self._files)
            if found != seen:
                self.reload()
            seen = found

    def _files(self) -> dict[str, int]:
        """Return when each file of the code was changed."""
        found: dict[str, int] = {}
        for directory in self._code:
            with contextlib.suppress(OSError):  # a directory may go while it is walked through
                for path in directory.rglob("*.py"):
                    if len(found) >= _FILES_MAX:
                        return found
                    with contextlib.suppress(OSError):
                        found[str(path)] = path.stat().st_mtime_ns
        return found

    # Health -----------------------------------------------------------------------------------
    async def _health(self) -> Page:
        return text_page(200, "ok")

    async def _readiness(self) -> Page:
        if self._stop.is_set():
            return text_page(503, "it stops")
        ready, most = self._ready_count(), self._config.processes
        text = f"{ready} of {most} processes have joined their group"
        return text_page(200 if self._is_ready() else 503, text)

    async def _metrics(self) -> Page:
        return await metrics_page(self._families())

    def _families(self) -> Iterator[Metric]:
        running = [each for each in self._running.values() if not each.ended.is_set()]
        handled, failed = self._ended_counts
        in_hand = 0
        for each in self._alive:
            one, other = each.counts()
            handled, failed = handled + one, failed + other
            in_hand += len(each.in_hand())
        for name, text, count in (
            ("handled_messages", "Messages whose handler has returned.", handled),
            ("failed_tries", "Tries whose handler has raised.", failed),
            ("started_processes", "Processes that were started.", self._counts["started"]),
            ("died_processes", "Processes that ended by themselves.", self._counts["died"]),
            ("overdue_processes", "Processes ended by the time limit.", self._counts["overdue"]),
            ("replaced_processes", "Processes replaced by others.", self._counts["replaced"]),
        ):
            yield CounterMetricFamily(f"vq_worker_{name}", text, value=count)
        for name, text, value in (
            ("processes", "Processes that run.", len(running)),
            ("ready_processes", "Of them, in their group.", sum(e.ready.is_set() for e in running)),
            ("messages_in_hand", "Messages that handlers are at.", in_hand),
            ("suspects", "Messages that processes may have died of.", len(self._suspects)),
        ):
            yield GaugeMetricFamily(f"vq_worker_{name}", text, value=value)
        memory = GaugeMetricFamily(
            "vq_worker_memory_bytes", "Memory of each process.", labels=["process"]
        )
        for each in running:
            memory.add_metric([str(each.number)], each.memory_mb() * 1e6)
        yield memory
