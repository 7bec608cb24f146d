"""One process of a worker, as its parent sees it. Loop-bound."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vq.log_lines import get_logger
from vq.shown import shown_raised
from vq.tasks import begin_task
from vq.worker.config import CHILD_VARIABLE, FINISH, NOW
from vq.worker.in_hand import HeldByThread, Slots, make_file
from vq.worker.suspects import MessageKey

logger = get_logger(__name__)

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MB: Final = 1_000_000
#: What a process tells at a time is not longer.
_LINE_BYTES_MAX: Final = 1 << 20


class WorkerProcess:
    """A process from its start to its end.

    Attributes:
        number: Its place in the worker.
        pid: Of the process.
        ready: Set when it has joined its group.
        ready_mb: Its memory in MB at that time.
        ended: Set when the process has ended, or could not begin.
        begun_s: When it began, by ``time.monotonic``.
        has_begun: The system has begun it.
        refused: Why its handlers cannot be used; "": they can.
        error: What it told last; "": nothing.
        stopping: It was told to stop.
    """

    def __init__(self, number: int, slots: int, on_handled: Callable[[MessageKey], None]) -> None:
        self.number = number
        self.pid = 0
        self.ready_mb = 0.0
        self.begun_s = time.monotonic()
        self.has_begun = False
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.refused = self.error = ""
        self.stopping = False
        self._slots_count = slots
        self._on_handled = on_handled
        self._slots: Slots | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last: tuple[list[HeldByThread], tuple[int, int]] = [], (0, 0)

    async def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it, in a process group of its own: ctrl-C is for the parent.

        If the system has no descriptor, memory or space for it, it has ended behind this call, and
        ``error`` says why.
        """
        try:
            reads = await self._begin(command, environment)
        except OSError as error:
            self.error = f"the system cannot begin it: {shown_raised(error)}"
            if self._slots is not None:
                self._slots.close()
                self._slots = None
            self.ended.set()
            return
        assert self._process is not None
        self.pid, self.has_begun = self._process.pid, True
        self._tasks = [begin_task(self._listen(reads)), begin_task(self._wait())]

    async def _begin(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Begin it; return the descriptor that reads what it tells."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as failed:
            memory = make_file(self._slots_count)
            theirs.callback(os.close, memory)
            reads, writes = os.pipe()
            theirs.callback(os.close, writes)
            failed.callback(os.close, reads)
            self._slots = Slots(memory, self._slots_count)
            told = f"{self.number},{memory},{writes}"
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                env={**environment, CHILD_VARIABLE: told},
                pass_fds=(memory, writes),
                process_group=0,
            )
            failed.pop_all()
            return reads

    async def _listen(self, descriptor: int) -> None:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(_LINE_BYTES_MAX)
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            is_at_end = False
            while not is_at_end:
                try:
                    line = await reader.readline()
                    is_at_end = not line
                    if line:
                        self._told(json.loads(line))
                except (ValueError, LookupError, TypeError) as error:  # the next line counts again
                    logger.warning(
                        "what a process told cannot be read",
                        process=self.number,
                        pid=self.pid,
                        error=shown_raised(error),
                    )
        finally:
            transport.close()

    def _told(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self.ready_mb = self.memory_mb()
                self.ready.set()
            case "refused":
                self.refused = event["error"]
            case "failed":
                self.error = event["error"]
            case "handled":
                self._on_handled(MessageKey(*event["key"]))

    async def _wait(self) -> None:
        assert self._process is not None
        await self._process.wait()
        await asyncio.wait(self._tasks[:1], timeout=1.0)  # what it told last
        assert self._slots is not None
        self._last = self._slots.in_hand(), self._slots.counts()
        self._slots.close()
        self._slots = None
        self.ended.set()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None: it has not ended."""
        return None if self._process is None else self._process.returncode

    def in_hand(self) -> list[HeldByThread]:
        """Return what it has in hand; behind its end what it had."""
        return self._last[0] if self._slots is None else self._slots.in_hand()

    def has_had_messages(self) -> bool:
        """Whether it has, or had, a message in hand."""
        return bool(self.in_hand()) or any(self.counts())

    def counts(self) -> tuple[int, int]:
        """Return how many messages it has handled, and how many tries failed."""
        return self._last[1] if self._slots is None else self._slots.counts()

    def memory_mb(self) -> float:
        """Return its memory in MB; 0: this system does not tell."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return pages * _PAGE_BYTES / _MB

    def tell_suspects(self, suspects: Iterable[tuple[MessageKey, int]]) -> None:
        """Tell it which messages processes may have died of."""
        self._write({"suspects": [[*key, count] for key, count in suspects]})

    def finish(self) -> None:
        """Have it finish what it has in hand, and end."""
        self.stopping = True
        self._write({"stop": FINISH})

    def leave(self) -> None:
        """Have it commit what is handled, and end at once."""
        self.stopping = True
        self._write({"stop": NOW})

    def kill(self) -> None:
        """End it."""
        self.stopping = True
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(signal.SIGKILL)

    async def end_within(self, finish_s: float, leave_s: float) -> bool:
        """End it: let it finish, then have it leave, then kill it; return whether it finished."""
        for step, wait_s in ((self.finish, finish_s), (self.leave, leave_s)):
            if wait_s > 0 or step == self.leave:
                step()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended.wait(), wait_s)
                if self.ended.is_set():
                    return step == self.finish and self.exit_code == 0
        self.kill()
        await self.ended.wait()
        return False

    def _write(self, told: Mapping[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not self.ended.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                process.stdin.write(json.dumps(told).encode() + b"\n")
