"""The release's decisions: its notes, its wheels' names, and what it takes them from."""

from pathlib import Path
from types import ModuleType

import pytest
from support.tool import TOOLS, load_tool


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return load_tool("release")


def test_the_notes_are_the_section_of_the_version(release: ModuleType) -> None:
    changes = "# Changes\n\n## 0.2.0 (2026-12-31)\n\n- new\n\n## 0.1.0 (2026-11-30)\n\n- old\n"
    assert release.notes_of(changes, "0.2.0") == "## 0.2.0 (2026-12-31)\n\n- new\n"
    assert release.notes_of(changes, "0.1.0") == "## 0.1.0 (2026-11-30)\n\n- old\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("## Unreleased\n\n- new\n\n## 0.1.0 (2026)\n", "has no section '## 0.2.0 …'"),
        ("## Unreleased\n\n- new\n\n## 0.2.0 (2026)\n", "unreleased beside '## 0.2.0 …'"),
        ("## 0.2.0.1 (2026)\n", "has no section"),
    ],
)
def test_a_version_without_notes_of_its_own_is_refused(
    release: ModuleType, changes: str, said: str
) -> None:
    with pytest.raises(release.ReleaseFailed, match="--unreleased") as refused:
        release.notes_of(changes, "0.2.0")
    assert said in str(refused.value)


def test_a_wheel_is_named_for_its_python_machine_and_c_library(release: ModuleType) -> None:
    target = release.Target("3.12", "aarch64")
    assert target.tag == "cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64"
    assert target.suffix == ".cpython-312-aarch64-linux-gnu.so"
    assert "aarch64-linux-gnu.2.17" in target.compiler


def test_an_interpreter_goes_before_headers_alone(release: ModuleType) -> None:
    alone = release.Headers("3.11", Path("/headers"))
    whole = release.Headers("3.11", Path("/include"), Path("/bin/python3.11"))
    later = release.Headers("3.12", Path("/later"))
    assert release.complete([alone, later, whole], ["3.11"]) == {"3.11": whole}
    with pytest.raises(release.ReleaseFailed) as refused:
        release.complete([whole, later], ["3.11", "3.13", "3.14", "3.12"])
    said = str(refused.value)
    assert "no headers of Python 3.13, 3.14" in said
    assert said.endswith("--only 3.11 3.12")


def test_named_headers_are_found_below_the_directory(release: ModuleType, tmp_path: Path) -> None:
    """As ``dpkg-deb -x`` unpacks them."""
    include = tmp_path / "usr" / "include" / "python3.14"
    include.mkdir(parents=True)
    with pytest.raises(release.ReleaseFailed, match=r"no Python\.h of Python 3\.14"):
        release.named_headers(f"3.14={tmp_path}")
    (include / "Python.h").write_text("")
    assert release.named_headers(f"3.14={tmp_path}").include == include
    assert release.named_headers(f"3.14={include}").include == include
    with pytest.raises(release.ReleaseFailed, match=r"no Python\.h of Python 3\.13"):
        release.named_headers(f"3.13={tmp_path}")
    for text in ("3.14", "3.7=/x", "=/x"):
        with pytest.raises(release.ReleaseFailed, match="expected VERSION=DIR"):
            release.named_headers(text)


def test_the_version_that_is_built_is_the_one_that_the_library_says(release: ModuleType) -> None:
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    metadata = ProjectMetadata(str(TOOLS.parent), PluginManager())
    assert metadata.version == release.__version__
