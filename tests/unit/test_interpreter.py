"""Which interpreters vq refuses: those whose threads do not take turns."""

import subprocess
import sys

import pytest

from vq.interpreter import refusal


def test_an_interpreter_without_its_lock_is_refused() -> None:
    assert refusal(gil_enabled=True) is None
    said = refusal(gil_enabled=False)
    assert said is not None
    assert "free-threaded" in said
    assert "Use the standard build" in said


@pytest.mark.parametrize("module", ["vq", "vq.aio", "vq.cli.entry"])
def test_nothing_of_vq_is_imported_without_the_lock(module: str) -> None:
    """As Python 3.13 and later tell it; the others have no such function."""
    program = f"import sys; sys._is_gil_enabled = lambda: False; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {refusal(gil_enabled=False)}"
