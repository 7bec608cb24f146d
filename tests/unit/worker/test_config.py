"""Settings of a runner are checked when they are made."""

from typing import Any

import pytest

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
