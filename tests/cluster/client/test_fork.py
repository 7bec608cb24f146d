"""``vq.aio`` in the child of a fork: it refuses every use at once, as the blocking API does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_child_of_a_fork_in_a_coroutine_is_refused_and_the_parent_goes_on() -> None:
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.run(
        [sys.executable, "-m", "support.forking_coroutines"],
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
