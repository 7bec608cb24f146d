"""docs/reference/cli.md is what the commands say of themselves."""

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools" / "cli_reference.py"


def test_the_reference_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("cli_reference", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.render(), "run `make docs`"
