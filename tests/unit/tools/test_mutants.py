"""The catalogue of mutants fits the code, and the tool that runs it tells found from survived."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.tool import load_tool

from vq.testing.waiting import PROCESSES_WAIT_S

mutants = load_tool("mutants")

ROOT = Path(__file__).parents[3]
FAILS = "test_code.py::test_one"
ENTRY = """
[[mutant]]
name = "a"
file = "subject.py"
find = "1"
replace = "2"
breaks = "One is one."
tests = ["test_code.py"]
"""


def a_mutant(**changes: object) -> mutants.Mutant:
    fields: dict[str, object] = {
        "name": "one",
        "file": "subject.py",
        "find": "1",
        "replace": "2",
        "breaks": "One is one.",
        "tests": ("test_code.py",),
    }
    return mutants.Mutant(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pytest of a tree load no plugins but what the tool asks for: that takes seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout,xdist.plugin")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "subject.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_code.py").write_text(
        "import code_under_test\n\ndef test_one():\n    assert code_under_test.one() == 1\n"
    )
    (tmp_path / "code_under_test.py").write_text("def one():\n    return 1\n")
    return tmp_path


def test_every_entry_of_the_catalogue_fits_the_code() -> None:
    assert {each.name: wrong for each in mutants.load() if (wrong := misfit(each))} == {}


def misfit(mutant: mutants.Mutant) -> str:
    """What keeps an entry from being a bug of today's code; "" if nothing does."""
    text = (ROOT / mutant.file).read_text()
    if text.count(mutant.find) != 1:
        return f"{mutant.file} has the text {text.count(mutant.find)} times"
    if mutant.file.endswith(".py"):
        try:
            compile(text.replace(mutant.find, mutant.replace), mutant.file, "exec")
        except SyntaxError as error:
            return f"it does not compile: {error}"
    if not mutant.breaks.endswith("."):
        return "what it breaks is no sentence"
    missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]
    return f"no such tests: {missing}" if missing or not mutant.tests else ""


def test_there_are_enough_of_them() -> None:
    assert len(mutants.load()) >= 60


def test_a_text_that_is_gone_is_named(tree: Path) -> None:
    with pytest.raises(mutants.CatalogueError, match=r"mutant one.* 0 times in subject\.py"):
        a_mutant(find="gone").apply(tree)


def test_a_captured_log_line_is_not_taken_for_a_test() -> None:
    """It begins with the same word as a line of pytest's summary."""
    report = [
        "ERROR    vq.store.log.log:log.py:12 a log line",
        "=========== short test summary info ============",
        "FAILED tests/test_code.py::test_one - assert 2 == 1",
        "FAILED tests/test_code.py::test_two - assert 2 == 1",
    ]
    assert mutants.first_failure(report) == "tests/test_code.py::test_one"
    assert "without naming" in mutants.first_failure(report[:1])


@pytest.mark.slow
@pytest.mark.parametrize(("replace", "failed"), [("2", FAILS), ("1 + 0", None)])
def test_a_run_names_the_test_that_fails(tree: Path, replace: str, failed: str | None) -> None:
    mutant = a_mutant(file="code_under_test.py", replace=replace)
    mutant.apply(tree)
    assert mutants.run_tests(tree, mutant.tests, 60.0, 1) == failed


@pytest.mark.parametrize(
    ("alone", "without", "found"), [(FAILS, None, True), (None, None, False), (FAILS, FAILS, False)]
)
def test_a_failure_counts_if_it_is_the_mutants(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    alone: str | None,
    without: str | None,
    found: bool,
) -> None:
    """The test that failed runs alone, too: with the mutant it fails, without it passes."""
    mutant = a_mutant(file="code_under_test.py")

    def run_tests(root: Path, paths: Sequence[str], *_: object) -> str | None:
        if paths == mutant.tests:
            return FAILS
        assert paths == (FAILS,)
        return alone if (root / mutant.file).read_text().endswith("2\n") else without

    monkeypatch.setattr(mutants, "run_tests", run_tests)
    findings = mutants.judge(mutant, tree, ["named"], jobs=1, every_suite=False)
    assert mutants.report(mutant, findings) is found
    told = capsys.readouterr().out
    assert (f"by={FAILS}" in told) is found
    assert ("SURVIVED" in told) is not found
    assert told.count("not_confirmed=") == (0 if found else mutants.TRIES)
    assert (tree / mutant.file).read_text().endswith("1\n")


HANGS = """
import os, subprocess, time

def test_one():
    pipe = os.open("{pipe}", os.O_WRONLY)
    subprocess.Popen(["sleep", "600"], pass_fds=[pipe])
    os.write(pipe, b"runs")
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_tests_and_removes_the_copy(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, number: signal.Signals
) -> None:
    """A test and a process that it started hold a pipe, whose end comes when both have ended."""
    place = tmp_path_factory.mktemp("place")
    for each in (tree / "tools", tree / "tests/mutants", tree / ".venv", place / "tmp"):
        each.mkdir(parents=True)
    tool = shutil.copy(ROOT / "tools" / "mutants.py", tree / "tools")
    (tree / "tests/mutants/catalogue.toml").write_text(ENTRY)
    pipe = place / "pipe"
    os.mkfifo(pipe)
    (tree / "test_code.py").write_text(HANGS.format(pipe=pipe))
    process = subprocess.Popen(
        [sys.executable, tool], env={**os.environ, "TMPDIR": str(place / "tmp")}, cwd=tree
    )
    try:
        with pipe.open("rb", buffering=0) as held:
            assert held.read(4) == b"runs"
            process.send_signal(number)
            assert process.wait(PROCESSES_WAIT_S) == 128 + number
            assert held.read() == b"", "a test still runs"
    finally:
        process.kill()
        process.wait()
    assert list((place / "tmp").glob("vq-mutants-*")) == []


def test_an_entry_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(ENTRY * 2)
    with pytest.raises(mutants.CatalogueError, match="mutant a stands twice"):
        mutants.load(path)
