"""What is packed: an sdist from which wheels can be built, and wheels that run when installed.

`make release` builds more of them with zig's compiler; this is the part that needs only what the
tests have.
"""

import functools
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.tool import TOOLS, load_tool

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def release() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        yield load_tool("release")


@pytest.fixture(scope="module")
def sdist(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = release.build("sdist", TOOLS.parent, tmp_path_factory.mktemp("sdist"), {})
    assert isinstance(built, Path)
    return built


@pytest.fixture
def source(release: ModuleType, sdist: Path, tmp_path: Path) -> Path:
    """The unpacked sdist."""
    unpacked = release.source_of(sdist, tmp_path / "source")
    assert isinstance(unpacked, Path)
    return unpacked


@pytest.fixture(scope="module")
def make_wheel(
    release: ModuleType, sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[bool], Path]:
    """Build a wheel of the sdist, with compiled loops or without, once for all tests."""

    @functools.cache
    def make(compiled: bool) -> Path:
        place = tmp_path_factory.mktemp("wheel")
        environ = {} if compiled else {"VQ_PURE": "1"}
        (place / "out").mkdir()
        made = release.build(
            "wheel", release.source_of(sdist, place / "source"), place / "out", environ
        )
        assert isinstance(made, Path)
        return made

    return make


def installed(wheel: Path, directory: Path) -> Path:
    """Install a wheel in a fresh environment that has vq's dependencies from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps"]
    pip += ["--no-compile"]  # what runs here is compiled when it is imported
    subprocess.run([*pip, "--quiet", "--disable-pip-version-check", wheel], check=True)
    [packages] = directory.glob("lib/python3*/site-packages")
    # This environment's own .pth files, such as that of the editable vq, are not read this way.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run(python: Path, *arguments: str, cwd: Path) -> str:
    command = [python, *arguments]
    environ = {"PATH": str(python.parent), "HOME": str(cwd)}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(False, id="pure"),
        pytest.param(True, id="compiled", marks=pytest.mark.long),  # it compiles all C files
    ],
)
def test_a_wheel_of_the_sdist_runs_without_the_checkout(
    release: ModuleType, make_wheel: Callable[[bool], Path], tmp_path: Path, compiled: bool
) -> None:
    if compiled and not list(TOOLS.parent.glob("vq/_message.*.so")):
        pytest.skip("no C compiler here, or VQ_PURE is set")
    wheel = make_wheel(compiled)
    assert ("none-any" in wheel.name) is not compiled
    python = installed(wheel, tmp_path / "venv")
    where = run(python, "-c", "import vq; print(vq.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(tmp_path)
    loops = run(python, "-c", release.COMPILED, cwd=tmp_path).split()
    assert set(loops) == {str(compiled)}
    assert len(loops) == len(list(TOOLS.parent.glob("vq/**/*.c")))
    vq = str(python.parent / "vq")
    assert release.__version__ in run(python, vq, "--version", cwd=tmp_path)
    assert "standalone" in run(python, vq, "--help", cwd=tmp_path)


def test_pip_finds_all_that_a_wheel_with_an_extra_needs_among_what_the_tests_have(
    make_wheel: Callable[[bool], Path], tmp_path: Path
) -> None:
    """What it names is what its tests ran with; the long form has pip fetch that from an index."""
    wanted = f"vq[archive] @ file://{make_wheel(False)}"
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet"]
    pip += ["--disable-pip-version-check", "--report", str(tmp_path / "report"), wanted]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installs = json.loads((tmp_path / "report").read_text())["install"]
    assert [each["metadata"]["name"] for each in installs] == ["vq"]
    assert any("fsspec" in each for each in installs[0]["metadata"]["requires_dist"])


@pytest.mark.long
@pytest.mark.parametrize("form", ["checkout", "wheel"])
def test_the_how_to_installs_vq_with_an_extra_into_a_fresh_environment(
    release: ModuleType,
    make_wheel: Callable[[bool], Path],
    source: Path,
    tmp_path: Path,
    form: str,
) -> None:
    """With pip alone, and the packages of vq from the index that it is set to."""
    wanted = f"{source}[archive]"
    if form == "wheel":
        wanted = f"vq[archive] @ file://{make_wheel(False)}"
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted]
    environ = {**os.environ, "VQ_PURE": "1", "PIP_NO_COMPILE": "1"}  # as in ``installed``
    done = subprocess.run(pip, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert release.__version__ in run(python, "-m", "vq", "--version", cwd=tmp_path)
    run(python, "-c", "import fsspec, vq", cwd=tmp_path)


def test_the_sdist_has_what_its_tests_need_and_nothing_that_git_ignores(source: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=TOOLS.parent, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no checkout of git")
    files = {
        os.path.relpath(Path(place, name), source)
        for place, _, names in os.walk(source)
        for name in names
    }
    tracked = set(listed.stdout.splitlines())
    assert tracked - files == set()
    assert {name for name in files - tracked if name.endswith((".so", ".pyc"))} == set()
