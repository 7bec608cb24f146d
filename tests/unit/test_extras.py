"""What installs the packages of an extra."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from vq.extras import install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_the_command_names_each_package_and_its_bounds(extra: str) -> None:
    """Never vq itself: no index has it, and another package may have the name there."""
    command = install_command(extra)
    assert command.startswith("pip install '")
    for needed in PROJECT["optional-dependencies"][extra]:
        name, bounds = needed.partition(">=")[::2]
        assert f"'{name}" in command
        assert all(bound.lstrip("<>=") in command for bound in bounds.split(","))
    assert "vq" not in command


def test_vq_that_was_never_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("spark") == "in a checkout of vq: pip install '.[spark]'"


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_the_page_of_installing_names_each_extra(extra: str) -> None:
    assert f"| `{extra}` |" in (ROOT / "docs" / "howto" / "install.md").read_text()
