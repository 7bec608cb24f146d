"""``vq broker``: what its settings become."""

import os
from pathlib import Path
from typing import Any

import pytest

from vq.broker import main as broker_main
from vq.cli.base.logs import LogOptions
from vq.cli.brokers import broker


def test_data_directories_are_known_by_their_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`../2/d` says nothing in `vq cluster status` of another machine, or at a later start."""
    ran: list[Any] = []
    monkeypatch.setattr(broker_main, "run_broker", ran.append)
    monkeypatch.setattr(LogOptions, "start", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    given = ["--data", "1", "--data", "/2", "--group", "b1", "--node", "n1"]
    broker.broker.main(given, standalone_mode=False)
    assert ran[0].directories == (tmp_path / "1", Path("/2"))


def test_a_data_directory_is_not_looked_at_before_the_broker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a mount that hangs, `--data` would: nothing would be in the log, and no signal heard."""
    ran: list[Any] = []
    monkeypatch.setattr(broker_main, "run_broker", ran.append)
    monkeypatch.setattr(LogOptions, "start", lambda *_, **__: None)
    stat, seen = os.stat, []

    def note(path: Any, *args: Any, **more: Any) -> os.stat_result:
        seen.append(str(path))
        return stat(path, *args, **more)

    monkeypatch.setattr(os, "stat", note)
    given = ["--data", str(tmp_path), "--group", "b1", "--node", "n1"]
    broker.broker.main(given, standalone_mode=False)
    assert ran
    assert str(tmp_path) not in seen
