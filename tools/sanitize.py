"""Run the tests of the compiled loops with a watch on memory and undefined behaviour.

    python tools/sanitize.py [PYTEST ARGUMENT ...]

A copy of ``vq/`` gets its C files compiled with AddressSanitizer and UndefinedBehaviorSanitizer,
and pytest runs with that copy first on the path. A read behind a buffer, a use after free or an
overflow of a signed number ends the run with a report. Without arguments it runs ``SUITES``.
It needs gcc with its sanitizers, which Debian's package ``gcc`` brings.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_loops import SOURCES, NotCompiled, compile_module, target_of

ROOT = Path(__file__).resolve().parent.parent
#: Whatever is tried with the compiled loops and with their Python twins.
SUITES = (
    "tests/unit/store/commit",
    "tests/unit/store/records",
    "tests/unit/client/producer",
    "tests/unit/client/test_future.py",
    "tests/unit/test_message.py",
    "tests/unit/client/consumer/deliver",
    "tests/unit/remoting/test_frames.py",
    "tests/unit/remoting/test_room.py",
    "tests/property/test_store_codecs.py",
)
FLAGS = (
    *("-O0", "-g", "-fPIC", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
LIBRARIES = ("libasan.so", "libubsan.so")
#: Python keeps objects until it ends, which is no leak.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "PYTHONSAFEPATH": "1",  # without it, the checkout comes before the copy
    "PYTHONMALLOC": "malloc",  # each object is an allocation of its own, so its ends are watched
}


def libraries() -> list[str]:
    """Return the sanitizers' libraries.

    Raises:
        NotCompiled: There are none.
    """
    found = []
    for name in LIBRARIES:
        try:
            command = ["gcc", f"-print-file-name={name}"]
            said = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotCompiled(f"gcc: {error}") from error
        path = said.stdout.strip()
        if not Path(path).is_absolute():
            raise NotCompiled(f"gcc has no {name}")
        found.append(path)
    return found


def watched(place: Path, preload: str) -> dict[str, str]:
    """Return the environment of a process whose first modules are those in ``place``."""
    path = os.pathsep.join([str(place), str(ROOT / "tests")])
    return {**os.environ, **OPTIONS, "LD_PRELOAD": preload, "PYTHONPATH": path}


def _program(copy: Path) -> str:
    """Return what runs pytest, if a process takes the compiled loops of the copy."""
    modules = [".".join(source.with_suffix("").parts) for source in SOURCES]
    return f"""
import sys, {", ".join(modules)}
taken = [each.__file__ for each in ({", ".join(modules)},)]
if not all(each.startswith({str(copy)!r}) for each in taken):
    sys.exit(f"the loops of the copy are not taken: {{taken}}")
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def run(arguments: Sequence[str]) -> int:
    """Compile, run pytest, and return its code.

    Raises:
        NotCompiled: It cannot be compiled here.
    """
    preload = ":".join(libraries())
    with tempfile.TemporaryDirectory(prefix="vq-sanitize-") as scratch:
        copy = Path(scratch)
        shutil.copytree(ROOT / "vq", copy / "vq", ignore=shutil.ignore_patterns("*.so"))
        for source in SOURCES:
            compile_module(copy / source, target_of(copy / source), FLAGS)
        command = [sys.executable, "-c", _program(copy), "-q"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--rootdir", str(ROOT), "--confcutdir", str(ROOT)]
        return subprocess.run(
            [*command, *(arguments or SUITES)],
            cwd=ROOT,
            env=watched(copy, preload),
            check=False,
        ).returncode


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except NotCompiled as error:
        sys.exit(f"tools/sanitize.py: {error}")
