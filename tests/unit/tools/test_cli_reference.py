"""docs/reference/cli.md is what the commands say of themselves."""

from support.tool import load_tool


def test_the_reference_is_fresh() -> None:
    module = load_tool("cli_reference")
    assert module.TARGET.read_text() == module.render(), "run `make docs`"
