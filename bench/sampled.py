"""Runs a module under a sampler and writes where each thread spent its processor time.

    python -m bench.sampled SAMPLES.json MODULE [ARGUMENTS]

Every ``INTERVAL_S`` one thread looks at the stacks of all others and charges each stack with the
processor time its thread used since the last look. Needs nothing but Python; it slows a busy
process by some per cent, and time in C code is charged to the line that called it.
"""

import collections
import contextlib
import json
import runpy
import sys
import threading
import time
from pathlib import Path
from types import FrameType

INTERVAL_S = 0.002
#: The interpreter hands the GIL on after so long; the default of 5 ms would let the sampler look
#: only where a thread blocks by itself.
_SWITCH_S = 0.0005
_DEPTH_MAX = 60


class Sampler(threading.Thread):
    """Samples all threads until ``stop``."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self._ending = threading.Event()
        self._clocks: dict[int, tuple[str, int, float]] = {}  # ident: name, clock, last reading
        self.own: dict[str, dict[str, float]] = {}  # by thread and function, seconds
        self.whole: dict[str, dict[str, float]] = {}  # … with what it called
        self.seconds = 0.0

    def run(self) -> None:
        """Sample; on this thread."""
        begin = time.perf_counter()
        while not self._ending.wait(INTERVAL_S):
            self._look()
        self.seconds = time.perf_counter() - begin

    def stop(self) -> None:
        """Stop sampling and wait for the end of the thread."""
        self._ending.set()
        self.join()

    def _look(self) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            ident = thread.ident
            if ident is None or thread is self or ident not in frames:
                continue
            used = self._used(ident, thread.name)
            if used > 0 and not _is_importing(frames[ident]):
                self._charge(thread.name, frames[ident], used)

    def _used(self, ident: int, name: str) -> float:
        try:
            known = self._clocks.get(ident)
            clock = known[1] if known else time.pthread_getcpuclockid(ident)
            now = time.clock_gettime(clock)
        except OSError:  # the thread has ended
            self._clocks.pop(ident, None)
            return 0.0
        self._clocks[ident] = (name, clock, now)
        return now - known[2] if known else 0.0

    def _charge(self, thread: str, frame: FrameType | None, used: float) -> None:
        own = self.own.setdefault(thread, collections.defaultdict(float))
        whole = self.whole.setdefault(thread, collections.defaultdict(float))
        seen = set()
        first = True
        depth = 0
        while frame is not None and depth < _DEPTH_MAX:
            place = _place(frame)
            if first:
                own[place] += used
                first = False
            if place not in seen:
                seen.add(place)
                whole[place] += used
            frame = frame.f_back
            depth += 1

    def write(self, path: Path) -> None:
        """Write the samples."""
        path.write_text(json.dumps({"seconds": self.seconds, "own": self.own, "whole": self.whole}))


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a thread still loads its program; the profile leaves this out."""
    for _ in range(_DEPTH_MAX):
        if frame is None:
            return False
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType) -> str:
    code = frame.f_code
    parts = Path(code.co_filename).parts
    start = next((at for at, part in enumerate(parts) if part in {"vq", "bench"}), len(parts) - 2)
    return f"{'/'.join(parts[start:])}:{code.co_qualname}"


def main() -> None:
    """Sample the module named on the command line while it runs as a program."""
    target, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    sys.setswitchinterval(_SWITCH_S)
    sampler = Sampler()
    sampler.start()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        with contextlib.suppress(OSError):
            sampler.stop()
            sampler.write(Path(target))


if __name__ == "__main__":
    main()
