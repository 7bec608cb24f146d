"""A work in a process of its own, and the parent's end of it.

A measured client shares no interpreter with anything else. Parent and child speak lines of JSON
over the child's standard input and output:

parent  {"work": "send_async", "count": 1000, ...}
child   {"ready": true}
parent  {"go": true, ...}
child   {"result": {...}}      or at any time {"error": "..."}

What a work made before it began (contents, above all) is not to be walked by the garbage collector
while it is measured: every child freezes it when it is ready, whatever client it uses.

The child's standard error is the parent's. It ends when its parent ends (Linux).
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from vq.cli.bench.workload import WORKS, WorkFailed
from vq.devtools.processes import die_with
from vq.errors import VqError

_STOP_S = 5.0
_LEAD_NS = 50_000_000


class Worker:
    """A child process with one work. A context manager: what still runs is killed at the end."""

    def __init__(self, work: str, *, command: Sequence[str] = (), **values: Any) -> None:
        """Start the child; ``command`` replaces the program, for other tables of works."""
        self._work = work
        self.process = subprocess.Popen(
            [*(command or (sys.executable, "-m", "vq.cli.bench.worker")), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say({"work": work, **values})

    def wait_ready(self, timeout_s: float = 120.0) -> Self:
        """Wait until the work is set up.

        Raises:
            WorkFailed: It failed, or took longer than ``timeout_s``.
        """
        self._answer("ready", timeout_s)
        return self

    def go(self, **values: Any) -> Self:
        """Let it begin, and tell it ``values``; returns at once."""
        self._say({"go": True, **values})
        return self

    def result(self, timeout_s: float = 3600.0) -> dict[str, Any]:
        """Wait for the end and return what was measured.

        Raises:
            WorkFailed: It failed, or took longer than ``timeout_s``.
        """
        found = self._answer("result", timeout_s)
        assert isinstance(found, dict)
        self.process.wait(_STOP_S)
        return found

    def _say(self, value: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkFailed(f"the process of {self._work} has ended") from None

    def _answer(self, key: str, timeout_s: float) -> Any:
        assert self.process.stdout is not None
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.daemon = True  # ctrl-C anywhere in here must not have the interpreter wait for it
        try:
            timer.start()
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise WorkFailed(
                f"the process of {self._work} ended without {key!r} (code {self.process.wait()}; "
                f"it had {timeout_s:g} s)"
            )
        said = json.loads(line)
        if key not in said:
            raise WorkFailed(f"{self._work}: {said.get('error', line)}")
        return said[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def run(work: str, **values: Any) -> dict[str, Any]:
    """Run one work in a process of its own and return what it measured.

    Raises:
        WorkFailed: It failed.
    """
    with Worker(work, **values) as worker:
        return worker.wait_ready().go().result()


def on_schedule(send: Worker, receive: Worker) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let ``send_on_schedule`` and ``receive_on_schedule`` begin together; return their results."""
    for each in (receive, send):
        each.wait_ready()
    begin_ns = time.monotonic_ns() + _LEAD_NS
    for each in (receive, send):
        each.go(begin_ns=begin_ns)
    return send.result(), receive.result()


def serve(works: Mapping[str, Callable[..., dict[str, Any]]]) -> int:
    """Be the child: do the one work asked for on standard input; return the exit code."""
    with contextlib.suppress(IndexError):
        die_with(int(sys.argv[1]))
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not break the protocol

    def say(value: Mapping[str, Any]) -> None:
        channel.write(json.dumps(value) + "\n")
        channel.flush()

    def ready() -> Mapping[str, Any]:
        gc.collect()
        gc.freeze()
        say({"ready": True})
        line = sys.stdin.readline()
        if not line:
            raise WorkFailed("the parent has ended")
        told: Mapping[str, Any] = json.loads(line)
        return told

    try:
        asked = json.loads(sys.stdin.readline())
        result = works[asked.pop("work")](ready, **asked)
    except (VqError, OSError) as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return 1
    say({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(serve(WORKS))
