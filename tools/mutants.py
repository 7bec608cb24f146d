"""Put small bugs into a copy of vq, one at a time, and report which suite of tests finds each.

    python tools/mutants.py                  every mutant of tests/mutants/catalogue.toml
    python tools/mutants.py NAME [NAME ...]  these
    python tools/mutants.py --suites unit,property
    python tools/mutants.py --every-suite    go on after the first suite that finds a mutant
    python tools/mutants.py --list           names, and the promise that each breaks

A mutant that no suite finds shows a promise that no test checks. Each entry of the catalogue has
the file to change, the text to find (exactly once), its replacement, the promise that breaks, and
the tests that should fail. These tests run first, then whole suites in rising order of cost.

The tests run on a copy in a temporary directory; the checkout is never changed. The exit code is 0
if every mutant was found, 1 if one survived, 2 if the catalogue does not fit the code. Ctrl-C and
SIGTERM end the tests that run, remove the copy, and exit with 128 and the number of the signal.

A test may also fail because the machine is busy. So the failed test runs again alone: it must fail
with the mutant and pass without it. Otherwise the suite runs again.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Never

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "tests" / "mutants" / "catalogue.toml"

#: Name, the tests that it runs, and after how many seconds it counts as hanging. Rising cost.
SUITES: dict[str, tuple[tuple[str, ...], float]] = {
    "named": ((), 240.0),
    "unit": (("tests/unit",), 400.0),
    "cluster": (("tests/cluster",), 400.0),
    "property": (("tests/property",), 400.0),
    "simulation": (
        (
            "tests/faults/test_simulation.py",
            "tests/faults/test_simulation_stories.py",
            "tests/faults/test_crash_states.py",
            "tests/faults/test_crash_directory.py",
        ),
        600.0,
    ),
    "real": (("tests/integration", "tests/faults"), 1500.0),
}
#: Not copied from the checkout: the tests do not need it; the environment is linked.
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".cache", "__pycache__", ".*_cache", ".hypothesis", ".demo", ".test-artifacts"
)
#: The bound of one test; a mutant that makes a test hang is found.
TEST_TIMEOUT_S = 60
#: Signals that end the tool, and the tests that it runs.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: After so many runs with failures that the mutant did not cause, the suite has not found it.
TRIES = 3


class CatalogueError(Exception):
    """An entry of the catalogue does not fit the code; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small bug.

    Attributes:
        name: Unique.
        file: Path inside the checkout.
        find: Text that occurs exactly once in the file.
        replace: The replacement.
        breaks: The promise that breaks, in one sentence.
        tests: Paths (or node ids) of the tests that should fail.
    """

    name: str
    file: str
    find: str
    replace: str
    breaks: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Change the file below ``root``; return its text before.

        Raises:
            CatalogueError: The text to find does not occur exactly once.
        """
        path = root / self.file
        before = path.read_text() if path.exists() else ""
        count = before.count(self.find)
        if count != 1:
            raise CatalogueError(
                f"mutant {self.name}: its text occurs {count} times in {self.file}, not once; "
                f"renew the entry in {CATALOGUE.relative_to(ROOT)}"
            )
        path.write_text(before.replace(self.find, self.replace))
        return before


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one suite for one mutant: the first failed test, or None."""

    suite: str
    test: str | None
    seconds: float


def load(path: Path = CATALOGUE) -> list[Mutant]:
    """Return the catalogue in its own order.

    Raises:
        CatalogueError: A name stands twice, or an entry changes nothing.
    """
    entries = tomllib.loads(path.read_text())["mutant"]
    mutants = [
        Mutant(
            name=entry["name"],
            file=entry["file"],
            find=entry["find"].strip("\n"),
            replace=entry["replace"].strip("\n"),
            breaks=entry["breaks"],
            tests=tuple(entry["tests"]),
        )
        for entry in entries
    ]
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.name in seen:
            raise CatalogueError(f"mutant {mutant.name} stands twice in the catalogue")
        if mutant.find == mutant.replace:
            raise CatalogueError(f"mutant {mutant.name} changes nothing")
        seen.add(mutant.name)
    return mutants


def copy_tree(target: Path) -> None:
    """Copy the checkout, compiled loops included, and link its environment."""
    shutil.copytree(ROOT, target, ignore=LEFT_OUT, symlinks=True)
    (target / ".venv").symlink_to(ROOT / ".venv")


def run_tests(root: Path, paths: Sequence[str], timeout_s: float, jobs: int) -> str | None:
    """Run tests of the tree below ``root`` until one fails; return which, or None."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    # A test there checks that every entry fits the code; a mutated tree must not fail for that.
    command += ["--ignore", "tests/unit/tools/test_mutants.py"]
    command += ["--timeout", str(TEST_TIMEOUT_S), *paths]
    if jobs > 1:
        command += ["-n", str(jobs)]
    # Also for the processes that tests start: they must run the changed code.
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        # No signal comes between the start of the child and the ``try`` that ends it.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            child = subprocess.Popen(
                command,
                cwd=root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_let_signals_in,
            )
            try:
                _let_signals_in()
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_group(child)
        finally:
            _let_signals_in()
        output.seek(0)
        lines = output.read().splitlines()
    if code == 0:
        return None
    if code is None:
        return f"(no end within {timeout_s:g} s)"
    return first_failure(lines)


def first_failure(lines: Iterable[str]) -> str:
    """Return the first failed test that pytest's summary names.

    Text before the summary is ignored: captured log lines begin with "ERROR", too.
    """
    summary = dropwhile(lambda line: "short test summary info" not in line, lines)
    for line in summary:
        word, _, rest = line.partition(" ")
        if word in {"FAILED", "ERROR"} and rest:
            return rest.partition(" - ")[0].strip()
    return "(the run failed without naming a test)"


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


def _end_group(child: "subprocess.Popen[bytes]") -> None:
    """End the processes that the run left; they share one group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Leave the block by ``SystemExit`` at the first signal of ``ENDS``, also if it was ignored.

    The default of SIGTERM runs no ``finally``, so the tests would go on.
    """

    def leave(number: int, _: FrameType | None) -> Never:
        for each in ENDS:  # nothing interrupts the tidying up
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def judge(
    mutant: Mutant, root: Path, suites: Sequence[str], *, jobs: int, every_suite: bool
) -> list[Finding]:
    """Run the suites against one mutant; stop at the first that finds it, unless all must run."""
    before = mutant.apply(root)
    findings = []
    try:
        for suite in suites:
            paths, timeout_s = SUITES[suite]
            begin = time.monotonic()
            paths = paths or mutant.tests
            for _ in range(TRIES):
                test = run_tests(root, paths, timeout_s, jobs if suite != "named" else 1)
                if test is None or is_confirmed(mutant, root, before, test, paths):
                    break
                print(f"again     {mutant.name}  suite={suite} not_confirmed={test}", flush=True)
                test = None
            findings.append(Finding(suite, test, time.monotonic() - begin))
            if test is not None and not every_suite:
                break
    finally:
        (root / mutant.file).write_text(before)
    return findings


def is_confirmed(mutant: Mutant, root: Path, before: str, test: str, paths: Sequence[str]) -> bool:
    """Whether a test fails alone, too, and passes in the tree without the mutant.

    A run that ended without naming a test is repeated as a whole.
    """
    alone = (test,) if "::" in test else tuple(paths)
    timeout_s = SUITES["named"][1]
    if run_tests(root, alone, timeout_s, 1) is None:
        return False
    changed = root / mutant.file
    mutated = changed.read_text()
    changed.write_text(before)
    try:
        return run_tests(root, alone, timeout_s, 1) is None
    finally:
        changed.write_text(mutated)


def report(mutant: Mutant, findings: Sequence[Finding]) -> bool:
    """Print the result of a mutant; return whether it was found."""
    found = [finding for finding in findings if finding.test is not None]
    if not found:
        tried = ", ".join(finding.suite for finding in findings)
        print(f"SURVIVED  {mutant.name}: {mutant.breaks} (tried: {tried})", flush=True)
        return False
    for finding in found:
        print(
            f"found     {mutant.name}  suite={finding.suite} after={finding.seconds:.0f}s "
            f"by={finding.test}",
            flush=True,
        )
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="which suite of tests finds which mutant")
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--suites", default=",".join(SUITES), help=f"of {', '.join(SUITES)}")
    parser.add_argument("--every-suite", action="store_true", help="do not stop at the first")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a whole suite (2)")
    parser.add_argument("--list", action="store_true", help="show the catalogue and end")
    options = parser.parse_args(arguments)
    suites = options.suites.split(",")
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        parser.error(f"there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    try:
        mutants = load()
        strangers = sorted(set(options.names) - {mutant.name for mutant in mutants})
        if strangers:
            raise CatalogueError(f"there is no mutant {strangers[0]!r}; --list names them")
        chosen = [m for m in mutants if not options.names or m.name in options.names]
        if options.list:
            for mutant in chosen:
                print(f"{mutant.name}: {mutant.breaks}")
            return 0
        with ended_by_signals():
            return run(chosen, suites, jobs=options.jobs, every_suite=options.every_suite)
    except CatalogueError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


def run(mutants: Sequence[Mutant], suites: Sequence[str], *, jobs: int, every_suite: bool) -> int:
    """Judge all of ``mutants``; the code as it is must pass the same suites first."""
    survived = []
    with tempfile.TemporaryDirectory(prefix="vq-mutants-") as place:
        root = Path(place) / "tree"
        copy_tree(root)
        named = sorted({test for mutant in mutants for test in mutant.tests})
        failure = run_tests(root, named, SUITES["unit"][1], jobs)
        if failure is not None:
            raise CatalogueError(f"the tests fail without any mutant: {failure}")
        for mutant in mutants:
            findings = judge(mutant, root, suites, jobs=jobs, every_suite=every_suite)
            if not report(mutant, findings):
                survived.append(mutant.name)
    found = len(mutants) - len(survived)
    print(f"{found} of {len(mutants)} mutants found ({found / max(1, len(mutants)):.0%})")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
