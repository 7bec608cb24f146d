"""Have mypy and pyright check the programs of tests/typed as a user's.

    python tools/typed_programs.py      check all; exit 1 if a checker differs from the comments

Each line with the comment ``# refused`` must be an error of both checkers, and no other line of
either. Pyright comes from PyPI as basedpyright, with its own node: nothing else is downloaded.
"""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "typed"
_MARK = re.compile(r"#\s*refused\b")
_MYPY_LINE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+)(?::\d+)?: error: (?P<text>.*)$")

#: Where an error is: the program's name and the line's number.
Place = tuple[str, int]


class CheckerFailed(Exception):
    """A checker did not run; the message is what it printed."""


def expected(programs: Path = PROGRAMS) -> set[Place]:
    """Return the lines that both checkers must refuse."""
    return {
        (path.name, number)
        for path in sorted(programs.glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _MARK.search(line)
    }


def found_by_mypy(programs: Path = PROGRAMS) -> dict[Place, str]:
    """Return the errors of ``mypy --strict``.

    Raises:
        CheckerFailed: It did not run.
    """
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="]
    command += ["--cache-dir", str(ROOT / ".mypy_cache")]  # not beside the programs
    done = _run([*command, *map(str, sorted(programs.glob("*.py")))], programs)
    errors = [match for line in done.splitlines() if (match := _MYPY_LINE.match(line))]
    return {(Path(each["file"]).name, int(each["line"])): each["text"] for each in errors}


def found_by_pyright(programs: Path = PROGRAMS) -> dict[Place, str]:
    """Return the errors of pyright in its strict mode.

    Raises:
        CheckerFailed: It did not run.
    """
    script = Path(sysconfig.get_path("scripts"), "basedpyright")
    command = [str(script), "--outputjson", "--pythonpath", sys.executable]
    done = _run([*command, "--project", str(programs)], programs)
    try:
        report = json.loads(done)
    except ValueError:
        raise CheckerFailed(done) from None
    if not report["summary"]["filesAnalyzed"]:
        raise CheckerFailed(done)
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"]
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    }


def _run(command: list[str], where: Path) -> str:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1}:
        raise CheckerFailed(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def differences(checker: str, found: dict[Place, str], wanted: set[Place]) -> list[str]:
    """Return a line for each place where a checker differs from the comments."""
    more = [
        f"{checker}: {name}:{line}: {found[name, line]}" for name, line in found.keys() - wanted
    ]
    less = [
        f"{checker}: {name}:{line}: takes what it must refuse"
        for name, line in wanted - found.keys()
    ]
    return sorted(more + less)


def main() -> int:
    """Check with both; print where they differ; return the exit code."""
    wanted = expected()
    try:
        lines = differences("mypy", found_by_mypy(), wanted)
        lines += differences("pyright", found_by_pyright(), wanted)
    except CheckerFailed as error:
        print(error, file=sys.stderr)
        return 2
    print(
        "\n".join(lines)
        or f"typed programs: mypy and pyright refuse {len(wanted)} lines, as they must"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
