"""Settings of a runner are checked when they are made."""

from pathlib import Path
from typing import Any

import pytest

from vq.cli.base.settings import build, read_sources
from vq.errors import InvalidArgument
from vq.worker.config import RunnerConfig


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"processes": 0}, r"processes = 0 is outside \[1, 256\]"),
        ({"processes": True}, "processes = True"),
        ({"stop_timeout_s": -1}, "stop_timeout_s = -1"),
        ({"time_limit_s": 5, "soft_time_limit_s": 5}, "is not below time_limit_s"),
        ({"health_port": 8000, "health_host": "0.0.0.0"}, "no loopback address"),
        ({"messages_max": -1}, "messages_max = -1"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        RunnerConfig(**settings)


def test_settings_come_from_flags_variables_and_the_file(tmp_path: Path) -> None:
    """In this order, as for every other command."""
    file = tmp_path / "vq.toml"
    file.write_text("[worker]\nprocesses = 2\ntime_limit_s = 1.5\nreload = true\n")
    sources = read_sources(str(file), {"VQ_WORKER_PROCESSES": "3"}, stop_timeout_s=9.0)
    config = build(RunnerConfig, "worker", sources)
    assert (config.processes, config.time_limit_s, config.reload) == (3, 1.5, True)
    assert config.stop_timeout_s == 9.0
