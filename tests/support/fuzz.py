"""Fuzz runs: each target in a process of its own, so that what it grows by is its own.

A test module has ``TARGETS``, calls ``check(__file__, name)`` in its tests, and ends with

    if __name__ == "__main__":
        child(TARGETS)
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vq import limits
from vq.errors import VqError

LONG = os.environ.get("VQ_LONG") == "1"
SEED = int(os.environ.get("VQ_FUZZ_SEED") or (random.SystemRandom().getrandbits(32) if LONG else 1))
ONLY_ROUND = os.environ.get("VQ_FUZZ_ROUND")
SHORT_ROUNDS = 1_500
LONG_S = 900.0
#: Processor time that one input may take where the yardstick takes ``YARDSTICK_S``.
INPUT_S_MAX = 0.050
YARDSTICK_S = 0.012
GROWTH_BYTES_MAX = 32 * limits.MIB

Target = Callable[[random.Random, bytes], None]
#: By name: what is tried, and what makes the bytes it is tried with.
Targets = Mapping[str, tuple[Target, Callable[[random.Random], bytes]]]

EDGES = [b"\x00", b"\x7f", b"\x80", b"\xff", b"\x00\x00\x00\x10", b"\x7f\xff\xff\xff", b"\xff" * 4]


def mutated(rng: random.Random, data: bytes, grafts: Sequence[bytes]) -> bytes:
    """``data`` with one to six breaks; ``grafts`` are what may be put into it."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                edge = rng.choice(EDGES)
                out[at : at + len(edge)] = edge
            case 2:
                del out[at : at + rng.choice([1, 2, 4, 20, 200])]
            case 3:
                out[at:at] = rng.randbytes(rng.choice([1, 2, 4, 20, 200]))
            case 4:
                start = rng.randrange(len(out) + 1)
                out[at:at] = out[start : start + rng.choice([1, 4, 50, 1_000])]
            case 5:
                del out[at:]
            case _:
                out[at:at] = rng.choice(grafts)
    return bytes(out)


def attempt(work: Callable[[], Any]) -> Any:
    """Return what ``work`` does, None if it says no in the right way."""
    try:
        return work()
    except VqError:
        return None


def run_round(targets: Targets, name: str, number: int) -> float:
    """Make and try one input; return the processor time that the target took."""
    target, make = targets[name]
    rng = random.Random(f"{SEED}/{name}/{number}")
    data = make(rng)
    begun = time.thread_time()
    try:
        target(rng, data)
    except BaseException as error:
        error.add_note(f"VQ_FUZZ_SEED={SEED} VQ_FUZZ_ROUND={number} ({name}), {len(data)} bytes")
        raise
    return time.thread_time() - begun


def input_s_max() -> float:
    """Return how much processor time one input may take on this machine, slow as it is now."""
    return INPUT_S_MAX * max(1.0, min(_yardstick() for _ in range(3)) / YARDSTICK_S)


def _yardstick() -> float:
    begun = time.thread_time()
    value = 0
    for number in range(120_000):
        value = (value * 31 + number) & 0xFFFF
    return time.thread_time() - begun


def child(targets: Targets) -> None:
    """Try one target, named on the command line, and print what was seen."""
    name = sys.argv[1]
    end = time.monotonic() + LONG_S
    rounds = [int(ONLY_ROUND)] if ONLY_ROUND else range(10**12 if LONG else SHORT_ROUNDS)
    slowest, slowest_round, number = 0.0, 0, 0
    allowed = input_s_max()
    before = _peak_bytes()
    for number in rounds:
        took = run_round(targets, name, number)
        if took > allowed:  # again: a busy neighbour, or a collection for what others left
            took = min(took, *(run_round(targets, name, number) for _ in range(3)))
            allowed = max(allowed, input_s_max())
        if took > slowest:
            slowest, slowest_round = took, number
        if LONG and time.monotonic() > end:
            break
    grown = _peak_bytes() - before
    seen = {
        "inputs": number + 1,
        "slowest_s": slowest,
        "allowed_s": allowed,
        "round": slowest_round,
        "grown": grown,
    }
    print(json.dumps(seen))


def check(module: str, name: str) -> None:
    """Run one target of a test module: no other error, no slow input, no growth."""
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-W", "error", module, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * LONG_S if LONG else 240,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "VQ_FUZZ_SEED": str(SEED),
        },
    )
    assert ended.returncode == 0, f"VQ_FUZZ_SEED={SEED} ({name})\n{ended.stderr}"
    seen = json.loads(ended.stdout)
    text = f"VQ_FUZZ_SEED={SEED} VQ_FUZZ_ROUND={seen['round']} ({name}): {seen}"
    print(text)
    assert seen["slowest_s"] <= seen["allowed_s"], text
    assert seen["grown"] <= GROWTH_BYTES_MAX, text


def _peak_bytes() -> int:
    """Return the most memory this process had so far."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux: may hold what the parent had when it started us
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
