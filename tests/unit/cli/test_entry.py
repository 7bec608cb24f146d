"""The entry point of the installed command."""

import subprocess
import sys
from typing import Any

import pytest

from vq.cli import entry
from vq.cli.base import signals
from vq.version import __version__


class Interrupted:
    """A finder of modules during whose work somebody presses ctrl-C."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        if name == "vq.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_imported_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "vq.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == signals.exit_code() == 130
    assert capsys.readouterr().err == ""


def test_the_package_runs_as_the_command() -> None:
    """``python -m vq``, where the command's directory is not on PATH."""
    ended = subprocess.run(
        [sys.executable, "-m", "vq", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"vq, version {__version__}\n"
