"""Real brokers under strace: system calls are watched, fail, or are where the process dies.

    attached(pid, log, …)   watch a running broker; counts of ``inject`` begin here
    traced(spec, log, …)    a broker that runs under strace from its first call on

The counter of ``inject=…:when=N`` is one per thread and per system call, so N means the N-th such
call of any one thread.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.cluster import ForkedBroker
from support.command_server import command_server
from support.zookeeper import forbidden, unavailable

from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

_LINE = re.compile(r"^(\d+)\s+(?:([a-z_0-9]+)\((.*)|<\.\.\. ([a-z_0-9]+) resumed>(.*))$", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_RESULT = re.compile(r"^(.*)\)\s+= (-?\d+|\?)(.*)$", re.DOTALL)


def need_strace(*, attaching: bool = False) -> None:
    """Skip where strace may not trace, or not a running process; fail on CI if it is missing."""
    if shutil.which("strace") is None:
        unavailable("strace is not installed: apt-get install strace")
    reason = _why_not(attaching=attaching)
    if reason:
        forbidden(reason)


@cache
def _why_not(*, attaching: bool) -> str:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        what = ["-p", str(sleeper.pid)] if attaching else ["true"]
        with subprocess.Popen(
            ["strace", "-f", "-o", os.devnull, *what],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        ) as tracer:
            block_until(
                lambda: tracer.poll() is not None or _all_traced(sleeper.pid), "strace traces"
            )
            sleeper.kill()
            assert tracer.stderr is not None
            said = tracer.stderr.read().decode()
    if tracer.returncode == 0 or (attaching and "attached" in said):
        return ""
    return f"strace may not trace here: {said.strip()}; see /proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSpec(BrokerSpec):
    """A broker that runs under strace; the broker keeps the process id, strace is beside it."""

    trace: Path
    strace: Sequence[str] = ()

    def command(self) -> list[str]:
        """Return the broker's command line behind that of strace."""
        own = BrokerSpec.command(self)
        # Not with --seccomp-bpf: it is quicker, but then strace 6.1 injects no signals.
        return ["strace", "-f", "-D", "-o", str(self.trace), *self.strace, *own]


@contextmanager
def traced(spec: BrokerSpec, trace: Path, *strace: str) -> Iterator[BrokerChild]:
    """Run a broker under strace; it is killed at the end, and ``trace`` is whole then.

    A forked one begins when it is traced: strace would stop an interpreter that starts at each of
    the thousands of calls of its imports.
    """
    if command_server(os.environ) is None:
        values = {field.name: getattr(spec, field.name) for field in fields(BrokerSpec)}
        child = BrokerChild(TracedSpec(**values, trace=trace, strace=strace))
        child.start()
        try:
            yield child
        finally:
            child.kill()
            _wait_tracer_gone(trace)
        return
    child = ForkedBroker(spec)
    child.traced = True
    child.start()
    try:
        with attached(child.pid, trace, *strace, waits=True):
            yield child
            child.kill()
    finally:
        child.kill()


@contextmanager
def attached(pid: int, trace: Path, *strace: str, waits: bool = False) -> Iterator[None]:
    """Trace a running process while the block runs; ``trace`` is whole afterwards.

    One that ``waits`` until it is traced may have ended by itself when the block begins.
    """
    with subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-o", str(trace), *strace],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as tracer:
        try:
            if not waits:
                block_until(
                    lambda: tracer.poll() is not None or _all_traced(pid), "strace is attached"
                )
                if tracer.poll() is not None:
                    assert tracer.stderr is not None
                    raise AssertionError(f"strace ended: {tracer.stderr.read().decode()}")
            yield
        finally:
            if tracer.poll() is None:
                tracer.send_signal(signal.SIGINT)
            tracer.wait(PROCESSES_WAIT_S)


def _all_traced(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    try:
        return all("\nTracerPid:\t0\n" not in thread.read_text() for thread in threads)
    except OSError:  # one has just ended: look again
        return False


def _wait_tracer_gone(trace: Path) -> None:
    """Wait until ``trace`` does not grow any more."""
    block_until(
        lambda: not any(_has_open(process, trace) for process in Path("/proc").glob("[0-9]*")),
        f"strace no longer writes to {trace}",
    )


def _has_open(process: Path, path: Path) -> bool:
    try:
        if (process / "comm").read_text() != "strace\n":
            return False
        return any(os.readlink(fd) == str(path) for fd in (process / "fd").iterdir())
    except OSError:
        return False


class Call(NamedTuple):
    """One system call. It began when ``begin`` calls had begun or ended, and ended at ``end``.

    ``result`` is None if it never returned. ``injected`` says that strace interfered.
    """

    begin: int
    end: int
    thread: int
    name: str
    arguments: str
    result: int | None
    injected: bool


def read_trace(trace: Path) -> list[Call]:
    """Return the calls of a trace in the order of their ends; those without end come last."""
    calls: list[Call] = []
    begun: dict[int, tuple[int, str, str]] = {}
    for number, line in enumerate(trace.read_text(errors="replace").splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue  # a signal, or the end of a thread
        thread = int(match[1])
        begin, name, arguments = number, match[2], match[3]
        if name is None:
            if thread not in begun:
                continue  # it had begun before we were attached
            begin, name, arguments = begun.pop(thread)
            arguments += match[5]
        elif arguments.endswith(_UNFINISHED):
            begun[thread] = (number, name, arguments.removesuffix(_UNFINISHED))
            continue
        result = _RESULT.match(arguments)
        if result is not None:
            value = None if result[2] == "?" else int(result[2])
            injected = "(INJECTED)" in result[3]
            calls.append(Call(begin, number, thread, name, result[1], value, injected))
    calls += [
        Call(begin, 1 << 60, thread, name, arguments, None, injected=False)
        for thread, (begin, name, arguments) in begun.items()
    ]
    return calls
