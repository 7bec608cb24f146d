"""All fuzz targets, guided by coverage: a short run; ``make fuzz`` is the long one."""

import importlib.util

import pytest
from support import guided_fuzz


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this machine"
)
def test_bytes_that_reach_new_lines_are_refused() -> None:
    """The seeds of all targets, what is kept, and some more: the same every time."""
    options = ["--together", "--inputs", "2000", "--seed", "1"]
    ended = guided_fuzz.start(options, capture_output=True, timeout=240)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    assert "stat::number_of_executed_units: 2000" in ended.stderr, ended.stderr[-4_000:]
