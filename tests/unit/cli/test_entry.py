"""The entry point of the installed command."""

import sys
from typing import Any

import pytest

from vq.cli import entry, signals


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
