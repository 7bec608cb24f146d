"""Fuzz runs that coverage guides, by atheris: what reached new lines is broken further.

    make fuzz ARGS='[--target NAME ...] [--seconds S | --inputs N] [--seed N]'
    make fuzz ARGS='--target hessian --seconds 3600'

The targets are those of ``support.fuzz``: the same functions and the same bounds on one input.
Seeds are what their generators make, and inputs that a run has found and somebody has kept, under
``tests/testdata/fuzz/TARGET``. The compiled codec is left out, so that its Python twin shows the
way. A new input that reaches new lines goes to ``.cache/fuzz/TARGET``, where the next run
finds it; one that fails stays in ``.cache/fuzz`` with the name that is printed.

    make fuzz ARGS='--replay FILE --target NAME'     try one input
"""

import argparse
import importlib
import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "testdata" / "fuzz"
FOUND = ROOT / ".cache" / "fuzz"
MODULES = ("test_wire_fuzz", "test_store_fuzz", "test_text_fuzz")
#: The compiled twins of what is tried.
COMPILED = (
    "vq._message",
    "vq.client.consumer.deliver._asking",
    "vq.client.consumer.deliver._bulk",
    "vq.store.records._codec",
    "vq.store.records._columns",
)
SEEDS = 64
INPUT_BYTES_MAX = 64 << 10
#: In here, where lines are counted, one input takes twenty times what it takes otherwise.
INPUT_S_MAX = 10
MEMORY_MB_MAX = 1_500


def names() -> dict[str, str]:
    """Return the module of each target, by the target's name."""
    found = {}
    for module in MODULES:
        targets = importlib.import_module(module).TARGETS
        assert not found.keys() & targets.keys(), "a name of a target is there twice"
        found |= dict.fromkeys(targets, module)
    return found


def write_seeds(directory: Path, targets: Sequence[str], seed: int) -> None:
    """Write what the generators of targets make, and what is kept of them, into a directory.

    With several targets the first byte of an input says which one it is for.
    """
    modules = names()
    for number, name in enumerate(targets):
        mark = bytes([number]) if len(targets) > 1 else b""
        make = importlib.import_module(modules[name]).TARGETS[name][1]
        inputs = [make(random.Random(f"{seed}/{name}/{each}")) for each in range(SEEDS)]
        for place in (KEPT / name, FOUND / name):
            inputs += [path.read_bytes() for path in sorted(place.glob("*"))]
        for at, data in enumerate(inputs):
            (directory / f"{name}-{at}").write_bytes(mark + data[: INPUT_BYTES_MAX - 1])


def run(targets: Sequence[str], options: Sequence[str]) -> int:
    """Try targets in a process of their own; return its code, 0: nothing was found."""
    FOUND.mkdir(parents=True, exist_ok=True)
    return start(["--child", ",".join(targets), *options]).returncode


def start(arguments: Sequence[str], **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run this module in a process of its own, which finds the modules of the targets."""
    command = [sys.executable, "-m", "support.guided_fuzz", *arguments]
    paths = [ROOT / "tests", ROOT / "tests" / "property", ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(command, env=environment, check=False, text=True, **how)


def child(targets: Sequence[str], options: Sequence[str]) -> None:
    """Try targets for ever, or as long as the options of libFuzzer say; ends the process."""
    import atheris

    for name in COMPILED:
        sys.modules[name] = None  # type: ignore[assignment]
    with atheris.instrument_imports(include=["vq"]):
        modules = names()
    tried = [importlib.import_module(modules[name]).TARGETS[name][0] for name in targets]

    def try_one(data: bytes) -> None:
        number = 0
        if len(tried) > 1:
            if not data:
                return
            number, data = data[0] % len(tried), data[1:]
        tried[number](random.Random(zlib.crc32(data)), data)

    atheris.Setup([sys.argv[0], *options], try_one)
    atheris.Fuzz()


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", help="one of them; else each in turn")
    parser.add_argument("--seconds", type=int, default=900, help="for each target")
    parser.add_argument("--inputs", type=int, help="stop after so many inputs instead")
    parser.add_argument("--seed", type=int, default=0, help="of the run; 0: a new one")
    parser.add_argument("--together", action="store_true", help="all targets in one process")
    parser.add_argument("--replay", type=Path, help="a file with one input of --target")
    given = parser.parse_args(arguments)
    known = names()
    targets = given.target or list(known)
    unknown = [name for name in targets if name not in known]
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(known)}")
    if given.replay is not None:
        if len(targets) != 1:
            parser.error("--replay needs one --target")
        return run(targets, [str(given.replay)])
    bound = f"-max_total_time={given.seconds}"
    if given.inputs is not None:
        bound = f"-runs={given.inputs}"
    seed = given.seed or random.SystemRandom().getrandbits(31)
    print(f"seed {seed}", flush=True)
    ended = 0
    for group in [targets] if given.together else [[name] for name in targets]:
        with tempfile.TemporaryDirectory(prefix="vq-fuzz-") as scratch:
            write_seeds(Path(scratch), group, seed)
            found = FOUND / group[0] if len(group) == 1 else Path(scratch) / "found"
            found.mkdir(parents=True, exist_ok=True)
            options = [bound, f"-seed={seed}", f"-timeout={INPUT_S_MAX}"]
            options += [f"-rss_limit_mb={MEMORY_MB_MAX}", f"-max_len={INPUT_BYTES_MAX}"]
            options += [f"-artifact_prefix={FOUND}/{group[0]}-", "-print_final_stats=1"]
            ended = run(group, [*options, str(found), scratch]) or ended
    return ended


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2].split(","), sys.argv[3:])
    sys.exit(main(sys.argv[1:]))
