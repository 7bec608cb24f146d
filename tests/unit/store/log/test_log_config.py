"""Sizes are checked when they are given."""

import pytest

from vq.errors import InvalidArgument
from vq.store.log.log_config import LogConfig


@pytest.mark.parametrize(
    "setting",
    [
        {"block_bytes": 4095},
        {"block_bytes": (4 << 30) + 1},
        {"checkpoint_bytes": 0},
        {"checkpoint_batches": 0},
        {"allocate_bytes_min": 0},
        {"allocate_bytes_min": 1 << 30},
    ],
)
def test_unusable_sizes_are_refused(setting: dict[str, int]) -> None:
    """The message shows the value."""
    with pytest.raises(InvalidArgument, match=str(next(iter(setting.values())))):
        LogConfig(**setting)


def test_the_defaults_are_usable() -> None:
    """So are the bounds themselves."""
    LogConfig()
    LogConfig(block_bytes=4096, checkpoint_bytes=4096, allocate_bytes_min=4096)
